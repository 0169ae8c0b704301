"""The conversion worker: a fresh process in a sandbox, with a memory limit and a time limit.

Caller side: `Worker`, `WorkerPool`. Worker side: `main`, `step`. Code shared by all workers is in
`dippm.base.process`.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import importlib.util
import math
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import IO, Any

from dippm.base import process
from dippm.base.process import (
    BadFrameError,
    Sandbox,
    TimedOutError,
    WorkerDiedError,
    WorkerPipes,
    tells_out_of_memory,
)
from dippm.base.progress import listening, sized, tell
from dippm.errors import ConversionError, DippmError, SandboxWarning
from dippm.model.frontends.frontend import InputSpec
from dippm.model.frontends.limits import (
    DEFAULT_MEMORY_LIMIT_MB,
    DEFAULT_TIMEOUT_S,
    Frames,
    time_factor,
)
from dippm.model.frontends.worker_errors import (
    find_memory_error,
    from_document,
    memory_words,
    no_process_error,
    no_room_error,
    out_of_time_error,
    to_document,
)
from dippm.model.relax.raw_graph import RawGraph

CONVERSIONS_PER_PROCESS = 64
LEEWAY_S = 5.0
"""Delay after the caller's time limit until a worker ends itself."""
PLACE_S = 3.0
"""Time for a worker to report the part of the model that it reached, after its time limit; none
comes from a long call into C."""
PLACE_SIGNAL = signal.SIGUSR1
STAGE_S = 0.2
LOOK_S = 1.0
"""Interval between checks of how much a conversion has written."""
MOST_FILES = 10_000
LONGEST_STEP = 300
GARBAGE = 100_000
"""Threshold of new objects for a garbage collection: a large graph has millions of live objects,
and repeated collections would take a tenth of a conversion."""
OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "PIP_NO_INDEX": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
OWN_FOLDERS = ("TMPDIR", "MPLCONFIGDIR", "NUMBA_CACHE_DIR", "TRITON_CACHE_DIR", "YOLO_CONFIG_DIR")
"""Variables of the folders that libraries write to; other folders are read-only."""


