"""The whole workflow on the smoke configuration, in an empty directory, as a user runs it."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import browser
import pandas as pd
import pytest
import verify
from playwright.sync_api import Browser
from settings import overlaid_settings

from attnid import figures, paths, tables
from attnid.cli import main
from attnid.config import cells, parse

pytestmark = pytest.mark.slow


class Checkout:
    """A copy of the project in a directory of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(exist_ok=True)
        verify.copy_workflow(root)

    def snakemake(self, *arguments: str, status: int = 0) -> str:
        """Run snakemake with the smoke configuration; returns what it printed."""
        command = [sys.executable, "-m", "snakemake", "--cores", "2", *arguments, "--configfile", "config/smoke.yaml"]
        result = subprocess.run(
            command, cwd=self.root, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
        )
        assert result.returncode == status, result.stdout[-5000:]
        return result.stdout

    def planned(self, *arguments: str) -> dict[str, int]:
        """Jobs a dry run would start, by rule."""
        lines = self.snakemake(*arguments, "--dry-run", "--quiet", "rules").splitlines()
        counts = [line.split() for line in lines if len(line.split()) == 2 and line.split()[1].isdigit()]
        return {name: int(number) for name, number in counts if name != "total"}

    def digest(self, *patterns: str) -> dict[str, str]:
        """Checksums of results."""
        found = (path for pattern in patterns for path in sorted((self.root / "results").glob(pattern)))
        return {str(path.relative_to(self.root)): hashlib.sha256(path.read_bytes()).hexdigest() for path in found}

    def append(self, file: str, text: str) -> None:
        """Add to the end of a file."""
        path = self.root / file
        path.write_text(path.read_text() + text)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checkout]:
    """A checkout in which the smoke pipeline has run to its end."""
    checkout = Checkout(tmp_path_factory.mktemp("checkout"))
    checkout.snakemake()
    yield checkout
    shutil.rmtree(checkout.root)


def test_the_pipeline_makes_everything_it_promises(finished: Checkout) -> None:
    made = finished.root / "results"
    for name in ("claims.parquet", "claims.md", "claims.tex", "report.html"):
        assert (made / name).stat().st_size > 0
    for name in figures.names(overlaid_settings("smoke.yaml")["groups"]):
        assert (finished.root / paths.figure(name, "png")).read_bytes().startswith(b"\x89PNG")
        assert (finished.root / paths.figure(name, "pdf")).read_bytes().startswith(b"%PDF")
    ranks = tables.read(tables.RANKS, finished.root / paths.analysis("ranks"))
    assert ranks.agrees.all()
    wanted = set(cells(parse(overlaid_settings("smoke.yaml"))))
    heads = tables.read(tables.HEADS, finished.root / paths.metrics("heads"))
    assert set(heads.cell) == wanted
    assert set(heads.seed) == {0, 1}


def test_the_page_shows_every_figure_on_a_phone_and_at_a_desk(finished: Checkout, chromium: Browser) -> None:
    drawn = len(figures.names(overlaid_settings("smoke.yaml")["groups"]))
    assert browser.figures_of_a_good_report(chromium, finished.root / "results" / "report.html") >= drawn


def test_every_claim_has_a_verdict(finished: Checkout) -> None:
    claims = tables.read(tables.CLAIMS, finished.root / "results" / "claims.parquet")
    assert claims.id.is_unique
    assert not (claims.verdict == "not run").any()
    counts = claims[claims.kind != "training"].set_index("id").verdict
    assert counts["qk-gauge-dimension"] == "reproduced"
    assert counts["six-heads"] == "corrected"


def test_a_second_run_has_nothing_to_do(finished: Checkout) -> None:
    assert "Nothing to be done" in finished.snakemake()


def test_editing_a_figure_redraws_that_figure_and_nothing_else_before_the_report(finished: Checkout) -> None:
    source = "src/attnid/figures/squad_table.py"
    before = (finished.root / source).read_text()
    finished.append(source, "\n# edited\n")
    try:
        planned = finished.planned()
    finally:
        (finished.root / source).write_text(before)
    assert planned == {"draw_figure": 1, "report_page": 1, "all": 1}


def test_editing_training_code_retrains(finished: Checkout) -> None:
    source = "src/attnid/gpt.py"
    before = (finished.root / source).read_text()
    finished.append(source, "\n# edited\n")
    try:
        planned = finished.planned("training")
    finally:
        (finished.root / source).write_text(before)
    assert planned["train_cell"] == len(cells(parse(overlaid_settings("smoke.yaml"))))
    assert "analyse_layers" not in planned


def test_the_device_is_no_reason_to_train_again(finished: Checkout) -> None:
    assert "Nothing to be done" in finished.snakemake("training", "--config", "device=cpu")


