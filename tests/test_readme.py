import re

import pandas as pd
import verdicts
import yaml
from settings import ROOT, default_settings

from attnid import claims
from attnid.claims.ledger import BEYOND
from attnid.config import grouped_cells, parse
from attnid.config_files import lay_over
from attnid.counting import SOURCES
from attnid.huggingface import FAMILIES

README = (ROOT / "README.md").read_text()
RUNNING = (ROOT / "docs" / "running.md").read_text()


def test_the_readme_lists_a_verdict_for_every_claim() -> None:
    for name, beyond in (("claims", False), ("answers", True)):
        listed = [claim.id for claim in claims.all_claims() if (claim.kind == BEYOND) == beyond]
        part = README.split(verdicts.MARKS[name].format(name))[1].split(verdicts.END.format(name))[0]
        folded = part.split("<details>")[1]
        rows = re.findall(r"^\| ([a-z0-9-]+) \|.*\| ([a-z ]+) \|$", folded, re.MULTILINE)[1:]
        assert [name for name, _ in rows] == listed
        assert {verdict for _, verdict in rows} <= set(claims.VERDICTS) - {claims.NOT_RUN}
        tally = dict.fromkeys(claims.VERDICTS, 0)
        for _, verdict in rows:
            tally[verdict] += 1
        assert ", ".join(f"{number} {verdict}" for verdict, number in tally.items() if number) in part


def test_the_section_is_written_from_the_table() -> None:
    frame = claims.judge({})
    assert f"{len(frame)} claims: {len(frame)} not run." in verdicts.section(frame)
    assert verdicts.section(pd.concat([frame.iloc[:1]])).count("not run") == 2
    corrected = frame.assign(verdict=claims.CORRECTED).iloc[:1]
    assert verdicts.section(corrected).count(f"| {corrected['id'].item()} |") == 2


def test_the_example_configuration_is_valid() -> None:
    (example,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    settings = default_settings()
    lay_over(settings, yaml.safe_load(example))
    config = parse(settings)
    assert config.training.seeds == 10
    assert [cell.n_heads for cell in grouped_cells(config)["no-decay"]] == [2, 8]


def test_every_make_target_of_the_readme_is_there() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"(?:^|`)make ([a-z-]+)", README + RUNNING, re.MULTILINE)) <= targets


def test_links_lead_to_files() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            assert link.startswith("https://") or (page.parent / link).exists(), link


def test_the_families_and_features_are_those_of_the_code() -> None:
    page = (ROOT / "docs" / "counting.md").read_text()
    [listed] = re.findall(r"reads `config.json` of: (.*?)\.", page, re.DOTALL)
    assert set(re.findall(r"[a-z0-9_-]+", listed)) >= {name for name in FAMILIES if not re.search("_moe|_text", name)}
    assert f"of {len(FAMILIES)} model types" in README
    closed_forms = page.split("## Closed forms")[1]
    assert set(re.findall(r"^\| `(\w+)`", closed_forms, re.MULTILINE)) == set(SOURCES)
