"""Gradients of element-wise calls: passes over gradient, arguments and results."""

from __future__ import annotations

from collections.abc import Mapping

from dippm.estimate.features.kernels.backward.gradients import Gradients
from dippm.estimate.features.kernels.backward.tape import Step

Passes = tuple[str, ...]
_NAMES = {"a": 0, "b": 1, "c": 2}
_SLOPE: tuple[Passes, ...] = (("ga",),)
_SLOPE_OF_RESULT: tuple[Passes, ...] = (("gr",),)

PASSES: Mapping[str, tuple[Passes, ...]] = {
    "add": ((), ()),
    "subtract": ((), ("g",)),
    "multiply": (("gb",), ("ga",)),
    "divide": (("gb",), ("g", "ab", "tb", "st")),
    "relu": _SLOPE_OF_RESULT,
    "sigmoid": _SLOPE_OF_RESULT,
    "tanh": _SLOPE_OF_RESULT,
    "exp": _SLOPE_OF_RESULT,
    "neg": (("g",),),
    "abs": (("a", "gt"),),
    "square": (("a", "t", "gt"),),
    "power": (("a", "t", "gt"),),
    "sqrt": (("r", "gt"),),
    "rsqrt": (("g", "r", "st"),),
    "reciprocal": (("g", "r", "st"),),
    "sin": (("a", "gt"),),
    "cos": (("a", "t", "gt"),),
    "erf": (("a", "t", "t", "t", "gt"),),
    "where": ((), ("gc",), ("gc",)),
    "masked_fill": (("g", "t"),),
    "maximum": (("ab", "gt"), ("ab", "gt")),
    "minimum": (("ab", "gt"), ("ab", "gt")),
    "multiply_add": ((), ("c", "gt"), ("b", "gt")),
    "cast": ((),),
    "identity": ((),),
}
"""Operands of each pass by canonical name and argument: g the gradient, a b c arguments,
r the result, t what the pass before made and s the one before that. Without passes the gradient
is passed on as it is.
"""
OF_RESULT_IN_PLACE = frozenset("relu leaky_relu elu selu celu sigmoid tanh exp".split())
"""Operators whose slope follows from the result if they wrote over the argument."""


def elementwise(g: Gradients, step: Step, gradient: int) -> None:
    """Launch the passes for each argument; without a row one pass over gradient and argument."""
    call, run = step.call, g.run
    rows = PASSES.get(call.op, (("ga",), ("gb",), ("gc",)))
    shape = run.tensor(call.outputs[0]).shape
    for index, position in enumerate(call.inputs[: len(rows)]):
        if not g.wants(position):
            continue
        passes = rows[index]
        if call.in_place and call.op in OF_RESULT_IN_PLACE and rows is not _SLOPE_OF_RESULT:
            passes = ("gr",)
        with g.towards(position):
            made = _passed(g, step, passes, gradient, shape)
        g.give(position, made)


def _passed(g: Gradients, step: Step, passes: Passes, gradient: int, shape: tuple[int, ...]) -> int:
    call = step.call
    made = [gradient]
    for at, letters in enumerate(passes):
        reads = []
        for letter in letters:
            if letter in _NAMES:
                position = call.inputs[_NAMES[letter]] if _NAMES[letter] < len(call.inputs) else -1
                if position >= 0 and not g.run.tensor(position).is_number:
                    reads.append(g.kept(position))
            elif letter == "r":
                reads.append(g.result(call.outputs[0]))
            else:
                reads.append({"g": gradient, "t": made[-1], "s": made[max(-2, -len(made))]}[letter])
        op = call.op if at == len(passes) - 1 and call.op not in PLAIN else "multiply"
        size = g.run.tensor(reads[0]).shape if len(reads) == 1 else shape
        made.append(g.call(op, reads, size))
    return made[-1]


PLAIN = frozenset(PASSES) - frozenset("relu sigmoid tanh".split())
"""Calls whose gradient is no operator of its own but products and quotients."""
