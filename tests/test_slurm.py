"""The workflow on a real Slurm: submitted, cancelled and run again; over its memory, over its time."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest
import slurm_node
import yaml
from settings import overlaid_settings
from test_pipeline import Checkout

from attnid import paths, tables
from attnid.config import cells, parse
from attnid.config_files import lay_over

pytestmark = [pytest.mark.slow, pytest.mark.slurm]

IMPATIENT = ("--slurm-init-seconds-before-status-checks", "2", "--seconds-between-status-checks", "1")
IMPATIENT += ("--latency-wait", "10")
LONG = {
    "training": {"steps": 30_000, "seeds": 1, "seeds_per_job": 1},
    "cases": {"long": {"optimizer": "adamw", "lr": 1e-3}},
    "groups": {"long": {"cases": ["long"]}},
}


@contextmanager
def started(checkout: Checkout, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Snakemake as the README has it, with a checkout's profile for Slurm."""
    command = [sys.executable, "-m", "snakemake", "--workflow-profile", "profiles/slurm", *IMPATIENT, *arguments]
    with subprocess.Popen(
        command, cwd=checkout.root, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def output_of(process: subprocess.Popen[str], status: int = 0) -> str:
    output, _ = process.communicate(timeout=900)
    assert process.returncode == status, output[-5000:]
    return output


def asked(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")


def queue_again_once_it_trains(log: Path) -> str:
    """Do to the running job what a preemption does: stop it and queue it again; returns its number."""
    end = time.monotonic() + 120
    while not (log.exists() and "step " in log.read_text()):
        assert time.monotonic() < end, "no job trains"
        time.sleep(0.5)
    (job,) = (line.strip() for line in asked("squeue", "-h", "-t", "running", "-o", "%i") if line)
    subprocess.run(["scontrol", "requeue", job], check=True)
    while not any("PENDING" in line for line in asked("squeue", "-h", "-j", job, "-o", "%T")):
        assert time.monotonic() < end, "the job is not queued again"
        time.sleep(0.5)
    subprocess.run(["scontrol", "update", f"jobid={job}", "starttime=now"], check=True)
    return job


@pytest.fixture
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    reason = slurm_node.missing(request.param)
    if reason:
        pytest.skip(reason)
    place = tmp_path / "slurm"
    place.mkdir()
    with slurm_node.slurm(place, request.param):
        yield


@pytest.mark.parametrize("node", [False], indirect=True, ids=["without accounting"])
@pytest.mark.usefixtures("node")
def test_the_pipeline_is_submitted_cancelled_and_submitted_again(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "checkout")
    asking = ("--slurm-status-command", "squeue", "--set-resources", "train_cell:gpu=1", "--configfile")
    trained = checkout.root / "results" / "training"
    with started(checkout, "--retries", "0", *asking, "config/smoke.yaml") as first:
        running: list[str] = []
        while first.poll() is None and not (running and list(trained.rglob("run.json"))):
            time.sleep(0.5)
            allocated = asked("squeue", "-h", "-t", "running", "-O", "jobid:20,tres-per-job:40")
            running = [line.split()[0] for line in allocated if "gpu:1" in line]
        subprocess.run(["scancel", *running], check=True)
        output_of(first, status=1)
    done = {path: path.read_bytes() for path in trained.rglob("*.parquet")}
    with started(checkout, *asking, "config/smoke.yaml") as second:
        assert "has been submitted with SLURM jobid" in output_of(second)
    assert {path: path.read_bytes() for path in done} == done
    claims = tables.read(tables.CLAIMS, checkout.root / "results" / "claims.parquet")
    assert not (claims.verdict == "not run").any()
    assert (checkout.root / "results" / "report.html").exists()


@pytest.mark.parametrize("node", [True], indirect=True, ids=["with accounting"])
@pytest.mark.usefixtures("node")
def test_a_job_over_its_memory_gets_more_and_one_over_its_time_or_queued_again_goes_on(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path / "checkout")
    (checkout.root / "long.yaml").write_text(yaml.safe_dump(LONG))
    settings = overlaid_settings("smoke.yaml")
    lay_over(settings, LONG)
    (name,) = (own.id for own in cells(parse(settings)).values() if own.case == "long")
    target = paths.block(name, 0, 0) / "run.json"
    limits = ("train_cell:mem_mb=attempt*600", "train_cell:runtime=1")
    files = ("--configfile", "config/smoke.yaml", "long.yaml")
    with started(checkout, "--set-resources", *limits, *files, "--retries", "10", "--", str(target)) as process:
        queued_again = queue_again_once_it_trains(checkout.root / f"results/logs/training/{name}_seeds-0-0.log")
        output_of(process)
    assert "Restarts=1" in "".join(asked("scontrol", "show", "job", queued_again))
    states = [line.split("|") for line in asked("sacct", "-n", "-P", "-o", "jobid,state,reqmem") if line]
    jobs = [(state, memory) for number, state, memory in states if "." not in number]
    assert [memory for _, memory in jobs] == [f"{600 * attempt}M" for attempt in range(1, len(jobs) + 1)]
    assert jobs[0][0] in ("FAILED", "OUT_OF_MEMORY"), jobs
    assert "TIMEOUT" in [state for state, _ in jobs], jobs
    assert jobs[-1][0] == "COMPLETED"
    record = json.loads((checkout.root / target).read_text())
    assert record["continued_from"] > 0
    steps = pd.read_parquet((checkout.root / target).with_name("steps.parquet"))
    assert steps["step"].tolist() == [1, *range(5, 30_001, 5)]