@dataclass(slots=True)
class Worker:
    """A conversion process, seen from the caller.

    Attributes:
        module: the frontend module whose `load` it calls; it never changes.
        memory_limit_mb: memory limit of the process.
        conversions: number of conversions so far.
        peak_memory_mb: peak resident memory, as last reported by the process.
        cpu_s: processor time of its last conversion.
        step: its last reported stage.
        sandbox: the restrictions that the process has found in force; None before its report.
        worn_out: whether it must not be used again.
        folder: temporary folder that is removed with the process.
    """

    module: str
    memory_limit_mb: int = DEFAULT_MEMORY_LIMIT_MB
    conversions: int = 0
    peak_memory_mb: float = 0.0
    cpu_s: float = 0.0
    step: str = "starting"
    sandbox: Sandbox | None = None
    worn_out: bool = False
    _pipes: WorkerPipes = field(init=False, repr=False)
    _began: float = field(default=0.0, init=False, repr=False)
    _limit_s: float = field(default=DEFAULT_TIMEOUT_S, init=False, repr=False)
    _looked: float = field(default=0.0, init=False, repr=False)
    folder: Path = field(init=False)

    def __post_init__(self) -> None:
        try:
            self.folder = Path(tempfile.mkdtemp(prefix="dippm-"))
            self.folder.chmod(0o700)  # independent of the umask
        except OSError as error:
            raise no_room_error(error, "") from error
        words = f"{self.module!r}, {self.memory_limit_mb}, {str(self.folder)!r}"
        start = f"from {__name__} import main; main({words})"
        command = [sys.executable, "-P", "-c", start]
        path = os.pathsep.join(os.path.abspath(p or os.getcwd()) for p in sys.path)
        own = dict.fromkeys(OWN_FOLDERS, str(self.folder))
        environment = {**os.environ, **OFFLINE, **own, "PYTHONPATH": path}
        try:
            self._pipes = WorkerPipes(command, environment)
        except BaseException as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            if isinstance(error, OSError):
                raise no_process_error(error) from error
            raise

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._pipes.alive

    def convert(self, request: dict[str, Any], *, timeout_s: float = DEFAULT_TIMEOUT_S) -> RawGraph:
        """Send one request and wait for its graph.

        Args:
            request: `source`, `inputs` and `trust` of a file or name, or `program` and its batch.
            timeout_s: wall time after which the process is ended, see `Limits`.

        Raises:
            DippmError: the error of the frontend, with its own type.
            ConversionError: if the process crashed or reached a limit.
        """
        self._began, self._limit_s = time.monotonic(), timeout_s
        limit = timeout_s if math.isfinite(timeout_s) else None
        try:
            self._pipes.send({"timeout_s": limit, **request})
            answer = self._receive(timeout_s)
        except WorkerDiedError as error:
            if error.code == -signal.SIGALRM:  # the caller was suspended past the limit
                raise self._too_slow() from None
            raise self._ended(error) from None
        except TimedOutError:
            raise self._too_slow(self._ask_place()) from None
        self.conversions += 1
        self.peak_memory_mb, self.cpu_s = answer["peak_memory_mb"], answer["cpu_s"]
        self.worn_out = (
            answer.get("worn_out", False)
            or self.conversions >= CONVERSIONS_PER_PROCESS
            or self._wrote_too_much()  # so that the next conversion does not fail for it
        )
        if "error" in answer:
            raise from_document(answer["error"])
        try:
            return RawGraph.from_json(answer["graph"])
        except ValueError as error:
            raise ConversionError(
                f"the converter's answer is not a graph: {error}",
                "This is a bug in the frontend that reads the file: report it with the model.",
            ) from error

    def wait_for_sandbox(self, timeout_s: float = DEFAULT_TIMEOUT_S) -> Sandbox:
        """Return the restrictions of a process that was just started.

        Raises:
            ConversionError: if it does not report them in time.
        """
        end = time.monotonic() + timeout_s
        try:
            while self.sandbox is None:
                self._hear(self._pipes.receive(lambda: end - time.monotonic()))
        except WorkerDiedError as error:
            raise self._ended(error) from None
        except TimedOutError:
            self._limit_s = timeout_s
            raise self._too_slow() from None
        return self.sandbox

    def stop(self) -> None:
        """End the process and remove its folder."""
        self._pipes.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _receive(self, timeout_s: float) -> process.Message:
        while True:
            frame = self._pipes.receive(self._remaining)
            if not _is_frame(frame):
                raise BadFrameError("answered with an invalid answer")
            if "operators" in frame:
                self._limit_s = timeout_s * time_factor(frame["operators"])
            elif not self._hear(frame):
                return frame

    def _remaining(self) -> float:
        """Return the remaining seconds of the limit, and check the folder from time to time."""
        now = time.monotonic()
        if now >= self._looked + LOOK_S:
            self._looked = now
            if self._wrote_too_much():
                self.stop()
                raise ConversionError(
                    f"the conversion wrote more than {self.memory_limit_mb} MB, or {MOST_FILES:,} "
                    f"files, into its temporary folder (step: {self.step})",
                    "Raise the limit with memory_limit_mb=..., or export the model to ONNX first.",
                )
        return self._began + self._limit_s - now

    def _wrote_too_much(self) -> bool:
        """Return whether the folder exceeds the memory limit in bytes, or `MOST_FILES` files."""
        left, files, folders = self.memory_limit_mb << 20, MOST_FILES, [str(self.folder)]
        while folders:
            with contextlib.suppress(OSError), os.scandir(folders.pop()) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):
                        left -= entry.stat(follow_symlinks=False).st_blocks * 512
                        if entry.is_dir(follow_symlinks=False):
                            folders.append(entry.path)
                    files -= 1
                    if left < 0 or files < 0:
                        return True
        return False

    def _hear(self, frame: process.Message) -> bool:
        """Record a frame about the worker's own state; return whether it was one."""
        if "sandbox" in frame:
            if self.sandbox is None:  # the first frame precedes any model
                self.sandbox = Sandbox.from_dict(frame["sandbox"])
                _warn_of_open_ways(self.sandbox)
        elif "step" in frame:
            self.step = frame["step"][:LONGEST_STEP]
            tell(self.step)
        else:
            return False
        return True

    def _ask_place(self) -> str:
        """Ask a worker past its time limit for the part of the model it is in; "" if no answer."""
        end = time.monotonic() + PLACE_S
        try:
            self._pipes.send_signal(PLACE_SIGNAL)
            while True:
                frame = self._pipes.receive(lambda: end - time.monotonic())
                if "place" in frame:
                    return str(frame["place"])
                self._hear(frame)
        except (TimedOutError, WorkerDiedError):
            return ""

    def _too_slow(self, place: str = "") -> ConversionError:
        self.stop()
        return out_of_time_error(self._limit_s, self.step + place)

    def _ended(self, end: WorkerDiedError) -> ConversionError:
        code = end.code
        self.stop()
        words = self._pipes.last_words()
        where = f"(step: {self.step})"
        limit = f"{self.memory_limit_mb} MB"
        cpu_s = process.cpu_limit_s()
        if code == -signal.SIGXCPU or (code == -signal.SIGKILL and cpu_s is not None):
            reason = "by" if code == -signal.SIGXCPU else "for memory, or by"
            message = (
                f"the conversion was ended {reason} the limit of processor time, {cpu_s} s, that"
                f" this shell gives to its programs {where}"
            )
            hint = "`ulimit -t` shows it: convert where it is higher, or export the model to ONNX."
        elif code == -signal.SIGKILL:
            message = f"the conversion was killed, probably for memory {where}"
            hint = "Close other programs or use a machine with more memory, then try again."
        elif code == -signal.SIGSEGV:
            message = f"the converter crashed with a segmentation fault {where}"
            hint = "This is a bug in the framework's converter: export the model to ONNX instead."
        elif code is not None and tells_out_of_memory(words):
            message, hint = memory_words(limit, where)
        elif "pthread_create" in words:
            message, hint = no_process_error(RuntimeError(f"a library has none {where}")).args
        elif code is None:
            message = f"the conversion process {end} {where}"
            hint = "Try again; if it repeats, export the model to ONNX instead."
        elif code < 0:
            message = f"the converter was ended by {process.signal_name(-code)} {where}"
            hint = "Try again; if it repeats, export the model to ONNX instead."
        else:
            message = f"the conversion process ended early with exit code {code} {where}"
            hint = "Run `dippm doctor` to see whether the framework's libraries load."
        error = ConversionError(message, hint)
        if words:
            error.add_note("last output of the process:\n" + words)
        return error


