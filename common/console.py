"""How a long-running command speaks and ends: one line a thing, signals as an event, exit codes 0, 1 and 2."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

from common.errors import InputError, RunError


def say(text: str) -> None:
    """Print one line on standard error, where it does not mix with results."""
    print(text, file=sys.stderr, flush=True)


def log_to_console(*, verbose: bool) -> None:
    """Show Perennial's log, and of Flower's only what is wrong: it has several lines a round."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    logging.getLogger("perennial").setLevel(logging.INFO)
    flower = logging.getLogger("flwr")
    flower.setLevel(logging.INFO if verbose else logging.CRITICAL)
    for noisy in ("httpx", "uvicorn.error"):
        logging.getLogger(noisy).setLevel(logging.INFO if verbose else logging.CRITICAL)


class Signals:
    """Turns the first SIGINT or SIGTERM into ``stop``; the second one ends the process the hard way."""

    def __init__(self, notice: str) -> None:
        self.stop = threading.Event()
        self.received = 0
        self._notice = notice
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._handle)

    def exit_code(self) -> int:
        """Return what a shell expects of a command that a signal ended."""
        return 128 + self.received if self.received else 0

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self.received = number
        self.stop.set()
        signal.signal(number, signal.SIG_DFL)
        say(self._notice)


def run(command: Callable[[], int], name: str) -> int:
    """Return the command's exit code; errors that it foresees become one line."""
    try:
        return command()
    except InputError as error:
        say(f"{name}: {error}")
        return 2
    except RunError as error:
        say(f"{name}: {error}")
        return 1
