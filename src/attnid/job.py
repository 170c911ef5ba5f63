"""What every job of the workflow does around its work: log, and tell a user's mistake in one sentence."""

import contextlib
import logging
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from attnid.errors import UserError


@contextlib.contextmanager
def job(log_file: str) -> Iterator[logging.Logger]:
    """Log to the terminal and to a file; end with status 2 and one sentence on a user's mistake or the machine's.

    The machine's are a full disk, or a place that cannot be read or written. Any other error goes to the log with its
    traceback and on to the caller.
    """
    path = Path(log_file)
    path.parent.mkdir(parents=True, exist_ok=True)
    logger = logging.getLogger("attnid")
    logger.setLevel(logging.INFO)
    handlers: list[logging.Handler] = [logging.StreamHandler(sys.stderr), logging.FileHandler(path, mode="w")]
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        logger.addHandler(handler)
    try:
        yield logger
    except (UserError, OSError) as error:
        logger.error(" ".join(str(error).split()))
        sys.exit(2)
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or re.search("out of memory|can't allocate memory", str(error))):
            logger.exception("failed")
            raise
        logger.error(f"not enough memory ({' '.join(str(error).split())[:200]}); smaller settings need less")
        sys.exit(2)
    except Exception:
        logger.exception("failed")
        raise
    finally:
        for handler in handlers:
            logger.removeHandler(handler)
            handler.close()


@contextlib.contextmanager
def signals() -> Iterator[list[int]]:
    """The signals to stop that arrive meanwhile; a second one has its usual effect."""
    received: list[int] = []
    usual = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def take(number: int, frame: object) -> None:
        received.append(number)
        signal.signal(number, usual[signal.Signals(number)])

    for number in usual:
        signal.signal(number, take)
    try:
        yield received
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
