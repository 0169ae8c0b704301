"""Limits of the conversion process, and that one bad model does not fail its neighbours."""

from __future__ import annotations

import importlib
import os
import re
import signal
import subprocess
import sys
import textwrap

import pytest
import torch

from dippm.base import process
from dippm.base.progress import listening
from dippm.errors import (
    ConversionError,
    FrameworkNotInstalledError,
    InputShapeError,
)
from dippm.model import frontends
from dippm.model.frontends.frontend import InputSpec
from dippm.model.frontends.worker import Worker, WorkerPool
from tests.samples import sampled

FRONTEND = """
    import ctypes, os, signal, time
    from dippm.errors import InputShapeError
    from dippm.model.frontends.worker import step
    from dippm.model.relax.raw_graph import RawGraph, RawOperator, RawValue

    NAME = "moody"

    def accepts(path):
        return True

    def load(path, inputs, *, trust):
        step("being moody")
        mood = path.name
        if mood == "segfault":
            ctypes.string_at(0)
        if mood == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if mood == "exit":
            print("last words", flush=True)
            os._exit(7)
        if mood == "busy":
            while True:
                pass
        if mood == "writes":
            with open(os.environ["TMPDIR"] + "/scratch", "wb") as file:
                file.write(bytes(1000))
        if mood in ("large files", "many files"):
            for number in range(20_000):
                with open(os.environ["TMPDIR"] + f"/{number}", "wb") as file:
                    if mood == "large files" and number < 4:
                        os.posix_fallocate(file.fileno(), 0, 100 << 20)
            time.sleep(600)
        if mood == "a large file":
            with open(os.environ["TMPDIR"] + "/one", "wb") as file:
                os.posix_fallocate(file.fileno(), 0, 300 << 20)
        if mood.startswith("{"):
            import json
            from dippm.base import process
            from dippm.model.frontends import worker
            process.write_frame(worker._answers, json.loads(mood))
            time.sleep(600)
        if mood == "deep":
            def call():
                call()
            call()
        if mood == "slow":
            time.sleep(60)
        if mood == "greedy":
            bytearray(3 << 30)
        if mood == "hidden":
            try:
                bytearray(3 << 30)
            except MemoryError as error:
                raise InputShapeError("not readable", "write it again") from error
        if mood == "picky":
            raise InputShapeError("got 3", "give 4")
        if mood == "lost":
            import no_such_framework
        if mood == "broken":
            raise KeyError("inner")
        if mood == "loud":
            print("noise on standard output", flush=True)
        value = RawValue((1009, os.getpid()), "float32", "input", str(sorted(inputs.shapes)))
        return RawGraph((value,), (RawOperator("relu", (0,), (0,)),), (0,), (0,), 1009)
"""


@pytest.fixture
def pool(tmp_path, monkeypatch):
    (tmp_path / "moody_frontend.py").write_text(textwrap.dedent(FRONTEND))
    monkeypatch.syspath_prepend(str(tmp_path))
    pool = WorkerPool()
    yield pool
    pool.close()


def convert(pool, mood, *, timeout_s=60.0, memory_limit_mb=2048):
    inputs = InputSpec({"x": (3,)}).to_dict()
    request = {"source": mood, "inputs": inputs, "trust": False}
    with pool.borrow("moody_frontend", memory_limit_mb) as worker:
        return worker.convert(request, timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("mood", "message", "hint"),
    [
        ("segfault", "segmentation fault", "ONNX"),
        ("killed", "killed, probably for memory", "more memory"),
        ("exit", "exit code 7", "doctor"),
        ("greedy", "more memory than 2048 MB", "memory_limit_mb"),
        ("broken", "KeyError", "ONNX"),
        ("deep", "nests too deeply", "ONNX"),
    ],
)
def test_each_end_has_its_message(pool, mood, message, hint):
    with pytest.raises(ConversionError, match=message) as caught:
        convert(pool, mood)
    assert hint in caught.value.hint


