import math
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from settings import cell, default_settings, overlaid_settings

from attnid.config import Config, Section, cells, grouped_cells, parse, seed_blocks
from attnid.errors import UserError


def changed(path: str, value: Any) -> dict[str, Any]:
    """The default configuration with one key set (or, for None, taken out)."""
    settings = default_settings()
    section = settings
    *parents, last = path.split("/")
    for key in parents:
        section = section[key]
    if value is None:
        del section[last]
    else:
        section[last] = value
    return settings


@pytest.mark.parametrize("overlay", [None, "smoke.yaml", "paper.yaml"])
def test_shipped_configurations_hold(overlay: str | None) -> None:
    config = parse(overlaid_settings(overlay) if overlay else default_settings())
    groups = grouped_cells(config)
    assert [c.case for c in groups["cases"]] == ["sgd", "sgd-decay", "adamw", "adamw-rebalanced"]
    assert {c.id for group in groups.values() for c in group} == set(cells(config))


def test_the_paper_overlay_is_the_papers_experiment() -> None:
    config = parse(overlaid_settings("paper.yaml"))
    model, training = config.model, config.training
    assert (model.n_layers, model.d_model, model.n_heads, model.context, model.dropout) == (6, 384, 6, 256, 0.2)
    assert (training.steps, training.warmup_steps, training.batch_size, training.seeds) == (5000, 100, 64, 5)
    assert (training.rebalance_every, training.grad_clip, training.adam_betas) == (200, 1.0, (0.9, 0.99))
    sgd, decay, adamw, rebalanced = grouped_cells(config)["cases"]
    assert (sgd.lr, sgd.weight_decay, decay.lr, decay.weight_decay) == (0.25, 0, 0.25, 4e-4)
    assert (adamw.lr, adamw.weight_decay, rebalanced.rebalance, rebalanced.rebalance_every) == (
        1e-3,
        0.1,
        "qk",
        200,
    )
    assert decay.lr * decay.weight_decay == pytest.approx(adamw.lr * adamw.weight_decay)
    assert [c.lr for c in grouped_cells(config)["learning_rates"]] == [0.5, 0.25, 0.125, 0.0625]


MISTAKES = [
    ("model/n_heads", 5, "model.n_heads must divide model.d_model = 64 (1, 2, 4, 8, 16, 32, 64), not 5"),
    ("model/n_heads", 0, "model.n_heads is 0; input should be greater than or equal to 1"),
    ("model/depth", 3, "model.depth is not a key; allowed beside it: n_layers, d_model, n_heads, context, dropout"),
    ("model/dropout", 1.0, "model.dropout is 1.0; input should be less than 1"),
    ("model", None, "model is missing"),
    ("model", 3, "model is 3; input should be a valid dictionary"),
    ("training/steps", "many", "training.steps is 'many'; input should be a valid integer"),
    ("training/steps", True, "training.steps is True; input should be a number"),
    ("training/steps", 600.5, "training.steps is 600.5; input should be a valid integer"),
    ("cases/sgd/lr", False, "cases.sgd.lr is False; input should be a number"),
    ("training/steps", 10, "training.warmup_steps must be less than training.steps = 10, not 10"),
    ("training/measure_every", 501, "training.measure_every must be at most training.steps = 500, not 501"),
    ("training/seeds", 3, "training.seeds_per_job must be at most training.seeds = 3, not 5"),
    ("training/grad_clip", math.inf, "training.grad_clip is inf; input should be a finite number"),
    ("training/grad_clip", 1e31, "training.grad_clip is 1e+31; input should be at most 1e30"),
    ("cases/sgd/lr", 1e300, "cases.sgd.lr is 1e+300; input should be at most 1e30"),
    ("groups/heads/lr", [], "groups.heads.lr is []; list should have at least 1 item"),
    ("groups/heads/n_heads", [], "groups.heads.n_heads is []; list should have at least 1 item"),
    ("training/adam_betas", [0.9], "training.adam_betas.1 is missing"),
    (
        "training/precision",
        "float16",
        "training.precision is 'float16'; input should be 'float32', 'float64' or 'bfloat16'",
    ),
    (
        "cases/sgd/optimizer",
        "no-such",
        "cases.sgd.optimizer is 'no-such'; input should be 'adam', 'adamw', ",
    ),
    (
        "cases/sgd/nesterov",
        True,
        "cases.sgd.nesterov is not a key; allowed beside it: optimizer, lr, weight_decay, mom",
    ),
    ("cases/sgd/momentum", 1.0, "cases.sgd.momentum is 1.0; input should be less than 1"),
    ("cases/sgd/moments", "keep", "cases.sgd.moments is for cases that rebalance weights; rebalance is none"),
    ("cases/sgd/rebalance_every", 5, "cases.sgd.rebalance_every is for cases that rebalance; rebalance is none"),
    ("cases/sgd/rebalance", "weights", "cases.sgd.rebalance is 'weights'; input should be 'none', 'qk', 'qk-vo' or 's"),
    (
        "cases/odd",
        {"optimizer": "muon", "lr": 1.0, "rebalance": "qk", "moments": "transport"},
        "cases.odd.moments cannot",
    ),
    ("groups/cases/rebalance_every", [5], "groups.cases.rebalance_every is for cases that rebalance; cases.sgd.rebala"),
    ("groups/heads/n_kv_heads", [3], "groups.heads.n_kv_heads must divide the head count = 1 (1), not 3"),
    ("model/n_kv_heads", 3, "model.n_kv_heads must divide model.n_heads = 4 (1, 2, 4), not 3"),
    (
        "groups/heads",
        {"cases": ["sgd"], "n_heads": [64], "rope": [True]},
        "groups.heads: rope needs an even head width",
    ),
    (
        "training/evaluate_every",
        15,
        "training.evaluate_every must be a multiple of training.measure_every = 10, not 15",
    ),
    ("training/decay_steps", 10, "training.warmup_steps must be less than training.decay_steps = 10, not 10"),
    ("cases/sgd-floor/lr_floor", 0.3, "cases.sgd-floor.lr_floor must be at most its lr = 0.25, not 0.3"),
    ("cases/..%2Fup", {"optimizer": "sgd", "lr": 1.0}, "string should match pattern"),
    ("groups/cases/cases", ["sdg"], "groups.cases.cases names 'sdg', which is none of the cases sgd, sgd-decay"),
    ("groups/heads/n_heads", [2, 3], "groups.heads.n_heads must divide model.d_model = 64"),
    ("groups/heads/heads", [2], "groups.heads.heads is not a key; allowed beside it: cases, lr, n_heads, n_kv_heads"),
    ("analysis/head_counts", [5], "analysis.head_counts must divide analysis.d_model = 24"),
    ("model/context", 1, "model.context is 1; input should be greater than or equal to 2"),
    ("groups", {}, "groups is {}; dictionary should have at least 1 item after validation, not 0"),
    ("groups/heads/cases", [], "groups.heads.cases is []; list should have at least 1 item after validation, not 0"),
    ("groups/heads", 3, "groups.heads is 3; input should be a valid"),
    ("corpus", "king-jmaes", "corpus must be king-james, tiny-shakespeare or the path of a UTF-8 text file"),
    ("device", "gpu", "device is 'gpu'; input should be 'auto', 'cpu' or 'cuda'"),
    ("devise", "cpu", "devise is not a key; allowed beside it: corpus, device, tensorboard"),
]


