"""`compiled`: the kernels that inductor schedules for a module on a GPU, without GPU and Triton.

The module is traced on fake CUDA tensors, lowered and scheduled as on a GPU of `PROPERTIES`; where
code would be generated, the groups that the scheduler fused are written down instead. This reads
inductor's insides: it holds for the version of torch that `constraints.txt` pins.

Left out: recurrent layers, which torch.compile runs outside of its graphs, and padding of matrix
products to a multiple of eight, which inductor decides by measuring.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal
from unittest.mock import patch

import torch
from torch import nn
from torch._inductor import compile_fx, config, ir, scheduler
from torch._inductor.dependencies import MemoryDep, WeakDep
from torch._inductor.exc import InductorError
from torch._inductor.graph import GraphLowering
from torch._inductor.runtime.hints import DeviceProperties
from torch._inductor.utils import sympy_product
from torch._inductor.virtualized import V

from training.studies.cuda_fakes import Fakes, autocast, cuda_device
from training.studies.fake_attention import attention_as_one_call
from training.studies.traced_kernels import TracedPrecision, fake_arguments

CompiledKind = Literal["convolution", "product", "attention", "library", "reduction", "pointwise"]
PROPERTIES = DeviceProperties(
    type="cuda",
    index=0,
    multi_processor_count=108,
    cc=80,
    major=8,
    regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048,
    max_threads_per_block=1024,
    warp_size=32,
)
"""Properties of an A100: the scheduler splits reductions by the number of multiprocessors."""
PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "_addmm_activation")


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """One launch of a compiled module.

    Attributes:
        kind: "convolution", "product" and "attention" of a library, any other call of a "library",
            or generated code: a "reduction" if a member reduces, else "pointwise".
        origins: the aten operators that it runs, by name, sorted.
        members: nodes of the scheduler that were fused to it.
        read_bytes: bytes that are read, weights included; each element counts once.
        weight_bytes: part of `read_bytes` that is parameters, or computed from parameters alone.
        write_bytes: bytes that other kernels read; those that only members read stay in registers.
        shape: iteration space, reduced axes last.
        reads: buffers that are read.
        writes: buffers that are written.
        takes: bytes that each of `writes` occupies; for a part of a concatenation all of it.
        held_by: names of buffer and parent for each of `writes` and `reads` inside another buffer.
        overwrites: buffers that it reads last and that one of its results may replace.
    """

    kind: CompiledKind
    origins: tuple[str, ...]
    members: int
    read_bytes: float
    weight_bytes: float
    write_bytes: float
    shape: tuple[int, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    takes: tuple[float, ...]
    held_by: tuple[tuple[str, str], ...]
    overwrites: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CompiledForward:
    """A compiled forward.

    Attributes:
        kernels: kernels in execution order.
        graphs: number of graphs of dynamo that launch something.
        results: buffers that are returned.
        input_bytes: bytes of the arguments, without parameters.
    """

    kernels: tuple[CompiledKernel, ...]
    graphs: int
    results: tuple[str, ...]
    input_bytes: float


def compiled(
    module: nn.Module,
    inputs: Mapping[str, torch.Tensor] | Sequence[torch.Tensor],
    precision: TracedPrecision = "amp",
    channels_last: bool = False,
) -> CompiledForward:
    """Return the launches and buffers of a compiled forward pass.

    Args:
        module: module on any device, "meta" too; its tensors are permanently replaced by fakes.
        inputs: tensors by name, "" for the first positional one, or in order.
        precision: "fp32", "fp16" (weights too) or "amp" (autocast to float16).
        channels_last: whether images and weights of rank 4 are stored channels last.

    Raises:
        Exception: whatever torch.compile raises.
    """
    half = torch.float16 if precision == "amp" else None
    found: list[CompiledForward] = []

    def backend(graph: Any, given: Any) -> Any:
        forward = _scheduled(graph, given)
        found.extend([forward] if forward.kernels else [])
        return graph.forward

    torch._dynamo.reset()
    with contextlib.ExitStack() as stack:
        stack.enter_context(cuda_device())
        fakes = Fakes(torch.float16 if precision == "fp16" else torch.float32, channels_last)
        fakes.replace(module.eval())
        positional, named = fake_arguments(fakes, inputs)
        stack.enter_context(fakes.mode)
        stack.enter_context(torch.no_grad())
        stack.enter_context(_as_on_a_gpu())
        stack.enter_context(attention_as_one_call(half))
        if half is not None:
            stack.enter_context(autocast(half))
        torch.compile(module, backend=backend, dynamic=False)(*positional, **named)
    return CompiledForward(
        tuple(kernel for part in found for kernel in part.kernels),
        len(found),
        tuple(name for part in found for name in part.results),
        max((part.input_bytes for part in found), default=0.0),
    )


@contextlib.contextmanager
def _as_on_a_gpu() -> Iterator[None]:
    settings = {
        "compile_threads": 1,
        "fx_graph_cache": False,
        "joint_graph_constant_folding": False,  # it would make real tensors on the device
        "shape_padding": False,
        "triton.unique_kernel_names": False,
    }
    with (
        patch.object(DeviceProperties, "create", lambda device: PROPERTIES),
        patch.object(scheduler, "has_triton", lambda *_: True),
        patch.object(torch._C, "_conv_determine_backend_memory_format", _order_of_cudnn),
        patch.object(torch._functorch.config, "enable_autograd_cache", False),
        config.patch(settings),
    ):
        yield


def _order_of_cudnn(image: torch.Tensor, weight: torch.Tensor, _: Any) -> torch.memory_format:
    """Return the layout of cuDNN's result: channels last if image or weights are."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(image.dim())
    if last is None:
        return torch.contiguous_format
    plain = torch.contiguous_format
    for tensor in (image, weight):
        if tensor.is_contiguous(memory_format=last) and not tensor.is_contiguous(
            memory_format=plain
        ):
            return last
    return plain


