"""The seam between the loop and the folder of a run: who keeps the state after each round, and gives it back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from flwr.app import ArrayRecord

from perennial.common.command.errors import InputError
from perennial.server.strategies.record import FoldedRound
from perennial.server.strategies.trees import Tree

if TYPE_CHECKING:
    from perennial.server.strategies.base import BlockStrategy


@runtime_checkable
class Keeper(Protocol):
    """Told of a run as it goes."""

    def begin(self, strategy: BlockStrategy, initial_arrays: ArrayRecord) -> Tree | None:
        """Return the state to begin from; None: the run begins anew. Called once, before the first round."""

    def keep(self, state: Tree, rounds: Sequence[FoldedRound]) -> None:
        """Keep the state after a round, and the records of the rounds that are over since this was last called.

        A round that waits for its vote has no record yet: it comes with the next one.
        """


def keeper_of(run_dir: str | Path | Keeper | None) -> Keeper | None:
    """Return who keeps a run in ``run_dir``; None: nobody does."""
    if run_dir is None or isinstance(run_dir, Keeper):
        return run_dir
    raise InputError(f"run_dir {str(run_dir)!r}: runs cannot be kept in a folder yet")
