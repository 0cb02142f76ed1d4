"""How a run shows itself: one live line on a terminal, plain lines with the news in a journal or pipe."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from typing import TextIO

from perennial.common.cycle.schedule import Schedule
from perennial.server.run.pass_rows import train_losses
from perennial.server.strategies.record import FoldedRound

# A terminal's line may change this often; a journal needs no line for every quick round.
_LIVE_SECONDS, _JOURNAL_SECONDS = 0.1, 10.0


class AppProgress:
    """Shows the rounds of a run of the library; an ``on_round``."""

    def __init__(self, schedule: Schedule, stream: TextIO | None = None) -> None:
        self._schedule, self._stream = schedule, stream or sys.stderr
        self._live, self._shown = self._stream.isatty(), -float("inf")

    def __call__(self, record: FoldedRound) -> None:
        total, server_round = self._schedule.total_rounds, record.slot.server_round
        last, of_total = server_round == total, f"/{total}" if total else ""
        if not last and time.monotonic() - self._shown < (_LIVE_SECONDS if self._live else _JOURNAL_SECONDS):
            return
        self._shown = time.monotonic()
        missing = len(record.nodes) - len(record.answered)
        parts = [
            f"cycle {record.slot.cycle + 1} block {record.block_name} round {server_round}{of_total}",
            *(f"{chain} {loss:.4g}" for chain, loss in record.losses.items()),
            *([f"chosen {record.chosen}"] if record.chosen else []),
            *([f"{missing} of {len(record.nodes)} nodes missing"] if missing else []),
        ]
        _write_line(self._stream, "  ".join(parts), live=self._live, last=last)


def _write_line(stream: TextIO, text: str, *, live: bool, last: bool) -> None:
    if live:
        width = shutil.get_terminal_size().columns - 1
        stream.write(f"\r{text[:width]:<{width}}" + ("\n" if last else ""))
    else:
        stream.write(text + "\n")
    stream.flush()


class TerminalProgress:
    """Shows the rounds of a pass; ``names`` are those of the runs that share it."""

    def __init__(self, names: Sequence[str], stream: TextIO | None = None) -> None:
        self._names = names
        self._scores: list[str | None] = [None] * len(names)
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty()
        self._shown = -float("inf")
        self._first: tuple[int, float] | None = None

    def round_done(self, record: FoldedRound, scores: list[str | None], schedule: Schedule) -> None:
        self._scores = [new if new is not None else old for new, old in zip(scores, self._scores, strict=True)]
        self._first = self._first or (record.slot.server_round, time.monotonic())
        last = record.slot.server_round == schedule.total_rounds
        waited = time.monotonic() - self._shown
        if not (last or record.account.rejections or waited > (_LIVE_SECONDS if self._live else _JOURNAL_SECONDS)):
            return
        self._shown = time.monotonic()
        _write_line(self._stream, self._text(record, schedule), live=self._live, last=last)
        for rejection in record.account.rejections:
            ids = ", ".join(str(client) for client in rejection.clients[:5]) + (
                ", ..." if len(rejection.clients) > 5 else ""
            )
            self._stream.write(f"\nround {record.slot.server_round}: clients {ids} rejected: {rejection.reason}\n")
        self._stream.flush()

    def _text(self, record: FoldedRound, schedule: Schedule) -> str:
        """Return cycle, block, round, time left, rounds a second, loss, chosen chain and scores."""
        slot, total = record.slot, schedule.total_rounds
        assert self._first is not None
        passed = time.monotonic() - self._first[1]
        speed = (slot.server_round - self._first[0]) / passed if passed > 0 else 0.0
        of_total = f"/{total}" if total else ""
        account, losses = record.account, train_losses(record)
        missing = account.asked - account.answered
        parts = [
            f"cycle {slot.cycle + 1} block {schedule.names[slot.block]} round {slot.server_round}{of_total}",
            *([f"{_duration((total - slot.server_round) / speed)} left"] if speed and total else []),
            *([f"{speed:.1f} rounds/s"] if speed else []),
            *(f"loss {loss:.3f}" for loss in list(losses.values())[:1]),
            *([f"chosen {record.chosen}"] if record.chosen else []),
            *([f"{missing} of {account.asked} clients missing"] if missing else []),
            # Last, since names may be long and a terminal's line is cut.
            *(f"{name} {score}" for name, score in zip(self._names, self._scores, strict=True) if score is not None),
        ]
        return "  ".join(parts)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"
