"""Every layer of `torch.nn` and what else forward passes call, with small arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

Shape = tuple[int, ...]
SEQUENCE, SIGNAL, IMAGE, VOLUME, ROW = (6, 8), (8, 12), (4, 8, 8), (4, 4, 6, 6), (8,)


class Call(nn.Module):
    """A function of an activation, and of parameters of the given shapes."""

    def __init__(self, function: Callable[..., Any], *shapes: Shape) -> None:
        super().__init__()
        self.function = function
        self.tensors = nn.ParameterList(torch.rand(shape) for shape in shapes)

    def forward(self, x: Tensor) -> Any:
        return self.function(x, *self.tensors)


class Pair(nn.Module):
    """A layer that takes the same activation several times, or a target made of it."""

    def __init__(self, layer: nn.Module, count: int = 2) -> None:
        super().__init__()
        self.layer, self.count = layer, count

    def forward(self, x: Tensor) -> Any:
        result = self.layer(*[x] * self.count)
        return result[0] if isinstance(result, tuple) else result


class Indexed(nn.Module):
    """A layer over indices that are made of the activation."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer((x.abs() * 3).long().clamp(0, 9))


def pooled(rank: int, image: Shape) -> dict[str, tuple[nn.Module, Shape]]:
    names = {
        f"MaxPool{rank}d": (2,), f"AvgPool{rank}d": (2,), f"LPPool{rank}d": (2, 2),
        f"AdaptiveMaxPool{rank}d": (2,), f"AdaptiveAvgPool{rank}d": (1,),
    }  # fmt: skip
    return {name: (getattr(nn, name)(*args), image) for name, args in names.items()}


def padded(rank: int, image: Shape) -> dict[str, tuple[nn.Module, Shape]]:
    kinds = ("Constant", "Zero", "Reflection", "Replication", "Circular")
    names = [f"{kind}Pad{rank}d" for kind in kinds]
    layers = [getattr(nn, name)(1, 0.5) if "Const" in name else getattr(nn, name)(1)
              for name in names]  # fmt: skip
    return {name: (layer, image) for name, layer in zip(names, layers, strict=True)}


ACTIVATIONS = (
    "ELU Hardshrink Hardsigmoid Hardtanh Hardswish LeakyReLU LogSigmoid PReLU ReLU ReLU6 RReLU "
    "SELU CELU GELU Sigmoid SiLU Mish Softplus Softshrink Softsign Tanh Tanhshrink Softmin"
).split()

