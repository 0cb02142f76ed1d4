"""What runs on the hosts of the deployed day: ``day.py server|client|predict ARGUMENTS...``

server: flower-server, whose simulated clock waits with its look N for the file that ``PERENNIAL_TEST_HOURS`` names,
and which publishes whatever it has evaluated. client: flower-client, which asks for predictors after every order.
predict: a program on a device that predicts when it is told a time, and says with what and how well.
"""

from __future__ import annotations

import json
import os
import sys
import time
from datetime import datetime
from pathlib import Path

import numpy as np


def server(arguments: list[str]) -> int:
    from perennial.common.cycle.clock import FakeClock
    from perennial.server import cli
    from perennial.server.predict import offering
    from perennial.server.run import pass_folders

    hours, look = Path(os.environ["PERENNIAL_TEST_HOURS"]), FakeClock.__call__

    def wait_and_look(clock: FakeClock) -> datetime:
        while int(hours.read_text() or 0) < clock.calls:
            time.sleep(0.002)
        return look(clock)

    FakeClock.__call__ = wait_and_look  # type: ignore[method-assign]
    # A run of days publishes every few minutes; this one has days of seconds.
    pass_folders.SECONDS_BETWEEN_VERSIONS = -1.0  # type: ignore[attr-defined]
    offering._SECONDS = 0.0
    return cli.main(arguments)


def client(arguments: list[str]) -> int:
    from perennial.client import cli
    from perennial.client.kept_predictors import KeptPredictors

    # It asks every half minute; here that is days.
    KeptPredictors.__init__.__defaults__ = (0.0,)
    return cli.main(arguments)


def predict(arguments: list[str]) -> int:
    from perennial import load_predictor
    from perennial.common.command.errors import InputError

    predictors, data = map(Path, arguments)
    for line in sys.stdin:
        try:
            predictor = load_predictor(predictors, at=datetime.fromisoformat(line.strip()))
        except InputError as error:
            print(json.dumps({"block": None, "version": 0, "score": 0.0, "said": str(error)}), flush=True)
            continue
        weight, bias = sorted(predictor.arrays.values(), key=np.ndim, reverse=True)
        block = ("day", "night").index(predictor.block)
        with np.load(data / f"block-{block}.npz") as examples:
            x, y = examples["x"], examples["y"]
        if x.dtype == np.uint8:
            x = (x / 255 - 0.5) / 0.5
        guesses = (x.reshape(len(x), -1) @ weight.T + bias).argmax(1)
        found = {"block": predictor.block, "version": predictor.version, "score": float((guesses == y).mean())}
        print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit({"server": server, "client": client, "predict": predict}[sys.argv[1]](sys.argv[2:]))
