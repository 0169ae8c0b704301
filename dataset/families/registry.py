"""All families by name, and the construction of a workload's module and inputs.

Importing this module loads no framework; `build` and `make_inputs` do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dataset.families import (
    dense_blocks,
    dense_outputs,
    diffusion,
    mixers,
    mobile,
    operators,
    random_cells,
    recurrent,
    regnet,
    resnet,
    signals,
    stages,
    text,
    vgg,
    video,
    vit,
    weather,
    zoo,
)
from dataset.families.family import Family, Workload
from dippm.errors import UnknownNameError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_MODELS = (
    mobile.EFFICIENTNET,
    mobile.MNASNET,
    mobile.MOBILENET,
    resnet.FAMILY,
    vgg.FAMILY,
    stages.SWIN,
    vit.FAMILY,
    dense_blocks.DENSENET,
    stages.VISFORMER,
    stages.POOLFORMER,
    # Beyond the ten families of deliverable D3.5.
    stages.CONVNEXT,
    regnet.FAMILY,
    mixers.MOBILEVIT,
    mixers.MLP_MIXER,
    dense_blocks.INCEPTION,
    dense_blocks.SQUEEZENET,
    dense_blocks.SHUFFLENET,
    dense_blocks.GHOSTNET,
    random_cells.FAMILY,
    video.RESNET3D,
    video.X3D,
    text.ENCODER,
    text.DECODER,
    signals.TRANSLATOR,
    recurrent.RNN,
    recurrent.PHYSICS_RNN,
    weather.WEATHER_UNET,
    weather.WEATHER_TRANSFORMER,
    diffusion.DIFFUSION_UNET,
    diffusion.DIFFUSION_TRANSFORMER,
    dense_outputs.SUPER_RESOLUTION,
    dense_outputs.SEGMENTATION,
    dense_outputs.DETECTION,
    signals.AUDIO_TCN,
    signals.CONFORMER,
    signals.TABULAR_MLP,
    signals.RECOMMENDER,
)
FAMILIES: dict[str, Family] = {family.name: family for family in _MODELS}
OPERATORS: dict[str, Family] = {family.name: family for family in operators.ALL}
ZOO: dict[str, Family] = {family.name: family for family in (zoo.TIMM, zoo.HF)}


def family(name: str) -> Family:
    """Return a family of models or a class of operators.

    Raises:
        UnknownNameError: if the name is unknown.
    """
    known = {**FAMILIES, **OPERATORS, **ZOO}
    if name not in known:
        raise UnknownNameError.of("family", name, known)
    return known[name]


def build(workload: Workload, device: torch.device | str) -> torch.nn.Module:
    """Return the workload's module in evaluation mode, with weights on the device.

    For our own families no initialisation code runs: a module is created without memory, then
    filled with random numbers of a scale that keeps activations finite, also in half precision.
    They are random rather than constant, because a GPU's power depends on toggling bits.

    Args:
        workload: family, parameters and sizes.
        device: device of the weights; "meta" for a module without memory, as for conversion.

    Raises:
        UnknownNameError: if the family is unknown.
        ModuleNotFoundError: if its zoo is not installed.
    """
    import torch

    if workload.family in ZOO:  # zoo models initialise themselves
        return family(workload.family).build(workload.parameters, workload.sizes).to(device)
    with torch.device("meta"):
        module = family(workload.family).build(workload.parameters, workload.sizes).eval()
    if torch.device(device).type == "meta":
        return module
    module.to_empty(device=device)
    with torch.no_grad():
        _fill(module)
    return module


def make_inputs(workload: Workload, batch: int, device: torch.device | str) -> tuple[Tensor, ...]:
    """Return random inputs of `forward`: normal floats, or integers below `high`."""
    import torch

    kind = family(workload.family)
    made: list[Tensor] = []
    for described in kind.inputs(workload.parameters, workload.sizes):
        shape = (batch, *described.shape)
        if described.high:
            made.append(torch.randint(described.high, shape, device=device))
        else:
            made.append(torch.randn(shape, device=device))
    return tuple(made)


def _fill(module: torch.nn.Module) -> None:
    for name, parameter in module.named_parameters():
        if parameter.ndim > 1:
            fan_in = parameter.numel() // parameter.shape[0]
            parameter.normal_(0.0, fan_in**-0.5)
        elif "bias" in name.rpartition(".")[2]:
            parameter.normal_(0.0, 0.1)  # keeps activations of deep networks from vanishing
        else:
            parameter.fill_(1.0)
    for part in module.modules():
        _fill_buffers(part)


def _fill_buffers(part: torch.nn.Module) -> None:
    own = dict(part.named_buffers(recurse=False))
    fill = getattr(part, "fill_buffers", None)
    if fill is not None:
        fill()
    elif own.keys() <= {"running_mean", "running_var", "num_batches_tracked"}:
        for name, buffer in own.items():
            buffer.fill_(1 if name == "running_var" else 0)
    else:
        raise NotImplementedError(
            f"{type(part).__name__} has buffers {sorted(own)} that stay empty"
        )