class _Scheduled(Exception):  # noqa: N818
    """Raised where code would be generated."""


def _scheduled(graph: Any, given: Any) -> CompiledForward:
    """Return the schedule of one graph of dynamo, without kernels if it launches nothing."""
    weights: set[str] = set()
    found = CompiledForward((), 0, (), 0.0)

    def inner(lowered: Any, inputs: Any, **options: Any) -> Any:
        names = [node.name for node in lowered.graph.nodes if node.op == "placeholder"]
        weights.update(names[i] for i in options.get("static_input_idxs", ()))
        return compile_fx.compile_fx_inner(lowered, inputs, **options)

    def instead_of_code(self: Any, *_: Any) -> Any:
        self.init_wrapper_code()
        self._update_scheduler()
        nonlocal found
        with V.set_graph_handler(self):
            given = [v for name, v in self.graph_inputs.items() if name not in weights]
            taken = sum(_buffer_bytes(value, self) for value in given)
            kernels, results = _kernels(self, weights), self.get_output_names()
        found = CompiledForward(tuple(kernels), 1, tuple(results), taken)
        raise _Scheduled

    with patch.object(GraphLowering, "codegen", instead_of_code):
        try:
            compile_fx.compile_fx(graph, given, inner_compile=inner)
        except (_Scheduled, InductorError) as error:
            if not isinstance(getattr(error, "inner_exception", error), _Scheduled):
                raise
    return found


def _kernels(graph: Any, weights: set[str]) -> list[CompiledKernel]:
    static = {name for name in graph.graph_inputs if name in weights}
    kernels = []
    for node in graph.scheduler.nodes:
        for part in getattr(node, "snodes", [node]) if _is_foreach(node) else [node]:
            if _launches(part):
                kernel = _kernel(part, graph, static)
                kernels.append(kernel)
                if kernel.weight_bytes == kernel.read_bytes > 0:
                    static |= set(kernel.writes)
            elif all(dep.name in static for dep in part.read_writes.reads):
                static |= {out.get_name() for out in part.get_outputs()}
    return kernels


def _is_foreach(node: Any) -> bool:
    return isinstance(node, scheduler.ForeachKernelSchedulerNode)


def _launches(node: Any) -> bool:
    if isinstance(node, scheduler.NopKernelSchedulerNode):
        return False
    return not isinstance(node.node, ir.MultiOutput | ir.AssertScalar)


def _kernel(node: Any, graph: Any, static: set[str]) -> CompiledKernel:
    own = {out.get_name() for out in node.get_outputs()}
    reads: dict[str, float] = {}
    for dep in node.read_writes.reads:
        if dep.name not in own and not isinstance(dep, WeakDep):
            reads[dep.name] = reads.get(dep.name, 0.0) + _dep_bytes(dep, graph)
    reads = {name: min(moved, _held_bytes(name, graph)) for name, moved in reads.items()}
    written = {
        name: buffer
        for out in node.get_outputs()
        if _is_read_outside(out, node)
        for name, buffer in _parts(out)
    }
    sizes = {name: _buffer_bytes(buffer, graph) for name, buffer in written.items()}
    holders = {name: _holder(name, graph) for name in (*reads, *written)}
    return CompiledKernel(
        kind=_kind(node),
        origins=tuple(sorted(_origins(node))),
        members=len(node.get_nodes()),
        read_bytes=sum(reads.values()),
        weight_bytes=sum(moved for name, moved in reads.items() if name in static),
        write_bytes=sum(sizes.values()),
        shape=_shape(node, graph),
        reads=tuple(sorted(reads)),
        writes=tuple(sorted(written)),
        takes=tuple(_held_bytes(holders[name], graph) or sizes[name] for name in sorted(written)),
        held_by=tuple((name, holder) for name, holder in holders.items() if holder != name),
        overwrites=tuple(sorted(_overwritten(node, graph))),
    )


