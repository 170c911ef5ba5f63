from pathlib import Path

import pytest

from attnid import optimisers, sources


def names(script: Path, *modules: str) -> set[str]:
    return {str(path.relative_to(sources.PACKAGE)) for path in sources.closure(script, *modules)}


def test_imports_are_followed_through_modules_and_packages(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import numpy\nfrom attnid import layer\nfrom attnid.counting import count\n")
    assert names(script) == {"__init__.py", "layer.py", "counting.py"}
    script.write_text("def late():\n    import attnid.symmetry\n")
    assert names(script) == {"__init__.py", "symmetry.py", "gram.py", "attention.py", "arithmetic.py", "layer.py"}


def test_modules_loaded_by_name_are_named(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os\n")
    assert names(script) == set()
    assert "figures/squad_table.py" in names(script, "attnid.figures.squad_table")
    assert names(script, "elsewhere.figures") == set()


def test_a_package_that_imports_what_it_finds_depends_on_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "attnid"
    files = {
        "__init__.py": "",
        "discovery.py": "def import_modules(package): ...\n",
        "claims/__init__.py": "from attnid.discovery import import_modules\nimport_modules(__name__)\n",
        "claims/found.py": "import attnid.used\n",
        "used.py": "",
        "unused.py": "",
    }
    for name, text in files.items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text)
    monkeypatch.setattr(sources, "PACKAGE", package)
    script = tmp_path / "script.py"
    script.write_text("from attnid import claims\n")
    assert names(script) == set(files) - {"unused.py"}


def test_training_a_cell_depends_on_its_own_optimiser_and_on_no_other() -> None:
    script = sources.PACKAGE.parents[1] / "workflow" / "scripts" / "train_cell.py"
    own = optimisers.module("sign-sgd")
    found = {name for name in names(script, own) if name.startswith("optimisers/")}
    assert found == {"optimisers/__init__.py", "optimisers/sign_sgd.py"}
    assert names(script, own) - names(script) == {"optimisers/sign_sgd.py"}
