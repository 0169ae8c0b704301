"""Measured operators of serving engines as the kernels that `dippm.decide.language` lists.

AIConfigurator: matrix products in bf16 and fp8, attention over prompts and of single tokens against
a cache. Vidur: projections, norms, activations, lookups and attention in fp16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

import pandas as pd

from dataset.measured.operators import layer_keys
from dataset.measured.sources import read
from dippm.decide.language import kernels as k
from dippm.decide.language.architecture import Attention
from dippm.decide.language.kernels import Pass
from dippm.decide.language.pass_kernels import PLAIN, causal_work, keys_per_query
from dippm.decide.language.setting import format_of
from dippm.devices import Device, find
from dippm.estimate.features.kernel import Kernel

SHORTEST_MS = 0.004
"""Vidur counts whole microseconds: below this the rounding alone is 12 %."""
FOLDS = 5


@dataclass(frozen=True, slots=True)
class OperatorRow:
    """A measured operator.

    Attributes:
        source: source of the row.
        device: GPU.
        operator: name of the operator, with its format.
        software: framework and version; "" if not recorded.
        kernel: kernel in the engine's list.
        ms: measured.
        layer: key of what makes its layer, see `layer_keys`.
    """

    source: str
    device: Device
    operator: str
    software: str
    kernel: Kernel
    ms: float
    layer: str

    @property
    def taught(self) -> bool:
        """Return whether the corrections are fitted to the row.

        They are those of one framework that all GPUs have, vLLM, and what only Vidur measured. Its
        products run up to 1.5 times as long as those of vLLM on what is called the same H100, and
        frameworks are 0.7 to 1.2 of each other in attention on the A100.
        """
        if self.source == "vidur":
            return self.kernel.kind not in ("gemm", "attention")
        return self.software.startswith("vllm")

    def fold(self, by: str) -> int:
        """Return its fold, 0 to FOLDS - 1: rows of a "layer", or of a "shape", are never apart."""
        key = self.layer if by == "layer" else repr(self.kernel)
        return crc32(key.encode()) % FOLDS


def operator_rows(data: Path | None, per_group: int, seed: int = 0) -> list[OperatorRow]:
    """Return rows, at most so many of each GPU, operator, format and software.

    Of other tables than vLLM's, which many groups share, a fifth is enough.
    """
    found = []
    for source, maker in (("aiconfigurator", _aiconfigurator), ("vidur", _vidur)):
        table = read(source, data)
        shortest = SHORTEST_MS if source == "vidur" else 0.0
        table = table[table["latency_ms"] > shortest]
        table = table.assign(layer=layer_keys(table), wanted=_names(table))
        table = table[table["wanted"] != ""]
        table = table.assign(software=table["software"].fillna(""))
        groups = table.groupby(["gpu", "wanted", "software"], sort=True)
        parts = []
        for _, group in groups:
            vllm = group["software"].iloc[0].startswith("vllm")
            most = per_group if vllm else per_group // 5
            parts.append(group.sample(min(most, len(group)), random_state=seed))
        for record in pd.concat(parts).to_dict("records"):
            kernel = maker(record)
            if kernel is not None:
                found.append(
                    OperatorRow(
                        source,
                        find(record["gpu"]),
                        record["wanted"],
                        record["software"],
                        kernel,
                        float(record["latency_ms"]),
                        record["layer"],
                    )
                )
    return found


def _names(table: pd.DataFrame) -> pd.Series[str]:
    """Return what each row is called; "" for what is left out (fp8 by blocks, encoders)."""
    names = table["operator"].astype(str)
    if "gemm_dtype" not in table:
        return names.where(~names.isin(["attn_input_reshape", "attn_output_reshape"]), "")
    gemm = table["operator"] == "gemm"
    dtype = table["gemm_dtype"].where(gemm, table["kv_cache_dtype"]).fillna("").astype(str)
    plain = dtype.isin(["bfloat16", "fp8"])
    attends = table["operator"].isin(["context_attention", "generation_attention"])
    attends &= table["attn_dtype"].astype(str) == "bfloat16"
    label = names + " " + dtype.replace("bfloat16", "bf16")
    windowed = attends & (table["window_size"].fillna(0).astype(int) > 0)
    label = label.where(~windowed, label + " window")
    return label.where(plain & (gemm | attends), "")


def _aiconfigurator(row: Mapping[str, Any]) -> Kernel | None:
    if row["operator"] == "gemm":
        name = "fp8" if row["gemm_dtype"] == "fp8" else "bf16"
        weights = format_of(name, find(row["gpu"]))
        return k.product(int(row["m"]), int(row["n"]), int(row["k"]), weights)
    heads = int(row["num_heads"])
    new, kept = int(row["isl"]), int(row["step"])
    return _attention(
        heads,
        int(row["num_kv_heads"]) or heads,
        int(row["head_dim"]),
        Pass(int(row["batch"]), new, kept + new),
        window=int(row["window_size"]) or None,
        cache_width=1 if row["kv_cache_dtype"] == "fp8" else 2,
    )


def _attention(
    heads: int,
    kv_heads: int,
    width: int,
    done: Pass,
    *,
    window: int | None = None,
    cache_width: int = 2,
) -> Kernel:
    a = Attention(heads, kv_heads, width, width, window=window)
    keys = keys_per_query(a, done)
    kept = min(done.context, window or done.context)
    read_bytes = done.batch * (
        2 * heads * done.queries * width + cache_width * 2 * kv_heads * width * kept
    )
    group = heads / kv_heads
    copies, queries = done.batch * kv_heads, done.queries * group
    share = causal_work(a, done)
    return k.attention(copies, queries, keys, width, read_bytes=read_bytes, share=share)


def _vidur(row: Mapping[str, Any]) -> Kernel | None:
    op, tp = row["operator"], int(row["tp"])
    if op in ("attn_prefill", "attn_decode"):
        new = int(row["prefill_chunk_size"]) if op == "attn_prefill" else 1
        done = Pass(int(row["batch"]), new, int(row["kv_cache_size"]) + new)
        width = int(row["n_embd"]) // int(row["n_q_head"])
        return _attention(int(row["n_q_head"]) // tp, int(row["n_kv_head"]) // tp, width, done)
    tokens, hidden, heads = int(row["num_tokens"]), int(row["n_embd"]), int(row["n_head"])
    gated, kv_heads = bool(row["use_gated_mlp"]), int(row["n_kv_head"])
    width = hidden // heads
    wide = int(row["n_expanded_embd"]) // tp
    turned = (heads + kv_heads) * width // tp
    makers: dict[str, Callable[[], Kernel]] = {
        "attn_pre_proj": lambda: k.product(
            tokens, (heads + 2 * kv_heads) * width // tp, hidden, PLAIN
        ),
        "attn_post_proj": lambda: k.product(tokens, hidden, heads * width // tp, PLAIN),
        "mlp_up_proj": lambda: k.product(tokens, wide * (2 if gated else 1), hidden, PLAIN),
        "mlp_down_proj": lambda: k.product(tokens, hidden, wide, PLAIN),
        "mlp_act": lambda: (
            k.gate(tokens, wide)
            if gated
            else k.stream("costly_activation", tokens, wide, flops=8.0)
        ),
        "add": lambda: k.stream("elementwise", tokens, hidden, reads=2),
        "emb": lambda: k.lookup(tokens, hidden),
        "attn_rope": lambda: k.stream("elementwise", tokens, turned, flops=3.0, in_place=True),
        "input_layernorm": lambda: k.norm(tokens, hidden),
        "post_attention_layernorm": lambda: k.norm(tokens, hidden),
    }
    return makers[op]() if op in makers else None
