"""check_strategy over Flower's own strategies, and what it finds in those that cannot be wrapped."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod
from flwr.serverapp import Grid
from flwr.serverapp.strategy import (
    Bulyan,
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    DifferentialPrivacyServerSideAdaptiveClipping,
    DifferentialPrivacyServerSideFixedClipping,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    MultiKrum,
    QFedAvg,
    Strategy,
)

from perennial.common.cycle.schedule import RoundSchedule
from perennial.server.link.memory_grid import MemoryGrid
from perennial.server.strategies.mc_psgd import MCPSGD
from perennial.testing import check_strategy

HALF = {"fraction_train": 0.5}
Make = Callable[[], Strategy]

STRATEGIES: dict[str, Make] = {
    "FedAvg": lambda: FedAvg(**HALF),
    "FedAvg, evaluated by half": lambda: FedAvg(fraction_train=0.5, fraction_evaluate=0.5),
    "FedAvg, not evaluated": lambda: FedAvg(fraction_train=0.5, fraction_evaluate=0.0),
    "FedProx": lambda: FedProx(**HALF, proximal_mu=0.1),
    "FedAdam": lambda: FedAdam(**HALF, eta=0.05),
    "FedYogi": lambda: FedYogi(**HALF, eta=0.05),
    "FedAdagrad": lambda: FedAdagrad(**HALF, eta=0.05),
    "FedAvgM": lambda: FedAvgM(**HALF, server_learning_rate=0.9, server_momentum=0.5),
    "FedMedian": lambda: FedMedian(**HALF),
    "FedTrimmedAvg": lambda: FedTrimmedAvg(**HALF),
    "Krum": lambda: Krum(**HALF, num_malicious_nodes=1),
    "MultiKrum": lambda: MultiKrum(**HALF, num_malicious_nodes=1, num_nodes_to_select=3),
    "Bulyan": lambda: Bulyan(**HALF, num_malicious_nodes=0),
    "QFedAvg": lambda: QFedAvg(client_learning_rate=0.1, **HALF),
    "server-side fixed clipping": lambda: DifferentialPrivacyServerSideFixedClipping(FedAvg(**HALF), 0.0, 0.2, 5),
    "server-side adaptive clipping": lambda: DifferentialPrivacyServerSideAdaptiveClipping(
        FedAdam(**HALF), 0.0, 5, clipped_count_stddev=0.0
    ),
}
WITH_MODS: dict[str, tuple[Make, Any]] = {
    "client-side fixed clipping": (
        lambda: DifferentialPrivacyClientSideFixedClipping(FedAvg(**HALF), 0.0, 0.2, 5),
        fixedclipping_mod,
    ),
    "client-side adaptive clipping": (
        lambda: DifferentialPrivacyClientSideAdaptiveClipping(FedAvg(**HALF), 0.0, 5, clipped_count_stddev=0.0),
        adaptiveclipping_mod,
    ),
}


@pytest.fixture(autouse=True)
def _small_heap() -> Iterator[None]:
    """QFedAvg and Bulyan collect garbage for every reply, which takes as long as other tests' modules are many."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.parametrize("name", STRATEGIES)
def test_flower_s_strategies_can_be_wrapped(name: str) -> None:
    check_strategy(STRATEGIES[name])


@pytest.mark.parametrize("name", WITH_MODS)
def test_privacy_wrappers_that_clip_on_the_client_can_be_wrapped(name: str) -> None:
    make, mod = WITH_MODS[name]
    check_strategy(make, mods=[mod])


class Decaying(FedAvg):
    """As in Flower's own examples: the learning rate shrinks in the config record that the loop hands round."""

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        if server_round % 2 == 0:
            config["lr"] = float(str(config["lr"])) * 0.5
        return super().configure_train(server_round, arrays, config, grid)


class Locked(FedAvg):
    """Cannot be copied; keeps no state."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.lock = threading.Lock()

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state == {}


@pytest.mark.parametrize("kind", [Decaying, Locked])
def test_strategies_of_a_user_s_own_can_be_wrapped(kind: type[FedAvg]) -> None:
    check_strategy(lambda: kind(**HALF))


class Shared(FedAvg):
    """Keeps its state where a copy has it too."""

    moments: list[int] = []  # noqa: RUF012 - the fault that must be found

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        arrays, metrics = super().aggregate_train(server_round, replies)
        self.moments.append(server_round)
        assert arrays is not None
        bias = Array(np.asarray(arrays["bias"].numpy() + np.float32(len(self.moments))))
        return ArrayRecord({**arrays, "bias": bias}), metrics


class Restless(FedAvg):
    """Each one that is made draws other nodes."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        Restless.count = getattr(Restless, "count", 0) + 1

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        random.seed(f"{Restless.count} {server_round}")
        return super().configure_train(server_round, arrays, config, grid)


@pytest.mark.parametrize(
    ("kind", "message"), [(Shared, "chain differs in 'bias'"), (Restless, "draws other nodes than alone")]
)
def test_strategies_that_cannot_be_wrapped_are_found(kind: type[FedAvg], message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_strategy(lambda: kind(**HALF))


def barely_trains(message: Message, context: Context) -> Message:
    metrics = MetricRecord({"num-examples": 1, "eval_loss": 1.0})
    if message.metadata.message_type == "evaluate":
        return Message(RecordDict({"metrics": metrics}), reply_to=message)
    moved = message.content.array_records["arrays"]["w"].numpy() + 1e-12
    return Message(RecordDict({"arrays": ArrayRecord({"w": Array(moved)}), "metrics": metrics}), reply_to=message)


def test_noise_of_the_two_chains_is_uncorrelated() -> None:
    """Clients hardly move the model: what a round adds to a chain is its noise."""
    initial = ArrayRecord({"w": Array(np.zeros(500))})
    noises: dict[str, list[Any]] = {"mixed": [], "separate": []}
    heads = {"mixed": initial, "separate": initial}

    def note(_: object) -> None:
        for chain, arrays in (("mixed", strategy.mixed.arrays), ("separate", strategy.separate[0].arrays)):
            noises[chain].append(arrays["w"].numpy() - heads[chain]["w"].numpy())
            heads[chain] = arrays

    private = DifferentialPrivacyServerSideFixedClipping(FedAvg(fraction_evaluate=0.0), 1.0, 1e-6, 3)
    strategy = MCPSGD(private, schedule=RoundSchedule(1, 8))
    strategy.start(MemoryGrid(barely_trains, 3), initial, 8, on_round=note)
    everything = [*noises["mixed"], *noises["separate"]]
    for noise in everything:
        # A standard deviation over 500 numbers is within a tenth of the true one, but for once in a thousand.
        assert np.std(noise) == pytest.approx(1e-6 / 3, rel=0.15)
    # For 500 independent pairs a correlation has a standard deviation of 0.045: of any two rounds, of any chains.
    bound = np.abs(np.corrcoef(everything) - np.eye(16)).max()
    assert bound < 0.25
