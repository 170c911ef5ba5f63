"""CONTRIBUTING.md, followed step by step in a copy of the project."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
import verify
from settings import ROOT

from attnid import tables
from attnid.layer import LayerSpec

PAGE = (ROOT / "CONTRIBUTING.md").read_text()
FILES = dict(re.findall(r"^`([\w./]+)`\n\n```\w+\n(.*?)```$", PAGE, re.DOTALL | re.MULTILINE))
CLAIM, OPTIMISER, FIGURE = (
    "src/attnid/claims/value_output_share.py",
    "src/attnid/optimisers/lion.py",
    "src/attnid/figures/validation_loss.py",
)
ENTRY = re.compile(r"^`([\w./]+)`, in `(\w+)`\n\n```python\n(.*?)```$", re.DOTALL | re.MULTILINE)
[(TEST_FILE, TEST_TABLE, TEST_LINE)] = ENTRY.findall(PAGE)
ALSO = ("tests", "tools", "pyproject.toml", "README.md")


class Project:
    """A copy of the project, in which commands run."""

    def __init__(self, root: Path) -> None:
        self.root = root
        verify.copy_workflow(root)
        for part in ALSO:
            copy = shutil.copytree if (ROOT / part).is_dir() else shutil.copy
            copy(ROOT / part, root / part)

    def run(self, module: str, *arguments: str) -> str:
        """What a Python program prints that ends well."""
        result = subprocess.run(
            [sys.executable, "-m", module, *arguments],
            cwd=self.root,
            env=os.environ | {"PYTHONPATH": str(self.root / "src")},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        assert result.returncode == 0, result.stdout[-5000:]
        return result.stdout

    def planned(self, *arguments: str) -> str:
        """The jobs, with their files, that Snakemake would run."""
        return self.run("snakemake", "--dry-run", "--cores", "1", "--workflow-profile", "none", *arguments)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The project with the files of the page, each where it belongs."""
    project = Project(tmp_path_factory.mktemp("contributed"))
    for name, text in FILES.items():
        assert not (project.root / name).exists()
        (project.root / name).write_text(text)
    return project


def test_each_is_one_file() -> None:
    assert list(FILES) == [CLAIM, OPTIMISER, "my.yaml", FIGURE]


def test_the_claim_is_judged_and_the_figure_drawn_from_tables(project: Project) -> None:
    figure = "results/figures/validation_loss"
    kept = f"tables={ROOT / 'reference'}"
    assert f"{figure}.png" in project.planned("figures", "--config", kept)
    project.run("snakemake", "--cores", "1", "claims", f"{figure}.png", f"{figure}.pdf", "--config", kept)
    ledger = tables.read(tables.CLAIMS, project.root / "results" / "claims.parquet").set_index("id")
    claim = ledger.loc["multi-head-fraction-vo"]
    assert (claim["verdict"], claim["measured"]) == ("reproduced", 1)
    assert list(ledger.index)[-1] == "multi-head-fraction-vo"
    assert r"\attnidMultiHeadFractionVoVerdict" in (project.root / "results" / "claims.tex").read_text()
    project.run("tools.verdicts")
    assert "| multi-head-fraction-vo | 4.5 |" in (project.root / "README.md").read_text()
    assert (project.root / f"{figure}.png").read_bytes().startswith(b"\x89PNG")
    assert (project.root / f"{figure}.pdf").read_bytes().startswith(b"%PDF")


def test_the_optimiser_trains(project: Project) -> None:
    overlays = ("--configfile", "config/smoke.yaml", "my.yaml")
    planned = project.planned("training", *overlays)
    [job] = set(re.findall(r"results/training/lion\S+/seeds-0-1/(?=run\.json)", planned))
    project.run("snakemake", "--cores", "1", f"{job}run.json", *overlays)
    steps = tables.read(tables.STEPS, project.root / job / "steps.parquet")
    first, last = (steps[steps["step"] == step] for step in (1, 40))
    assert set(first["seed"]) == {0, 1}
    assert (last["train_loss"].to_numpy() < first["train_loss"].to_numpy()).all()
    heads = tables.read(tables.HEADS, project.root / job / "heads.parquet")
    assert heads["rho_qk"].between(0, 1).all()


def test_the_tests_take_them_in(project: Project) -> None:
    file = project.root / TEST_FILE
    file.write_text(re.sub(rf"^{TEST_TABLE}\b.*\{{\n", lambda head: head[0] + TEST_LINE, file.read_text(), flags=re.M))
    chosen = "lion or validation_loss or multi-head-fraction-vo"
    of = ("tests/test_claims.py", "tests/test_optim.py", "tests/test_figures.py", "tests/test_config.py")
    printed = project.run("pytest", "-p", "no:cacheprovider", "-p", "no:xdist", "-vv", *of, "-k", chosen)
    for name in ("test_other_tables_give_another_verdict", "test_every_optimiser_moves", "test_every_figure_saves"):
        assert name in printed


def test_the_files_pass_the_lints(project: Project) -> None:
    modules = [name for name in FILES if name.endswith(".py")]
    project.run("ruff", "check", *modules)
    project.run("ruff", "format", "--check", *modules)


VARIANT = PAGE.split("## An attention variant\n")[1].split("\n## ")[0]
ROOMS = {
    room
    for row in re.findall(r"^\| (`.*`) \|", VARIANT, re.MULTILINE)
    for room in re.findall(r"`((?:src|docs)/[\w./]+)`", row)
}
SIZES = {"d_model", "n_heads", "n_kv_heads", "qk_head_dim", "v_head_dim"}
BIASES = {"query_bias", "key_bias", "value_bias", "output_bias"}
DETAILS = {"qk_norm_gain", "relative_distance", "pre_norm_gain", "pre_norm_bias"}
VARIANTS = set(LayerSpec.model_fields) - SIZES - BIASES - DETAILS - {"causal"}


def naming(fields: Iterable[str]) -> set[str]:
    """Files of the library and the documents that name one of these fields."""
    pattern = re.compile(rf"\b({'|'.join(fields)})\b")
    found = (path for folder in ("src", "docs") for path in (ROOT / folder).rglob("*"))
    texts = (path for path in found if path.suffix in (".py", ".csv", ".md"))
    return {str(path.relative_to(ROOT)) for path in texts if pattern.search(path.read_text())}


def test_the_rooms_that_know_variants_are_all_listed_and_no_other() -> None:
    assert {"soft_cap", "rotary_dim"} < VARIANTS
    assert naming(VARIANTS) == ROOMS


def test_the_first_rooms_know_every_variant() -> None:
    table = VARIANT.split("Every variant:")[1].split("What it leaves")[0]
    first = re.findall(r"^\| `(.*?)` \|", table, re.MULTILINE)
    assert len(first) == 5
    for field in VARIANTS:
        assert set(first) <= naming([field]), field


def test_commands_and_paths_of_the_page_are_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", PAGE, re.MULTILINE)) <= targets
    named = re.findall(r"`(?:python )?((?:src|tests|tools|docs|config)/[\w./]+)`", PAGE)
    links = re.findall(r"\]\(([^)#]+)\)", PAGE)
    assert links
    assert not [name for name in named + links if name not in FILES and not (ROOT / name).exists()]
