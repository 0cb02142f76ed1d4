"""How a long-running command speaks and ends: one line a thing, signals as an event, exit codes."""

from __future__ import annotations

import errno
import logging
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from types import FrameType

from perennial.common.command.errors import InputError, RunError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# What no path of a user's may be; those that Python has classes for are handled by these.
_IMPOSSIBLE = (errno.ENAMETOOLONG, errno.ELOOP, errno.EROFS)
_LONGEST = 100


def say(text: str) -> None:
    """Print one line on standard error, where it does not mix with results."""
    print(text, file=sys.stderr, flush=True)


def log_to_console(*, verbose: bool) -> None:
    """Show Perennial's log; of Flower, which writes several lines a round, nothing unless ``verbose``."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    logging.getLogger("perennial").setLevel(logging.INFO)
    for name in ("flwr", "httpx", "uvicorn.error"):
        noisy = logging.getLogger(name)
        noisy.propagate = False
        # A filter, because Flower sets its logger's level when it is imported.
        noisy.addFilter(lambda _: verbose)


class Signals:
    """Turns the first SIGINT or SIGTERM into ``stop``; the second one ends the process the hard way.

    interrupt: also raise KeyboardInterrupt, for a process that waits for others most of its time.
    """

    def __init__(self, notice: str, *, interrupt: bool = False) -> None:
        self.stop = threading.Event()
        self._interrupt = interrupt
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
        if self._interrupt:
            raise KeyboardInterrupt


def run(command: Callable[[], int], name: str, *, verbose: bool = False, interrupted: str = "") -> int:
    """Return the command's exit code; errors that it foresees become one line, before which ``verbose`` shows where.

    interrupted: how to go on, said after Ctrl-C or SIGTERM; '': the command has ``Signals`` of its own.
    """
    if not interrupted:
        return _foreseen(command, name, "start again", verbose=verbose)
    # Noted, not told by the exception: whoever is in between, a C++ library say, may let another one out.
    terminated = threading.Event()

    def terminate(_number: int, _frame: FrameType | None) -> None:
        terminated.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        code = _foreseen(command, name, interrupted, verbose=verbose)
    except BaseException as error:
        if not (terminated.is_set() or isinstance(error, KeyboardInterrupt)):
            raise
        code = 128 + signal.SIGINT
        say(f"\n{name}: interrupted; {interrupted}")
    finally:
        signal.signal(signal.SIGTERM, before)
    return 128 + signal.SIGTERM if terminated.is_set() else code


def _foreseen(command: Callable[[], int], name: str, again: str, *, verbose: bool) -> int:
    try:
        return command()
    except (InputError, RunError) as error:
        if verbose:
            traceback.print_exc()
        say(f"{name}: {error}")
        return 2 if isinstance(error, InputError) else 1
    except (PermissionError, FileNotFoundError, FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        # A path that somebody gave; which one is in the error, whichever option it came by.
        if verbose or not error.filename:
            raise
        say(f"{name}: {error.filename}: {error.strerror}; give a path that can be used")
        return 2
    except BrokenPipeError:
        # Whoever read what is printed, `head` say, has seen enough; Python would complain once more at its exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        if not verbose and error.errno in _IMPOSSIBLE and error.filename:
            say(f"{name}: {_short(str(error.filename))}: {error.strerror}; give a path that can be used")
            return 2
        if verbose or error.errno not in _FULL:
            raise
        say(f"{name}: the disk is full ({error.filename or error.strerror}); make room; then {again}")
        return 1


def _short(path: str) -> str:
    """Return a path that fits a line: one that is too long for a file system is too long to read."""
    return path if len(path) <= _LONGEST else f"{path[:_LONGEST]}… ({len(path)} characters)"
