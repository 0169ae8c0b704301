"""One model of each `model_type` of transformers that builds from its default configuration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import torch

from dippm.model.vision_operators import declare_vision_operators
from tests.zoo.case import Case, NotBuiltError
from tests.zoo.torch_macs import flop_counter, on_meta


def cases() -> Iterator[Case]:
    """Yield one case for each model type with a bare model, from a folder with its config.json."""
    declare_vision_operators()
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    for model_type in sorted(MODEL_MAPPING_NAMES):
        make = _maker(model_type)
        macs = flop_counter(make, traced=True)
        own_error = partial(_own_error, make)
        yield Case(model_type, _writer(model_type, make), macs=macs, own_error=own_error)


def _own_error(make: Callable[[], torch.nn.Module]) -> str:
    """Return what the library says of the first line of its own inputs, if it cannot run them."""
    module = on_meta(make)
    given = {name: tensor.to("meta") for name, tensor in module.dummy_inputs.items()}  # type: ignore[union-attr, operator]
    try:
        with torch.no_grad():
            module(**given)
    except Exception as error:
        return (str(error).splitlines() or [""])[0]
    return ""


def _maker(model_type: str) -> Callable[[], torch.nn.Module]:
    def make() -> torch.nn.Module:
        import transformers

        config = transformers.AutoConfig.for_model(model_type)
        config.use_cache = False
        module: torch.nn.Module = transformers.AutoModel.from_config(config)
        return module

    return make


def _writer(model_type: str, make: Callable[[], torch.nn.Module]) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        import transformers

        on_meta(make)  # whether the library itself can
        try:
            transformers.AutoConfig.for_model(model_type).save_pretrained(folder)
        except Exception as error:
            raise NotBuiltError(f"{type(error).__name__}: {error}") from error
        return f"hf-config:{folder}"

    return write
