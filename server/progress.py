"""The progress of a run as lines of text, for a terminal and for a service's journal alike."""

from __future__ import annotations

import sys
import time

from common.schedule import Schedule
from server.state import RoundRecord

# A journal needs no line for every quick round.
_SECONDS_BETWEEN_LINES = 2.0


class Lines:
    """Prints one line for a round with news (rejections, accuracies), and otherwise every few seconds."""

    def __init__(self) -> None:
        self._printed = -1e9

    def round_done(self, record: RoundRecord, accuracies: list[float | None], schedule: Schedule) -> None:
        news = bool(record.rejections) or any(value is not None for value in accuracies)
        last = record.slot.server_round == schedule.total_rounds
        if news or last or time.monotonic() - self._printed > _SECONDS_BETWEEN_LINES:
            self._printed = time.monotonic()
            print(line(record, accuracies, schedule), file=sys.stderr, flush=True)


def line(record: RoundRecord, accuracies: list[float | None], schedule: Schedule) -> str:
    """Return a round in one line."""
    slot = record.slot
    total = f"/{schedule.total_rounds}" if schedule.total_rounds else ""
    parts = [
        f"round {slot.server_round}{total}",
        f"cycle {slot.cycle}, block {schedule.names[slot.block]}",
        f"{record.clients_answered} of {record.clients_asked} clients",
        *(f"{chain} {loss:.4f}" for chain, loss in record.train_losses.items()),
        *([f"chosen {record.chosen}"] if record.chosen else []),
        *(f"accuracy {value:.1%}" for value in accuracies if value is not None),
        f"{record.seconds:.2f} s",
        *(f"rejected {list(rejection.clients)}: {rejection.reason}" for rejection in record.rejections),
    ]
    return " | ".join(parts)
