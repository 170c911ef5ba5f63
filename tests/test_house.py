"""The house rules that no linter knows: pins, import order, rule inputs."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import generate
import pytest
import yaml
from settings import ROOT

from attnid import figures, sources

SCRIPTS = sorted((ROOT / "workflow" / "scripts").glob("*.py"))
NO_TORCH = (
    "tables",
    "training_tables",
    "analysis_tables",
    "paths",
    "layer",
    "counting",
    "architectures",
    "config",
    "optimisers",
    "plan",
    "sources",
    "cli",
    "live",
    "metrics",
    "watch",
    "screen",
    "statistics",
    "claims",
    "report",
    "style",
)


def test_environment_holds_the_pins_of_the_lock() -> None:
    lock = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    pinned = next(entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict))
    assert pinned == lock
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", pin) for pin in lock)
    assert "torch==2.13.0" in lock


WRITTEN = {"docs/counting.md": generate.counting, "docs/api.md": generate.api, "README.md": generate.readme}


@pytest.mark.parametrize("file", ["environment.yml", "results/README.md", *WRITTEN])
def test_written_files_are_up_to_date(file: str) -> None:
    texts = {"environment.yml": generate.environment((ROOT / "requirements.lock").read_text())}
    texts["results/README.md"] = generate.results()
    texts |= {name: write((ROOT / name).read_text()) for name, write in WRITTEN.items()}
    assert (ROOT / file).read_text() == texts[file], "run: python tools/generate.py"


@pytest.mark.parametrize("module", NO_TORCH)
def test_rooms_that_need_no_torch_do_not_import_it(module: str) -> None:
    code = f"import sys, attnid.{module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def imported_files(script: Path, modules: list[str]) -> set[Path]:
    """Files of the package that are loaded after a script's imports have run, seen from outside."""
    lines = [line for line in script.read_text().splitlines() if re.match(r"(from|import) ", line)]
    code = "\n".join(
        [
            *lines,
            *(f"import {module}" for module in modules),
            "import sys",
            "print(*(m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'attnid'), sep='\\n')",
        ]
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return {Path(line) for line in result.stdout.split()}


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_rule_inputs_are_the_import_closure_of_the_script(script: Path) -> None:
    modules = [f"attnid.figures.{name}" for name in figures.NAMES] if "figure" in script.read_text() else []
    assert set(sources.closure(script, *modules)) == imported_files(script, modules)


def test_one_figure_depends_on_no_other_and_on_no_training_code() -> None:
    script = ROOT / "workflow" / "scripts" / "draw_figure.py"
    names = {path.name for path in sources.closure(script, "attnid.figures.squad_table")}
    assert "squad_table.py" in names
    assert not names & {"training.py", "paper_figure_2.py", "claims.py", "attention.py"}


def test_training_depends_on_no_drawing_and_no_verdict() -> None:
    files = {str(path) for path in sources.closure(ROOT / "workflow" / "scripts" / "train_cell.py")}
    assert not [name for name in files if re.search(r"figures|style|claims|report|statistics", name)]


@pytest.mark.parametrize("script", sorted((ROOT / "bench").glob("*.py")), ids=lambda path: path.stem)
def test_benchmarks_find_what_they_import(script: Path) -> None:
    code = f"import runpy; runpy.run_path({str(script)!r}, run_name='bench')"
    environment = os.environ | {"PYTHONPATH": str(script.parent)}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert result.returncode == 0, result.stderr


def test_scripts_are_thin() -> None:
    assert all(len(script.read_text().splitlines()) <= 65 for script in SCRIPTS)


def test_nothing_tracked_names_this_machine() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    texts = {name: (ROOT / name).read_text(errors="ignore") for name in listed if (ROOT / name).is_file()}
    assert not [name for name, text in texts.items() if "/ro" + "ot/" in text or "/wo" + "rk/" in text]


def test_packages_are_installed_as_imported() -> None:
    assert importlib.util.find_spec("attnid") is not None
    assert sources.PACKAGE == ROOT / "src" / "attnid"
