"""PaddlePaddle programs, loaded by Paddle."""

from __future__ import annotations

from pathlib import Path

from dippm.errors import ModelNotFoundError, UnsafeModelError
from dippm.measure.sessions.session import Argument, Session, random_feeds
from dippm.model.frontends import InputSpec
from dippm.model.frontends.paddle import find_program


def open_session(path: Path, inputs: InputSpec, *, batch: int, trust: bool) -> Session:
    """Load a program with its parameters.

    Raises:
        ModelNotFoundError: if the parameters are missing.
        UnsafeModelError: for a `.pdmodel` without `trust`: it may come with pickled files.
        InputShapeError: if a size is missing or does not fit.
    """
    program = find_program(path)
    parameters = program.with_suffix(".pdiparams")
    if not parameters.is_file():
        raise ModelNotFoundError(
            f"{parameters.name} is missing beside {program.name}",
            "A program runs with its parameters only; `dippm predict` does not need them.",
        )
    if program.suffix != ".json" and not trust:
        raise UnsafeModelError(
            f"{program.name}: loading this older format can run code from files beside it",
            "Save it again with paddle.jit.save, or, if you know where it comes from, pass "
            "trust=True.",
        )
    import paddle

    layer = paddle.jit.load(str(program.with_suffix("")))
    layer.eval()
    arguments = [
        Argument(
            spec.name,
            tuple(size if size > 0 else None for size in spec.shape),
            str(spec.dtype).rpartition(".")[2],
        )
        for spec in layer._input_spec()
    ]
    feeds = random_feeds(arguments, inputs, batch)
    tensors = [paddle.to_tensor(feeds[argument.name]) for argument in arguments]

    def run() -> object:
        with paddle.no_grad():
            return layer(*tensors)

    return Session(run, f"paddle {paddle.__version__}")
