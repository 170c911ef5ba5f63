"""Write the verdicts of results/claims.parquet into README.md, between its two markers."""

from pathlib import Path

import pandas as pd

from attnid import claims, tables
from attnid.claims.render import verdict_table

ROOT = Path(__file__).resolve().parent.parent
START = "<!-- verdicts: written by tools/verdicts.py from results/claims.parquet -->\n"
END = "<!-- end of verdicts -->\n"


def section(frame: pd.DataFrame) -> str:
    """The tally, what did not simply reproduce, and all claims folded away."""
    return (
        f"{claims.tally(frame)} {claims.READING}\n\n{claims.training_scale(frame)}\n\n"
        f"<details><summary>All verdicts of the default run</summary>\n\n{verdict_table(frame)}\n\n</details>\n"
    )


if __name__ == "__main__":
    readme = ROOT / "README.md"
    before, rest = readme.read_text().split(START)
    _, after = rest.split(END)
    frame = tables.read(tables.CLAIMS, ROOT / "results" / "claims.parquet")
    readme.write_text(before + START + section(frame) + END + after)
