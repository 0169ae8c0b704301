"""Multiply-accumulates of a torch module by torch's own flop counter, without data."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache, partial
from math import isqrt, prod
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export._trace import _compiling_state_context
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from dippm.model.frontends.torch.constant_folding import ConstantFolding
from tests.zoo.case import Inputs, NotBuiltError
from tests.zoo.torch_detections import EveryBox

GRIDS = ("grid_thw", "image_grid_thw")
MOST_PARAMETERS = 300_000_000
"""More are not run with data."""


@lru_cache(maxsize=1)
def on_meta(make: Callable[[], torch.nn.Module]) -> torch.nn.Module:
    """Build a module without data; with real data first where its constructor reads numbers.

    The last one is kept: whoever asks whether it can be built also counts it.

    Raises:
        NotBuiltError: if the library cannot build it either way.
    """
    try:
        with torch.device("meta"):
            return make().eval()
    except Exception:
        pass
    try:
        return make().eval().to("meta")
    except Exception as error:
        raise NotBuiltError(f"{type(error).__name__}: {error}") from error


def flop_counter(
    make: Callable[[], torch.nn.Module],
    *,
    traced: bool = False,
    given: Mapping[str, Any] | None = None,
) -> Callable[[Inputs], int | None]:
    """Return what counts the MACs of a module for inputs of given shapes.

    A module that does not run without data is counted on fake tensors, as its exported program, or
    with data.

    Args:
        make: builds it.
        traced: begin with fake tensors; language models look at the values of their mask, unless
            they are traced.
        given: what `input=` was given, if its names lead into tuples and dictionaries.
    """

    def count(inputs: Inputs) -> int | None:
        module: torch.nn.Module = on_meta(make)
        config = getattr(module, "config", None)
        if getattr(config, "use_cache", False):
            module.config.use_cache = False  # type: ignore[union-attr]
        args, kwargs = _arguments(module, inputs, given or {})
        if grids := _square_grids(module, inputs):
            return _on_numbers(module, args, {**kwargs, **grids})
        if numbers := _made_by_processors(module, inputs):
            return _moved_numbers(module, args, {**kwargs, **numbers})
        ways = (_counted, _on_fakes, _on_fakes_of_a_cpu, _exported)
        attempts = [partial(way, module, args, kwargs) for way in (ways[1:] if traced else ways)]
        if sum(parameter.numel() for parameter in module.parameters()) < MOST_PARAMETERS:
            with_data = _arguments(module, inputs, given or {}, "cpu")
            attempts.append(lambda: _with_data(make().eval(), *with_data))
        if masks := _without_padding(module, inputs):
            attempts.append(partial(_moved_numbers, module, args, {**kwargs, **masks}))
        for attempt in attempts:
            try:
                return attempt()
            except Exception:
                continue
        return None

    return count


def _counted(module: Any, args: Any, kwargs: Any) -> int:
    with FlopCounterMode(display=False, custom_mapping=_formulas()) as counter, torch.no_grad():
        module(*args, **kwargs)
    return counter.get_total_flops() // 2


def _with_data(module: torch.nn.Module, args: Any, kwargs: Any) -> int:
    # the counter has no formula for the CPU's fused attention
    with sdpa_kernel(SDPBackend.MATH), EveryBox(module):
        return _counted(module, args, kwargs)


def _on_fakes(module: Any, args: Any, kwargs: Any) -> int:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode, _compiling_state_context():
        args = tuple(map(mode.from_tensor, args))
        kwargs = {name: mode.from_tensor(tensor) for name, tensor in kwargs.items()}
        with torch.device("meta"):
            return _counted(module, args, kwargs)


def _on_fakes_of_a_cpu(module: Any, args: Any, kwargs: Any) -> int:
    """Count where tensors are made that no device is given for."""

    def faked(tensor: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(tensor, device="cpu")

    with FakeTensorMode(allow_non_fake_inputs=True), _compiling_state_context():
        own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        fakes = {name: faked(tensor) for name, tensor in own.items()}
        call = partial(functional_call, module, fakes)
        given = {name: faked(tensor) for name, tensor in kwargs.items()}
        return _counted(call, (tuple(map(faked, args)), given), {})


def _on_numbers(module: Any, args: Any, kwargs: Any) -> int:
    """Count where sizes follow from numbers that are given."""
    with torch.device("meta"), ConstantFolding(), _compiling_state_context():
        return _counted(module, args, kwargs)


def _square_grids(module: torch.nn.Module, inputs: Inputs) -> dict[str, torch.Tensor]:
    """Return the grid of one square image for a tower that takes patches in one row."""
    taken = inspect.signature(module.forward).parameters
    names = [name for name in GRIDS if name in taken and taken[name].default is inspect._empty]
    if not names:
        return {}
    side = isqrt(inputs[0].shape[0])
    merged = {"merge_sizes": torch.tensor([2])} if "merge_sizes" in taken else {}
    return {names[0]: torch.tensor([[1, side, side]]), **merged}


def _moved_numbers(module: Any, args: Any, kwargs: Any) -> int:
    """Count where sizes follow from numbers that a module moves to its device."""
    with torch.device("meta"), ConstantFolding(everywhere=True), _compiling_state_context():
        return _counted(module, args, kwargs)


def _made_by_processors(module: torch.nn.Module, inputs: Inputs) -> dict[str, torch.Tensor]:
    """Return the numbers beside the patches of one square image, or beside steps of sound."""
    taken = inspect.signature(module.forward).parameters
    sizes = {tensor.name: tensor.shape for tensor in inputs}
    image, sound = sizes.get("pixel_values", ()), sizes.get("input_features", ())
    if "spatial_shapes" in taken and len(image) == 3:
        side = isqrt(image[1])
        masks = {"pixel_attention_mask": torch.ones(1, image[1], dtype=torch.int64)}
        return {"spatial_shapes": torch.tensor([[side, side]]), **masks}
    if "target_sizes" in taken and len(image) == 4:
        side = isqrt(image[3] // image[2])
        return {"target_sizes": torch.tensor([[side, side]])}
    mask = taken.get("input_features_mask")
    if mask is not None and mask.default is inspect._empty and sound and mask.name not in sizes:
        return {mask.name: torch.ones(1, max(sound), dtype=torch.int64)}
    return {}


def _without_padding(module: torch.nn.Module, inputs: Inputs) -> dict[str, torch.Tensor]:
    """Return masks for the texts of a module that looks for padding in them."""
    taken = inspect.signature(module.forward).parameters
    found = {}
    for tensor in inputs:
        name = tensor.name.replace("input_ids", "attention_mask")
        if name != tensor.name and name in taken:
            found[name] = torch.ones(tensor.shape, dtype=torch.int64)
    return found


def _exported(module: Any, args: Any, kwargs: Any) -> int:
    program = torch.export.export(module, args, kwargs, strict=False)
    return _counted(program.module(), args, kwargs)


def _arguments(
    module: torch.nn.Module, inputs: Inputs, given: Mapping[str, Any], device: str = "meta"
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    tensors: dict[str, Any] = {
        tensor.name: torch.zeros(tensor.shape, dtype=getattr(torch, tensor.dtype), device=device)
        for tensor in inputs
    }
    tree: dict[str, Any] = {}
    for name, value in given.items():
        *path, last = name.split(".")
        branch = tree
        for step in path:
            branch = branch.setdefault(step, {})
        if isinstance(value, str) and value.startswith("value:"):
            branch[last] = int(value[6:])
        elif (key := name.replace(".", "_")) in tensors:
            branch[last] = tensors[key]
        elif last.endswith("mask"):  # the graph took all of it as no padding
            branch[last] = torch.ones((1, *value), dtype=torch.int64, device=device)
        else:  # the graph took the images of the list as one tensor
            return tuple(tensors.values()), {}
    if tree:
        return (), {name: _plain(value) for name, value in tree.items()}
    if set(tensors) <= set(inspect.signature(module.forward).parameters):
        return (), tensors
    return tuple(tensors.values()), {}


def _plain(value: Any) -> Any:
    """Return a dictionary, or a tuple if its keys are 0, 1, ..."""
    if not isinstance(value, dict):
        return value
    parts = {key: _plain(part) for key, part in value.items()}
    return tuple(parts.values()) if all(key.isdigit() for key in parts) else parts


def _formulas() -> dict[Any, Any]:
    """Return formulas for operators with products that torch's counter passes over."""
    aten = torch.ops.aten
    formulas = {
        aten._grouped_mm: _grouped_mm,
        aten._scaled_dot_product_flash_attention_for_cpu: _attention,
        aten._scaled_dot_product_fused_attention_overrideable: _attention,
        aten.mv: _matrix_vector,
        aten.addmv: lambda _, matrix, vector, **kw: _matrix_vector(matrix, vector),
        aten.dot: _matrix_vector,
        aten.mkldnn_rnn_layer: _recurrent,
        aten._cdist_forward: _distances,
        aten._euclidean_dist: _distances,
    }
    with suppress(AttributeError):  # transformers registers it when it builds a model with experts
        formulas[torch.ops.transformers.grouped_mm_fallback] = _grouped_mm
    return formulas


def _grouped_mm(rows: Any, weights: Any, *_: Any, **__: Any) -> int:
    """Each row goes through the matrix of its own group."""
    return 2 * prod(rows) * weights[-1]


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


def _recurrent(steps: Any, of_input: Any, of_state: Any, *_: Any, **__: Any) -> int:
    """Each step of each sample goes through both matrices of all gates."""
    return 2 * prod(steps[:2]) * (prod(of_input) + prod(of_state))


def _distances(points: Any, others: Any, *_: Any, out_shape: Any = None, **__: Any) -> int:
    """Each pair of points is compared in each of its coordinates."""
    return 2 * prod(out_shape) * points[-1]


def _matrix_vector(matrix: Any, *_: Any, **__: Any) -> int:
    return 2 * prod(matrix)
