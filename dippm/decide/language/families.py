"""Properties that families of language models fix in code; `Fields`, which say the others.

Each rule uses fields first, and names of families only where no field decides. To add a family:
read one of its configurations with `read_decoder`, compare `Decoder.parameters` with the model's
own count, and add the name to the tables that differ. Models without attention are refused here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dippm.errors import UnknownArchitectureError, shortened

CHECKED = (
    "bloom", "deepseek_v2", "deepseek_v3", "falcon", "gemma", "gemma2", "gemma3_text", "glm",
    "gpt2", "gpt_bigcode", "gpt_neox", "gpt_oss", "gptj", "llama", "mistral", "mixtral",
    "opt", "phi", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "starcoder2",
)  # fmt: skip
"""Values of `model_type` whose number of weights was checked against the model's own; others are
read by their fields alone, and the answer says so."""
TIED = (
    "gpt2", "gpt_bigcode", "gpt_neo", "opt", "bloom", "falcon", "mpt", "starcoder2", "gemma",
    "cohere", "xglm",
)  # fmt: skip
"""Prefixes of families whose head is tied to the embedding by default."""
UNGATED = ("gpt", "opt", "bloom", "falcon", "mpt", "phi", "codegen", "xglm")
"""Families that may omit the activation from their configuration and have no gate."""
ALIBI = ("bloom", "mpt")
SANDWICHED = ("gemma2", "gemma3", "glm4")
"""Families with norms both before and after attention and feed-forward network."""
ONE_NORM = ("gptj", "codegen", "phi", "cohere")
PARALLEL = (*ONE_NORM, "gpt_neox")
NORMS_QUERIES = ("qwen3", "gemma3", "olmo2", "olmoe", "olmo3")
ALTERNATING = {"gemma2": 2, "gemma3": 6, "gpt_oss": 2, "cohere2": 4}
"""Families with windows in all layers except every n-th → n where no field gives it."""
_RECURRENT = ("ssm_", "mamba_", "rwkv", "linear_num_", "linear_conv_", "time_", "lru_", "conv_l_")
_SPARSE = ("index_topk", "index_n_heads")
_ENCODERS = ("type_vocab_size", "relative_attention_num_buckets")
_ATTENDS = ("full_attention", "sliding_attention", "chunked_attention", "attention")
_GATES = ("silu", "swish", "swiglu", "geglu", "glu", "silu_and_mul", "xielu_glu")


def refuse_others(fields: Fields) -> None:
    """Refuse configurations that are not decoders of attention layers.

    Raises:
        UnknownArchitectureError: names the decisive field.
    """
    for name in fields.values:
        low = str(name).casefold()
        if low.startswith(_RECURRENT) or low == "state_size":
            raise _other(fields, name, "layers with a recurrent state")
        if low in _SPARSE:
            raise _other(fields, name, "attention that looks its keys up in an index")
    if fields.values.get("is_encoder_decoder") is True:
        raise _other(fields, "is_encoder_decoder", "an encoder in addition to its decoder")
    if fields.values.get("is_decoder") is not True:
        for name in _ENCODERS:
            if fields.has(name) and not fields.has("num_key_value_heads"):
                raise _other(fields, name, "the fields of an encoder")
    kinds = fields.values.get("layer_types")
    for kind in kinds if isinstance(kinds, list) else ():
        if kind not in _ATTENDS:
            text = shortened(str(kind))
            raise _other(fields, "layer_types", f"layers of the kind {text!r}")


def _other(fields: Fields, name: object, what: str) -> UnknownArchitectureError:
    kind = f" ({shortened(fields.family)})" if fields.family else ""
    return UnknownArchitectureError(
        f"{fields.model}{kind} has {what}: its configuration says {name}",
        "Only decoders whose layers are attention and feed-forward networks are known. "
        "`dippm predict` reads the model itself, if its framework can build it. " + KNOWN_FIELDS,
    )


def ties_head(family: str) -> bool:
    """Return whether a family ties head and embedding by default."""
    return family.startswith(TIED)


def is_gated(fields: Fields, activation: str) -> bool:
    """Return whether the feed-forward network has a gate.

    Raises:
        UnknownArchitectureError: if neither a field nor the family decides.
    """
    if activation in _GATES or fields.has("hidden_activation", "multi_query_group_num"):
        return True
    if fields.family.startswith(("gemma", "glm", "chatglm")) or fields.flag("use_glu", "glu_mlp"):
        return True
    if activation or fields.family.startswith(UNGATED):
        return False
    raise fields.missing("hidden_act", "activation_function")


def norm_has_bias(fields: Fields) -> bool:
    """Return whether norms have biases: layer norms do, RMS norms do not."""
    if fields.has("rms_norm_eps") or fields.flag("rmsnorm"):
        return False
    return not fields.family.startswith(("cohere", "mpt", "dbrx", "olmo"))


def norms(fields: Fields) -> int:
    """Return the number of norms of the hidden state in a layer."""
    if fields.family.startswith(SANDWICHED) and not fields.family.startswith("glm4_moe"):
        return 4
    if fields.family == "falcon" and is_parallel(fields):
        return 2 if fields.flag("new_decoder_architecture") else 1
    single = fields.family.startswith(ONE_NORM) and not _is_phi3(fields)
    return 1 if single else 2


def is_parallel(fields: Fields) -> bool:
    """Return whether attention and feed-forward network read the same state."""
    asked = fields.flag("use_parallel_residual", "parallel_attn", "parallel_attention")
    if asked is not None:
        return asked
    if fields.family == "falcon":
        return True
    return fields.family.startswith(PARALLEL) and not _is_phi3(fields)


def _is_phi3(fields: Fields) -> bool:
    return fields.family.startswith(("phi3", "phi4", "phimoe"))


def kv_heads(fields: Fields, stated: int | None, heads: int) -> int:
    """Return the number of key and value heads.

    Args:
        fields: fields of the model.
        stated: number in the configuration; None without one.
        heads: number of query heads.
    """
    one = fields.flag("multi_query")
    if fields.family == "falcon":
        if fields.flag("new_decoder_architecture"):
            return stated or heads
        return 1 if one or one is None else heads
    if fields.family.startswith("gpt_bigcode"):
        return heads if one is False else 1
    return stated or heads


def attention_biases(fields: Fields) -> tuple[bool, bool]:
    """Return whether the projections of (queries, keys and values; the output) have biases."""
    both = fields.flag("attention_bias")
    inner = fields.flag("qkv_bias", "add_qkv_bias", "use_qkv_bias")
    if inner is not None:
        return inner, False
    if both is not None:
        return both, both and not fields.family.startswith("glm")
    if fields.family.startswith("qwen2"):
        return True, False
    everywhere = _biased(fields)
    return everywhere, everywhere


def network_has_bias(fields: Fields) -> bool:
    """Return whether the feed-forward network has biases."""
    asked = fields.flag("mlp_bias")
    if asked is not None:
        return asked
    return fields.family.startswith(("gptj", "gpt_oss", "codegen")) or _biased(fields)


def _biased(fields: Fields) -> bool:
    asked = fields.flag("use_bias", "bias", "enable_bias")
    if asked is not None:
        return asked
    if fields.flag("no_bias") is not None:
        return not fields.flag("no_bias")
    usual = ("gpt2", "gpt_neox", "gpt_bigcode", "opt", "bloom", "starcoder2", "xglm")
    return fields.family.startswith(usual) or fields.family == "phi"


def norms_queries(fields: Fields) -> bool:
    """Return whether queries and keys are normalised."""
    asked = fields.flag("use_qk_norm", "qk_layernorm", "qk_norm")
    return fields.family.startswith(NORMS_QUERIES) if asked is None else asked


def learned_positions(fields: Fields) -> int:
    """Return the number of learned positions; 0 without a table of them."""
    if fields.family == "opt" or fields.has("do_layer_norm_before"):
        return (fields.size("max_position_embeddings") or 0) + 2
    if fields.has("rotary_dim", "rotary_pct", "rope_theta", "rope_parameters"):
        return 0
    if fields.family.startswith(("gpt2", "gpt_bigcode", "gpt_neo")) or fields.has("n_inner"):
        return fields.size("n_positions", "max_position_embeddings") or 0
    return 0


def is_rotary(fields: Fields) -> bool:
    """Return whether queries and keys have rotary positions."""
    if fields.flag("alibi") or fields.family.startswith(ALIBI):
        return False
    return not learned_positions(fields)


def shared_width(fields: Fields, of_expert: int) -> int:
    """Return the total width of the experts that process every token."""
    stated = fields.size("shared_expert_intermediate_size", "shared_intermediate_size")
    if stated:
        return stated
    count = fields.size("n_shared_experts", "num_shared_experts", "moe_num_shared_experts") or 0
    if fields.family.startswith("llama4"):
        count = 1
    return count * of_expert


def windows(fields: Fields, count: int) -> Sequence[int | None]:
    """Return the attention window of each of `count` layers in tokens; None for none."""
    chunk = fields.size("attention_chunk_size")
    window = fields.size("sliding_window", "window_size") or chunk or None
    kinds = fields.row("layer_types", count)
    if kinds is not None:
        return [window if str(kind).startswith(("sliding", "chunked")) else None for kind in kinds]
    if fields.flag("use_sliding_window") is False or window is None:
        return [None] * count
    if fields.flag("use_sliding_window"):
        first = fields.size("max_window_layers") or 0
        return [window if i >= first else None for i in range(count)]
    for family, usual in ALTERNATING.items():
        if fields.family.startswith(family):
            every = fields.size("sliding_window_pattern") or usual
            return [None if (i + 1) % every == 0 else window for i in range(count)]
    if fields.family.startswith("gpt_neo") and not fields.family.startswith("gpt_neox"):
        return [window if i % 2 else None for i in range(count)]
    return [window] * count


# `Fields`: a configuration whose values are checked when they are read.

LARGEST = 1 << 31
KNOWN_FIELDS = "The families that are known are listed in docs/language_models.md."


class Fields:
    """Values by name, where several names may stand for one property.

    Args:
        values: content of the configuration.
        model: name of the model, for messages.
    """

    def __init__(self, values: Mapping[str, Any], model: str) -> None:
        self.values, self.model = values, model
        family = values.get("model_type")
        self.family = family.casefold() if isinstance(family, str) else ""

    def has(self, *names: str) -> bool:
        """Return whether one of the fields exists and is not null."""
        return any(self.values.get(name) is not None for name in names)

    def size(self, *names: str) -> int | None:
        """Return the first of the fields that exists, an integer of at least 0.

        Raises:
            UnknownArchitectureError: if it is not such an integer.
        """
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if isinstance(value, list) and value and all(v == value[0] for v in value):
                value = value[0]
            if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST:
                raise UnknownArchitectureError(
                    f"{self.model}: {name} is {shortened(repr(value))}, not a whole number",
                    "Correct it in the config.json; a size is a whole number above 0.",
                )
            return value
        return None

    def need(self, *names: str) -> int:
        """Return a field like `size`, which has to exist and be above 0.

        Raises:
            UnknownArchitectureError: if none of the fields exists, or it is 0.
        """
        found = self.size(*names)
        if not found:
            raise self.missing(*names)
        return found

    def flag(self, *names: str) -> bool | None:
        """Return the first of the fields that is a boolean; None without one."""
        return next((v for n in names if isinstance(v := self.values.get(n), bool)), None)

    def word(self, *names: str) -> str:
        """Return the first of the fields that is a string, in lower case; "" without one."""
        found = (self.values.get(name) for name in names)
        return next((text.casefold() for text in found if isinstance(text, str)), "")

    def row(self, name: str, length: int) -> Sequence[Any] | None:
        """Return a list with a value for each layer; None if the field does not exist.

        Raises:
            UnknownArchitectureError: if it has another length.
        """
        found = self.values.get(name)
        if not isinstance(found, list) or not found:
            return None
        if len(found) < length:
            raise UnknownArchitectureError(
                f"{self.model}: {name} has {len(found)} entries, there are {length} layers",
                "Correct one of the two in the config.json.",
            )
        return found[:length]

    def inner(self, *names: str) -> Fields | None:
        """Return the first of the fields that is a mapping; None without one."""
        for name in names:
            found = self.values.get(name)
            if isinstance(found, Mapping):
                return Fields(found, self.model)
        return None

    def missing(self, *names: str) -> UnknownArchitectureError:
        """Return the error for a missing field."""
        kind = f" of type {shortened(self.family)!r}" if self.family else ""
        others = f" (nor {', '.join(names[1:])})" if len(names) > 1 else ""
        return UnknownArchitectureError(
            f"{self.model}{kind} has no {names[0]}{others} in its configuration",
            f"Write it into the config.json. {KNOWN_FIELDS}",
        )
