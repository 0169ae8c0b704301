"""PaddlePaddle programs (`.json` or `.pdmodel` with `.pdiparams`) → `RawGraph`, by way of ONNX.

The parameter file is read only if the exporter needs it: the program itself states the shape of
every parameter. Paddle must never share a process with TensorFlow.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dippm.base import files
from dippm.errors import (
    ConversionError,
    FrameworkNotInstalledError,
    ModelFileError,
    ModelNotFoundError,
)
from dippm.model.frontends import registry
from dippm.model.frontends.containers import objects_in
from dippm.model.frontends.frontend import InputSpec
from dippm.model.frontends.paddle_rewrites import (
    layers_of,
    name_groups,
    name_nodes,
    outer_operators,
    rewrite,
)
from dippm.model.frontends.worker import step
from dippm.model.relax.raw_graph import RawGraph

if TYPE_CHECKING:
    import onnx

NAME = "paddle"
OPSET = 17

_PROGRAM_SUFFIXES = (".json", ".pdmodel")
_PARAMETER_SUFFIX = ".pdiparams"
_LISTS = re.compile(r"\d+\.(create_array(_like)?|array_(write|read|to_tensor|length|pop)_?)")
_MAGIC = b'"magic":"pir"'
_ELEMENT_TYPES = {
    "t_f32": 1, "t_ui8": 2, "t_i8": 3, "t_i16": 5, "t_i32": 6, "t_i64": 7, "t_bool": 9,
    "t_f16": 10, "t_f64": 11, "t_bf16": 16,
}  # fmt: skip


def accepts(path: Path) -> bool:
    """Return whether this is a Paddle program, a folder with one, or the prefix of one."""
    try:
        return _is_program(find_program(Path(path)))
    except (ModelFileError, OSError):
        return False


def find_program(path: Path) -> Path:
    """Return the program file for a path.

    Args:
        path: the program, its parameter file, the common prefix, or the folder of both.

    Raises:
        ModelNotFoundError: if there is no such program.
        ModelFileError: if a folder holds several.
    """
    if path.is_file() and path.suffix != _PARAMETER_SUFFIX:
        return path
    if path.is_dir():
        inside = [p for p in files.entries(path) if files.is_regular(p)]
        found = [p for s in _PROGRAM_SUFFIXES for p in inside if p.suffix == s and _is_program(p)]
        where = f"the folder {str(path)!r}"
    else:
        stem = path.with_suffix("") if path.suffix == _PARAMETER_SUFFIX else path
        found = [p for s in _PROGRAM_SUFFIXES if (p := Path(f"{stem}{s}")).is_file()]
        where = f"{str(stem)!r} with {' or '.join(_PROGRAM_SUFFIXES)}"
    stems = sorted({p.stem for p in found})
    if not found:
        raise ModelNotFoundError(
            f"no Paddle program at {where}",
            "Save the model with paddle.jit.save, and pass its .json or .pdmodel file.",
        )
    if len(stems) > 1:
        raise ModelFileError(
            f"{where} holds several Paddle programs: {', '.join(stems)}", "Pass one of the files."
        )
    return found[0]


def prepare() -> None:
    """Import what every conversion needs, while the caller still works."""
    from dippm.model.frontends import onnx as onnx_route

    _exporter()
    onnx_route.prepare()


def load(path: Path, inputs: InputSpec, *, trust: bool = False) -> RawGraph:
    """Convert a Paddle program.

    Args:
        path: see `find_program`.
        inputs: shapes without the batch; may be empty if the program states every size.
        trust: unused, because the exporter reads the program as data.

    Raises:
        ModelNotFoundError: if there is no such program.
        FrameworkNotInstalledError: if Paddle or Paddle2ONNX is not installed.
        ModelFileError: if a file is damaged.
        ConversionError: if Paddle2ONNX cannot export an operator.
    """
    program = find_program(Path(path))
    _check(program)
    exporter = _exporter()
    from dippm.model.frontends.onnx import load_bytes

    step("reading the program")
    with _as_json(program) as (document, parameters), _rewritten_file(document, program) as known:
        step("exporting with Paddle2ONNX")
        data = _export(exporter, *known, parameters, program)
    return load_bytes(data, inputs, name=program.name)


def _is_program(path: Path) -> bool:
    head = files.beginning(path, 4096)
    if path.suffix == ".pdmodel":
        return head[:1] == b"\x0a"
    return head[:1] == b"{" and _MAGIC in head.replace(b" ", b"")


def _check(program: Path) -> None:
    if not _is_program(program):
        raise ModelFileError(
            f"{program.name}: not a Paddle program", "Save the model with paddle.jit.save."
        )
    parameters = _parameters(program)
    if parameters.is_file() and not parameters.stat().st_size and _has_parameters(program):
        raise ModelFileError(
            f"{parameters.name}: the parameter file is empty",
            "Copy or save the model again: the file was cut off.",
        )


def _parameters(program: Path) -> Path:
    return files.companion(program, program.with_suffix(_PARAMETER_SUFFIX).name)


def _has_parameters(program: Path) -> bool:
    return program.suffix != ".json" or any(_stored_shapes(_document(program)))


def _document(program: Path) -> dict[str, Any]:
    try:
        document = json.loads(program.read_bytes())
        outer_operators(document)
        for _, shape, _ in _stored_shapes(document):
            if not all(type(size) is int for size in shape):
                raise ValueError(f"a parameter has the sizes {shape}")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ModelFileError(
            f"{program.name}: not a complete Paddle program ({str(error)[:200]})",
            "The file is cut short or damaged; copy or save it again.",
        ) from error
    return dict(document)


def _check_operators(document: dict[str, Any], program: Path) -> None:
    """Refuse lists of tensors, because Paddle2ONNX ends its process at one."""
    found = (item.get("#") for item in objects_in(document["program"]))
    lists = sorted({name for name in found if isinstance(name, str) and _LISTS.fullmatch(name)})
    if lists:
        names = ", ".join(name.partition(".")[2] for name in lists)
        raise ConversionError(
            f"{program.name}: Paddle2ONNX cannot export lists of tensors ({names})",
            "They come from a loop around a cell: use paddle.nn.LSTM or GRU, or write the steps "
            "out in a loop over range(steps), and save the model again.",
        )


def _stored_shapes(document: dict[str, Any]) -> Iterator[tuple[str, list[int], int]]:
    """Yield name, shape and ONNX element type of each parameter of a program."""
    for operator in outer_operators(document):
        if operator["#"] != "p":
            continue
        kind, shape = operator["O"]["TT"]["D"][:2]
        yield operator["A"][3], shape, _ELEMENT_TYPES[kind["#"].rpartition(".")[2]]


def _exporter() -> Callable[..., bytes]:
    try:
        with _no_shell():
            import paddle2onnx.paddle2onnx_cpp2py_export as compiled
    except ImportError as error:
        raise FrameworkNotInstalledError(
            f"reading Paddle models needs paddlepaddle and paddle2onnx ({error})",
            registry.install_hint("paddle"),
        ) from error
    export: Callable[..., bytes] = compiled.export
    return export


def _exportable_operators() -> frozenset[str]:
    """Return the operators that Paddle2ONNX can export; it ends its process at any other."""
    import paddle2onnx.paddle2onnx_cpp2py_export as compiled

    listed = getattr(compiled, "get_all_supported_operators_pir", list)
    return frozenset(map(str, listed()))


@contextmanager
def _no_shell() -> Iterator[None]:
    """Make Paddle's import fail to ask a shell for the version of the C library.

    Paddle needs it below glibc 2.23 only, and the sandbox of a worker has no shell.
    """
    import subprocess

    class Refused:
        def __init__(self, *command: Any, **more: Any) -> None:
            pass

        def communicate(self) -> tuple[bytes, bytes]:
            return b"", b"no programs are started here"

    start = subprocess.Popen
    subprocess.Popen = Refused  # type: ignore[assignment, misc]
    try:
        yield
    finally:
        subprocess.Popen = start  # type: ignore[misc]


@contextmanager
def _as_json(program: Path) -> Iterator[tuple[Path, Path]]:
    """Yield a program in Paddle's current format, and its parameter file, which may not exist."""
    parameters = _parameters(program)
    if program.suffix != ".pdmodel":
        yield program, parameters
        return
    with _no_shell():
        import paddle

    with tempfile.TemporaryDirectory(prefix="dippm-") as folder:
        document = Path(folder) / "program.json"
        try:
            with paddle.pir_utils.OldIrGuard():
                old = paddle.static.deserialize_program(program.read_bytes())
                new = paddle.pir.translate_to_pir(old.desc)
            with paddle.pir_utils.IrGuard():
                paddle.save(new, str(document))
        except Exception as error:
            raise ModelFileError(
                f"{program.name}: Paddle cannot read this program ({str(error)[-300:]})",
                "The file is damaged, or older than this version of Paddle reads.",
            ) from error
        yield document, parameters


