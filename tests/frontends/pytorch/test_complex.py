"""Complex numbers: rotary embeddings, spectral layers, their products and their weights."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import dippm
from dippm.estimate.features.kernels import launched, sequence_of, training_step
from dippm.estimate.models.footprint import MemoryFootprint
from dippm.model.graph import ModelGraph
from dippm.model.graph.float_type import in_float32
from tests.samples import sampled

FORMS = {
    "matmul": (lambda x, w: torch.matmul(x, w), (8, 4)),
    "bmm of activations": (lambda x, w: torch.matmul(torch.bmm(x, x.mT), x) @ w, (8, 4)),
    "einsum": (lambda x, w: torch.einsum("bti,io->bto", x, w), (8, 4)),
    "einsum by mode": (lambda x, w: torch.einsum("bti,tio->bto", x, w), (6, 8, 4)),
    "linear": (lambda x, w: nn.functional.linear(x, w.mT), (8, 4)),
    "conv1d": (lambda x, w: nn.functional.conv1d(x, w), (4, 6, 3)),
}
PRODUCTS = {
    "matmul": 6 * 8 * 4,
    "bmm of activations": 2 * 6 * 6 * 8 + 6 * 8 * 4,
    "einsum": 6 * 8 * 4,
    "einsum by mode": 6 * 8 * 4,
    "linear": 6 * 8 * 4,
    "conv1d": 6 * 4 * 6 * 3,
}
"""Complex products of one sample, from the definition."""


class OfComplex(nn.Module):
    """A product of complex activations, of shape (batch, 6, 8), with a complex weight."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.form, shape = FORMS[name]
        self.w = nn.Parameter(torch.rand(shape, dtype=torch.cfloat))

    def forward(self, x: Tensor) -> Tensor:
        return self.form(torch.complex(x, x), self.w).abs()


