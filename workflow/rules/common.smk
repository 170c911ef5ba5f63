import functools
import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(workflow.basedir) / "src"))
os.environ.update(PYTHONPATH=sys.path[0])

from attnid import (
    config_files,
    corpus,
    dataset,
    jobs,
    optimisers,
    pages,
    paths,
    plan,
    sources,
    tables,
    typesetting,
)
from attnid import config as configuration
from attnid import figures as figure_modules
from attnid.errors import UserError
from attnid.jobs import is_done, last_words

STARTED = time.time()
ENVIRONMENT = Path(workflow.basedir) / "environment.yml"
ARTICLE = Path(workflow.basedir) / "docs" / "article" / "attnid.tex"
LOCK = os.path.relpath(Path(workflow.basedir) / "requirements.lock")

ANALYSIS = [table.name for table in tables.ANALYSIS]
METRICS = [table.name for table in tables.METRICS]


def place(path):
    """Where a table is read from: the results of this run, or tables made elsewhere."""
    return paths.below(CONFIG.tables or paths.RESULTS, path)


def any_records():
    """Whether Snakemake remembers what it made here, and so sees what has changed since."""
    return any(Path(".snakemake/metadata").glob("*"))


try:
    if workflow.is_main_process:
        paths.require_writable()
        for file in workflow.configfiles:
            config_files.read(Path(file))
    CONFIG = configuration.parse(config)
    TABLES = {name: place(paths.analysis(name)) for name in ANALYSIS} | {
        name: place(paths.metrics(name)) for name in METRICS
    }
    MADE_WITH = {name: place(paths.made_with(name)) for name in ("runs", "config")}
    if CONFIG.tables:
        if workflow.is_main_process:
            dataset.require(CONFIG.tables, TABLES, MADE_WITH)
        GROUPS = dataset.groups(TABLES["groups"])
    else:
        corpus.check(CONFIG.corpus, CONFIG.model.context)
        made_with = paths.made_with("config")
        if workflow.is_main_process and made_with.exists() and not any_records():
            dataset.require_settings(made_with, CONFIG.settings)
        GROUPS = list(CONFIG.groups)
    CORPUS = paths.corpus(corpus.label(CONFIG.corpus))
except UserError as error:
    print(error, file=sys.stderr)
    sys.exit(2)

SETTINGS = CONFIG.settings
CELLS = configuration.cells(CONFIG)
GPU = plan.wants_gpu(CONFIG.device)


@functools.cache
def library(script, *modules):
    """Files of the package that a script of the workflow imports."""
    found = sources.closure(
        Path(workflow.basedir) / "workflow" / "scripts" / script, *modules
    )
    return [os.path.relpath(path) for path in found]


def optimizer_files(wildcards):
    """Files of the package that training a cell depends on and that of others may not: those of its optimiser."""
    script, module = "train_cell.py", optimisers.module(CELLS[wildcards.cell].optimizer)
    return [path for path in library(script, module) if path not in library(script)]


def figure_tables(wildcards):
    """Tables that a figure is drawn from, by name."""
    names = figure_modules.load(wildcards.figure).TABLES
    return {name: TABLES[name] for name in names}


def figure_caption(wildcards):
    """What a figure shows, for Snakemake's report."""
    return figure_modules.load(wildcards.figure).CAPTION


def figure_labels(wildcards):
    """Columns of a figure in the lists of Snakemake's report."""
    return {"figure": figure_modules.load(wildcards.figure).TITLE}


def figure_subcategory(wildcards):
    """Part of Snakemake's report that lists a figure."""
    beyond = figure_modules.group(wildcards.figure)
    return "Beyond the paper" if beyond else "The paper"


def made_here(files):
    """Outputs that a target asks for; none where tables made elsewhere stand for them."""
    return [] if CONFIG.tables else files


def configuration_options():
    """Arguments that give snakemake the configuration of this run again."""
    own = Path(workflow.basedir) / "config.yaml"
    files = [
        os.path.relpath(file)
        for file in workflow.configfiles
        if Path(file).resolve() != own
    ]
    given = [
        f"{key}={value if isinstance(value, str) else json.dumps(value)}"
        for key, value in workflow.config_settings.config.items()
    ]
    return [
        *(["--configfile", *files] if files else []),
        *(["--config", *given] if given else []),
    ]


def growing(amount):
    """A resource that grows with the attempt, where a job that ran out of it is tried again."""
    return lambda wildcards, attempt: attempt * amount


def members(wildcards):
    """Seeds that a training job trains side by side."""
    return int(wildcards.last) - int(wildcards.first) + 1


ALL_BLOCKS = [
    paths.block(cell, *block) for cell in CELLS for block in jobs.blocks(CONFIG, cell)
]
BLOCKS = [block for block in ALL_BLOCKS if is_done(block) or not CONFIG.partial]
MISSING = [block for block in ALL_BLOCKS if block not in BLOCKS]
if workflow.is_main_process and not BLOCKS:
    print(
        "configuration: partial is true, but no training job is done; expected at least one",
        file=sys.stderr,
    )
    sys.exit(2)


def trained_groups():
    """The cells of every group that have runs; groups without any are left out."""
    trained = {block.parent.name for block in BLOCKS}
    kept = {
        group: [cell for cell in cells if cell.id in trained]
        for group, cells in configuration.grouped_cells(CONFIG).items()
    }
    return {group: cells for group, cells in kept.items() if cells}


BLOCK_TABLES = {
    table.name: [block / f"{table.name}.parquet" for block in BLOCKS]
    for table in tables.TRAINING
}
FIGURE_NAMES = figure_modules.names(GROUPS)
FIGURES = [
    paths.figure(name, suffix) for name in FIGURE_NAMES for suffix in ("pdf", "png")
]


def article_figures(wildcards):
    """Figures that the article includes; ends the run where there is no TeX."""
    try:
        typesetting.require_tex()
    except UserError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    return [
        paths.figure(name, "pdf") for name in typesetting.figures(ARTICLE.read_text())
    ]


wildcard_constraints:
    cell="[a-z0-9][A-Za-z0-9_.-]*",
    first="[0-9]+",
    last="[0-9]+",
    figure="[a-z0-9_]+",
