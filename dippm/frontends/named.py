"""Models by name: `timm:NAME`, `torchvision:NAME`, `hf-config:FOLDER`. No weights, no download."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dippm import files
from dippm.errors import (
    FrameworkNotInstalledError,
    ModelFileError,
    ModelNotFoundError,
    UnknownNameError,
)
from dippm.frontends.frontend import InputSpec
from dippm.frontends.vision_operators import declare_vision_operators
from dippm.frontends.worker import step
from dippm.relax.raw_graph import RawGraph

if TYPE_CHECKING:
    import torch

NAME = "named"
EXTRAS = {"timm": "timm", "torchvision": "timm", "hf-config": "hf"}
LIBRARIES = {"timm": "timm", "torchvision": "torchvision", "hf-config": "transformers"}


def is_name(source: str) -> bool:
    """Return whether a source is a model by name."""
    prefix, colon, rest = source.partition(":")
    return bool(colon and rest) and prefix in LIBRARIES


def prepare() -> None:
    """Import what every conversion needs, while the caller still works."""
    from dippm.frontends import pytorch

    pytorch.prepare()


def load(path: Path, inputs: InputSpec, *, trust: bool) -> RawGraph:
    """Build the named model without weights and convert it.

    Raises:
        UnknownNameError: if the library has no model of this name.
        FrameworkNotInstalledError: if the library is not installed.
        ModelFileError: if a configuration cannot be read; also from the conversion.
    """
    from dippm.frontends import pytorch

    step(f"building {path}")
    module, own_shapes = build(str(path), "meta")
    return pytorch.convert_module(module, inputs if inputs.shapes else InputSpec(own_shapes))


def build(source: str, device: str) -> tuple[torch.nn.Module, dict[str, tuple[int, ...]]]:
    """Build the named model on a device, in evaluation mode, with the input shape that it states.

    Args:
        source: for instance "timm:resnet50".
        device: "meta" for a model without weights; elsewhere they are random, never downloaded.

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
    """Return the configuration that an `hf-config:` source points to."""
    path = Path(os.path.expanduser(name))  # the method of Path refuses unknown users
    return path / "config.json" if os.path.isdir(path) else path


_Built = tuple["torch.nn.Module", dict[str, tuple[int, ...]]]


def _timm(name: str, device: torch.device) -> _Built:
    declare_vision_operators()
    import timm

    if not timm.is_model(name.partition(".")[0]):
        raise _unknown("timm", name, timm.list_models())
    return _built(lambda: timm.create_model(name, pretrained=False), device), {}


def _torchvision(name: str, device: torch.device) -> _Built:
    declare_vision_operators()
    import torchvision

    known = torchvision.models.list_models()
    if name.casefold() not in known:
        raise _unknown("torchvision", name, known)
    builder = torchvision.models.get_model_builder(name)

    def make() -> torch.nn.Module:
        takes = inspect.signature(builder).parameters
        extra = {k: None for k in ("weights_backbone",) if k in takes}  # its default downloads
        return builder(weights=None, **extra)  # type: ignore[no-any-return]

    module = _built(make, device)
    weights = torchvision.models.get_model_weights(builder)
    return module, _preset_shape(next(iter(weights), None))


def _preset_shape(weights: Any) -> dict[str, tuple[int, ...]]:
    """Return the input shape of the preprocessing that published weights come with."""
    size = getattr(weights.transforms(), "crop_size", None) if weights else None
    if not isinstance(size, list | tuple) or not size:
        return {}
    sizes = tuple(size) * 2 if len(size) == 1 else tuple(size)
    frames = weights.meta.get("min_temporal_size")
    return {"": (3, int(frames), *sizes) if frames else (3, *sizes)}


def _hf_config(name: str, device: torch.device) -> _Built:
    file = config_file(name)
    if not files.is_regular(file):
        raise ModelNotFoundError(
            f"hf-config: no configuration at {file}",
            "Give a folder with a config.json, or the file itself. Nothing is downloaded.",
        )
    declare_vision_operators()  # transformers imports torchvision where it finds it
    import transformers

    try:
        json.loads(file.read_text())
        config = transformers.AutoConfig.from_pretrained(
            str(file), local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError) as error:
        words = str(error).strip().splitlines()[0][:300]
        raise ModelFileError(
            f"{file} is not a configuration that transformers knows: {words}",
            "It needs a known model_type; custom code is never run.",
        ) from error
    config.use_cache = False
    module = _built(lambda: _architecture(transformers, config), device)
    first = getattr(module, "main_input_name", "input_ids")
    size = getattr(config, "image_size", None)
    if first == "pixel_values" and isinstance(size, int):
        return module, {"": (getattr(config, "num_channels", 3), size, size)}
    return module, {}


def _architecture(transformers: Any, config: Any) -> torch.nn.Module:
    """Build the architecture that the configuration names, the bare model if it names none."""
    for name in config.architectures or ():
        kind: Any = getattr(transformers, name, None)
        if isinstance(kind, type) and issubclass(kind, transformers.PreTrainedModel):
            built: torch.nn.Module = getattr(kind, "_from_config")(config)  # noqa: B009
            return built
    return transformers.AutoModel.from_config(config)  # type: ignore[no-any-return]


BUILDERS: dict[str, Callable[[str, torch.device], _Built]] = {
    "timm": _timm,
    "torchvision": _torchvision,
    "hf-config": _hf_config,
}


def _built(make: Callable[[], torch.nn.Module], device: torch.device) -> torch.nn.Module:
    """Build on a device; constructors that read numbers back get real memory instead of "meta"."""
    try:
        with device:
            return make().eval()
    except (RuntimeError, NotImplementedError):
        if device.type != "meta":
            raise
        return make().eval()


def _unknown(library: str, name: str, known: Iterable[str]) -> UnknownNameError:
    hint = f"{library}.list_models() lists all." if library == "timm" else ""
    return UnknownNameError.of(f"{library} model", name, known, hint)
