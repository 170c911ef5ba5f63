"""Nothing that is read from disk can run code: what the sources never call, and one try of each kind of file."""

import ast
import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest
from settings import ROOT, cell
from test_training import CPU, TEXT

from attnid import config_files, tables
from attnid.checkpoint import Checkpoints
from attnid.errors import UserError
from attnid.run_record import read_record
from attnid.training import train

SOURCES = [path for part in ("src", "workflow", "tools", "bench") for path in (ROOT / part).rglob("*.py")]
NEVER = {
    "eval", "exec", "compile", "__import__", "breakpoint",
    "pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve",
    "torch.load", "torch.save", "torch.jit.load", "numpy.load", "np.load", "pd.read_pickle", "pandas.read_pickle",
    "yaml.load", "yaml.full_load", "yaml.unsafe_load", "os.system", "os.popen",
}  # fmt: skip


def names_used(path: Path) -> Iterator[str]:
    """Functions that a file calls and modules that it imports, by their dotted names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)
            assert not any(word.arg in ("shell", "allow_pickle", "trust_remote_code") for word in node.keywords), (
                f"{path}: {ast.unparse(node)}"
            )
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_source_reads_what_can_run(path: Path) -> None:
    assert not NEVER & set(names_used(path))


class Trap:
    def __reduce__(self) -> tuple[object, tuple[object, ...]]:
        return Path.touch, (Path("owned"),)


def test_a_pickle_in_place_of_any_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps(Trap())
    file = tmp_path / "file"
    file.write_bytes(data)
    for read in (config_files.read, read_record, lambda path: tables.read(tables.HEADS, path)):
        with pytest.raises(UserError):
            read(file)
    settings, warnings = cell(), list[str]()
    checkpoints = Checkpoints(tmp_path, {}, settings.steps, 0.0, warnings.append)
    train(settings, TEXT, [0], CPU, checkpoints=checkpoints)
    next(tmp_path.rglob("*.safetensors")).write_bytes(data)
    assert checkpoints.newest() is None
    assert "it cannot be read" in warnings[0]
    assert not Path("owned").exists()
    pickle.loads(data)  # the trap is one
    assert Path("owned").exists()
