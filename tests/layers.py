"""Random layers of every variant, small enough to rank."""

from typing import Any

from hypothesis import strategies as st

from attnid.layer import LayerSpec

VARIANTS = (
    "plain", "rotary", "query/key norm", "sinks", "soft cap", "table", "alibi", "cross", "latent", "pre-norm"
)  # fmt: skip


@st.composite
def layers(draw: st.DrawFn, variant: str | None = None) -> LayerSpec:
    """A layer with the feature of a variant, or of any, and with other features beside it."""
    groups = draw(st.integers(1, 2))
    chosen = {variant or draw(st.sampled_from(VARIANTS)), *draw(st.sets(st.sampled_from(VARIANTS), max_size=2))}
    if "cross" in chosen and "latent" in chosen:
        chosen.remove("cross" if variant != "cross" else "latent")
    fields: dict[str, Any] = {
        "d_model": draw(st.integers(3, 7)),
        "n_heads": groups * draw(st.integers(1, 2)),
        "n_kv_heads": groups,
        "qk_head_dim": draw(st.integers(1, 6)),
        "v_head_dim": draw(st.integers(1, 6)),
        "causal": draw(st.booleans()),
        "output_bias": draw(st.booleans()),
    }
    if "latent" not in chosen:
        fields |= {name: draw(st.booleans()) for name in ("query_bias", "key_bias", "value_bias")}
    if "rotary" in chosen:
        fields["qk_head_dim"] = max(2, fields["qk_head_dim"])
        fields["rotary_dim"] = 2 * draw(st.integers(1, fields["qk_head_dim"] // 2))
    if "query/key norm" in chosen and "latent" not in chosen:
        fields |= {"qk_norm": draw(st.sampled_from(["head", "full"])), "qk_norm_gain": draw(st.booleans())}
    if "sinks" in chosen:
        fields["sinks"] = True
    if "soft cap" in chosen:
        fields["soft_cap"] = 2.0
    if "alibi" in chosen:
        fields["alibi"] = True
    if "cross" in chosen:
        fields |= {"context_dim": draw(st.integers(2, 7)), "causal": False}
    if "table" in chosen:
        fields |= {"relative_buckets": 2 * draw(st.integers(2, 4)), "relative_distance": draw(st.integers(5, 9))}
    if "latent" in chosen:
        fields |= _latent(draw, fields)
    if "pre-norm" in chosen:
        fields |= {"pre_norm": draw(st.sampled_from(["rms", "layer"])), "pre_norm_gain": draw(st.booleans())}
        fields["pre_norm_bias"] = fields["pre_norm"] == "layer" and draw(st.booleans())
    return LayerSpec.model_validate(fields)


def _latent(draw: st.DrawFn, fields: dict[str, Any]) -> dict[str, Any]:
    width = fields["qk_head_dim"] + (fields.get("rotary_dim", 0) == fields["qk_head_dim"])
    return {
        "n_kv_heads": fields["n_heads"],
        "qk_head_dim": width,
        "kv_latent_dim": draw(st.integers(1, 6)),
        "q_latent_dim": draw(st.none() | st.integers(1, 6)),
    }