def test_more_seeds_train_only_the_new_ones(finished: Checkout) -> None:
    output = finished.snakemake("training", "--dry-run", "--quiet", "host", "--config", "training={seeds: 3}")
    trained = [line for line in output.splitlines() if "output: results/training" in line]
    assert len(trained) == len(cells(parse(overlaid_settings("smoke.yaml"))))
    assert all("/seeds-2-2/" in line for line in trained)


@pytest.mark.parametrize(
    ("override", "sentence"),
    [
        ("model={n_heads: 5}", "model.n_heads must divide model.d_model = 32 (1, 2, 4, 8, 16, 32), not 5"),
        ("corpus=nowhere.txt", "corpus must be king-james, tiny-shakespeare or the path of a UTF-8 text file"),
        ("colour=red", "colour is not a key; allowed beside it: corpus, device"),
    ],
)
def test_a_mistake_ends_the_run_before_any_job(finished: Checkout, override: str, sentence: str) -> None:
    output = finished.snakemake("--config", override, status=2)
    assert sentence in output
    assert "Traceback" not in output
    assert "rule " not in output


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"abc", "short.txt: 3 characters; a context of 32 needs at least 321"),
        (b"abc\xff" * 1000, "short.txt: not UTF-8 (byte 3)"),
        (b"a" * 1000, "short.txt: 1 different characters; expected at least 2"),
    ],
)
def test_a_corpus_that_cannot_be_trained_on_ends_the_run_before_any_job(
    finished: Checkout, content: bytes, sentence: str
) -> None:
    (finished.root / "short.txt").write_bytes(content)
    output = finished.snakemake("training", "--config", "corpus=short.txt", status=2)
    assert sentence in output
    assert "Traceback" not in output


def test_figures_and_claims_are_made_from_tables_made_elsewhere(finished: Checkout, tmp_path: Path) -> None:
    here = Checkout(tmp_path / "here")
    for part in ("analysis", "metrics"):
        shutil.copytree(finished.root / "results" / part, here.root / "elsewhere" / part)
    arguments = ("all", "--config", "tables=elsewhere")
    assert not {"train_cell", "analyse_layers", "fetch_corpus", "collect_metrics"} & set(here.planned(*arguments))
    here.snakemake(*arguments)
    for pattern in ("claims.*", "figures/*"):
        assert here.digest(pattern) == finished.digest(pattern) != {}
    assert "width 32" in (here.root / "results" / "report.html").read_text()
    (here.root / "elsewhere" / "metrics" / "steps.parquet").unlink()
    output = here.snakemake(*arguments, status=2)
    assert "tables is 'elsewhere', but elsewhere/metrics/steps.parquet is missing; expected a run's tables" in output
    assert "Traceback" not in output
    output = here.snakemake("claims", "--config", "tables=nowhere", status=2)
    assert "tables must be a directory of results with metrics/ and analysis/ in it; 'nowhere' is none" in output


