from collections import Counter
from math import ceil, sqrt
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnid import tables
from attnid.analysis import invariances as invariance
from attnid.analysis import published
from attnid.analysis import ranks as ranking
from attnid.analysis.ranks import DisagreementError, GridLayer
from attnid.architectures import architectures
from attnid.counting import count
from attnid.layer import LayerSpec, layer_name

SIZES = {
    "d_model",
    "n_heads",
    "n_kv_heads",
    "qk_head_dim",
    "v_head_dim",
    "rotary_dim",
    "context_dim",
    "relative_buckets",
    "relative_distance",
    "kv_latent_dim",
    "q_latent_dim",
}
GRID = ranking.rank_grid(24, [1, 2, 3, 4, 6, 8, 12, 24], [1, 4, 8, 16])


def layers(group: str) -> list[LayerSpec]:
    return [layer.spec for layer in GRID if layer.group == group]


@pytest.fixture(scope="module")
def ranks() -> pd.DataFrame:
    small = ("single-head", "full-width", "value-bias", "bidirectional")
    heads = [layer for layer in ranking.rank_grid(4, [1, 2, 4], []) if layer.group.startswith("heads")]
    return ranking.rank_table(tables.RANKS, [*heads, *(layer for layer in GRID if layer.group in small)])


@pytest.fixture(scope="module")
def invariances() -> pd.DataFrame:
    return invariance.invariance_table(2)


def test_grid_holds_every_family() -> None:
    assert Counter(layer.group for layer in GRID) == {
        "heads": 8,
        "heads-rope": 6,
        "heads-gqa": 6,
        "heads-rope-gqa": 4,
        "head-width": 6,
        "single-head": 11,
        "biases": 32,
        "rope": 6,
        "partial-rope": 10,
        "gqa": 8,
        "mqa": 6,
        "rope-gqa": 8,
        "bidirectional": 12,
        "value-bias": 10,
        "biases-all-heads": 6,
        "full-width": 4,
    }


def test_layers_of_a_family_have_names_of_their_own() -> None:
    assert max(Counter((layer.group, layer.name) for layer in GRID).values()) == 1


def test_families_over_head_counts_keep_the_width() -> None:
    for layer in GRID:
        if layer.group.startswith("heads"):
            assert layer.spec.d_model == layer.spec.n_heads * layer.spec.qk_head_dim == 24
    assert all(spec.heads_per_group == 2 for spec in layers("heads-gqa"))
    assert all(spec.rotary_dim == spec.qk_head_dim for spec in layers("heads-rope-gqa"))


def test_free_head_widths_reach_the_model_and_beyond() -> None:
    assert [spec.qk_head_dim for spec in layers("head-width")] == [1, 4, 6, 8, 12, 16]
    assert {spec.d_model for spec in layers("head-width")} == {12}


def test_value_biases_are_tried_below_at_and_above_the_width() -> None:
    sizes = {spec.n_kv_heads * spec.v_head_dim - spec.d_model for spec in layers("value-bias") if not spec.output_bias}
    assert min(sizes) < 0 < max(sizes)
    assert 0 in sizes


def test_names_of_layers() -> None:
    assert layer_name(LayerSpec.multi_head(24, 4)) == "E 24, H 4, D 6"
    spec = LayerSpec(
        d_model=8,
        n_heads=4,
        n_kv_heads=2,
        qk_head_dim=6,
        v_head_dim=3,
        rotary_dim=4,
        key_bias=True,
        output_bias=True,
        causal=False,
    )
    assert layer_name(spec) == "E 8, H 4, G 2, D 6, C 3, RoPE on 4, biases KO, no mask"


def test_closed_form_and_rank_agree_over_the_small_families(ranks: pd.DataFrame) -> None:
    ranking.require_agreement(ranks)
    assert ranks["agrees"].all()
    assert (ranks["smallest_kept"] > 1e-9).all()
    assert (ranks["largest_dropped"] < 1e-12).all()
    multi_head = ranks[ranks["group"] == "heads"]
    assert (1 - multi_head["rank"] / multi_head["parameters"]).tolist() == [1 / 2, 1 / 4, 1 / 8]


