"""Perennial: federated learning for data that comes in cycles, on Flower.

Data that comes by day and by night, on weekdays and weekends, has no single best model. MM-PSGD and MC-PSGD keep a
model for each block of the cycle, its *predictor*. Both are Flower strategies around a Flower strategy: the clients of
an app stay as they are, and its server changes one line.

>>> from perennial import MMPSGD, RoundSchedule
>>> strategy = MMPSGD(schedule=RoundSchedule(blocks=["day", "night"], rounds_per_block=10), fraction_train=0.5)

Here are nodes in memory, in the place of a ``grid`` that Flower gives to a ServerApp:

>>> from perennial.example import example_arrays, example_grid
>>> result = strategy.start(grid=example_grid(), initial_arrays=example_arrays(), num_rounds=40)
>>> sorted(result.predictors)
['day', 'night']

``result.predictors["night"]`` is an ArrayRecord, as ``result.arrays`` is, the model that FedAvg would have trained.

Any strategy may be inside, and blocks may follow the clock:

>>> from flwr.serverapp.strategy import FedAdam
>>> from perennial import MCPSGD, ClockSchedule
>>> schedule = ClockSchedule("day: 08:00-20:00, night: 20:00-08:00", timezone="Europe/Berlin")
>>> strategy = MCPSGD(FedAdam(eta=0.01), schedule=schedule)

MCPSGD trains one more chain for each block, and in each round the clients' losses choose between the two. It needs an
``evaluate`` that gives ``eval_loss``, as Flower's quickstarts have. ``check_strategy`` of ``perennial.testing`` shows
whether a strategy of your own can be inside.

Clients find ``cycle``, ``block``, ``block-name`` and ``chain`` in the config record of a message, beside Flower's
``server-round``.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perennial.client.both_chains import both_chains
    from perennial.common.cycle.clock import ClockSchedule
    from perennial.common.cycle.schedule import RoundSchedule
    from perennial.server.strategies.mc_psgd import MCPSGD
    from perennial.server.strategies.mm_psgd import MMPSGD

__all__ = ["MCPSGD", "MMPSGD", "ClockSchedule", "RoundSchedule", "both_chains"]

_ROOT = Path(__file__).resolve().parent.parent
# A wheel has the parts inside this package; a checkout and a Flower bundle have them beside it.
if not (Path(__file__).with_name("server")).is_dir():
    __path__.append(str(_ROOT))

# Imported when they are first asked for: Flower imports this package only to look an app up in it.
_HOMES = {
    "MCPSGD": "perennial.server.strategies.mc_psgd",
    "MMPSGD": "perennial.server.strategies.mm_psgd",
    "ClockSchedule": "perennial.common.cycle.clock",
    "RoundSchedule": "perennial.common.cycle.schedule",
    "both_chains": "perennial.client.both_chains",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
