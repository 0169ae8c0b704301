"""`Tape`: a forward pass call by call, and the memory that its tensors share."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass

from dippm.estimate.features.kernels.run import Run, State
from dippm.model.graph.calls import OperatorCall
from dippm.model.graph.operators import operator
from dippm.model.graph.strides import dense_strides

NOT_DIFFERENTIABLE = frozenset(
    "equal not_equal greater greater_equal less less_equal logical_and logical_or logical_xor "
    "logical_not bitwise_and bitwise_or bitwise_xor bitwise_not bit_shift is_nan is_inf is_finite "
    "argmax argmin one_hot bucketize create random nonzero reduce_any reduce_all floor ceil round "
    "trunc sign fill_like quantize dequantize floor_divide argsort heaviside isclose".split()
)
"""Operators that gradients do not pass through."""
Memory = Hashable


@dataclass(frozen=True, slots=True)
class Step:
    """One call of the forward pass.

    Attributes:
        call: the call.
        maker: layer whose bias it adds; None if it adds none.
        given: states of its arguments before the call, by position.
        read: states of its arguments as its kernel read them, cast and copied.
        made: states of its results.
        kernel: position of its last kernel; -1 if it launched none.
    """

    call: OperatorCall
    maker: OperatorCall | None
    given: dict[int, State]
    read: dict[int, State]
    made: dict[int, State]
    kernel: int


class Tape:
    """Records a forward pass.

    Attributes:
        run: recorded run.
        steps: its calls.
        wanted: tensors whose gradient is needed.
        views: tensors that are views of others.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.steps: list[Step] = []
        self.wanted = _parameters(run)
        self.views: set[int] = set()
        self._made: dict[int, State] = dict(run.states)
        self._sizes: dict[Memory, float] = {None: 0.0}
        self._paths: dict[Memory, str] = {}
        self._same: dict[Memory, Memory] = {}
        self._kernels = 0

    def record(self, call: OperatorCall, maker: OperatorCall | None) -> None:
        """Record a call that was just launched."""
        run = self.run
        launched = len(run.kernels) > self._kernels
        given = {p: self._given(p) for p in call.inputs}
        read = {p: run.state(p) for p in call.inputs}
        made = {p: run.state(p) for p in call.outputs}
        step = Step(call, maker, given, read, made, len(run.kernels) - 1 if launched else -1)
        self._kernels = len(run.kernels)
        self.steps.append(step)
        self._made |= made
        self._note(step)
        if not launched and (operator(call.op).category == "view" or call.op == "transpose"):
            self.views.update(call.outputs)
        passes = call.op not in NOT_DIFFERENTIABLE
        weighted = operator(call.op).category == "norm"  # calls do not name its parameters
        if passes and (weighted or any(p in self.wanted for p in call.inputs)):
            self.wanted.update(p for p in call.outputs if run.tensor(p).is_float)

    def memory(self, position: int, state: State) -> tuple[Memory, float]:
        """Return whose memory a tensor lies in, and its bytes."""
        key = self._key(position, state)
        return key, self._sizes.get(key, 0.0)

    def width(self, position: int) -> int:
        """Return the bytes per element of a tensor as it was made."""
        return self._given(position).width

    def path(self, memory: Memory) -> str:
        """Return the path of the call that wrote a memory first; empty for inputs."""
        return self._paths.get(memory, "")

    def results(self) -> list[int]:
        """Return what the calls make and none reads."""
        read = {p for step in self.steps for p in step.call.inputs}
        return [p for step in self.steps for p in step.call.outputs if p not in read]

    def parameters(self) -> Iterable[int]:
        """Return the parameters that are trained and that calls name; norms' are not among them."""
        seen: set[tuple[int, ...]] = set()
        for position in sorted(_parameters(self.run)):
            roots = self.run.tensor(position).roots
            if roots not in seen:
                seen.add(roots)
                yield position

    def _given(self, position: int) -> State:
        if position not in self._made:  # a parameter
            tensor = self.run.tensor(position)
            self._made[position] = State(
                self.run.natural_width(tensor), dense_strides(tensor.shape)
            )
        return self._made[position]

    def _key(self, position: int, state: State) -> Memory:
        if not state.makers:
            return None if self.run.tensor(position).roots else "inputs"
        return self._same.get(state.makers, state.makers)

    def _note(self, step: Step) -> None:
        """Record the memory that a call was the first to write, and its writes in place."""
        run = self.run
        for position, state in step.read.items():
            key = self._key(position, state)
            if key not in self._sizes:
                self._sizes[key] = float(run.stored(position) * state.width)
                self._paths[key] = step.call.path if state.makers else ""
        if step.kernel < 0:
            return
        source = step.call.inputs[:1] if step.maker is None else step.maker.outputs[:1]
        for position, state in step.made.items():
            key = self._key(position, state)
            if key in self._sizes:
                continue
            if run.kernels[step.kernel].in_place and source:
                states = step.given if step.call.in_place else step.read
                held = states.get(source[0], state)
                self._same[state.makers] = self._key(source[0], held)
            else:
                self._sizes[key] = float(run.tensor(position).size * state.width)
                self._paths[key] = step.call.path


def _parameters(run: Run) -> set[int]:
    """Return the parameters that are trained; where no file names any, all that is stored is."""
    made = {p for call in run.sequence.calls for p in call.outputs}
    stored = {
        p
        for p, tensor in enumerate(run.sequence.tensors)
        if tensor.roots and tensor.is_parameter and tensor.is_float and p not in made
    }
    return {p for p in stored if run.tensor(p).is_named} or stored
