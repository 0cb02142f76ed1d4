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
    shuffled: bool = yes_or_no(
        False, "shuffle the training data before it is cut, so that blocks are alike: the paper's ideal"
    )
    shape: str = word("", "shape of an example, as 3x32x32, for a server that holds no data")
    classes: int = whole(
        0, "number of labels, for a server that holds no data; auto: from the data", least=2, auto=True
    )
    block_skew: float = real(
        1.0, "fraction of a label's examples that only its blocks get; the rest is dealt to all blocks", least=0, most=1
    )
    label_shift: int = whole(
        0, "in block m, counted from 0, label y becomes y + m times this, modulo the number of labels", least=0
    )
    client_skew: float = real(1.0, "fraction of a block that is sorted by label before it is cut", least=0, most=1)
    task: str = word("classification", "what is learnt: classification, binary, regression or package.module:name")
    model: str = word(AUTO, "cnn, mlp, linear or package.module:factory; auto: by the data's shape")
    told: str = word(
        "none",
        "what the model is told beside an example: its block, as a one-hot; or its time, as sine and cosine of the "
        "hour, or of the time in the week if the days differ",
        ("none", "block", "time"),
    )
    cycles: int = whole(5, "how often all blocks come, C", least=1)
    rounds_per_block: int = whole(10, "rounds in a block before the next block comes, E", least=1)
    clock: str = word(
        "",
        "blocks by time of day instead of by rounds, as in 'day: 08:00-20:00, night: 20:00-08:00'; "
        "or package.module:name, a schedule of your own",
    )
    timezone: str = word("UTC", "time zone of the clock")
    retention_days: float = real(
        0.0, "days after which samples with timestamps are no longer used; 0: they always are", least=0, most=1e6
    )
    clock_start: str = word(
        "", "simulate a clock that starts at this time (UTC), as 2026-03-27T12:00, instead of reading the real one"
    )
    clock_step: float = real(10.0, "minutes that a round takes on the simulated clock", above=0, most=1e6)
    local_iterations: int = whole(10, "SGD steps of a client in a round, I", least=1)
    batch_size: int = whole(2, "examples in one step; 0: the whole shard", least=0)
    lr_mixed: float = real(0.01, "learning rate of the mixed chain, gamma", above=0)
    lr_separate: float = real(0.01, "learning rate of the separate chains, eta", above=0)
    server_lr: float = real(0.0, "server's learning rate; 0: 1 for fedavgm, 0.01 for fedadam", least=0)
    server_momentum: float = real(
        0.9, "momentum of fedavgm; decay of the first moment of fedadam", least=0, most=0.999999
    )
    server_beta2: float = real(0.99, "decay of the second moment of fedadam", least=0, most=0.999999)
    server_tau: float = real(0.001, "what fedadam adds to the root of the second moment", above=0)
    participation: float = real(1.0, "fraction of the clients that take part in a round", above=0, most=1)
    averaging: str = word("exponential", "how models are folded into a predictor", ("mean", "exponential"))
    decay: float = real(0.5, "weight of the old predictor in exponential averaging", least=0, most=1)
    weighting: str = word(
        "clients",
        "how much an update counts: as much as any other, or by its number of examples",
        ("clients", "examples"),
    )
    aggregation: str = word("mean", "how updates become one model", ("mean", "median", "trimmed-mean", "krum"))
    trim: float = real(
        0.25,
        "fraction of the replies that trimmed-mean drops at each end, and that krum expects to be wrong",
        least=0,
        most=0.49,
    )
    max_update_norm: float = real(
        0.0,
        "reject updates that move the model further than this (l2); 0: no bound; "
        "auto: a hundred times as far as the other updates of the round",
        least=0,
        auto=AUTO_NORM,
    )
    wire_down: str = word("float32", "the numbers in which models travel to the clients; float16: half the bytes", WIRE)
    wire_up: str = word(
        "float32",
        "the numbers in which models travel back; float16: half the bytes, as differences to the model sent",
        WIRE,
    )
    quarantine_after: int = whole(
        3, "rejections in a row, with errors and silence, after which a node sits out; 0: never", least=0
    )
    quarantine_rounds: int = whole(10, "how many rounds such a node sits out; twice as many the next time", least=1)
    selection_examples: int = whole(0, "examples on which a client judges the chains; 0: its whole shard", least=0)
    fine_tune_steps: int = whole(
        0, "SGD steps that a client takes on its shard of a block before it predicts there; in simulation", least=0
    )
    min_replies: float = real(
        0.5, "fraction of the cohort that must answer; with fewer answers the round is repeated", above=0, most=1
    )
    round_timeout: float = real(600.0, "seconds that a round waits for replies", above=0)
    fair_time: float = real(
        0.0,
        "once a deployed round has min-replies, it waits for the others this many times as long as devices took "
        "before; 0: until round-timeout",
        least=0,
        most=1000,
    )
    oversample: float = real(
        0.0,
        "fraction of clients that a deployed round asks in addition to participation; those that answer first count",
        least=0,
        most=1,
    )
    round_attempts: int = whole(10, "how often a round without enough replies is tried; 0: without end", least=0)
    node_timeout: float = real(120.0, "seconds to wait for nodes to appear; 0: without end", least=0)
    on_divergence: str = word("warn", "what to do if a training loss explodes", ("warn", "stop"))
    nodes: int = whole(
        0,
        "SuperNodes to simulate, or to wait for in a deployment; auto: one for each CPU in a simulation, else one",
        least=1,
        auto=True,
    )
    gpus_per_worker: float = real(
        0.0,
        "GPUs for each worker of a simulation, which has one worker for each CPU; 0.5: two workers share a GPU",
        least=0,
        most=64,
    )
    engine: str = word(
        AUTO,
        "training engine; auto: the fastest one that trains the model right, found by a short trial",
        ENGINES,
        named=True,
    )
    seed: int = whole(0, "everything that is random derives from it", least=0)
    eval_every: int = whole(
        0, "rounds between evaluations; auto: about four evaluations in each stay in a block", least=1, auto=True
    )
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
