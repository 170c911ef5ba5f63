"""Every class of mistake in configurations, texts and commands: status 2, one sentence that names it, nothing else."""

import copy
import warnings
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from settings import ROOT, default_settings

from attnid import cli, config, plan
from attnid.errors import UserError

BASE = str(ROOT / "config.yaml")
BOMB = "a: &a [1, 2]\n" + "".join(f"{y}: &{y} [{', '.join([f'*{x}'] * 9)}]\n" for x, y in pairwise("abcdefgh"))

FILES: list[tuple[str, bytes | None, str]] = [
    ("missing", None, "cannot be read (No such file or directory); expected a YAML configuration"),
    ("empty", b"", "holds no keys"),
    ("a comment alone", b"# later\n", "holds no keys"),
    ("a list", b"- training\n", "holds no keys"),
    ("a number", b"3\n", "holds no keys"),
    ("a word", b"training\n", "holds no keys"),
    ("unclosed", b"training: {seeds: 2\n", "not YAML (while parsing a flow mapping"),
    ("a tab", b"training:\n\tseeds: 2\n", "not YAML"),
    ("indented wrongly", b"training:\n  seeds: 2\n seeds_per_job: 2\n", "not YAML"),
    ("two documents", b"training: {}\n---\nmodel: {}\n", "not YAML"),
    ("a class", b"training: !!python/object/apply:os.system ['touch owned']\n", "not YAML (could not determine"),
    ("a module", b"training: !!python/name:os.system\n", "not YAML (could not determine"),
    ("a template", b"__use_yte__: true\n", "makes Snakemake run Python"),
    ("Latin-1", "corpus: caf\xe9.txt\n".encode("latin-1"), "not YAML ('utf-8' codec"),
    ("UTF-16", "corpus: x\n".encode("utf-16"), "not YAML"),
    ("control characters", b"corpus: \x00\x01\n", "not YAML"),
    ("an unknown alias", b"training: *other\n", "not YAML"),
    ("an alias to itself", b"training: &t {seeds: *t}\n", "more than 10000 values"),
    ("an alias bomb", BOMB.encode(), "more than 10000 values, aliases written out"),
    ("deeply nested", b"a: " + b"[" * 3000 + b"]" * 3000, "not YAML"),
    ("two megabytes", b"# " + b"x" * 2_000_000, "more than 1000000 bytes"),
    ("a key twice", b"training: {seeds: 2, seeds: 3}\n", "seeds stands twice in the section from line 1"),
    ("a section twice", b"model: {}\ntraining: {}\nmodel: {}\n", "model stands twice in the section from line 1"),
    ("a key of two words", b"? [a, b]\n: 3\n", "not YAML"),
]

KEYS: list[tuple[str, str]] = [
    ("{trainng: {seeds: 2}}", "trainng is not a key; allowed beside it: corpus"),
    ("{training: {seed: 2}}", "training.seed is not a key; allowed beside it: steps"),
    ("{training: 3}", "training is 3; input should be a valid dictionary"),
    ("{training: null}", "training is None"),
    ("{training: [1]}", "training is [1]"),
    ("{training: {steps: -5}}", "training.steps is -5; input should be greater than or equal to 1"),
    ("{training: {steps: 1e3x}}", "training.steps is '1e3x'"),
    ("{training: {steps: 10.5}}", "training.steps is 10.5"),
    ("{training: {steps: .nan}}", "training.steps is nan"),
    ("{training: {seeds: 2026-12-01}}", "training.seeds is datetime.date(2026, 12, 1)"),
    ("{training: {seeds: on}}", "training.seeds is True; input should be a number"),
    ("{training: {first_seed: -1}}", "training.first_seed is -1"),
    ("{training: {first_seed: 99999999999}}", "training.first_seed is 99999999999"),
    ("{training: {adam_betas: [0.9, 0.99, 1]}}", "training.adam_betas"),
    ("{training: {adam_betas: 0.9}}", "training.adam_betas is 0.9"),
    ("{training: {adam_betas: [0.9, 1.0]}}", "training.adam_betas.1 is 1.0; input should be less than 1"),
    ("{training: {precision: half}}", "training.precision is 'half'; input should be 'float32'"),
    ("{training: {warmup_steps: 600}}", "training.warmup_steps must be less than training.steps = 500, not 600"),
    ("{model: {dropout: 1}}", "model.dropout is 1; input should be less than 1"),
    ("{model: {n_heads: 5}}", "model.n_heads must divide model.d_model = 64"),
    ("{model: {context: 1}}", "model.context is 1"),
    ("{cases: {sgd: null}}", "cases.sgd is None"),
    ("{cases: {sgd: {lr: 0}}}", "cases.sgd.lr is 0; input should be greater than 0"),
    ("{cases: {sgd: {lr: '1e-3 '}, Upper: {optimizer: sgd, lr: 1}}}", "cases.Upper is 'Upper'; string should match"),
    ("{cases: {'../../up': {optimizer: sgd, lr: 1}}}", "string should match pattern"),
    ("{cases: {'a b': {optimizer: sgd, lr: 1}}}", "string should match pattern"),
    ("{cases: {3: {optimizer: sgd, lr: 1}}}", "cases.3 is 3; input should be a valid string"),
    ("{cases: {" + "x" * 41 + ": {optimizer: sgd, lr: 1}}}", "string should have at most 40 characters"),
    ("{cases: {new: {optimizer: sgd}}}", "cases.new.lr is missing"),
    ("{groups: {cases: {cases: sgd}}}", "groups.cases.cases is 'sgd'; input should be a valid list"),
    ("{groups: {cases: {cases: [nobody]}}}", "names 'nobody', which is none of the cases"),
    ("{groups: {'<b>': {cases: [sgd]}}}", "string should match pattern"),
    ("{groups: {heads: {n_heads: [0]}}}", "groups.heads.n_heads.0 is 0"),
    ("{groups: {heads: {rope: [maybe]}}}", "groups.heads.rope.0 is 'maybe'"),
    ("{analysis: {head_counts: []}}", "analysis.head_counts is []"),
    ("{corpus: null}", "corpus is None; input should be a valid string"),
    ("{corpus: ''}", "corpus must be king-james"),
    ("{corpus: /}", "corpus must be king-james"),
    ("{corpus: nowhere.txt}", "'nowhere.txt' is none of these"),
    ("{corpus: results/corpus/king-james.txt}", "corpus must be king-james"),
    ("{device: tpu}", "device is 'tpu'"),
    ("{tensorboard: perhaps}", "tensorboard is 'perhaps'"),
    ("{tables: nowhere}", "tables must be a directory of results"),
]

