"""One model of each module of timm: the smallest name list would favour nobody, so the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch

from dippm.model.vision_operators import declare_vision_operators
from tests.zoo.case import Case
from tests.zoo.torch_macs import flop_counter


def cases() -> Iterator[Case]:
    """Yield the first model of each module, by name and with its own input."""
    declare_vision_operators()
    import timm

    for module in timm.list_modules():
        names = timm.list_models(module=module)
        if names:
            name = names[0]
            yield Case(name, lambda _, name=name: f"timm:{name}", macs=flop_counter(_maker(name)))


def _maker(name: str) -> Callable[[], torch.nn.Module]:
    def make() -> torch.nn.Module:
        import timm

        module: torch.nn.Module = timm.create_model(name, pretrained=False)
        return module

    return make
