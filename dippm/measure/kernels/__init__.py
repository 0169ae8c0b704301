"""Kernel tables: the kernels of one step, their durations, and their operators.

A `TracedKernel` is one row of a table. Two modules create and use tables:

* profile: runs one step under the profiler, after all timing of a point, and reads its trace as
  kernels with the operators and the module that launched them
* join: matches kernels with the calls and operators of a `ModelGraph`

The tables of many points are files of a collected set, see `dippm.measure.collected.kernels`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, Self

Part = Literal["forward", "backward", "optimizer"]


@dataclass(frozen=True, slots=True)
class TracedKernel:
    """One kernel, copy or fill of the device; on a CPU one call of an operator.

    Attributes:
        kernel: name given by the compiler; on a CPU the name of the operator.
        operators: names of the framework's calls around the launch, the outermost first.
        instances: position of each of these calls among all calls of the step.
        path: path of the calling module, "" for the model itself; None if modules cannot mark their
            calls (compiled models, models of other frameworks).
        part: phase of the step.
        forward_instance: for a backward kernel, number of the call whose gradient it computes.
        start_ns: time in ns from the beginning of the step.
        ns: duration in ns; on a CPU without nested calls.
        grid, block: numbers of blocks in the grid and of threads in a block, along three axes; None
            for copies and on a CPU.
        stream: CUDA stream; None on a CPU.
    """

    kernel: str
    operators: tuple[str, ...]
    instances: tuple[int, ...]
    path: str | None
    part: Part
    forward_instance: int | None
    start_ns: int
    ns: int
    grid: tuple[int, ...] | None = None
    block: tuple[int, ...] | None = None
    stream: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the row as JSON-ready data."""
        return {name: _plain(value) for name, value in asdict(self).items()}

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        """Return the kernel of a row, ignoring other columns."""
        named: dict[str, Any] = {
            field.name: tuple(value) if isinstance(value := row[field.name], list) else value
            for field in fields(cls)
        }
        return cls(**named)


def kernel_ms(kernels: Iterable[TracedKernel]) -> float:
    """Return the sum of the kernels' durations in ms, the time K of `dippm.measure.timing`."""
    return sum(kernel.ns for kernel in kernels) / 1e6


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
