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
    """The tally, what did not come out as printed, and all claims folded away."""
    otherwise = frame[frame["verdict"].isin([claims.CORRECTED, claims.NOT_REPRODUCED])]
    return (
        f"{claims.tally(frame)} What did not come out as printed:\n\n{verdict_table(otherwise)}\n\n"
        f"{claims.READING}\n\n{claims.training_scale(frame)}\n\n{_folded('All verdicts of the default run', frame)}"
    )


def answers(frame: pd.DataFrame) -> str:
    """The tally of the questions beyond the paper, and each with what was measured folded away."""
    tally = f"{claims.tally(frame)} Scale: {frame['scale'].mode()[0]}."
    return f"{tally}\n\n{_folded('All answers of a run of config/full.yaml', frame)}"


def _folded(summary: str, frame: pd.DataFrame) -> str:
    return f"<details><summary>{summary}</summary>\n\n{verdict_table(frame)}\n\n</details>\n"


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
