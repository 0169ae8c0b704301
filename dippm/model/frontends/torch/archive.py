"""The kind of a PyTorch file, and loading a pickled one without running its code."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import pickle
import pickletools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal
from zipfile import BadZipFile

from dippm.base import files
from dippm.errors import FrameworkNotInstalledError, ModelFileError, UnsafeModelError
from dippm.model.frontends.containers import MAGIC, member_names
from dippm.model.frontends.unsupported_formats import hub_folder_hint
from dippm.model.vision_operators import declare_vision_operators

ArchiveKind = Literal["pt2", "torchscript", "pickle", "legacy pickle"]

CLASS_HOMES = (
    "torch.nn.modules.",
    "torchvision.models.",
    "torchvision.ops.",
    "torchvision.transforms.",
    "timm.models.",
    "timm.layers.",
)
"""Packages whose `nn.Module` classes, enums and plain data classes may be unpickled."""

EXTRAS = {"torchvision": "timm", "timm": "timm", "transformers": "hf"}
"""Extra that installs the package of a class, as in `pip install "dippm[timm]"`."""

FUNCTION_HOMES = (
    "torch",
    "torch.nn.functional",
    "torch._C._nn",
    "torch._C._VariableFunctions",
    "timm.layers.activations",
)
PURE_FUNCTIONS = frozenset(
    """
    relu relu_ relu6 gelu silu elu selu celu leaky_relu hardswish hardsigmoid hardtanh mish
    softplus softsign tanh sigmoid softmax log_softmax logsigmoid prelu glu tanhshrink
    adaptive_avg_pool2d adaptive_max_pool2d avg_pool2d max_pool2d normalize flatten
    """.split()
)
PURE_GLOBALS = {
    "functools.partial": "functools",
    "builtins.set": "builtins",
    "builtins.frozenset": "builtins",
    "builtins.slice": "builtins",
    "__builtin__.set": "builtins",
    "__builtin__.frozenset": "builtins",
    "collections.deque": "collections",
    "torch.device": "torch",
}
"""Globals that only build containers. `functools.partial` can bind allowed globals only."""

TRACERS = ("torchvision.models.feature_extraction", "timm.models._features_fx")
"""Modules whose classes generate Python code from names when they are constructed."""

LONGEST_REFUSAL = 2000

_MARKS = frozenset(
    ("archive_format", "models/", "serialized_exported_program.json", "code/", "constants.pkl")
) | {"data.pkl"}
_SAFE_NAME = re.compile(r"[\w\- ]+")


def archive_kind(path: Path) -> ArchiveKind | None:
    """Return the kind of a file from the members of its archive, without loading anything."""
    try:
        start = files.beginning(path, 64)
        if start.startswith(MAGIC):
            return _zip_kind(member_names(path))
    except (OSError, BadZipFile):
        return None
    return "legacy pickle" if _is_legacy(start) else None


def _zip_kind(members: Iterable[str]) -> ArchiveKind | None:
    found = set()
    for name in members:  # possibly very many
        inner = name.partition("/")[2]
        found |= {name, inner, inner.partition("/")[0] + "/"} & _MARKS
    if {"archive_format", "models/"} <= found or "serialized_exported_program.json" in found:
        return "pt2"
    if {"constants.pkl", "code/"} <= found:
        return "torchscript"
    return "pickle" if "data.pkl" in found else None


def _is_legacy(start: bytes) -> bool:
    """Return whether a file is from before PyTorch 1.6: it begins with a pickled magic number."""
    return (
        start[:2] in (b"\x80\x02", b"\x80\x03", b"\x80\x04")
        and bytes.fromhex("8a0a6cfc9c46f9206aa85019") == start[2:14]
    )


def load_pickled(path: Path, *, trust: bool, device: str = "meta") -> Any:
    """Load a pickled module.

    Args:
        path: a file of kind "pickle" or "legacy pickle".
        trust: whether classes outside the allow-list may be imported and run.
        device: device of its weights; on "meta" they are not read.

    Raises:
        UnsafeModelError: if the pickle names other globals and `trust` is false.
        FrameworkNotInstalledError: if the package of its classes is missing.
        ModelFileError: if it is damaged, or contains weights without an architecture.
    """
    import torch

    try:
        if trust:
            loaded = torch.load(path, map_location=device, weights_only=False)
        else:
            loaded = _load_allowed(path, device)
    except (UnsafeModelError, FrameworkNotInstalledError, MemoryError):
        raise
    except AttributeError as error:
        raise ModelFileError(
            f"{path.name}: a class of this pickle cannot be found: {error}",
            "Make its module importable (PYTHONPATH), pass the nn.Module object itself to "
            "dippm.predict, or export to ONNX.",
        ) from error
    except ModuleNotFoundError as error:
        _check_installed(path, [error.name or ""])
        raise ModelFileError(
            f"{path.name}: the pickle needs the module {error.name!r}, which is not importable",
            "Install it or add its folder to PYTHONPATH, or export the model to ONNX.",
        ) from error
    except Exception as error:
        raise ModelFileError(
            f"{path.name}: not a readable PyTorch pickle ({_first_line(error)})",
            "The file is probably truncated or damaged: write it again with torch.save(model, ...)",
        ) from error
    module = _module_in(loaded, path)
    if not trust:
        _check_names(module, path)
    return module


def _check_names(module: Any, path: Path) -> None:
    """Refuse names that could inject code into what `torch.fx` generates from them."""
    try:
        held = [(part._modules, part._parameters, part._buffers) for part in module.modules()]
        found = [name for tables in held for names in tables for name in dict(names)]
    except (AttributeError, TypeError, ValueError, RecursionError) as error:
        raise ModelFileError(
            f"{path.name}: its module lacks attributes of every module ({_first_line(error)})",
            "The file is probably truncated or damaged: write it again with torch.save(model, ...)",
        ) from error
    for name in found:
        if not (isinstance(name, str) and _SAFE_NAME.fullmatch(name)):
            raise _unsafe(path, [f"a part named {name!r}"])


def _load_allowed(path: Path, device: str) -> Any:
    """Load a file with only those of its globals that the allow-list permits."""
    import torch

    permitted: dict[str, Any] = {}
    if archive_kind(path) == "pickle":
        names = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        resolved = {name: allowed_global(name) for name in names}
        refused = sorted(name for name, value in resolved.items() if value is None)
        if refused:
            _check_installed(path, refused)
            raise _unsafe(path, refused)
        permitted = resolved
    while True:  # the globals of an old file become known one at a time
        with (
            _brief_refusals(),
            torch.serialization.safe_globals([(value, name) for name, value in permitted.items()]),
        ):
            try:
                return torch.load(path, map_location=device, weights_only=True)
            except pickle.UnpicklingError as error:
                if "persistent_load of storage" in str(error):
                    raise _whole_and_legacy(path) from error
                name = _refused_name(str(error))
                if name is None:
                    raise
                value = allowed_global(name)
                if value is None or name in permitted:
                    _check_installed(path, [name])
                    raise _unsafe(path, [name]) from error
                permitted[name] = value


@contextlib.contextmanager
def _brief_refusals() -> Iterator[None]:
    """Shorten messages of torch's unpickler, which contain text of the file of any length.

    `torch.load` searches them with patterns of quadratic time: a minute for 200,000 characters.
    """
    from torch import _weights_only_unpickler

    unpickler: Any = _weights_only_unpickler

    class BriefError(pickle.UnpicklingError):
        def __init__(self, message: str = "") -> None:
            super().__init__(str(message)[:LONGEST_REFUSAL])

    kept = unpickler.UnpicklingError
    unpickler.UnpicklingError = BriefError
    try:
        yield
    finally:
        unpickler.UnpicklingError = kept


def _whole_and_legacy(path: Path) -> UnsafeModelError:
    """Return the refusal of a file from before PyTorch 1.6 that contains its classes' source."""
    names = [name for name in _named_globals(path) if not name.startswith("collections.")]
    kind = f" ({names[0]})" if names else ""
    return UnsafeModelError(
        f"{path.name} holds a whole module{kind}, no state_dict, in the format before PyTorch 1.6, "
        "which brings the source of its classes along: loading it would import or run them",
        "Export the model to ONNX, or, if you know where the file comes from, pass trust=True or "
        "write it again with torch.save(torch.load(path, weights_only=False), path).",
    )


