"""Multiply-accumulates against torch's own flop counter, and against published numbers.

Everything runs on the meta device, so a model with seven billion parameters costs no memory.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from dippm.model.frontends import load
from dippm.model.graph import ModelGraph, build
from dippm.model.vision_operators import declare_vision_operators

Make = Callable[[], nn.Module]
IMAGE = (3, 224, 224)


def torchvision(name: str) -> Make:
    def make() -> nn.Module:
        import torchvision.models as zoo

        return zoo.get_model(name, weights=None)

    return make


def video(name: str) -> Make:
    def make() -> nn.Module:
        import torchvision.models.video as zoo

        return getattr(zoo, name)(weights=None)

    return make


def timm(name: str) -> Make:
    def make() -> nn.Module:
        import timm as library

        return library.create_model(name, pretrained=False)

    return make


def inception() -> nn.Module:
    import torchvision.models as zoo

    return zoo.inception_v3(weights=None, init_weights=False)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase], *, bidirectional: bool = False) -> None:
        super().__init__()
        self.layer = kind(64, 128, 2, batch_first=True, bidirectional=bidirectional)
        self.head = nn.Linear(256 if bidirectional else 128, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(x)[0][:, -1])


class UNet(nn.Module):
    """The usual U-Net, for 17 channels of 512 × 512."""

    def __init__(self, channels: int = 17, widths: tuple[int, ...] = (64, 128, 256, 512, 1024)):
        super().__init__()
        ins = (channels, *widths[:-1])
        self.down = nn.ModuleList(self.block(i, o) for i, o in zip(ins, widths, strict=True))
        pairs = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(i, o, 2, 2) for i, o in pairs)
        self.up = nn.ModuleList(self.block(i, o) for i, o in pairs)
        self.head = nn.Conv2d(widths[0], 1, 1)

    @staticmethod
    def block(ins: int, outs: int) -> nn.Module:
        first, second = nn.Conv2d(ins, outs, 3, padding=1), nn.Conv2d(outs, outs, 3, padding=1)
        return nn.Sequential(first, nn.ReLU(), second, nn.ReLU())

    def forward(self, x: Tensor) -> Tensor:
        kept: list[Tensor] = []
        for i, block in enumerate(self.down):
            x = block(x if i == 0 else nn.functional.max_pool2d(x, 2))
            kept.append(x)
        for grow, block, skip in zip(self.grow, self.up, kept[-2::-1], strict=True):
            x = block(torch.cat([skip, grow(x)], 1))
        return self.head(x)


def transformer(name: str, **sizes: int) -> Make:
    def make() -> nn.Module:
        import transformers as library

        config = getattr(library, f"{name}Config")(**sizes)
        kind = {"Bert": "BertModel", "GPT2": "GPT2LMHeadModel", "Llama": "LlamaForCausalLM"}[name]
        config.use_cache = False
        return getattr(library, kind)(config)

    return make


LLAMA_7B = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
}
TINY_LLAMA = {**LLAMA_7B, "num_hidden_layers": 2, "num_key_value_heads": 8}

QUICK: dict[str, tuple[Make, tuple[int, ...]]] = {
    "resnet50": (torchvision("resnet50"), IMAGE),
    "mobilenet_v2": (torchvision("mobilenet_v2"), IMAGE),
    "mnasnet": (torchvision("mnasnet1_0"), IMAGE),
    "poolformer": (timm("poolformer_s12"), IMAGE),
    "lstm": (lambda: Recurrent(nn.LSTM), (32, 64)),
    "bilstm": (lambda: Recurrent(nn.LSTM, bidirectional=True), (32, 64)),
    "gru": (lambda: Recurrent(nn.GRU), (32, 64)),
    "unet": (UNet, (17, 512, 512)),
    "llama_2_layers": (transformer("Llama", **TINY_LLAMA), (64,)),
}
SLOW: dict[str, tuple[Make, tuple[int, ...]]] = {
    "vgg16": (torchvision("vgg16"), IMAGE),
    "densenet121": (torchvision("densenet121"), IMAGE),
    "efficientnet_b0": (torchvision("efficientnet_b0"), IMAGE),
    "swin_t": (torchvision("swin_t"), IMAGE),
    "vit_b_16": (torchvision("vit_b_16"), IMAGE),
    "convnext_base": (torchvision("convnext_base"), IMAGE),
    "regnet": (torchvision("regnet_y_800mf"), IMAGE),
    "inception_v3": (inception, (3, 299, 299)),
    "visformer": (timm("visformer_small"), IMAGE),
    "timm_vit": (timm("vit_base_patch16_224"), IMAGE),
    "timm_swin": (timm("swin_tiny_patch4_window7_224"), IMAGE),
    "r3d_18": (video("r3d_18"), (3, 8, 112, 112)),
    "bert": (transformer("Bert"), (128,)),
    "gpt2": (transformer("GPT2"), (128,)),
    "llama_7b": (transformer("Llama", **LLAMA_7B), (128,)),
}
MODELS = [
    *(pytest.param(name, *case, id=name) for name, case in QUICK.items()),
    *(
        pytest.param(name, *case, id=name, marks=pytest.mark.nightly(part="zoo"))
        for name, case in SLOW.items()
    ),
]

PUBLISHED_GMACS = {
    "resnet50": 4.089,
    "vgg16": 15.470,
    "densenet121": 2.834,
    "vit_b_16": 17.56,
    "swin_t": 4.491,
}


def on_meta(make: Make) -> nn.Module:
    declare_vision_operators()
    for library in ("torchvision", "timm", "transformers"):
        pytest.importorskip(library)  # not below: an import on the meta device fails
    with torch.device("meta"):
        try:
            return make().eval()
        except (NotImplementedError, RuntimeError):
            pass  # a few models compute on real numbers while they are built
    return make().eval().to("meta")


def graph_of(model: nn.Module, shape: tuple[int, ...]) -> ModelGraph:
    return build(load(model, {"input_ids": shape} if is_text(shape) else shape)).at_batch(1)


def is_text(shape: tuple[int, ...]) -> bool:
    return len(shape) == 1


def counted_macs(model: nn.Module, shape: tuple[int, ...]) -> int:
    dtype = torch.int64 if is_text(shape) else torch.float32
    example = torch.zeros(1, *shape, dtype=dtype, device="meta")
    if is_text(shape):  # language models look at the values of their mask, unless they are traced
        model = torch.export.export(model, (example,), strict=False).module()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(example)
    return counter.get_total_flops() // 2


@pytest.mark.parametrize(("name", "make", "shape"), MODELS)
def test_macs_are_those_of_the_flop_counter_and_as_published(
    name: str, make: Make, shape: tuple[int, ...]
):
    model = on_meta(make)
    graph = graph_of(model, shape)
    assert graph.macs == counted_macs(model, shape)
    assert not graph.unknown_ops
    if name in PUBLISHED_GMACS:
        assert graph.macs / 1e9 == pytest.approx(PUBLISHED_GMACS[name], rel=0.01)


def test_tied_weights_count_once():
    make, shape = transformer("GPT2", n_layer=1, n_embd=64, n_head=4), (16,)
    model = on_meta(make)
    graph = graph_of(model, shape)
    unique = {id(p): p.numel() for p in model.parameters()}
    assert graph.param_bytes == pytest.approx(4 * sum(unique.values()), rel=1e-3)
