"""Corrections of operators: what trees learn of a bias, and rows as kernels."""

from __future__ import annotations

import numpy as np
import pytest

from dippm.decide.language import kernels as k
from dippm.decide.language.corrections import Corrections, shipped_corrections
from dippm.decide.language.kernels import Pass
from dippm.decide.language.pass_kernels import PLAIN, engine_kernels
from dippm.decide.language.setting import format_of
from dippm.devices import find
from dippm.estimate.features.kernel_features import DeviceView, kernel_features
from dippm.estimate.features.kernel_table import KernelTable
from training.language import corrections, operators
from training.language.operators import OperatorRow
from training.language.shapes import SHAPES

GEMM = {"operator": "gemm", "gemm_dtype": "bfloat16", "gpu": "H100", "m": 8, "n": 6144, "k": 4096}
DECODE = {
    "operator": "generation_attention", "gpu": "H100", "batch": 8, "isl": 1, "step": 1023,
    "num_heads": 32, "num_kv_heads": 8, "head_dim": 128, "window_size": 0,
    "attn_dtype": "bfloat16", "kv_cache_dtype": "bfloat16",
}  # fmt: skip
PROJECTION = {
    "operator": "attn_pre_proj", "tp": 2, "num_tokens": 8, "n_embd": 4096, "n_head": 32,
    "n_kv_head": 8, "n_expanded_embd": 14_336, "use_gated_mlp": True,
}  # fmt: skip


def features_of(kernel):
    view = DeviceView.of(find("H100"))
    return kernel_features(KernelTable.of_kernels([kernel]), 1, view)


def test_measured_operators_are_kernels_of_the_engine():
    from dippm.decide.language import read_decoder

    listed = engine_kernels(read_decoder(SHAPES["llama-3.1-8b"]), Pass.decode(8, 1024), PLAIN)
    of_engine = {kernel for _, kernel in listed.counts}
    assert operators._aiconfigurator(GEMM) in of_engine
    assert operators._aiconfigurator(DECODE) in of_engine
    fp8 = operators._aiconfigurator({**GEMM, "gemm_dtype": "fp8"})
    assert fp8 == k.product(8, 6144, 4096, format_of("fp8", find("H100")))
    assert operators._vidur(PROJECTION) == k.product(8, 3072, 4096, PLAIN)
    assert operators._vidur({**PROJECTION, "operator": "mlp_act"}) == k.gate(8, 7168)


def test_trees_learn_what_a_class_adds_and_leave_others_alone():
    products = [k.product(2**i, 64 * n, 1024, PLAIN) for i in range(8) for n in range(1, 300)]
    rows = [
        OperatorRow("aiconfigurator", find("H100"), "gemm", "vllm", p, 1.0, str(p.n))
        for p in products
    ]
    features = np.concatenate([features_of(p) for p in products])
    residual = np.where([p.m >= 16 for p in products], 0.5, -0.2)
    added = corrections.held_out(rows, features, residual, "layer")
    assert np.abs(added - residual).mean() < 0.05
    tensors = corrections.fitted(features, residual, corrections.weights_of(rows))
    metadata = corrections.metadata_of(features)
    found = Corrections.from_tensors(tensors, metadata)
    assert found.factor(features_of(products[0])) == pytest.approx(np.exp(-0.2), rel=0.1)
    assert found.factor(features_of(k.norm(8, 4096))) == 1.0
    assert Corrections.from_tensors(tensors, {**metadata, "features": "0"}) is None


def test_the_shipped_corrections_are_of_these_features():
    found = shipped_corrections()
    assert found is not None
    assert {"gemm", "attention", "layer_norm"} <= set(found.classes)
    sizes = [2**i for i in range(14)]
    factors = [found.factor(features_of(k.product(m, 4096, 4096, PLAIN))) for m in sizes]
    assert all(0.2 < factor < 4.5 for factor in factors)
