from __future__ import annotations

from typing import Any

import pandas as pd
import pytest

from dataset.measured.nodes import make_node
from dataset.measured.operators import graph_of, layer_keys
from dippm.estimate.features.kernels import launched


@pytest.mark.parametrize(
    ("row", "op", "macs", "bytes_moved"),
    [
        ({"operator": "bmm", "B": 2, "M": 3, "N": 5, "K": 7}, "batch_matmul", 2 * 3 * 5 * 7,
         4 * 2 * (15 + 35 + 21)),
        ({"operator": "linear", "B": 1, "M": 3, "N": 5, "K": 7}, "dense", 105, 4 * (15 + 35 + 21)),
        ({"operator": "conv", "B": 2, "in_channels": 3, "out_channels": 4, "kernel_size": 3,
          "input_size": 8, "stride": 1, "padding": 1}, "conv2d", 2 * 64 * 4 * 3 * 9,
         4 * (2 * 3 * 64 + 3 * 4 * 9 + 2 * 4 * 64)),
        ({"operator": "addu", "B": 4, "H": 8}, "add", 0, 4 * 64),
        ({"operator": "add", "B": 4, "H": 8}, "add", 0, 4 * 96),
        ({"operator": "ln", "B": 4, "H": 8}, "layer_norm", 0, 4 * 64),
    ],
)  # fmt: skip
def test_neusight_rows(row: dict[str, Any], op: str, macs: int, bytes_moved: int) -> None:
    graph = graph_of({"source": "neusight_ops", **row})
    assert graph is not None
    (node,) = graph.nodes
    assert (node.op, node.macs) == (op, macs)
    assert node.bytes_read + node.param_bytes + node.bytes_written == bytes_moved


def test_a_product_and_a_convolution_that_is_not_square() -> None:
    product = graph_of({"source": "deepbench", "operator": "gemm", "m": 5, "n": 3, "k": 7})
    assert product is not None
    (node,) = product.nodes
    assert (node.op, node.in_shapes, node.out_shapes) == ("dense", ((3, 7),), ((3, 5),))
    assert node.param_bytes == 4 * 35
    speech = {"N": 4, "C": 1, "H": 161, "W": 700, "K": 32, "R": 5, "S": 20,
              "stride_h": 2, "stride_w": 2, "pad_h": 0, "pad_w": 3}  # fmt: skip
    wide = graph_of({"source": "deepbench", "operator": "conv2d", **speech})
    assert wide is not None
    (node,) = wide.nodes
    assert node.out_shapes == ((4, 32, 79, 344),)
    assert node.macs == 4 * 32 * 79 * 344 * 5 * 20
    assert (node.attributes["kernel"], node.attributes["padding"]) == ((5, 20), (0, 3, 0, 3))
    assert graph_of({"source": "deepbench", "operator": "rnn lstm"}) is None


def attention_row(**shape: Any) -> dict[str, Any]:
    row = {"batch": 2, "isl": 1, "num_heads": 8, "num_kv_heads": 2, "head_dim": 64}
    return {
        "source": "aiconfigurator",
        **row,
        "window_size": 0,
        "step": 99,
        "kv_cache_dtype": "bfloat16",
        **shape,
    }


def test_decoding_reads_the_cache_of_the_shared_heads() -> None:
    graph = graph_of(attention_row(operator="generation_attention"))
    assert graph is not None
    (node,) = graph.nodes
    assert node.in_shapes == ((2, 8, 1, 64), (2, 2, 100, 64), (2, 2, 100, 64))
    assert node.macs == 2 * 2 * 8 * 100 * 64


@pytest.mark.parametrize("other", [{"window_size": 32}, {"kv_cache_dtype": "fp8"}])
def test_a_sliding_window_and_an_eight_bit_cache_are_not_stated(other: dict[str, Any]) -> None:
    assert graph_of(attention_row(operator="generation_attention", **other)) is None
    assert graph_of(attention_row(operator="generation_attention", window_size=1024)) is not None


def test_a_comparison_writes_one_byte_for_each_element() -> None:
    row = {"operator": "eq", "phase": "inference", "input_shapes": "[64,32];[64,32]"}
    graph = graph_of({"source": "flagperf", **row})
    assert graph is not None
    assert (graph.nodes[0].op, graph.nodes[0].bytes_written) == ("equal", 64 * 32)


def vidur_row(**row: Any) -> dict[str, Any]:
    shape = {"tp": 2, "num_tokens": 10, "n_embd": 64, "n_head": 8, "n_kv_head": 2}
    mlp = {"n_expanded_embd": 96, "vocab_size": 100, "use_gated_mlp": True}
    return {"source": "vidur", **shape, **mlp, **row}


@pytest.mark.parametrize(
    ("operator", "macs"),
    [
        ("attn_pre_proj", 10 * 64 * (8 + 4) * 8 // 2),
        ("attn_post_proj", 10 * 64 * 8 * 8 // 2),
        ("mlp_up_proj", 10 * 64 * 2 * 96 // 2),
        ("mlp_down_proj", 10 * 64 * 96 // 2),
    ],
)
def test_vidur_projections_are_divided_among_the_gpus(operator: str, macs: int) -> None:
    graph = graph_of(vidur_row(operator=operator))
    assert graph is not None
    assert graph.nodes[0].macs == macs


def test_what_no_canonical_operator_states_is_none() -> None:
    assert graph_of(vidur_row(operator="attn_rope")) is None


def test_an_unknown_attribute_is_refused() -> None:
    with pytest.raises(KeyError, match="no attributes"):
        make_node("relu", ((1, 2),), (1, 2), attributes={"slope": 1})
    with pytest.raises(KeyError, match="no operator"):
        make_node("rellu", ((1, 2),), (1, 2))


def test_a_layer_is_one_whatever_flows_through_it() -> None:
    rows = [
        {"gpu": "A40", "num_tokens": 16, "n_embd": 64},
        {"gpu": "A40", "num_tokens": 99, "n_embd": 64},
        {"gpu": "H100-SXM-80GB", "num_tokens": 16, "n_embd": 64},
        {"gpu": "A40", "num_tokens": 16, "n_embd": 128},
    ]
    table = pd.DataFrame([{**vidur_row(operator="mlp_up_proj"), "n_q_head": 8} | r for r in rows])
    first, second, third, other = layer_keys(table)
    assert first == second == third != other
    with pytest.raises(ValueError, match="several sources"):
        layer_keys(pd.concat([table, table.assign(source="flagperf")]))


def test_a_lookup_reads_the_rows_that_it_finds() -> None:
    graph = graph_of(vidur_row(operator="emb", vocab_size=32_000))
    assert graph is not None
    [kernel] = launched(graph, "fp16")
    assert (kernel.kind, kernel.write_bytes) == ("gather", 2 * 10 * 64)
    assert kernel.read_bytes < 2 * kernel.write_bytes


def test_attention_of_a_prompt_is_causal_and_that_of_an_encoder_is_not() -> None:
    prompt, encoder = (
        graph_of(attention_row(operator=f"{name}_attention", isl=512, num_kv_heads=8, step=0))
        for name in ("context", "encoder")
    )
    assert prompt is not None
    assert encoder is not None
    assert prompt.nodes[0].attributes == {**encoder.nodes[0].attributes, "causal": 1}
