"""What a conversion cannot do, tried from inside; and what is said where a kernel refuses."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import textwrap

import pytest
import torch

from dippm.base import process
from dippm.errors import ConversionError, InputShapeError
from dippm.model import frontends
from dippm.model.frontends.worker import Worker

FRONTEND = """
    import ctypes, json, os, shutil, socket, stat, subprocess, sys, threading
    from pathlib import Path
    from dippm.errors import InputShapeError
    from dippm.model.relax.raw_graph import RawGraph, RawOperator, RawValue

    NAME = "burglar"

    def accepts(path):
        return True

    def system(number, *words):
        library = ctypes.CDLL(None, use_errno=True)
        if library.syscall(number, *words) < 0:
            raise OSError(ctypes.get_errno(), "refused")

    def truncated_while_read(path):
        os.close(os.open(path, os.O_RDONLY | os.O_TRUNC))

    def shell(*words):
        if os.system("echo x > /dev/null"):
            raise PermissionError("no shell")

    def program_in_a_child(*words):
        child = os.fork()
        if not child:
            try:
                os.execv(sys.executable, [sys.executable, "-c", ""])
            finally:
                os._exit(9)
        if os.waitpid(child, 0)[1]:
            raise PermissionError("no program")

    def through_proc(path):
        with open(path) as readable, open(f"/proc/self/fd/{readable.fileno()}", "r+") as file:
            file.write("x")

    def in_a_thread(function, *words):
        errors = []
        def work():
            try:
                function(*words)
            except OSError as error:
                errors.append(error)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]

    def tcp(port):
        socket.create_connection(("127.0.0.1", port), timeout=5)

    def local(path):
        socket.socket(socket.AF_UNIX).connect(path)

    def own_descriptors(*words):
        for number in map(int, os.listdir("/proc/self/fd")):
            try:
                mode = os.fstat(number).st_mode
            except OSError:
                continue
            if stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISSOCK(mode):
                return
        raise PermissionError("none that leads out")

    def attempts(kept, port, local_socket):
        file, folder = kept, os.path.dirname(kept)
        yield "connect", lambda: tcp(port)
        yield "connect in a thread", lambda: in_a_thread(tcp, port)
        yield "connect to a socket in a folder", lambda: local(local_socket)
        yield "any other socket", lambda: socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)
        yield "write beside the model", lambda: open(file + ".new", "w")
        yield "write over", lambda: open(file, "w")
        yield "append", lambda: open(file, "a")
        yield "append in a thread", lambda: in_a_thread(open, file, "a")
        yield "write at home", lambda: open(os.path.expanduser("~/dippm-burglar"), "w")
        yield "write here", lambda: open("dippm-burglar", "w")
        yield "write shared memory", lambda: open("/dev/shm/dippm-burglar", "w")
        yield "write a code cache", lambda: open(__file__ + "c", "w")
        yield "truncate", lambda: os.truncate(file, 0)
        yield "truncate while reading", lambda: truncated_while_read(file)
        yield "unlink", lambda: os.unlink(file)
        yield "rename", lambda: os.rename(file, file + ".old")
        yield "move into our folder", lambda: os.rename(file, os.environ["TMPDIR"] + "/x")
        yield "link", lambda: os.link(file, file + ".link")
        yield "symlink", lambda: os.symlink(file, file + ".link")
        yield "make a folder", lambda: os.mkdir(folder + "/new")
        yield "remove a folder", lambda: os.rmdir(folder + "/empty")
        yield "make a pipe", lambda: os.mkfifo(folder + "/pipe")
        yield "change the mode", lambda: os.chmod(file, 0)
        yield "change the times", lambda: os.utime(file, (0, 0))
        yield "change the owner", lambda: os.chown(file, os.getuid(), os.getgid())
        yield "set an attribute", lambda: os.setxattr(file, "user.dippm", b"x")
        yield "write through /proc", lambda: through_proc(file)
        yield "write the caller's memory", lambda: open(f"/proc/{os.getppid()}/mem", "r+b")
        yield "write a setting of the kernel", lambda: open("/proc/self/oom_score_adj", "w")
        yield "a descriptor that was left open", own_descriptors
        yield "run a program", lambda: subprocess.run(["/bin/true"], check=True)
        yield "run a shell", shell
        yield "run a program in a child", program_in_a_child
        yield "end the caller", lambda: os.kill(os.getppid(), 0)
        yield "end everybody", lambda: os.kill(-1, 0)
        yield "lower the caller's limits", lambda: __import__("resource").prlimit(
            os.getppid(), __import__("resource").RLIMIT_CORE, (0, 0)
        )
        yield "a new user namespace", lambda: system(272 if os.uname().machine == "x86_64" else 97,
                                                     0x10000000)
        yield "asynchronous calls", lambda: system(425, 1, 0)
        yield "a call of later kernels", lambda: system(463, 0)

    def load(path, inputs, *, trust):
        if path.name == "fine":
            value = RawValue((1009, 1), "float32", "input", "x")
            return RawGraph((value,), (RawOperator("relu", (0,), (0,)),), (0,), (0,), 1009)
        done = []
        for name, attempt in attempts(*json.loads(path.name.replace("|", "/"))):
            try:
                attempt()
            except (OSError, subprocess.SubprocessError):
                continue
            done.append(name)
        scratch = Path(os.environ["TMPDIR"], "scratch")
        scratch.mkdir()
        (scratch / "a").write_text("a")
        (scratch / "a").rename(scratch.parent / "b")
        with open(scratch.parent / "b", "r+") as file:
            file.truncate(0)
        shutil.rmtree(scratch)
        with open(os.devnull, "w") as nothing:
            nothing.write("x")
        raise InputShapeError("tried", json.dumps(done))
