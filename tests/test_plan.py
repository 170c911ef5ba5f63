import pytest
from settings import cell, default_settings

from attnid import cli, plan
from attnid.config import cells, parse


def test_a_forward_pass_counts_its_matrix_products() -> None:
    """By hand for E = 4, one layer, one head, L = 2, B = 1: projections, MLP, logits, scores and mixing."""
    one = cell(d_model=4, n_layers=1, n_heads=1, context=2, batch_size=1)
    projections, mlp = 2 * 4 * 16, 2 * 8 * 16
    logits, scores = 2 * plan.CORPUS_CHARACTERS * 4, 2 * 2 * 2 * 4
    assert plan.forward_flops(one) == 2 * (projections + mlp + logits + scores)


def test_cost_grows_with_what_makes_training_longer() -> None:
    base = plan.cost(cell(precision="float32"))
    for changes in ({"steps": 24}, {"batch_size": 6}, {"n_heads": 4}, {"n_layers": 4}, {"precision": "float64"}):
        assert plan.cost(cell(**({"precision": "float32"} | changes))) > base


def test_the_plan_of_the_default_configuration() -> None:
    config = parse(default_settings())
    expected = plan.plan(config, speed=5e10)
    assert expected.training_jobs == len(cells(config))
    assert expected.runs == 5 * expected.training_jobs
    assert expected.job_mb < 2048
    assert 0.1 < expected.seconds / 3600 < 2
    starts = plan.START_SECONDS * expected.training_jobs
    assert plan.plan(config, speed=1e11).seconds - starts == pytest.approx((expected.seconds - starts) / 2)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(90, "90 seconds"), (150, "2.5 minutes"), (7_200, "2 hours"), (864_000, "10 days")],
)
def test_a_plan_is_told_in_units_that_fit(seconds: float, text: str) -> None:
    lines = plan.sentences(plan.Plan(1, 1, seconds, 900, 5), [1])
    assert lines[1] == f"training: about {text} with 1 at a time, on this machine"


def test_only_cuda_asks_for_a_gpu_by_name() -> None:
    assert plan.wants_gpu("cuda")
    assert not plan.wants_gpu("cpu")


def test_the_command_prints_the_plan(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cli.__file__.rsplit("/src/", 1)[0])
    assert cli.main(["plan", "config.yaml", "config/smoke.yaml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "12 training jobs, 24 runs in all, from nothing"
    assert [line.split(":")[0] for line in lines[1:]] == ["training", "memory", "disk"]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "cannot be read"),
        ("", "holds no keys"),
        ("[1, 2]", "holds no keys"),
        ("a: [", "not YAML"),
        ("corpus: king-james", "is missing"),
    ],
)
def test_a_file_that_is_no_configuration_is_one_sentence(
    content: str | None, sentence: str, tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "my.yaml"
    if content is not None:
        path.write_text(content)
    assert cli.main(["plan", str(path)]) == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert error.count("\n") == 1