LAYERS: dict[str, tuple[nn.Module, Shape]] = {
    **{name: (getattr(nn, name)(), SEQUENCE) for name in ACTIVATIONS},
    "GLU": (nn.GLU(), SEQUENCE),
    "Threshold": (nn.Threshold(0.1, 0.0), SEQUENCE),
    "Softmax": (nn.Softmax(-1), SEQUENCE),
    "LogSoftmax": (nn.LogSoftmax(-1), SEQUENCE),
    "Softmax2d": (nn.Softmax2d(), IMAGE),
    "Linear": (nn.Linear(8, 4), SEQUENCE),
    "Bilinear": (Pair(nn.Bilinear(8, 8, 4)), ROW),
    "Flatten": (nn.Flatten(), IMAGE),
    "Unflatten": (nn.Unflatten(1, (2, 4)), ROW),
    "Conv1d": (nn.Conv1d(8, 4, 3, groups=2), SIGNAL),
    "Conv2d": (nn.Conv2d(4, 8, 3, dilation=2), IMAGE),
    "Conv2d same": (nn.Conv2d(4, 8, 3, padding="same"), IMAGE),
    "Conv2d circular": (nn.Conv2d(4, 8, 3, padding=1, padding_mode="circular"), IMAGE),
    "Conv3d": (nn.Conv3d(4, 4, 3), VOLUME),
    "ConvTranspose1d": (nn.ConvTranspose1d(8, 4, 3, stride=2), SIGNAL),
    "ConvTranspose2d": (nn.ConvTranspose2d(4, 8, 3, stride=2, output_padding=1), IMAGE),
    "ConvTranspose3d": (nn.ConvTranspose3d(4, 4, 3), VOLUME),
    "Unfold": (nn.Unfold(3), IMAGE),
    "Fold": (nn.Fold((4, 4), 2, stride=2), (8, 4)),
    "FractionalMaxPool2d": (nn.FractionalMaxPool2d(2, output_size=3), IMAGE),
    "FractionalMaxPool3d": (nn.FractionalMaxPool3d(2, output_size=2), VOLUME),
    "MaxUnpool2d": (
        Call(
            lambda x: functional.max_unpool2d(*functional.max_pool2d(x, 2, return_indices=True), 2)
        ),
        IMAGE,
    ),
    **pooled(1, SIGNAL), **pooled(2, IMAGE), **pooled(3, VOLUME),
    **padded(1, SIGNAL), **padded(2, IMAGE), **padded(3, VOLUME),
    "BatchNorm1d": (nn.BatchNorm1d(8), SIGNAL),
    "BatchNorm2d": (nn.BatchNorm2d(4), IMAGE),
    "BatchNorm3d": (nn.BatchNorm3d(4), VOLUME),
    "GroupNorm": (nn.GroupNorm(2, 4), IMAGE),
    "InstanceNorm1d": (nn.InstanceNorm1d(8, affine=True), SIGNAL),
    "InstanceNorm2d": (nn.InstanceNorm2d(4), IMAGE),
    "InstanceNorm3d": (nn.InstanceNorm3d(4), VOLUME),
    "LayerNorm": (nn.LayerNorm(8), SEQUENCE),
    "RMSNorm": (nn.RMSNorm(8), SEQUENCE),
    "LocalResponseNorm": (nn.LocalResponseNorm(3), IMAGE),
    "RNN": (Pair(nn.RNN(8, 4, batch_first=True), 1), SEQUENCE),
    "LSTM": (Pair(nn.LSTM(8, 4, 2, batch_first=True, bidirectional=True), 1), SEQUENCE),
    "GRU": (Pair(nn.GRU(8, 4, batch_first=True), 1), SEQUENCE),
    "RNNCell": (nn.RNNCell(8, 4), ROW),
    "LSTMCell": (Pair(nn.LSTMCell(8, 4), 1), ROW),
    "GRUCell": (nn.GRUCell(8, 4), ROW),
    "Embedding": (Indexed(nn.Embedding(10, 4)), ROW),
    "EmbeddingBag": (Indexed(nn.EmbeddingBag(10, 4)), ROW),
    "CosineSimilarity": (Pair(nn.CosineSimilarity(-1)), SEQUENCE),
    "PairwiseDistance": (Pair(nn.PairwiseDistance()), ROW),
    "PixelShuffle": (nn.PixelShuffle(2), IMAGE),
    "PixelUnshuffle": (nn.PixelUnshuffle(2), IMAGE),
    "ChannelShuffle": (nn.ChannelShuffle(2), IMAGE),
    "Upsample nearest": (nn.Upsample(scale_factor=2), IMAGE),
    "Upsample bilinear": (nn.Upsample(scale_factor=2, mode="bilinear"), IMAGE),
    "Upsample bicubic": (nn.Upsample(scale_factor=2, mode="bicubic"), IMAGE),
    "Upsample linear": (nn.Upsample(scale_factor=2, mode="linear"), SIGNAL),
    "Upsample trilinear": (nn.Upsample(scale_factor=2, mode="trilinear"), VOLUME),
    "Upsample antialias": (
        Call(lambda x: functional.interpolate(x, size=(5, 5), mode="bilinear", antialias=True)),
        IMAGE,
    ),
    "MultiheadAttention": (Pair(nn.MultiheadAttention(8, 2, batch_first=True), 3), SEQUENCE),
    "TransformerEncoderLayer": (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), SEQUENCE),
    "TransformerDecoderLayer": (
        Pair(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True)), SEQUENCE,
    ),
    "Transformer": (Pair(nn.Transformer(8, 2, 1, 1, 16, batch_first=True)), SEQUENCE),
    "weight_norm": (nn.utils.parametrizations.weight_norm(nn.Linear(8, 4)), SEQUENCE),
    "weight_norm of old": (nn.utils.weight_norm(nn.Conv2d(4, 4, 3)), IMAGE),
    "spectral_norm": (nn.utils.parametrizations.spectral_norm(nn.Conv2d(4, 4, 3)), IMAGE),
    "spectral_norm of old": (nn.utils.spectral_norm(nn.Linear(8, 4)), SEQUENCE),
    "MSELoss": (Pair(nn.MSELoss()), ROW),
    "L1Loss": (Pair(nn.L1Loss()), ROW),
    "SmoothL1Loss": (Pair(nn.SmoothL1Loss()), ROW),
    "HuberLoss": (Pair(nn.HuberLoss()), ROW),
    "KLDivLoss": (Pair(nn.KLDivLoss(reduction="sum")), ROW),
    "CrossEntropyLoss": (Pair(nn.CrossEntropyLoss()), ROW),
    "BCEWithLogitsLoss": (Pair(nn.BCEWithLogitsLoss()), ROW),
    "TripletMarginLoss": (Pair(nn.TripletMarginLoss(), 3), ROW),
}  # fmt: skip


