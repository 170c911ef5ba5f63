"""Small reports for the tests of the page: hand-made claims, one figure, one training job."""

from typing import Any

import pandas as pd
import synthetic

from attnid import explorer, report, tables
from attnid.claims.ledger import Claim, Finding

NOTHING_TO_EXPLORE = explorer.Explorer([], 0)


def run(**changes: Any) -> dict[str, Any]:
    return {
        "cell": "sgd_h4_3f2a91",
        "seeds": [1, 2, 3],
        "device": "cpu",
        "machine": "Linux x86_64, 2 cores",
        "threads": 1,
        "commit": "0123abc",
        "versions": {"python": "3.11.2", "torch": "2.13.0"},
        "started": "2026-09-20T10:00:00+00:00",
        "seconds": 61.2,
        "settings": {"lr": 0.25, "steps": 600},
    } | changes


def claim(name: str, **changes: Any) -> Claim:
    def judge(tables: Any) -> Finding:
        raise NotImplementedError

    values = {"at": "4.2", "kind": "count", "statement": "", "printed": None, "rule": f"the rule of {name}"} | changes
    return Claim(id=name, judge=judge, **values)


def page(picture: bytes, **changes: Any) -> str:
    ledger = changes.get("claims", synthetic.claims())
    table = pd.DataFrame({"layer": "plain", "rank": range(3)})
    entry = report.FigureEntry("A figure", "What it shows.", picture, table, "results/analysis/ranks.parquet")
    inputs: dict[str, Any] = {
        "claims": ledger,
        "evidence": pd.DataFrame(
            {"id": "six-heads", "part": "identified share", "item": ["H = 6"], "average": [None], "value": [11 / 12],
             "lower": 0.83, "upper": 0.83}
        )[tables.EVIDENCE.names],
        "register": {name: claim(name) for name in ledger["id"]} | {"six-heads": claim("six-heads", figure="a_figure")},
        "architectures": synthetic.all_tables()["architectures"],
        "figures": {"a_figure": entry},
        "explorer": NOTHING_TO_EXPLORE,
        "runs": [run()],
        "missing": [],
        "astray": [],
        "commands": [("everything", "snakemake --cores all")],
        "config": {"model": {"n_layers": 2}},
        "created": "2026-09-20 11:00 UTC",
    }  # fmt: skip
    return report.render(report.Contents(**inputs | changes))
