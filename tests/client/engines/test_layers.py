"""Every engine that takes a kind of layer agrees with a plain torch loop to 1e-5 after ten steps."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import perennial.client.engines as engines
from perennial.client.engines.engine import Received, Work
from perennial.common.command.errors import InputError
from perennial.common.data.examples import Signature
from perennial.common.task.models import arrays_of
from perennial.common.wire.chains import Vector
from perennial.common.wire.layout import Layout
from tests import layers
from tests.client.engines.reference import distance

torch.set_num_threads(1)


def clients(kind: str, seed: int, batch: int) -> list[Work]:
    rng = np.random.default_rng(seed)
    return [
        Work(
            client, (layers.inputs(kind, rng, 12),), rng.integers(0, layers.CLASSES, 12),
            np.stack([rng.permutation(12)[: batch + client % 2] for _ in range(10)]),
            rng.integers(0, 12, 5), int(rng.integers(2**50)),
        )
        for client in range(3)
    ]  # fmt: skip


def plainly(network: nn.Module, work: Work, lr: float) -> Layout:
    """Train in place by torch alone."""
    torch.manual_seed(work.seed)
    optimiser = torch.optim.SGD(network.parameters(), lr)
    network.train()
    assert work.y is not None
    for rows in work.steps:
        optimiser.zero_grad()
        outputs = network(torch.from_numpy(work.x[0][rows]))
        nn.functional.cross_entropy(outputs, torch.from_numpy(work.y[rows])).backward()
        optimiser.step()
    return Layout.of(arrays_of(network))


def mean_of(kind: str, seed: int, work: list[Work], lr: float) -> Vector:
    with torch.random.fork_rng(devices=[]):
        locals_ = []
        for client in work:
            network = layers.network(kind, seed)
            layout = plainly(network, client, lr)
            locals_.append(layout.flatten(arrays_of(network)).astype(np.float64))
    return np.mean(locals_, 0).astype(np.float32)


def trained(engine: str, kind: str, seed: int, work: list[Work], lr: float) -> Vector:
    network = layers.network(kind, seed)
    arrays = arrays_of(network)
    assert work[0].y is not None
    signature = Signature.of(work[0].x, work[0].y % layers.CLASSES, "here")
    chosen = engines.choose(engine, network, signature)
    found: Vector = chosen.train([Received(Layout.of(arrays).flatten(arrays), lr)], work)[0].params
    return found


@pytest.mark.parametrize(
    ("engine", "kind"), [*(("loop", kind) for kind in layers.KINDS), *(("stacked", kind) for kind in layers.STACKED)]
)
@settings(max_examples=2, derandomize=True, database=None)
@given(seed=st.integers(0, 1000), batch=st.sampled_from([2, 3, 6]))
def test_every_engine_that_takes_a_layer_agrees_with_a_plain_torch_loop(
    engine: str, kind: str, seed: int, batch: int
) -> None:
    # Two or three examples whose values hardly differ are divided by that difference: BatchNorm makes much of rounding.
    work = clients(kind, seed, batch if kind != "batch_norm" else max(4, batch))
    assert distance(trained(engine, kind, seed, work, 0.05), mean_of(kind, seed, work, 0.05)) < 1e-5


def test_batch_norm_counts_its_batches_and_its_statistics_are_averaged() -> None:
    work = clients("batch_norm", 1, 4)
    layout = Layout.of(arrays_of(layers.network("batch_norm", 1)))
    arrays = layout.unflatten(trained("stacked", "batch_norm", 1, work, 0.05))
    assert arrays["1.num_batches_tracked"] == arrays["5.num_batches_tracked"] == 10
    assert arrays["1.num_batches_tracked"].dtype == np.int64
    assert (arrays["1.running_mean"] != 0).all()


def test_dropout_depends_on_the_seed_of_the_client_and_stays_with_the_loop() -> None:
    work = clients("dropout", 1, 4)
    one, same = (trained("auto", "dropout", 1, work, 0.05) for _ in range(2))
    assert np.array_equal(one, same)
    other = [Work(w.client, w.x, w.y, w.steps, w.judged, w.seed + 1) for w in work]
    assert not np.array_equal(one, trained("auto", "dropout", 1, other, 0.05))
    with pytest.raises(InputError, match=r"stacked does not take this model: .* use engine auto"):
        trained("stacked", "dropout", 1, work, 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["attention", "gelu", "batch_norm"])
def test_a_compiled_step_agrees_too(kind: str) -> None:
    work = clients(kind, 1, 4)
    assert distance(trained("compiled", kind, 1, work, 0.05), mean_of(kind, 1, work, 0.05)) < 1e-5
