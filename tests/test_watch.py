"""`attnid watch`: what it shows of tables made by hand, on terminals of all kinds, and how it ends."""

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from settings import cell as small_cell
from settings import default_settings

from attnid import cli, config, paths, schema, screen, watch
from attnid.schema import FLOAT, TEXT
from attnid.training_tables import EVALUATIONS, HEADS, REBALANCES, STEPS

WATCH = (sys.executable, "-c", "import sys; from attnid.cli import main; sys.exit(main())", "watch")
ALTERNATE, BACK = "\x1b[?1049h", "\x1b[?1049l"
HIDDEN, SHOWN = "\x1b[?25l", "\x1b[?25h"
HOME = "\x1b[H"
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
ESCAPES_BUT_HOME = re.compile(r"\x1b\[(?!H)[0-9;?]*[a-zA-Z]")
PATIENCE = 60

# ---------------------------------------------------------------- a run made by hand


class Run:
    """A configuration of two cells alike but for the learning rate: 100 steps, two jobs of two seeds each."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.results = directory, directory / "results"
        self.results.mkdir()
        settings = default_settings()
        settings["training"] |= {"steps": 100, "seeds": 4, "seeds_per_job": 2}
        settings["groups"] = {"rates": {"cases": ["adamw"], "lr": [0.001, 0.002]}}
        (directory / "config.yaml").write_text(yaml.safe_dump(settings))
        self.config = config.parse(settings)
        self.cells = list(config.cells(self.config))
        self._locks: list[Any] = []

    def tables(self, place: Path, cell: str, seeds: Sequence[int], last: int, **measured: Sequence[float]) -> Path:
        """What a job has measured every ten steps until `last`: of each seed these numbers there, others before."""
        directory = paths.below(self.results, place)
        runs = pd.DataFrame(product([cell], seeds, range(10, last + 1, 10)), columns=["cell", "seed", "step"])
        heads = runs.merge(pd.DataFrame({"layer": [0, 0, 1], "head": [0, 1, 0], "share": [0.5, 1, 3]}), how="cross")
        for name, values in measured.items():
            for frame in (runs, heads):
                now = frame["seed"].map(dict(zip(seeds, values, strict=True)))
                frame[name] = now.where(frame["step"] == last, 9.0)
        heads = heads.assign(rho_qk=heads["rho_qk"] * heads["share"], phase="step", state="regular")
        for table, frame in ((STEPS, runs), (EVALUATIONS, runs), (HEADS, heads), (REBALANCES, runs.head(0))):
            schema.write(table, filled(table, frame), directory / f"{table.name}.parquet")
        return directory

    def done(self, cell: str, first: int, seconds: float, **measured: Sequence[float]) -> Path:
        """A job of two seeds that has ended and took so long."""
        directory = self.tables(paths.block(cell, first, first + 1), cell, [first, first + 1], 100, **measured)
        record = {
            **dict.fromkeys(["device", "machine", "code", "commit", "started"], "some"),
            "cell": cell,
            "seeds": [first, first + 1],
            "threads": 1,
            "versions": {},
            "continued_from": 0,
            "peak_mb": 1,
            "seconds": seconds,
            "settings": config.cells(self.config)[cell].model_dump(mode="json"),
        }
        (directory / "run.json").write_text(json.dumps(record))
        return directory

    def running(self, cell: str, first: int, step: int, left: float | None, **measured: Sequence[float]) -> Path:
        """A job of two seeds that runs."""
        directory = self.left(cell, first, step, left, **measured)
        self._locks.append((directory / "lock").open("w"))
        fcntl.flock(self._locks[-1], fcntl.LOCK_EX)
        return directory

    def left(self, cell: str, first: int, step: int, left: float | None = None, **measured: Sequence[float]) -> Path:
        """A job of two seeds that stopped before its end."""
        directory = self.tables(paths.running(cell, first, first + 1), cell, [first, first + 1], step, **measured)
        (directory / "place.json").write_text(json.dumps({"step": step, "seconds_left": left}))
        (directory / "lock").touch()
        return directory

    def let_go(self) -> None:
        """No job runs any longer."""
        while self._locks:
            self._locks.pop().close()

    def rows(self) -> dict[str, dict[str, str]]:
        """What is shown of each cell, by column."""
        found = watch.Watcher(self.config, self.results).snapshot()
        return {setting.cell.id: screen._row(setting) for setting in found.settings}


def filled(table: schema.Table, frame: pd.DataFrame) -> pd.DataFrame:
    """A frame with 0 in the columns that it lacks, and no others than the table's."""
    blank = {column.name: "" if column.type == TEXT else 0.0 if column.type == FLOAT else 0 for column in table.columns}
    return frame.assign(**{name: value for name, value in blank.items() if name not in frame})[table.names]


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    made = Run(tmp_path)
    yield made
    made.let_go()


