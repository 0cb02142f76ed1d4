"""Experiment files: flat keys, lists that sweep, and an optional list of ``runs`` that each override the rest.

A run may have a ``name``; the others are named by what differs between them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, product
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import yaml

from perennial.common.command import unique_yaml
from perennial.common.command.app_config import APP, AppConfig, with_block_names
from perennial.common.command.config import STRATEGIES, RunConfig
from perennial.common.command.errors import InputError, shown
from perennial.common.command.typed_keys import KeyedConfig
from perennial.server.strategies.own.ways import trains

# Runs that differ in these alone train the same chains, and are trained together; neighbours train on their own.
_READ_ONLY_KEYS = ("strategy", "averaging", "decay")
_MOST_RUNS = 1000
Config = TypeVar("Config", bound=KeyedConfig)


@dataclass(frozen=True)
class NamedRun:
    """A configuration, and the name that tells it from the other runs of its experiment ('' where it is alone)."""

    name: str
    config: RunConfig


@dataclass(frozen=True)
class Experiment:
    """The runs of one file, by pass: those of one pass share their training."""

    title: str
    output: Path
    passes: tuple[tuple[NamedRun, ...], ...]


@dataclass(frozen=True)
class DescribedRuns:
    """What a file says of its runs: for each entry of ``runs`` its name and the mappings that its lists make."""

    path: Path
    title: str
    output: Path
    entries: tuple[tuple[str, tuple[dict[str, Any], ...]], ...]

    @property
    def of_an_app(self) -> bool:
        """Whether its runs are of a user's own app."""
        return any(APP in mapping for _, mappings in self.entries for mapping in mappings)


def load(path: Path, overrides: Sequence[str] = ()) -> Experiment:
    """Return the experiment of a file; ``overrides`` are key=value, and win over every run's own value."""
    return experiment_of(describe(path, overrides))


def experiment_of(described: DescribedRuns) -> Experiment:
    """Return the experiment of the project's own app that a file describes."""
    runs = named_runs(described, lambda values: _simulated(RunConfig.from_mapping(values)))
    return Experiment(described.title, described.output, _passes([NamedRun(name, config) for name, config in runs]))


def folders_of(described: DescribedRuns) -> list[Path]:
    """Return the folders of the runs that a file describes, in the order of its report."""
    if described.of_an_app:
        return [described.output / name for name, _ in named_runs(described, AppConfig.from_mapping)]
    return [described.output / run.name for one in experiment_of(described).passes for run in one]


def named_runs(described: DescribedRuns, read: Callable[[Mapping[str, object]], Config]) -> list[tuple[str, Config]]:
    """Return the runs that a file describes, each with its name; ``read`` makes a configuration of a mapping."""
    path = described.path
    named = _named([(name, [read(one) for one in mappings]) for name, mappings in described.entries])
    for index, (name, config) in enumerate(named):
        if any(config == other or name == its for its, other in named[:index]):
            raise InputError(f"{path}: run {shown(name)} is there twice; let it differ in something, or give it a name")
    return named


def describe(path: Path, overrides: Sequence[str] = ()) -> DescribedRuns:
    """Read a file; ``overrides`` as in ``load``."""
    try:
        content = unique_yaml.load(path.read_text())
    except FileNotFoundError as error:
        raise InputError(f"{path} does not exist") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError, ValueError) as error:
        raise InputError(f"{path} cannot be read: {_short(error)}") from error
    if content is None:
        raise InputError(f"{path} is empty; it must hold keys and values, as `strategy: mc-psgd`")
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold keys and values, got {type(content).__name__}")
    changes = dict(_override(text) for text in overrides)
    output = _output(changes.pop("output", content.pop("output", None)), path)
    title = _text(content.pop("title", path.stem))
    runs = content.pop("runs", [{}])
    if not isinstance(runs, list) or not runs or any(not isinstance(run, dict) for run in runs):
        raise InputError(f"{path}: runs must be a list of keys and values")
    entries = [
        (
            _name(run.pop("name", None), path),
            tuple(_sweep(with_block_names({**content, **run, **changes}), path)),
        )
        for run in runs
    ]
    return DescribedRuns(path, title, output, tuple(entries))


def _simulated(config: RunConfig) -> RunConfig:
    """Return a configuration whose cohorts are whole: nobody is late in a simulation."""
    return replace(config, oversample=0.0)