def _is_frame(frame: process.Message) -> bool:
    """Return whether this is a report or an answer, the only frames that `main` writes.

    Other frames are possible if a model has taken over the process.
    """
    kinds: dict[str, type | tuple[type, ...]] = {
        "operators": int,
        "step": str,
        "sandbox": dict,
        "graph": str,
        "error": dict,
        "peak_memory_mb": float,
        "cpu_s": float,
        "worn_out": bool,
    }
    if not all(isinstance(value, kinds.get(key, ())) for key, value in frame.items()):
        return False
    if len(frame) == 1 and frame.keys() <= {"operators", "step", "sandbox"}:
        return bool(0 <= frame.get("operators", 0) < 1 << 53)
    words = frame.get("error", {"type": "", "message": "", "hint": "", "cause": ""})
    return {"peak_memory_mb", "cpu_s"} < frame.keys() and all(
        isinstance(words.get(key), str) for key in ("type", "message", "hint", "cause")
    )


def _warn_of_open_ways(sandbox: Sandbox) -> None:
    """Warn once about accesses that the sandbox does not block on this machine."""
    if sandbox.open_ways and sandbox.open_ways not in _warned_of:
        _warned_of.add(sandbox.open_ways)
        reasons = "; ".join(f"{name}: {reason}" for name, reason in sandbox.missing.items())
        warnings.warn(
            SandboxWarning(
                f"{' and '.join(sandbox.open_ways)} cannot be blocked for conversions here"
                f" ({reasons}): convert untrusted files on a machine where `dippm doctor` shows a "
                "complete sandbox"
            ),
            stacklevel=2,
        )


_warned_of: set[tuple[str, ...]] = set()