@contextmanager
def _rewritten_file(document: Path, program: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Yield a program rewritten for Paddle2ONNX: its file and its content.

    Raises:
        ConversionError: if Paddle2ONNX cannot export one of its operators.
    """
    content = _document(document)
    _check_operators(content, program)
    before = json.dumps(content)
    try:
        rewrite(content, program.name, _exportable_operators())
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, ModelFileError):
            raise
        raise ModelFileError(
            f"{program.name}: not a complete Paddle program ({type(error).__name__}: {error})",
            "The file is damaged; copy or save it again.",
        ) from error
    after = json.dumps(content)
    if after == before:
        yield document, content
        return
    with tempfile.TemporaryDirectory(prefix="dippm-") as folder:
        file = Path(folder) / "program.json"
        file.write_text(after)
        yield file, content


def _export(
    exporter: Callable[..., bytes],
    document: Path,
    content: dict[str, Any],
    parameters: Path,
    program: Path,
) -> bytes:
    """Export without weights, or with them if the exporter needs their values."""
    shapes, layers = list(_stored_shapes(content)), layers_of(content)

    def run(weights: str) -> onnx.ModelProto:
        import onnx

        model: onnx.ModelProto = onnx.load_from_string(_run(exporter, document, weights))
        name_groups(model)
        return model

    try:
        return _with_shapes(run(""), shapes, layers)
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        if not parameters.is_file():
            raise _export_error(
                program, error, f"; its parameter file {parameters.name} is absent"
            ) from (error)
    try:
        return bytes(run(str(parameters)).SerializeToString())
    except (ValueError, RuntimeError) as error:
        raise _export_error(program, error) from error


def _run(exporter: Callable[..., bytes], document: Path, parameters: str) -> bytes:
    auto_upgrade_opset, is_verbose, runs_checker, experimental, optimizes = (
        True,
        False,
        False,
        True,
        True,
    )
    data = exporter(
        os.fspath(document),
        parameters,
        OPSET,
        auto_upgrade_opset,
        is_verbose,
        runs_checker,
        experimental,
        optimizes,
        {},
        "onnxruntime",
        "",
        "",
        False,
    )
    if not data:
        raise ValueError("Paddle2ONNX returned nothing")
    return data


def _with_shapes(
    model: onnx.ModelProto, stored: list[tuple[str, list[int], int]], layers: Mapping[str, str]
) -> bytes:
    """Add parameters as tensors without contents, and layer paths to node names."""
    import onnx

    read = set(_read_in(model.graph))
    for name, shape, element_type in stored:
        if name in read:
            tensor = model.graph.initializer.add(name=name, data_type=element_type, dims=shape)
            tensor.data_location = onnx.TensorProto.EXTERNAL
    name_nodes(model, layers)
    written = {name for node in model.graph.node for name in node.output}
    written.update(v.name for v in model.graph.input)
    written.update(t.name for t in model.graph.initializer)
    missing = sorted(name for name in read - written if name)
    if missing and not any(a.HasField("g") for node in model.graph.node for a in node.attribute):
        raise ValueError(f"without weights the exporter leaves out {missing[:3]}")
    return bytes(model.SerializeToString())


def _read_in(graph: onnx.GraphProto) -> Iterator[str]:
    """Yield the names that nodes of a graph read, also within loops and branches."""
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _read_in(attribute.g)
                yield from (value.name for value in attribute.g.output)


def _export_error(program: Path, error: BaseException, more: str = "") -> ConversionError:
    return ConversionError(
        f"{program.name}: Paddle2ONNX cannot export this program ({str(error)[-400:].strip()})"
        + more,
        "Replace the operator that it names, or export the model to ONNX yourself.",
    )
