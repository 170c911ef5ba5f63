"""Every claim: two small tables with two verdicts, missing tables, runs that went astray, and what readers get."""

import re
from math import isnan
from pathlib import Path

import claim_tables
import numpy as np
import pandas as pd
import pytest
import yaml

from attnid import claims, figures, tables
from attnid.claims import CORRECTED, NOT_REPRODUCED, NOT_RUN, QUALIFIED, REGISTER, REPRODUCED
from attnid.claims.ledger import BEYOND, COUNT, finding
from attnid.claims.ledger import claim as registered
from attnid.claims.render import MACROS, macro_name
from attnid.claims.rules import Part, combine
from attnid.statistics import Estimate, t_interval

PAPER = [claim.id for claim in claims.all_claims() if claim.kind != BEYOND]
REFERENCE = Path(__file__).resolve().parents[2] / "shared" / "paper-claims.yaml"


def judged(frames: claim_tables.Frames) -> pd.DataFrame:
    return claims.judge(frames).set_index("id")


def found(id: str, frames: claim_tables.Frames) -> claims.Finding:
    return finding(REGISTER[id], frames)


@pytest.fixture(scope="module")
def ledger() -> pd.DataFrame:
    return judged(claim_tables.base())


@pytest.mark.parametrize("id", PAPER)
def test_expected_verdict(id, ledger):
    assert (ledger.loc[id, "verdict"], id) == (claim_tables.EXPECTED[id], id), ledger.loc[id, "evidence"]


@pytest.mark.parametrize("id", PAPER)
def test_other_tables_give_another_verdict(id):
    change, verdict = claim_tables.OTHER[id]
    result = found(id, change(claim_tables.base()))
    assert result.verdict == verdict, result.evidence
    assert verdict != claim_tables.EXPECTED[id]


@pytest.mark.skipif(not REFERENCE.exists(), reason="the list of claims is not beside the repository")
def test_the_ledger_lists_every_claim_of_the_paper():
    reference = yaml.safe_load(REFERENCE.read_text(encoding="utf-8"))
    placed = [claim for claim in claims.all_claims() if claim.place is not None]
    assert [(claim.id, claim.at, claim.kind) for claim in placed] == [
        (entry["id"], entry["at"], entry["kind"]) for entry in reference
    ]


def test_claims_stand_by_place_then_as_registered_and_questions_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnid.claims.ledger.REGISTER", {})
    for id, kind, place in (("asked", BEYOND, None), ("new", COUNT, None), ("second", COUNT, 2), ("first", COUNT, 1)):
        registered(id, at="1", kind=kind, statement="x", rule="y.", place=place)(lambda tables: claims.Finding("", ""))
    assert [claim.id for claim in claims.all_claims()] == ["first", "second", "new", "asked"]


def test_no_id_and_no_place_is_given_twice() -> None:
    places = [claim.place for claim in claims.all_claims() if claim.place is not None]
    assert len(set(places)) == len(places)
    with pytest.raises(ValueError, match="claim qk-fraction is registered twice"):
        registered("qk-fraction", at="4.2", kind=COUNT, statement="x", rule="y.")(lambda tables: claims.Finding("", ""))


def test_every_claim_states_its_rule_and_itself():
    for claim in claims.all_claims():
        assert claim.rule.endswith(".")
        assert claim.statement
        assert not claim.statement.endswith(".")


def test_without_tables_nothing_is_judged_and_nothing_fails():
    frame = claims.judge({})
    assert set(frame["verdict"]) == {NOT_RUN}
    assert frame["evidence"].str.contains("table .* is missing").all()
    empty = {table.name: table.schema.empty_table().to_pandas() for table in tables.ALL}
    assert set(claims.judge(empty)["verdict"]) == {NOT_RUN}


def test_a_missing_cell_is_named():
    frames = claim_tables.base()
    without = frames | {"cells": frames["cells"][frames["cells"]["case"] != "adamw-cleared"]}
    row = found("state-clearing-control", without)
    assert row.verdict == NOT_RUN
    assert "control" in row.evidence
    assert "adamw-cleared" in row.evidence
    assert found("adamw-overlap", without).verdict == REPRODUCED