class Rotary(nn.Module):
    """As Llama has it: queries in pairs, taken for complex, times a table of unit numbers."""

    def __init__(self, heads: int, width: int, length: int = 16) -> None:
        super().__init__()
        self.heads, self.width = heads, width
        angles = torch.outer(torch.arange(length), torch.rand(width // 2))
        self.register_buffer("table", torch.polar(torch.ones_like(angles), angles))
        self.project = nn.Linear(heads * width, heads * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q = self.project(x).view(*x.shape[:2], self.heads, self.width)
        pairs = torch.view_as_complex(q.float().reshape(*q.shape[:-1], -1, 2))
        table = self.table[: x.shape[1]].view(1, x.shape[1], 1, self.width // 2)
        return torch.view_as_real(pairs * table).flatten(3).type_as(x)


class Spectral(nn.Module):
    """A layer of a Fourier neural operator: weights on the low frequencies."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.rand(4, 4, 6, 6, dtype=torch.cfloat))
        self.beside = nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft2(x)
        out = torch.zeros_like(spectrum)
        low = spectrum[:, :, :6, :6]
        out[:, :, :6, :6] = torch.einsum("bixy,ioxy->boxy", low, self.w)
        return torch.fft.irfft2(out, s=x.shape[-2:]) + self.beside(x)


def read(module: nn.Module, shape: str) -> ModelGraph:
    return dippm.read_graph(module.eval(), input=shape)


@pytest.mark.parametrize("name", sampled(FORMS, pytest.mark.nightly(part="frontends"), every=3))
def test_a_complex_product_is_four_real_ones(name: str) -> None:
    graph = read(OfComplex(name), "6,8")
    assert not graph.unknown_ops
    assert graph.at_batch(3).macs == 3 * 4 * PRODUCTS[name]
    assert graph.param_bytes == 8 * torch.Size(FORMS[name][1]).numel()
    for precision in ("fp32", "tf32", "fp16", "amp"):
        kernels = [k for k in launched(graph.at_batch(3), precision) if k.k > 1]
        assert sum(k.flops for k in kernels) == 2 * graph.at_batch(3).macs
        assert sum(k.weight_bytes for k in kernels) == graph.param_bytes
        assert all(k.unit != "half" for k in kernels)


def test_a_spectral_layer_weighs_and_multiplies_what_it_does() -> None:
    graph = read(Spectral(), "4,32,32")
    assert graph.param_bytes == 4 * 4 * 36 * 8 + 4 * 4 * 4 + 4 * 4
    assert graph.at_batch(2).macs == 2 * (4 * 4 * 4 * 36 + 4 * 4 * 32 * 32)
    assert dippm.predict(Spectral(), input="4,32,32", device="A100", batch=4).latency_ms > 0


@pytest.mark.parametrize(("heads", "width"), [(2, 8), (2, 4), (6, 4), (1, 12)])
def test_rotary_embeddings_by_complex_numbers_are_views_and_one_product(heads, width) -> None:
    """Sizes of 2, 4 and 6 are small batches as well: no kernel comes or goes with a batch."""
    module = Rotary(heads, width)
    graph = read(module, f"6,{heads * width}")
    for batch in (1, 2, 4, 6, 7):
        product, turn = (k.kind for k in launched(graph.at_batch(batch)))
        assert product == "gemm"
        assert turn in ("elementwise", "broadcast")
    for phase in ("inference", "train"):
        for batch in (1, 2, 6):
            out = dippm.predict(
                module, input=f"6,{heads * width}", device="A100", batch=batch, phase=phase
            )
            assert out.latency_ms > 0


class Filter(nn.Module):
    """A layer, a product with complex weights in the frequencies, and another layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(4, 8, 3, padding=1)
        self.w = nn.Parameter(torch.rand(8, 9, dtype=torch.cfloat))
        self.last = nn.Conv1d(2, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(self.first(x)) * self.w
        pairs = torch.view_as_real(spectrum).permute(0, 3, 1, 2).flatten(2)
        pairs = self.last(pairs).view(-1, 2, 2, 8, 9)[:, 0].permute(0, 2, 3, 1).contiguous()
        return torch.fft.irfft(torch.view_as_complex(pairs), n=16)


def test_gradients_pass_complex_numbers_and_train_complex_weights() -> None:
    graph = read(Filter(), "4,16")
    step = training_step(sequence_of(graph).at_batch(2))
    weight_gradients = {
        (graph.nodes[k.node].op, graph.nodes[k.node].path)
        for k in step.kernels
        if k.part == "backward_weight"
    }
    assert {("conv1d", "first"), ("multiply", ""), ("conv1d", "last")} <= weight_gradients
    assert sum(step.parameters) == sum(p.numel() for p in Filter().parameters())
    transforms = [k for k in step.kernels if graph.nodes[k.node].op == "fft" and k.kind == "other"]
    assert len(transforms) == 4  # two forward, two back
    assert all(k.write_bytes > 0 for k in transforms)


def test_real_numbers_behind_complex_ones_are_four_bytes_wide() -> None:
    class Mixes(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return (x + torch.fft.fft(x).real) * 2.0

    (*_, add, double) = launched(read(Mixes(), "6,8").at_batch(2))
    assert (add.in_bytes, add.out_bytes, double.out_bytes) == (4, 4, 4)


class Weighs(nn.Module):
    """Complex weights beside real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.rand(256, 512, dtype=torch.cfloat))
        self.real = nn.Linear(256, 256)

    def forward(self, x: Tensor) -> Tensor:
        x = self.real(x).float()
        return (torch.complex(x, x) @ self.w).abs()


@pytest.mark.parametrize("held", [torch.float32, torch.float16, torch.float64])
def test_half_precision_leaves_complex_weights_as_torch_does(held: torch.dtype) -> None:
    """`.half()` casts real numbers alone, and autocast casts no complex ones."""
    module = Weighs().half()
    kept = sum(p.numel() * p.element_size() for p in module.parameters())
    assert module.w.dtype is torch.complex64
    assert kept == 256 * 512 * 8 + (256 * 256 + 256) * 2
    with torch.autocast("cpu", torch.bfloat16):
        product = Weighs().w.mT @ torch.rand(256, 4, dtype=torch.cfloat)
    assert product.dtype is torch.complex64

    graph = in_float32(read(_held_in(held), "6,256"))
    full = 256 * 512 * 8 + (256 * 256 + 256) * 4
    for precision, expected in (("fp32", full), ("amp", full), ("fp16", kept), ("bf16", kept)):
        assert MemoryFootprint.of(graph, precision).weight_bytes == expected
        out = dippm.predict(_held_in(held), input="6,256", device="A100", precision=precision)
        assert out.memory_parts is not None
        copies = 256 * 256 * 2 if precision == "amp" else 0  # autocast's, of the real ones alone
        assert out.memory_parts.weights_mb == pytest.approx((expected + copies) / 2**20)
        explanation = dippm.explain(out)
        (whole, *_) = explanation.modules()
        assert whole.weights_mb == pytest.approx((expected + copies) / 2**20)


def _held_in(dtype: torch.dtype) -> nn.Module:
    module = Weighs()
    module.real.to(dtype)
    return module.eval()
