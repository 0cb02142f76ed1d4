"""Whether a strategy can be wrapped by MM-PSGD and MC-PSGD, tried on ten clients in memory.

>>> from flwr.serverapp.strategy import FedAdam
>>> from perennial.testing import check_strategy
>>> check_strategy(lambda: FedAdam(fraction_train=0.5, eta=0.05))
"""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp.strategy import Strategy

from perennial.common.command.errors import InputError
from perennial.common.cycle.schedule import RoundSchedule
from perennial.common.wire.chains import MIXED, PREDICTOR, SEPARATE
from perennial.example import example_app, example_arrays
from perennial.server.link.memory_grid import MemoryGrid
from perennial.server.run import tree
from perennial.server.strategies.base import BlockStrategy
from perennial.server.strategies.mc_psgd import MCPSGD
from perennial.server.strategies.mm_psgd import MMPSGD
from perennial.server.strategies.record import FoldedRound

__all__ = ["check_strategy"]

_SCHEDULE = RoundSchedule(["day", "night"], rounds_per_block=3)
_ROUNDS, _BROKEN = 12, 5  # round 5 is in the middle of a block
_CONFIG, _SEPARATE_CONFIG = {"lr": 0.1}, {"lr": 0.03}
Models = dict[int, ArrayRecord]


def check_strategy(make: Callable[[], Strategy], *, mods: Sequence[Any] = ()) -> None:
    """Raise an AssertionError that says how the strategy that ``make`` makes cannot be wrapped; else do nothing.

    It is run alone, inside MMPSGD and inside MCPSGD, from one ``random.seed``, on two blocks. To the bit, the mixed
    chain must be what the strategy trains alone, on the same nodes; a separate chain what a new one trains in its
    block's rounds; predictors what NumPy makes of these; and a run that is broken off and goes on must end as if it
    had not been. No two messages may share a record.

    A strategy that adds noise is never the same twice: make it without. One that cannot be copied is checked with
    ``separate=make``. mods: what the strategy needs on its clients.
    """
    with _quietly():
        alone, nodes = _alone(make, mods)
        for wrapped in (_Watched(_mm(make), mods), _Watched(_mc(make), mods)):
            wrapped.run()
            _check_mixed(wrapped, alone, nodes)
            _check_messages(wrapped)
            if isinstance(wrapped.strategy, MCPSGD):
                _check_separate(wrapped, make, mods)
            _check_predictors(wrapped)
            _check_resume(wrapped, make, mods)


# --- Runs -------------------------------------------------------------------------------------------------------------


class _Watched:
    """A run of a wrapped strategy, with its chains after every round. It keeps its own state, as a run folder would."""

    def __init__(self, strategy: BlockStrategy, mods: Sequence[Any]) -> None:
        self.strategy, self.grid = strategy, MemoryGrid(example_app(_block_of, mods))
        self.mixed: Models = {}
        self.separate: Models = {}
        self.rounds: dict[int, FoldedRound] = {}
        self.state: tree.Written | None = None
        self.config = ConfigRecord(dict(_CONFIG))

    def run(self, *, stop: int | None = None) -> None:
        if self.state is None:
            _seed()
        self.strategy.start(
            self.grid,
            example_arrays(),
            _ROUNDS,
            train_config=self.config,
            run_dir=self,
            on_round=self._note,
            stop=lambda: stop in self.rounds,
        )

    def _note(self, record: FoldedRound) -> None:
        server_round = record.slot.server_round
        self.rounds[server_round] = record
        self.mixed[server_round] = self.strategy.mixed.arrays.copy()
        if isinstance(self.strategy, MCPSGD):
            self.separate[server_round] = self.strategy.separate[record.slot.block].arrays.copy()

    def begin(self, strategy: BlockStrategy, initial_arrays: ArrayRecord) -> Any:
        return None if self.state is None else tree.read(*self.state)

    def keep(self, state: Any, rounds: Sequence[FoldedRound]) -> None:
        self.state = tree.write(state)

    def all_messages(self) -> list[Message]:
        return [message for sent in self.grid.sent for message in sent]

    def messages(self, chain: str, server_round: int) -> list[Message]:
        return [one for one in self.all_messages() if _key(one, "chain") == chain
                and _key(one, "server-round") == server_round and one.metadata.message_type == "train"]  # fmt: skip


def _alone(make: Callable[[], Strategy], mods: Sequence[Any]) -> tuple[Models, list[list[int]]]:
    """Return the strategy's own chain, and the nodes of its exchanges."""
    models: Models = {}
    grid = MemoryGrid(example_app(_block_of, mods))
    _seed()
    make().start(
        grid,
        example_arrays(),
        _ROUNDS,
        train_config=ConfigRecord(dict(_CONFIG)),
        evaluate_fn=lambda server_round, arrays: models.update({server_round: arrays.copy()}),
    )
    return models, [_nodes(messages) for messages in grid.sent if messages]


def _mm(make: Callable[[], Strategy]) -> MMPSGD:
    return MMPSGD(make(), schedule=_SCHEDULE, averaging="mean")


def _mc(make: Callable[[], Strategy]) -> MCPSGD:
    config = ConfigRecord(dict(_SEPARATE_CONFIG))
    try:
        return MCPSGD(make(), schedule=_SCHEDULE, separate_config=config)
    except InputError:
        return MCPSGD(make(), schedule=_SCHEDULE, separate_config=config, separate=make)


# --- What must hold ---------------------------------------------------------------------------------------------------