@pytest.fixture
def halfway(run: Run) -> Run:
    """One cell with a job that is done and one that runs, the other with one that failed and one that waits.

    The first job took 200 s for 100 steps; the second is at step 50 and expects 100 s more. A job takes 200 s at this
    pace, and 4 s to start.
    """
    here, other = run.cells
    run.done(here, 0, 200, train_loss=[7, 7], val_loss=[7, 7], rho_qk=[0.7, 0.7])
    run.running(here, 2, 50, 100, train_loss=[2, 3], val_loss=[2.4, 2.8], rho_qk=[0.2, 0.4])
    run.left(other, 0, 30, train_loss=[8, 8], val_loss=[8, 8], rho_qk=[0.8, 0.8])
    log = paths.below(run.results, paths.log(other, 0, 1))
    log.parent.mkdir(parents=True)
    log.write_text("10:00:00 step 30\n10:00:01 the disk is full\n\n")
    return run


# ---------------------------------------------------------------- what is shown


def test_the_numbers_are_those_of_the_job_that_runs(halfway: Run) -> None:
    row = halfway.rows()[halfway.cells[0]]
    assert (row["state"], row["steps"], row["jobs"]) == ("running", "150/200", "1/2")
    assert (row["train loss"], row["val. loss"]) == ("2.500", "2.600")
    assert row["left"] == "100 seconds"


def test_rho_is_the_mean_of_the_seeds_medians_with_its_t_interval(halfway: Run) -> None:
    """Medians 0.2 and 0.4: the mean 0.3, its error 0.1, the quantile of one degree of freedom 12.706."""
    assert halfway.rows()[halfway.cells[0]]["rho"] == "0.3 (-0.971 to 1.57)"


def test_the_null_is_that_of_a_random_step(halfway: Run) -> None:
    """1/(2H), and nearly the normal band of 256 gauge directions among 2048."""
    mean, low, high = map(float, re.findall(r"[0-9.]+", halfway.rows()[halfway.cells[0]]["null"]))
    reach = 1.96 * (0.125 * 0.875 / 1025) ** 0.5
    assert mean == 0.125
    assert (low, high) == pytest.approx((0.125 - reach, 0.125 + reach), abs=1e-3)


def test_a_failed_job_shows_how_far_it_came_and_why(halfway: Run, capsys: pytest.CaptureFixture[str]) -> None:
    row = halfway.rows()[halfway.cells[1]]
    assert (row["state"], row["steps"], row["jobs"]) == ("failed", "30/200", "0/2")
    assert f"{halfway.cells[1]} seeds 0 to 1 failed: 10:00:01 the disk is full\n" in said(halfway, capsys)


def test_a_log_cannot_command_the_terminal(halfway: Run, capsys: pytest.CaptureFixture[str]) -> None:
    paths.below(halfway.results, paths.log(halfway.cells[1], 0, 1)).write_text("\x1b[2J gone")
    assert r"failed: \x1b[2J gone" in said(halfway, capsys)


