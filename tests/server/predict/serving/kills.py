"""kill -9 of the publisher at random instants: neither a server nor a device ever takes half a version.

As a program: ``python -m tests.server.predict.serving.kills --kills 50``.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from perennial.client.kept_predictors import KeptPredictors
from perennial.server.predict import offering
from perennial.server.predict.loading import load_predictor
from perennial.server.predict.publishing import publish
from perennial.server.predict.serving import shelf
from perennial.server.predict.versions import check, numbers, path_of
from tests.client.test_kept_predictors import Server
from tests.server.predict.published import learnt
from tests.server.predict.serving.served import Served, request, serving


@dataclass
class Seen:
    """half: kills that left a version half-written. served, kept: versions that the server and the device had."""

    half: int = 0
    served: set[int] = field(default_factory=set)
    kept: set[int] = field(default_factory=set)


def kills(folder: Path, count: int) -> Seen:
    """Kill ``count`` publishers while a server is asked and a device fetches; an AssertionError if either is wrong."""
    run, seen, draw = folder / "run", Seen(), random.Random(0)
    publish(run, learnt(1))
    shelf._SECONDS = offering._SECONDS = 0.01
    over, failures = threading.Event(), []
    with serving(run) as served:

        def guarded(step: object) -> None:
            try:
                while not over.is_set():
                    step()  # type: ignore[operator]
            except BaseException as error:
                failures.append(error)

        steps = (asking(served, seen), keeping(folder / "device", Server(run), seen))
        threads = [threading.Thread(target=guarded, args=(step,)) for step in steps]
        for thread in threads:
            thread.start()
        for _ in range(count):
            publish_and_kill(run, draw.random() * 0.2)
            seen.half += any((run / "versions").glob(".*.partial"))
        over.set()
        for thread in threads:
            thread.join()
        assert failures == []
        assert served.shelf.refused == 0
    return seen


def publish_and_kill(run: Path, seconds: float) -> None:
    line = [sys.executable, "-m", "tests.server.predict.published", str(run), "--with-network"]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.stdin.write("\n")
        process.stdin.flush()
        # A random instant is the point here: there is no condition to wait for.
        time.sleep(seconds)
        process.kill()


def asking(served: Served, seen: Seen) -> object:
    def step() -> None:
        reply = served.infer(request())
        assert reply.status == 200, reply.body
        assert reply.is_right(), reply.said
        seen.served.add(reply.version)

    return step


def keeping(device: Path, server: Server, seen: Seen) -> object:
    kept = KeptPredictors(device, print_nothing, seconds=0.0)

    def step() -> None:
        kept.renew(server.fetch)
        if numbers(device):
            newest = numbers(device)[-1]
            assert check(path_of(device, newest))["version"] == newest
            found = load_predictor(device, block="night")
            assert (found.arrays["fc.weight"] == found.version + 1 / 8).all()
            seen.kept.add(found.version)

    return step


def print_nothing(_: str) -> None:
    pass


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    arguments = parser.parse_args()
    with TemporaryDirectory() as folder:
        seen = kills(Path(folder), arguments.kills)
    print(f"{arguments.kills} publishers killed, {seen.half} with a version half-written: the server answered by "
          f"{len(seen.served)} versions, the device kept {len(seen.kept)}, all of them whole")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
