"""Files of a run with a byte changed or an end cut off, then --resume: the right predictors or a clear refusal.

    python -m tests.chaos.damage --times 2000 --commands 30 --seed 0

Finished and unfinished runs, of the project's own app and of a library's ``start``; resumed in this process, and some
by the real command. A wrong predictor, or an error that nobody foresaw, is a finding, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from flwr.app import Context, Message, RecordDict

from benchmarks.processes import commit
from perennial import MCPSGD, RoundSchedule
from perennial.client.app import app
from perennial.common.command.errors import InputError, RunError
from perennial.example import example_arrays, example_grid
from perennial.server.link.local_grid import FIRST_NODE_ID, RUN_ID, LocalGrid, app_raised, named, take_identity
from perennial.server.predict.loading import load_predictor
from perennial.server.report import html, reading
from perennial.server.run.lock import NAME
from perennial.simulation import cluster, experiment, passes, ray_grid
from tests.conftest import make_data, write_folder
from tests.processes import run_command

# Two runs that share a pass, both chains, a round that waits for its vote, a checkpoint after every round.
EXPERIMENT = {
    "strategy": ["mm-psgd", "mc-psgd"], "model": "linear", "engine": "loop", "cycles": 2, "rounds-per-block": 2,
    "local-iterations": 2, "batch-size": 2, "lr-mixed": 0.3, "lr-separate": 0.2, "participation": 0.75, "nodes": 2,
    "checkpoint-every": 1, "eval-every": 1, "seed": 7,
}  # fmt: skip
RUNS, BLOCKS, BROKEN_OFF = ("mm-psgd", "mc-psgd"), 2, 6
# Of the library's run.
ROUNDS, STOPPED_AFTER = 8, 5

Models = dict[str, dict[str, bytes]]


class BrokenOffError(Exception):
    """Stands for whatever may end a process."""


class InProcessGrid(LocalGrid):
    """Nodes that run the ClientApp in this process. orders: to train, until it breaks off."""

    def __init__(self, orders: float = float("inf")) -> None:
        self._left = orders

    def begin(self, nodes: int, run_config: Any) -> None:
        take_identity()
        self._contexts = {}
        for place in range(nodes):
            config, node = {"partition-id": place, "num-partitions": nodes}, FIRST_NODE_ID + place
            self._contexts[node] = Context(RUN_ID, node, config, RecordDict(), run_config)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        messages = list(messages)
        self._left -= bool(messages) and messages[0].metadata.message_type == "train"
        if self._left < 0:
            raise BrokenOffError
        return [self._answer(message) for message in messages]

    def _answer(self, message: Message) -> Message:
        named(message)
        try:
            return app(message, self._contexts[message.metadata.dst_node_id])
        except Exception as error:
            return app_raised(message, error)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError

    def close(self) -> None: ...


@contextmanager
def in_this_process(grid: InProcessGrid) -> Iterator[None]:
    """Let simulations run on ``grid`` in the place of Ray."""
    with (
        mock.patch.object(cluster, "connected", return_value=nullcontext(2)),
        mock.patch.object(ray_grid, "RayGrid", return_value=grid),
        mock.patch.object(passes, "TerminalProgress", return_value=None),
    ):
        yield


def simulate(folder: Path, *, resume: bool, orders: float = float("inf")) -> None:
    """What ``flower-simulation run`` does in ``folder``, up to the page of its report."""
    with in_this_process(InProcessGrid(orders)):
        found = experiment.load(folder / "run.yaml")
        runs = passes.run_experiment(found, resume=resume, overwrite=False, verbose=False)
    # Without its figures, whose drawing takes most of the time.
    html.page([reading.read(run) for run in runs], found.title)


def start(folder: Path, *, resume: bool, rounds: int = ROUNDS) -> None:
    """A library's run in ``folder``, which goes on by itself."""
    if not resume:
        # Flower's strategies draw the nodes, and so the order of sums, from Python's generator.
        random.seed(0)
    strategy = MCPSGD(schedule=RoundSchedule(["day", "night"], rounds_per_block=2))
    told: list[object] = []
    strategy.start(
        example_grid(4), example_arrays(), ROUNDS, run_dir=folder / "run", on_round=told.append,
        stop=lambda: len(told) >= rounds,
    )  # fmt: skip


def models_of(folder: Path) -> Models:
    """Return the predictors of all runs in ``folder``, as a reader loads them."""
    found = {}
    for run in sorted(path.parent for path in folder.rglob("metrics.jsonl")):
        for block in range(BLOCKS):
            arrays = load_predictor(run, block=block).arrays
            found[f"{run.name}/{block}"] = {name: array.tobytes() for name, array in arrays.items()}
    return found


@dataclass(frozen=True)
class Scene:
    """A run as it was left, how it goes on, and the predictors of one that was never harmed."""

    name: str
    folder: Path
    resume: Callable[[Path], None]
    right: Models

    def files(self) -> list[Path]:
        """All files of the runs, but the report, which every start writes anew."""
        left_out = {NAME, "report.html"}
        found = (path for path in (self.folder / "run").rglob("*") if path.is_file() and path.name not in left_out)
        return sorted(path.relative_to(self.folder) for path in found)


