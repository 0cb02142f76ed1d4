"""Machines of a Ray cluster die and join while a run goes on; it must end as an unbroken one does, bit for bit.

    python -m tests.chaos.machines --machines 3 --times 10 --seed 0

Each machine is a raylet on this one, with CPUs and a GPU that Ray counts as its own. The first one has Ray's head and
stays. Prints on which machine each node lived, by round.
"""

from __future__ import annotations

import argparse
import logging
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from perennial.common.command.config import RunConfig
from perennial.common.command.console import log_to_console
from perennial.common.cycle.schedule import Schedule
from perennial.server.run.folder import RunFolder
from perennial.server.run.prepare import Run, prepare
from perennial.server.run.training import train
from perennial.server.strategies.record import FoldedRound
from perennial.simulation.cluster import connected, hush
from tests.chaos.kill import compare
from tests.processes import descendants, kill, wait_until

EXPERIMENT = {
    "strategy": "mc-psgd", "data": "digits", "blocks": 2, "clients": 12, "labels-per-block": 5, "client-skew": 0.5,
    "model": "linear", "cycles": 2, "local-iterations": 3, "batch-size": 4, "lr-mixed": 0.02, "lr-separate": 0.1,
    "min-replies": 1.0, "engine": "loop", "eval-every": 7, "seed": 5,
}  # fmt: skip
T = TypeVar("T")
JOIN_SECONDS = 300.0


class Machines:
    """A cluster of raylets: the head, and others that come and go."""

    def __init__(self, count: int, cpus: int) -> None:
        hush()
        from ray.cluster_utils import Cluster

        self._names = iter(f"machine-{number}" for number in range(1000))
        # Ray counts GPUs as it is told, whether they are there or not.
        common = {"num_cpus": cpus, "num_gpus": 1, "object_store_memory": 100 * 2**20}
        head = {**common, "node_name": next(self._names), "include_dashboard": False}
        self._cluster, self._common = patiently(lambda: Cluster(initialize_head=True, head_node_args=head)), common
        self.address = self._cluster.address
        self.others: dict[str, Any] = {}
        for _ in range(1, count):
            self.join()

    def join(self) -> str:
        name = next(self._names)
        self.others[name] = patiently(lambda: self._cluster.add_node(**self._common, node_name=name))
        return name

    def die(self, name: str) -> None:
        """Kill a raylet and all that belongs to it, as if its machine had lost its power."""
        node = self.others.pop(name)
        # Workers outlive their raylet for seconds, and answer meanwhile.
        below = descendants(node.all_processes["raylet"][0].process.pid)
        self._cluster.remove_node(node, allow_graceful=False)
        for pid, line in below.items():
            kill(pid, line)

    def close(self) -> None:
        self._cluster.shutdown()


def patiently(start: Callable[[], T]) -> T:
    """Ray gives a raylet 30 s to start, which a machine busy with other things may not keep."""
    for _ in range(2):
        try:
            return start()
        except Exception as error:  # Ray raises bare exceptions of its own
            print(f"again: {error}", flush=True)
    return start()


class Seer:
    """A worker that says which GPUs it sees instead of where it is."""

    def __init__(self, here: str, gpus: float, app: str) -> None:
        from perennial.simulation.workers import Worker

        Worker.see_gpus(gpus)

    def machine(self) -> str:
        return os.environ["CUDA_VISIBLE_DEVICES"]


def check_gpus() -> None:
    """Two workers share a GPU if each is given half of it; one that is given none sees none. Says what they see."""
    from perennial.simulation.workers import Workers

    for gpus, count, seen in ((0.5, 2, "0"), (0.0, 1, "")):
        with closing(Workers(count, gpus, actor=Seer, cpus=0.0)) as workers:
            workers.start(count, JOIN_SECONDS)
            assert [workers.machine(workers.ask(place)) for place in range(count)] == [seen] * count
            assert len({workers.ask(place) for place in range(count)}) == count
            print(f"{count} workers that were given {gpus:g} GPUs each see: {seen or 'none'}", flush=True)


