"""Configurations of well-known open models, as their config.json say it, from their publications.

Only the fields that make the shape; nothing of it was downloaded.
"""

from __future__ import annotations

from typing import Any


def _llama(
    hidden: int, width: int, layers: int, heads: int, kv: int, **more: Any
) -> dict[str, Any]:
    return {
        "model_type": "llama", "hidden_size": hidden, "intermediate_size": width,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv,
        "hidden_act": "silu", "rms_norm_eps": 1e-5, "vocab_size": 32_000,
        "max_position_embeddings": 4096, "tie_word_embeddings": False, **more,
    }  # fmt: skip


def _gemma(
    kind: str, hidden: int, width: int, layers: int, heads: int, **more: Any
) -> dict[str, Any]:
    return _llama(hidden, width, layers, heads, more.pop("kv"), **{
        "model_type": kind, "hidden_activation": "gelu_pytorch_tanh", "head_dim": 256,
        "vocab_size": 256_000, "max_position_embeddings": 8192, "tie_word_embeddings": True, **more,
    })  # fmt: skip


LLAMA3 = {"vocab_size": 128_256, "max_position_embeddings": 131_072}
QWEN = {"vocab_size": 151_936, "max_position_embeddings": 32_768}
SHAPES: dict[str, dict[str, Any]] = {
    "llama-2-7b": _llama(4096, 11_008, 32, 32, 32),
    "llama-2-13b": _llama(5120, 13_824, 40, 40, 40),
    "llama-65b": _llama(8192, 22_016, 80, 64, 64, max_position_embeddings=2048),
    "llama-2-70b": _llama(8192, 28_672, 80, 64, 8),
    "codellama-7b": _llama(4096, 11_008, 32, 32, 32, vocab_size=32_016),
    "codellama-13b": _llama(5120, 13_824, 40, 40, 40, vocab_size=32_016),
    "codellama-34b": _llama(8192, 22_016, 48, 64, 8),
    "llama-3.1-8b": _llama(4096, 14_336, 32, 32, 8, **LLAMA3),
    "llama-3.1-70b": _llama(8192, 28_672, 80, 64, 8, **LLAMA3),
    "llama-3.1-405b": _llama(16_384, 53_248, 126, 128, 8, **LLAMA3),
    "llama-3.2-1b": _llama(
        2048, 8192, 16, 32, 8, **{**LLAMA3, "head_dim": 64, "tie_word_embeddings": True}
    ),
    "mistral-7b-v0.1": _llama(
        4096, 14_336, 32, 32, 8, model_type="mistral", sliding_window=4096,
        max_position_embeddings=32_768,
    ),
    "mistral-7b-v0.3": _llama(
        4096, 14_336, 32, 32, 8, model_type="mistral", sliding_window=None, vocab_size=32_768,
        max_position_embeddings=32_768,
    ),
    "mistral-nemo": _llama(
        5120, 14_336, 40, 32, 8, model_type="mistral", head_dim=128, vocab_size=131_072,
        max_position_embeddings=131_072, sliding_window=None,
    ),
    "mistral-large": _llama(
        12_288, 28_672, 88, 96, 8, model_type="mistral", vocab_size=32_768, sliding_window=None,
        max_position_embeddings=32_768,
    ),
    "mixtral-8x7b": _llama(
        4096, 14_336, 32, 32, 8, model_type="mixtral", num_local_experts=8, num_experts_per_tok=2,
        max_position_embeddings=32_768, sliding_window=None,
    ),
    "mixtral-8x22b": _llama(
        6144, 16_384, 56, 48, 8, model_type="mixtral", num_local_experts=8, num_experts_per_tok=2,
        max_position_embeddings=65_536, sliding_window=None, vocab_size=32_768,
    ),
    "qwen2-7b": _llama(
        3584, 18_944, 28, 28, 4, model_type="qwen2", use_sliding_window=False,
        sliding_window=131_072, **{**QWEN, "vocab_size": 152_064},
    ),
    "qwen2.5-0.5b": _llama(
        896, 4864, 24, 14, 2, model_type="qwen2", use_sliding_window=False, sliding_window=32_768,
        **{**QWEN, "tie_word_embeddings": True},
    ),
    "qwen1.5-moe-a2.7b": _llama(
        2048, 5632, 24, 16, 16, model_type="qwen2_moe", moe_intermediate_size=1408, num_experts=60,
        num_experts_per_tok=4, shared_expert_intermediate_size=5632, decoder_sparse_step=1,
        use_sliding_window=False, **QWEN,
    ),
    "qwen3-8b": _llama(
        4096, 12_288, 36, 32, 8, model_type="qwen3", head_dim=128, attention_bias=False,
        use_sliding_window=False, **QWEN,
    ),
    "qwen3-30b-a3b": _llama(
        2048, 6144, 48, 32, 4, model_type="qwen3_moe", head_dim=128, moe_intermediate_size=768,
        num_experts=128, num_experts_per_tok=8, decoder_sparse_step=1, mlp_only_layers=[],
        attention_bias=False, **QWEN,
    ),
    "gemma-2b": _gemma("gemma", 2048, 16_384, 18, 8, kv=1),
    "gemma-7b": _gemma("gemma", 3072, 24_576, 28, 16, kv=16),
    "gemma-2-2b": _gemma("gemma2", 2304, 9216, 26, 8, kv=4, sliding_window=4096),
    "gemma-2-9b": _gemma("gemma2", 3584, 14_336, 42, 16, kv=8, sliding_window=4096),
    "gemma-2-27b": _gemma("gemma2", 4608, 36_864, 46, 32, kv=16, sliding_window=4096, head_dim=128),
    "gemma-3-1b": _gemma(
        "gemma3_text", 1152, 6912, 26, 4, kv=1, sliding_window=512, sliding_window_pattern=6,
        vocab_size=262_144, max_position_embeddings=32_768,
    ),
    "phi-2": {
        "model_type": "phi", "hidden_size": 2560, "intermediate_size": 10_240,
        "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 51_200,
        "hidden_act": "gelu_new", "layer_norm_eps": 1e-5, "max_position_embeddings": 2048,
        "tie_word_embeddings": False,
    },
    "phi-3-mini": _llama(
        3072, 8192, 32, 32, 32, model_type="phi3", vocab_size=32_064, sliding_window=2047
    ),
    "phi-3-medium": _llama(
        5120, 17_920, 40, 40, 10, model_type="phi3", vocab_size=32_064, sliding_window=2047
    ),
    "deepseek-v2-lite": _llama(
        2048, 10_944, 27, 16, 16, model_type="deepseek_v2", vocab_size=102_400, kv_lora_rank=512,
        q_lora_rank=None, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
        n_routed_experts=64, n_shared_experts=2, num_experts_per_tok=6, moe_intermediate_size=1408,
        first_k_dense_replace=1, max_position_embeddings=163_840,
    ),
    "deepseek-v3": _llama(
        7168, 18_432, 61, 128, 128, model_type="deepseek_v3", vocab_size=129_280, kv_lora_rank=512,
        q_lora_rank=1536, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
        n_routed_experts=256, n_shared_experts=1, num_experts_per_tok=8, moe_intermediate_size=2048,
        first_k_dense_replace=3, max_position_embeddings=163_840,
    ),
    "falcon-7b": {
        "model_type": "falcon", "hidden_size": 4544, "num_hidden_layers": 32,
        "num_attention_heads": 71, "vocab_size": 65_024, "layer_norm_epsilon": 1e-5, "bias": False,
        "multi_query": True, "new_decoder_architecture": False, "parallel_attn": True,
        "alibi": False,
    },
    "falcon-40b": {
        "model_type": "falcon", "hidden_size": 8192, "num_hidden_layers": 60,
        "num_attention_heads": 128, "num_kv_heads": 8, "vocab_size": 65_024, "bias": False,
        "layer_norm_epsilon": 1e-5, "multi_query": True, "new_decoder_architecture": True,
        "parallel_attn": True, "alibi": False,
    },
    "gpt2": {
        "model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024,
        "vocab_size": 50_257, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
    },
    "gpt-neox-20b": {
        "model_type": "gpt_neox", "hidden_size": 6144, "intermediate_size": 24_576,
        "num_hidden_layers": 44, "num_attention_heads": 64, "vocab_size": 50_432,
        "hidden_act": "gelu_fast", "layer_norm_eps": 1e-5, "rotary_pct": 0.25,
        "max_position_embeddings": 2048, "tie_word_embeddings": False,
        "use_parallel_residual": True,
    },
    "gpt-j-6b": {
        "model_type": "gptj", "n_embd": 4096, "n_layer": 28, "n_head": 16, "n_positions": 2048,
        "rotary_dim": 64, "vocab_size": 50_400, "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5, "tie_word_embeddings": False,
    },
    "opt-6.7b": {
        "model_type": "opt", "hidden_size": 4096, "ffn_dim": 16_384, "num_hidden_layers": 32,
        "num_attention_heads": 32, "vocab_size": 50_272, "activation_function": "relu",
        "max_position_embeddings": 2048, "word_embed_proj_dim": 4096, "do_layer_norm_before": True,
    },
    "opt-350m": {
        "model_type": "opt", "hidden_size": 1024, "ffn_dim": 4096, "num_hidden_layers": 24,
        "num_attention_heads": 16, "vocab_size": 50_272, "activation_function": "relu",
        "max_position_embeddings": 2048, "word_embed_proj_dim": 512, "do_layer_norm_before": False,
    },
    "bloom-7b1": {
        "model_type": "bloom", "hidden_size": 4096, "n_layer": 30, "n_head": 32,
        "vocab_size": 250_880, "layer_norm_epsilon": 1e-5,
    },
    "bloom-176b": {
        "model_type": "bloom", "hidden_size": 14_336, "n_layer": 70, "n_head": 112,
        "vocab_size": 250_880, "layer_norm_epsilon": 1e-5,
    },
    "starcoder": {
        "model_type": "gpt_bigcode", "n_embd": 6144, "n_layer": 40, "n_head": 48, "n_inner": 24_576,
        "n_positions": 8192, "vocab_size": 49_152, "multi_query": True,
        "activation_function": "gelu_pytorch_tanh", "layer_norm_epsilon": 1e-5,
    },
    "glm-4-9b": _llama(
        4096, 13_696, 40, 32, 2, model_type="glm", head_dim=128, vocab_size=151_552,
        attention_bias=True, max_position_embeddings=131_072,
    ),
    "gpt-oss-20b": _llama(
        2880, 2880, 24, 64, 8, model_type="gpt_oss", head_dim=64, vocab_size=201_088,
        num_local_experts=32, num_experts_per_tok=4, attention_bias=True, sliding_window=128,
        max_position_embeddings=131_072,
        layer_types=["sliding_attention", "full_attention"] * 12,
    ),
}  # fmt: skip
for _size, (_hidden, _width, _layers, _heads, _kv) in {
    "3b": (3072, 12_288, 30, 24, 2),
    "7b": (4608, 18_432, 32, 36, 4),
    "15b": (6144, 24_576, 40, 48, 4),
}.items():
    SHAPES[f"starcoder2-{_size}"] = {
        "model_type": "starcoder2", "hidden_size": _hidden, "intermediate_size": _width,
        "num_hidden_layers": _layers, "num_attention_heads": _heads, "num_key_value_heads": _kv,
        "vocab_size": 49_152, "hidden_act": "gelu_pytorch_tanh", "norm_epsilon": 1e-5,
        "use_bias": True, "sliding_window": 4096, "max_position_embeddings": 16_384,
    }  # fmt: skip