def _complex(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))


def _rotary(x: Tensor, table: Tensor) -> Tensor:
    turned = _complex(x) * torch.polar(torch.ones_like(table), table)
    return torch.view_as_real(turned).flatten(-2)


def _filter(x: Tensor, weight: Tensor) -> Tensor:
    """A global filter: product in the frequencies, as GFNet and AFNO have it."""
    spectrum = torch.fft.rfft2(x, norm="ortho") * torch.view_as_complex(weight)
    return torch.fft.irfft2(spectrum, s=x.shape[-2:], norm="ortho")


def _grid(x: Tensor) -> Tensor:
    theta = x.mean((2, 3))[:, :2].unsqueeze(-1).expand(-1, -1, 3)
    return functional.grid_sample(
        x, functional.affine_grid(theta, list(x.shape), False), align_corners=False
    )


def _attend(**settings: bool) -> Callable[..., Tensor]:
    def attend(x: Tensor) -> Tensor:
        heads = x.unflatten(-1, (2, 4)).transpose(1, 2)
        return functional.scaled_dot_product_attention(heads, heads, heads, **settings)

    return attend


def _groups(x: Tensor, weight: Tensor) -> Tensor:
    """Rows sorted by expert, as many for each."""
    rows = x.flatten(0, 1)
    ends = torch.arange(1, 4, dtype=torch.int32, device=x.device) * (rows.shape[0] // 3)
    return torch._grouped_mm(rows.bfloat16(), weight.bfloat16(), offs=ends)


CALLS: dict[str, tuple[Callable[..., Any], Shape, tuple[Shape, ...]]] = {
    "matmul": (torch.matmul, SEQUENCE, ((8, 4),)),
    "matmul of activations": (lambda x: x @ x.mT, SEQUENCE, ()),
    "mv": (lambda x, w: torch.stack([torch.mv(w, x[0, 0]), x[0, :, 0]]), (8, 8), ((8, 8),)),
    "a vector": (lambda x, w: x @ w, SEQUENCE, ((8,),)),
    "dot": (lambda x, w: torch.dot(x.sum((0, 1)), w), SEQUENCE, ((8,),)),
    "outer": (lambda x, w: torch.outer(x.sum((1, 2)), w), SEQUENCE, ((8,),)),
    "addmm": (lambda x, b, w: torch.addmm(b, x, w), ROW, ((4,), (8, 4))),
    "baddbmm": (lambda x: torch.baddbmm(x, x, x), (8, 8), ()),
    "addbmm": (lambda x, w: torch.addbmm(w, x, x), (8, 8), ((8, 8),)),
    "addmv": (lambda x, b, w: torch.addmv(b, w, x.sum((0, 1))), SEQUENCE, ((4,), (4, 8))),
    "addr": (lambda x, b, w: torch.addr(b, x.sum((0, 1)), w), SEQUENCE, ((8, 4), (4,))),
    "chain_matmul": (lambda x, a, b: torch.linalg.multi_dot([x, a, b]), ROW, ((8, 4), (4, 2))),
    "tensordot": (lambda x, w: torch.tensordot(x, w, 1), SEQUENCE, ((8, 4),)),
    "inner": (torch.inner, SEQUENCE, ((4, 8),)),
    "kron": (torch.kron, SEQUENCE, ((2, 2),)),
    "cdist": (torch.cdist, SEQUENCE, ((5, 8),)),
    "cross": (lambda x: torch.cross(x, x.flip(1), dim=-1), (6, 3), ()),
    "sdpa": (_attend(), SEQUENCE, ()),
    "sdpa, causal": (_attend(is_causal=True), SEQUENCE, ()),
    "grouped_mm": (_groups, (6, 16), ((3, 16, 32),)),
    "fft": (lambda x: torch.fft.fft(x).real, SEQUENCE, ()),
    "fft2": (lambda x: torch.fft.fft2(x, dim=(-1, -2)).real, SEQUENCE, ()),
    "nested fft, as FNet": (
        lambda x: torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real, SEQUENCE, (),
    ),
    "ifft": (lambda x: torch.fft.ifft(torch.fft.fft(x)).abs(), SEQUENCE, ()),
    "fftn": (lambda x: torch.fft.fftshift(torch.fft.fftn(x, dim=(1, 2))).imag, SEQUENCE, ()),
    "stft": (
        lambda x, w: torch.stft(x, 8, return_complex=True, window=w).abs(), (32,), ((8,),),
    ),
    "global filter": (_filter, IMAGE, ((4, 8, 5, 2),)),
    "rotary by complex numbers": (_rotary, SEQUENCE, ((6, 4),)),
    "complex product": (
        lambda x, w: (torch.complex(x, x) @ torch.complex(w, w)).real, SEQUENCE, ((8, 4),),
    ),
    "angle": (lambda x: _complex(x).conj().angle(), SEQUENCE, ()),
    "grid_sample": (_grid, IMAGE, ()),
    "histc": (lambda x: torch.histc(x, 10), ROW, ()),
    "bucketize": (torch.bucketize, ROW, ((4,),)),
    "searchsorted": (lambda x, w: torch.searchsorted(w, x), ROW, ((4,),)),
    "sort": (lambda x: x.sort(-1).values, ROW, ()),
    "topk": (lambda x: x.topk(2).values, ROW, ()),
    "kthvalue": (lambda x: x.kthvalue(2).values, ROW, ()),
    "median": (lambda x: x.median(-1).values, ROW, ()),
    "quantile": (lambda x: x.quantile(0.5, dim=-1), ROW, ()),
    "mode": (lambda x: x.mode(-1).values, ROW, ()),
    "aminmax": (lambda x: torch.aminmax(x, dim=-1)[0], ROW, ()),
    "cummax": (lambda x: x.cummax(-1).values, ROW, ()),
    "logcumsumexp": (lambda x: x.logcumsumexp(-1), ROW, ()),
    "logsumexp": (lambda x: x.logsumexp(-1), ROW, ()),
    "diff": (torch.diff, ROW, ()),
    "gather": (lambda x: x.gather(1, x.argsort(1)), ROW, ()),
    "scatter": (lambda x: torch.zeros_like(x).scatter(1, x.argsort(1), x), ROW, ()),
    "scatter_reduce": (
        lambda x: torch.zeros_like(x).scatter_reduce(1, x.argsort(1), x, "amax"), ROW, (),
    ),
    "index_add": (
        lambda x: torch.zeros_like(x).index_add(1, torch.arange(8, device=x.device), x), ROW, (),
    ),
    "take_along_dim": (lambda x: torch.take_along_dim(x, x.argmax(1, True), 1), ROW, ()),
    "one_hot": (lambda x: functional.one_hot(x.abs().long().clamp(0, 3), 4), ROW, ()),
    "where": (lambda x: torch.where(x > 0, x, -x), ROW, ()),
    "masked_fill": (lambda x: x.masked_fill(x > 0, 0.0), ROW, ()),
    "heaviside": (lambda x: torch.heaviside(x, x), ROW, ()),
    "clip by tensors": (lambda x, a: torch.clamp(x, min=a), ROW, ((8,),)),
    "lerp": (lambda x, w: torch.lerp(x, x, w), ROW, ((8,),)),
    "addcdiv": (lambda x, w: torch.addcdiv(x, x, w), ROW, ((8,),)),
    "addcmul": (lambda x, w: torch.addcmul(x, x, w), ROW, ((8,),)),
    "xlogy": (lambda x: torch.xlogy(x, x), ROW, ()),
    "logit": (lambda x: torch.logit(x, 1e-3), ROW, ()),
    "logaddexp": (lambda x: torch.logaddexp(x, x), ROW, ()),
    "hypot": (lambda x: torch.hypot(x, x), ROW, ()),
    "copysign": (lambda x: torch.copysign(x, x), ROW, ()),
    "fmod": (lambda x: torch.fmod(x, 2.0), ROW, ()),
    "nan_to_num": (torch.nan_to_num, ROW, ()),
    "digamma": (lambda x: torch.digamma(x) + torch.lgamma(x), ROW, ()),
    "erfinv": (lambda x: torch.erfinv(x) + torch.special.i0(x), ROW, ()),
    "sinc": (torch.sinc, ROW, ()),
    "frac": (torch.frac, ROW, ()),
    "hyperbolic": (lambda x: torch.asinh(x) + torch.acosh(x) + torch.atanh(x), ROW, ()),
    "exp2": (lambda x: torch.exp2(x) + torch.log10(x) + torch.sgn(x), ROW, ()),
    "shifts": (lambda x: (x.int() << 1) >> 2, ROW, ()),
    "isclose": (lambda x: torch.isclose(x, x), ROW, ()),
    "norms": (lambda x: x.norm(dim=-1) + torch.linalg.norm(x, dim=-1, ord=1), ROW, ()),
    "normalize": (lambda x: functional.normalize(x, dim=-1), SEQUENCE, ()),
    "renorm": (lambda x: torch.renorm(x, 2, 1, 1.0), SEQUENCE, ()),
    "var_mean": (lambda x: torch.var_mean(x, -1)[0], SEQUENCE, ()),
    "std_mean": (lambda x: torch.std_mean(x, -1)[0], SEQUENCE, ()),
    "count_nonzero": (lambda x: torch.count_nonzero(x, -1), ROW, ()),
    "linalg.inv": (torch.linalg.inv, (4, 4), ()),
    "linalg.solve": (lambda x: torch.linalg.solve(x, x), (4, 4), ()),
    "linalg.det": (torch.linalg.det, (4, 4), ()),
    "linalg.slogdet": (lambda x: torch.linalg.slogdet(x)[1], (4, 4), ()),
    "linalg.cholesky": (lambda x: torch.linalg.cholesky(x @ x.mT), (4, 4), ()),
    "linalg.qr": (lambda x: torch.linalg.qr(x)[0], (4, 4), ()),
    "linalg.svd": (lambda x: torch.linalg.svd(x)[1], (4, 4), ()),
    "linalg.eigh": (lambda x: torch.linalg.eigh(x)[0], (4, 4), ()),
    "linalg.pinv": (torch.linalg.pinv, (4, 4), ()),
    "linalg.matrix_exp": (torch.linalg.matrix_exp, (4, 4), ()),
    "linalg.matrix_power": (lambda x: torch.linalg.matrix_power(x, 3), (4, 4), ()),
    "linalg.solve_triangular": (
        lambda x: torch.linalg.solve_triangular(x, x, upper=True), (4, 4), (),
    ),
    "linalg.cross": (lambda x: torch.linalg.cross(x, x), (4, 3), ()),
    "linalg.vector_norm": (lambda x: torch.linalg.vector_norm(x, dim=-1), (4, 3), ()),
    "trace": (lambda x: x.diagonal(dim1=1, dim2=2).sum(-1), (4, 4), ()),
    "diag_embed": (torch.diag_embed, ROW, ()),
    "tril": (torch.tril, (4, 4), ()),
    "rot90": (lambda x: torch.rot90(x, 1, (1, 2)), (4, 4), ()),
    "roll": (lambda x: torch.roll(x, 1, 1), (4, 4), ()),
    "repeat": (lambda x: x.repeat(1, 2).repeat_interleave(2, 1), ROW, ()),
    "unfold": (lambda x: x.unfold(1, 4, 2), ROW, ()),
    "as_strided": (lambda x: x.as_strided((2, 4), (8, 1)), ROW, ()),
    "meshgrid": (lambda x: torch.meshgrid(x[0], x[0], indexing="ij")[0] * x[0, 0], ROW, ()),
    "pad, reflected": (lambda x: functional.pad(x, (1, 1), mode="reflect"), SIGNAL, ()),
    "softmin": (lambda x: functional.softmin(x, -1), ROW, ()),
    "gumbel_softmax": (lambda x: functional.gumbel_softmax(x, dim=-1), ROW, ()),
    "native group norm": (lambda x, w: functional.group_norm(x, 2, w), IMAGE, ((4,),)),
    "batch norm in training": (
        lambda x: functional.batch_norm(x, None, None, training=True), IMAGE, (),
    ),
    "fake_quantize": (lambda x: torch.fake_quantize_per_tensor_affine(x, 0.1, 0, 0, 255), ROW, ()),
    "bitwise": (lambda x: (x.int() & 3) | (x.int() ^ 1), ROW, ()),
}  # fmt: skip

CASES: dict[str, tuple[nn.Module, Shape]] = {
    **LAYERS,
    **{name: (Call(f, *others), shape) for name, (f, shape, others) in CALLS.items()},
}