def test_nothing_is_made_again_from_tables_made_elsewhere(finished: Checkout, tmp_path: Path) -> None:
    here = Checkout(tmp_path / "here")
    shutil.copytree(finished.root / "results", here.root / "elsewhere")
    for target in ("analysis", "training", "metrics"):
        assert here.planned(target, "--config", "tables=elsewhere") == {target: 1}
    heads = here.root / "elsewhere" / "metrics" / "heads.parquet"
    data = heads.read_bytes()
    for damaged in (data[: len(data) // 2], data[:99] + bytes(400) + data[499:]):
        heads.write_bytes(damaged)
        output = here.snakemake("claims", "--config", "tables=elsewhere", status=2)
        assert "heads.parquet: not a readable Parquet file" in output
        assert "Traceback" not in output


def test_results_of_another_configuration_without_records_are_no_results(finished: Checkout, tmp_path: Path) -> None:
    here = Checkout(tmp_path / "here")
    shutil.copytree(finished.root / "results", here.root / "results", dirs_exist_ok=True)
    for path in here.root.glob("results/**/*"):
        os.utime(path, (time.time(), time.time()))
    (here.root / "results" / "claims.parquet").unlink()
    output = here.snakemake("claims", "--config", "training={steps: 50}", status=2)
    assert "the tables were made with training.steps 40, the configuration has 50" in output
    assert "without results/metrics and the analysis beside it, they are made again" in output
    assert "Done. The page to read" not in output


def test_a_run_with_a_failed_cell_gives_a_page_that_names_it(
    finished: Checkout, tmp_path: Path, chromium: Browser
) -> None:
    here = Checkout(tmp_path / "here")
    for part in ("results", ".snakemake"):
        shutil.copytree(finished.root / part, here.root / part, dirs_exist_ok=True)
    failed = next(
        path for path in sorted((here.root / "results" / "training").iterdir()) if path.name.startswith("adamw-cleared")
    )
    shutil.rmtree(failed)
    in_the_way = here.root / paths.running(failed.name, 0, 1)
    in_the_way.parent.mkdir(exist_ok=True)
    in_the_way.touch()
    shutil.rmtree(here.root / "results" / "metrics")
    (here.root / "results" / "report.html").unlink()
    assert "--config partial=true" in here.snakemake(status=1)
    here.snakemake("--config", "partial=true")
    page = (here.root / "results" / "report.html").read_text()
    assert "1 training job is missing from this page" in page
    missing = page[page.index('<h2 id="missing"') : page.index('<h2 id="again"')]
    assert f'<th scope="row">{failed.name}</th><td>0 to 1</td>' in missing
    assert "File exists" in missing
    assert browser.figures_of_a_good_report(chromium, here.root / "results" / "report.html") > 0
    claims = tables.read(tables.CLAIMS, here.root / "results" / "claims.parquet")
    judged = tables.read(tables.CLAIMS, finished.root / "results" / "claims.parquet")
    assert "not run" in set(claims["verdict"])
    counted = claims["kind"] != "training"
    assert claims[counted].equals(judged[counted])


def test_tables_in_the_place_of_another_jobs_are_not_collected(finished: Checkout, tmp_path: Path) -> None:
    here = Checkout(tmp_path / "here")
    for part in ("results", ".snakemake"):
        shutil.copytree(finished.root / part, here.root / part, dirs_exist_ok=True)
    own, other = sorted(here.root.glob("results/training/*/seeds-*/evaluations.parquet"))[:2]
    shutil.copy(other, own)
    output = here.snakemake("metrics", "--forcerun", "collect_metrics", status=1)
    assert f"evaluations.parquet: holds seed 0 of {other.parent.parent.name}" in output
    assert "Traceback" not in output


def test_merged_results_are_read_like_a_run_of_ones_own(finished: Checkout, tmp_path: Path) -> None:
    here = Checkout(tmp_path / "here")
    results = finished.root / "results"
    assert main(["merge", str(results), str(results), str(here.root / "both")]) == 0
    here.snakemake("claims", "--config", "tables=both")
    assert here.digest("claims.parquet") == finished.digest("claims.parquet") != {}


def test_a_checkpoint_of_every_job_is_left_to_go_on_from(finished: Checkout) -> None:
    kept = sorted((finished.root / "results" / "checkpoints").rglob("*.safetensors"))
    assert len(kept) == len(cells(parse(overlaid_settings("smoke.yaml"))))
    assert {path.name for path in kept} == {"step-000000040.safetensors"}


def killed_when(checkout: Checkout, ready: Callable[[], bool], while_running: Callable[[], None]) -> None:
    """Start the workflow, and take it away with all its jobs, unasked, as soon as something is there."""
    command = [sys.executable, "-m", "snakemake", "--cores", "2", "--configfile", "config/smoke.yaml"]
    with subprocess.Popen(
        command, cwd=checkout.root, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    ) as process:
        while not ready() and process.poll() is None:
            time.sleep(0.1)
        assert process.poll() is None
        while_running()
        os.killpg(process.pid, signal.SIGKILL)


def test_a_run_killed_twice_ends_like_one_that_was_left_alone(finished: Checkout, tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "checkout")
    results = checkout.root / "results"

    def another_is_refused() -> None:
        output = checkout.snakemake(status=1)
        assert "locked" in output.lower()

    killed_when(checkout, lambda: len(list(results.glob("training/*/*/run.json"))) >= 2, another_is_refused)
    checkout.snakemake("--unlock")
    killed_when(checkout, lambda: len(list(results.glob("figures/*.pdf"))) >= 1, lambda: None)
    checkout.snakemake("--unlock")
    checkout.snakemake()
    same = ("analysis/*.parquet", "training/*/*/*.parquet", "metrics/*.parquet", "claims.*", "figures/*")
    assert len(finished.digest(*same)) > 40
    assert checkout.digest(*same) == finished.digest(*same)


def test_prefetch_brings_the_corpus_and_nothing_else(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "checkout")
    checkout.snakemake("prefetch")
    made = [path for path in (checkout.root / "results").rglob("*") if path.is_file() and path.suffix != ".log"]
    assert [path.name for path in made] == ["king-james.txt"]


def test_no_profile_or_environment_variable_is_needed(tmp_path: Path) -> None:
    assert "SNAKEMAKE_PROFILE" not in os.environ
    assert "draw_figure" in Checkout(tmp_path / "checkout").planned()


def test_read_back_tables_hold_no_times(finished: Checkout) -> None:
    for table in (tables.STEPS, tables.HEADS, tables.SUMMARY, tables.CLAIMS):
        assert not [name for name in table.names if "second" in name or "time" in name]
    assert isinstance(pd.read_json(finished.root / "results/metrics/runs.json"), pd.DataFrame)