@pytest.mark.parametrize(("path", "value", "sentence"), MISTAKES)
def test_a_mistake_is_one_sentence_with_key_value_and_what_is_allowed(path: str, value: Any, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        parse(changed(path, value))
    message = str(caught.value)
    assert sentence in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("path", "value", "takers", "taken"),
    [
        ("cases/adamw/momentum", 0.9, {"muon", "sgd", "sign-sgd"}, "adamw takes adam_betas"),
        ("cases/sgd/adam_betas", [0.0, 0.9], {"adam", "adamw", "muon"}, "sgd takes momentum"),
    ],
)
def test_a_setting_that_an_optimiser_does_not_take_names_those_that_do(
    path: str, value: Any, takers: set[str], taken: str
) -> None:
    with pytest.raises(UserError) as caught:
        parse(changed(path, value))
    named, end = str(caught.value).split(" is for ")[1].split("; ")
    assert set(re.split(", | and ", named)) >= takers
    assert not set(re.split(", | and ", named)) & {path.split("/")[1]}
    assert end == taken


def test_tables_are_made_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("results", "other", "{odd}"):
        (tmp_path / name / "metrics").mkdir(parents=True)
    (tmp_path / "link").symlink_to("results")
    assert parse(changed("tables", "other")).tables == "other"
    for name in ("results", "./results", "results/", "other/../results", "link", str(tmp_path / "results")):
        with pytest.raises(UserError, match="is where this run writes its own"):
            parse(changed("tables", name))
    with pytest.raises(UserError, match="a path without braces"):
        parse(changed("tables", "{odd}"))
    for name in ("x" * 300, "a\0b", "", "other/metrics", "nowhere"):
        with pytest.raises(UserError, match="tables must be a directory of results"):
            parse(changed("tables", name))


def test_what_a_group_sets_itself_is_what_is_checked() -> None:
    settings = changed("model/rope", True) | {"groups": {"g": {"cases": ["sgd"], "n_heads": [64], "rope": [False]}}}
    assert [own.rope for own in cells(parse(settings)).values()] == [False]
    settings["groups"]["g"]["rope"] = [False, True]
    with pytest.raises(UserError, match=r"groups.g: rope needs an even head width"):
        parse(settings)
    settings = changed("model/n_kv_heads", 3) | {"groups": {"g": {"cases": ["sgd"], "n_kv_heads": [2]}}}
    with pytest.raises(UserError, match=r"model.n_kv_heads must divide model.n_heads = 4"):
        parse(settings)


