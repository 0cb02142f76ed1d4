"""A table with a time column as a source: its clients are values of a column, and the clock cuts its blocks."""

from __future__ import annotations

from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from perennial.common.command import unique_yaml
from perennial.common.command.config import RunConfig
from perennial.common.command.errors import InputError, shown
from perennial.common.cycle.clock import ClockSpec
from perennial.common.cycle.own_schedule import names_a_schedule
from perennial.common.data import table_columns
from perennial.common.data.row_shards import RowShards
from perennial.common.data.timestamps import blocks_at, phases_at


@dataclass(frozen=True, kw_only=True)
class Table:
    """A CSV or Parquet file, one example a row.

    time, client, target: names of columns; target: one, several for a vector, or none. inputs: the columns of x, which
    are numbers; none given: all others. clock, timezone: what cuts the blocks; '': the run's. test_from: rows from this
    time on are the test set, and no other are; '': there is none. may_be_empty: a client may have no rows of a block.

    Times without an offset are those of the wall clock in ``timezone``. Whole numbers as target are labels.
    """

    path: Path
    time: str
    client: str
    target: str | tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    clock: str = ""
    timezone: str = ""
    test_from: str = ""
    may_be_empty: bool = False

    @classmethod
    def from_file(cls, path: Path) -> Table:
        """Return the table that a YAML file describes by these fields; its path is relative to the file's folder."""
        try:
            content = unique_yaml.load(path.read_text())
        except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError) as error:
            raise InputError(f"{path} cannot be read: {' '.join(str(error).split())[:300]}") from error
        known = {item.name.replace("_", "-"): item for item in fields(cls)}
        if not isinstance(content, dict):
            raise InputError(f"{path} must describe a table by {', '.join(known)}, got {shown(content)}")
        values: dict[str, Any] = {}
        for key, value in content.items():
            if key not in known:
                near = get_close_matches(str(key), known, 1)
                raise InputError(f"{path}: unknown key {shown(key)}; the keys are {', '.join(near or known)}")
            values[known[key].name] = _typed(value, key, path)
        for key in ("path", "time", "client"):
            if key not in values:
                raise InputError(f"{path}: {key} is missing; a table needs path, time and client")
        return cls(**{**values, "path": path.parent / str(values["path"])})

    def open(self, config: RunConfig) -> RowShards:
        """Return the table cut into shards."""
        spec = self._clock(config)
        targets = (self.target,) if isinstance(self.target, str) else self.target
        special = (self.time, self.client, *targets)
        found = table_columns.read(self.path, (*special, *self.inputs), others=not self.inputs)
        inputs = self.inputs or tuple(name for name in found if name not in special)
        if not inputs:
            raise InputError(f"{self.path}: no column is left for x; the columns are {', '.join(found)}")
        seconds = table_columns.times(found[self.time], self.time, self.path, spec.zone)
        client, names = table_columns.codes(found[self.client], self.client, self.path)
        return RowShards.of(
            (self._numbers(found, inputs).astype(np.float32),),
            self._targets(found, targets),
            client=client,
            block=blocks_at(spec, seconds),
            test=self._test(seconds, spec.zone),
            phase=phases_at(spec, seconds),
            client_names=names,
            block_names=spec.names,
            may_be_empty=self.may_be_empty,
            shuffled=config.shuffled,
            seed=config.seed,
            where=str(self.path),
        )

    def _clock(self, config: RunConfig) -> ClockSpec:
        if self.clock and config.clock and self.clock != config.clock:
            raise InputError(
                f"{self.path}: its clock is {self.clock!r}, the run's is {config.clock!r}; give one of them"
            )
        if not (self.clock or config.clock):
            raise InputError(f"{self.path} needs a clock to cut its blocks, as 'weekday: Mon-Fri, weekend: Sat,Sun'")
        if names_a_schedule(self.clock or config.clock):
            raise InputError(f"{self.path}: rows are cut by the windows of a clock, and {config.clock} names none")
        return ClockSpec.parse(self.clock or config.clock, self.timezone or config.timezone)

    def _test(self, seconds: NDArray[np.int64], zone: str) -> NDArray[np.bool_]:
        if not self.test_from:
            return np.zeros(len(seconds), np.bool_)
        first = table_columns.times(np.array([self.test_from], object), "test-from", self.path, zone)[0]
        test: NDArray[np.bool_] = seconds >= first
        if not test.any() or test.all():
            purpose = "train on" if test.all() else "test on"
            raise InputError(f"{self.path}: test-from {self.test_from!r} leaves no rows to {purpose}")
        return test

    def _targets(self, found: dict[str, table_columns.Column], targets: tuple[str, ...]) -> NDArray[Any] | None:
        if not targets:
            return None
        values = self._numbers(found, targets)
        values = values.astype(np.float32) if values.dtype.kind == "f" else values
        return values[:, 0] if isinstance(self.target, str) else values

    def _numbers(self, found: dict[str, table_columns.Column], names: tuple[str, ...]) -> NDArray[Any]:
        return np.stack([table_columns.numbers(found[name], name, self.path) for name in names], axis=1)


def _typed(value: object, key: str, path: Path) -> object:
    """Return a value of a description: text, a list of texts as a tuple, or true and false."""
    if key in ("target", "inputs") and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if isinstance(value, bool) if key == "may-be-empty" else isinstance(value, str):
        return value
    if key == "test-from" and hasattr(value, "isoformat"):
        return str(value.isoformat())
    raise InputError(
        f"{path}: {key} must be {'true or false' if key == 'may-be-empty' else 'text'}, got {shown(value)}"
    )
