"""The configuration of a run: one flat set of kebab-case keys, parsed and checked once.

The same keys stand in an experiment file, in ``--set``, in Flower's run-config and, as flags, in ``flower-server``.
"""

from __future__ import annotations

import math
from dataclasses import Field, dataclass, fields, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Self

from perennial.common.command.errors import InputError, shown
from perennial.common.command.typed_keys import AUTO, KeyedConfig, check_range, real, whole, word, yes_or_no
from perennial.common.cycle.clock import ClockSchedule, ClockSpec, FakeClock
from perennial.common.cycle.own_schedule import names_a_schedule, own_schedule
from perennial.common.cycle.schedule import RoundSchedule, Schedule

# The first five read the same chains, each more of them than the one before; the others are neighbours, which train
# for themselves. How each is trained and read is in server/strategies/own/ways.py, which must have them all.
STRATEGIES = ("fedavg", "fedavg-mean", "mm-psgd", "block-separate", "mc-psgd", "fedavgm", "fedadam", "fedrep", "ifca")
# What auto stands for in max-update-norm: no number that somebody may give, and 0 is no bound.
AUTO_NORM = -math.inf
WIRE = ("float32", "float16")
ENGINES = (AUTO, "native", "compiled", "stacked", "loop")


@dataclass(frozen=True, kw_only=True)
class RunConfig(KeyedConfig):
    """Every setting of one run; the paper's symbol is named where there is one."""

    strategy: str = word("mc-psgd", "the algorithm", STRATEGIES, named=True)
    data: str = word(
        "digits",
        "digits, cifar10, cifar100, mnist, fashion-mnist, chicago, flights, an .npz file, a folder of shards, "
        "the .yaml file of a table, or package.module:name",
    )
    blocks: int = whole(5, "data distributions in a cycle, M", least=1)
    clients: int = whole(20, "clients in all, N", least=1)
    labels_per_block: int = whole(4, "labels that a block holds", least=1)
    shuffled: bool = yes_or_no(False, "shuffle the training data before it is cut: the paper's ideal")
    shape: str = word("", "an example's shape, as 3x32x32, for a server that holds no data")
    classes: int = whole(0, "labels in all, for a server that holds no data; auto: from the data", least=2, auto=True)
    block_skew: float = real(
        1.0, "fraction of a label's examples that only its blocks get; the rest is dealt to all blocks", least=0, most=1
    )
    label_shift: int = whole(
        0, "in block m, counted from 0, label y stands as y + m times this, modulo the labels", least=0
    )
    client_skew: float = real(1.0, "fraction of a block that is sorted by label before it is cut", least=0, most=1)
    task: str = word("classification", "what is learnt: classification, binary, regression or package.module:name")
    model: str = word(AUTO, "cnn, mlp, linear or package.module:factory; auto: by the data's shape")
    told: str = word(
        "none",
        "what the model is told beside an example: its block as a one-hot, or its time as sine and cosine of the hour, "
        "or of the time in the week if the days differ",
        ("none", "block", "time"),
    )
    cycles: int = whole(5, "times through all blocks, C", least=1)
    rounds_per_block: int = whole(10, "rounds before the next block, E", least=1)
    clock: str = word(
        "",
        "blocks by time of day instead of by rounds, as in 'day: 08:00-20:00, night: 20:00-08:00'; "
        "or package.module:name, a schedule of your own",
    )
    timezone: str = word("UTC", "time zone of the clock")
    retention_days: float = real(
        0.0, "age at which samples with timestamps are no longer used; 0: never", least=0, most=1e6
    )
    clock_start: str = word(
        "", "simulate the clock from this time on (UTC), as 2026-03-27T12:00, instead of reading it"
    )
    clock_step: float = real(10.0, "minutes that a round takes on the simulated clock", above=0, most=1e6)
    local_iterations: int = whole(10, "SGD steps of a client in a round, I", least=1)
    batch_size: int = whole(2, "examples of a step; 0: the whole shard", least=0)
    lr_mixed: float = real(0.01, "learning rate of the mixed chain, gamma", above=0)
    lr_separate: float = real(0.01, "learning rate of the separate chains, eta", above=0)
    server_lr: float = real(0.0, "server's learning rate; 0: 1 for fedavgm, 0.01 for fedadam", least=0)
    server_momentum: float = real(0.9, "momentum of fedavgm, first moment's decay of fedadam", least=0, most=0.999999)
    server_beta2: float = real(0.99, "second moment's decay of fedadam", least=0, most=0.999999)
    server_tau: float = real(0.001, "what fedadam adds to the root of the second moment", above=0)
    participation: float = real(1.0, "fraction of the clients that take part in a round", above=0, most=1)
    averaging: str = word("exponential", "how models are folded into a predictor", ("mean", "exponential"))
    decay: float = real(0.5, "weight of the old predictor in exponential averaging", least=0, most=1)
    weighting: str = word(
        "clients", "what an update counts by: each client alike, or its examples", ("clients", "examples")
    )
    aggregation: str = word("mean", "how updates become one model", ("mean", "median", "trimmed-mean", "krum"))
    trim: float = real(
        0.25,
        "fraction of the replies that trimmed-mean drops at each end, and that krum takes to be wrong",
        least=0,
        most=0.49,
    )
    max_update_norm: float = real(
        0.0,
        "reject updates that move the model further than this (l2); 0: no bound; "
        "auto: a hundred times as far as the others of the round",
        least=0,
        auto=AUTO_NORM,
    )
    wire_down: str = word("float32", "what models travel to the clients in; float16: half the bytes", WIRE)
    wire_up: str = word(
        "float32", "what models travel back in; float16: half the bytes, as the differences that training made", WIRE
    )
    quarantine_after: int = whole(
        3, "rejections in a row, errors and silence among them, after which a node sits out; 0: never", least=0
    )
    quarantine_rounds: int = whole(10, "rounds that such a node sits out; twice as many the next time", least=1)
    selection_examples: int = whole(0, "examples a client judges the chains on; 0: its whole shard", least=0)
    fine_tune_steps: int = whole(
        0, "SGD steps that a client takes on its shard of a block before it predicts there; in simulation", least=0
    )
    min_replies: float = real(0.5, "fraction of the cohort that must answer, or the round is repeated", above=0, most=1)
    round_timeout: float = real(600.0, "seconds a round waits for replies", above=0)
    fair_time: float = real(
        0.0,
        "how long a deployed round that has min-replies waits for the others: times what devices took before; "
        "0: for round-timeout",
        least=0,
        most=1000,
    )
    oversample: float = real(
        0.0,
        "fraction of clients that a deployed round asks beyond participation; the first to answer count",
        least=0,
        most=1,
    )
    round_attempts: int = whole(10, "times a round without enough replies is tried; 0: without end", least=0)
    node_timeout: float = real(120.0, "seconds to wait for nodes to appear; 0: without end", least=0)
    on_divergence: str = word("warn", "what a loss that explodes does to the run", ("warn", "stop"))
    nodes: int = whole(
        0, "SuperNodes to simulate, or to wait for when deployed; auto: one a CPU, or one", least=1, auto=True
    )
    gpus_per_worker: float = real(
        0.0, "GPUs of a simulation's worker, of which there is one for each CPU; 0.5: two share one", least=0, most=64
    )
    engine: str = word(
        AUTO, "training engine; auto: the fastest that trains the model right, by a short trial", ENGINES, named=True
    )
    seed: int = whole(0, "everything random derives from it", least=0)
    eval_every: int = whole(0, "rounds between evaluations; auto: about four a block", least=1, auto=True)
    checkpoint_every: int = whole(
        0, "rounds between checkpoints; auto: every round, or every few seconds in simulation", least=1, auto=True
    )
    output: str = word("", "folder of the run; default runs/NAME")

    def __post_init__(self) -> None:
        for item in fields(self):
            check_range(item, getattr(self, item.name))
        if self.strategy == "fedrep" and self.told != "none":
            raise InputError(
                f"fedrep keeps a last layer for each block, and takes no model that is told the {self.told}"
            )
        if self.clock and not names_a_schedule(self.clock):
            ClockSpec.parse(self.clock, self.timezone)
        if self.clock_start:
            _instant(self.clock_start)

    def with_data(self, blocks: int, clients: int, model: str) -> Self:
        """Return the configuration with what only the data knows."""
        return replace(self, blocks=blocks, clients=clients, model=model)

    def evaluate_every(self) -> int:
        """Return eval-every, or about four evaluations a block that fall on its last round."""
        if self.eval_every:
            return self.eval_every
        return next(self.rounds_per_block // parts for parts in (4, 3, 2, 1) if self.rounds_per_block % parts == 0)


def flags() -> list[Field[Any]]:
    """Return the keys as fields, for command lines that offer each as a flag."""
    return list(fields(RunConfig))


def schedule_of(config: RunConfig, *, started: str = "", done: int = 0) -> Schedule:
    """Return the schedule: by the clock if one is given, else by rounds.

    started, done: of a run that goes on, when its clock began and how many rounds are behind it.
    """
    if not config.clock:
        return RoundSchedule(config.blocks, config.rounds_per_block, config.cycles)
    begin = datetime.fromisoformat(started) if started else None
    if names_a_schedule(config.clock):
        schedule = own_schedule(config.clock, config)
        return schedule.since(begin) if begin and isinstance(schedule, ClockSchedule) else schedule
    if not config.clock_start:
        return ClockSchedule(config.clock, config.timezone, config.cycles, started=begin)
    first = _instant(config.clock_start)
    fake = FakeClock(first, timedelta(minutes=config.clock_step), done)
    return ClockSchedule(config.clock, config.timezone, config.cycles, started=first, clock=fake)


def _instant(text: str) -> datetime:
    try:
        instant = datetime.fromisoformat(text)
    except ValueError as error:
        raise InputError(f"clock-start must be a time such as 2026-03-27T12:00, got {shown(text)}") from error
    if not 1900 <= instant.year <= 2900:
        raise InputError(f"clock-start must be in the years 1900 to 2900, got {shown(text)}")
    return instant if instant.tzinfo else instant.replace(tzinfo=UTC)
