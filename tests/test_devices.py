"""Which device a job gets, and that a lock dies with its process."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from attnid.devices import device, hold_one
from attnid.errors import UserError

HOLD = """
import sys, time
from pathlib import Path
from attnid.devices import hold_one
with hold_one(sys.argv[2:], Path(sys.argv[1])) as index:
    print(index, flush=True)
    time.sleep(100)
"""


def holder(directory: Path, *names: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", HOLD, str(directory), *names]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def index_of(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(process.stdout.readline())


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_jobs_side_by_side_get_a_device_each_until_they_die(number: int, tmp_path: Path) -> None:
    processes = [holder(tmp_path, "a", "b") for _ in range(4)]
    try:
        indices = [index_of(process) for process in processes]
        assert Counter(indices) == {0: 2, 1: 2}
        with hold_one(["a", "b"], tmp_path):
            pass
        for process, index in zip(processes, indices, strict=True):
            if index == 1:
                process.send_signal(number)
                process.wait()
        with hold_one(["a", "b"], tmp_path) as freed, hold_one(["a", "b"], tmp_path) as again:
            assert (freed, again) == (1, 1)
        with hold_one(["b", "a"], tmp_path) as other_order:
            assert other_order == 0
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_the_device_with_the_fewest_jobs_is_taken(tmp_path: Path) -> None:
    with hold_one(["a"], tmp_path) as first, hold_one(["a", "b"], tmp_path) as second:
        assert (first, second) == (0, 1)
        with hold_one(["a", "b", "c"], tmp_path) as third, hold_one(["a", "b", "c"], tmp_path) as fourth:
            assert (third, fourth) == (2, 0)
    with hold_one(["a", "b"], tmp_path) as index:
        assert index == 0


def test_what_is_no_lock_file_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "attnid-device-a-0.lock").symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / "attnid-device-b-0.lock")
    with hold_one(["a", "b", "c"], tmp_path) as first, hold_one(["a", "b", "c"], tmp_path) as second:
        assert (first, second) == (1, 2)
    assert not (tmp_path / "elsewhere").exists()


def test_a_place_without_lock_files_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"no lock file in .*file can be had"), hold_one(["a"], tmp_path / "file"):
        pass


def test_any_user_may_lock_a_file_whatever_the_mask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with hold_one(["a"], tmp_path):
            assert (tmp_path / "attnid-device-a-0.lock").stat().st_mode & 0o777 == 0o644
    finally:
        os.umask(before)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")
def test_without_a_gpu_jobs_train_on_the_cpu() -> None:
    for wanted in ("auto", "cpu"):
        with device(wanted) as chosen:  # type: ignore[arg-type]
            assert chosen == torch.device("cpu")
    with pytest.raises(UserError, match="device is 'cuda', but no CUDA device was found"), device("cuda"):
        pass
