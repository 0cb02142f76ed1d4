"""The configuration of a run that trains a user's own Flower app; its keys are RunConfig's if they mean the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError, shown
from perennial.common.command.naming import is_name
from perennial.common.command.typed_keys import KeyedConfig, check_range, key_of, values, word, yes_or_no
from perennial.common.cycle.clock import ClockSchedule, ClockSpec
from perennial.common.cycle.own_schedule import names_a_schedule, own_schedule
from perennial.common.cycle.schedule import RoundSchedule, Schedule

# Whoever has this key describes a run of an app of their own.
APP = "app"
# In the run-config of Flower's own runtimes: all these settings as JSON; a user's own names stand beside it.
APP_RUN = "perennial-app-run"
APP_STRATEGIES = ("fedavg", "mm-psgd", "mc-psgd")
_SHARED = {item.name: item for item in fields(RunConfig)}


def _shared(name: str) -> Any:
    """Return a key that is the same in RunConfig."""
    return field(default=_SHARED[name].default, metadata=_SHARED[name].metadata)


@dataclass(frozen=True, kw_only=True)
class AppConfig(KeyedConfig):
    """Every setting of one run of a user's own app."""

    app: str = word("", "your ClientApp, as package.module:app")
    initial: str = word("", "the initial model: an ArrayRecord, or a function that returns one, as package.module:name")
    strategy: str = word("mc-psgd", "the algorithm", APP_STRATEGIES)
    blocks: str = word("5", "blocks of a cycle: their number, or their names, as 'day, night'")
    cycles: int = _shared("cycles")
    rounds_per_block: int = _shared("rounds_per_block")
    clock: str = _shared("clock")
    timezone: str = _shared("timezone")
    clients: int = _shared("clients")
    nodes: int = _shared("nodes")
    participation: float = _shared("participation")
    averaging: str = _shared("averaging")
    decay: float = _shared("decay")
    train_config: tuple[tuple[str, Any], ...] = values("what your train function finds in its config record")
    separate_config: tuple[tuple[str, Any], ...] = values("what of train-config is different for the separate chains")
    evaluate_config: tuple[tuple[str, Any], ...] = values("what your evaluate function finds in its config record")
    run_config: tuple[tuple[str, Any], ...] = values("what your app finds in context.run_config")
    loss_key: str = word("eval_loss", "the metric of your evaluate function by which the chains are judged")
    vote_weights: str = word(
        "examples", "what a node's loss counts by: its num-examples, or each alike", ("examples", "nodes")
    )
    one_message: bool = yes_or_no(False, "send both chains in one message, and have the vote come with the next round")
    round_timeout: float = _shared("round_timeout")
    round_attempts: int = _shared("round_attempts")
    node_timeout: float = _shared("node_timeout")
    seed: int = _shared("seed")
    output: str = _shared("output")

    def __post_init__(self) -> None:
        for item in fields(self):
            check_range(item, getattr(self, item.name))
        for key, text in ((APP, self.app), ("initial", self.initial)):
            if not is_name(text):
                raise InputError(f"{key} must be given as package.module:name, got {shown(text)}")
        if not self.clock:
            self.schedule()
        elif not names_a_schedule(self.clock):
            ClockSpec.parse(self.clock, self.timezone)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> Self:
        known = {key_of(item) for item in fields(cls)}
        for key in mapping:
            if key not in known and key in RunConfig().to_mapping():
                raise InputError(
                    f"{key} is a key of the project's own app, and has no meaning beside {APP}: leave it out"
                )
        blocks = mapping.get("blocks", "5")
        named = {"blocks": str(blocks)} if isinstance(blocks, int) and not isinstance(blocks, bool) else {}
        return super().from_mapping({**mapping, **named})

    def schedule(self) -> Schedule:
        if names_a_schedule(self.clock):
            return own_schedule(self.clock, self)
        if self.clock:
            return ClockSchedule(self.clock, self.timezone, self.cycles)
        names = [name.strip() for name in self.blocks.split(",")]
        counted = int(names[0]) if len(names) == 1 and names[0].isdecimal() else None
        return RoundSchedule(names if counted is None else counted, self.rounds_per_block, self.cycles)


def with_block_names(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """Return a run's mapping; if it is of a user's own app, a list of names for blocks is one value and no sweep."""
    blocks = mapping.get("blocks")
    if APP not in mapping or not isinstance(blocks, list) or not blocks:
        return dict(mapping)
    if any(not isinstance(one, str) or "," in one for one in blocks):
        return dict(mapping)
    return {**mapping, "blocks": ", ".join(blocks)}


def app_flags() -> list[Any]:
    """Return the keys that RunConfig does not have, as fields."""
    return [item for item in fields(AppConfig) if item.name not in _SHARED]
