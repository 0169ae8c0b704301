"""`traced`: the kernels that eager PyTorch launches for a module, without a GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

import torch
from torch import nn
from torch._prims_common import suggest_memory_format
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from dippm.estimate.features.kernels.optimizers import launches_over
from dippm.model.frontends.torch.prepare import eager_masks
from training.studies import traced_backward, traced_classes
from training.studies.cuda_fakes import Fakes, autocast, cuda_device, replaced
from training.studies.traced_parts import TracedKernel, parts_of

__all__ = ["KernelLog", "TracedKernel", "TracedPrecision", "fake_arguments", "traced"]

TracedPrecision = Literal["fp32", "fp16", "amp"]
_NOT_LAUNCHED = frozenset(
    "empty empty_strided empty_like new_empty new_empty_strided detach alias lift_fresh "
    "_unsafe_view resize_ as_strided_ squeeze_ unsqueeze_ t_ transpose_ set_ device sym_size "
    "is_same_size _local_scalar_dense _assert_async detach_".split()
)


def traced(
    module: nn.Module,
    inputs: Mapping[str, torch.Tensor] | Sequence[torch.Tensor],
    precision: TracedPrecision = "amp",
    channels_last: bool = False,
) -> list[TracedKernel]:
    """Return the launches of an eager forward pass in execution order.

    Args:
        module: module on any device, "meta" too; its tensors are permanently replaced by fakes.
        inputs: tensors by name, "" for the first positional one, or in order; only shapes and
            dtypes are read.
        precision: "fp32", "fp16" (weights too) or "amp" (autocast to float16).
        channels_last: whether images and weights of rank 4 are stored channels last.

    Raises:
        Exception: any exception of the module on fake tensors.
    """
    half = torch.float16 if precision == "amp" else None
    fast_path = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(cuda_device())
            fakes = Fakes(torch.float16 if precision == "fp16" else torch.float32, channels_last)
            fakes.replace(module.eval())
            positional, given = fake_arguments(fakes, inputs)
            log = KernelLog(fakes)
            stack.enter_context(fakes.mode)
            stack.enter_context(torch.no_grad())
            stack.enter_context(replaced(log.record, log.quiet, half))
            stack.enter_context(eager_masks())
            stack.enter_context(log.paths_of(module))
            if half is not None:
                stack.enter_context(autocast(half))
            stack.enter_context(torch.device("cuda"))
            stack.enter_context(log)
            module(*positional, **given)
            return [part for kernel in log.kernels for part in parts_of(kernel)]
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)


def fake_arguments(
    fakes: Fakes, inputs: Mapping[str, torch.Tensor] | Sequence[torch.Tensor]
) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """Return positional and named arguments as fakes."""
    if not isinstance(inputs, Mapping):
        return [fakes.of(tensor) for tensor in inputs], {}
    named = {name: fakes.of(tensor) for name, tensor in inputs.items()}
    return [tensor for name, tensor in named.items() if not name], {
        name: tensor for name, tensor in named.items() if name
    }


class KernelLog(TorchDispatchMode):
    """Records the calls that reach the device.

    Attributes:
        kernels: recorded kernels in execution order.
        part: part of a training step that the next calls belong to.
    """

    def __init__(self, fakes: Fakes) -> None:
        super().__init__()
        self.kernels: list[TracedKernel] = []
        self.part = "forward"
        self._weights = {t.untyped_storage()._cdata for t in fakes.weights.values()}
        self._static = {t.untyped_storage()._cdata: t for t in fakes.weights.values()}
        self._held = fakes
        self._silent = False
        self._path = [""]

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Record nothing inside the context."""
        before, self._silent = self._silent, True
        try:
            yield
        finally:
            self._silent = before

    @contextlib.contextmanager
    def paths_of(self, module: nn.Module) -> Iterator[None]:
        """Record the calling part of a module inside the context."""
        names = {part: name for name, part in module.named_modules()}

        def entered(part: nn.Module, *_: Any) -> None:
            self._path.append(names.get(part, self._path[-1]))

        def left(*_: Any) -> None:
            self._path.pop()

        enter = register_module_forward_pre_hook(entered)
        leave = register_module_forward_hook(left, always_call=True)
        try:
            yield
        finally:
            enter.remove()
            leave.remove()

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        op = function._schema.name.rpartition("::")[2]
        outputs = _tensors(result)
        if op.startswith("_foreach"):
            if not self._silent:
                self._over_lists(op, args, outputs)
            return result
        if "batch_norm" in op:
            outputs = outputs[:1]  # the saved statistics are empty outside training
        if self._silent or op in _NOT_LAUNCHED or not outputs or outputs[0].device.type != "cuda":
            return result
        inputs = _tensors((args, kwargs))
        if not function._schema.is_mutable and _share(inputs, outputs):
            return result
        if op in traced_backward.RULES:
            self._in_parts(op, inputs, outputs, args)
            with self.quiet():
                return traced_backward.laid_out(op, result, args)
        if op == "convolution":
            result = self._convolution(inputs, result)
            outputs = [result]
        else:
            self._copies(op, inputs)
        self.record(op, inputs, outputs, args)
        return result

    def _over_lists(self, op: str, args: Any, made: list[torch.Tensor]) -> None:
        """Record a pass over lists of tensors, such as the update of an optimiser."""
        lists = [list(arg) for arg in args if isinstance(arg, list | tuple)]
        lists = [tensors for tensors in lists if isinstance(tensors[0], torch.Tensor)]
        tensors = [t for t in lists[0] if t.device.type == "cuda"]
        if not tensors:  # counters of steps
            return
        depth = len(lists) + (1 if made else 0)
        launches = launches_over([t.numel() for t in tensors], depth)
        read = {id(t): t for held in lists for t in held}  # a square reads its factor once
        self.record(op, list(read.values()), made or tensors, launches=launches)

    def _in_parts(
        self, op: str, inputs: list[torch.Tensor], outputs: list[torch.Tensor], args: Any
    ) -> None:
        """Record the kernels of a gradient that is one call, with the copies before them."""
        with self.quiet():
            parts = traced_backward.RULES[op](inputs, outputs, args)
        for part in parts:
            self.record(part.op, part.reads, part.writes, part.args, part.launches)

    def _convolution(self, inputs: list[torch.Tensor], result: torch.Tensor) -> torch.Tensor:
        """Return the result in the layout of cuDNN, which copies operands of another layout."""
        if inputs[1].dim() != 4:
            layout = torch.contiguous_format
        else:
            formats = [suggest_memory_format(tensor) for tensor in inputs[:2]]
            last = torch.channels_last in formats
            layout = torch.channels_last if last else torch.contiguous_format
        with self.quiet():
            result = result.contiguous(memory_format=layout)
        for tensor in inputs[:2]:
            if not tensor.is_contiguous(memory_format=layout):
                self._copy(tensor)
        return result

    def _copies(self, op: str, inputs: list[torch.Tensor]) -> None:
        """Record the copies that the CUDA code of an operator makes of its operands."""
        if op in traced_classes.MADE_CONTIGUOUS:
            layout = torch.contiguous_format
            if "pool" in op:
                layout = suggest_memory_format(inputs[0])
            if not inputs[0].is_contiguous(memory_format=layout):
                self._copy(inputs[0])
        elif op in traced_classes.PRODUCTS:
            for tensor in inputs[-2:]:
                if tensor.dim() > 1 and not _fits_cublas(tensor):
                    self._copy(tensor)

    def _copy(self, tensor: torch.Tensor) -> None:
        with self.quiet():
            dense = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        self.record("clone", [tensor], [dense])

    def record(
        self,
        op: str,
        inputs: list[torch.Tensor],
        outputs: list[torch.Tensor],
        args: Any = (),
        launches: int | None = None,
    ) -> None:
        """Record one call, with `launches` where they do not follow from the operator."""
        if op in ("_to_copy", "copy_") and any(t.device.type == "cpu" for t in inputs):
            op = "host_to_device"
        shapes = {tuple(t.shape) for t in inputs if t.dim()}
        broadcasts = len(shapes) > 1 or any(self._is_weight(t) for t in inputs)
        kind = traced_classes.class_of(op, inputs, broadcasts, args)
        if op == "_to_copy" and inputs[0].dtype == outputs[0].dtype:
            kind = "copy"
        stem = op if op in traced_classes.CLASSES else op.rstrip("_")
        if stem in traced_classes.CREATES:
            inputs = []
        elif op == "copy_":
            inputs = inputs[1:]
        on_device = [t for t in inputs if t.device.type == "cuda"]
        reads = [_bytes(t) for t in on_device]
        written = sum(t.numel() * t.element_size() for t in outputs)
        if stem in traced_classes.LOOKS_UP and reads:
            reads[0] = min(reads[0], outputs[0].numel() * outputs[0].element_size())
        elif stem in ("index_put", "scatter", "masked_scatter") and on_device:
            reads[0] = written = reads[-1]
        if launches is None:
            launches = traced_classes.launches_of(op, args)
        passes = launches if op == "roll" else 1
        self.kernels.append(
            TracedKernel(
                op=op,
                kind=kind,
                read_bytes=float(passes * sum(reads)),
                weight_bytes=float(
                    sum(b for t, b in zip(on_device, reads, strict=True) if self._is_static(t))
                ),
                write_bytes=float(passes * written),
                elements=max(t.numel() for t in outputs),
                shape=tuple(outputs[0].shape),
                path=self._path[-1],
                launches=launches,
                operands=tuple(_described(t) for t in inputs[:8]),
                result=_described(outputs[0]),
                part=self.part,
            )
        )

        if on_device and all(self._is_static(t) for t in on_device):
            # Held, because the address of a storage that is given back is used again.
            self._static.update((t.untyped_storage()._cdata, t) for t in outputs)

    def _is_static(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._static

    def _is_weight(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._weights


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _share(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> bool:
    """Return whether all results are views of operands."""
    held = {t.untyped_storage()._cdata for t in inputs}
    return all(t.untyped_storage()._cdata in held for t in outputs)


def _fits_cublas(tensor: torch.Tensor) -> bool:
    rows, columns = tensor.shape[-2:]
    down, along = tensor.stride()[-2:]
    return (along == 1 and down >= max(1, columns)) or (down == 1 and along >= max(1, rows))


def _bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of the elements that differ in place."""
    count = tensor.element_size()
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride else min(size, 1)
    return count


def _described(tensor: torch.Tensor) -> str:
    dtype = str(tensor.dtype).removeprefix("torch.")
    sizes = "x".join(map(str, tensor.shape))
    strides = "" if tensor.is_contiguous() else f" {tuple(tensor.stride())}"
    return f"{dtype} {sizes}{strides}"
