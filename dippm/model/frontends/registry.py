"""Registry of frontends: the one for a source is chosen by name, content or type of object.

To add a framework, add a row to `BUILT_IN`, or from another distribution register the module under
the entry point group "dippm.frontends". Modules are imported when first needed, and they import
their framework only in the worker.

A frontend of another distribution is isolated, so that a broken one affects no other files: it is
imported and called in the caller, on a thread of its own with a time limit. If it raises or does
not answer it claims no file, a warning names it, and `dippm doctor` shows it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from errno import ENOENT, ENOTDIR
from functools import cache
from importlib import metadata
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from stat import S_ISDIR
from typing import Any, cast

from dippm.base import files
from dippm.base.printable import printable
from dippm.errors import (
    LONGEST_NAME,
    FrameworkNotInstalledError,
    ModelFileError,
    ModelNotFoundError,
    PluginWarning,
    UnknownFormatError,
    UnknownNameError,
    UntestedVersionWarning,
)
from dippm.model.frontends import named, unsupported_formats
from dippm.model.frontends.containers import is_broken
from dippm.model.frontends.frontend import Frontend

ADDRESSES = frozenset({"ftp:", "gs:", "http:", "https:", "s3:"})
_HUB_ADDRESS = re.compile(
    r"(?:hf-hub:|hf_hub:|hf:/*|(?:https?:/+)?(?:www\.)?(?:huggingface\.co|hf\.co)/)(?P<name>.+)"
)
_HUB_NAME = re.compile(r"(?:(?P<owner>\w[\w.-]*)/)?(?P<model>\w[\w.-]*)")
FORMATS = (
    "Known formats: PyTorch (.pt, .pth, .pt2), ONNX (.onnx), Keras (.keras, .h5), TensorFlow "
    "SavedModel (folder), Paddle (.json or .pdmodel beside .pdiparams), and the names timm:NAME, "
    "torchvision:NAME, hf-config:FOLDER, dippm:NAME."
)


TESTED_TORCH = ((2, 13), (2, 14))
"""First and last minor version of torch that is tested; the extra "torch" installs one."""

NEEDS_OLDER_PYTHON = {"paddle": (3, 13)}
"""First Python version without packages of an extra; pyproject.toml leaves them out there."""


def install_hint(extra: str) -> str:
    """Return the command that installs an extra, or the alternative if this Python has none."""
    command = f'pip install "dippm[{extra}]"'
    since = NEEDS_OLDER_PYTHON.get(extra)
    if since is None or sys.version_info < since:
        return command
    major, minor = since
    return (
        f"there are no packages for Python {major}.{minor}: use {major}.{minor - 1} or older and "
        f"{command}, or export the model to ONNX."
    )


def untested_torch() -> str:
    """Return a warning about an untested version of torch; "" if it is tested or not installed."""
    try:
        found = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""
    numbers = re.match(r"(\d+)\.(\d+)", found)
    first, last = TESTED_TORCH
    if numbers and first <= (int(numbers[1]), int(numbers[2])) <= last:
        return ""
    names = " to ".join(f"{major}.{minor}" for major, minor in TESTED_TORCH)
    return (
        f"torch {printable(found)} is used as it is, but DIPPM was tested with {names}: models may "
        "be refused, or read differently"
    )


def check_torch(what: str, extra: str = "torch") -> None:
    """Check that torch is installed, and warn if its version is untested.

    Raises:
        FrameworkNotInstalledError: naming the extra.
    """
    Entry("pytorch", "", ("torch",), extra).check_installed(what)


@cache
def warn_of_untested_torch() -> None:
    """Warn once per process if the imported torch has an untested version."""
    if said := untested_torch():
        warnings.warn(UntestedVersionWarning(said), stacklevel=2)


RUNTIMES = {"onnx": "onnxruntime"}
"""Name of a frontend's framework in measurements, if it differs."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One frontend, not yet imported.

    Attributes:
        framework: name of the framework, as `framework=` takes it.
        module: module path of the frontend.
        needs: packages that its worker imports.
        extra: extra that installs these packages, as in `pip install "dippm[extra]"`.
        suffixes: usual suffixes of its files, for messages only; the content decides.
        is_plugin: whether it is from another distribution, and thus called in isolation.
    """

    framework: str
    module: str
    needs: tuple[str, ...] = ()
    extra: str = ""
    suffixes: tuple[str, ...] = ()
    is_plugin: bool = False

    def frontend(self) -> Frontend:
        """Import the frontend's module."""
        return cast(Frontend, importlib.import_module(self.module))

    def check_installed(self, what: str) -> None:
        """Check that the packages that this frontend needs are installed.

        Raises:
            FrameworkNotInstalledError: naming the extra.
        """
        missing = [name for name in self.needs if importlib.util.find_spec(name) is None]
        if not missing and "torch" in self.needs:
            warn_of_untested_torch()
        if missing:
            raise FrameworkNotInstalledError(
                f"{what} needs {', '.join(missing)}, which is not installed",
                install_hint(self.extra) if self.extra else f"pip install {' '.join(missing)}",
            )