class WorkerPool:
    """Idle warm workers, by frontend module.

    Attributes:
        cpu_s: processor time of the last conversion.
    """

    def __init__(self) -> None:
        self.cpu_s = 0.0
        self._begin()
        atexit.register(self.close)
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin)  # the workers belong to its parent

    def _begin(self) -> None:
        self._idle: list[Worker] = []
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def borrow(self, module: str, memory_limit_mb: int) -> Iterator[Worker]:
        """Yield a worker, then keep it for the next borrower unless it died or is worn out."""
        worker = self._take(module, memory_limit_mb)
        try:
            yield worker
        except DippmError:
            self._return(worker)
            raise
        except BaseException:
            worker.stop()
            raise
        else:
            self._return(worker)

    def warm(self, module: str, memory_limit_mb: int = DEFAULT_MEMORY_LIMIT_MB) -> None:
        """Start a process for this frontend, which imports its libraries in the background."""
        self._return(self._take(module, memory_limit_mb))

    def peaks_mb(self) -> list[float]:
        """Return the peak resident memory of each idle process."""
        with self._lock:
            return [worker.peak_memory_mb for worker in self._idle]

    def close(self) -> None:
        """End all idle processes."""
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.stop()

    def _take(self, module: str, memory_limit_mb: int) -> Worker:
        with self._lock:
            for worker in self._idle:
                if (worker.module, worker.memory_limit_mb) == (module, memory_limit_mb):
                    self._idle.remove(worker)
                    if worker.alive:
                        return worker
                    worker.stop()
                    break
        return Worker(module, memory_limit_mb)

    def _return(self, worker: Worker) -> None:
        self.cpu_s = worker.cpu_s
        full = worker.peak_memory_mb > 0.6 * worker.memory_limit_mb
        if worker.worn_out or full or not worker.alive:
            worker.stop()
            return
        with self._lock:
            self._idle.append(worker)


POOL = WorkerPool()


def step(name: str) -> None:
    """Report the stage of a conversion to the caller, for the message if it has to be ended.

    Stages of `dippm.base.progress.tell` during a conversion arrive there too, but at most a few
    each second of those that differ only in their numbers.
    """
    if _answers is not None:
        _send({"step": name})


@contextlib.contextmanager
def locating(place_of: Callable[[Frames], str]) -> Iterator[None]:
    """Report the part of a model that the block is in, if the worker's time ends meanwhile.

    Args:
        place_of: describes the stack frames of the working thread, innermost last.
    """
    global _place_of
    _place_of = place_of
    try:
        yield
    finally:
        _place_of = None


_place_of: Callable[[Frames], str] | None = None
_sending = threading.Lock()
_unsent_place: str | None = None
"""The answer to a signal during another message, to be sent after that message."""


def _send(message: process.Message) -> None:
    assert _answers is not None
    with _sending:
        process.write_frame(_answers, message)
    _send_unsent_place()


def _send_place(_: int, frame: FrameType | None) -> None:
    """Answer a caller past its time limit; it ends this process on the answer, or soon."""
    global _unsent_place
    if _answers is not None:
        _unsent_place = place_in(frame)
        _send_unsent_place()


def _send_unsent_place() -> None:
    global _unsent_place
    if _unsent_place is None or not _sending.acquire(blocking=False):  # its holder calls this next
        return
    try:
        place, _unsent_place = _unsent_place, None
        if place is not None:
            assert _answers is not None
            process.write_frame(_answers, {"place": place})
    finally:
        _sending.release()


def place_in(frame: FrameType | None) -> str:
    """Return the part of a model that a stack frame and its callers are in, see `locating`."""
    calls: list[tuple[FrameType, int]] = []
    with contextlib.suppress(Exception):  # it touches objects of the model
        while frame is not None:
            calls.append((frame, frame.f_lineno))
            frame = frame.f_back
        return "" if _place_of is None else _place_of(reversed(calls))
    return ""


def main(module: str, memory_limit_mb: int, folder: str) -> None:
    """Serve requests from standard input until it closes."""
    global _answers
    requests, _answers = process.own_pipes()
    signal.signal(PLACE_SIGNAL, _send_place)
    try:
        guard = process.start_guard(requests, Path(folder))
    except OSError as error:
        none = {"peak_memory_mb": 0.0, "cpu_s": 0.0, "worn_out": True}
        _send({"error": to_document(no_process_error(error)), **none})
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.umask(0o077)
    os.environ["DIPPM_WORKER_LIMIT"] = f"{memory_limit_mb} MB"
    _compile_outside(module)
    sandbox = process.enter_sandbox(Path(folder))  # inherited by threads that libraries start
    _send({"sandbox": sandbox.to_dict()})
    process.limit_memory(memory_limit_mb)
    process.limit_files(memory_limit_mb)
    process.end_before_cpu_limit()
    step("importing libraries")
    _import(module)
    gc.freeze()
    gc.set_threshold(GARBAGE)
    while True:
        try:
            request = process.read_frame(requests)
        except EOFError:
            process.leave_guard(guard, Path(folder))
            return
        _leave_removed_folder(Path(folder))
        start = time.process_time()
        limit = _TimeLimit(request.pop("timeout_s"))
        with listening(_Pace(step)), sized(limit.grow):
            answer = _answer(module, request)
        process.end_after(None)
        cost = {"peak_memory_mb": _peak_memory_mb(), "cpu_s": time.process_time() - start}
        _send({**answer, **cost})