def test_time_left_is_that_of_the_jobs_that_run_and_wait(halfway: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """One job at a time: 100 s, then 4 s and 200 s; the one that failed has to be asked for again."""
    assert halfway.rows()[halfway.cells[1]]["left"] == "3.4 minutes"
    assert "2 settings: 1 running, 1 failed; about 5.07 minutes of training left\n" in said(halfway, capsys)


def test_jobs_side_by_side_share_the_time_left(run: Run) -> None:
    for cell in run.cells:
        run.running(cell, 0, 50, 100, train_loss=[2, 2], val_loss=[2, 2], rho_qk=[0.1, 0.1])
    snapshot = watch.Watcher(run.config, run.results).snapshot()
    assert snapshot.seconds_left == pytest.approx((2 * 100 + 2 * 204) / 2)


def test_before_anything_is_trained(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert "nothing yet: none of 2 settings has begun to train\n" in said(run, capsys)
    assert {row["left"] for row in run.rows().values()} == {""}


def test_a_finished_run_has_nothing_left(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for cell, first in product(run.cells, (0, 2)):
        run.done(cell, first, 50, train_loss=[1, 2], val_loss=[1, 2], rho_qk=[0.1, 0.2])
    text = said(run, capsys)
    assert text.startswith("2 settings: 2 done\n")
    assert {row["steps"] for row in run.rows().values()} == {"200/200"}
    assert {row["train loss"] for row in run.rows().values()} == {"1.500"}
    assert "seconds" not in text


def test_a_loss_that_is_not_finite_is_shown_as_such(run: Run) -> None:
    run.running(run.cells[0], 0, 20, 1, train_loss=[float("nan"), 2], val_loss=[2, 2], rho_qk=[0.1, 0.1])
    assert run.rows()[run.cells[0]]["train loss"] == "nan"


def test_jobs_of_another_configuration_are_named(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    run.running("stranger", 0, 20, 1, train_loss=[1, 1], val_loss=[1, 1], rho_qk=[0.1, 0.1])
    assert "1 job running that this configuration does not have (stranger_seeds-0-1)" in said(run, capsys)


def said(run: Run, capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    given = [str(run.directory / "config.yaml"), "--results", str(run.results), *arguments]
    assert cli.main(["watch", *given]) == status
    out, err = capsys.readouterr()
    return err if status else out


# ---------------------------------------------------------------- tables as they grow


def test_tables_that_grow_are_read_again(run: Run) -> None:
    watcher = watch.Watcher(run.config, run.results)
    for step, loss in ((10, 4.0), (20, 3.0)):
        run.let_go()
        run.running(run.cells[0], 0, step, 1, train_loss=[loss] * 2, val_loss=[loss] * 2, rho_qk=[0.1, 0.1])
        setting = watcher.snapshot().settings[0]
        assert (setting.step, setting.measured["train_loss"].median) == (step, loss)


@pytest.mark.parametrize("table", ["heads", "steps", "evaluations"])
@pytest.mark.parametrize("size", [0, 4, 900])
def test_a_torn_table_of_a_job_that_runs_is_waited_for(run: Run, table: str, size: int) -> None:
    directory = run.running(run.cells[0], 0, 10, 1, train_loss=[4, 4], val_loss=[4, 4], rho_qk=[0.1, 0.1])
    path = directory / f"{table}.parquet"
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    watcher = watch.Watcher(run.config, run.results)
    torn = watcher.snapshot()
    assert (torn.settings[0].state, torn.settings[0].step, torn.settings[0].measured) == ("running", 10, {})
    assert torn.notes == []
    path.write_bytes(whole)
    assert watcher.snapshot().settings[0].measured["train_loss"].median == 4


def test_a_torn_place_is_that_of_a_job_without_one(run: Run) -> None:
    directory = run.running(run.cells[0], 0, 10, 1, train_loss=[4, 4], val_loss=[4, 4], rho_qk=[0.1, 0.1])
    (directory / "place.json").write_text('{"step": 1')
    assert run.rows()[run.cells[0]]["steps"] == "0/200"


def test_the_numbers_are_those_of_the_tables_that_reach_furthest(run: Run) -> None:
    """A job writes its place more often than its tables: the one that is ahead may have older tables."""
    ahead = run.running(run.cells[0], 0, 30, 9, train_loss=[4, 4], val_loss=[4, 4], rho_qk=[0.4, 0.4])
    run.running(run.cells[0], 2, 50, 9, train_loss=[3, 3], val_loss=[3, 3], rho_qk=[0.3, 0.3])
    (ahead / "place.json").write_text('{"step": 90, "seconds_left": 1}')
    row = run.rows()[run.cells[0]]
    assert (row["steps"], row["train loss"]) == ("140/200", "3.000")


def test_a_job_without_tables_yet_runs(run: Run) -> None:
    directory = run.running(run.cells[0], 0, 10, None, train_loss=[4, 4], val_loss=[4, 4], rho_qk=[0.1, 0.1])
    for path in (*directory.glob("*.parquet"), directory / "place.json"):
        path.unlink()
    row = run.rows()[run.cells[0]]
    assert (row["state"], row["steps"], row["rho"], row["left"]) == ("running", "0/200", "", "")


def test_tables_without_a_row_show_no_numbers(run: Run) -> None:
    directory = run.running(run.cells[0], 0, 10, None, train_loss=[4, 4], val_loss=[4, 4], rho_qk=[0.1, 0.1])
    for table in (HEADS, STEPS, EVALUATIONS):
        schema.write(table, table.schema.empty_table().to_pandas(), directory / f"{table.name}.parquet")
    row = run.rows()[run.cells[0]]
    assert (row["state"], row["train loss"], row["rho"]) == ("running", "", "")


@pytest.mark.parametrize("name", ["heads.parquet", "run.json"])
def test_a_damaged_file_of_a_job_that_is_done_is_named(run: Run, capsys: pytest.CaptureFixture[str], name: str) -> None:
    directory = run.done(run.cells[0], 0, 50, train_loss=[1, 2], val_loss=[1, 2], rho_qk=[0.1, 0.2])
    (directory / name).write_bytes((directory / name).read_bytes()[:60])
    assert f"{directory / name}: not " in said(run, capsys)


# ---------------------------------------------------------------- wrong input


def test_results_that_are_no_directory_are_refused(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("none", "x" * 300):
        error = said(run, capsys, "--results", name, status=2)
        assert error == f"attnid: watch: {name} is no directory; expected the results of a run\n"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "overlay.yaml: cannot be read"),
        ("training: {steps: -1}", "steps"),
        ("groups: [", "not YAML"),
        ("tables: made", "nothing is trained"),
    ],
)
def test_a_wrong_configuration_is_one_sentence(
    run: Run, capsys: pytest.CaptureFixture[str], text: str | None, sentence: str
) -> None:
    overlay = run.directory / "overlay.yaml"
    if text is not None:
        overlay.write_text(text.replace("made", str(run.results)))
    for name in ("metrics", "analysis"):
        (run.results / name).mkdir()
    assert cli.main(["watch", str(run.directory / "config.yaml"), str(overlay)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n"), err.startswith("attnid: ")) == ("", 1, True)
    assert sentence in err


# ---------------------------------------------------------------- on a terminal


class Terminal:
    """A pseudo-terminal in which `attnid watch` runs."""

    def __init__(self, directory: Path, *arguments: str, columns: int = 120, lines: int = 24, kind: str = "xterm"):
        self.master, inner = pty.openpty()
        self.resize(columns, lines)
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [*WATCH, *arguments],
            cwd=directory,
            env=environment | {"TERM": kind},
            stdin=inner,
            stdout=inner,
            stderr=inner,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        self.modes = termios.tcgetattr(inner)
        self.inner = inner
        self.text = ""

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def until(self, holds: Callable[["Terminal"], bool]) -> None:
        """Take in what is written until something holds."""
        end = time.monotonic() + PATIENCE
        while not holds(self):
            assert time.monotonic() < end, self.text[-3000:]
            if select.select([self.master], [], [], 0.05)[0]:
                self.text += os.read(self.master, 65_536).decode(errors="replace")

    def end(self) -> int:
        """Wait for the end of it, and take in all that it wrote."""
        self.until(lambda _: self.process.poll() is not None)
        while select.select([self.master], [], [], 0.05)[0]:
            self.text += os.read(self.master, 65_536).decode(errors="replace")
        return self.process.returncode

    @property
    def frames(self) -> list[str]:
        """What was drawn on the alternate screen, one time after the other, but for what may be half drawn."""
        drawn = ESCAPES_BUT_HOME.sub("", self.text.partition(ALTERNATE)[2].partition(BACK)[0]).replace("\r", "")
        return [frame for frame in drawn.split(HOME) if frame.strip()][:-1]

    @property
    def after(self) -> str:
        """What was written once the alternate screen was left."""
        return ESCAPES.sub("", self.text.rpartition(BACK)[2]).replace("\r", "")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.inner)
        os.close(self.master)


@pytest.fixture
def terminal(halfway: Run) -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def open_one(*arguments: str, **settings: Any) -> Terminal:
        opened.append(Terminal(halfway.directory, *arguments, **settings))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()


def test_the_table_is_drawn_again_as_the_run_goes_on(halfway: Run, terminal: Callable[..., Terminal]) -> None:
    shown = terminal()
    shown.until(lambda it: len(it.frames) >= 1)
    assert "150/200" in shown.frames[0]
    halfway.let_go()
    halfway.running(halfway.cells[0], 2, 60, 80, train_loss=[2, 2], val_loss=[2, 2], rho_qk=[0.1, 0.1])
    shown.until(lambda it: any("160/200" in frame for frame in it.frames))


def test_a_terminal_that_changes_its_size_is_filled_anew(terminal: Callable[..., Terminal]) -> None:
    shown = terminal(columns=160)
    shown.until(lambda it: any("null" in frame for frame in it.frames))
    shown.resize(40, 12)
    shown.until(lambda it: bool(it.frames) and "null" not in it.frames[-1])
    assert max(map(len, shown.frames[-1].splitlines())) <= 40


@pytest.mark.parametrize("stop", ["^C", signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_it_leaves_the_terminal_as_it_was(
    terminal: Callable[..., Terminal], stop: str | signal.Signals
) -> None:
    shown = terminal()
    shown.until(lambda it: bool(it.frames))
    if isinstance(stop, str):
        os.write(shown.master, b"\x03")
    else:
        shown.process.send_signal(stop)
    assert shown.end() == 0
    assert "Traceback" not in shown.text
    assert (shown.text.count(ALTERNATE), shown.text.count(BACK)) == (1, 1)
    assert shown.text.rfind(SHOWN) > shown.text.rfind(HIDDEN) > -1
    assert termios.tcgetattr(shown.inner) == shown.modes
    assert "2 settings: 1 running, 1 failed" in shown.after


def test_it_ends_by_itself_with_the_run(halfway: Run, terminal: Callable[..., Terminal]) -> None:
    shown = terminal()
    shown.until(lambda it: bool(it.frames))
    for cell, first in product(halfway.cells, (0, 2)):
        halfway.done(cell, first, 50, train_loss=[1, 2], val_loss=[1, 2], rho_qk=[0.1, 0.2])
    halfway.let_go()
    assert shown.end() == 0
    assert "2 settings: 2 done\n" in shown.after


@pytest.mark.parametrize(("arguments", "kind"), [([], "dumb"), (["--once"], "xterm")])
def test_a_terminal_that_cannot_draw_again_gets_it_once(
    terminal: Callable[..., Terminal], arguments: Sequence[str], kind: str
) -> None:
    shown = terminal(*arguments, kind=kind)
    assert shown.end() == 0
    assert ALTERNATE not in shown.text
    assert HIDDEN not in shown.text
    assert "150/200" in shown.text


def test_a_pipe_gets_plain_whole_lines(halfway: Run) -> None:
    result = subprocess.run(WATCH, cwd=halfway.directory, capture_output=True, text=True, check=True)
    assert "\x1b" not in result.stdout
    assert result.stderr == ""
    assert next(line for line in result.stdout.splitlines() if line.startswith("setting")).split()[-1] == "left"
    assert all(cell in result.stdout for cell in halfway.cells)


def test_a_closed_pipe_is_no_error(halfway: Run) -> None:
    command = f"{subprocess.list2cmdline(WATCH)} 2>error; echo $? >status"
    subprocess.run(f"({command}) | true", shell=True, cwd=halfway.directory, check=True)
    assert ((halfway.directory / "error").read_text(), (halfway.directory / "status").read_text()) == ("", "0\n")


@pytest.mark.parametrize("width", [20, 40, 60, 80, 120, 140])
def test_a_narrow_terminal_keeps_what_matters_most(halfway: Run, width: int) -> None:
    snapshot = watch.Watcher(halfway.config, halfway.results).snapshot()
    console = screen.Console(width=width, height=12, force_terminal=False)
    with console.capture() as captured:
        console.print(screen.view(snapshot, width, 12))
    lines = captured.get().splitlines()
    assert max(map(len, lines)) <= width
    header = next(line for line in lines if line.startswith("setting"))
    assert ("steps" in header) == (width >= 40)
    assert ("jobs" in header) == (width >= 140)


def test_a_low_terminal_keeps_what_runs_and_counts_the_rest() -> None:
    null = watch.Null(0.5, 0.4, 0.6)
    states: list[watch.State] = ["waiting"] * 20 + ["running"] + ["done"] * 20 + ["failed"]
    cells = [small_cell(lr=1 / number) for number in range(1, 43)]
    jobs = [watch.Job(one, 0, 1, state, Path()) for one, state in zip(cells, states, strict=True)]
    many = watch.Snapshot([watch.Setting(job.cell, [job], {}, null, None) for job in jobs], None, [])
    console = screen.Console(width=80, height=12, force_terminal=False)
    with console.capture() as captured:
        console.print(screen.view(many, 80, 12))
    lines = captured.get().splitlines()
    assert len(lines) <= 12
    shown = [line.split()[1] for line in lines[3:] if line.startswith("adamw_") and " seeds " not in line]
    assert (shown[-1], shown.count("running"), shown.count("failed")) == ("failed", 1, 1)
    assert f"and {21 - len(shown) + 1} waiting, 20 done" in [line.rstrip() for line in lines]
