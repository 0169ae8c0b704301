"""`read_decoder`: the configuration of a language model, from any of its sources, as `Decoder`.

Sources are a `config.json` of the Hugging Face hub, the folder that holds one, a mapping, and an
object with `to_dict` (configurations of `transformers`, which is not imported).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dippm.base.files import expand_home, open_regular
from dippm.decide.language import families
from dippm.decide.language.architecture import Attention, Decoder, FeedForward, Latent, Layer
from dippm.decide.language.families import Fields
from dippm.decide.language.setting import stored_format
from dippm.errors import ModelFileError, UnknownArchitectureError, shortened

FILE = "config.json"
MOST_BYTES = 4 << 20
"""A configuration has a few kilobytes; label lists of classifiers have more."""


def read_decoder(source: Any) -> Decoder:
    """Return the language model that a configuration describes.

    Args:
        source: path of a `config.json` or of its folder, a mapping, an object with `to_dict`, or
            a `Decoder`.

    Raises:
        ModelNotFoundError: if the path does not exist.
        ModelFileError: if the file is not a JSON object.
        UnknownArchitectureError: if it does not describe a supported decoder; names what is
            missing.
    """
    if isinstance(source, Decoder):
        return source
    if isinstance(source, str | os.PathLike):
        path = Path(expand_home(source))
        named = path.parent.name if path.name == FILE else path.stem
        if path.is_dir():
            path, named = path / FILE, path.name
        return _decoder_from(_read(path), named or "config")
    if isinstance(source, Mapping):
        return _decoder_from(source, "config")
    to_dict = getattr(source, "to_dict", None)
    found = to_dict() if callable(to_dict) else None
    if not isinstance(found, Mapping):
        raise ModelFileError(
            f"{type(source).__name__} is not a configuration of a language model",
            "Give the path of a config.json or of its folder, or its content as a mapping.",
        )
    return _decoder_from(found, type(source).__name__.removesuffix("Config"))


def _read(path: Path) -> Mapping[str, Any]:
    with open_regular(path) as file:
        text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise ModelFileError(
            f"{path} has more than {MOST_BYTES >> 20} MiB: it is not a configuration",
            "Give the config.json of a language model.",
        )
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(
            f"{path} is not JSON: {error}", "Give the config.json of a language model."
        ) from error
    if not isinstance(found, dict):
        raise ModelFileError(
            f"{path} contains no JSON object", "Give the config.json of a language model."
        )
    return found


# Fields of a configuration → `Decoder`.
#
# The structure follows from the fields: experts from their number, latent attention from its rank,
# a window from its size. Properties that a family fixes in code (two parallel norms in GPT-NeoX,
# the tied head of Gemma) are in the tables of `families`.

MOST_LAYERS = 2_000
_TEXT = ("text_config", "llm_config", "language_config")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "n_embed", "model_dim")
_LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num")
_WIDTH = ("intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size", "d_ff")
_EXPERTS = ("num_local_experts", "n_routed_experts", "num_experts", "moe_num_experts")
_CHOSEN = (
    "num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_top_k", "moe_k",
)  # fmt: skip
_ACTIVATION = ("hidden_activation", "hidden_act", "activation_function", "activation")
_LONGEST = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length",
)  # fmt: skip


def _decoder_from(values: Mapping[str, Any], name: str) -> Decoder:
    """Return the decoder that a configuration describes.

    Args:
        values: content of the configuration.
        name: name of the model if the configuration has none.

    Raises:
        UnknownArchitectureError: if the architecture is not supported or contradicts itself.
    """
    given = values.get("_name_or_path")
    model = given if isinstance(given, str) and given else name
    whole = Fields(values, model)
    families.refuse_others(whole)
    text = whole.inner(*_TEXT)
    fields = whole if text is None or whole.has(*_HIDDEN) else text
    if fields is text:
        families.refuse_others(fields)
    hidden, count = fields.need(*_HIDDEN), fields.need(*_LAYERS)
    if count > MOST_LAYERS:
        raise UnknownArchitectureError(
            f"{model} has {count:,} layers", f"Give at most {MOST_LAYERS:,}."
        )
    tied = fields.flag("tie_word_embeddings")
    if tied is None:
        tied = whole.flag("tie_word_embeddings")
    quantisation = values.get("quantization_config") or fields.values.get("quantization_config")
    notes = [f"{model}: the language model alone; what reads images or sound is left out"]
    notes = notes if fields is text else []
    if fields.family and fields.family not in families.CHECKED:
        notes.append(
            f"the type {shortened(fields.family)!r} was never checked: read by its fields alone, "
            f"what it fixes in its code is not known"
        )
    embedding = fields.size("word_embed_proj_dim")
    return Decoder(
        name=model,
        family=fields.family or whole.family,
        hidden=hidden,
        vocabulary=fields.need("vocab_size", "padded_vocab_size"),
        layers=_layers(fields, hidden, count),
        tied=families.ties_head(fields.family) if tied is None else tied,
        positions=families.learned_positions(fields),
        norm_bias=families.norm_has_bias(fields),
        embedding_width=None if embedding == hidden else embedding,
        longest=fields.size(*_LONGEST) or None,
        stored=stored_format(quantisation if isinstance(quantisation, Mapping) else None),
        notes=tuple(notes),
    )


def _layers(fields: Fields, hidden: int, count: int) -> tuple[Layer, ...]:
    attention = _attention(fields, hidden)
    windows = families.windows(fields, count)
    dense, sparse = _feed_forward(fields, hidden)
    experts = _has_experts(fields, count) if sparse else [False] * count
    norms, parallel = families.norms(fields), families.is_parallel(fields)
    made: dict[tuple[int | None, bool], Layer] = {}
    layers = []
    for window, routed in zip(windows, experts, strict=True):
        key = (window, routed)
        if key not in made:
            network = sparse if routed and sparse is not None else dense
            if network is None:
                raise fields.missing(*_WIDTH)
            seen = Attention(
                **{n: getattr(attention, n) for n in Attention.__slots__} | {"window": window}
            )
            made[key] = Layer(seen, network, norms, parallel)
        layers.append(made[key])
    return tuple(layers)


def _attention(fields: Fields, hidden: int) -> Attention:
    nested = fields.inner("attn_config")
    heads = fields.need(*_HEADS)
    bias, out_bias = families.attention_biases(fields)
    rank = fields.size("kv_lora_rank")
    if rank:
        rotary, plain = fields.need("qk_rope_head_dim"), fields.need("qk_nope_head_dim")
        return Attention(
            heads=heads,
            kv_heads=heads,
            head_dim=rotary + plain,
            value_dim=fields.need("v_head_dim"),
            latent=Latent(rank, rotary, fields.size("q_lora_rank") or None),
        )
    shared = nested.size("kv_n_heads") if nested else None
    kv_heads = shared or families.kv_heads(fields, fields.size(*_KV_HEADS), heads)
    if kv_heads > heads or heads % kv_heads:
        raise UnknownArchitectureError(
            f"{fields.model}: {heads} heads of queries cannot share {kv_heads} of keys and values",
            "Correct num_attention_heads or num_key_value_heads in the config.json.",
        )
    width = fields.size("head_dim", "kv_channels", "attention_head_size")
    if not width and hidden % heads:
        raise UnknownArchitectureError(
            f"{fields.model}: {heads} heads do not divide a hidden size of {hidden}",
            "Correct one of the two in the config.json, or write head_dim into it.",
        )
    width = width or hidden // heads
    return Attention(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=width,
        value_dim=width,
        bias=bias,
        out_bias=out_bias,
        normed=families.norms_queries(fields),
        rotary=families.is_rotary(fields),
    )


def _feed_forward(fields: Fields, hidden: int) -> tuple[FeedForward | None, FeedForward | None]:
    """Return the plain feed-forward network and the one with experts; None if absent."""
    nested = fields.inner("ffn_config")
    source = nested or fields
    act = nested.inner("ffn_act_fn") if nested else None
    gated = families.is_gated(fields, act.word("name") if act else fields.word(*_ACTIVATION))
    bias = families.network_has_bias(fields)
    width = source.size(*_WIDTH)
    experts = source.size(*_EXPERTS) or 0
    if not width and not gated:
        ratio = fields.size("expansion_ratio") or 4
        width = ratio * hidden
    if experts <= 1:
        return (FeedForward(width, gated, bias) if width else None), None
    of_expert = source.size("moe_intermediate_size") or width
    if not of_expert:
        raise fields.missing("moe_intermediate_size", *_WIDTH)
    chosen = source.need(*_CHOSEN)
    if chosen > experts:
        raise UnknownArchitectureError(
            f"{fields.model}: a token cannot go through {chosen} of {experts} experts",
            f"Correct {_CHOSEN[0]} or {_EXPERTS[0]} in the config.json.",
        )
    shared = families.shared_width(fields, of_expert)
    sparse = FeedForward(of_expert, gated, bias, experts, chosen, shared)
    plain = fields.size("intermediate_size_mlp") or width
    return (FeedForward(plain, gated, bias) if plain else None), sparse


def _has_experts(fields: Fields, count: int) -> list[bool]:
    """Return for each layer whether it has experts."""
    kinds = fields.row("mlp_layer_types", count)
    if kinds is not None:
        return [kind == "sparse" for kind in kinds]
    listed = fields.values.get("moe_layers")
    if isinstance(listed, list):
        return [i in listed for i in range(count)]
    routed = fields.values.get("moe_layer_freq")
    if isinstance(routed, list):
        return [bool(one) for one in fields.row("moe_layer_freq", count) or [1] * count]
    first = fields.size("first_k_dense_replace") or 0
    plain = fields.values.get("mlp_only_layers")
    dense = set(plain) if isinstance(plain, list) else set()
    step = fields.size("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_freq") or 1
    return [i >= first and i not in dense and (i + 1) % step == 0 for i in range(count)]