def test_progress_is_told_layer_by_layer() -> None:
    told: list[tuple[int, int, str]] = []
    grid = [layer for layer in GRID if layer.group == "single-head"][:2]
    ranking.rank_table(tables.RANKS, grid, report=lambda *step: told.append(step))
    assert told == [(1, 2, "single-head: E 1, H 1, D 1"), (2, 2, "single-head: E 1, H 1, D 2")]


def test_a_wrong_closed_form_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnid.counting._query_key_gauge", lambda spec: 0)
    wrong = ranking.rank_table(tables.RANKS, [GridLayer("some-group", "some layer", LayerSpec.multi_head(4, 2))])
    assert wrong["agrees"].tolist() == [False]
    with pytest.raises(
        DisagreementError, match=r"in 1 layers: some-group \(some layer\): identified 56, rank 48, proved 48 to 48"
    ):
        ranking.require_agreement(wrong)


def test_every_transformation_does_what_is_expected(invariances: pd.DataFrame) -> None:
    assert invariances["holds"].all(), invariances[~invariances["holds"]]
    assert invariances["name"].value_counts().eq(2).all()
    assert invariances.groupby("expected")["name"].nunique().to_dict() == {"changed": 8, "unchanged": 13}


def test_more_draws_leave_the_first_as_they_are(invariances: pd.DataFrame) -> None:
    first = invariance.invariance_table(1)
    again = invariances[invariances["draw"] == 0].reset_index(drop=True)
    pd.testing.assert_frame_equal(first, again)
    assert (invariance.invariance_table(1, seed=1)["error_epsilons"] != first["error_epsilons"]).any()


