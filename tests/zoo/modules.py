"""Cases from plain modules: how to build each, and the inputs that its users give it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from tests.zoo.case import Case, NotBuiltError
from tests.zoo.torch_macs import flop_counter, on_meta

Given = Mapping[str, Any]
"""Sizes without the batch by parameter of `forward`, as `input=` takes them."""


def module_case(
    name: str, make: Callable[[], torch.nn.Module], given: Given, *, without_data: bool = False
) -> Case:
    """Return the case of a module, counted by torch.

    Args:
        name: unique in its suite.
        make: builds it.
        given: its inputs.
        without_data: build it on the meta device; its weights would fill the memory.
    """

    def source(_: Path) -> torch.nn.Module:
        if without_data:
            return on_meta(make)
        try:
            return make().eval()
        except Exception as error:
            raise NotBuiltError(f"{type(error).__name__}: {error}") from error

    by_name = {} if "" in given else given
    return Case(name, source, input=dict(given), macs=flop_counter(make, given=by_name))
