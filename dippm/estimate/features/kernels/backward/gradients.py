"""`Gradients`: a backward pass while its kernels are launched; `Tape`: the forward pass before."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from dippm.estimate.features.kernel import Kernel
from dippm.estimate.features.kernels.casts import without_gaps
from dippm.estimate.features.kernels.copies import viewed
from dippm.estimate.features.kernels.products import copied, matmul
from dippm.estimate.features.kernels.run import Run, State, Strides
from dippm.estimate.features.kernels.streaming import pass_over_memory
from dippm.model.graph.calls import OperatorCall, Tensor
from dippm.model.graph.draft import Shape
from dippm.model.graph.operators import operator
from dippm.model.graph.strides import dense_strides, dense_strides_like


class Gradients:
    """A backward pass.

    Attributes:
        tape: tape of the forward pass.
        run: run of the tape, to which gradients are added as tensors.
        step: call whose gradients are made now.
        saved: bytes that autograd keeps from forward to backward, by memory.
        paths: paths of the calls that wrote them.
        savers: paths of the calls that keep them.
    """

    def __init__(self, tape: Tape) -> None:
        self.tape, self.run = tape, tape.run
        self.step = tape.steps[0]
        self.saved: dict[Memory, float] = {}
        self.paths: dict[Memory, str] = {}
        self.savers: defaultdict[Memory, set[str]] = defaultdict(set)
        self._of: dict[int, int] = {}
        self._waiting = Counter(p for step in tape.steps for p in step.call.inputs)

    def wants(self, position: int) -> bool:
        """Tell whether the gradient of a tensor is needed."""
        return position in self.tape.wanted

    def take(self, position: int) -> int | None:
        """Return the gradient of a tensor, now that all its readers gave theirs."""
        return self._of.pop(position, None)

    def give(self, position: int, gradient: int) -> None:
        """Add to the gradient of an argument: sum what was repeated, cast back, accumulate.

        Autocast casts a parameter once, so its gradient is cast back once, when all readers gave
        theirs.
        """
        if not self.wants(position):
            return
        self._waiting[position] -= 1
        run, shape = self.run, self.run.tensor(position).shape
        with self.towards(position):
            if run.tensor(gradient).size > run.tensor(position).size:
                gradient = self.call("reduce_sum", (gradient,), shape)
            before = self._of.get(position)
            if before is not None:
                if run.state(before).width != run.state(gradient).width:
                    before, gradient = (self._cast_back(position, p) for p in (before, gradient))
                gradient = self.call("add", (before, gradient), shape)
            if not run.tensor(position).is_parameter or self._waiting[position] <= 0:
                gradient = self._cast_back(position, gradient)
        self._of[position] = gradient

    def finish(self) -> None:
        """Cast back the gradients of parameters to which a reader contributed none."""
        for position, gradient in self._of.items():
            with self.towards(position):
                self._of[position] = self._cast_back(position, gradient)

    def _cast_back(self, position: int, gradient: int) -> int:
        """Return a gradient in the type of its tensor."""
        width = self.tape.width(position)
        return gradient if self.run.state(gradient).width == width else self.cast(gradient, width)

    @contextmanager
    def towards(self, position: int) -> Iterator[None]:
        """Launch kernels for the gradient of an argument or of a weight."""
        before = self.run.part
        self.run.part = "backward_weight" if self.run.tensor(position).roots else "backward_input"
        yield
        self.run.part = before

    def new(self, shape: Shape, state: State | None = None, *, like: int | None = None) -> int:
        """Add a tensor to the run; return its position.

        Args:
            shape: its sizes.
            state: what is known of it; None until a kernel makes it.
            like: a tensor whose type it has, and the parameters it is made of.
        """
        tensor = Tensor(shape, "float32")
        if like is not None:
            held = self.run.tensor(like)
            tensor = Tensor(shape, held.dtype, held.roots)
        self.run.tensors.append(tensor)
        position = len(self.run.tensors) - 1
        if state is not None:
            self.run.states[position] = state
        return position

    def kept(self, position: int) -> int:
        """Return an argument of the step as its kernel read it; autograd keeps it."""
        return self._keep(position, self.step.read[position])

    def original(self, position: int) -> int:
        """Return an argument as the call got it, cast but not copied: kernels copy it again."""
        given, read = self.step.given[position], self.step.read[position]
        if given.width == read.width:
            return self._keep(position, given)
        strides = read.strides
        if all(given.strides):
            strides = dense_strides_like(self.run.tensor(position).shape, given.strides)
        return self._keep(position, replace(read, strides=strides))

    def result(self, position: int) -> int:
        """Return a result of the step; autograd keeps it."""
        return self._keep(position, self.step.made[position])

    def keep(self, name: str, size: float) -> None:
        """Record bytes that a call writes for its gradient alone, such as statistics."""
        self._save((name, id(self.step)), size, self.step.call.path)

    def _keep(self, position: int, state: State) -> int:
        memory, size = self.tape.memory(position, state)
        self._save(memory, size, self.tape.path(memory))
        return self.new(self.run.tensor(position).shape, state, like=position)

    def _save(self, memory: Memory, size: float, path: str) -> None:
        self.saved[memory], self.paths[memory] = size, path
        self.savers[memory].add(self.step.call.path)

    def call(self, op: str, inputs: Sequence[int], shape: Shape, **attributes: Any) -> int:
        """Launch one pass over memory; return what it makes."""
        out = self.new(shape)
        pass_over_memory(self.run, self._call(op, inputs, out, attributes))
        return out

    def multiply(self, left: int, right: int, shape: Shape, k: float) -> int:
        """Launch a matrix product over k; return what it makes."""
        out = self.new(shape)
        call = self._call("matmul", (left, right), out, {"k": k})
        with self.run.restored((left, right)):
            matmul(self.run, call)
        return out

    def reshaped(self, position: int, shape: Shape) -> int:
        """Return a tensor in another shape: a view, or a copy where there can be none."""
        if self.run.tensor(position).shape == shape:
            return position
        out = self.new(shape, like=position)
        viewed(self.run, self._call("reshape", (position,), out, {}))
        return out

    def permuted(self, position: int, axes: Sequence[int]) -> int:
        """Return a view with its axes in another order."""
        held, shape = self.run.state(position), self.run.tensor(position).shape
        state = replace(held, strides=tuple(held.strides[axis] for axis in axes))
        return self.new(tuple(shape[axis] for axis in axes), state, like=position)

    def viewed(self, position: int, shape: Shape, strides: Strides) -> int:
        """Return a view of a tensor."""
        state = replace(self.run.state(position), strides=strides)
        return self.new(shape, state, like=position)

    def dense(self, position: int, strides: Strides) -> int:
        """Return a tensor in an order of axes, copied if it is in another."""
        run = self.run
        held, shape = run.state(position).strides, run.tensor(position).shape
        if all(n == 1 or a == b for n, a, b in zip(shape, held, strides, strict=True)):
            return position
        with run.restored((position,)):
            copied(run, self.step.call, position, run.tensor(position).size)
            made = replace(run.state(position), strides=strides)
        return self.new(shape, made)

    def cast(self, position: int, width: int) -> int:
        """Return a tensor in another precision."""
        run, held = self.run, self.run.state(position)
        kernel = Kernel.stream(self.step.call.node, "cast", run.stored(position), held.width, width)
        strides = without_gaps(run, position)
        return self.launch(kernel, (position,), run.tensor(position).shape, width, strides)

    def fill(self, shape: Shape, width: int) -> int:
        """Return zeros."""
        out = self.new(shape)
        kernel = Kernel.stream(self.step.call.node, "elementwise", self.run.tensor(out).size, width)
        self.run.emit(kernel._replace(read_bytes=0.0))
        self.run.make(out, width)
        return out

    def launch(
        self,
        kernel: Kernel,
        reads: Sequence[int],
        shape: Shape,
        width: int,
        strides: Strides | None = None,
    ) -> int:
        """Launch a kernel that reads tensors; return what it makes."""
        out = self.new(shape)
        self.run.emit(kernel, reads)
        self.run.make(out, width, strides)
        return out

    def _call(
        self, op: str, inputs: Sequence[int], out: int, attributes: dict[str, Any]
    ) -> OperatorCall:
        call = self.step.call
        return OperatorCall(op, attributes, tuple(inputs), (out,), path=call.path, node=call.node)


# `Tape`: a forward pass call by call, and the memory that its tensors share.

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


# The tensors that stay alive where blocks are checkpointed: run again in the backward pass.
#
# A checkpointed block keeps what it is given; what autograd keeps of its inside exists for one
# block at a time, while its gradients are made. What belongs to no block is kept as ever.

_BLOCK = re.compile(r"^(?:\w+\.)*?\w+\.\d+(?:(?:\.\w*(?:blocks|layers|layer))?\.\d+)?")


def blocks_of(paths: Iterable[str]) -> Mapping[str, str]:
    """Return the block that each module belongs to, by path; empty if to none.

    A block is a numbered part: "blocks.3", "layer1.0", "stages.0.blocks.2". A stage, which holds
    blocks, is none.
    """
    found = {path: _BLOCK.match(path) for path in paths}
    named = {path: match.group() if match else "" for path, match in found.items()}
    stages = {name.rpartition(".")[0] for name in named.values()}
    stages |= {name.rpartition(".")[0] for name in stages}
    return {path: "" if name in stages else name for path, name in named.items()}


def checkpointed_bytes(g: Gradients) -> float:
    """Return the most that is alive of what autograd keeps, with every block checkpointed.

    Args:
        g: a finished backward pass.
    """
    blocks = blocks_of({step.call.path for step in g.tape.steps} | {""})
    inside: defaultdict[str, float] = defaultdict(float)
    kept: dict[Memory, float] = {}
    for memory, size in g.saved.items():
        made_in = blocks[g.paths[memory]]
        for block in {blocks[path] for path in g.savers[memory]}:
            if block and block == made_in:
                inside[block] += size
            else:
                kept[memory] = size
    for step in g.tape.steps:
        block = blocks[step.call.path]
        for position, state in step.given.items() if block else ():
            memory, size = g.tape.memory(position, state)
            if blocks[g.tape.path(memory)] != block:
                kept[memory] = size
    return sum(kept.values()) + max(inside.values(), default=0.0)


def recomputed(tape: Tape, first: int) -> list[Kernel]:
    """Return what runs again in the backward pass, with every block checkpointed.

    Args:
        tape: tape of the forward pass.
        first: position in the list of kernels where the first of them will stand.
    """
    blocks = blocks_of({step.call.path for step in tape.steps} | {""})
    place: dict[int, int] = {}
    found: list[Kernel] = []
    begin = 0
    for step in tape.steps:
        if step.kernel < 0:
            continue
        for position in range(begin, step.kernel + 1) if blocks[step.call.path] else ():
            kernel = tape.run.kernels[position]
            place[position] = first + len(found)
            sources = tuple(place.get(source, source) for source in kernel.sources)
            found.append(kernel._replace(part="recompute", sources=sources))
        begin = step.kernel + 1
    return found
