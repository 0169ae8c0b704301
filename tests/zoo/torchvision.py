"""Every model that torchvision lists, by name and with its own input."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator

import torch

from dippm.model.vision_operators import declare_vision_operators
from tests.zoo.case import Case
from tests.zoo.torch_macs import flop_counter


def cases() -> Iterator[Case]:
    """Yield one case for each name."""
    declare_vision_operators()
    import torchvision

    detectors = torchvision.models.list_models(torchvision.models.detection)
    for name in torchvision.models.list_models():
        given = {"images.0": ()} if name in detectors else {}
        count = flop_counter(_maker(name), given=given)
        yield Case(name, lambda _, name=name: f"torchvision:{name}", macs=count)


def _maker(name: str) -> Callable[[], torch.nn.Module]:
    def make() -> torch.nn.Module:
        import torchvision

        builder = torchvision.models.get_model_builder(name)
        takes = inspect.signature(builder).parameters
        extra = {"weights_backbone": None} if "weights_backbone" in takes else {}
        module: torch.nn.Module = builder(weights=None, **extra)
        return module

    return make