def _parts(out: Any) -> list[tuple[str, Any]]:
    """Return name and buffer of a result, or of each part of a call with several results."""
    if isinstance(out.node.get_output_spec(), ir.MultiOutputLayout):
        users = [user.node for user in out.users if hasattr(user.node, "get_outputs")]
        return [(part.get_name(), part.node) for user in users for part in user.get_outputs()]
    return [(out.get_name(), out.node)]


def _holder(name: str, graph: Any) -> str:
    """Return the buffer that contains a buffer: parts of a concatenation are written in place."""
    buffer = graph.try_get_buffer(name)
    layout = getattr(buffer, "layout", None)
    if isinstance(layout, ir.NonOwningLayout):
        return _holder(str(layout.view.get_name()), graph)
    if isinstance(layout, ir.MutationLayoutSHOULDREMOVE):
        return _holder(str(layout.get_buffer().get_name()), graph)
    return name


def _overwritten(node: Any, graph: Any) -> set[str]:
    """Return buffers that generated code reads point by point for a result of equal size and axes.

    A buffer that is read as a view with other axes is not among them: on an H100 `torch.compile`
    held the product before a GELU beside its result.
    """
    if isinstance(node, scheduler.ExternKernelSchedulerNode):
        return set()
    written = {
        (dep.index, _dep_bytes(dep, graph))
        for dep in node.read_writes.writes
        if isinstance(dep, MemoryDep)
    }
    points: dict[str, set[Any]] = {}
    for dep in node.read_writes.reads:
        points.setdefault(dep.name, set()).add(
            (getattr(dep, "index", None), _dep_bytes(dep, graph))
        )
    axes = {_axes(dep.name, graph) for dep in node.read_writes.writes}
    same = (name for name, at in points.items() if len(at) == 1 and at <= written)
    return {name for name in same if _axes(name, graph) in axes}


def _axes(name: str, graph: Any) -> int:
    """Return the number of axes of a buffer, 0 if there is none."""
    buffer = graph.try_get_buffer(name)
    return 0 if buffer is None else len(buffer.get_size())


def _dep_bytes(dep: Any, graph: Any) -> float:
    if isinstance(dep, MemoryDep) and dep.is_indirect():  # of a table no more than is looked up
        elements = graph.sizevars.optimization_hint(sympy_product(dep.size), fallback=0)
        return float(elements * graph.get_dtype(dep.name).itemsize)
    try:
        return float(dep.numbytes_hint())
    except (NotImplementedError, AttributeError, KeyError):
        return _held_bytes(dep.name, graph)


def _held_bytes(name: str, graph: Any) -> float:
    buffer = graph.try_get_buffer(name)
    if buffer is None:
        return 0.0
    return _buffer_bytes(buffer, graph)


def _buffer_bytes(buffer: Any, graph: Any) -> float:
    try:
        size, dtype = buffer.get_size(), buffer.get_dtype()
    except (NotImplementedError, AttributeError):
        return 0.0
    elements = graph.sizevars.optimization_hint(sympy_product(size), fallback=0)
    return float(elements * dtype.itemsize)


def _is_read_outside(out: Any, node: Any) -> bool:
    inside = set(node.get_nodes())
    return any(user.node not in inside for user in out.users)


def _shape(node: Any, graph: Any) -> tuple[int, ...]:
    if isinstance(node, scheduler.ExternKernelSchedulerNode):
        called: Any = node.node
        sizes: Iterable[Any] = called.get_size() if called.maybe_get_size() else ()
    else:
        sizes = [size for part in node.group[1] for size in _flat(part)]
    return tuple(int(graph.sizevars.optimization_hint(size, fallback=0)) for size in sizes)


def _flat(part: Any) -> list[Any]:
    return [x for p in part for x in _flat(p)] if isinstance(part, list | tuple) else [part]


def _kind(node: Any) -> CompiledKind:
    if not isinstance(node, scheduler.ExternKernelSchedulerNode):
        return "reduction" if node.is_reduction() else "pointwise"
    name = _called(node.node)
    if "convolution" in name:
        return "convolution"
    if name in PRODUCTS:
        return "product"
    return "attention" if name == "attention" else "library"


def _called(node: Any) -> str:
    overload = getattr(node, "op_overload", None)
    if overload is not None:
        return str(overload._schema.name.rpartition("::")[2])
    name = str(getattr(node, "python_kernel_name", "") or "")
    return name.rpartition(".")[2]


def _origins(node: Any) -> set[str]:
    names = set()
    for part in node.get_nodes():
        for origin in getattr(part.node, "origins", ()):
            target = origin.target
            names.add(
                getattr(target, "_overloadpacket", target).__name__
                if callable(target)
                else str(target)
            )
    return names