BUILT_IN = (
    Entry("pytorch", "dippm.model.frontends.pytorch", ("torch",), "torch", (".pt", ".pth", ".pt2")),
    Entry(
        "keras", "dippm.model.frontends.keras", ("keras",), "tensorflow", (".keras", ".h5", ".hdf5")
    ),
    Entry(
        "tensorflow", "dippm.model.frontends.savedmodel", ("tensorflow",), "tensorflow", (".pb",)
    ),
    Entry(
        "paddle",
        "dippm.model.frontends.paddle",
        ("paddle", "paddle2onnx"),
        "paddle",
        (".json", ".pdmodel", ".pdiparams"),
    ),
    Entry("onnx", "dippm.model.frontends.onnx", ("onnx",), "", (".onnx",)),
)
_SUFFIXES = tuple(suffix for entry in BUILT_IN for suffix in entry.suffixes)
NAMED = Entry("pytorch", "dippm.model.frontends.named", ("torch",))

ALIASES = {
    "torch": "pytorch",
    "torchscript": "pytorch",
    "tf": "tensorflow",
    "savedmodel": "tensorflow",
    "paddlepaddle": "paddle",
}
ALSO_READS = {"tensorflow": ("tensorflow", "keras"), "keras": ("keras", "tensorflow")}


@cache
def entries() -> tuple[Entry, ...]:
    """Return all frontends: the built-in ones, then those of other distributions."""
    found = ((point.name, point.value.partition(":")[0]) for point in _plugins())
    return (*BUILT_IN, *(Entry(name, module, is_plugin=True) for name, module in found))


def built_in(framework: str) -> Entry:
    """Return the first built-in frontend of a framework."""
    return next(entry for entry in BUILT_IN if entry.framework == framework)


def find(source: str | Path, framework: str | None = None) -> Entry:
    """Return the frontend that reads a file, folder or name.

    Raises:
        ModelNotFoundError: if the path does not exist, naming similar ones.
        UnknownFormatError: if no frontend knows the content.
        ModelFileError: if the file is a truncated archive or not readable.
        UnknownNameError: if `framework` is unknown.
        FrameworkNotInstalledError: if its packages are missing.
    """
    wanted = _wanted(framework)
    if isinstance(source, str) and named.is_name(source):
        extra = named.EXTRAS[source.partition(":")[0]]
        replace(NAMED, extra=extra).check_installed(source)
        return NAMED
    path = Path(source)
    _check_openable(path)
    for entry in entries():
        if entry.framework in wanted and _accepts(entry, path):
            entry.check_installed(path.name)
            return entry
    unknown = _unknown_format(path, framework)
    unknown.hint += _faults_hint()
    raise unknown


def _wanted(framework: str | None) -> tuple[str, ...]:
    known = {entry.framework for entry in entries()}
    if framework is None:
        return tuple(known)
    name = ALIASES.get(framework.casefold(), framework.casefold())
    if name not in known:
        raise UnknownNameError.of("framework", framework, known)
    return ALSO_READS.get(name, (name,))


def _accepts(entry: Entry, path: Path) -> bool:
    if entry.is_plugin:
        return _plugin_accepts(entry.framework, entry.module, path)
    try:
        return bool(entry.frontend().accepts(path))
    except ModelFileError:
        raise
    except (OSError, ValueError, ImportError, NotImplementedError):  # the last: a damaged zip
        return False


def _check_openable(path: Path) -> None:
    """Refuse paths that no frontend can read: neither file nor folder, or without permission."""
    try:
        status = files.file_status(path)
    except ModelNotFoundError as error:
        if isinstance(error.__cause__, OSError) and error.__cause__.errno in (ENOENT, ENOTDIR):
            raise _not_found(path) from None
        raise
    if S_ISDIR(status.st_mode):
        files.entries(path)
    else:
        files.open_regular(path).close()


