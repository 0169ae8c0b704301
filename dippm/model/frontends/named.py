"""Models by name: `timm:NAME`, `torchvision:NAME`, `hf-config:FOLDER`, `dippm:NAME`.

They are built without weights, and nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dippm.base import files
from dippm.errors import (
    FrameworkNotInstalledError,
    ModelFileError,
    ModelNotFoundError,
    UnknownNameError,
    UnsafeModelError,
)
from dippm.model.frontends.containers import objects_in
from dippm.model.frontends.frontend import InputSpec
from dippm.model.frontends.torch.input_shapes import FRAMES
from dippm.model.frontends.torch.usual_inputs import chosen
from dippm.model.frontends.worker import step
from dippm.model.frontends.worker_errors import find_memory_error
from dippm.model.relax.raw_graph import RawGraph
from dippm.model.vision_operators import declare_vision_operators

if TYPE_CHECKING:
    import torch

NAME = "named"
FLOW_SIZE = (520, 960)
EXTRAS = {"timm": "timm", "torchvision": "timm", "hf-config": "hf", "dippm": "torch"}
KERNEL_KEYS = frozenset(
    f"{prefix}{kind}_implementation{suffix}"
    for prefix in ("", "_")
    for kind in ("attn", "experts")
    for suffix in ("", "_internal")
)
KERNELS = frozenset(
    """
    eager sdpa flex_attention flash_attention_2 flash_attention_3 batched_mm grouped_mm
    """.split()
)
"""Implementations of attention and experts that transformers contains itself."""

TIMM_KEYS = frozenset(("architecture", "backbone"))
WEIGHT_KEYS = frozenset(("checkpoint_path", "pretrained_cfg_overlay", "pretrained_strict"))
LIBRARIES = {
    "timm": "timm",
    "torchvision": "torchvision",
    "hf-config": "transformers",
    "dippm": "torch",
}
OF_LIBRARY = {"transformers": "hf", "torchvision": "timm"}
"""Extra that installs the library of a network, for networks that we build with one."""


def is_name(source: str) -> bool:
    """Return whether a source is the name of a model."""
    prefix, colon, rest = source.partition(":")
    return bool(colon and rest) and prefix in LIBRARIES


def prepare() -> None:
    """Import the libraries of every conversion, while the caller still works."""
    from dippm.model.frontends import pytorch

    pytorch.prepare()


def load(path: Path, inputs: InputSpec, *, trust: bool) -> RawGraph:
    """Build the named model without weights and convert it.

    Raises:
        UnknownNameError: if the library has no model of this name.
        FrameworkNotInstalledError: if the library is not installed.
        ModelFileError: if a configuration cannot be read; also from the conversion.
    """
    from dippm.model.frontends import pytorch

    step(f"building {path}")
    built = build(str(path), "meta")
    if inputs.shapes:
        return pytorch.convert_module(built.module, inputs)
    graph = pytorch.convert_module(built.module, InputSpec(built.shapes))
    return replace(graph, notes=(*built.notes, *graph.notes))


@dataclass(frozen=True, slots=True)
class NamedModel:
    """A model that was built by name.

    Attributes:
        module: the model in evaluation mode.
        shapes: shapes of its inputs without the batch; empty to infer them from the module.
        notes: remarks on the chosen inputs.
    """

    module: torch.nn.Module
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def build(source: str, device: str) -> NamedModel:
    """Build the named model on a device.

    Args:
        source: name of the model, such as "timm:resnet50".
        device: "meta" for a model without weights; on others they are random, never downloaded.

    Raises:
        UnknownNameError: if the library has no model of this name.
        FrameworkNotInstalledError: if the library is not installed.
        ModelFileError: if a configuration cannot be read.
    """
    import torch

    prefix, _, name = source.partition(":")
    library = LIBRARIES[prefix]
    if importlib.util.find_spec(library) is None:
        raise FrameworkNotInstalledError(
            f"{source} needs {library}, which is not installed",
            f'pip install "dippm[{EXTRAS[prefix]}]"',
        )
    return BUILDERS[prefix](name, torch.device(device))


def config_file(name: str) -> Path:
    """Return the path of the configuration that an `hf-config:` source names."""
    path = Path(os.path.expanduser(name))  # `Path.expanduser` raises for unknown users
    return path / "config.json" if os.path.isdir(path) else path


def _timm(name: str, device: torch.device) -> NamedModel:
    declare_vision_operators()
    import timm

    if not timm.is_model(name.partition(".")[0]):
        raise _unknown("timm", name, timm.list_models())
    return NamedModel(_build_on(lambda: timm.create_model(name, pretrained=False), device))


def _torchvision(name: str, device: torch.device) -> NamedModel:
    declare_vision_operators()
    import torchvision

    known = torchvision.models.list_models()
    if name.casefold() not in known:
        raise _unknown("torchvision", name, known)
    builder = torchvision.models.get_model_builder(name)

    def make() -> torch.nn.Module:
        takes = inspect.signature(builder).parameters
        extra = {k: None for k in ("weights_backbone",) if k in takes}  # the default would download
        return builder(weights=None, **extra)  # type: ignore[no-any-return]

    module = _build_on(make, device)
    size = getattr(module, "image_size", None)
    if isinstance(size, int):  # the size that it is built for
        return NamedModel(module, {"": (3, size, size)})
    weights = next(iter(torchvision.models.get_model_weights(builder)), None)
    shapes, notes = _of_preset(weights) if weights else ({}, ())
    return NamedModel(module, shapes, notes)


def _of_preset(weights: Any) -> tuple[dict[str, tuple[int, ...]], tuple[str, ...]]:
    """Return the inputs that fit the preprocessing of the published weights."""
    preset = weights.transforms()
    kind = type(preset).__name__
    if kind == "OpticalFlow":
        shape = (3, *FLOW_SIZE)
        return {"image1": shape, "image2": shape}, (chosen("two images", shape),)
    cropped, resized = getattr(preset, "crop_size", None), getattr(preset, "resize_size", None)
    size = cropped or resized
    if not isinstance(size, list | tuple) or not size:
        return {}, ()
    sizes = tuple(size) * 2 if len(size) == 1 else tuple(size)
    if kind == "VideoClassification":
        shape = (3, max(FRAMES, int(weights.meta.get("min_temporal_size", 1))), *sizes)
        return {"": shape}, (chosen("a clip", shape, "its weights leave the frames open"),)
    shape = (3, *sizes)
    if cropped:
        return {"": shape}, ()
    return {"": shape}, (chosen("a square image", shape, "its weights fix the shorter side"),)


def _hf_config(name: str, device: torch.device) -> NamedModel:
    file = config_file(name)
    if not files.is_regular(file):
        raise ModelNotFoundError(
            f"hf-config: no configuration at {file}",
            "Give a folder with a config.json, or the file itself. Nothing is downloaded: "
            "`hf download NAME config.json --local-dir FOLDER` fetches one from the Hub.",
        )
    declare_vision_operators()  # transformers imports torchvision if it is installed
    import transformers

    cleaned = file
    try:
        document = _without_code(json.loads(file.read_text()), file)
        with tempfile.TemporaryDirectory() as folder:
            cleaned = Path(folder) / "config.json"
            cleaned.write_text(json.dumps(document))
            config = transformers.AutoConfig.from_pretrained(
                str(cleaned), local_files_only=True, trust_remote_code=False
            )
    except UnsafeModelError:
        raise
    except Exception as error:  # of any kind: transformers checks the fields itself
        words = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ModelFileError(
            f"{file} is not a configuration that transformers knows: "
            f"{words.replace(str(cleaned), file.name)[:300]}",
            "It needs a known model_type; custom code is never run.",
        ) from error
    config.use_cache = False
    try:
        return NamedModel(_build_on(lambda: _architecture(transformers, config), device))
    except MemoryError:
        raise
    except (ArithmeticError, TypeError, ValueError, LookupError, RuntimeError) as error:
        if find_memory_error(error) is not None:
            raise
        words = (str(error).strip().splitlines() or [""])[0][:300]
        raise ModelFileError(
            f"transformers cannot build the model of {file}: {type(error).__name__}: {words}",
            "Check the sizes in the configuration.",
        ) from error


def _without_code(document: Any, file: Path) -> Any:
    """Return a configuration without custom code; refuse references to code or weights elsewhere.

    A configuration can make transformers fetch attention kernels from a hub repository, and timm
    load a model from a repository or a folder.

    Raises:
        UnsafeModelError: naming the code or weights that would be loaded.
    """
    for item in objects_in(document):
        item.pop("auto_map", None)
        for key, value in item.items():
            if key in KERNEL_KEYS:
                given = list(value.values()) if isinstance(value, dict) else [value]
                foreign = [one for one in given if one is not None and one not in KERNELS]
            elif key in TIMM_KEYS:
                foreign = [value] if isinstance(value, str) and not _is_timm_name(value) else []
            else:
                foreign = [value] if key in WEIGHT_KEYS and value else []
            if foreign:
                raise UnsafeModelError(
                    f"{files.shown(file)} would load {key} = {str(foreign[0])[:100]!r}",
                    f"Remove {key} from the configuration; graphs do not depend on weights.",
                )
    return document


def _is_timm_name(value: str) -> bool:
    """Return whether this is the name of a model, also "user/model", and not a location."""
    return ":" not in value and "\\" not in value and not value.startswith(("/", ".", "~"))


def _architecture(transformers: Any, config: Any) -> torch.nn.Module:
    """Build the architecture that the configuration names, or the bare model if it names none."""
    for name in config.architectures or ():
        kind: Any = getattr(transformers, name, None)
        if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel):
            built: torch.nn.Module = getattr(kind, "_from_config")(config)  # noqa: B009
            return built
    return transformers.AutoModel.from_config(config, trust_remote_code=False)  # type: ignore[no-any-return]


def _build_published(name: str, device: torch.device) -> NamedModel:
    from dippm.model.networks.published import PUBLISHED

    found = PUBLISHED.get(name.casefold())
    if found is None:
        raise UnknownNameError.of("network", name, PUBLISHED)
    if found.library and importlib.util.find_spec(found.library) is None:
        raise FrameworkNotInstalledError(
            f"dippm:{name} needs {found.library}, which is not installed",
            f'pip install "dippm[{OF_LIBRARY[found.library]}]"',
        )
    declare_vision_operators()
    return NamedModel(_build_on(found.make, device), found.shapes)


BUILDERS: dict[str, Callable[[str, torch.device], NamedModel]] = {
    "timm": _timm,
    "torchvision": _torchvision,
    "hf-config": _hf_config,
    "dippm": _build_published,
}


def _build_on(make: Callable[[], torch.nn.Module], device: torch.device) -> torch.nn.Module:
    """Build on a device; in real memory rather than on "meta" if the constructor reads numbers."""
    from dippm.model.frontends.torch.constant_folding import KeepIntegerData

    try:
        with device, KeepIntegerData():
            return make().eval()
    except (RuntimeError, NotImplementedError):
        if device.type != "meta":
            raise
        return make().eval()


def _unknown(library: str, name: str, known: Iterable[str]) -> UnknownNameError:
    hint = f"{library}.list_models() lists all." if library == "timm" else ""
    return UnknownNameError.of(f"{library} model", name, known, hint)
