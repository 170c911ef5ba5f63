"""Write the tracked files that follow from others: environment.yml and results/README.md."""

from pathlib import Path

from attnid import tables

ROOT = Path(__file__).resolve().parent.parent

ENVIRONMENT = """# Written by tools/generate.py from requirements.lock.
name: attnid
channels: [conda-forge]
dependencies:
  - python >=3.11
  - pip
  - pip:
"""

RESULTS = """<!-- Written by tools/generate.py from attnid.tables. -->
# What a run leaves here

| file | what it is |
| --- | --- |
| `report.html` | the page to read: verdicts, figures, errata, provenance |
| `claims.parquet`, `claims.md`, `claims.tex` | one verdict a claim: as a table, as Markdown, as LaTeX macros |
| `figures/*.pdf`, `figures/*.png` | the figures |
| `analysis/*.parquet` | counts, ranks and invariances of layers |
| `training/<cell>/seeds-<first>-<last>/` | one training job: three tables, and what made them in `run.json` |
| `metrics/*.parquet` | all cells as one dataset, and its summary over seeds |
| `corpus/` | the text that is trained on |
| `logs/` | a log a job |

Units stand in the metadata of every Parquet column (`pyarrow.parquet.read_schema(path).field(name).metadata`); "1" is
a plain number. A value may be missing only in the columns marked `?`.
"""


def environment(lock: str) -> str:
    """The text of environment.yml for the text of a lock file."""
    pins = [line for line in lock.splitlines() if line and not line.startswith("#")]
    return ENVIRONMENT + "".join(f"      - {pin}\n" for pin in pins)


def results() -> str:
    """The text of results/README.md."""
    return RESULTS + "".join(_section(table) for table in tables.ALL)


def _section(table: tables.Table) -> str:
    rows = "".join(_row(column) for column in table.columns)
    head = "| column | type | unit | what it holds |\n| --- | --- | --- | --- |\n"
    return f"\n## {table.name}\n{table.description[:1].upper()}{table.description[1:]}.\n\n{head}{rows}"


def _row(column: tables.Column) -> str:
    kind = f"{column.type}{'?' if column.nullable else ''}"
    text = column.description.replace("|", "\\|")
    return f"| `{column.name}` | {kind} | {column.unit} | {text} |\n"


if __name__ == "__main__":
    (ROOT / "environment.yml").write_text(environment((ROOT / "requirements.lock").read_text()))
    (ROOT / "results" / "README.md").write_text(results())