def test_a_change_is_not_taken_for_an_invariance(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = [
        invariance.Transformation(known.name, known.description, known.spec, not known.unchanged, known.change)
        for known in invariance.TRANSFORMATIONS
    ]
    monkeypatch.setattr(invariance, "TRANSFORMATIONS", wrong)
    assert not invariance.invariance_table(1)["holds"].any()


def test_random_transformations_are_well_conditioned() -> None:
    import torch

    S = invariance.random_invertible(6, 50, torch.Generator().manual_seed(1))
    assert torch.linalg.cond(S).max() <= invariance.CONDITION * (1 + 1e-9)
    assert torch.linalg.cond(S).median() > 2


@given(st.integers(1, 300), st.integers(1, 64))
def test_search_finds_the_width_of_the_formula(quotient: int, heads: int) -> None:
    width = quotient * heads
    identified = count(LayerSpec.multi_head(width, heads)).identified
    found = published.square_single_head_width(identified)
    assert 2 * found**2 >= identified > 2 * (found - 1) ** 2
    assert found == published.formula_width(width, heads)
    assert abs(found - ceil(width * sqrt(2 - 1 / heads))) <= 1


def test_formula_is_exact_where_the_root_is_whole() -> None:
    assert published.formula_width(1600, 25) == 2240


def test_growth_of_gpt_2_small() -> None:
    frame = published.equivalent_table()
    row = frame[(frame["model"] == "gpt2 (small)") & (frame["n_heads"] == 12)].iloc[0]
    assert (row["width_formula"], row["width_search"]) == (1064, 1064)
    assert row["width_growth"] == pytest.approx(1.385, abs=1e-3)
    assert row["attention_growth"] == pytest.approx(1.44, abs=5e-3)
    assert row["block_growth"] == pytest.approx(1.76, abs=5e-3)
    assert row["model_growth"] == pytest.approx(1.64, abs=5e-3)
    assert row["same_width_left"] == 2
    assert row["same_width_right"] == pytest.approx(2 * (2 - 1 / 12))


@pytest.mark.parametrize(
    ("model", "blocks", "width", "parameters"),
    [
        ("gpt2 (small)", 12, 768, 124_439_808),
        ("gpt2-medium", 24, 1024, 354_823_168),
        ("gpt2-large", 36, 1280, 774_030_080),
        ("gpt2-xl", 48, 1600, 1_557_611_200),
    ],
)
def test_whole_models_have_their_published_size(model: str, blocks: int, width: int, parameters: int) -> None:
    assert published.gpt_parameters(published.EMBEDDINGS[model], blocks, width, single_head=False) == parameters


def test_squad_table_recomputed() -> None:
    frame = published.squad_table()
    assert frame["unidentified"].tolist() == [393_216, 1_572_864, 6_291_456, 25_165_824]
    assert (frame["attention"] / 1e6 - frame["printed_attention"]).abs().max() < 0.25
    assert frame["share_percent"].tolist() == pytest.approx([0.30, 1.11, 3.74, 11.5], abs=0.05)
    assert frame["printed_implied_width"].iloc[1:].tolist() == pytest.approx([768] * 3, abs=1)


def test_architecture_table() -> None:
    frame = published.architecture_table().set_index("model")
    assert frame.index.nunique() == 55
    assert frame.loc["Llama-2-70B", "query_key_gauge"] == 1024
    assert frame.loc["Llama-2-70B", "unidentified_model"] == 80 * (1024 + 131_072)
    gpt2 = frame.loc["gpt2 (small)"]
    assert gpt2["identified_fraction"] == pytest.approx(0.958, abs=1e-3)
    assert gpt2["share_of_model"] == pytest.approx(12 * (2 * 12 * 64**2 + 2 * 768) / 124.4e6)
    assert gpt2["block_parameters"] - gpt2["parameters"] == 2 * 768
    assert gpt2["block_unidentified"] - gpt2["unidentified"] == (1 + 1 + 3) * 768


@pytest.fixture(scope="module")
def variants() -> pd.DataFrame:
    return ranking.rank_table(tables.VARIANTS, ranking.variant_grid())


def test_every_variant_is_certified_at_its_closed_form(variants: pd.DataFrame) -> None:
    ranking.require_agreement(variants)
    assert variants["certified"].all()
    assert (variants["exact_lower"] == variants["identified"]).all()
    assert variants.groupby("group").size().min() >= 2


def test_every_published_layer_has_a_small_twin_with_its_features(variants: pd.DataFrame) -> None:
    twins = set(variants.loc[variants["group"] == "as in models", "layer"])
    for model in architectures():
        for kind in model.layers:
            twin = ranking.small_twin(kind.spec)
            assert layer_name(twin) in twins
            for feature in set(LayerSpec.model_fields) - SIZES:
                assert getattr(twin, feature) == getattr(kind.spec, feature)
            assert (twin.heads_per_group > 1) == (kind.spec.heads_per_group > 1)
            assert (0 < twin.rotary_dim < twin.qk_head_dim) == (0 < kind.spec.rotary_dim < kind.spec.qk_head_dim)
            assert [name for name in SIZES if getattr(twin, name)] == [
                name for name in SIZES if getattr(kind.spec, name)
            ]


def test_frames_are_what_the_tables_hold(
    ranks: pd.DataFrame, variants: pd.DataFrame, invariances: pd.DataFrame, tmp_path: Path
) -> None:
    frames = {
        tables.RANKS: ranks,
        tables.VARIANTS: variants,
        tables.INVARIANCES: invariances,
        tables.EQUIVALENTS: published.equivalent_table(),
        tables.SQUAD: published.squad_table(),
        tables.ARCHITECTURES: published.architecture_table(),
    }
    for table, frame in frames.items():
        path = tmp_path / f"{table.name}.parquet"
        tables.write(table, frame, path)
        found = tables.read(table, path)
        assert len(found) == len(frame) > 0
        required = [column.name for column in table.columns if not column.nullable]
        assert found[required].notna().all(axis=None)