def test_every_field_of_every_section_is_described() -> None:
    described = [Config]
    for section in Section.__subclasses__():
        if section is not Config:
            described.append(section)
            assert all(field.description for field in section.model_fields.values()), section
    assert len(described) == 6
    fields = Config.model_fields.items()
    assert all(
        field.description or name in ("model", "training", "cases", "groups", "analysis") for name, field in fields
    )


def test_the_hash_covers_what_changes_the_numbers_and_nothing_else() -> None:
    base = cell()
    assert base.hash == cell(case="another name").hash
    different = {
        "lr": 0.02,
        "lr_floor": 0.0,
        "weight_decay": 0.0,
        "steps": 13,
        "corpus": "other",
        "dropout": 0.1,
        "n_heads": 4,
    }
    assert len({base.hash, *(cell(**{key: value}).hash for key, value in different.items())}) == len(different) + 1


def test_ids_do_not_change_from_one_version_to_the_next() -> None:
    assert cell().id == "adamw_lr0.01_h2_float64_" + cell().hash
    assert cell(precision="float32", case="sgd", lr=0.5).id.startswith("sgd_lr0.5_h2_")


@given(seeds=st.integers(1, 40), per_job=st.integers(1, 12), start=st.integers(0, 9))
def test_blocks_cover_every_seed_once(seeds: int, per_job: int, start: int) -> None:
    wanted = range(start, start + seeds)
    blocks = seed_blocks(wanted, per_job)
    assert [seed for first, last in blocks for seed in range(first, last + 1)] == list(wanted)
    assert max(last - first + 1 for first, last in blocks) <= per_job


@given(
    history=st.lists(st.integers(1, 40), min_size=1, max_size=5), per_job=st.integers(1, 12), start=st.integers(0, 9)
)
def test_more_seeds_train_nothing_again(history: list[int], per_job: int, start: int) -> None:
    trained: set[tuple[int, int]] = set()
    covered: set[int] = set()
    for seeds in sorted(history):
        new = set(seed_blocks(range(start, start + seeds), per_job, trained)) - trained
        seeds_of_new = {seed for first, last in new for seed in range(first, last + 1)}
        assert not seeds_of_new & covered
        trained |= new
        covered |= seeds_of_new
        assert covered == set(range(start, start + seeds))


def test_other_seeds_use_no_block_that_holds_more() -> None:
    assert seed_blocks(range(3), 5, [(0, 4)]) == [(0, 2)]
    assert seed_blocks(range(7), 5, [(0, 4), (5, 9)]) == [(0, 4), (5, 6)]
    assert seed_blocks(range(2, 7), 5, [(0, 4), (5, 6)]) == [(2, 4), (5, 6)]


def test_a_group_set_to_null_is_left_out() -> None:
    settings = default_settings()
    groups = list(settings["groups"])
    settings["groups"]["heads"] = None
    assert list(parse(settings).groups) == [name for name in groups if name != "heads"]
    settings["groups"] = dict.fromkeys(groups)
    with pytest.raises(UserError, match=r"groups is \{\}; dictionary should have at least 1 item"):
        parse(settings)


def test_numbers_given_on_the_command_line_as_text_are_numbers() -> None:
    assert parse(changed("training/seeds", "7")).training.seeds == 7


def test_a_cell_listed_twice_is_in_its_group_once() -> None:
    twice = changed("groups/twice", {"cases": ["sgd", "sgd"], "lr": [0.25, 0.25]})
    assert [cell.id for cell in grouped_cells(parse(twice))["twice"]] == [grouped_cells(parse(twice))["cases"][0].id]


def test_a_cell_id_is_fit_for_a_path_at_any_learning_rate() -> None:
    assert cell(lr=1e30, lr_floor=0.0).id.startswith("adamw_lr1e30_h2_")


def test_a_huge_width_is_checked_at_once() -> None:
    with pytest.raises(UserError, match=r"analysis\.head_counts must divide"):
        parse(changed("analysis/d_model", 999_999_937))


@pytest.mark.parametrize("name", ["a" * 300, "nul\0", "results/corpus/own.txt"])
def test_a_corpus_that_cannot_be_a_file_of_ones_own_is_one_sentence(name: str) -> None:
    with pytest.raises(UserError, match="corpus must be king-james, tiny-shakespeare or the path"):
        parse(changed("corpus", name))


def test_two_cells_of_one_name_are_refused() -> None:
    group = {"cases": ["adamw-rebalanced"], "n_heads": None, "rebalance_every": [1062, 10191]}
    settings = default_settings()
    settings["groups"] = {"heads": group}
    with pytest.raises(UserError, match="two cells, with rebalance_every 1062 and 10191, have the same name"):
        parse(settings)
    group["rebalance_every"] = [1062, 10192]
    assert len(cells(parse(settings))) == 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("training/steps", 10**400),
        ("training/seeds", 2 * 10**9),
        ("model/d_model", 10**18),
        ("training/steps", 16**5000),
    ],
    ids=["steps", "seeds", "width", "steps without end"],
)
def test_a_number_beyond_reach_is_one_sentence(key: str, value: int) -> None:
    with pytest.raises(UserError, match=r"input should be less than or equal to|thousands of digits"):
        parse(changed(key, value))