def _named_globals(path: Path) -> list[str]:
    """Return the globals that the object of a legacy file names, in order, without loading it."""
    found: list[str] = []
    with contextlib.suppress(Exception), files.open_regular(path) as file:
        for _ in range(4):  # the magic number, the protocol, the system, the object
            for opcode, argument, _ in pickletools.genops(file):
                if opcode.name == "GLOBAL":
                    found.append(str(argument).replace(" ", "."))
    return found


def _check_installed(path: Path, names: list[str]) -> None:
    """Raise if these classes are from a known package that is not installed.

    Raises:
        FrameworkNotInstalledError: naming the extra.
    """
    packages = {name.partition(".")[0] for name in names}
    missing = sorted(p for p in packages & set(EXTRAS) if importlib.util.find_spec(p) is None)
    if missing:
        raise FrameworkNotInstalledError(
            f"{path.name} holds classes of {', '.join(missing)}, which is not installed",
            f'pip install "dippm[{EXTRAS[missing[0]]}]"',
        )


def allowed_global(name: str) -> Any | None:
    """Return the class or function of this qualified name if a pickle may use it, else None.

    Allowed are classes of layers and models of torch.nn, torchvision and timm, their enums and
    option classes, and listed pure functions, but nothing with access to code, files or the
    network (graph modules, loaders, hubs).
    """
    import torch

    module_name, _, attribute = name.rpartition(".")
    if name in PURE_GLOBALS:
        return getattr(importlib.import_module(PURE_GLOBALS[name]), attribute)
    if module_name in FUNCTION_HOMES:
        return (
            getattr(importlib.import_module(module_name), attribute, None)
            if (attribute in PURE_FUNCTIONS)
            else None
        )
    if not (module_name + ".").startswith(CLASS_HOMES) or module_name in TRACERS:
        return None
    with contextlib.suppress(Exception):
        declare_vision_operators()
        value = getattr(importlib.import_module(module_name), attribute)
        runs_code = (torch.fx.GraphModule, torch.jit.ScriptModule)
        if (
            isinstance(value, type)
            and value.__module__ == module_name
            and issubclass(value, torch.nn.Module)
            and not issubclass(value, runs_code)
        ) or _is_plain_data(value, module_name):
            return value
    return None