def test_a_measure_that_was_not_stored_is_not_run():
    row = found("sgd-overlap", claim_tables.measured("rho_qk", np.nan, case="sgd")(claim_tables.base()))
    assert row.verdict == NOT_RUN
    assert "rho_qk" in row.evidence


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_run_that_went_astray_is_named_and_never_left_out(value):
    def astray(rows):
        return rows["rho_qk"].where((rows["seed"] != 2) | (rows["step"] < 40), value)

    frames = claim_tables.measured("rho_qk", astray, case="sgd")(claim_tables.base())
    lost = ~np.isfinite(frames["heads"]["rho_qk"]) & (frames["heads"]["phase"] == "step")
    frames["heads"] = frames["heads"].assign(state=frames["heads"]["state"].mask(lost, "not finite"))
    row = found("sgd-overlap", frames)
    assert row.verdict == NOT_REPRODUCED
    assert "sgd_lr0.25" in row.evidence
    assert "seed 2 from step 40" in row.evidence
    assert found("sgd-beta", frames).verdict == REPRODUCED


def test_steps_of_length_zero_are_counted_and_have_no_part_in_rho():
    def astray(rows):
        return rows["rho_qk"].mask((rows["seed"] == 2) & (rows["step"] == 40) & (rows["head"] == 0))

    frames = claim_tables.measured("rho_qk", astray, case="sgd")(claim_tables.base())
    none = frames["heads"]["rho_qk"].isna() & (frames["heads"]["phase"] == "step")
    frames["heads"] = frames["heads"].assign(update_norm=frames["heads"]["update_norm"].mask(none, 0.0))
    row = found("sgd-overlap", frames)
    assert row.verdict == REPRODUCED
    of_sgd = frames["heads"]["cell"].str.startswith("sgd_lr0.25_float32")
    assert f"{(none & of_sgd).sum()} of " in row.evidence
    assert "steps of heads have length zero and no rho" in row.evidence


def test_weights_without_full_rank_are_named_with_the_numbers_they_enter():
    frames = claim_tables.base()
    heads = frames["heads"]
    lost = (
        heads["cell"].str.startswith("sgd_lr0.25") & (heads["seed"] == 1) & (heads["step"] >= 40) & (heads["head"] == 0)
    )
    frames = frames | {"heads": heads.assign(state=heads["state"].mask(lost, "rank-deficient"))}
    evidence = found("sgd-overlap", frames).evidence
    assert "weights without full rank in 1 of" in evidence
    assert "first at step 40: layer 0 head 0" in evidence
    assert "full rank" not in found("adamw-beta", frames).evidence


TRAINING = ("heads", "steps", "evaluations")


def test_a_single_run_is_at_most_qualified():
    frames = claim_tables.base()
    single = frames | {name: frames[name][frames[name]["seed"] == 0] for name in ("steps", "evaluations", "heads")}
    ledger = judged(single)
    training = ledger[(ledger["kind"] == "training") & (ledger.index != "no-rank-deficiency")]
    assert set(training["verdict"]) == {QUALIFIED}
    assert set(training["seeds"]) == {1}
    assert training["low"].isna().all()


def test_an_interval_across_the_bound_is_qualified():
    def uneven(rows):
        return 0.25 * (0.02 + 0.06 * rows["seed"])

    row = found("sgd-overlap", claim_tables.measured("rho_qk", uneven, case="sgd")(claim_tables.base()))
    assert row.verdict == QUALIFIED
    assert row.low < 0.1 < row.high


def test_heads_and_steps_are_not_counted_as_runs(ledger):
    assert set(ledger.loc[ledger["kind"] == "training", "seeds"]) == {len(claim_tables.SEEDS)}
    assert set(ledger.loc[ledger["kind"] != "training", "seeds"]) == {0}


def test_scale_is_that_of_the_runs_and_a_failure_says_whose_it_is(ledger):
    scale = "2 layers, width 8, 2 heads, context 16, batch 4, 100 steps, king-james, 3 seeds"
    assert ledger.loc["sgd-overlap", "scale"] == scale
    change, _ = claim_tables.OTHER["sgd-overlap"]
    frames = change(claim_tables.base())
    assert "not the paper's" in found("sgd-overlap", frames).evidence
    paper = {"n_layers": 6, "d_model": 384, "n_heads": 6, "context": 256, "batch_size": 64, "steps": 5000}
    own = frames | {"cells": frames["cells"].assign(**paper, corpus="tiny-shakespeare")}
    own |= {name: own[name].assign(step=50 * own[name]["step"]) for name in TRAINING}
    assert "paper's own scale" in found("sgd-overlap", own).evidence


