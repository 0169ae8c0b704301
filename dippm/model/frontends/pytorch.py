"""PyTorch: module objects, pickled modules, TorchScript and exported programs.

In the caller, `export_bytes` turns an object into an exported program. In the worker, `load` reads
files and `load_program` such bytes. All end in `_to_graph`.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from dippm.errors import (
    ConversionError,
    DippmError,
    ModelFileError,
    UnknownFormatError,
    UnsafeModelError,
)
from dippm.model.frontends.frontend import InputSpec
from dippm.model.frontends.limits import Frames, frames_of, innermost_part, time_limit
from dippm.model.frontends.torch.archive import archive_kind, load_pickled
from dippm.model.frontends.worker import locating, step
from dippm.model.frontends.worker_errors import out_of_time_error
from dippm.model.relax.raw_graph import RawGraph
from dippm.model.vision_operators import declare_vision_operators

if TYPE_CHECKING:
    import torch

    from dippm.model.frontends.torch.export import Exported

NAME = "pytorch"


def accepts(path: Path) -> bool:
    """Return whether a file is in one of PyTorch's own formats."""
    return path.is_file() and archive_kind(path) is not None


def prepare() -> None:
    """Import what every conversion needs, while the caller still works."""
    import dippm.model.frontends.torch.export
    import dippm.model.relax.torch
    import dippm.model.relax.walk  # noqa: F401


def load(path: Path, inputs: InputSpec, *, trust: bool) -> RawGraph:
    """Convert a `.pt`, `.pth` or `.pt2` file.

    Raises:
        UnsafeModelError: if loading could run code and `trust` is false.
        ModelFileError: one of its subclasses, with the next step in `hint`.
    """
    kind = archive_kind(path)
    require_trust(path, kind, trust=trust)
    step("reading the file")
    if kind == "pt2":
        return _to_graph(_load_pt2(path, inputs))
    if kind == "torchscript":
        return _convert_torchscript(path, inputs)
    if kind in ("pickle", "legacy pickle"):
        declare_vision_operators()
        return convert_module(load_pickled(path, trust=trust), inputs)
    raise UnknownFormatError(
        f"{path.name} is not a PyTorch file",
        "Known: torch.save(model), TorchScript, torch.export (.pt2).",
    )


def require_trust(path: Path, kind: str | None, *, trust: bool) -> None:
    """Refuse archives that contain code.

    Raises:
        UnsafeModelError: if the kind can run code and `trust` is false.
    """
    if kind in ("torchscript", "pt2") and not trust:
        if kind == "torchscript":
            raise UnsafeModelError(
                f"{path.name} is a TorchScript archive: loading one can run code that it carries "
                "(PyTorch calls the __setstate__ of its classes, and compiles its programs)",
                "If you know where the file comes from, pass trust=True; or export the module to "
                'ONNX: `torch.onnx.export(module, (example,), "model.onnx", dynamo=False)`, which '
                "takes a module of torch.jit.load, too.",
            )
        raise UnsafeModelError(
            f"{path.name} is an exported program (.pt2): loading one can run code that it carries",
            "Export the model to ONNX, or, if you know where the file comes from, pass trust=True.",
        )


def convert_module(module: torch.nn.Module, inputs: InputSpec) -> RawGraph:
    """Convert a module that already lives in this process."""
    from dippm.model.frontends.torch.export import export

    step("exporting")
    with quiet(), locating(partial(_place_in, module)):
        return _to_graph(export(module, inputs))


@dataclass(frozen=True, slots=True)
class ProgramBytes:
    """A serialized exported program for the worker, with the fields of `Exported`.

    Attributes:
        data: the serialized program.
        batch, batch_is_symbolic, notes: see `Exported`.
        schemas: schemas of operators unknown to the worker, see `foreign_schemas`.
    """

    data: bytes
    batch: int
    batch_is_symbolic: bool
    notes: tuple[str, ...]
    schemas: tuple[str, ...]


def _place_in(module: torch.nn.Module, frames: Frames) -> str:
    """Return the part of a module, and its line, that stack frames are in; "" if none."""
    paths: dict[int, str] = {}

    def name_of(part: object) -> str | None:
        if not paths and type(part) is type(module):  # itself or its weightless copy
            paths.update({id(inner): path for path, inner in part.named_modules()})
        path = paths.get(id(part))
        return None if path is None else path or "the model"

    return innermost_part(name_of, frames)


