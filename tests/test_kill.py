"""A training job killed at random moments ends with the bytes of one that was left alone."""

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from attnid.training_tables import TRAINING

pytestmark = pytest.mark.slow

JOB = Path(__file__).parent / "killed_job.py"


def start(directory: Path, out: str, precision: str) -> subprocess.Popen[str]:
    (directory / "text.txt").write_text("The quick brown fox jumps over the lazy dog; the dog sleeps on. " * 40)
    command = [sys.executable, str(JOB), precision, out]
    process = subprocess.Popen(
        command, cwd=directory, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={"OMP_NUM_THREADS": "1"}
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "started\n"
    return process


def finished(process: subprocess.Popen[str]) -> int:
    """The step that a job which ends by itself went on from."""
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return int(output)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_a_job_killed_again_and_again_ends_with_the_same_bytes(precision: str, tmp_path: Path) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for directory in (whole, killed):
        directory.mkdir()
    begin = time.monotonic()
    assert finished(start(whole, "out", precision)) == 0
    length = time.monotonic() - begin
    draws = random.Random(precision)
    for attempt in range(10):
        process = start(killed, "out", precision)
        time.sleep(draws.uniform(0, length / 4))
        number = (signal.SIGKILL, signal.SIGTERM)[attempt % 2]
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        if process.returncode == 0:
            break
        assert process.returncode == (-number if number == signal.SIGKILL else 128 + number), errors
        assert "Traceback" not in errors
    assert process.returncode == 0 or finished(start(killed, "out", precision)) > 0
    for table in TRAINING:
        file = f"out/{table.name}.parquet"
        assert (whole / file).read_bytes() == (killed / file).read_bytes(), table.name


def test_sigterm_and_ctrl_c_leave_a_checkpoint_and_say_where_it_goes_on(tmp_path: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        process = start(tmp_path, "out", "float64")
        time.sleep(0.5)
        process.send_signal(number)
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 128 + number
        assert "stopped after step" in errors
        assert "the next start goes on from there" in errors
        assert "Traceback" not in errors
    assert finished(start(tmp_path, "out", "float64")) > 0