def scenes(folder: Path) -> list[Scene]:
    """Make the four runs that are harmed."""
    data = write_folder(folder / "data", make_data(BLOCKS, 4))
    found = []
    for kind in ("simulation", "library"):
        whole, broken = folder / f"{kind}-finished", folder / f"{kind}-unfinished"
        for one in (whole, broken):
            one.mkdir()
            (one / "run.yaml").write_text(json.dumps({**EXPERIMENT, "data": str(data), "output": str(one / "run")}))
        if kind == "simulation":
            simulate(whole, resume=False)
            with suppress(BrokenOffError):
                simulate(broken, resume=False, orders=BROKEN_OFF)
            resume = lambda folder: simulate(folder, resume=True)  # noqa: E731
        else:
            start(whole, resume=False)
            start(broken, resume=False, rounds=STOPPED_AFTER)
            resume = lambda folder: start(folder, resume=True)  # noqa: E731
        right = models_of(whole)
        assert len(right) == (len(RUNS) if kind == "simulation" else 1) * BLOCKS
        found += [Scene(one.name, one, resume, right) for one in (whole, broken)]
    return found


@dataclass
class Tally:
    """What came of the damage, by scene and kind of damage. findings: what must not be."""

    outcomes: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    seconds: float = 0.0


def harm(path: Path, rng: random.Random) -> str:
    """Change one byte of a file, or cut its end off; return what was done."""
    content = bytearray(path.read_bytes())
    if not content or rng.random() < 0.25:
        kept = rng.randrange(len(content)) if content else 0
        path.write_bytes(content[:kept])
        return f"cut to {kept} of {len(content)} bytes"
    place = rng.randrange(len(content))
    content[place] ^= rng.randrange(1, 256)
    path.write_bytes(content)
    return f"byte {place} of {len(content)} changed"


def copied(scene: Scene, where: Path) -> Path:
    """Copy a scene to a path of the same name for the run, whose own settings name it."""
    shutil.rmtree(where, ignore_errors=True)
    shutil.copytree(scene.folder, where)
    settings = json.loads((where / "run.yaml").read_text())
    (where / "run.yaml").write_text(json.dumps({**settings, "output": str(where / "run")}))
    return where


def judge(scene: Scene, folder: Path, resume: Callable[[Path], str]) -> str:
    """Resume and return what came of it; anything that begins with "!" must not be."""
    refused = resume(folder)
    if refused:
        return "refused" if "\n" not in refused.strip() and len(refused) > 10 else f"! {refused}"
    try:
        found = models_of(folder)
    except InputError as error:
        return f"! it is said to be done, and cannot be loaded: {error}"
    return "right" if found == scene.right else "! another predictor"


def by_call(scene: Scene) -> Callable[[Path], str]:
    def resume(folder: Path) -> str:
        try:
            scene.resume(folder)
        except (InputError, RunError) as error:
            return f"refused: {error}"
        except Exception as error:
            return f"! {type(error).__name__}: {error}\n"
        return ""

    return resume


def by_command(folder: Path) -> str:
    """Resume by the real command."""
    done = run_command("run", "run.yaml", "--resume", cwd=folder, timeout=600)
    if done.returncode == 0:
        return ""
    last = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "nothing was said"
    if done.returncode not in (1, 2) or "Traceback" in done.stderr or not last.startswith("flower-simulation: "):
        return f"! exit {done.returncode}\n{done.stderr[-2000:]}"
    return last


def damage(made: list[Scene], where: Path, *, times: int, seed: int, command: bool = False) -> Tally:
    """Harm a copy of a scene, ``times`` over, and resume it."""
    tally, began = Tally(), time.monotonic()
    rng = random.Random(seed)
    for number in range(times):
        scene = made[number % len(made)]
        folder = copied(scene, where)
        file = rng.choice(scene.files())
        done = harm(folder / file, rng)
        outcome = judge(scene, folder, by_command if command else by_call(scene))
        kind = "cut" if done.startswith("cut") else "byte"
        tally.outcomes[scene.name, kind, outcome.split(" ")[0]] += 1
        if outcome.startswith("!"):
            tally.findings.append(f"{number}: {scene.name}, {file}: {done}: {outcome[:600]}")
            print(tally.findings[-1], flush=True)
        if number % 100 == 99:
            print(f"{number + 1} of {times}, {len(tally.findings)} findings", file=sys.stderr, flush=True)
    tally.seconds = time.monotonic() - began
    return tally


def _print(tally: Tally, how: str) -> None:
    for scene in dict.fromkeys(scene for scene, _, _ in tally.outcomes):
        for kind, said in (("byte", "bytes changed"), ("cut", "ends cut off")):
            counts = {what: tally.outcomes[scene, kind, what] for what in ("right", "refused", "!")}
            total = sum(counts.values())
            print(f"{scene:22} {total:4} {said}: {counts['right']:4} right, {counts['refused']:3} refused")
    print(f"{sum(tally.outcomes.values())} resumed {how} in {tally.seconds:.0f} s, {len(tally.findings)} findings")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=2000)
    parser.add_argument("--commands", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    logging.getLogger("perennial").setLevel(logging.CRITICAL)
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    print(f"commit {commit(Path(__file__).parent)}", flush=True)
    with tempfile.TemporaryDirectory(prefix="damage-") as folder:
        made = scenes(Path(folder))
        tally = damage(made, Path(folder) / "copy", times=options.times, seed=options.seed)
        _print(tally, "in this process")
        simulated = [scene for scene in made if scene.name.startswith("simulation")]
        real = damage(simulated, Path(folder) / "c", times=options.commands, seed=options.seed + 1, command=True)
        _print(real, "by the command")
    return int(bool(tally.findings or real.findings))


if __name__ == "__main__":
    sys.exit(main())
