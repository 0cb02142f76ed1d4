"""The configuration of a run: one flat set of kebab-case keys, parsed and checked once.

The same keys stand in an experiment file, in ``--set``, in Flower's run-config and, as flags, in ``flower-server``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Any, Self

from perennial.common.command.errors import InputError, shown
from perennial.common.cycle.clock import ClockSchedule, ClockSpec, FakeClock
from perennial.common.cycle.schedule import RoundSchedule, Schedule

AUTO = "auto"
# Other answers to the same problem, each with a training of its own; the first four all read the same chains.
NEIGHBOURS = ("fedavgm", "fedadam", "fedrep", "ifca")
STRATEGIES = ("fedavg", "mm-psgd", "block-separate", "mc-psgd", *NEIGHBOURS)
# YAML takes these for words, unless they have both a dot and a sign: 1e-3, 2.5e3.
_POWER_OF_TEN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)[eE][+-]?\d{1,4}")
ENGINES = (AUTO, "native", "stacked", "loop")


def _whole(default: int, doc: str, *, least: int, auto: bool = False) -> Any:
    """A whole number of at least ``least``; where ``auto``, 0 (written auto) leaves it to the software."""
    return field(default=default, metadata={"doc": doc, "least": least, "auto": auto})


def _real(
    default: float, doc: str, *, above: float = -math.inf, least: float = -math.inf, most: float = math.inf
) -> Any:
    return field(default=default, metadata={"doc": doc, "above": above, "least": least, "most": most})


def _word(default: str, doc: str, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"doc": doc, "choices": choices})


def _flag(default: bool, doc: str) -> Any:
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Every setting of one run; the paper's symbol is named where there is one."""

    strategy: str = _word("mc-psgd", "the algorithm", STRATEGIES)
    data: str = _word(
        "digits",
        "digits, cifar10, cifar100, mnist, fashion-mnist, an .npz file, a folder of shards, the .yaml file of a table, "
        "or package.module:name",
    )
    blocks: int = _whole(5, "data distributions in a cycle, M", least=1)
    clients: int = _whole(20, "clients in all, N", least=1)
    labels_per_block: int = _whole(4, "labels that a block holds", least=1)
    shuffled: bool = _flag(False, "shuffle the training data before it is cut: the paper's ideal")
    shape: str = _word("", "an example's shape, as 3x32x32, for a server that holds no data")
    classes: int = _whole(0, "labels in all, for a server that holds no data; auto: from the data", least=2, auto=True)
    block_skew: float = _real(
        1.0, "fraction of a label's examples that only its blocks get; the rest is dealt to all blocks", least=0, most=1
    )
    label_shift: int = _whole(
        0, "in block m, counted from 0, label y stands as y + m times this, modulo the labels", least=0
    )
    client_skew: float = _real(1.0, "fraction of a block that is sorted by label before it is cut", least=0, most=1)
    task: str = _word("classification", "what is learnt: classification, binary, regression or package.module:name")
    model: str = _word(AUTO, "cnn, mlp, linear or package.module:factory; auto: by the data's shape")
    cycles: int = _whole(5, "passes over all blocks, C", least=1)
    rounds_per_block: int = _whole(10, "rounds before the next block, E", least=1)
    clock: str = _word("", "blocks by time of day instead of by rounds, as in 'day: 08:00-20:00, night: 20:00-08:00'")
    timezone: str = _word("UTC", "time zone of the clock")
    retention_days: float = _real(
        0.0, "age at which samples with timestamps are no longer used; 0: never", least=0, most=1e6
    )
    clock_start: str = _word(
        "", "simulate the clock from this time on (UTC), as 2026-03-27T12:00, instead of reading it"
    )
    clock_step: float = _real(10.0, "minutes that a round takes on the simulated clock", above=0, most=1e6)
    local_iterations: int = _whole(10, "SGD steps of a client in a round, I", least=1)
    batch_size: int = _whole(2, "examples of a step; 0: the whole shard", least=0)
    lr_mixed: float = _real(0.01, "learning rate of the mixed chain, gamma", above=0)
    lr_separate: float = _real(0.01, "learning rate of the separate chains, eta", above=0)
    server_lr: float = _real(0.0, "server's learning rate; 0: 1 for fedavgm, 0.01 for fedadam", least=0)
    server_momentum: float = _real(0.9, "momentum of fedavgm, first moment's decay of fedadam", least=0, most=0.999999)
    server_beta2: float = _real(0.99, "second moment's decay of fedadam", least=0, most=0.999999)
    server_tau: float = _real(0.001, "what fedadam adds to the root of the second moment", above=0)
    participation: float = _real(1.0, "fraction of the clients that take part in a round", above=0, most=1)
    averaging: str = _word("exponential", "how models are folded into a predictor", ("mean", "exponential"))
    decay: float = _real(0.5, "weight of the old predictor in exponential averaging", least=0, most=1)
    weighting: str = _word(
        "clients", "what an update counts by: each client alike, or its examples", ("clients", "examples")
    )
    aggregation: str = _word("mean", "how updates become one model", ("mean", "median", "trimmed-mean"))
    trim: float = _real(0.25, "fraction of the replies that trimmed-mean drops at each end", least=0, most=0.49)
    max_update_norm: float = _real(
        0.0, "reject updates that move the model further than this (l2); 0: no bound", least=0
    )
    quarantine_after: int = _whole(3, "rejected updates in a row after which a node sits out; 0: never", least=0)
    quarantine_rounds: int = _whole(10, "rounds that such a node sits out", least=1)
    selection_examples: int = _whole(0, "examples a client judges the chains on; 0: its whole shard", least=0)
    min_replies: float = _real(
        0.5, "fraction of the cohort that must answer, or the round is repeated", above=0, most=1
    )
    round_timeout: float = _real(600.0, "seconds a round waits for replies", above=0)
    round_attempts: int = _whole(10, "times a round without enough replies is tried; 0: without end", least=0)
    node_timeout: float = _real(120.0, "seconds to wait for nodes to appear; 0: without end", least=0)
    nodes: int = _whole(
        0, "SuperNodes to simulate, or to wait for when deployed; auto: one a CPU, or one", least=1, auto=True
    )
    engine: str = _word(AUTO, "training engine; auto: the fastest that takes the model", ENGINES)
    seed: int = _whole(0, "everything random derives from it", least=0)
    eval_every: int = _whole(0, "rounds between evaluations; auto: about four a block", least=1, auto=True)
    checkpoint_every: int = _whole(
        0, "rounds between checkpoints; auto: every round, or every few seconds in simulation", least=1, auto=True
    )
    output: str = _word("", "folder of the run; default runs/NAME")

    def __post_init__(self) -> None:
        for item in fields(self):
            _check_range(item, getattr(self, item.name))
        if self.clock:
            ClockSpec.parse(self.clock, self.timezone)
        if self.clock_start:
            _instant(self.clock_start)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, object]) -> Self:
        """Return the configuration that a flat mapping of kebab-case keys stands for."""
        known = {key_of(item): item for item in fields(cls)}
        values = {}
        for key, value in mapping.items():
            if key not in known:
                text = key[:80] if isinstance(key, str) else shown(key)
                raise InputError(f"unknown key {text!r}{_nearest(text, known)}")
            values[known[key].name] = _typed(known[key], value)
        return cls(**values)

    def to_mapping(self) -> dict[str, Any]:
        """Return the flat mapping; auto values are written as the word."""
        return {
            key_of(item): AUTO
            if item.metadata.get("auto") and not getattr(self, item.name)
            else getattr(self, item.name)
            for item in fields(self)
        }

    def with_data(self, blocks: int, clients: int, model: str) -> Self:
        """Return the configuration with what only the data knows."""
        return replace(self, blocks=blocks, clients=clients, model=model)

    def evaluate_every(self) -> int:
        """Return eval-every, or about four evaluations a block that fall on its last round."""
        if self.eval_every:
            return self.eval_every
        return next(self.rounds_per_block // parts for parts in (4, 3, 2, 1) if self.rounds_per_block % parts == 0)


def key_of(item: Field[Any]) -> str:
    return item.name.replace("_", "-")


def flags() -> list[Field[Any]]:
    """Return the keys as fields, for command lines that offer each as a flag."""
    return list(fields(RunConfig))


def _typed(item: Field[Any], value: object) -> Any:
    """Return ``value`` in the type of the key's default, or refuse it."""
    assert item.default is not MISSING
    key, default = key_of(item), item.default
    if item.metadata.get("auto") and value == AUTO:
        return 0
    if isinstance(default, bool):
        if isinstance(value, bool):
            return value
        raise InputError(f"{key} must be true or false, got {shown(value)}")
    if isinstance(default, int):
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        raise InputError(f"{key} must be a whole number{_bounds(item)}, got {shown(value)}")
    if isinstance(default, float):
        if isinstance(value, str) and _POWER_OF_TEN.fullmatch(value):
            value = float(value)
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e308:
            return float(value)
        raise InputError(f"{key} must be a number{_bounds(item)}, got {shown(value)}")
    if isinstance(value, str):
        return value
    raise InputError(f"{key} must be{_bounds(item) or ' text'}, got {shown(value)}")


def _check_range(item: Field[Any], value: Any) -> None:
    limits = item.metadata
    if limits.get("auto") and value == 0:
        return
    if isinstance(value, str):
        fits = not limits["choices"] or value in limits["choices"]
    elif isinstance(value, bool):
        fits = True
    else:
        fits = (
            value >= limits["least"]
            and value > limits.get("above", -math.inf)
            and value <= limits.get("most", math.inf)
        ) and value < 2**63
    if not fits:
        raise InputError(f"{key_of(item)} must be{_bounds(item) or ' a number below 2**63'}, got {shown(value)}")


def _bounds(item: Field[Any]) -> str:
    limits = item.metadata
    if limits.get("choices"):
        return f" one of {', '.join(limits['choices'])}"
    parts = []
    if limits.get("above", -math.inf) > -math.inf:
        parts.append(f"more than {limits['above']:g}")
    if limits.get("least", -math.inf) > -math.inf:
        parts.append(f"at least {limits['least']:g}")
    if limits.get("most", math.inf) < math.inf:
        parts.append(f"at most {limits['most']:g}")
    return (" " + " and ".join(parts) if parts else "") + (" or auto" if limits.get("auto") else "")


def _nearest(key: str, known: Mapping[str, object]) -> str:
    matches = get_close_matches(key, known, 1)
    return f"; did you mean {matches[0]}?" if matches else f"; the keys are {', '.join(known)}"


def schedule_of(config: RunConfig, *, started: str = "", done: int = 0) -> Schedule:
    """Return the schedule: by the clock where one is given, else by rounds.

    started, done: of a run that goes on, when its clock began and how many rounds are behind it.
    """
    if not config.clock:
        return RoundSchedule(config.blocks, config.cycles, config.rounds_per_block)
    spec = ClockSpec.parse(config.clock, config.timezone)
    begin = datetime.fromisoformat(started) if started else None
    if not config.clock_start:
        return ClockSchedule(spec, config.cycles, started=begin)
    first = _instant(config.clock_start)
    fake = FakeClock(first, timedelta(minutes=config.clock_step), done)
    return ClockSchedule(spec, config.cycles, started=first, clock=fake)


def _instant(text: str) -> datetime:
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        raise InputError(f"clock-start must be a time such as 2026-03-27T12:00, got {shown(text)}") from error
    if not 1900 <= instant.year <= 2900:
        raise InputError(f"clock-start must be in the years 1900 to 2900, got {shown(text)}")
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)
