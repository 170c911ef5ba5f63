"""Questions beyond the paper: two small tables with two answers each, and when they are asked."""

import beyond_tables
import claim_tables
import pytest

from attnid import claims
from attnid.claims import REGISTER
from attnid.claims.ledger import BEYOND, NOT_SUPPORTED, OPEN, SUPPORTED, finding

QUESTIONS = [claim.id for claim in claims.all_claims() if claim.kind == BEYOND]


@pytest.mark.parametrize("id", QUESTIONS)
def test_a_question_is_supported_by_one_set_of_tables_and_not_by_another(id: str) -> None:
    ledger = claims.judge(beyond_tables.base()).set_index("id")
    assert ledger.loc[id, "verdict"] == SUPPORTED, ledger.loc[id, "evidence"]
    change, verdict = beyond_tables.OTHER[id]
    changed = change(beyond_tables.base())
    assert finding(REGISTER[id], changed).verdict == verdict, finding(REGISTER[id], changed).evidence
    answer = claims.judge(changed).set_index("id").loc[id, "verdict"]
    assert answer == (NOT_SUPPORTED if verdict == claims.NOT_REPRODUCED else OPEN)


def test_heads_of_width_one_have_no_rotations_to_compare() -> None:
    frames = beyond_tables.base()
    narrow = {"cells": frames["cells"].assign(qk_head_dim=1, rho_rotation_null_mean=0.0)}
    answer = claims.judge(frames | narrow).set_index("id").loc["scaling-against-rotation"]
    assert answer["verdict"] == claims.NOT_RUN
    assert "no rotations" in answer["evidence"]


def test_questions_are_asked_where_their_cells_are_configured_and_nowhere_else() -> None:
    of_paper = claims.judge(claim_tables.base())
    assert BEYOND not in set(of_paper["kind"])
    frames = beyond_tables.base()
    asked = claims.judge(frames | {"groups": frames["groups"][frames["groups"]["group"] == "key_bias"]})
    assert list(asked.loc[asked["kind"] == BEYOND, "id"]) == ["key-bias-wanders"]


def test_the_tally_counts_claims_and_questions_apart() -> None:
    ledger = claims.judge(beyond_tables.base())
    sentence = claims.tally(ledger)
    assert f"{len(QUESTIONS)} questions beyond the paper: {len(QUESTIONS)} supported." in sentence
    assert sentence.startswith(f"{len(REGISTER) - len(QUESTIONS)} claims: ")


def test_every_question_names_a_group_of_the_full_configuration() -> None:
    from settings import overlaid_settings

    groups = overlaid_settings("full.yaml")["groups"]
    assert {REGISTER[id].group for id in QUESTIONS} <= set(groups)
    assert not {REGISTER[id].group for id in QUESTIONS} & set(claim_tables.base()["groups"]["group"])
