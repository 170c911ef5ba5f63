"""What a training job leaves while it runs: where it is, always; its tables, as long as writing them is cheap."""

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from attnid import live, schema, training
from attnid.training_tables import HEADS, TRAINING


class Clock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(live.time, "monotonic", made)
    return made


def empty() -> dict[str, pd.DataFrame]:
    return {table.name: table.schema.empty_table().to_pandas() for table in TRAINING}


def progress(step: int, so_far: Callable[[], dict[str, pd.DataFrame]] = empty) -> training.Progress:
    return training.Progress(step=step, steps=100, begun=0, rows={}, so_far=so_far)


def test_the_place_follows_while_tables_that_take_long_wait(tmp_path: Path, clock: Clock) -> None:
    """Tables that take 0.5 s are written every 50 s; a step takes 3 s."""
    written = []

    def slow(step: int) -> Callable[[], dict[str, pd.DataFrame]]:
        def so_far() -> dict[str, pd.DataFrame]:
            clock.now += 0.5
            written.append(step)
            return empty()

        return so_far

    leaves = live.Live(tmp_path)
    for step in range(1, 41):
        clock.now = 3.0 * step
        leaves(progress(step, slow(step)))
        place = live.place(tmp_path)
        assert place is not None
        assert place.step == step
    assert written == [1, 18, 35]


def test_nothing_is_written_twice_within_two_seconds(tmp_path: Path, clock: Clock) -> None:
    leaves = live.Live(tmp_path)
    for step, expected in ((1, 1), (2, 1), (3, 1), (4, 4)):
        clock.now = 0.7 * step
        leaves(progress(step))
        assert (live.place(tmp_path) or pytest.fail("no place")).step == expected


def test_seconds_left_are_those_of_the_pace_since_the_first_measured_step(tmp_path: Path, clock: Clock) -> None:
    """10 steps in 30 s leave 80 steps, 240 s."""
    leaves = live.Live(tmp_path)
    leaves(progress(10))
    assert live.place(tmp_path) == live.Place(step=10, seconds_left=None)
    clock.now = 30.0
    leaves(progress(20))
    assert live.place(tmp_path) == live.Place(step=20, seconds_left=240.0)


def test_a_place_that_takes_nothing_does_not_stop_the_job(tmp_path: Path, clock: Clock) -> None:
    (tmp_path / "file").write_text("")
    live.Live(tmp_path / "file" / "job")(progress(10))
    assert live.place(tmp_path / "file" / "job") is None


@pytest.mark.parametrize(("end", "stays"), [(ValueError, True), (SystemExit, False), (KeyboardInterrupt, False)])
def test_a_job_that_fails_leaves_its_tables_and_one_that_is_asked_to_stop_does_not(
    tmp_path: Path, end: type[BaseException], stays: bool
) -> None:
    directory = tmp_path / "job"

    def job() -> None:
        with live.running(directory) as leaves:
            leaves(progress(10))
            assert live.is_held(directory)
            raise end

    with pytest.raises(end):
        job()
    assert live.was_left(directory) == stays
    assert not live.is_held(directory)
    if stays:
        assert schema.read(HEADS, directory / f"{HEADS.name}.parquet").empty


def test_a_job_that_ends_well_leaves_nothing(tmp_path: Path) -> None:
    with live.running(tmp_path / "job") as leaves:
        leaves(progress(100))
    assert not (tmp_path / "job").exists()
