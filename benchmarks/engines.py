"""Milliseconds a client-step for every engine: the paper's CNN, batch 2, one thread.

    python benchmarks/engines.py [--clients 100] [--iterations 10] [--repeats 5]

FLOPs are the useful ones of the dense network (2 a multiplication; backward counts weights and inputs, except the
inputs of the first layer), whatever an engine skips. The best of the repeats counts; engines take turns, so that a busy
machine slows all of them alike.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from perennial.client.engines import choose
from perennial.client.engines.engine import Engine, Received, Work
from perennial.common.data.examples import Signature
from perennial.common.task import models
from perennial.common.wire.layout import Layout

SHAPE, CLASSES, BATCH, JUDGED = (3, 32, 32), 10, 2, 10


def main() -> None:
    arguments = parse()
    torch.set_num_threads(1)
    module = models.build("cnn", SHAPE, CLASSES)
    forward, backward = flops(module)
    arrays = models.arrays_of(module)
    chain = Received(Layout.of(arrays).flatten(arrays), 0.01)
    work = clients(arguments.clients, arguments.iterations)
    training = [Work(one.client, one.x, one.y, one.steps, one.judged[:0]) for one in work]
    engines = [
        choose(name, module, Signature.labelled(SHAPE, CLASSES, ("uint8",))) for name in ("loop", "stacked", "native")
    ]
    steps = arguments.clients * arguments.iterations
    trained = measure(engines, lambda engine: engine.train([chain], training), arguments.repeats)
    judged = measure(engines, lambda engine: engine.judge([chain.params], work), arguments.repeats)
    print(f"sgemm on one thread: {sgemm():.0f} GFLOP/s")
    print(f"{'engine':8} {'ms/step':>9} {'GFLOP/s':>9} {'x loop':>7}   {'judge ms/client':>15} {'GFLOP/s':>9}")
    for engine, seconds, judging in zip(engines, trained, judged, strict=True):
        rate, judge_rate = BATCH * (forward + backward) * steps / seconds, JUDGED * forward * len(work) / judging
        print(
            f"{engine.name:8} {seconds / steps * 1e3:9.4f} {rate / 1e9:9.1f} {trained[0] / seconds:7.1f}   "
            f"{judging / len(work) * 1e3:15.4f} {judge_rate / 1e9:9.1f}"
        )


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=5)
    return parser.parse_args()


def clients(count: int, iterations: int) -> list[Work]:
    rng = np.random.default_rng(0)
    rows = 100
    return [
        Work(
            client,
            (rng.integers(0, 256, (rows, *SHAPE), dtype=np.uint8),),
            rng.integers(0, CLASSES, rows),
            rng.integers(0, rows, (iterations, BATCH)),
            rng.integers(0, rows, JUDGED),
        )
        for client in range(count)
    ]


def measure(engines: list[Engine], call: Callable[[Engine], object], repeats: int) -> list[float]:
    """Return each engine's best time in seconds."""
    best = [float("inf")] * len(engines)
    for _ in range(repeats):
        for at, engine in enumerate(engines):
            start = time.perf_counter()
            call(engine)
            best[at] = min(best[at], time.perf_counter() - start)
    return best


def flops(module: nn.Module) -> tuple[int, int]:
    """Return FLOPs of forward and of backward, for one example."""
    counts: list[int] = []

    def count(layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        weight = layer.weight
        assert isinstance(weight, torch.Tensor)
        counts.append(2 * weight.numel() * output[0, 0].numel())

    handles = [layer.register_forward_hook(count) for layer in module.modules() if hasattr(layer, "weight")]
    with torch.no_grad():
        module(torch.zeros(1, *SHAPE))
    for handle in handles:
        handle.remove()
    return sum(counts), 2 * sum(counts) - counts[0]


def sgemm(side: int = 1024) -> float:
    """Return the GFLOP/s of a large product: what the machine has to give at this moment."""
    a, best = torch.randn(side, side), float("inf")
    for _ in range(10):
        start = time.perf_counter()
        a @ a
        best = min(best, time.perf_counter() - start)
    return 2 * side**3 / best / 1e9


if __name__ == "__main__":
    main()
