"""Load a model as a runnable module with its inputs on the device."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dippm.errors import ConditionsError
from dippm.model.frontends import InputSpec

if TYPE_CHECKING:
    import torch

    from dippm.model.frontends.torch.export import AcceptedInputs


@dataclass(frozen=True, slots=True)
class Subject:
    """The model to measure.

    Attributes:
        name: file name, specification or class.
        module: module on the device, in evaluation mode.
        inputs: inputs on the device, batch included, in the order of `forward`.
    """

    name: str
    module: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]


def load_subject(
    source: Any, inputs: InputSpec, *, batch: int, device: torch.device, trust: bool = False
) -> Subject:
    """Build or load a model and make random inputs for it.

    Args:
        source: a module, a PyTorch file, or a name such as "timm:resnet50".
        inputs: shapes without the batch; the model's own if empty.
        batch: number of samples.
        device: device to run on.
        trust: whether a file may run code while it is read.

    Raises:
        ModelFileError: if the file cannot be read or the inputs do not fit.
        UnsafeModelError: if reading it could run code and `trust` is false.
    """
    import torch

    from dippm.model.frontends.torch.export import accepted_inputs

    module, own_shapes, name = _module(source, trust=trust, device=device)
    module = module.to(device)
    with contextlib.suppress(NotImplementedError):  # exported programs have no modes
        module.eval()
    spec = inputs if inputs.shapes else InputSpec(own_shapes)
    accepted = accepted_inputs(module, spec, batch)
    generator = torch.Generator(device).manual_seed(0)
    tensors = {n: _random(t, device, generator) for n, t in accepted.tensors.items()}
    return Subject(name, _by_position(module, accepted, list(tensors)), tuple(tensors.values()))


def _module(
    source: Any, *, trust: bool, device: torch.device
) -> tuple[Any, Mapping[str, Any], str]:
    import torch

    from dippm.model.frontends import named

    if isinstance(source, torch.nn.Module):
        return source, {}, type(source).__name__
    if named.is_name(str(source)):
        built = named.build(str(source), str(device))
        return built.module, built.shapes, str(source)
    path = Path(source).expanduser()
    return _from_file(path, trust=trust), {}, path.name


def _from_file(path: Path, *, trust: bool) -> Any:
    import torch

    from dippm.model.frontends import pytorch
    from dippm.model.frontends.torch.archive import archive_kind, load_pickled
    from dippm.model.vision_operators import declare_vision_operators

    kind = archive_kind(path)
    if kind in ("torchscript", "pt2"):
        pytorch.require_trust(path, kind, trust=trust)
        if kind == "pt2":
            return torch.export.load(path).module()
        return torch.jit.load(path, map_location="cpu")
    declare_vision_operators()
    return load_pickled(path, trust=trust, device="cpu")


def _random(tensor: torch.Tensor, device: torch.device, generator: torch.Generator) -> Any:
    """Return normal random numbers; integers are 0 or 1, valid in every vocabulary and mask."""
    import torch

    if tensor.is_floating_point():
        return torch.randn(tensor.shape, dtype=tensor.dtype, device=device, generator=generator)
    return torch.randint(0, 2, tensor.shape, dtype=tensor.dtype, device=device, generator=generator)


def _by_position(
    module: torch.nn.Module, accepted: AcceptedInputs, names: list[str]
) -> torch.nn.Module:
    """Return a module that takes its tensors by position, whatever the arguments of `forward`."""
    import torch

    if names == [""]:
        return module

    class ByPosition(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, *tensors: torch.Tensor) -> Any:
            args, kwargs = accepted.call.arrange(dict(zip(names, tensors, strict=True)))
            return self.module(*args, **kwargs)

    return ByPosition()


def device_of(name: str | None) -> torch.device:
    """Return the torch device of a name; None is the first GPU, or the CPU without one.

    Raises:
        ConditionsError: if this machine has no such device.
    """
    import torch

    if name is None:
        name = "cuda:0" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name.strip().casefold())
    except RuntimeError:
        device = None
    if device is None or device.type not in ("cuda", "cpu"):
        raise ConditionsError(
            f"{name!r} is not a device of this machine", "Give cuda:0, cuda:1, ... or cpu."
        )
    if device.type == "cpu":
        return device
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if (device.index or 0) >= count:
        found = f"{count} GPU{'s' if count != 1 else ''}" if count else "no CUDA GPU"
        raise ConditionsError(
            f"torch sees {found} here, not {name}",
            "`dippm doctor` shows what works; device=cpu measures on the CPU; `dippm predict` "
            "needs no GPU.",
        )
    return torch.device("cuda", device.index or 0)
