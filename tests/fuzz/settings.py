"""Run-configs, flags and experiment files, mutated."""

from __future__ import annotations

import random
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any
from zoneinfo import available_timezones

import yaml

from perennial.common.command.config import RunConfig, schedule_of
from perennial.common.command.errors import InputError
from perennial.common.command.typed_keys import key_of
from perennial.common.cycle import clock
from perennial.simulation import experiment
from tests.fuzz import mutate
from tests.fuzz.refusal import refused


class Config:
    """Flat mappings, as they come from run-configs, flags and files."""

    def __init__(self, folder: Path) -> None:
        # Naming the nearest time zone lists them all from disk, 0.1 s each time.
        clock.available_timezones = cache(available_timezones)
        self.keys = [key_of(item) for item in fields(RunConfig)]
        self.defaults = RunConfig().to_mapping()
        clocks = (
            "day: 08:00-20:00, night: 20:00-08:00",
            "a: Mon-Fri, b: Sat,Sun",
            "a: Sat-Sun 00:00-24:00, b: Mon-Fri",
        )
        self.words = [*clocks, "Europe/Berlin", "UTC", "../../etc/passwd", "2026-03-27T12:00", "0001-01-01", "3x32x32"]

    def mapping(self, rng: random.Random) -> dict[Any, Any]:
        """Return a few keys with values of the right kind, of the wrong one, or mangled."""
        found: dict[Any, Any] = {}
        for _ in range(rng.randint(1, 4)):
            key: Any = rng.choice(self.keys)
            if rng.randrange(20) == 0:
                key = rng.choice(
                    (mutate.changed_bytes(rng, key.encode()).decode(errors="replace"), 3, None, 1.5, ("a",))
                )
            kind = rng.randrange(8)
            word = mutate.changed_bytes(rng, rng.choice(self.words).encode()).decode(errors="replace")
            default = self.defaults.get(key)
            found[key] = mutate.value(rng) if kind == 0 else word if kind == 1 else default
            if kind == 2 and type(default) in (int, float):
                found[key] = default * rng.choice((-1, 0, 2, 10, 1e300, 10**20))
        if rng.randrange(4) == 0:
            found |= {"clock": word, "timezone": rng.choice(self.words), "clock-start": rng.choice(self.words)}
        return found

    def once(self, rng: random.Random) -> bool:
        try:
            config = RunConfig.from_mapping(self.mapping(rng))
        except InputError as error:
            return refused(error)
        assert RunConfig.from_mapping(config.to_mapping()) == config
        assert config.evaluate_every() >= 1
        schedule_of(config)
        return True


class Experiments(Config):
    """Experiment files: YAML that is damaged, and YAML that is sound and wrong."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.path = folder / "experiment.yaml"
        self.texts = [
            b"title: A\nstrategy: [fedavg, mm-psgd]\nlr-mixed: [.1, .2]\nruns:\n  - {name: a, seed: 3}\n  - seed: 4\n",
            b"data: digits\nclients: 20  # twenty\nclock: 'day: 08:00-20:00, night: 20:00-08:00'\noutput: runs/x\n",
            b"a: &a [1, 2]\nb: *a\nseed: 0x1F\nlr-mixed: 1e-1\ndecay: .5\nshuffled: yes\nblocks: 1_0\nclients: 1:30\n",
        ]

    def once(self, rng: random.Random) -> bool:
        if rng.randrange(2):
            self.path.write_bytes(mutate.changed_bytes(rng, rng.choice(self.texts)))
        else:
            tree: Any = {**self.mapping(rng), "runs": [self.mapping(rng) for _ in range(rng.randint(1, 3))]}
            if rng.randrange(2):
                tree = mutate.changed_tree(rng, tree)
            try:
                self.path.write_text(yaml.dump(tree), errors="replace")
            except (ValueError, yaml.YAMLError):  # numbers too long to be written
                return False
        overrides = (
            [mutate.changed_bytes(rng, b"lr-mixed=0.5").decode(errors="replace")] if rng.randrange(3) == 0 else []
        )
        try:
            found = experiment.load(self.path, overrides)
        except InputError as error:
            return refused(error)
        assert found.passes
        return True
