import logging
from pathlib import Path

import pytest

from attnid.errors import UserError
from attnid.job import job


def test_a_job_logs_to_the_terminal_and_to_its_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with job(str(tmp_path / "deep" / "job.log")) as log:
        log.info("halfway")
    assert "halfway" in (tmp_path / "deep" / "job.log").read_text()
    assert "halfway" in capsys.readouterr().err


def test_a_users_mistake_is_one_sentence_and_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, job(str(tmp_path / "job.log")):
        raise UserError("corpus x: empty")
    assert ended.value.code == 2
    assert (tmp_path / "job.log").read_text().endswith("corpus x: empty\n")
    assert "Traceback" not in capsys.readouterr().err


def test_what_the_machine_refuses_is_one_sentence_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, job(str(tmp_path / "job.log")):
        (tmp_path / "nowhere" / "table").write_text("")
    assert ended.value.code == 2
    assert "No such file or directory" in (tmp_path / "job.log").read_text()
    assert "Traceback" not in capsys.readouterr().err


def test_any_other_error_keeps_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), job(str(tmp_path / "job.log")) as log:
        log.info(f"{1 / 0}")
    assert "ZeroDivisionError" in (tmp_path / "job.log").read_text()


def test_handlers_do_not_pile_up(tmp_path: Path) -> None:
    for _ in range(3):
        with job(str(tmp_path / "job.log")):
            pass
    assert not logging.getLogger("attnid").handlers


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")])
def test_too_little_memory_is_one_sentence(
    error: Exception, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"), job(str(tmp_path / "log")):
        raise error
    assert "not enough memory" in capsys.readouterr().err
    assert "Traceback" not in (tmp_path / "log").read_text()
