"""The models that must convert: no unknown operator, MACs equal to torch's own flop counter."""

from __future__ import annotations

import gc
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from dippm.model.frontends import pytorch
from dippm.model.frontends.frontend import InputSpec
from dippm.model.graph import build
from tests.samples import sampled

pytestmark = pytest.mark.usefixtures("own_garbage")
IMAGE = (3, 224, 224)
VISION = {
    "resnet50": 4_089_184_256,
    "vgg16": 15_470_264_320,
    "mobilenet_v2": 300_774_272,
    "densenet121": 2_834_161_664,
    "efficientnet_b0": 385_814_752,
    "mnasnet1_0": None,
    "swin_t": 4_490_566_656,
    "vit_b_16": 17_563_828_224,
    "convnext_base": None,
    "regnet_y_400mf": None,
}
TIMM = ["poolformer_s12", "visformer_small", "swin_tiny_patch4_window7_224", "regnetx_032"]

FURTHER = pytest.mark.nightly(part="frontends")


class UNet(nn.Module):
    """Four levels, skips by concatenation, transposed convolutions upwards."""

    def __init__(self, channels: int):
        super().__init__()
        widths = [16, 32, 64, 128]
        self.down = nn.ModuleList(map(self.block, [channels, *widths], widths))
        self.middle = self.block(128, 256)
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(2 * width, width, 2, 2) for width in reversed(widths)
        )
        self.merge = nn.ModuleList(self.block(2 * width, width) for width in reversed(widths))
        self.head = nn.Conv2d(16, 1, 1)

    @staticmethod
    def block(i: int, o: int) -> nn.Module:
        layers = (nn.Conv2d(i, o, 3, padding=1), nn.ReLU(inplace=True))
        return nn.Sequential(*layers, nn.Conv2d(o, o, 3, padding=1), nn.ReLU(inplace=True))

    def forward(self, x):
        skips = []
        for down in self.down:
            x = down(x)
            skips.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.middle(x)
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([up(x), skips.pop()], 1))
        return self.head(x)