"""


@pytest.fixture(scope="module", autouse=True)
def _whole():
    """These tests are about a kernel that has all of it."""
    worker = Worker(process.__name__)
    sandbox = worker.wait_for_sandbox()
    worker.stop()
    if sandbox.open_ways:
        pytest.skip(f"this kernel or container refuses a part of the sandbox: {sandbox}")


@pytest.fixture
def burglar(tmp_path, monkeypatch):
    (tmp_path / "burglar_frontend.py").write_text(textwrap.dedent(FRONTEND))
    monkeypatch.syspath_prepend(str(tmp_path))
    return "burglar_frontend"


def test_nothing_outside_can_be_reached_or_changed(burglar, tmp_path, monkeypatch):
    (house := tmp_path / "house").mkdir()
    (house / "empty").mkdir()
    monkeypatch.chdir(house)
    monkeypatch.setenv("HOME", str(house))
    (kept := house / "kept").write_text("kept")
    before = os.stat(kept), sorted(os.listdir(house))
    left_open = os.open(kept, os.O_RDWR)
    os.set_inheritable(left_open, True)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(str(tmp_path / "local"))
        local.listen()
        port = server.getsockname()[1]
        asked = json.dumps([str(kept), port, str(tmp_path / "local")]).replace("/", "|")
        worker = Worker(burglar)
        with pytest.raises(InputShapeError) as caught:
            worker.convert(_request(asked), timeout_s=120)
        worker.stop()
        for listener in (server, local):
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()
    os.close(left_open)
    assert json.loads(caught.value.hint) == []
    assert kept.read_text() == "kept"
    after = os.stat(kept), sorted(os.listdir(house))
    for name in ("st_mode", "st_mtime_ns", "st_ctime_ns", "st_uid", "st_ino", "st_nlink"):
        assert getattr(after[0], name) == getattr(before[0], name)
    assert after[1] == before[1]


def _request(source):
    inputs = {"shapes": {}, "batch_axes": {}, "values": {}}
    return {"source": source, "inputs": inputs, "trust": False}


class Writes:
    """Code of a file that is trusted."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (self.path, "w")


def test_trusted_code_runs_inside_too(tmp_path):
    torch.save(Writes(str(tmp_path / "written")), path := tmp_path / "model.pt")
    with pytest.raises(ConversionError, match="tried what conversions do not allow") as caught:
        frontends.load(path, "4", trust=True, cache=False)
    assert "TMPDIR" in caught.value.hint
    assert not (tmp_path / "written").exists()


