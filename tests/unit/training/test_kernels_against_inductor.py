"""Our compiled kernels against what inductor schedules for a GPU, on fake CUDA tensors."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from dippm.estimate.models.memory import MemoryFootprint
from training.studies.traced_models import graph_of, module_of

pytestmark = pytest.mark.nightly(part="zoo")
inductor_trace = pytest.importorskip(
    "training.studies.inductor_trace",
    reason="this torch has other insides of inductor",
    exc_type=ImportError,
)
BATCH = 4
MODELS = ("resnet18", "vit_tiny_patch16_224")
LIBRARY = ("convolution", "product", "attention")
BYTES, KERNELS, PEAK = 0.1, 0.1, 0.1
"""Allowed difference of a model's bytes, its number of kernels, and the peak of its buffers."""


@pytest.mark.parametrize("spec", MODELS)
def test_kernels_and_bytes_are_those_of_inductor(spec: str, tmp_path: Path) -> None:
    module, inputs = module_of(spec, BATCH)
    forward = inductor_trace.compiled(module, inputs, "amp")
    theirs = inductor_trace.their_lines(forward.kernels)
    graph = graph_of(spec, tmp_path).at_batch(BATCH)
    ours = inductor_trace.our_lines(graph, "amp", False)
    assert forward.graphs == 1
    by_kind = [Counter(line.kind for line in lines) for lines in (ours, theirs)]
    assert [by_kind[0][kind] for kind in LIBRARY] == [by_kind[1][kind] for kind in LIBRARY]
    assert len(ours) == pytest.approx(len(theirs), rel=KERNELS)
    from training.studies.compiled_memory import peak_bytes

    alive = MemoryFootprint.of(graph, "amp", "compiled").peak(BATCH).total_bytes
    assert alive == pytest.approx(peak_bytes(forward), rel=PEAK)
    bytes_ours, bytes_theirs = (sum(line.bytes for line in lines) for lines in (ours, theirs))
    assert bytes_ours == pytest.approx(bytes_theirs, rel=BYTES)
