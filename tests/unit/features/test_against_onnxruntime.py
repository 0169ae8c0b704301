"""Our nodes of ONNX Runtime beside those of its own optimiser.

Its CUDA provider is not here, its optimiser is: rewrites up to the extended level are the same for
both providers, but for convolutions with their activation, which it joins on CPUs alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import dippm
from dippm.estimate.features.engine import session_kernels
from dippm.estimate.features.kernels import launched_by, sequence_of

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")
models = pytest.importorskip("torchvision.models")

NODES = {
    "convolution": ("Conv",),
    "product": ("Gemm", "MatMul", "FusedMatMul"),
    "norm": ("LayerNormalization", "SkipLayerNormalization"),
    "batch norm": ("BatchNormalization",),
    "softmax": ("Softmax",),
    "concatenation": ("Concat",),
    "pointwise": (
        *("Add", "Mul", "Sub", "Div", "Relu", "Clip", "Sigmoid", "Erf", "Gelu", "QuickGelu"),
    ),
}
KERNELS = {
    "product": ("gemm", "batched_gemm"),
    "norm": ("layer_norm",),
    "batch norm": ("batch_norm",),
    "softmax": ("softmax",),
    "concatenation": ("concat",),
    "pointwise": ("elementwise", "broadcast", "activation", "costly_activation"),
}


def transformer() -> torch.nn.Module:
    return models.VisionTransformer(
        image_size=32, patch_size=8, num_layers=3, num_heads=2, hidden_dim=32, mlp_dim=64
    )


def post_norm() -> torch.nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=128
    )
    config._attn_implementation = "eager"

    class Encoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.BertModel(config)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=ids)[0]

    return Encoder()


IMAGE = torch.zeros(1, 3, 32, 32)
MODELS: dict[str, tuple[Callable[[], torch.nn.Module], torch.Tensor]] = {
    "resnet": (models.resnet18, IMAGE),
    "mobilenet": (models.mobilenet_v2, IMAGE),
    "densenet": (lambda: models.DenseNet(8, (2, 2), 16), IMAGE),
    "efficientnet": (models.efficientnet_b0, IMAGE),
    "vision transformer": (transformer, IMAGE),
    "bert": (post_norm, torch.zeros(1, 16, dtype=torch.long)),
}


def optimised(path: Path) -> Counter[str]:
    """Return the nodes of ONNX Runtime's own optimised graph by operator."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(path.with_suffix(".optimised.onnx"))
    onnxruntime.InferenceSession(
        str(path),
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=["ConvActivationFusion", "GemmActivationFusion"],
    )
    graph = onnx.load(options.optimized_model_filepath).graph
    return Counter(node.op_type for node in graph.node)


def ours(path: Path) -> Counter[str]:
    """Return our kernels of ONNX Runtime by kind, but for the passes that add a bias."""
    sequence = sequence_of(dippm.predict(path, device="T4").graph).at_batch(1)
    kernels = session_kernels(launched_by(sequence, "fp16", attention="unfused"))
    found: Counter[str] = Counter()
    for kernel in kernels:
        after = [kernels[source].kind.startswith("conv_") for source in kernel.sources]
        is_bias = kernel.kind == "broadcast" and len(after) == 1 and after[0]
        kind = "convolution" if kernel.kind.startswith("conv_") else ""
        kind = kind or next((k for k, kinds in KERNELS.items() if kernel.kind in kinds), "other")
        found[kind] += not is_bias
    return found


@pytest.mark.parametrize("name", MODELS)
def test_nodes_are_those_of_its_own_optimiser(name: str, tmp_path: Path) -> None:
    make, example = MODELS[name]
    path = tmp_path / "model.onnx"
    options: dict[str, Any] = {"opset_version": 17, "dynamo": False}
    torch.onnx.export(make().eval(), (example,), path, **options)
    theirs, found = optimised(path), ours(path)
    for kind, operators in NODES.items():
        assert found[kind] == sum(theirs[op] for op in operators), (kind, found, theirs)