WITHOUT = """
import ctypes, errno, json, os, struct, sys, warnings
from dippm.base.process import sandbox

gone = sys.argv[1].split("+")
machine, _ = sandbox.MACHINES[os.uname().machine]
absent = sandbox._line(sandbox.RETURN, 0x00050000 | errno.ENOSYS)
lines = [sandbox._line(sandbox.LOAD, sandbox.NUMBER)]
if "landlock" in gone:
    for number in (444, 445, 446):
        lines += sandbox._if(sandbox.EQUAL, number, [absent])
if "namespace" in gone:
    lines += sandbox._if(sandbox.EQUAL, sandbox.REFUSED["unshare"][machine], [absent])
if "seccomp" in gone:
    body = sandbox._if(sandbox.EQUAL, sandbox.PR_SET_SECCOMP, [absent])
    body = [sandbox._line(sandbox.LOAD, sandbox.ARGUMENTS), *body, sandbox._line(6, sandbox.ALLOW)]
    lines += sandbox._if(sandbox.EQUAL, (157, 167)[machine], body)
program = b"".join([*lines, sandbox._line(sandbox.RETURN, sandbox.ALLOW)])
code = ctypes.create_string_buffer(program, len(program))
header = struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
sandbox._call("prctl", sandbox.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
sandbox._call("prctl", sandbox.PR_SET_SECCOMP, sandbox.SECCOMP_MODE_FILTER, header, 0, 0)

from dippm.errors import SandboxWarning
from dippm.model.frontends.worker import Worker
from dippm.show.report.health import _sandbox

told = []
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(2):
        worker = Worker("burglar_frontend")
        inputs = {"shapes": {}, "batch_axes": {}, "values": {}}
        request = {"source": "fine", "inputs": inputs, "trust": False}
        assert worker.convert(request).operators
        worker.stop()
    told = [str(w.message) for w in caught if issubclass(w.category, SandboxWarning)]
    finding = _sandbox()
print(json.dumps([told, finding.state, finding.detail]))
"""


@pytest.mark.parametrize(
    ("gone", "still_open"),
    [
        ("namespace", []),
        ("landlock", ["writing files"]),
        ("namespace+seccomp", ["the network"]),
        ("landlock+namespace+seccomp", ["writing files", "the network", "starting programs"]),
    ],
)
def test_what_a_kernel_refuses_is_said_once(burglar, gone, still_open):
    paths = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, gone],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told, state, detail = json.loads(done.stdout)
    if not still_open:
        assert told == []
        assert state == "ok"
        assert "network namespace: Function not implemented" in detail
        return
    (warning,) = told
    assert warning.startswith(" and ".join(still_open))
    assert "Function not implemented" in warning
    assert "dippm doctor" in warning
    assert state == "absent"
    assert f"absent: {', '.join(still_open)}" in detail


COMPILES = """
import os, sys
from dippm.base import progress
from dippm.model.frontends.worker import Worker
for _ in range(2):
    heard = []
    worker = Worker("burglar_frontend")
    inputs = {"shapes": {}, "batch_axes": {}, "values": {}}
    with progress.listening(heard.append):
        worker.convert({"source": "fine", "inputs": inputs, "trust": False})
    worker.stop()
    print("compiling libraries" in heard)
"""


def test_bytecode_is_kept_although_a_sandbox_writes_nothing(burglar, tmp_path):
    paths = os.pathsep.join(p for p in sys.path if p)
    kept = {"PYTHONPATH": paths, "PYTHONPYCACHEPREFIX": str(tmp_path / "code")}
    more = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", COMPILES],
        env={**more, **kept},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True\nFalse\n", done.stderr
    assert list((tmp_path / "code").rglob("burglar_frontend.*.pyc"))


def test_the_doctor_tries_it():
    from dippm.show.report.health import _sandbox

    finding = _sandbox()
    assert finding.state == "ok"
    assert "refused to conversions: writing files, the network, starting programs" in finding.detail
    assert "seccomp" in finding.detail