def _check_mixed(run: _Watched, alone: Models, nodes: list[list[int]]) -> None:
    name = type(run.strategy).__name__
    own = [[one for one in sent if _key(one, "chain") in (MIXED, PREDICTOR)] for sent in run.grid.sent]
    # The vote's messages are not the strategy's.
    asked = [_nodes(sent) for sent in own if sent and not _is_vote(sent)]
    assert asked == nodes, f"inside {name} the strategy draws other nodes than alone"
    for server_round in range(1, _ROUNDS + 1):
        _assert_same(run.mixed[server_round], alone[server_round], f"{name}: the mixed chain", server_round)


def _check_messages(run: _Watched) -> None:
    messages = run.all_messages()
    records = [record for message in messages for record in (message.content, *message.content.values())]
    assert len({id(one) for one in records}) == len(records), "two messages share a record"
    for message in messages:
        slot = _SCHEDULE.slot(int(_key(message, "server-round")))
        found = tuple(_key(message, key) for key in ("cycle", "block", "block-name"))
        assert found == (slot.cycle, slot.block, _SCHEDULE.names[slot.block]), f"a message has another slot: {found}"
    assert dict(run.config) == _CONFIG, "the user's train_config was changed"


def _check_separate(run: _Watched, make: Callable[[], Strategy], mods: Sequence[Any]) -> None:
    grid = MemoryGrid(example_app(_block_of, mods))
    for block in range(2):
        strategy, arrays, config = make(), example_arrays(), ConfigRecord({**_CONFIG, **_SEPARATE_CONFIG})
        rounds = [number for number in run.rounds if _SCHEDULE.slot(number).block == block]
        for count, server_round in enumerate(rounds, 1):
            content = next(iter(strategy.configure_train(count, arrays, config, grid))).content
            asked = run.messages(SEPARATE, server_round)
            sent = []
            for message in asked:
                records = copy.deepcopy(content)
                records["config"] = ConfigRecord({**config, "server-round": server_round})
                found = message.content.config_records["config"]
                assert {**found, **config, "server-round": server_round} == dict(found), (
                    f"the separate chain's clients get {found} and not {config}"
                )
                sent.append(Message(records, message.metadata.dst_node_id, "train"))
            trained, _ = strategy.aggregate_train(count, grid.send_and_receive(sent))
            assert trained is not None
            arrays = trained
            assert _nodes(sent) == _nodes(run.messages(MIXED, server_round)), "the chains have other nodes"
            _assert_same(run.separate[server_round], arrays, "the separate chain", server_round)


def _check_predictors(run: _Watched) -> None:
    expected: dict[str, dict[str, Any]] = {}
    folded = dict.fromkeys(_SCHEDULE.names, 0)
    for server_round, record in run.rounds.items():
        model = (run.separate if record.chosen == SEPARATE else run.mixed)[server_round]
        block, mean = record.block_name, isinstance(run.strategy, MMPSGD)
        keep = folded[block] / (folded[block] + 1) if mean else 0.5 * bool(folded[block])
        old = expected.get(block, {name: np.zeros(()) for name in model})
        expected[block] = {
            name: (keep * old[name].astype(np.float64) + (1 - keep) * array.numpy().astype(np.float64)).astype("f4")
            for name, array in model.items()
        }
        folded[block] += 1
        for name, array in record.predictors[block].items():
            same = array.numpy().dtype == np.float32 and array.numpy().tobytes() == expected[block][name].tobytes()
            assert same, f"the predictor of {block} is not the fold of its rounds after round {server_round}"


def _check_resume(whole: _Watched, make: Callable[[], Strategy], mods: Sequence[Any]) -> None:
    kind = _mm if isinstance(whole.strategy, MMPSGD) else _mc
    first = _Watched(kind(make), mods)
    first.run(stop=_BROKEN)
    second = _Watched(kind(make), mods)
    second.state = first.state
    random.seed(99)
    second.run()
    for server_round in range(_BROKEN + 1, _ROUNDS + 1):
        for models, mine in ((whole.mixed, second.mixed), (whole.separate, second.separate)):
            if models:
                _assert_same(mine[server_round], models[server_round], "a run that goes on: its chain", server_round)
        for block, predictor in whole.rounds[server_round].predictors.items():
            found = second.rounds[server_round].predictors[block]
            _assert_same(found, predictor, f"a run that goes on: the predictor of {block}", server_round)


# --- Small things -----------------------------------------------------------------------------------------------------


def _assert_same(found: ArrayRecord, expected: ArrayRecord, what: str, server_round: int) -> None:
    assert list(found) == list(expected), f"{what} has other arrays after round {server_round}"
    for name, array in expected.items():
        mine, other = found[name].numpy(), array.numpy()
        same = mine.dtype == other.dtype and mine.tobytes() == other.tobytes()
        assert same, f"{what} differs in {name!r} after round {server_round}: {mine} and not {other}"


@contextmanager
def _quietly() -> Iterator[None]:
    """Hide what Flower logs of every round."""
    logger = logging.getLogger("flwr")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _seed() -> None:
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002 - the generator that Flower's strategies draw from


def _block_of(config: ConfigRecord) -> int:
    """Return the block of a round; a strategy that is alone sends no block."""
    return _SCHEDULE.slot(int(str(config["server-round"]))).block


def _key(message: Message, key: str) -> Any:
    return message.content.config_records["config"].get(key)


def _nodes(messages: Sequence[Message]) -> list[int]:
    return [message.metadata.dst_node_id for message in messages]


def _is_vote(messages: Sequence[Message]) -> bool:
    return messages[0].metadata.message_type == "evaluate" and _key(messages[0], "chain") == MIXED