def export_bytes(
    module: torch.nn.Module, inputs: InputSpec, *, timeout_s: float = math.inf
) -> ProgramBytes:
    """Export a module object in the caller.

    Raises:
        InputShapeError: if the inputs do not fit the model.
        ConversionError: if `torch.export` cannot trace the model, or not within this time.
    """
    import torch

    from dippm.model.frontends.torch.export import export, strip_program
    from dippm.model.relax.torch_programs import foreign_schemas, with_data_flow

    buffer = io.BytesIO()
    try:
        with quiet(), time_limit(min(timeout_s, threading.TIMEOUT_MAX)):
            exported = export(module, inputs)
            schemas = foreign_schemas(exported.program)
            program = with_data_flow(exported.program) if schemas else exported.program
            torch.export.save(strip_program(program), buffer)
    except TimeoutError as error:
        where = "exporting" + _place_in(module, frames_of(error))
        raise out_of_time_error(timeout_s, where) from None
    except DippmError:
        raise
    except (Exception, SystemExit) as error:  # raised by user code in this process
        raise ConversionError(
            f"{type(module).__name__} cannot be exported: {type(error).__name__}: "
            f"{str(error)[:300]}",
            "Its forward() must take and return tensors, and its attributes must be readable; "
            "otherwise export the model to ONNX first.",
        ) from error
    return ProgramBytes(
        buffer.getvalue(), exported.batch, exported.batch_is_symbolic, exported.notes, schemas
    )


def load_program(
    path: Path,
    *,
    batch: int,
    batch_is_symbolic: bool,
    notes: Sequence[str] = (),
    schemas: Sequence[str] = (),
) -> RawGraph:
    """Convert the result of `export_bytes`; it is our own file, so it needs no trust."""
    import torch

    from dippm.model.frontends.torch import data_dependent_sizes
    from dippm.model.frontends.torch.export import Exported
    from dippm.model.relax.torch_programs import declare_foreign

    step("reading the exported program")
    data_dependent_sizes.declare()
    declare_foreign(schemas)
    with quiet():
        program = torch.export.load(path)
        return _to_graph(Exported(program, batch, batch_is_symbolic, tuple(notes)))


def _load_pt2(path: Path, inputs: InputSpec) -> Exported:
    from dippm.model.frontends.torch.export import re_export

    with quiet():
        try:
            program = _load_program(path)
        except Exception as error:
            raise _damaged_error(path, "an exported program (.pt2)", error) from error
        step("exporting")
        return re_export(program, inputs)


def _load_program(path: Path) -> torch.export.ExportedProgram:
    """Load a program; retry with the operators of torchvision if that fails."""
    import torch

    try:
        return torch.export.load(path)
    except Exception:
        declare_vision_operators()
        return torch.export.load(path)


def _convert_torchscript(path: Path, inputs: InputSpec) -> RawGraph:
    """Convert without weights, or with them if the archive has constants that need the CPU."""
    try:
        return convert_module(_load_torchscript(path, "meta"), inputs)
    except ModelFileError:
        return convert_module(_load_torchscript(path, "cpu"), inputs)


def _load_torchscript(path: Path, device: str) -> torch.nn.Module:
    import torch

    from dippm.model.frontends.torch.script import compute_sizes_as_numbers

    try:
        try:
            script = torch.jit.load(path, map_location=device)
        except RuntimeError as error:
            if "torchvision::" not in str(error):
                raise
            declare_vision_operators()
            script = torch.jit.load(path, map_location=device)
    except Exception as error:
        raise _damaged_error(path, "a TorchScript archive", error) from error
    compute_sizes_as_numbers(script)
    return script  # type: ignore[no-any-return]


def _damaged_error(path: Path, format_name: str, error: Exception) -> ModelFileError:
    words = (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
    return ModelFileError(
        f"{path.name} looks like {format_name} but cannot be read: {words}",
        "The file is probably truncated, damaged, or from a newer PyTorch: write it again.",
    )


def _to_graph(exported: Exported) -> RawGraph:
    from dippm.model.graph.dialects import is_read
    from dippm.model.relax.torch import ShapeOnlyImporter
    from dippm.model.relax.walk import walk

    step("translating to Relax")
    module = ShapeOnlyImporter().import_program(exported.program, is_read)
    graph = walk(module, exported.batch, exported.batch_is_symbolic)
    return replace(graph, notes=(*graph.notes, *exported.notes))


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence the output of PyTorch's exporter; its errors are raised anyway."""
    import warnings

    known = logging.root.manager.loggerDict
    loggers = [logging.getLogger(name) for name in list(known) if name.startswith("torch")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