def test_corrections_give_the_right_value(ledger):
    assert ledger.loc["six-heads", "measured"] == pytest.approx(11 / 12)
    assert ledger.loc["llama2-70b", "measured"] == 8 * 128
    assert ledger.loc["published-architectures", "measured"] == pytest.approx(0.9577, abs=1e-4)
    assert ledger.loc["equivalent-size-12-heads", "measured"] == pytest.approx(0.64)
    assert "25.17 M (11.5 %)" in ledger.loc["squad-table", "evidence"]
    assert "54.4 %" in ledger.loc["squad-most-benefit", "evidence"]
    assert "in 2 of 2 rows" in ledger.loc["gqa-factor", "evidence"].rsplit("(H + G)/(2G)", 1)[1]


def test_adamw_is_set_against_a_random_step():
    above = claim_tables.measured("rho_qk", 0.35, case="adamw")(claim_tables.base())
    row = found("adamw-overlap", above)
    assert row.verdict == REPRODUCED
    assert row.measured == pytest.approx(1.4)
    assert "100.0 % lie above that band" in row.evidence


def test_spikes_that_float64_keeps_are_no_artefact():
    frames = claim_tables.measured(
        "rho_qk", lambda rows: np.where(rows["step"] > 90, 0.1, 1e-4) * (1 + 0.01 * rows["seed"]), case="sgd-floor"
    )(claim_tables.base())
    row = found("overlap-spikes", frames)
    assert row.verdict == NOT_REPRODUCED
    assert "no artefact" in row.evidence


def test_gains_that_identified_parameters_alone_explain_are_reproduced():
    apart = claim_tables.replaced("squad", lambda frame: frame.assign(attention=[30_000_000] * 4))
    assert found("squad-most-benefit", apart(claim_tables.base())).verdict == REPRODUCED


def test_a_formula_that_no_rank_confirms_is_corrected_by_the_closed_form():
    spec = claim_tables.layer(8, 2, 4, rotary_dim=4, key_bias=True, value_bias=True, output_bias=True)
    row = found("dead-bias-total", claim_tables.base() | {"ranks": claim_tables.ranks(spec)})
    assert row.verdict == CORRECTED
    assert row.measured == pytest.approx(0.5)


def test_head_counts_beyond_the_base_do_not_enter(ledger):
    frames = claim_tables.base()
    other = frames["cells"][frames["cells"]["case"] == "adamw"].assign(cell="adamw_h16", n_heads=16)
    rows = frames["heads"][frames["heads"]["cell"] == "adamw_lr0.001_float32"].assign(cell="adamw_h16", rho_qk=0.9)
    steps = frames["steps"][frames["steps"]["cell"] == "adamw_lr0.001_float32"].assign(cell="adamw_h16")
    more = frames | {
        "cells": pd.concat([other, frames["cells"]], ignore_index=True),
        "groups": pd.concat([frames["groups"], pd.DataFrame({"group": ["heads"], "cell": ["adamw_h16"]})]),
        "heads": pd.concat([rows, frames["heads"]], ignore_index=True),
        "steps": pd.concat([steps, frames["steps"]], ignore_index=True),
    }
    assert found("adamw-overlap", more).measured == ledger.loc["adamw-overlap", "measured"]


def test_drift_is_read_in_float64_where_there_are_such_runs():
    frames = claim_tables.base()
    members = frames["groups"][frames["groups"]["group"] == "learning_rates"]
    sweep = frames["cells"][frames["cells"]["cell"].isin(members["cell"])]

    def double(frame):
        return frame.assign(cell=frame["cell"] + "_double")

    copies = {name: double(frames[name][frames[name]["cell"].isin(sweep["cell"])]) for name in TRAINING}
    copies["heads"] = copies["heads"].assign(drift_augmented=1.0)
    more = frames | {name: pd.concat([frames[name], copy], ignore_index=True) for name, copy in copies.items()}
    more["cells"] = pd.concat([frames["cells"], double(sweep).assign(precision="float64")], ignore_index=True)
    more["groups"] = pd.concat([frames["groups"], double(members).assign(group="learning_rates_float64")])
    row = found("drift-square", more)
    assert row.measured == pytest.approx(0.0, abs=1e-9)
    assert row.verdict == QUALIFIED
    assert "float64" in row.scale


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0.2, 0.8, REPRODUCED), (-0.5, 0.5, QUALIFIED), (0.5, 1.5, QUALIFIED), (1.1, 1.2, NOT_REPRODUCED)],
)
def test_part_by_its_whole_interval(low, high, verdict):
    assert Part("", Estimate((low + high) / 2, low, high, 3), 0.0, 1.0).verdict == verdict


