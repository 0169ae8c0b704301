"""Our list of kernels against what eager PyTorch launches, traced on fake CUDA tensors."""

from __future__ import annotations

from pathlib import Path

import pytest

from dippm.estimate.features.kernels import launched
from training.studies.kernel_trace import traced
from training.studies.traced_models import graph_of, module_of

pytestmark = pytest.mark.nightly(part="zoo")
BATCH = 4
MODELS = (
    "resnet18",
    "efficientnet_lite0",
    "convnext_atto",
    "vit_tiny_patch16_224",
    "swin_tiny_patch4_window7_224",
    "levit_128s",
    "gmlp_s16_224",
    "res2net50_26w_4s",
    "mobilevit_xs",
    "resmlp_12_224",
    "transformers:gpt2",
    "torchvision:shufflenet_v2_x0_5",
)
BYTES, KERNELS = 0.05, 0.05
"""Allowed difference of a model's bytes and of its number of kernels."""


@pytest.mark.parametrize("spec", MODELS)
def test_kernels_and_bytes_are_those_of_eager_pytorch(spec: str, tmp_path: Path) -> None:
    module, inputs = module_of(spec, BATCH)
    # What reads nothing fills a new tensor: an exporter holds some of them as constants.
    theirs = [k for k in traced(module, inputs, "amp") if k.kind != "other" and k.read_bytes]
    graph = graph_of(spec, tmp_path).at_batch(BATCH)
    ours = [k for k in launched(graph, "amp") if k.read_bytes or k.weight_bytes]
    bytes_ours = sum(k.read_bytes + k.write_bytes + k.weight_bytes for k in ours)
    bytes_theirs = sum(k.read_bytes + k.write_bytes for k in theirs)
    assert bytes_ours == pytest.approx(bytes_theirs, rel=BYTES)
    assert sum(k.launches for k in ours) == pytest.approx(len(theirs), rel=KERNELS)
