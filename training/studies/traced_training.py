"""`traced_step`: the kernels of a training step of eager PyTorch, and the tensors of autograd."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from dippm.errors import DippmError
from dippm.model.frontends.torch.prepare import eager_masks
from training.studies.cuda_fakes import Fakes, autocast, cuda_device, gradients, replaced
from training.studies.traced_kernels import KernelLog, TracedKernel, TracedPrecision, fake_arguments
from training.studies.traced_parts import parts_of

Optimizer = Literal["sgd", "adamw"]
SCORES_RANK, POSITIONS_RANK = 2, 3


@dataclass(frozen=True, slots=True)
class TracedStep:
    """A training step.

    Attributes:
        kernels: kernels in execution order, each with its part of the step.
        saved_bytes: bytes of the storages that autograd keeps between forward and backward pass,
            without parameters and buffers.
    """

    kernels: list[TracedKernel]
    saved_bytes: int


def traced_step(
    module: nn.Module,
    inputs: Mapping[str, torch.Tensor] | Sequence[torch.Tensor],
    precision: TracedPrecision = "amp",
    channels_last: bool = False,
    optimizer: Optimizer = "sgd",
) -> TracedStep:
    """Return the launches of a step: forward pass, loss, gradients, and the optimiser's update.

    The loss is the cross-entropy of a last result with two axes, else its sum. Nothing is dropped.

    Args:
        module: see `traced`.
        inputs: see `traced`.
        precision: see `traced`.
        channels_last: see `traced`.
        optimizer: "sgd" with momentum, or "adamw"; both over lists of tensors, with their
            default settings.

    Raises:
        DippmError: if PyTorch was built for CUDA and there is no GPU.
        Exception: any exception of the module on fake tensors.
    """
    if asks_the_driver():
        raise DippmError(
            "a backward pass of a PyTorch that was built for CUDA asks the driver for its GPU",
            "Install the build for CPUs, or run this where a GPU is.",
        )
    half = torch.float16 if precision == "amp" else None
    with contextlib.ExitStack() as stack:
        stack.enter_context(cuda_device())
        stack.enter_context(gradients())
        stack.enter_context(torch.autograd.set_multithreading_enabled(False))
        fakes = Fakes(torch.float16 if precision == "fp16" else torch.float32, channels_last)
        without_dropout(module.train())
        fakes.replace(module)
        positional, given = fake_arguments(fakes, inputs)
        log = KernelLog(fakes)
        saved = _Saved(fakes)
        stack.enter_context(fakes.mode)
        stack.enter_context(replaced(log.record, log.quiet, half))
        stack.enter_context(eager_masks())
        stack.enter_context(log)
        with contextlib.ExitStack() as forward:
            forward.enter_context(log.paths_of(module))
            forward.enter_context(torch.device("cuda"))
            forward.enter_context(saved.hooks())
            if half is not None:
                forward.enter_context(autocast(half))
            loss = _loss(module(*positional, **given))
        log.part = "backward"
        loss.backward()
        del loss
        log.part = "optimizer"
        _update(module, log, optimizer)
    kernels = [part for kernel in _joined(log.kernels) for part in parts_of(kernel)]
    return TracedStep(kernels, saved.bytes)


def asks_the_driver() -> bool:
    """Return whether gradients of fake CUDA tensors are impossible: a CUDA build without a GPU."""
    return torch.backends.cuda.is_built() and not torch.cuda.is_available()


def _joined(kernels: list[TracedKernel]) -> list[TracedKernel]:
    """Join operators that a torch without CUDA decomposes although CUDA has a kernel for them."""
    ops = [kernel.op for kernel in kernels]
    joined: list[TracedKernel] = []
    at = 0
    while at < len(kernels):
        name = next((n for n, o in SPELLED_OUT.items() if tuple(ops[at : at + len(o)]) == o), None)
        if name is None:
            joined.append(kernels[at])
            at += 1
            continue
        first = kernels[at]
        joined.append(replace(first, op=name, read_bytes=first.read_bytes + first.write_bytes))
        at += len(SPELLED_OUT[name])
    return joined


SPELLED_OUT = {"silu_backward": tuple("sigmoid fill_ sub_ mul add mul mul".split())}
"""Gradients that are decomposed, with their operators; the first has a result of the same size."""


def without_dropout(module: nn.Module) -> None:
    """Set all rates of dropout and of dropped paths to 0."""
    for part in module.modules():
        for name in ("p", "drop_prob", "dropout", "dropout_p"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)


class _Saved:
    """Counts the storages that autograd saves."""

    def __init__(self, fakes: Fakes) -> None:
        self._weights = {t.untyped_storage()._cdata for t in fakes.weights.values()}
        self._held: dict[int, torch.UntypedStorage] = {}

    def hooks(self) -> contextlib.AbstractContextManager[None]:
        return torch.autograd.graph.saved_tensors_hooks(self._keep, lambda tensor: tensor)

    def _keep(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if tensor.device.type == "cuda" and storage._cdata not in self._weights:
            self._held[storage._cdata] = storage
        return tensor

    @property
    def bytes(self) -> int:
        return sum(storage.nbytes() for storage in self._held.values())


def _loss(result: object) -> torch.Tensor:
    tensors = [
        leaf
        for leaf in tree_leaves(result)
        if isinstance(leaf, torch.Tensor) and leaf.requires_grad
    ]
    last: torch.Tensor = tensors[-1]
    if last.dim() != SCORES_RANK and not (last.dim() == POSITIONS_RANK and _of_product(last)):
        return last.sum()
    scores = last.flatten(0, -2)
    classes = torch.empty(len(scores), dtype=torch.int64, device=last.device)
    return nn.functional.cross_entropy(scores, classes)


def _of_product(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor is what a product with weights made, or a view of it."""
    made = tensor.grad_fn
    while made is not None and "View" in made.name():
        made = made.next_functions[0][0]
    return made is not None and made.name().startswith(("AddmmBackward", "MmBackward"))


def _update(module: nn.Module, log: KernelLog, optimizer: Optimizer) -> None:
    """Run a step of the optimiser, after one that creates its states."""
    parameters = [p for p in module.parameters() if p.grad is not None]
    rule: torch.optim.Optimizer
    if optimizer == "sgd":
        rule = torch.optim.SGD(parameters, lr=0.1, momentum=0.9, foreach=True)
    else:
        rule = torch.optim.AdamW(parameters, lr=0.1, foreach=True)
    with log.quiet():
        rule.step()
    rule.step()


__all__ = ["Optimizer", "TracedStep", "traced_step", "without_dropout"]
