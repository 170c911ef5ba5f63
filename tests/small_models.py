"""Random transformers models small enough to build in a test."""

from transformers import AutoConfig

CHEAP = {
    "vocab_size": 16,
    "intermediate_size": 8,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
    "moe_intermediate_size": 4,
    "shared_expert_intermediate_size": 4,
    "n_routed_experts": 2,
    "num_experts_per_tok": 1,
    "num_experts": 2,
    "num_local_experts": 2,
    "n_group": 1,
    "topk_group": 1,
    "encoder_ffn_dim": 4,
    "decoder_ffn_dim": 4,
    "image_size": 12,
    "patch_size": 4,
    "vision_config": {
        "hidden_size": 8,
        "intermediate_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "image_size": 8,
        "patch_size": 4,
    },
    "mm_tokens_per_image": 4,
}
"""Settings of everything but attention; a family ignores those that are not its own."""


def cheap_settings(model_type: str) -> dict[str, object]:
    """Those settings that a family has."""
    own = AutoConfig.for_model(model_type)
    return {key: value for key, value in CHEAP.items() if hasattr(own, key)}
