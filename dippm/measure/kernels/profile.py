"""Profile of one step: its kernels, each with the operators and the module that launched it.

Sections: the capture of a step; the trace in Chrome's format, which becomes kernels; the marks with
which modules state their paths in the trace.

The step is profiled after all timing of a point, because the profiler would distort every figure.
`torch.autograd.profiler` writes the raw trace that Kineto collected; `torch.profiler` spends most
of a capture on tables that are not used here.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dippm.base.progress import tell
from dippm.measure.kernels import Part, TracedKernel
from dippm.measure.timing import Step

if TYPE_CHECKING:
    import torch

WARM_STEPS = 3
"""Number of steps before the profiled one."""
QUIET = "99"
"""Log level of Kineto above all of its messages."""


def profile_step(
    step: Step,
    device: torch.device,
    *,
    module: torch.nn.Module | None = None,
    before: Callable[[], object] = lambda: None,
) -> tuple[TracedKernel, ...]:
    """Run a few steps, then one under the profiler; return its kernels ordered by start.

    Args:
        step: one forward pass, or one training step.
        device: device that it runs on.
        module: module whose submodules mark their calls; None if they cannot, as in compiled ones.
        before: function that is called right before the profiled step, outside of the profile.

    Raises:
        Exception: error of the step or of the profiler.
    """
    from torch.autograd.profiler import profile

    tell("profiling one step")
    os.environ.setdefault("KINETO_LOG_LEVEL", QUIET)  # else it prints to stderr at each capture
    on_gpu = device.type == "cuda"
    finish = _synchronizer(device)
    with (
        tempfile.TemporaryDirectory(prefix="dippm-") as folder,
        nullcontext() if module is None else mark_modules(module),
    ):
        for _ in range(WARM_STEPS):
            step()
        before()
        finish()
        with profile(use_kineto=True, use_device="cuda" if on_gpu else None) as profiler:
            step()
            finish()
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        return read_trace(path.read_bytes(), on_gpu=on_gpu, has_paths=module is not None)


def _synchronizer(device: torch.device) -> Callable[[], object]:
    """Return a function that waits until a device has finished."""
    import torch

    return lambda: torch.cuda.synchronize(device) if device.type == "cuda" else None


# The trace, in Chrome's format: "cpu_op" events nest by time within a thread; a "kernel" has the
# "External id" of the innermost operator that launched it. A backward operator has the "Sequence
# number" of the forward operator whose gradient it computes.


ON_DEVICE = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
ON_HOST = frozenset({"cpu_op", "user_annotation"})
BACKWARD = "autograd::engine::evaluate_function: "
OPTIMIZER = "Optimizer.step#"

Event = Mapping[str, Any]


@dataclass(slots=True, eq=False)
class _Call:
    """A call of an operator, which may contain others.

    Attributes:
        name: name of the operator.
        start_ns: start on the clock of the trace.
        ns: duration with nested calls.
        parent: innermost enclosing call; None at the top.
        external: "External id", to which kernels refer.
        sequence: "Sequence number" of the gradient; None without one.
        path: path of the module; "" for the outermost one, None if modules left no marks.
        part: part of the step.
        inside_ns: total duration of direct nested calls.
        instance: position among all calls, ordered by start.
    """

    name: str
    start_ns: int
    ns: int
    parent: _Call | None
    external: int | None
    sequence: int | None
    path: str | None
    part: Part
    inside_ns: int = 0
    instance: int = -1

    @property
    def chain(self) -> tuple[_Call, ...]:
        """Enclosing calls and the call itself, the outermost first."""
        around: list[_Call] = [self]
        while around[-1].parent is not None:
            around.append(around[-1].parent)
        return tuple(reversed(around))


def read_trace(
    trace: bytes, *, on_gpu: bool = False, has_paths: bool = True
) -> tuple[TracedKernel, ...]:
    """Return the kernels of a trace ordered by start.

    Args:
        trace: JSON in Chrome's format, as torch's profiler writes it.
        on_gpu: whether a GPU ran the step. On a CPU each call of an operator is a kernel, whose
            duration excludes nested calls.
        has_paths: whether modules marked their calls.

    Raises:
        ValueError: if it is not a trace.
    """
    try:
        events = [e for e in json.loads(trace)["traceEvents"] if e.get("ph") == "X"]
    except (KeyError, TypeError) as error:
        raise ValueError(f"no trace of a profiler: {error}") from error
    calls = _read_calls([e for e in events if e.get("cat") in ON_HOST], has_paths=has_paths)
    forward = _forward_calls(calls)
    if on_gpu:
        by_id = {call.external: call for call in calls if call.external is not None}
        on_device = (e for e in events if e.get("cat") in ON_DEVICE)
        launched = sorted(on_device, key=lambda event: float(event["ts"]))
        begin_ns = _ns(launched[0]["ts"]) if launched else 0
        return tuple(_device_kernel(event, by_id, forward, begin_ns) for event in launched)
    begin_ns = calls[0].start_ns if calls else 0
    return tuple(_host_kernel(call, forward, begin_ns) for call in calls)


def _read_calls(events: Sequence[Event], *, has_paths: bool) -> list[_Call]:
    """Return the operators ordered by start; marks of modules become their paths."""
    threads: dict[Any, list[Event]] = defaultdict(list)
    for event in events:
        threads[event.get("tid")].append(event)
    calls = [
        call
        for thread in threads.values()
        for call in _nest_calls(thread, "" if has_paths else None)
    ]
    calls.sort(key=lambda call: call.start_ns)
    for number, call in enumerate(calls):
        call.instance = number
    return calls


def _nest_calls(events: Iterable[Event], path: str | None) -> Iterator[_Call]:
    """Yield the operators of one thread, each with its enclosing one."""
    around: list[tuple[int, str | None, Part, _Call | None]] = []
    for event in sorted(events, key=lambda e: (_ns(e["ts"]), -_ns(e["dur"]))):
        start_ns, ns, name = _ns(event["ts"]), _ns(event["dur"]), str(event["name"])
        while around and start_ns >= around[-1][0]:
            around.pop()
        _, module, part, parent = around[-1] if around else (0, path, "forward", None)
        if name.startswith(MARK):
            module = name.removeprefix(MARK)
        elif name.startswith(OPTIMIZER):
            part = "optimizer"
        elif event["cat"] == "cpu_op":
            part = "backward" if name.startswith(BACKWARD) else part
            call = _to_call(event, module, part, parent)
            if parent is not None:
                parent.inside_ns += ns
            parent = call
            yield call
        around.append((start_ns + ns, module, part, parent))


def _to_call(event: Event, module: str | None, part: Part, parent: _Call | None) -> _Call:
    arguments = event.get("args", {})
    return _Call(
        name=str(event["name"]),
        start_ns=_ns(event["ts"]),
        ns=_ns(event["dur"]),
        parent=parent,
        external=arguments.get("External id"),
        sequence=arguments.get("Sequence number"),
        path=module,
        part=part,
    )


def _forward_calls(calls: Iterable[_Call]) -> Mapping[int, _Call]:
    """Return the forward call of each gradient, by sequence number.

    A call without a gradient has the number of the next call with one, so of several calls with one
    number the last is meant. Of nested calls with one number, the outermost is meant.
    """
    found: dict[int, _Call] = {}
    for call in calls:
        outer = call.parent
        if (
            call.part == "forward"
            and call.sequence is not None
            and not (outer is not None and outer.sequence == call.sequence)
        ):
            found[call.sequence] = call
    return found


def _host_kernel(call: _Call, forward: Mapping[int, _Call], begin_ns: int) -> TracedKernel:
    own_ns = max(call.ns - call.inside_ns, 0)
    return _kernel(call.name, call, forward, start_ns=call.start_ns - begin_ns, ns=own_ns)


def _device_kernel(
    event: Event, calls: Mapping[int, _Call], forward: Mapping[int, _Call], begin_ns: int
) -> TracedKernel:
    arguments = event.get("args", {})
    kernel = _kernel(
        str(event["name"]),
        calls.get(arguments.get("External id", -1)),
        forward,
        start_ns=_ns(event["ts"]) - begin_ns,
        ns=_ns(event["dur"]),
    )
    grid, block = arguments.get("grid"), arguments.get("block")
    return replace(
        kernel,
        grid=tuple(grid) if grid else None,
        block=tuple(block) if block else None,
        stream=arguments.get("stream"),
    )


def _kernel(
    name: str, call: _Call | None, forward: Mapping[int, _Call], *, start_ns: int, ns: int
) -> TracedKernel:
    chain = call.chain if call is not None else ()
    gradients = (c.sequence for c in chain if c.part == "backward" and c.sequence is not None)
    source = forward.get(next(gradients, -1))
    return TracedKernel(
        kernel=name,
        operators=tuple(c.name for c in chain),
        instances=tuple(c.instance for c in chain),
        path=call.path if call is not None else None,
        part=call.part if call is not None else "forward",
        forward_instance=source.instance if source is not None else None,
        start_ns=start_ns,
        ns=ns,
    )


def _ns(microseconds: float) -> int:
    return round(1000 * float(microseconds))


# Marks that modules leave in a profile, with their paths.


MARK = "dippm.module:"
"""Prefix of the name of a mark; the path of the module follows."""


@contextmanager
def mark_modules(module: torch.nn.Module) -> Iterator[None]:
    """Let each submodule mark its calls with `MARK` and its path, within a block.

    The hooks are global: hooks on a module would keep attention layers from their fast path.
    """
    from torch.autograd.profiler import record_function
    from torch.nn.modules.module import (
        register_module_forward_hook,
        register_module_forward_pre_hook,
    )

    names = {part: name for name, part in module.named_modules()}
    entered: list[Any] = []

    def enter(part: Any, _: Any) -> None:
        mark = record_function(MARK + names[part]) if part in names else None
        if mark is not None:
            mark.__enter__()
        entered.append(mark)

    def leave(*_: Any) -> None:
        mark = entered.pop()
        if mark is not None:
            mark.__exit__(None, None, None)

    handles = (
        register_module_forward_pre_hook(enter),
        register_module_forward_hook(leave, always_call=True),
    )
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