LIMITED = """
import resource, sys
limit = getattr(resource, "RLIMIT_" + sys.argv[1])
resource.setrlimit(limit, (int(sys.argv[2]),) * 2)
from dippm.model import frontends
from dippm.errors import ConversionError
from dippm.model.frontends.worker import WorkerPool
try:
    if sys.argv[3] == "module":
        import torch
        frontends.load(torch.nn.Linear(4, 4), "4", cache=False)
    else:
        with WorkerPool().borrow("moody_frontend", 2048) as worker:
            inputs = {"shapes": {}, "batch_axes": {}, "values": {}}
            worker.convert({"source": sys.argv[3], "inputs": inputs, "trust": False})
except ConversionError as error:
    print(error.message, error.hint, sep="|")
"""


@pytest.mark.parametrize(
    ("limit", "amount", "mood", "message", "hint"),
    [
        ("FSIZE", 0, "fine", "no temporary folder can be made: No usable temporary", "TMPDIR"),
        ("FSIZE", 100, "writes", "dippm-.* cannot be written: File too large", "TMPDIR"),
        pytest.param(
            *("FSIZE", 100, "module", "dippm-.* cannot be written: File too large", "TMPDIR"),
            marks=pytest.mark.nightly(part="hostile"),
        ),
        ("CPU", 3, "busy", r"by the limit of processor time, 3 s.*being moody", "ulimit -t"),
    ],
)
def test_a_limit_of_the_shell_is_not_taken_for_a_fault_of_the_file(
    pool, limit, amount, mood, message, hint
):
    paths = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, limit, str(amount), mood],
        # Within a limit on the size of files Python writes compiled modules that are cut off.
        env={**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    said, _, step = done.stdout.partition("|")
    assert re.search(message, said), done.stderr
    assert hint in step


HARD = """
import os
os.umask(0o777)
import torch
from dippm.model import frontends
from dippm.model.frontends.worker import WorkerPool
with WorkerPool().borrow("moody_frontend", 2048) as worker:
    inputs = {"shapes": {}, "batch_axes": {}, "values": {}}
    request = {"source": "writes", "inputs": inputs, "trust": False}
    assert worker.convert(request).operators
print(len(frontends.load(torch.nn.ReLU(), "4").operators))
"""


@pytest.mark.nightly(part="frontends")
def test_a_script_without_a_main_guard_or_a_home_and_with_a_umask_that_leaves_nothing(
    pool, tmp_path
):
    script = tmp_path / "script.py"
    script.write_text(HARD)
    hidden = ("DIPPM_CACHE_DIR", "XDG_CACHE_HOME")
    kept = {name: text for name, text in os.environ.items() if name not in hidden}
    paths = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, script],
        env={**kept, "PYTHONPATH": paths, "HOME": "/proc"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


REFUSED = """
import ctypes, errno, os, struct, sys
import torch, dippm.api
from dippm.errors import ConversionError
from dippm.model.frontends.worker import Worker
from dippm.base.process import sandbox
THREAD = 0x10000
machine, _ = sandbox.MACHINES[os.uname().machine]
later = sandbox._line(sandbox.RETURN, 0x00050000 | errno.EAGAIN)
allow = sandbox._line(sandbox.RETURN, sandbox.ALLOW)
absent = sandbox._line(sandbox.RETURN, 0x00050000 | errno.ENOSYS)
threads, others = ([later], [allow]) if sys.argv[1] == "thread" else ([allow], [later])
body = [sandbox._line(sandbox.LOAD, sandbox.ARGUMENTS)]
body += [*sandbox._if(sandbox.ANY_BIT, THREAD, threads), *others]
lines = [sandbox._line(sandbox.LOAD, sandbox.NUMBER)]
lines += sandbox._if(sandbox.EQUAL, sandbox.ABSENT["clone3"][machine], [absent])
for fork in ((57, 58) if machine == sandbox.X86_64 and sys.argv[1] == "process" else ()):
    lines += sandbox._if(sandbox.EQUAL, fork, [later])
lines += [*sandbox._if(sandbox.EQUAL, sandbox.CLONE[machine], body), allow]
program = b"".join(lines)
code = ctypes.create_string_buffer(program, len(program))
header = struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(code))
sandbox._call("prctl", sandbox.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
sandbox._call("prctl", sandbox.PR_SET_SECCOMP, sandbox.SECCOMP_MODE_FILTER, header, 0, 0)
try:
    dippm.predict(torch.nn.Linear(4, 4), input="4")
except ConversionError as error:
    print(error.message, error.hint, sep="|")
"""


@pytest.mark.nightly(part="hostile")
@pytest.mark.skipif(sys.platform != "linux", reason="a filter of Linux refuses it")
@pytest.mark.parametrize("what", ["process", "thread"])
def test_no_process_or_thread_is_to_be_had(what):
    paths = os.pathsep.join(p for p in sys.path if p)
    done = subprocess.run(
        [sys.executable, "-c", REFUSED, what],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    message, _, hint = done.stdout.partition("|")
    assert message.startswith("no process or thread can be started"), done.stderr
    assert "ulimit" in hint


def test_killed_where_processor_time_is_limited(pool, monkeypatch):
    monkeypatch.setattr(process, "cpu_limit_s", lambda: 7)
    with pytest.raises(ConversionError, match="for memory, or by the limit of processor time, 7 s"):
        convert(pool, "killed")


def test_a_crash_says_the_step_and_the_last_words(pool):
    with pytest.raises(ConversionError, match="being moody") as caught:
        convert(pool, "exit")
    assert any("last output" in note for note in caught.value.__notes__)


@pytest.mark.parametrize("mood", ["large files", "many files"])
def test_a_conversion_that_fills_its_folder_is_ended(pool, mood):
    with pytest.raises(ConversionError, match=r"wrote more than 256 MB.*being moody") as caught:
        convert(pool, mood, memory_limit_mb=256)
    assert "memory_limit_mb" in caught.value.hint
    assert pool._idle == []


def test_a_conversion_cannot_write_a_larger_file_than_it_may_have_in_memory(pool):
    with pytest.raises(ConversionError, match="cannot be written: File too large") as caught:
        convert(pool, "a large file", memory_limit_mb=256)
    assert "memory_limit_mb" in caught.value.hint


FRAMES = [
    "{}",
    '{"graph": "{}"}',
    '{"error": {"type": "ConversionError"}}',
    '{"error": {"type": 1, "message": "", "hint": "", "cause": ""}, "peak_memory_mb": 1.0, '
    '"cpu_s": 1.0}',
    '{"graph": [], "peak_memory_mb": 1.0, "cpu_s": 1.0}',
    '{"graph": "{}", "peak_memory_mb": "1", "cpu_s": 1.0}',
    '{"operators": -1}',
    '{"operators": 1e3}',
    '{"step": 1}',
]


@pytest.mark.parametrize("frame", sampled(FRAMES, pytest.mark.nightly(part="hostile")))
def test_what_a_taken_over_process_answers_is_checked(pool, frame):
    with pytest.raises(ConversionError, match=r"process answered with.*being moody") as caught:
        convert(pool, frame)
    assert caught.value.hint
    assert pool._idle == []


def test_a_timeout_ends_the_process(pool):
    with pytest.raises(ConversionError, match=r"longer than 4 s.*being moody") as caught:
        convert(pool, "slow", timeout_s=4.0)
    assert "timeout_s" in caught.value.hint
    assert pool._idle == []


SLOW_PARTS = """
    from torch import nn
    from dippm.model.frontends.worker import step

    class Endless(nn.Module):
        def forward(self, x):
            step("within")
            while True:
                x = x + 1

    class Holds(nn.Module):
        def __init__(self, last):
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(8, 8), last])

        def forward(self, x):
            return self.blocks[1](self.blocks[0](x))
"""


@pytest.mark.nightly(part="frontends")
def test_a_timeout_names_the_module_and_the_line(tmp_path, monkeypatch):
    (tmp_path / "slow_parts.py").write_text(textwrap.dedent(SLOW_PARTS))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(frontends.worker, "PLACE_S", 600.0)
    slow_parts = importlib.import_module("slow_parts")
    torch.save(slow_parts.Holds(slow_parts.Endless()), tmp_path / "slow.pt")
    worker = Worker("dippm.model.frontends.pytorch")

    def end_its_time(stage):
        if stage == "within":
            worker._limit_s = 0.0

    request = {"source": str(tmp_path / "slow.pt"), "inputs": InputSpec({"": (8,)}).to_dict()}
    where = r"step: within, in blocks\.1 \(Endless\), line \d+ of slow_parts\.py\)"
    with listening(end_its_time), pytest.raises(ConversionError, match=where) as caught:
        worker.convert({**request, "trust": True}, timeout_s=600.0)
    assert "timeout_s" in caught.value.hint
    assert not worker.alive


def test_a_question_for_the_place_amid_a_message_is_answered_behind_it(monkeypatch):
    sent = []

    def write(_, message):
        if not sent:
            frontends.worker._send_place(signal.SIGUSR1, sys._getframe())
        sent.append(message)

    monkeypatch.setattr(frontends.worker, "_answers", object())
    monkeypatch.setattr(frontends.worker.process, "write_frame", write)
    with frontends.worker.locating(lambda frames: ", somewhere"):
        frontends.worker._send({"step": "within"})
        frontends.worker._send({"step": "behind"})
    assert sent == [{"step": "within"}, {"place": ", somewhere"}, {"step": "behind"}]


def test_errors_keep_their_type(pool):
    with pytest.raises(InputShapeError) as caught:
        convert(pool, "picky")
    assert (caught.value.message, caught.value.hint) == ("got 3", "give 4")
    with pytest.raises(FrameworkNotInstalledError, match="no_such_framework"):
        convert(pool, "lost")


def test_the_process_stays_warm_and_survives_bad_models(pool):
    first = convert(pool, "loud")
    with pytest.raises(InputShapeError):
        convert(pool, "picky")
    assert convert(pool, "fine") == first  # its shape holds the process id
    with pytest.raises(ConversionError):
        convert(pool, "killed")
    assert convert(pool, "fine") != first


def test_memory_trouble_retires_the_process(pool):
    first = convert(pool, "fine")
    with pytest.raises(ConversionError):
        convert(pool, "greedy")
    assert convert(pool, "fine") != first


@pytest.mark.parametrize(
    "memory_limit_mb", sampled([64, 90, 120, 180], pytest.mark.nightly(part="hostile"))
)
def test_too_little_memory_for_the_libraries_is_said(tmp_path, memory_limit_mb):
    torch.save(torch.nn.Linear(4, 4), path := tmp_path / "model.pt")
    with pytest.raises(ConversionError, match=f"more memory than {memory_limit_mb} MB") as caught:
        frontends.load(path, "4", cache=False, memory_limit_mb=memory_limit_mb)
    assert "memory_limit_mb" in caught.value.hint


def test_an_error_that_hides_the_lack_of_memory(pool):
    with pytest.raises(ConversionError, match="more memory than 2048 MB"):
        convert(pool, "hidden")


def test_kinds_of_workers_are_never_mixed(pool, tmp_path):
    source = (tmp_path / "moody_frontend.py").read_text()
    (tmp_path / "other_frontend.py").write_text(source)
    pool.warm("moody_frontend")
    with pool.borrow("other_frontend", 4096) as other:
        assert other.module == "other_frontend"
        assert [worker.module for worker in pool._idle] == ["moody_frontend"]


def test_closing_ends_the_process(pool):
    worker = Worker("moody_frontend")
    assert worker.alive
    worker.stop()
    assert not worker.alive
    assert not worker.folder.exists()


def test_modules_that_nest_too_deeply(tmp_path):
    module = torch.nn.Linear(3, 3)
    for _ in range(400):
        module = torch.nn.Sequential(module)
    with pytest.raises(ConversionError, match=r"nests too deeply.*400 within") as caught:
        frontends.load(module, "3", cache=False)
    assert "nn.Sequential" in caught.value.hint
