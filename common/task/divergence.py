"""When a training loss says that a chain has diverged: it has become so large that nothing is learnt any more.

Losses alone tell: a run as it goes, and the report of one that is over, find the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

# A model that knows nothing has a loss of the logarithm of the classes, one that is sure and wrong some tens.
_BOUNDED_TASKS, _MOST = ("classification", "binary"), 1e3
# Losses of other tasks have the scale of their targets: these many times the least so far, or this from the start.
_TIMES, _MOST_OF_ANY = 1e3, 1e12
_REMEDIES = {"mixed": "lr-mixed", "separate": "lr-separate"}


@dataclass(frozen=True)
class Divergence:
    """A chain that has diverged, since which round, and the loss that tells."""

    chain: str
    server_round: int
    loss: float

    def __str__(self) -> str:
        return f"{self.fact}; lower {_REMEDIES.get(self.chain, 'the learning rate')}"

    @property
    def fact(self) -> str:
        """What has happened, without what to do."""
        return f"the {self.chain} chain has diverged since round {self.server_round}: its loss is {self.loss:.3g}"


class LossWatch:
    """Is shown the losses of one run, round by round. task: as the key of that name has it."""

    def __init__(self, task: object = "") -> None:
        self._bounded = task in _BOUNDED_TASKS
        self._least: dict[str, float] = {}
        self._known: set[str] = set()

    def see(self, server_round: int, losses: Mapping[str, float | None]) -> list[Divergence]:
        """Return the chains that have diverged in this round, each once; ``losses``: by chain, of what was measured."""
        found = []
        for chain, loss in losses.items():
            if loss is None or chain in self._known:
                continue
            if self._is_beyond(loss, self._least.get(chain, math.inf)):
                self._known.add(chain)
                found.append(Divergence(chain, server_round, loss))
            else:
                self._least[chain] = min(loss, self._least.get(chain, math.inf))
        return found

    def _is_beyond(self, loss: float, least: float) -> bool:
        if not math.isfinite(loss) or loss > _MOST_OF_ANY:
            return True
        return loss > (_MOST if self._bounded else _TIMES * max(1.0, least))


def find(rounds: Iterable[tuple[int, Mapping[str, float | None]]], task: object = "") -> list[Divergence]:
    """Return the chains that have diverged in ``rounds``: numbers, and losses by chain."""
    watch = LossWatch(task)
    return [one for server_round, losses in rounds for one in watch.see(server_round, losses)]