CORPORA: list[tuple[str, bytes, str]] = [
    ("empty", b"", "0 different characters"),
    ("one character", b"a" * 5000, "1 different characters; expected at least 2"),
    ("shorter than the context", b"abcdef" * 10, "a context of 64 needs at least"),
    ("not UTF-8", b"\xff\xfe" * 2000, "not UTF-8 (byte 0)"),
    ("cut in a character", "äö".encode()[:-1], "not UTF-8"),
]

COMMANDS: list[tuple[list[str], str]] = [
    (["merge", "nowhere", "nowhere", "out"], "nowhere is no directory"),
    (["count"], "no layer given"),
    (["count", "gpt-17"], "neither a file nor a shipped model"),
    (["count", "nowhere.json"], "cannot be read"),
    (["count", "--list", "gpt2"], "--list takes no layer"),
    (["check", "."], "cannot be read (Is a directory)"),
    (["plan", "/dev/null"], "holds no keys"),
]


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Any]:
    """Runs a command in an empty directory and gives its sentence; nothing else may come of it."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> str:
        before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert cli.main(list(arguments)) == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.count("\n") == 1
        assert len(printed.err) < 1000
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
        return printed.err

    return run


@pytest.mark.parametrize(("content", "sentence"), [pytest.param(*rest, id=name) for name, *rest in FILES])
@pytest.mark.parametrize("command", ["check", "plan"])
def test_a_configuration_file_that_is_none(command: str, content: bytes | None, sentence: str, said: Any) -> None:
    path = Path("my.yaml")
    if content is not None:
        path.write_bytes(content)
    message = said(command, BASE, str(path))
    assert message.startswith("attnid: my.yaml: ")
    assert sentence in message
    assert not Path("owned").exists()


@pytest.mark.parametrize(("overlay", "sentence"), KEYS, ids=[sentence for _, sentence in KEYS])
def test_a_key_that_is_wrong(overlay: str, sentence: str, said: Any) -> None:
    Path("my.yaml").write_text(overlay)
    message = said("check", BASE, "my.yaml")
    assert message.startswith("attnid: configuration: ")
    assert sentence in message


@pytest.mark.parametrize(("content", "sentence"), [pytest.param(*rest, id=name) for name, *rest in CORPORA])
def test_a_text_that_cannot_be_trained_on(content: bytes, sentence: str, said: Any) -> None:
    Path("text.txt").write_bytes(content)
    Path("my.yaml").write_text("corpus: text.txt")
    message = said("check", BASE, "my.yaml")
    assert message.startswith("attnid: corpus text.txt: ")
    assert sentence in message


@pytest.mark.parametrize(("arguments", "sentence"), COMMANDS, ids=[" ".join(arguments) for arguments, _ in COMMANDS])
def test_a_command_that_cannot_be_run(arguments: list[str], sentence: str, said: Any) -> None:
    assert sentence in said(*arguments)


@pytest.mark.parametrize("arguments", [[], ["rebuild"], ["count", "--rank", "exact"], ["merge", "a"], ["check"]])
def test_a_command_line_that_is_none_shows_its_use(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("usage: attnid")


def test_more_than_sixty_mistakes_are_tried() -> None:
    assert len(FILES) + len(KEYS) + len(CORPORA) + len(COMMANDS) > 60


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["sgd", "qk", "1"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Paths of all values of a configuration."""
    yield path
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield from places(child, (*path, key))


def parsed_or_complaint(settings: Any) -> tuple[config.Config | None, str]:
    try:
        return config.parse(settings), ""
    except UserError as error:
        return None, str(error)


PLACES = [path for path in places(default_settings()) if path]


def changed(settings: Any, path: tuple[Any, ...], change: Callable[[Any, Any], None]) -> Any:
    result = copy.deepcopy(settings)
    inner = result
    for key in path[:-1]:
        inner = inner[key]
    change(inner, path[-1])
    return result


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(path=st.sampled_from(PLACES), value=JSON, kind=st.sampled_from(["replace", "remove", "add"]))
def test_a_mutated_configuration_gives_a_plan_or_a_sentence(path: tuple[Any, ...], value: Any, kind: str) -> None:
    def change(inner: Any, key: Any) -> None:
        if kind == "remove":
            del inner[key]
        elif kind == "replace" or not isinstance(inner, dict):
            inner[key] = value
        else:
            inner[str(value)[:20]] = value

    mutated = changed(default_settings(), path, change)
    parsed, complaint = parsed_or_complaint(mutated)
    if parsed is None:
        assert complaint.startswith("configuration: ")
        assert "\n" not in complaint
        return
    expected = plan.plan(parsed, 1e10)
    assert expected.runs == len(config.cells(parsed)) * parsed.training.seeds
    assert config.parse(yaml.safe_load(yaml.safe_dump(parsed.model_dump(mode="json")))) == parsed