def _leave_removed_folder(own: Path) -> None:
    """Go to the own folder if the current one, where the caller stood, was removed meanwhile.

    Libraries that are imported late ask for the current folder.
    """
    try:
        os.getcwd()
    except FileNotFoundError:
        os.chdir(own)


_answers: IO[bytes] | None = None


def _import(module: str) -> None:
    with contextlib.suppress(Exception):
        frontend = importlib.import_module(module)
        getattr(frontend, "prepare", lambda: None)()


def _compile_outside(module: str) -> None:
    """Import libraries once in a child to store their bytecode, which a sandbox prevents.

    Some installers leave compilation to the first import, where it is the longest part of a start.
    The child ends before any file is received.
    """
    # By name, because it imports frontends, and some of them import this module.
    built_in: Any = importlib.import_module("dippm.model.frontends.registry").BUILT_IN
    needs = next(((*entry.needs, "tvm") for entry in built_in if entry.module == module), ())
    if sys.dont_write_bytecode or not any(map(_lacks_bytecode, (module, *needs))):
        return
    step("compiling libraries")
    child = os.fork()
    if not child:
        try:
            _import(module)
            for name in needs:
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def _lacks_bytecode(name: str) -> bool:
    """Return whether a module lacks stored bytecode that could be stored, without importing it."""
    if name.rpartition(".")[0] not in sys.modules:  # the lookup would import its package
        name = name.partition(".")[0]
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, AttributeError, ValueError):
        return False
    if spec is None or spec.cached is None or os.path.exists(spec.cached):
        return False
    place = os.path.dirname(spec.cached)
    while not os.path.exists(place):
        place = os.path.dirname(place)
    return os.access(place, os.W_OK)


class _TimeLimit:
    """The worker's own time limit: slightly longer than its caller's, and growing with it."""

    def __init__(self, timeout_s: float | None) -> None:
        self._timeout_s, self._began, self._most = timeout_s, time.monotonic(), 0
        self._set()

    def grow(self, operators: int) -> None:
        """Extend the limits of worker and caller for the largest graph of the conversion."""
        if operators > self._most and _answers is not None:
            self._most = operators
            _send({"operators": operators})
            self._set()

    def _set(self) -> None:
        if self._timeout_s is not None:
            end = self._began + self._timeout_s * time_factor(self._most) + LEEWAY_S
            process.end_after(max(end - time.monotonic(), LEEWAY_S))


class _Pace:
    """Forwards stages, but limits the rate of those that differ only in their numbers."""

    def __init__(self, listener: Callable[[str], None]) -> None:
        self._listener, self._last, self._next_s = listener, "", 0.0

    def __call__(self, stage: str) -> None:
        kind, now = stage.translate(_NO_DIGITS), time.monotonic()
        if kind != self._last or now >= self._next_s:
            self._last, self._next_s = kind, now + STAGE_S
            self._listener(stage)


_NO_DIGITS = str.maketrans("", "", "0123456789,.")


def _answer(module: str, request: dict[str, Any]) -> dict[str, Any]:
    step("converting")
    try:
        frontend = importlib.import_module(module)
        if "program" in request:
            graph = frontend.load_program(Path(request.pop("program")), **request)
        else:
            spec = InputSpec.from_dict(request["inputs"])
            graph = frontend.load(Path(request["source"]), spec, trust=request["trust"])
        return {"graph": graph.to_json()}
    except BaseException as error:
        return {"error": to_document(error), "worn_out": find_memory_error(error) is not None}


def _peak_memory_mb() -> float:
    """Return the peak resident memory; on Linux `getrusage` would start at the parent's."""
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
    if sys.platform == "win32":
        return 0.0
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
