"""The native engine's guesses against torch's."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from perennial.client.engines.native import NativeEngine
from perennial.common.data.datasets import as_float
from perennial.common.task import models
from perennial.common.wire.layout import Layout
from tests.client.engines.marks import needs_compiler


@needs_compiler
@pytest.mark.parametrize(("name", "shape"), [("cnn", (3, 32, 32)), ("mlp", (1, 8, 8))])
def test_the_native_engine_guesses_as_torch_does(name: str, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (60, *shape), dtype=np.uint8)
    y = rng.integers(0, 10, 60)
    rows = rng.permutation(60)[:37]
    network = models.build(name, shape, 10, seed=3)
    with torch.no_grad():
        guesses = network(torch.from_numpy(as_float(x[rows]))).argmax(1).numpy()
    y[rows[:20]] = guesses[:20]
    arrays = models.arrays_of(network)
    right = NativeEngine(network, shape).right(Layout.of(arrays).flatten(arrays), (x,), y, rows)
    assert right.tolist() == (guesses == y[rows]).tolist()
    assert 20 <= right.sum() < 37