@pytest.mark.parametrize(
    ("parts", "verdict"),
    [
        ([REPRODUCED, REPRODUCED], REPRODUCED),
        ([REPRODUCED, NOT_REPRODUCED], QUALIFIED),
        ([REPRODUCED, QUALIFIED], QUALIFIED),
        ([QUALIFIED, QUALIFIED], QUALIFIED),
        ([QUALIFIED, NOT_REPRODUCED], NOT_REPRODUCED),
        ([NOT_REPRODUCED, NOT_REPRODUCED], NOT_REPRODUCED),
    ],
)
def test_verdict_of_several_parts(parts, verdict):
    assert combine(parts) == verdict


def test_one_run_is_judged_by_its_value():
    assert Part("", t_interval([0.5]), 0.0, 1.0).verdict == QUALIFIED
    assert Part("", t_interval([1.5]), 0.0, 1.0).verdict == NOT_REPRODUCED


def test_frame_is_the_table_claims(tmp_path):
    frame = claims.judge(claim_tables.base())
    tables.write(tables.CLAIMS, frame, tmp_path / "claims.parquet")
    again = tables.read(tables.CLAIMS, tmp_path / "claims.parquet")
    assert list(again["id"]) == PAPER
    assert list(again["verdict"]) == list(frame["verdict"])
    assert set(frame["verdict"]) <= set(claims.VERDICTS)
    assert claims.to_markdown(again) == claims.to_markdown(frame)
    assert claims.to_latex(again) == claims.to_latex(frame)


def test_same_tables_give_the_same_ledger():
    pd.testing.assert_frame_equal(claims.judge(claim_tables.base()), claims.judge(claim_tables.base()))


def test_markdown_has_one_table_row_and_one_section_a_claim(ledger):
    text = claims.to_markdown(ledger.reset_index())
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| claim")]
    assert len(rows) == len(PAPER)
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 8 for row in rows)
    for claim in (REGISTER[id] for id in PAPER):
        assert f"## {claim.id}: {ledger.loc[claim.id, 'verdict']}" in text
        assert claim.rule in text


def latex_macros(frame):
    lines = claims.to_latex(frame).splitlines()[1:]
    matches = [re.fullmatch(r"\\newcommand\{\\attnid([A-Za-z]+)\}\{(.*)\}", line) for line in lines]
    assert all(matches)
    assert len({match[1] for match in matches}) == len(matches)
    return {match[1]: match[2] for match in matches}


def test_latex_macros_are_valid_and_distinct(ledger):
    macros = latex_macros(ledger.reset_index())
    assert len([name for name in macros if name.startswith("QkFraction")]) == len(MACROS)
    for text in macros.values():
        body = text.replace(r"\{", "").replace(r"\}", "")
        assert body.count("{") == body.count("}")
        assert not re.search(r"(?<!\\)[%&#_$]", body)
    assert macros["QkGaugeDimension"] == macros["QkGaugeDimensionMeasured"] == r"\ensuremath{{1}}"
    assert macros["SixHeadsVerdict"] == "corrected"
    assert macros["SixHeadsPrinted"] == r"11/12, about 83\%"
    assert macros["SixHeadsLow"] == macros["SixHeadsInterval"] == "--"
    assert macros["SgdBeta"] in macros["SgdBetaMeasured"]
    assert macros["SgdBetaMeasured"].endswith(macros["SgdBetaInterval"])


def test_latex_macros_are_the_same_whatever_was_run_and_say_what_was_not(ledger):
    none = latex_macros(claims.judge({}))
    assert none.keys() == latex_macros(ledger.reset_index()).keys()
    assert none["AdamwOverlap"] == none["AdamwOverlapInterval"] == r"\mbox{not run}"
    assert none["OverlapByMomentumVerdict"] == r"\mbox{not run}"
    assert none["TrainingScale"] == "not run"
    assert none["SixHeadsPrinted"] == r"11/12, about 83\%"


