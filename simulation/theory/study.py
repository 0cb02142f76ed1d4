"""Which runs measure the theorems, and what is read off them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from perennial.simulation.theory.algorithms import run
from perennial.simulation.theory.problem import Floats, Problem, Regime, draw, loss, optimum
from perennial.simulation.theory.rates import Plan, plan

Variable = Literal["T", "N", "M"]


@dataclass(frozen=True)
class Quantity:
    """An excess loss, with the exponents of T, N and M in its bound; None: no theorem speaks of it."""

    key: str
    label: str
    claim: str
    bound: tuple[float, float, float] | None = None

    def exponent(self, variable: Variable) -> float | None:
        return None if self.bound is None else self.bound["TNM".index(variable)]


_GLOBAL, _OWN = (-0.5, -0.5, 0.0), (-0.5, -0.5, 0.5)
QUANTITIES = (
    Quantity("mm", "MM-PSGD's predictors − F(x*)", "Theorem 1", _GLOBAL),
    Quantity("mm-path", "mixed chain, mean over rounds − F(x*)", "Lemmas 5 and 6", _GLOBAL),
    Quantity("mc", "MC-PSGD's predictors − F(x*)", "Theorem 2, first", _GLOBAL),
    Quantity("mc-own", "MC-PSGD's predictors − F_m(x*_m), mean over blocks", "Theorem 2, second", _OWN),
    Quantity("mc-own-worst", "MC-PSGD's predictors − F_m(x*_m), worst block", "Theorem 2, second", _OWN),
    Quantity("separate-own", "separate chains' predictors − F_m(x*_m)", "Lemma 7", _OWN),
    Quantity("separate-path", "separate chains, mean over rounds − F_m(x*_m)", "Lemma 7", _OWN),
    Quantity("mm-own", "MM-PSGD's predictors − F_m(x*_m)", "contrast"),
    Quantity("fedavg-last", "FedAvg's last model − F(x*)", "contrast"),
)


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Runs that differ in one of T, N and M."""

    variable: Variable
    values: tuple[int, ...]
    iterations: int = 2**14
    clients: int = 4
    blocks: int = 4
    cycles: int = 4

    def settings(self) -> Iterator[Sweep]:
        """Yield a sweep of one run for each value."""
        name = {"T": "iterations", "N": "clients", "M": "blocks"}[self.variable]
        for value in self.values:
            changed: dict[str, int] = {name: value}
            yield replace(self, values=(value,), **changed)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Study:
    """A size of the whole: the regimes, the sweeps of each, and how many seeds."""

    regimes: tuple[Regime, ...]
    sweeps: tuple[Sweep, ...]
    seeds: int


# Variances from 1 to 1/1000 leave directions that are still being learned at every T here, as in the bound's worst
# case; where variances are alike, averaging the iterates forgets the start and the noise faster than the bound.
SLOW = Regime(name="slow", condition=1e3, convexity=1e-5, signal=0.5, block_spread=0.01, client_spread=0.1)
FAST = Regime(name="fast", features=6, condition=2.0, convexity=1e-2, signal=1.0, block_spread=0.01, client_spread=0.3)
DIVERSE = replace(SLOW, name="diverse", block_spread=0.5)
FULL = Study(
    (SLOW, FAST, DIVERSE),
    (
        Sweep(variable="T", values=tuple(2**power for power in range(11, 17))),
        Sweep(variable="N", values=(1, 2, 4, 8, 16)),
        Sweep(variable="M", values=(2, 4, 8, 16), iterations=2**15),
    ),
    seeds=16,
)
QUICK = Study(
    (SLOW, FAST, DIVERSE),
    (
        Sweep(variable="T", values=(2**9, 2**10, 2**11, 2**12), blocks=2, cycles=2),
        Sweep(variable="N", values=(1, 2, 4, 8), iterations=2**11, blocks=2, cycles=2),
        Sweep(variable="M", values=(2, 4, 8), iterations=2**12, cycles=2),
    ),
    seeds=10,
)


@dataclass(frozen=True)
class Setting:
    """One point of a sweep: the plans of both theorems, and what came of them for every seed (S,)."""

    regime: str
    variable: Variable
    theorem_1: Plan
    theorem_2: Plan
    excess: dict[str, Floats]
    separate_share: float
    leading: float  # of Theorem 1's plan

    def plan_of(self, key: str) -> Plan:
        return self.theorem_1 if key in ("mm", "mm-path", "mm-own", "fedavg-last") else self.theorem_2

    def size(self, key: str) -> int:
        """Return the value of the swept variable; T as rounded up to whole rounds."""
        made = self.plan_of(key)
        return {"T": made.iterations, "N": made.clients, "M": made.blocks}[self.variable]


