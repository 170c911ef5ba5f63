"""Write the verdicts of results/claims.parquet into README.md.

After a default run: the claims of the paper. After a run of config/full.yaml: the answers beyond it.
"""

from pathlib import Path

import pandas as pd

from attnid import claims, tables
from attnid.claims.ledger import BEYOND
from attnid.claims.render import verdict_table

ROOT = Path(__file__).resolve().parent.parent
MARKS = {
    "claims": "<!-- {}: written by tools/verdicts.py after a default run -->\n",
    "answers": "<!-- {}: written by tools/verdicts.py after a run of config/full.yaml -->\n",
}
END = "<!-- end of {} -->\n"


def section(frame: pd.DataFrame) -> str:
    """The tally, and all claims folded away."""
    return (
        f"{claims.tally(frame)} {claims.READING}\n\n{claims.training_scale(frame)}\n\n"
        f"<details><summary>All verdicts of the default run</summary>\n\n{verdict_table(frame)}\n\n</details>\n"
    )


def answers(frame: pd.DataFrame) -> str:
    """The questions beyond the paper, each with what was measured."""
    return f"{claims.tally(frame)} Scale: {frame['scale'].mode()[0]}.\n\n{verdict_table(frame)}\n"


def put(text: str, name: str, new: str) -> str:
    """A text with what stands between two marks replaced."""
    start, end = MARKS[name].format(name), END.format(name)
    before, rest = text.split(start)
    return before + start + new + end + rest.split(end)[1]


if __name__ == "__main__":
    readme = ROOT / "README.md"
    frame = tables.read(tables.CLAIMS, ROOT / "results" / "claims.parquet")
    questions = frame[frame["kind"] == BEYOND]
    changes = {"claims": section(frame)} if questions.empty else {"answers": answers(questions)}
    text = readme.read_text()
    for name, new in changes.items():
        text = put(text, name, new)
    readme.write_text(text)
