"""The examples of docs/, run as a reader would: page by page, from the top."""

import re
import shutil
from pathlib import Path

import pytest
from settings import ROOT

import attnid

PAGES = {
    "reader": ("reproduced", "qualified", "{0: 0."),
    "researcher": ("rho_null_low", "moved by 0."),
    "practitioner": ("12 biases, 12 products, output changed by", "S does not commute with RoPE"),
}


@pytest.mark.parametrize("page", PAGES)
def test_the_examples_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_text(), re.DOTALL)
    assert blocks
    shutil.copytree(ROOT / "reference", tmp_path / "reference")
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(blocks), page, "exec"), {"__name__": page})
    printed = capsys.readouterr().out
    assert any(word in printed for word in PAGES[page])
    if page != "reader":
        assert all(word in printed for word in PAGES[page])
    else:
        assert "->" in printed
        assert PAGES[page][2] in printed


def test_the_examples_leave_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "researcher.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {}
    exec(compile("\n".join(blocks), "researcher", "exec"), space)
    assert (tmp_path / "overlap.parquet").exists()
    assert list((tmp_path / "runs" / "overlap").iterdir())
    rows = space["meter"].frame()  # type: ignore[attr-defined]
    assert sorted(set(rows.step)) == [1, 5, 10, 15, 20]


def test_every_public_name_is_in_the_api() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    for name in attnid.__all__:
        assert name == "__version__" or f"`{name}" in page, name
        assert getattr(attnid, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        attnid.nothing  # noqa: B018