class Recurrent(nn.Module):
    def __init__(self, kind: str):
        super().__init__()
        layer = getattr(nn, kind)
        self.layer = layer(24, 40, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(80, 10)

    def forward(self, x):
        return self.head(self.layer(x)[0][:, -1])


def on_meta(build_model):
    try:
        with torch.device("meta"):
            return build_model().eval()
    except RuntimeError:  # some constructors read numbers back
        return build_model().eval().to("meta")


def check(model, shape, *, counted=None, dtype=torch.float32, device="meta"):
    """Convert, compare MACs at two batch sizes; return the raw graph and the graph at batch 1.

    `counted` runs under the counter in place of `model`: the counter does not know the kernels
    that attention and recurrent layers use on a CPU.
    """
    raw = pytorch.convert_module(model, InputSpec.parse(shape))
    assert raw.batch_is_symbolic
    graph = build(raw)
    assert not graph.unknown_ops
    for batch in (1, 3):
        inputs = torch.zeros((batch, *shape), dtype=dtype, device=device)
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            outputs = (counted or model)(inputs)
        bound = graph.at_batch(batch)
        assert 2 * bound.macs == counter.get_total_flops()
        if isinstance(outputs, torch.Tensor):
            assert [o.shape for o in bound.outputs] == [tuple(outputs.shape)]
    gc.collect()
    return raw, graph.at_batch(1)


@pytest.mark.parametrize(("name", "macs"), sampled(VISION.items(), FURTHER, every=8))
def test_torchvision(name, macs, vision):
    model = on_meta(lambda: vision.models.get_model(name))
    _, graph = check(model, IMAGE)
    assert macs is None or graph.macs == macs


@pytest.mark.parametrize("name", sampled(TIMM, FURTHER))
def test_timm(name, vision):
    timm = pytest.importorskip("timm")
    check(on_meta(lambda: timm.create_model(name)), IMAGE)


@pytest.mark.nightly(part="frontends")
def test_inception(vision):
    model = on_meta(lambda: vision.models.inception_v3(init_weights=False))
    check(model, (3, 299, 299))


def test_a_video_model(vision):
    _, graph = check(on_meta(vision.models.video.r3d_18), (3, 16, 112, 112))
    assert graph.histogram()["conv3d"] == 20


def test_a_unet_with_seventeen_channels():
    _, graph = check(on_meta(lambda: UNet(17)), (17, 512, 512))
    assert graph.histogram()["conv_transpose"] == 4
    assert graph.histogram()["concat"] == 4
    assert graph.outputs[0].shape == (1, 1, 512, 512)


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_recurrent_layers_stay_whole(kind, gates):
    raw, graph = check(on_meta(lambda: Recurrent(kind)), (7, 24))
    carried = [o for o in raw.operators if o.name.startswith(f"aten.{kind.lower()}")]
    assert len(carried) == 1
    wanted = {
        "hidden_size": 40, "input_size": 24, "num_layers": 2, "bidirectional": 1, "batch_first": 1,
    }  # fmt: skip
    assert wanted.items() <= carried[0].attributes.items()
    layers = 7 * 2 * gates * 40 * ((24 + 40) + (80 + 40))
    assert graph.macs == layers + 80 * 10


def test_a_projected_lstm_keeps_both_sizes():
    class Projected(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.LSTM(8, 16, proj_size=4, batch_first=True)

        def forward(self, x):
            return self.layer(x)[0]

    raw = pytorch.convert_module(Projected(), InputSpec.parse("5,8"))
    (lstm,) = (o for o in raw.operators if o.name == "aten.lstm")
    assert (lstm.attributes["hidden_size"], lstm.attributes["output_size"]) == (16, 4)


def language_model(name: str, **settings):
    transformers = pytest.importorskip("transformers")
    config = getattr(transformers, name + "Config")(**settings)
    config.use_cache = False
    endings = {"Bert": "Model", "GPT2": "LMHeadModel"}
    return getattr(transformers, name + endings.get(name, "ForCausalLM")), config


DECODER = {"num_hidden_layers": 2, "hidden_size": 48, "num_attention_heads": 4,
           "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": 300}  # fmt: skip
SMALL = {
    "Bert": {"num_hidden_layers": 2, "hidden_size": 48, "num_attention_heads": 4},
    "GPT2": {"n_layer": 2, "n_embd": 48, "n_head": 4},
    "Llama": DECODER,
    "Mistral": DECODER | {"sliding_window": 8},
}
IS_CAUSAL = {"Bert": False, "GPT2": True, "Llama": True, "Mistral": False}
"""Whether attention over 16 tokens runs without a mask, as causal; a window needs one."""


@pytest.mark.parametrize("name", SMALL)
def test_language_models(name, vision):
    kind, config = language_model(name, **SMALL[name])
    model = kind._from_config(deepcopy(config), attn_implementation="sdpa").eval()
    counted = kind._from_config(config, attn_implementation="eager").eval()
    _, graph = check(model, (16,), counted=counted, dtype=torch.int64, device="cpu")
    attention = [node for node in graph.nodes if node.op == "attention"]
    assert [bool(node.attributes.get("causal")) for node in attention] == 2 * [IS_CAUSAL[name]]


@pytest.mark.nightly(part="frontends")
def test_a_decoder_of_seven_billion_parameters(vision):
    kind, config = language_model(
        "Llama", hidden_size=4096, intermediate_size=11008, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=32, vocab_size=32000,
    )  # fmt: skip
    model = on_meta(lambda: kind._from_config(config))
    graph = build(pytorch.convert_module(model, InputSpec.parse("128"))).at_batch(1)
    layer = 128 * (4 * 4096**2 + 3 * 4096 * 11008) + 2 * 128**2 * 4096
    assert graph.macs == 32 * layer + 128 * 4096 * 32000
    assert graph.histogram()["attention"] == 32
    assert not graph.unknown_ops


def test_writing_into_a_slice_keeps_the_data_flow():
    class Shift(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)

        def forward(self, x):
            x = self.first(x)
            out = torch.zeros_like(x)
            out[:, :2] = x[:, 2:]
            out[:, 2:] = x[:, :2]
            return self.second(out).relu_()

    graph = build(pytorch.convert_module(Shift().eval(), InputSpec.parse("4,8,8")))
    producers: dict[int, set[int]] = {}
    for producer, consumer in graph.edges:
        producers.setdefault(consumer, set()).add(producer)
    first, second = (i for i, node in enumerate(graph.nodes) if node.op == "conv2d")
    reached, todo = set(), [second]
    while todo:
        new = producers.get(todo.pop(), set()) - reached
        reached |= new
        todo += new
    assert first in reached


def test_an_update_seen_through_two_names():
    class Twice(nn.Module):
        def forward(self, x):
            y = torch.sigmoid(x)
            z = torch.relu_(y)
            z.add_(x)
            return z * y

    raw = pytorch.convert_module(Twice(), InputSpec.parse("4"))
    names = [o.name for o in raw.operators]
    assert names == ["sigmoid", "nn.relu", "add", "multiply"]
    add, multiply = raw.operators[2:]
    assert multiply.inputs == (add.outputs[0], add.outputs[0])


def test_moved_axes_and_gated_units_are_known():
    class Gated(nn.Module):
        def forward(self, x):
            return functional.glu(x.movedim((1, 2), (3, 1)), dim=1)

    graph = build(pytorch.convert_module(Gated(), InputSpec.parse("8,6,4"))).at_batch(2)
    moved, gated = (node for node in graph.nodes if node.op in ("transpose", "glu"))
    assert moved.attributes["permutation"] == (0, 2, 3, 1)
    assert moved.out_shapes[0] == (2, 6, 4, 8)
    assert gated.out_shapes[0] == (2, 3, 4, 8)
    assert not graph.unknown_ops
