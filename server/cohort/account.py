"""What the exchanges of a round cost and brought: clients, rejections, bytes; added up over all attempts at it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from perennial.server.cohort.exchange import Rejection

# What pays for the models that are sent to be judged and not trained.
VOTE = "vote"


@dataclass(frozen=True)
class Account:
    """The account of a round, or of one exchange. Bytes are by chain; those of votes are under ``VOTE``.

    asked, answered: clients that were asked to train, and those that did. rejected: clients whose node did not answer
    as it should, in training or in a vote. rejections: the last of each node, since a round may be attempted for days.
    quarantined: the nodes that sat out. accepted: the clients whose models are in the chains, sorted.
    """

    asked: int = 0
    answered: int = 0
    rejected: int = 0
    rejections: tuple[Rejection, ...] = ()
    quarantined: tuple[int, ...] = ()
    bytes_down: Mapping[str, int] = field(default_factory=dict)
    bytes_up: Mapping[str, int] = field(default_factory=dict)
    accepted: tuple[int, ...] = ()

    def plus(self, other: Account) -> Account:
        """Return both together; ``other`` is the later one."""
        return Account(
            self.asked + other.asked,
            self.answered + other.answered,
            self.rejected + other.rejected,
            tuple({one.node: one for one in self.rejections + other.rejections}.values()),
            tuple(dict.fromkeys(self.quarantined + other.quarantined)),
            dict(Counter(self.bytes_down) + Counter(other.bytes_down)),
            dict(Counter(self.bytes_up) + Counter(other.bytes_up)),
            other.accepted or self.accepted,
        )

    def state(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> Self:
        """Return what ``state`` gave, also after it was in a file."""
        rejections = tuple(Rejection(**{**one, "clients": tuple(one["clients"])}) for one in state["rejections"])
        lists = {name: tuple(state[name]) for name in ("quarantined", "accepted")}
        return cls(**{**state, "rejections": rejections, **lists})


# Of a round, or an exchange, about which nobody counted anything.
NOTHING = Account()