def _not_found(path: Path) -> ModelNotFoundError:
    folder = path.parent
    name = files.shown(path)
    script, colon, _ = path.name.rpartition(":")
    if colon and script.endswith(".py") and os.path.isfile(folder / script):
        known = unsupported_formats.SCRIPT
        return ModelNotFoundError(f"no such file: {name}; {script} is {known.words}", known.way)
    on_hub = _hub_hint(str(path))
    if _HUB_ADDRESS.match(str(path)):
        return ModelNotFoundError(f"no such file: {name}", on_hub)
    if not os.path.isdir(folder):
        hint = f"The folder {files.shown(folder)} does not exist either."
        if path.parts[0] in ADDRESSES:
            hint = "Nothing is downloaded: fetch the file, then give its path."
        return ModelNotFoundError(f"no such file: {name}", f"{hint} {on_hub}".strip())
    try:
        names = [entry.name for entry in files.entries(folder)]
    except ModelFileError:  # not readable, or too large to search
        return ModelNotFoundError(f"no such file: {name}", f"Check the path. {on_hub}".strip())
    close = get_close_matches(path.name, names, n=3, cutoff=0.4)
    if get_close_matches(path.name, close, n=1, cutoff=0.6):
        on_hub = ""
    if close:
        hint = f"In {files.shown(folder)}: {', '.join(close)}. Did you mean one of these?"
    else:
        hint = f"Nothing in {files.shown(folder)} has a similar name."
    return ModelNotFoundError(f"no such file: {name}", f"{hint} {on_hub}".strip())


def _hub_hint(text: str) -> str:
    """Return a hint on how to give a model of a library or the Hugging Face Hub, if this is one."""
    address = _HUB_ADDRESS.match(text)
    parts = address["name"].split("/") if address else text.split("/")
    found = _HUB_NAME.fullmatch("/".join(parts[:2]))
    if found is None or not (address or _may_be_a_name(text, len(parts))):
        return ""
    owner, model = found["owner"], found["model"]
    if owner == "timm":
        return f"A model of timm: timm:{model}."
    library = "" if owner else f" Of a library: timm:{model} or torchvision:{model}."
    return (
        f"Nothing is downloaded. A model of the Hugging Face Hub: `hf download {found[0]} "
        f"{unsupported_formats.CONFIG} --local-dir {model}`, then hf-config:{model}, or `dippm llm "
        f"{model}` to serve a language model.{library}"
    )


def _may_be_a_name(text: str, parts: int) -> bool:
    """Return whether this may name a model: at most an owner before it, and no file suffix."""
    is_of_timm = text.startswith("timm/")  # its names end like "resnet50.a1_in1k"
    is_bare = not Path(text).suffix[1:2].isalpha()
    return parts <= 2 and len(text) <= LONGEST_NAME and (is_bare or is_of_timm)


def _unknown_format(path: Path, framework: str | None) -> ModelFileError:
    known = unsupported_formats.identify(path)
    hint, content = known.way if known else FORMATS, known.words if known else _content(path)
    if framework is not None:
        others = [e.framework for e in entries() if _accepts(e, path)]
        looks = f"It looks like {others[0]}: leave framework= out. " if others else ""
        return UnknownFormatError(
            f"{path.name} is not a {framework} model: {content}", looks + hint
        )
    if path.is_file() and is_broken(path):
        return ModelFileError(
            f"{path.name}: a truncated or damaged archive (PyTorch and Keras files are zip "
            "archives; the list of members at its end is missing)",
            "Copy or write the file again.",
        )
    meant = [e.framework for e in entries() if path.suffix.lower() in e.suffixes]
    ending = f"; by its suffix it should be {meant[0]}" if meant and not known else ""
    return UnknownFormatError(f"{path.name or path}: {content}{ending}", hint)


