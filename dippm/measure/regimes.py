"""A module under a `Regime`: precision, memory layout, compilation, inference or training step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from dippm.errors import ConditionsError
from dippm.estimate.conditions import Precision
from dippm.measure.protocol import Regime
from dippm.measure.timing import Step

if TYPE_CHECKING:
    import torch

LEARNING_RATE = 1e-6
"""Small: a step must have its normal cost, and the weights must stay finite."""
TF32: Mapping[Precision, tuple[bool, bool]] = {
    "fp32": (False, True),  # PyTorch's own default
    "fp32-ieee": (False, False),
    "tf32": (True, True),
}
"""Whether matrix products and convolutions may use TF32."""
AUTOCAST: Mapping[Precision, str] = {"amp": "float16", "amp-bf16": "bfloat16"}


@contextmanager
def prepare_step(
    module: torch.nn.Module, inputs: Sequence[torch.Tensor], regime: Regime, *, device: torch.device
) -> Iterator[Step]:
    """Yield one step of the module under a regime; module and inputs are changed in place.

    Floating-point parameters and inputs are cast to float16 or bfloat16 if the precision says so,
    else to float32. Inputs are cast in place, since a copy in another type would count as the
    model's memory. A training step is forward, mean square of the outputs as loss, backward, and
    SGD with momentum; "amp" scales the loss. Inputs that require gradients mark an operator inside
    a network: its backward pass starts from given gradients instead of a loss, and computes those
    of the inputs too. A module without parameters has no optimiser.

    Raises:
        ConditionsError: if the device cannot run the precision, or there is nothing to train.
    """
    import torch

    refuse_impossible(regime, device)
    with ExitStack() as stack:
        stack.enter_context(_tf32(regime.precision))
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}.get(regime.precision, torch.float32)
        tensors = tuple(inputs)
        for tensor in tensors:
            _cast(tensor, dtype, regime)
        module.to(dtype)
        _set_layout(module, regime)
        if regime.phase == "train":
            yield stack.enter_context(_training_step(module, tensors, regime, device=device))
        else:
            module.eval()
            stack.enter_context(torch.inference_mode())
            yield _inference_step(module, tensors, regime, device=device)


def refuse_impossible(regime: Regime, device: torch.device) -> None:
    """Refuse a regime that would silently run as another one.

    Raises:
        ConditionsError: for TF32 on a CPU, where it has no meaning.
    """
    if device.type == "cpu" and regime.precision in ("tf32", "fp32-ieee"):
        raise ConditionsError(
            f"precision {regime.precision!r} means tensor cores, which a CPU does not have",
            "Measure fp32, bf16 or amp-bf16 on a CPU.",
        )


def flags() -> dict[str, Any]:
    """Return torch's current switches that decide which kernels run."""
    import torch

    return {
        "matmul_tf32": torch.backends.cuda.matmul.allow_tf32,
        "cudnn_tf32": torch.backends.cudnn.allow_tf32,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }


@contextmanager
def _tf32(precision: Precision) -> Iterator[None]:
    import torch

    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32, cudnn.allow_tf32 = TF32.get(precision, TF32["fp32"])
    try:
        yield
    finally:
        matmul.allow_tf32, cudnn.allow_tf32 = before


def _inference_step(
    module: torch.nn.Module, inputs: Sequence[torch.Tensor], regime: Regime, *, device: torch.device
) -> Step:
    called = _compile(module) if regime.mode == "compiled" else module
    if regime.precision not in AUTOCAST:
        return lambda: called(*inputs)

    def step() -> object:
        # Entered anew in every step, as users do: leaving autocast drops its cached weights.
        with _autocast(regime.precision, device):
            return called(*inputs)

    return step


def _autocast(precision: Precision, device: torch.device) -> Any:
    import torch

    if precision not in AUTOCAST:
        return nullcontext()
    return torch.autocast(device.type, dtype=getattr(torch, AUTOCAST[precision]))


def _cast(tensor: torch.Tensor, dtype: torch.dtype, regime: Regime) -> None:
    """Cast a floating-point tensor to its final type and layout, in place."""
    import torch

    if not tensor.is_floating_point():
        return
    cast = tensor.detach().to(dtype)
    if regime.channels_last and tensor.dim() in (4, 5):
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        tensor.data = cast.contiguous(memory_format=formats[tensor.dim()])
    else:
        tensor.data = cast.contiguous()


def _set_layout(module: torch.nn.Module, regime: Regime) -> None:
    """Set the layout of every 4-dimensional weight; the plain layout resets an earlier regime."""
    import torch

    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    for parameter in module.parameters():
        last = regime.channels_last and parameter.dim() in formats
        layout = formats[parameter.dim()] if last else torch.contiguous_format
        parameter.data = parameter.data.contiguous(memory_format=layout)


def _compile(module: torch.nn.Module) -> Any:
    import torch

    torch._dynamo.reset()  # drop graphs of earlier points, which would count as recompiles
    return torch.compile(module, dynamic=False)


@contextmanager
def _training_step(
    module: torch.nn.Module, inputs: Sequence[torch.Tensor], regime: Regime, *, device: torch.device
) -> Iterator[Step]:
    import torch

    module.train().requires_grad_(True)
    leaves = [tensor.detach().requires_grad_(tensor.requires_grad) for tensor in inputs]
    trained = list(module.parameters())
    if not trained and not any(leaf.requires_grad for leaf in leaves):
        raise ConditionsError("the model has no parameters to train", "Measure its inference.")
    optimizer = torch.optim.SGD(trained, lr=LEARNING_RATE, momentum=0.9) if trained else None
    amid = any(leaf.requires_grad for leaf in leaves)
    scaler = torch.amp.GradScaler(device.type, enabled=regime.precision == "amp" and not amid)
    called = _compile(module) if regime.mode == "compiled" else module

    known: list[torch.Tensor] = []

    def step() -> None:
        for tensor in (*trained, *leaves):
            tensor.grad = None
        with _autocast(regime.precision, device):
            outputs = list(_tensors(called(*leaves)))
            loss = None if amid else _loss(outputs)
        if loss is None:
            torch.autograd.backward(outputs, _ones(outputs, known))
        else:
            scaler.scale(loss).backward()
        if optimizer is not None:
            scaler.step(optimizer)
            scaler.update()

    try:
        with torch.enable_grad():
            yield step
    finally:
        module.zero_grad(set_to_none=True)
        module.eval()


def _ones(outputs: list[torch.Tensor], known: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return gradients to start from, created in the first step only."""
    import torch

    if not known:
        known += [torch.ones_like(output) for output in outputs]
    return known


def _loss(outputs: list[torch.Tensor]) -> torch.Tensor:
    """Return the mean square of every output, summed."""
    squares = [tensor.float().square().mean() for tensor in outputs]
    if not squares:
        raise ConditionsError(
            "the model returns no floating-point tensor, so there is nothing to train",
            "Measure its inference instead.",
        )
    return sum(squares[1:], squares[0])


def _tensors(outputs: object) -> Iterator[torch.Tensor]:
    """Yield every floating-point tensor that depends on trainable values."""
    import torch

    if isinstance(outputs, torch.Tensor):
        if outputs.is_floating_point() and outputs.requires_grad:
            yield outputs
    elif isinstance(outputs, Mapping):
        for value in outputs.values():
            yield from _tensors(value)
    elif isinstance(outputs, list | tuple):
        for value in outputs:
            yield from _tensors(value)
