import subprocess
import sys
from pathlib import Path

import beyond_tables
import claim_tables
import numpy as np
import pandas as pd
import pytest
import synthetic
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy import stats
from settings import default_settings, overlaid_settings

from attnid import figures, sources, style, tables
from attnid.errors import UserError


@pytest.fixture(scope="module")
def frames() -> dict[str, pd.DataFrame]:
    return synthetic.all_tables()


def tables_of(name: str, frames: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The tables given, or those of the questions beyond the paper."""
    return beyond_tables.base() if figures.group(name) else frames


def draw(name: str, frames: dict[str, pd.DataFrame]) -> Figure:
    module = figures.load(name)
    return module.draw({table: frames[table] for table in module.TABLES})


def line(ax: Axes, label: str) -> np.ndarray:
    """x and y of the line with a label."""
    (found,) = [item for item in ax.lines if item.get_label() == label]
    return np.asarray(found.get_xydata())


def texts(figure: Figure) -> str:
    """What is written in the axes and, its lines joined, below them."""
    found = [text.get_text() for ax in figure.axes for text in ax.texts]
    return "\n".join([*found, " ".join(figure.get_supxlabel().split())])


def flat_lines(ax: Axes) -> list[float]:
    """Heights of the horizontal lines over the whole axis."""
    return [float(item.get_ydata()[0]) for item in ax.lines if list(item.get_xdata()) == [0, 1]]


def test_synthetic_tables_fit_the_schemas(frames: dict[str, pd.DataFrame], tmp_path: Path) -> None:
    schemas = {table.name: table for table in tables.ALL}
    for name, frame in frames.items():
        tables.write(schemas[name], frame, tmp_path / f"{name}.parquet")
        assert len(tables.read(schemas[name], tmp_path / f"{name}.parquet")) == len(frame)


def test_the_names_are_the_modules_and_no_module_is_imported_before_it_is_loaded() -> None:
    files = (sources.PACKAGE / "figures").glob("*.py")
    assert set(figures.NAMES) == {file.stem for file in files} - {"__init__"}
    assert list(figures.NAMES) == sorted(figures.NAMES)
    code = (
        "import sys, attnid.figures as f; assert not [m for m in sys.modules if m.startswith('attnid.figures.')];"
        "[f.load(n) for n in f.NAMES]; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_figure_is_a_users_mistake() -> None:
    with pytest.raises(UserError, match="figure 'rho_layers' is unknown; known are architectures"):
        figures.load("rho_layers")


@pytest.mark.parametrize("name", figures.NAMES)
def test_every_figure_saves_the_same_bytes_twice(name: str, frames: dict[str, pd.DataFrame], tmp_path: Path) -> None:
    for suffix, magic in (("png", b"\x89PNG"), ("pdf", b"%PDF")):
        paths = [tmp_path / f"{run}.{suffix}" for run in ("first", "second")]
        for path in paths:
            style.save(draw(name, tables_of(name, frames)), path)
        first, second = (path.read_bytes() for path in paths)
        assert first == second
        assert first.startswith(magic)
        assert b"CreationDate" not in first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first.pdf", "first.png", "second.pdf", "second.png"]


@pytest.mark.parametrize("name", figures.NAMES)
def test_figures_fit_one_or_two_columns_of_print(name: str, frames: dict[str, pd.DataFrame]) -> None:
    assert draw(name, tables_of(name, frames)).get_figwidth() in (style.SINGLE, style.DOUBLE)


@pytest.mark.parametrize("name", figures.NAMES)
def test_without_data_a_figure_says_what_is_missing(name: str, tmp_path: Path) -> None:
    figure = draw(name, synthetic.empty_tables())
    assert texts(figure).lower().startswith("no ")
    style.save(figure, tmp_path / "empty.png")


@pytest.mark.parametrize("name", figures.NAMES)
def test_the_rows_behind_a_figure_are_rows_of_its_first_table(name: str, frames: dict[str, pd.DataFrame]) -> None:
    module, frames = figures.load(name), tables_of(name, frames)
    rows = module.behind(frames)
    table = frames[module.TABLES[0]]
    assert 0 < len(rows) <= len(table)
    merged = rows.merge(table[rows.columns].drop_duplicates(), how="left", indicator=True)
    assert (merged["_merge"] == "both").all()
    assert module.behind(synthetic.empty_tables()).empty


def test_save_refuses_another_format(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"not as figure\.svg"):
        style.save(Figure(), tmp_path / "figure.svg")


def test_every_case_has_its_own_colour_and_a_case_of_the_users_own_its_name() -> None:
    of_paper = list(default_settings()["cases"])
    assert len({style.case_color(case) for case in of_paper}) == len(of_paper) == 6
    assert set(overlaid_settings("full.yaml")["cases"]) == set(style.CASES)
    assert len({style.case_label(case) for case in style.CASES}) == len(style.CASES)
    assert style.case_label("lion") == "lion"
    assert style.case_color("lion") == style.GREY


def test_layers_are_told_apart_by_colour_and_line() -> None:
    assert len({tuple(style.layer_style(layer).items()) for layer in range(12)}) == 12


def test_identified_fraction_has_closed_forms_as_lines_and_ranks_as_points(frames: dict[str, pd.DataFrame]) -> None:
    changed = dict(frames, ranks=frames["ranks"].assign(exact_lower=frames["ranks"]["exact_lower"] - 7))
    (ax,) = draw("identified_fraction", changed).axes
    rows = changed["ranks"][changed["ranks"]["group"] == "heads-rope"].sort_values("n_heads")
    closed, measured = [item for item in ax.lines if item.get_color() == style.PALETTE[1] and len(item.get_xdata())]
    assert closed.get_marker() == "None"
    assert measured.get_linestyle() == "None"
    np.testing.assert_allclose(closed.get_xydata(), rows[["n_heads", "identified_fraction"]])
    np.testing.assert_allclose(measured.get_ydata(), rows["exact_lower"] / rows["parameters"])


def test_multi_head_lines_follow_the_papers_formula(frames: dict[str, pd.DataFrame]) -> None:
    (ax,) = draw("identified_fraction", frames).axes
    heads, fraction = np.asarray(ax.lines[0].get_xydata()).T
    np.testing.assert_allclose(fraction, 1 - 1 / (2 * heads))
    (ax,) = draw("head_width", frames).axes
    width, unidentified = np.asarray(ax.lines[0].get_xydata()).T
    np.testing.assert_allclose(unidentified, width / (2 * 24))


def test_head_width_marks_the_usual_width_and_the_models(frames: dict[str, pd.DataFrame]) -> None:
    (ax,) = draw("head_width", frames).axes
    (ring,) = [item for item in ax.lines if item.get_markerfacecolor() == "none" and len(item.get_xdata())]
    np.testing.assert_allclose(ring.get_xydata(), [[8, 1 / 6]])
    assert [item.get_xdata()[0] for item in ax.lines if list(item.get_ydata()) == [0, 1]] == [24]


def test_a_missing_kind_of_layer_is_named(frames: dict[str, pd.DataFrame]) -> None:
    ranks = frames["ranks"]
    assert "No layers of GQA." in texts(
        draw("identified_fraction", dict(frames, ranks=ranks[ranks["group"] != "heads-gqa"]))
    )


def test_figure_2_has_a_row_a_case_and_the_null_line_in_each(frames: dict[str, pd.DataFrame]) -> None:
    figure = draw("paper_figure_2", frames)
    panels = figure.axes[:20]
    assert [panels[5 * row].get_ylabel() for row in range(4)] == [
        "SGD", "SGD, weight decay", "AdamW", "AdamW, rebalanced",
    ]  # fmt: skip
    for row in range(4):
        assert flat_lines(panels[5 * row + 1]) == [1 / 8]
        band = panels[5 * row + 1].patches[0]
        assert (band.get_y(), band.get_y() + band.get_height()) == pytest.approx((0.9 / 8, 1.1 / 8))


def test_figure_2_draws_losses_rho_and_the_largest_update_norm(frames: dict[str, pd.DataFrame]) -> None:
    figure = draw("paper_figure_2", frames)
    cell = "adamw_h4_0.001_float32"
    summary, heads = frames["summary"], frames["heads"]
    for column, label, measure in ((0, "validation", "val_loss"), (1, r"$\rho$ with biases", "rho_qk_augmented")):
        rows = summary[(summary["cell"] == cell) & (summary["measure"] == measure)]
        np.testing.assert_allclose(line(figure.axes[10 + column], label), rows[["step", "median"]])
    norms = heads[(heads["cell"] == cell) & (heads["phase"] == "step")].groupby(["step", "seed"])["update_norm"].max()
    twin = figure.axes[20 + 2]
    np.testing.assert_allclose(line(twin, "update norm")[:, 1], norms.groupby("step").mean())


def test_the_sawtooth_shows_the_weights_after_each_rebalancing(frames: dict[str, pd.DataFrame]) -> None:
    figure = draw("paper_figure_2", frames)
    step, beta = line(figure.axes[15 + 2], "layer 0").T
    at_rebalancing = beta[step == 20]
    assert len(at_rebalancing) == 2
    assert at_rebalancing[0] > 0.2
    assert at_rebalancing[1] == 0
    assert len(step) == len(synthetic.MEASURED) + 3
    plain_steps, _ = line(figure.axes[10 + 2], "layer 0").T
    assert list(plain_steps) == list(synthetic.MEASURED)


def test_figure_3_draws_envelopes_on_a_logarithmic_axis(frames: dict[str, pd.DataFrame]) -> None:
    figure = draw("paper_figure_3", frames)
    assert [ax.get_title() for ax in figure.axes] == ["SGD", "AdamW", "AdamW, rebalanced"]
    summary = frames["summary"]
    rows = summary[(summary["cell"] == "sgd_h4_0.25_float32") & (summary["measure"] == "grad_norm_key_bias")]
    ax = figure.axes[0]
    assert ax.get_yscale() == "log"
    np.testing.assert_allclose(line(ax, "key bias, median"), rows[["step", "median"]])
    np.testing.assert_allclose(line(ax, "key bias, mean"), rows[["step", "mean"]])
    band = ax.collections[1].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == pytest.approx((rows["minimum"].min(), rows["maximum"].max()))


def test_figure_3_names_exact_zeros(frames: dict[str, pd.DataFrame]) -> None:
    zero = frames["summary"]["measure"].eq("grad_norm_key_bias") & frames["summary"]["cell"].eq("sgd_h4_0.25_float32")
    summary = frames["summary"].assign(minimum=frames["summary"]["minimum"].mask(zero, 0.0))
    found = texts(draw("paper_figure_3", dict(frames, summary=summary)))
    assert "SGD: grad_norm_key_bias is exactly zero for some heads in all runs at 7 of 7 steps." in found


def test_figure_4_has_a_line_a_learning_rate_on_logarithmic_axes(frames: dict[str, pd.DataFrame]) -> None:
    figure = draw("paper_figure_4", frames)
    assert [ax.get_title() for ax in figure.axes[2::3]] == [
        "weights and biases, float32",
        "weights and biases, float64",
    ]
    for ax in figure.axes:
        assert ax.get_yscale() == "log"
        first = [line(ax, f"learning rate {lr:g}")[0, 1] for lr in (0.5, 0.25, 0.125, 0.0625)]
        assert first == sorted(first, reverse=True)
    assert flat_lines(figure.axes[0]) == flat_lines(figure.axes[3]) == [1 / 8]


def test_rho_heads_has_the_mean_and_t_interval_of_the_seeds_medians(frames: dict[str, pd.DataFrame]) -> None:
    (ax,) = draw("rho_heads", frames).axes
    np.testing.assert_allclose(line(ax, "1/(2H)"), [[h, 1 / (2 * h)] for h in (1, 2, 4, 8, 16)])
    heads = frames["heads"]
    rows = heads[(heads["cell"] == "adamw_h4_0.001_float32") & (heads["phase"] == "step") & (heads["step"] > 30)]
    medians = rows.groupby("seed")["rho_qk"].median()
    interval = stats.t.interval(0.95, 2, medians.mean(), stats.sem(medians))
    (container,) = [item for item in ax.containers if item.get_label() == "AdamW"]
    points, _, (bars,) = container
    assert points.get_ydata()[2] == pytest.approx(medians.mean())
    assert bars.get_segments()[2][:, 1] == pytest.approx(interval)


def test_rho_heads_draws_one_seed_without_an_interval(frames: dict[str, pd.DataFrame]) -> None:
    (ax,) = draw("rho_heads", dict(frames, heads=frames["heads"][frames["heads"]["seed"] == 1])).axes
    points, _, (bars,) = ax.containers[0]
    assert np.isfinite(points.get_ydata().astype(float)).all()
    assert all(segment[0, 1] == segment[1, 1] for segment in bars.get_segments())


def test_tau_layers_names_the_first_step_that_was_lost(frames: dict[str, pd.DataFrame]) -> None:
    heads = frames["heads"].copy()
    adamw = style.cells_of(frames, "cases").set_index("case").cell["adamw"]
    middle = heads.step[heads.cell == adamw].median()
    heads.loc[(heads.cell == adamw) & (heads.step >= middle), "tau"] = np.inf
    first = heads.step[(heads.cell == adamw) & (heads.step >= middle)].min()
    assert f"first at step {first}: tau" in texts(draw("tau_layers", frames | {"heads": heads}))


def test_tau_layers_has_a_point_for_every_head_of_every_run(frames: dict[str, pd.DataFrame]) -> None:
    (ax,) = draw("tau_layers", frames).axes
    points = sum(len(strip.get_offsets()) for strip in ax.collections)
    heads = frames["heads"].merge(frames["groups"].query("group == 'cases'"), on="cell")
    last = heads[(heads["phase"] == "step") & (heads["step"] == heads["step"].max())]
    assert points == len(last) > 0


def test_drawing_leaves_nothing_in_pyplot(frames: dict[str, pd.DataFrame]) -> None:
    from matplotlib import pyplot

    for name in figures.NAMES:
        draw(name, tables_of(name, frames))
    assert pyplot.get_fignums() == []


def test_the_squad_table_shows_printed_and_recomputed_numbers(frames: dict[str, pd.DataFrame]) -> None:
    found = texts(draw("squad_table", frames)).split("\n")
    for text in ("0.26", "0.393", "25.166", "16.82", "11.54", "7.71", "768", "–"):
        assert text in found


def test_spikes_compare_the_floors_and_the_precisions(frames: dict[str, pd.DataFrame]) -> None:
    figure = draw("spikes", frames)
    assert [ax.get_title() for ax in figure.axes[:3]] == [
        "SGD, floor 0.025, float32",
        "SGD, floor 0.0001, float32",
        "SGD, floor 0.0001, float64",
    ]
    assert all(flat_lines(ax) == [1 / 8] for ax in figure.axes[:3])
    assert list(line(figure.axes[0], "SGD")[:, 0]) == [50, 60]


def test_the_stacked_trap_shows_measured_and_proved_ranks_and_the_gaps_between(frames: dict[str, pd.DataFrame]) -> None:
    figure = draw("stacked_trap", frames)
    ranks, gaps = figure.axes
    np.testing.assert_allclose(line(ranks, "$10^{-8}$"), [[0.03, 40], [1, 52]])
    (lower, upper) = [item for item in ranks.lines if item.get_color() == style.INK]
    np.testing.assert_allclose(lower.get_xydata(), [[0.03, 52], [1, 52]])
    np.testing.assert_allclose(upper.get_xydata(), lower.get_xydata())
    assert [text.get_text() for text in gaps.texts[:2]] == ["52", "40"]
    colors = {item.get_label(): item.get_color() for item in gaps.lines if not len(item.get_xdata())}
    assert list(colors) == ["the proved rank", "a wrong rank"]
    assert [text.get_color() for text in gaps.texts[:2]] == list(colors.values())
    bars = [item.get_ydata() for item in gaps.lines if len(item.get_xdata()) == 2]
    np.testing.assert_allclose(bars, [[2e-16, 4e-5], [4e-16, 2e-8]])
    assert figure.get_supxlabel() == ""


def test_the_stacked_trap_names_a_rank_that_is_not_proved(frames: dict[str, pd.DataFrame]) -> None:
    trap = frames["trap"]
    trap = trap.assign(proved_lower=trap["proved_lower"].where(trap["scale"] == 1, 36))
    figure = draw("stacked_trap", dict(frames, trap=trap))
    assert figure.get_supxlabel() == "Scale 0.03: proved to lie from 36 to 52."
    assert figure.axes[1].texts[1].get_color() == style.GREY


@pytest.mark.parametrize(
    ("name", "case"),
    [
        ("paper_figure_2", "sgd-decay"),
        ("paper_figure_3", "adamw-rebalanced"),
        ("spikes", "sgd-floor"),
    ],
)
def test_a_case_that_was_not_trained_is_named(name: str, case: str, frames: dict[str, pd.DataFrame]) -> None:
    assert f"No runs of {case}" in texts(draw(name, synthetic.without_cells(frames, [case])))


@pytest.mark.parametrize("name", ["paper_figure_2", "paper_figure_3", "paper_figure_4", "rho_heads", "spikes"])
def test_a_run_that_diverged_is_named(name: str, frames: dict[str, pd.DataFrame]) -> None:
    heads = frames["heads"].copy()
    lost = heads["seed"].eq(2) & heads["step"].ge(30) & heads["phase"].eq("step")
    heads.loc[lost, list(tables.HEAD_MEASURES)] = np.nan
    heads.loc[lost, "state"] = "not finite"
    assert "not finite in 1 of 3 runs, first at step 30" in texts(draw(name, dict(frames, heads=heads)))


@pytest.mark.parametrize("name", ["paper_figure_2", "paper_figure_3", "paper_figure_4", "rho_heads", "spikes"])
def test_weights_without_full_rank_and_steps_of_length_zero_are_named(
    name: str, frames: dict[str, pd.DataFrame]
) -> None:
    heads = frames["heads"].copy()
    rows = heads["seed"].eq(2) & heads["step"].ge(30) & heads["phase"].eq("step") & heads["layer"].eq(0)
    heads.loc[rows, ["state", "update_norm", "rho_qk", "rho_qk_augmented"]] = "rank-deficient", 0.0, np.nan, np.nan
    said = texts(draw(name, dict(frames, heads=heads)))
    assert "weights without full rank in 1 of 3 runs, first at step 30: layer 0 head 0" in said
    assert "steps of heads have length zero and no rho" in said
    assert "not finite" not in said


def test_a_run_that_diverged_takes_no_other_along(frames: dict[str, pd.DataFrame]) -> None:
    tables = tables_of("paper_figure_2", frames)
    adamw = style.cells_of(tables, "cases").set_index("case").cell["adamw"]
    steps = tables["steps"].copy()
    steps.loc[(steps.cell == adamw) & (steps.step > 20), "train_loss"] = np.nan
    heads = tables["heads"].copy()
    heads.loc[heads.cell == adamw, "tau"] *= 1e60
    figure = figures.load("paper_figure_2").draw(tables | {"steps": steps, "heads": heads})
    limits = [ax.get_ylim()[1] for ax in figure.axes[3:20:5]]
    assert sorted(limits)[:3] == [min(limits)] * 3
    assert max(limits) > 1e50 > min(limits)


def test_values_that_are_not_finite_are_named_once_a_cell() -> None:
    frame = pd.DataFrame({"cell": "a", "seed": [1, 1, 2, 2], "step": [1, 10, 1, 10], "x": [0, 1, 2, np.inf], "y": 0.0})
    assert style.astray(frame, ["x", "y"], {"a": "A", "b": "B"}) == [
        "A: not finite in 1 of 2 runs, first at step 10: x."
    ]


def test_architectures_stack_the_sources_of_all_layers_of_a_model(frames: dict[str, pd.DataFrame]) -> None:
    """Two kinds of layers of one model become one bar, as long as their unidentified share together."""
    figure = draw("architectures", frames)
    [ax] = figure.axes
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a decoder", "a rotary model"]
    rows = frames["architectures"][frames["architectures"]["model"] == "a decoder"]
    share = rows["unidentified_model"].sum() / rows["parameters_model"].sum()
    bars = [bar for bar in ax.patches if round(bar.get_y() + bar.get_height() / 2) == 0]
    assert sum(bar.get_width() for bar in bars) == pytest.approx(100 * share)


def test_ranks_without_a_proof_are_not_drawn(frames: dict[str, pd.DataFrame]) -> None:
    unproved = frames["ranks"].assign(certified=frames["ranks"]["group"] != "heads-rope")
    assert "No layers of RoPE." in texts(draw("identified_fraction", dict(frames, ranks=unproved)))


def test_studies_are_drawn_where_their_cells_are_configured() -> None:
    studies = [name for name in figures.NAMES if figures.group(name)]
    assert "key_bias" in studies
    assert [figures.group(name) for name in studies] == [figures.load(name).GROUP for name in studies]
    assert figures.names(default_settings()["groups"]) == [name for name in figures.NAMES if name not in studies]
    assert figures.names(["key_bias"]) == [name for name in figures.NAMES if name not in studies or name == "key_bias"]
    assert figures.names(overlaid_settings("full.yaml")["groups"]) == list(figures.NAMES)


def test_two_lines_are_named_above_and_below_what_is_drawn_of_them() -> None:
    _figure, axes = style.panels(style.SINGLE, 2)
    low = pd.DataFrame({"step": [1, 2, 3], "minimum": [0.5, 0.0, 2.0], "median": 3.0, "maximum": 4.0})
    high = pd.DataFrame({"step": [1, 2, 3], "minimum": 20.0, "median": 30.0, "maximum": [90.0, 50.0, 40.0]})
    style.name_pair(axes[0, 0], [("high", "#000000", high), ("low", "#000000", low)])
    placed = {text.get_text(): (text.xy, text.get_va()) for text in axes[0, 0].texts}
    assert placed == {"high": ((3, 50.0), "bottom"), "low": ((3, 2.0), "top")}


def test_a_forest_has_a_line_a_row_with_the_interval_of_its_seeds() -> None:
    _figure, axes = style.panels(style.SINGLE, 2)
    values = pd.Series([1.0, 2.0, 4.0])
    style.forest(axes[0, 0], [("first", "#000000", values), ("one run", "#000000", values[:1])], logarithmic=True)
    seeds, ends, mean = axes[0, 0].lines[:3]
    reach = stats.t.ppf(0.975, 2) * np.log(values).sem()
    assert list(seeds.get_xdata()) == [1.0, 2.0, 4.0]
    assert np.log(ends.get_xdata()) == pytest.approx([np.log(2) - reach, np.log(2) + reach])
    assert mean.get_xdata() == pytest.approx([2.0])
    assert [label.get_text() for label in axes[0, 0].get_yticklabels()] == ["first", "one run"]


def test_overlap_causes_shows_each_case_over_its_null() -> None:
    (ax,) = draw("overlap_causes", beyond_tables.base()).axes
    middles = {
        label.get_text(): item.get_xdata()[0]
        for label, item in zip(ax.get_yticklabels(), [i for i in ax.lines if i.get_marker() == "o"], strict=True)
    }
    assert middles["AdamW"] == pytest.approx(0.24 / 0.25, rel=1e-3)
    assert middles["SGD, momentum"] == pytest.approx(5e-3 / 0.25, rel=1e-3)


def test_losses_are_compared_seed_by_seed_with_the_margin_drawn() -> None:
    frames = claim_tables.loss("adamw-both", 0.05)(beyond_tables.base())
    left = draw("rebalancing_state", frames).axes[0]
    labels = [label.get_text() for label in left.get_yticklabels()]
    middles = [item.get_xdata()[0] for item in left.lines if item.get_marker() == "o"]
    assert middles[labels.index("QK and VO rebalanced")] == pytest.approx(0.05)
    assert middles[labels.index("AdamW")] == 0
    assert left.patches[0].get_extents().width > 0