class Turns:
    """Lets machines die and join, in turn, at some rounds; notes where each node lived in each round."""

    def __init__(self, machines: Machines, grid: Any, rounds: set[int], rng: random.Random) -> None:
        self.machines, self._grid, self._rounds, self._rng = machines, grid, rounds, rng
        self._started = time.monotonic()
        self.lived: list[tuple[int, list[str]]] = []
        self.died: dict[str, int] = {}
        self.joined: dict[str, int] = {}

    def round_done(self, record: FoldedRound, scores: list[str | None], schedule: Schedule) -> None:
        done = record.slot.server_round
        self.lived.append((done, self._grid.homes()))
        if done not in self._rounds:
            return
        if len(self.died) == len(self.joined):
            victim = self._rng.choice(sorted(self.machines.others))
            print(f"after round {done} ({self._seconds():.0f} s): {victim} dies", flush=True)
            self.machines.die(victim)
            self.died[victim] = done
        else:
            name = self.machines.join()
            print(f"after round {done} ({self._seconds():.0f} s): {name} joins", flush=True)
            # A short run must not be over before a worker there has imported torch.
            wait_until(lambda: name in self._grid.machines(), JOIN_SECONDS, f"workers on {name}")
            self.joined[name] = done

    def _seconds(self) -> float:
        return time.monotonic() - self._started

    def check(self) -> None:
        """Nobody lives on a machine that is gone; a machine that joined is lived on."""
        for number, homes in self.lived:
            assert not [name for name in homes if self.died.get(name, number) < number], f"round {number}: {homes}"
        for name, joined in self.joined.items():
            stayed = [homes for number, homes in self.lived if joined < number <= self.died.get(name, number)]
            assert all(name in homes for homes in stayed), f"{name} joined in vain"
            assert stayed

    def log(self) -> Iterator[str]:
        """Yield where each node lived, the rounds together in which nothing changed."""
        for homes, found in groupby(self.lived, lambda one: one[1]):
            numbers = [number for number, _ in found]
            places = ", ".join(f"node {node} on {name}" for node, name in enumerate(homes))
            yield f"rounds {numbers[0]} to {numbers[-1]}: {places}"


@contextmanager
def cluster(count: int, cpus: int) -> Iterator[Machines]:
    """Yield a cluster, to which RAY_ADDRESS points meanwhile."""
    # Ray's sockets want a short path.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        os.environ["RAY_TMPDIR"] = folder
        with closing(Machines(count, cpus)) as machines:
            os.environ["RAY_ADDRESS"] = machines.address
            yield machines


def break_and_compare(folder: Path, *, count: int, cpus: int, times: int, rounds: int, seed: int) -> Turns:
    """Run unbroken and broken; raises AssertionError if anything differs but the seconds."""
    with cluster(count, cpus) as machines:
        # Importing it imports Ray, which is told before to be quiet.
        from perennial.simulation.ray_grid import RayGrid

        with connected(verbose=False), closing(RayGrid()) as grid:
            check_gpus()
            rng = random.Random(seed)
            space = rounds // (2 * times + 1)
            moments = {space * (1 + turn) + rng.randrange(-space // 3, space // 3) for turn in range(2 * times)}
            keys = {**EXPERIMENT, "rounds-per-block": rounds // 4, "nodes": 2 * count, "gpus-per-worker": 0.5}
            config = RunConfig.from_mapping(keys)
            for name, turns in (("unbroken", Turns(machines, grid, set(), rng)),
                                ("broken", Turns(machines, grid, moments, rng))):  # fmt: skip
                run = prepare([Run(config, RunFolder(folder / name / "run"))])
                grid.begin(config.nodes, run.config.to_mapping())
                train(run, grid, nodes=config.nodes, eager=False, progress=turns)
    turns.check()
    compare(folder / "unbroken", folder / "broken")
    return turns


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machines", type=int, default=3, help="raylets, of which the first one stays (default: 3)")
    parser.add_argument("--cpus", type=int, default=2, help="of each, so many workers (default: 2)")
    parser.add_argument("--times", type=int, default=10, help="how often one dies and one joins (default: 10)")
    parser.add_argument("--rounds", type=int, default=600, help="of the run; a multiple of 4 (default: 600)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments and of who dies (default: 0)")
    options = parser.parse_args()
    log_to_console(verbose=False)
    logging.captureWarnings(True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="machines-") as folder:
        turns = break_and_compare(
            Path(folder),
            count=options.machines,
            cpus=options.cpus,
            times=options.times,
            rounds=options.rounds,
            seed=options.seed,
        )
    print(*turns.log(), sep="\n")
    print(
        f"{len(turns.died)} machines died and {len(turns.joined)} joined in {len(turns.lived)} rounds on "
        f"{options.machines} machines: predictors bit-identical to the unbroken run's, metrics identical but for times "
        f"({time.monotonic() - start:.0f} s in all)"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
