"""Who sits out: nodes that were rejected too often in a row, the longer the oftener."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# A node that comes back from quarantine as it went sits out twice as long, at most this many times over.
_DOUBLINGS = 6


@dataclass
class Quarantine:
    """Strikes by name, and until which round a name sits out.

    A *strike* is a rejection; ``after`` of them in a row are a quarantine of ``rounds`` rounds. times: the quarantines
    in a row; an update that counts ends the row. wrong: the strikes for an answer that was wrong, since then.
    """

    after: int
    rounds: int
    strikes: dict[int, int] = field(default_factory=dict)
    until: dict[int, int] = field(default_factory=dict)
    times: dict[int, int] = field(default_factory=dict)
    wrong: dict[int, int] = field(default_factory=dict)

    def reject(self, name: int, server_round: int, *, wrong: bool = True) -> bool:
        """Note a strike, for a wrong answer or for silence; return whether the name sits out from now on."""
        self.strikes[name] = self.strikes.get(name, 0) + 1
        if wrong:
            self.wrong[name] = self.wrong.get(name, 0) + 1
        if not self.after or self.strikes[name] < self.after:
            return False
        times = self.times.get(name, 0)
        self.until[name] = server_round + self.rounds * 2 ** min(times, _DOUBLINGS)
        self.strikes[name], self.times[name] = 0, times + 1
        return True

    def accept(self, name: int) -> None:
        self.strikes.pop(name, None)
        self.times.pop(name, None)
        self.wrong.pop(name, None)

    def welcome(self, name: int) -> None:
        """Forgive a name that was silent and nothing worse: it was away, and is back."""
        if name not in self.wrong:
            self.accept(name)
            self.until.pop(name, None)

    def holds(self, name: int, server_round: int) -> bool:
        return self.until.get(name, 0) >= server_round

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take over what a checkpoint kept; JSON has made the names text."""
        # An older checkpoint knows no times, or not what the strikes were for.
        kept = saved["strikes"], saved["until"], saved.get("times", {}), saved.get("wrong", saved["until"])
        self.strikes, self.until, self.times, self.wrong = (
            {int(name): int(count) for name, count in one.items()} for one in kept
        )
