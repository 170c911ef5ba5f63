"""A run on a terminal: one table of its settings, drawn again every second, or once."""

import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from math import isfinite

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from attnid import plan
from attnid.errors import printable
from attnid.job import signals
from attnid.watch import OVERLAP, Job, Measured, Setting, Snapshot, State, Watcher

REFRESH = 1.0
ASK = 0.05
"""Seconds between two looks at whether it is to stop."""
UNLIMITED = 10_000
SHORTEST_NAME, ITS_SHARE = 24, 0.4
"""What a name keeps of a terminal's columns where not all columns have room."""
MOST_NOTES = 6
GAP = 2
STYLES: Mapping[State, str] = {"running": "cyan", "failed": "bold red", "waiting": "dim", "done": "green"}
"""The order is that in which settings are kept where not all have room."""
COLUMNS = ("setting", "state", "steps", "jobs", "train loss", "val. loss", "rho", "null", "left")
KEPT = ("setting", "state", "steps", "left", "rho", "val. loss", "null", "train loss", "jobs")
"""The order in which columns are kept where not all have room."""


def watch(watcher: Watcher, once: bool) -> list[str]:
    """Show a run until it is done or this process is asked to stop; without a terminal, or asked to, only as it is.

    Returns:
        The lines of what was shown last, in full.
    """
    if sys.stdout is None or not sys.stdout.isatty():
        return _lines(watcher.snapshot(), Console(width=UNLIMITED, color_system=None, force_terminal=False))
    console = Console()
    if once or console.is_dumb_terminal:
        return _lines(watcher.snapshot(), console)
    with signals() as received, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            snapshot = watcher.snapshot()
            live.update(view(snapshot, console.width, console.height), refresh=True)
            if snapshot.is_done or _asked(received):
                break
    return _lines(snapshot, console)


def _asked(received: Sequence[int]) -> bool:
    """Wait for the next look; whether a signal to stop came."""
    until = time.monotonic() + REFRESH
    while not received and time.monotonic() < until:
        time.sleep(ASK)
    return bool(received)


def _lines(snapshot: Snapshot, console: Console) -> list[str]:
    with console.capture() as captured:
        console.print(view(snapshot, console.width))
    return [line.rstrip() for line in captured.get().splitlines()]


def view(snapshot: Snapshot, width: int, height: int = UNLIMITED) -> Group:
    """A run on a terminal of so many columns and lines; what is left out of the table is counted below it."""
    notes = [f"{job.name} failed: {job.why or 'its log is empty'}" for job in _failed(snapshot)] + snapshot.notes
    if height < UNLIMITED:
        notes = notes[:MOST_NOTES]
    shown = _most_important(snapshot.settings, height - len(notes) - 4)
    below = [f"and {_counts(left)}"] if (left := [each for each in snapshot.settings if each not in shown]) else []
    wrap = height == UNLIMITED
    texts = [
        Text(printable(note), no_wrap=not wrap, overflow="fold" if wrap else "ellipsis") for note in [*below, *notes]
    ]
    return Group(Text(_summary(snapshot), style="bold"), Text(), _table(shown, width), *texts)


def _most_important(settings: Sequence[Setting], most: int) -> list[Setting]:
    if len(settings) <= most + 1:
        return list(settings)
    ranked = sorted(settings, key=lambda setting: list(STYLES).index(setting.state))[: max(1, most)]
    return [setting for setting in settings if setting in ranked]


def _summary(snapshot: Snapshot) -> str:
    if all(job.state == "waiting" for setting in snapshot.settings for job in setting.jobs):
        return f"nothing yet: none of {plan.counted(len(snapshot.settings), 'setting')} has begun to train"
    left = f"; about {plan.span(snapshot.seconds_left)} of training left" if snapshot.seconds_left else ""
    return f"{plan.counted(len(snapshot.settings), 'setting')}: {_counts(snapshot.settings)}{left}"


def _counts(settings: Sequence[Setting]) -> str:
    number = Counter(setting.state for setting in settings)
    return ", ".join(f"{number[state]} {state}" for state in STYLES if number[state])


def _failed(snapshot: Snapshot) -> list[Job]:
    return [job for setting in snapshot.settings for job in setting.jobs if job.state == "failed"]


def _table(settings: Sequence[Setting], width: int) -> Table:
    rows = [_row(setting) for setting in settings]
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in COLUMNS}
    kept, room = _fitting(widths, width)
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for name in kept:
        table.add_column(name, no_wrap=True, justify="left" if name in ("setting", "state") else "right")
    for setting, row in zip(settings, rows, strict=True):
        row["setting"] = _shortened(row["setting"], room)
        table.add_row(*(Text(row[name], style=STYLES[setting.state] if name == "state" else "") for name in kept))
    return table


def _fitting(widths: Mapping[str, int], width: int) -> tuple[list[str], int]:
    """The columns that fit, and what is left to the first of them."""
    kept, used = {"setting"}, min(widths["setting"], SHORTEST_NAME, int(ITS_SHARE * width))
    for name in KEPT[1:]:
        if used + GAP + widths[name] > width:
            break
        kept.add(name)
        used += GAP + widths[name]
    others = sum(GAP + widths[name] for name in kept - {"setting"})
    return [name for name in COLUMNS if name in kept], width - others


def _shortened(name: str, room: int) -> str:
    """A name without the middle of it where that is too long: both ends tell settings apart."""
    if len(name) <= room:
        return name
    end = max(1, room // 2)
    return f"{name[: max(0, room - end - 1)]}…{name[-end:]}"


def _row(setting: Setting) -> dict[str, str]:
    measured, null = setting.measured, setting.null
    return {
        "setting": setting.cell.id,
        "state": setting.state,
        "steps": f"{setting.step}/{setting.steps}",
        "jobs": f"{setting.jobs_done}/{len(setting.jobs)}",
        "train loss": _loss(measured.get("train_loss")),
        "val. loss": _loss(measured.get("val_loss")),
        "rho": _with_range(measured[OVERLAP]) if OVERLAP in measured else "",
        "null": _with_range(Measured(null.mean, null.low, null.high)),
        "left": "" if setting.seconds_left is None or setting.state == "done" else plan.span(setting.seconds_left),
    }


def _loss(measured: Measured | None) -> str:
    return f"{measured.median:.3f}" if measured else ""


def _with_range(measured: Measured) -> str:
    if not isfinite(measured.low):
        return f"{measured.median:.3g}"
    return f"{measured.median:.3g} ({measured.low:.3g} to {measured.high:.3g})"