def test_latex_totals_add_up(ledger):
    macros = latex_macros(ledger.reset_index())
    verdicts = ("Reproduced", "Corrected", "Qualified", "NotReproduced", "NotRun")
    assert int(macros["Claims"]) == len(PAPER) == sum(int(macros[f"Claims{verdict}"]) for verdict in verdicts)
    assert int(macros["ClaimsCorrected"]) == (ledger["verdict"] == "corrected").sum()
    assert macros["Questions"] == "0"


def test_macro_names():
    assert macro_name("llama2-70b") == r"\attnidLlamaTwoSevenZeroB"


def test_missing_numbers_stay_missing(ledger):
    assert isnan(ledger.loc["six-heads", "low"])
    assert claims.judge({})["measured"].isna().all()


def test_a_group_with_several_cells_where_one_is_meant_is_not_run():
    frames = claim_tables.base()
    adamw = frames["cells"][frames["cells"]["case"] == "adamw"]
    copy = frames | {
        "cells": pd.concat([frames["cells"], adamw.assign(cell="adamw_h16", n_heads=16)], ignore_index=True),
        "groups": pd.concat([frames["groups"], pd.DataFrame({"group": ["cases"], "cell": ["adamw_h16"]})]),
        **{name: pd.concat([frames[name], frames[name].assign(cell="adamw_h16")]) for name in TRAINING},
    }
    row = found("adamw-overlap", copy)
    assert row.verdict == NOT_RUN
    assert "several cells" in row.evidence


def test_a_run_astray_from_its_first_step_is_not_reproduced():
    frames = claim_tables.base()
    cell = frames["cells"].loc[frames["cells"]["case"] == "adamw", "cell"].iloc[0]
    heads, losses = frames["heads"].copy(), frames["evaluations"].copy()
    heads.loc[heads["cell"] == cell, list(tables.HEAD_MEASURES)] = float("nan")
    heads.loc[heads["cell"] == cell, "state"] = "not finite"
    losses.loc[losses["cell"] == cell, "val_loss"] = float("nan")
    astray = frames | {"heads": heads, "evaluations": losses}
    for name in ("adamw-overlap", "adamw-best-loss"):
        row = found(name, astray)
        assert row.verdict == NOT_REPRODUCED
        assert "not finite" in row.evidence


@pytest.mark.parametrize("id", PAPER)
def test_every_verdict_has_the_numbers_behind_it(id):
    row = found(id, claim_tables.base())
    assert row.rows
    for number in row.rows:
        assert np.isfinite(number.value)
        assert number.part
        assert number.item
    if REGISTER[id].kind in ("count", "invariance") and row.verdict == REPRODUCED:
        assert not any(number.value < number.lower - 1e-9 or number.value > number.upper + 1e-9 for number in row.rows)


def test_a_claim_on_runs_is_judged_on_the_interval_over_the_numbers_shown():
    row = found("sgd-beta", claim_tables.base())
    assert [number.item for number in row.rows] == [f"seed {seed}" for seed in range(row.seeds)]
    estimate = t_interval([number.value for number in row.rows])
    assert (estimate.mean, estimate.low, estimate.high) == (row.measured, row.low, row.high)
    assert {number.upper for number in row.rows} == {0.05}
    assert all(isnan(number.lower) for number in row.rows)


def test_the_numbers_shown_average_to_the_number_of_the_claim():
    means = {"arithmetic": np.mean, "geometric": lambda values: np.exp(np.mean(np.log(values)))}
    seen = set()
    for claim, row in claims.findings(claim_tables.base()):
        first = [number for number in row.rows if number.part == row.rows[0].part]
        if first[0].average is not None:
            seen.add(first[0].average)
            mean = means[first[0].average]([number.value for number in first])
            assert mean == pytest.approx(row.measured, rel=1e-12), claim.id
    assert seen == set(means)


def test_the_evidence_is_a_table(tmp_path):
    findings = claims.findings(claim_tables.base())
    frame = claims.evidence(findings)
    tables.write(tables.EVIDENCE, frame, tmp_path / "evidence.parquet")
    rows = tables.read(tables.EVIDENCE, tmp_path / "evidence.parquet")
    assert list(rows["id"].unique()) == PAPER
    pd.testing.assert_frame_equal(rows, frame, check_dtype=False)
    assert not rows.duplicated().any()
    tables.write(tables.EVIDENCE, claims.evidence(claims.findings({})), tmp_path / "none.parquet")


def test_every_figure_that_a_claim_names_is_one():
    named = {claim.figure for claim in claims.all_claims()} - {None}
    assert named
    assert named <= set(figures.NAMES)