def _is_plain_data(value: Any, module_name: str) -> bool:
    """Return whether this is an enum or data class that is defined in the module."""
    from dataclasses import is_dataclass
    from enum import Enum

    return (
        isinstance(value, type)
        and value.__module__ == module_name
        and (issubclass(value, Enum) or is_dataclass(value) or issubclass(value, tuple))
    )


def _refused_name(message: str) -> str | None:
    match = re.search(r"GLOBAL ([\w.]+) (?:was not|whose module)", message)
    return match[1] if match else None


def _unsafe(path: Path, names: list[str]) -> UnsafeModelError:
    return UnsafeModelError(
        f"{path.name}: loading this pickle would import or run {', '.join(names)}",
        "Export the model to ONNX, or, if you know where the file comes from, pass trust=True.",
    )


def _module_in(loaded: Any, path: Path) -> Any:
    import torch

    if isinstance(loaded, torch.nn.Module):
        return loaded
    if isinstance(loaded, Mapping):
        modules = [v for v in loaded.values() if isinstance(v, torch.nn.Module)]
        if len(modules) == 1:  # trainers store the module under some key
            return modules[0]
        kind = "a state_dict: weights without an architecture"
    else:
        kind = f"a {type(loaded).__name__}, not a model"
    raise ModelFileError(
        f"{path.name} holds {kind}",
        hub_folder_hint(path.parent)
        or "Pass the nn.Module itself, save it whole with torch.save(model, ...), or export it to "
        "ONNX.",
    )


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
