"""The state of a backward pass, the recorded forward pass, and activation checkpointing.

`Gradients` collects the gradients of tensors while rules launch kernels, and what autograd keeps
for them. `Tape` records the forward pass. `checkpointed_bytes` and `recomputed` describe both with
every block checkpointed. Tensors are named by their position in the list of the run.
"""

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

REAL_BYTES = 4
"""Bytes of the widest real number of a run; complex numbers are wider."""


class Gradients:
    """A backward pass.

    Attributes:
        tape: tape of the forward pass.
        run: run of the tape, to which gradients are added as tensors.
        step: call whose gradients are being computed.
        saved: bytes that autograd keeps from forward to backward, by memory.
        paths: path of the call that wrote each memory in `saved`.
        savers: paths of the calls that keep each memory in `saved`.
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
        """Return whether the gradient of a tensor is needed."""
        return position in self.tape.wanted

    def take(self, position: int) -> int | None:
        """Remove and return the gradient of a tensor; None if no reader contributed to it."""
        return self._of.pop(position, None)

    def give(self, position: int, gradient: int) -> None:
        """Add a contribution to the gradient of an argument.

        It is summed over the axes along which the argument was broadcast, added to those of other
        readers, and cast back to the precision of the argument. Autocast casts a parameter once for
        all its readers, so its gradient is cast back once, after the last contribution.
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
        """Return a gradient in the precision of its tensor."""
        held, width = self.run.state(gradient), self.tape.width(position)
        if held.width == width:
            return gradient
        if max(held.width, width) > REAL_BYTES:  # between complex numbers and real ones: a view
            return self.new(self.run.tensor(gradient).shape, replace(held, width=width))
        return self.cast(gradient, width)

    @contextmanager
    def towards(self, position: int) -> Iterator[None]:
        """Label kernels of the block as computing the gradient of an argument or a weight."""
        before = self.run.part
        self.run.part = "backward_weight" if self.run.tensor(position).roots else "backward_input"
        yield
        self.run.part = before

    def new(self, shape: Shape, state: State | None = None, *, like: int | None = None) -> int:
        """Add a tensor to the run; return its position.

        Args:
            shape: sizes of the tensor.
            state: its state; None until a kernel writes it.
            like: tensor from which to copy the type and the parameters it derives from.
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
        """Return an argument as the call received it, cast but not copied.

        Autograd keeps that, so backward kernels copy it again.
        """
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
        """Launch one pass over memory; return its output."""
        out = self.new(shape)
        pass_over_memory(self.run, self._call(op, inputs, out, attributes))
        return out

    def multiply(self, left: int, right: int, shape: Shape, k: float) -> int:
        """Launch a matrix product with k products per element; return its output."""
        out = self.new(shape)
        call = self._call("matmul", (left, right), out, {"k": k})
        with self.run.restored((left, right)):
            matmul(self.run, call)
        return out

    def reshaped(self, position: int, shape: Shape) -> int:
        """Return a tensor in another shape: a view if possible, else a copy."""
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
        """Return a view of a tensor with another shape and other strides."""
        state = replace(self.run.state(position), strides=strides)
        return self.new(shape, state, like=position)

    def dense(self, position: int, strides: Strides) -> int:
        """Return a tensor with the given strides, copied if its own differ."""
        run = self.run
        held, shape = run.state(position).strides, run.tensor(position).shape
        if all(n == 1 or a == b for n, a, b in zip(shape, held, strides, strict=True)):
            return position
        with run.restored((position,)):
            copied(run, self.step.call, position, run.tensor(position).size)
            made = replace(run.state(position), strides=strides)
        return self.new(shape, made)

    def cast(self, position: int, width: int) -> int:
        """Launch a cast; return its output, `width` bytes per element."""
        run, held = self.run, self.run.state(position)
        kernel = Kernel.stream(self.step.call.node, "cast", run.stored(position), held.width, width)
        strides = without_gaps(run, position)
        return self.launch(kernel, (position,), run.tensor(position).shape, width, strides)

    def fill(self, shape: Shape, width: int) -> int:
        """Launch a kernel that writes zeros, `width` bytes each; return its output."""
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
        """Launch a kernel that reads tensors; return its output."""
        out = self.new(shape)
        self.run.emit(kernel, reads)
        self.run.make(out, width, strides)
        return out

    def _call(
        self, op: str, inputs: Sequence[int], out: int, attributes: dict[str, Any]
    ) -> OperatorCall:
        call = self.step.call
        return OperatorCall(op, attributes, tuple(inputs), (out,), path=call.path, node=call.node)


# `Tape`: the forward pass call by call, and the memory that its tensors share.

NOT_DIFFERENTIABLE = frozenset(
    "equal not_equal greater greater_equal less less_equal logical_and logical_or logical_xor "
    "logical_not bitwise_and bitwise_or bitwise_xor bitwise_not bit_shift is_nan is_inf is_finite "
    "argmax argmin one_hot bucketize create random nonzero reduce_any reduce_all floor ceil round "
    "trunc sign fill_like quantize dequantize floor_divide argsort heaviside isclose".split()
)
"""Operators that gradients do not pass through."""
Memory = Hashable
"""Key of a region of memory that several tensors may share; None for all parameters."""


@dataclass(frozen=True, slots=True)
class Step:
    """One call of the forward pass.

    Attributes:
        call: call of an operator.
        maker: call of the layer whose bias it adds; None if it is not the addition of a bias.
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
    """Record of a forward pass.

    Attributes:
        run: run that is recorded.
        steps: recorded calls, in execution order.
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
        given = {p: self._initial_state(p) for p in call.inputs}
        read = {p: run.state(p) for p in call.inputs}
        made = {p: run.state(p) for p in call.outputs}
        step = Step(call, maker, given, read, made, len(run.kernels) - 1 if launched else -1)
        self._kernels = len(run.kernels)
        self.steps.append(step)
        self._made |= made
        self._record_memory(step)
        if not launched and (operator(call.op).category == "view" or call.op == "transpose"):
            self.views.update(call.outputs)
        passes = call.op not in NOT_DIFFERENTIABLE
        weighted = operator(call.op).category == "norm"  # calls do not name its parameters
        if passes and (weighted or any(p in self.wanted for p in call.inputs)):
            self.wanted.update(p for p in call.outputs if run.tensor(p).is_continuous)

    def memory(self, position: int, state: State) -> tuple[Memory, float]:
        """Return the memory that a tensor in this state lies in, and its size in bytes."""
        key = self._key(position, state)
        return key, self._sizes.get(key, 0.0)

    def width(self, position: int) -> int:
        """Return the bytes per element of a tensor as it was written."""
        return self._initial_state(position).width

    def path(self, memory: Memory) -> str:
        """Return the path of the call that wrote a memory first; empty for inputs."""
        return self._paths.get(memory, "")

    def results(self) -> list[int]:
        """Return the outputs of calls that no call reads."""
        read = {p for step in self.steps for p in step.call.inputs}
        return [p for step in self.steps for p in step.call.outputs if p not in read]

    def parameters(self) -> Iterable[int]:
        """Yield each trained parameter once; calls do not name those of normalisations."""
        seen: set[tuple[int, ...]] = set()
        for position in sorted(_parameters(self.run)):
            roots = self.run.tensor(position).roots
            if roots not in seen:
                seen.add(roots)
                yield position

    def _initial_state(self, position: int) -> State:
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

    def _record_memory(self, step: Step) -> None:
        """Record size and writer of the memories that a call is the first to use.

        A call in place writes to the memory of its argument, which becomes that of its results.
        """
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
    """Return the trained parameters: the named ones, or all stored floats if none has a name."""
    made = {p for call in run.sequence.calls for p in call.outputs}
    stored = {
        p
        for p, tensor in enumerate(run.sequence.tensors)
        if tensor.roots and tensor.is_parameter and tensor.is_continuous and p not in made
    }
    return {p for p in stored if run.tensor(p).is_named} or stored


# Activation checkpointing: blocks of the model run again in the backward pass.
#
# A checkpointed block keeps its inputs only. Its inner activations exist for one block at a time,
# from its second forward pass until its gradients are computed. Activations outside of any block
# are kept as usual.

_BLOCK = re.compile(r"^(?:\w+\.)*?\w+\.\d+(?:(?:\.\w*(?:blocks|layers|layer))?\.\d+)?")


def blocks_of(paths: Iterable[str]) -> Mapping[str, str]:
    """Return the block that each module belongs to, by path; "" for a module outside of blocks.

    A block is a numbered submodule: "blocks.3", "layer1.0", "stages.0.blocks.2". A stage, which
    contains blocks, is not a block.
    """
    found = {path: _BLOCK.match(path) for path in paths}
    named = {path: match.group() if match else "" for path, match in found.items()}
    stages = {name.rpartition(".")[0] for name in named.values()}
    stages |= {name.rpartition(".")[0] for name in stages}
    return {path: "" if name in stages else name for path, name in named.items()}


def checkpointed_bytes(g: Gradients) -> float:
    """Return the peak of the bytes that autograd keeps, with every block checkpointed.

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
    """Return the kernels that run again in the backward pass, with every block checkpointed.

    Args:
        tape: tape of the forward pass.
        first: position that the first of them will have in the list of kernels.
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