def _content(path: Path) -> str:
    """Describe in a few words the content of a file in an unknown format."""
    if path.is_dir():
        inside = files.entries(path)
        if not inside:
            return "an empty folder"
        odd = [p for p in inside if p.suffix.lower() in _SUFFIXES and not files.is_regular(p)]
        note = f"; {odd[0].name} in it is {_kind_of(odd[0])}, not a file" if odd else ""
        return f"a folder with {len(inside)} entries and no saved_model.pb{note}"
    size = path.stat().st_size
    if size == 0:
        return "an empty file"
    start = files.beginning(path, 8)
    kinds = {
        b"PK\x03\x04": "a zip archive of unknown or damaged content",
        b"\x89HDF": "an HDF5 file",
        b"version ": "text that looks like a Git LFS pointer: fetch the real file",
    }
    known = next((words for magic, words in kinds.items() if start.startswith(magic)), "")
    return known or f"content of unknown format (first bytes {start.hex(' ')}, {size:,} bytes)"


def _kind_of(path: Path) -> str:
    try:
        return files.kind_of(files.file_status(path).st_mode)
    except ModelFileError:
        return "a link to nothing"


def object_framework(source: Any) -> str | None:
    """Return the framework that an object in memory belongs to, without importing any."""
    checks = (
        ("torch.jit", "ScriptModule", "pytorch script"),
        ("torch.nn", "Module", "pytorch"),
        ("torch.export", "ExportedProgram", "pytorch program"),
        ("onnx", "ModelProto", "onnx"),
        ("keras", "Model", "keras"),
    )
    for module_name, class_name, framework in checks:
        kind = getattr(sys.modules.get(module_name), class_name, None)
        if isinstance(kind, type) and isinstance(source, kind):
            return framework
    return None


# Frontends of other distributions, called in isolation.

PLUGIN_GROUP = "dippm.frontends"
PLUGIN_LIMIT_S = 20.0
"""Time limit of a call; `accepts` must be cheap, so this is generous for a slow disk."""

_faults: dict[str, str] = {}
_hung: set[str] = set()


def _plugins() -> tuple[EntryPoint, ...]:
    """Return the installed entry points, sorted by name."""
    try:
        return tuple(sorted(entry_points(group=PLUGIN_GROUP), key=lambda point: point.name))
    except Exception as error:  # hand-written metadata may be invalid
        _blame_plugin(
            "entry points", f"the metadata of a package cannot be read ({_error_words(error)})"
        )
        return ()


def _plugin_accepts(name: str, module: str, path: Path) -> bool:
    """Return whether a plug-in claims a file; false for a broken plug-in.

    Raises:
        ModelFileError: if the plug-in itself reports an error in the file.
    """
    try:
        claimed: bool = _ask_plugin(module, lambda frontend: bool(frontend.accepts(path)))
    except ModelFileError:
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        _blame_plugin(f"{name} ({module})", _error_words(error))
        return False
    _faults.pop(f"{name} ({module})", None)
    return claimed


def plugin_fault(module: str) -> str:
    """Return the fault of a plug-in; "" if it can be imported and has all required names."""
    try:
        missing = _ask_plugin(
            module, lambda m: [n for n in ("accepts", "load") if not callable(getattr(m, n, None))]
        )
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        return _error_words(error)
    return f"it has no {' and no '.join(missing)}" if missing else ""


def _faults_hint() -> str:
    """Return a sentence about plug-ins that failed; "" if none did."""
    if not _faults:
        return ""
    listed = "; ".join(f"{who}: {why}" for who, why in _faults.items())
    return f" A plug-in that might read it is broken ({listed}); see `dippm doctor`."


def _ask_plugin(module: str, question: Callable[[Any], Any]) -> Any:
    """Return what a question about a plug-in's module answers, on a thread with a time limit.

    Raises:
        TimeoutError: if it does not answer in time, or did not before.
        BaseException: whatever the plug-in raises.
    """
    if module in _hung:
        raise TimeoutError("it did not answer before")
    answer: list[Any] = []
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            answer.append(question(importlib.import_module(module)))
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=ask, name=f"plug-in {module}", daemon=True)
    thread.start()
    thread.join(PLUGIN_LIMIT_S)
    if thread.is_alive():
        _hung.add(module)
        raise TimeoutError(f"it did not answer within {PLUGIN_LIMIT_S:g} s")
    if raised:
        raise raised[0]
    return answer[0]


def _blame_plugin(who: str, why: str) -> None:
    if _faults.get(who) != why:
        _faults[who] = why
        warnings.warn(PluginWarning(f"the plug-in {who} is broken: {why}"), stacklevel=2)


def _error_words(error: BaseException) -> str:
    try:
        text = str(error)
    except Exception:
        text = ""
    return f"{type(error).__name__}: {text}".rstrip(": ").partition("\n")[0][:300]
