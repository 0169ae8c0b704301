"""Language models from their published sizes, without weights.

Names are "hf:llama-2-7b@256", with the number of tokens in a sequence. Attention is one fused call;
"hf:llama-2-7b-unfused@256" has separate products, mask and softmax, as in transformers before 4.36.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

UNFUSED = "-unfused"
SIZES: dict[str, tuple[str, dict[str, int]]] = {
    "bert-base": ("Bert", {}),
    "llama-2-7b": ("Llama", {"max_position_embeddings": 4096}),
    "llama-2-13b": (
        "Llama",
        {
            "hidden_size": 5120,
            "intermediate_size": 13_824,
            "num_hidden_layers": 40,
            "num_attention_heads": 40,
            "max_position_embeddings": 4096,
        },
    ),
    "llama-2-70b": (
        "Llama",
        {
            "hidden_size": 8192,
            "intermediate_size": 28_672,
            "num_hidden_layers": 80,
            "num_attention_heads": 64,
            "num_key_value_heads": 8,
            "max_position_embeddings": 8192,
        },
    ),
    "mistral-7b": ("Mistral", {}),
}
"""Architecture by name, and the differences from its default configuration."""


def module_of(name: str, device: str = "meta") -> Any:
    """Return the module of a name such as "llama-2-7b-unfused"; on "meta" it has no memory.

    Raises:
        ValueError: if the name is unknown.
    """
    import torch
    import transformers

    base = name.removesuffix(UNFUSED)
    if base not in SIZES:
        raise ValueError(f"unknown language model {name!r}; known: {', '.join(SIZES)}")
    kind, sizes = SIZES[base]
    settings: Mapping[str, Any] = {
        **sizes,
        "attn_implementation": "sdpa" if base == name else "eager",
    }
    if kind != "Bert":
        settings = {**settings, "use_cache": False}
    config = getattr(transformers, f"{kind}Config")(**settings)
    body = "Model" if kind == "Bert" else "ForCausalLM"
    with torch.device(device):
        return getattr(transformers, kind + body)(config).eval()