class Bench:
    """A regime's problems with what all runs share: L over all N of the study, and optima by M."""

    def __init__(self, study: Study, regime: Regime) -> None:
        self.regime = regime
        self.problem: Problem = draw(regime, study.seeds)
        settings = [setting for sweep in study.sweeps for setting in sweep.settings()]
        self.smoothness = max(self.problem.smoothness(one.clients) for one in settings)
        self._own: dict[int, Floats] = {}

    @cached_property
    def best(self) -> Floats:
        """F(x*) of every seed (S,)."""
        return self.own(1)[:, 0]

    @cached_property
    def distance(self) -> float:
        """The mean over seeds of |x*|^2, the square of the distance from the start."""
        pairs = zip(self.problem.points, self.problem.blocks(1)[:, 0], strict=True)
        return float(np.mean([(optimum(*pair, self.problem.convexity) ** 2).sum() for pair in pairs]))

    def leading(self, made: Plan) -> float:
        """Return |x*|^2 / (2 gamma T) + gamma sigma^2 / (2 N), the terms of Lemma 5 that the rate comes from."""
        noise = made.gamma * self.problem.variance(made.clients) / (2.0 * made.clients)
        return self.distance / (2.0 * made.gamma * made.iterations) + noise

    def own(self, blocks: int) -> Floats:
        """F_m(x*_m) of every seed and block (S, M)."""
        if blocks not in self._own:
            mu = self.problem.convexity
            self._own[blocks] = np.array(
                [
                    [loss(optimum(points, targets, mu), points, targets, mu) for targets in of_seed]
                    for points, of_seed in zip(self.problem.points, self.problem.blocks(blocks), strict=True)
                ]
            )
        return self._own[blocks]

    def gain(self, blocks: int) -> Floats:
        """What models of their own are worth to the blocks: F(x*) − mean of F_m(x*_m), of every seed (S,)."""
        gain: Floats = self.best - self.own(blocks).mean(axis=1)
        return gain

    def measure(self, sweep: Sweep) -> Setting:
        """Run both algorithms at a sweep's one setting, each with the local iterations of its theorem."""
        one, two = (
            plan(
                clients=sweep.clients,
                iterations=sweep.iterations,
                blocks=sweep.blocks,
                cycles=sweep.cycles,
                smoothness=self.smoothness,
                chains=chains,
            )
            for chains in (1, 2)
        )
        mm, mc = run(self.problem, one, 1), run(self.problem, two, 2)
        points, targets = self.problem.points[:, None], self.problem.blocks(sweep.blocks)
        mu, own = self.problem.convexity, self.own(sweep.blocks)
        made = (mm.predictors["mixed"], mc.predictors["chosen"], mc.predictors["separate"])
        mixed, chosen, separate = (loss(models, points, targets, mu) for models in made)
        last = loss(mm.last, self.problem.points, self.problem.blocks(1)[:, 0], mu)
        excess = {
            "mm": mixed.mean(axis=1) - self.best,
            "mm-path": mm.path["mixed"].mean(axis=1) - self.best,
            "mc": chosen.mean(axis=1) - self.best,
            "mc-own": (chosen - own).mean(axis=1),
            "mc-own-worst": (chosen - own).max(axis=1),
            "separate-own": (separate - own).mean(axis=1),
            "separate-path": (mc.path["separate"] - own).mean(axis=1),
            "mm-own": (mixed - own).mean(axis=1),
            "fedavg-last": last - self.best,
        }
        share = float(mc.separate_share.mean())
        return Setting(self.regime.name, sweep.variable, one, two, excess, share, self.leading(one))


def measure_all(study: Study, tell: Callable[[str], None]) -> Iterator[tuple[Bench, list[Setting]]]:
    """Yield each regime's problems and what was measured on them."""
    for regime in study.regimes:
        bench = Bench(study, regime)
        measured = []
        for sweep in study.sweeps:
            for setting in sweep.settings():
                tell(f"{regime.name}: {sweep.variable} = {setting.values[0]}")
                measured.append(bench.measure(setting))
        yield bench, measured
