import sys
from pathlib import Path

import pytest

from attnid import discovery


def test_modules_are_named_in_order_and_imported_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "found_package"
    package.mkdir()
    for name in ("__init__", "second", "first"):
        (package / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert discovery.names("found_package") == ("first", "second")
    assert "found_package.first" not in sys.modules
    discovery.import_modules("found_package")
    assert {"found_package.first", "found_package.second"} <= set(sys.modules)


def test_constants_are_read_without_running_the_module(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text("import missing\nA = ('x',)\nB: int = 1\nC = missing.c\nD = E = 2\n\ndef f():\n    F = 3\n")
    assert discovery.constants(file) == {"A": ("x",)}