def _output(value: object, path: Path) -> Path:
    """Return the folder of the runs; none given: one named as the file."""
    if value is not None and not isinstance(value, str):
        raise InputError(f"{path}: output must be text, the name of one folder, got {shown(value)}")
    return Path(value or f"runs/{path.stem}")


def _name(value: object, path: Path) -> str:
    """Return the name that a run was given, '' where it has none; it becomes a folder in the output, and no other."""
    name = "" if value is None else _text(value)
    if "/" in name or name in (".", ".."):
        raise InputError(f"{path}: a run's name must be a folder's, without /, and not . or .., got {shown(name)}")
    return name


def _sweep(mapping: Mapping[str, Any], path: Path) -> list[dict[str, Any]]:
    """Return the product of all lists in ``mapping``."""
    choices = [value if isinstance(value, list) else [value] for value in mapping.values()]
    if any(not choice for choice in choices):
        empty = next(key for key, value in mapping.items() if value == [])
        raise InputError(f"{path}: {_text(empty)[:80]} is an empty list; give at least one value")
    if (count := prod(len(choice) for choice in choices)) > _MOST_RUNS:
        raise InputError(f"{path}: the lists make {count} runs; an experiment has at most {_MOST_RUNS}")
    return [dict(zip(mapping, values, strict=True)) for values in product(*choices)]


def _named(entries: Sequence[tuple[str, list[Config]]]) -> list[tuple[str, Config]]:
    """Name runs by what differs: among those of one entry that has a name, and among all that have none."""
    pool = [config for name, configs in entries if not name for config in configs]
    alone = sum(len(configs) for _, configs in entries) == 1
    named = []
    for name, configs in entries:
        differing = _differing(configs if name else pool)
        for config in configs:
            mapping = config.to_mapping()
            parts = [name, *(_part(key, mapping[key]) for key in differing)]
            joined = "-".join(part for part in parts if part)
            named.append((joined or ("" if alone else _strategy(mapping["strategy"])), config))
    return named


def _differing(configs: Sequence[KeyedConfig]) -> list[str]:
    mappings = [config.to_mapping() for config in configs]
    return [key for key in mappings[0] if any(mapping[key] != mappings[0][key] for mapping in mappings)]


def _strategy(name: str) -> str:
    """Return a strategy's name for a folder: of ``package.module:name`` the last part."""
    return name.rpartition(":")[2]


def _part(key: str, value: Any) -> str:
    """Return a strategy by itself, a flag by its key, anything else by key and value."""
    if key == "strategy":
        return _strategy(value)
    if isinstance(value, bool):
        return key if value else ""
    if isinstance(value, dict):
        return "-".join(f"{name}-{one}" for name, one in value.items()).replace("/", "_") or key
    return f"{key}-{value}".replace("/", "_")


def _passes(runs: Sequence[NamedRun]) -> tuple[tuple[NamedRun, ...], ...]:
    """Group runs that share their training, the one that needs most first: its folder keeps the pass's checkpoint."""

    def training(run: NamedRun) -> str:
        mapping = run.config.to_mapping()
        return str(
            (trains(run.config.strategy), {key: value for key, value in mapping.items() if key not in _READ_ONLY_KEYS})
        )

    order: list[str] = []
    for run in runs:
        if training(run) not in order:
            order.append(training(run))
    # A user's own strategy comes last, so that it takes no pass's checkpoint away from a run that was there before.
    needs = {name: at for at, name in enumerate(STRATEGIES)}
    ranked = sorted(runs, key=lambda run: (order.index(training(run)), -needs.get(run.config.strategy, -1)))
    return tuple(tuple(group) for _, group in groupby(ranked, key=training))


def _override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise InputError(f"--set takes key=value, got {shown(text)}")
    # No key takes a mapping: what YAML would read as one is text with a colon, as a clock's blocks are.
    if re.match(r"\w[\w ,-]*: ", value):
        return key.strip(), value
    try:
        return key.strip(), yaml.safe_load(value)
    except (yaml.YAMLError, ValueError) as error:
        raise InputError(f"--set {shown(key)}: {shown(value)} cannot be read: {_short(error)}") from error


def _text(value: object) -> str:
    return value if isinstance(value, str) else shown(value)


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
