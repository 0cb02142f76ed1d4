"""Plain SGD by torch eager, written without the engines, and helpers to make clients."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from perennial.client.engines.engine import Received, Trained, Work
from perennial.common.wire.chains import Vector


def vector(module: nn.Module) -> Vector:
    return torch.cat([value.detach().reshape(-1) for value in module.state_dict().values()]).numpy().astype(np.float32)


def clients(
    rng: np.random.Generator, shape: tuple[int, ...], classes: int, count: int, batch: int, judged: int, integers: bool
) -> list[Work]:
    """Return clients with ten steps each; every third has a batch of another size."""
    work = []
    for client in range(count):
        n = 20
        x: NDArray[Any] = rng.standard_normal((n, *shape), np.float32)
        if integers:
            x = rng.integers(0, 256, (n, *shape), dtype=np.uint8)
        size = batch + (client % 3 == 2)
        steps = rng.integers(0, n, (10, size))
        work.append(Work(client, (x,), rng.integers(0, classes, n), steps, rng.integers(0, n, judged)))
    return work


def train(module: nn.Module, chain: Received, work: Sequence[Work]) -> Trained:
    locals_, train_losses, losses = [], [], []
    for client in work:
        network = copy.deepcopy(module)
        nn.utils.vector_to_parameters(torch.from_numpy(chain.params.copy()), network.parameters())
        (x,) = client.x
        assert client.y is not None
        if x.dtype == np.uint8:
            x = (x / np.float32(255) - np.float32(0.5)) / np.float32(0.5)
        inputs, labels = torch.from_numpy(np.ascontiguousarray(x)), torch.from_numpy(client.y)
        with torch.no_grad():
            judged = nn.functional.cross_entropy(network(inputs[client.judged]), labels[client.judged])
            losses.append(judged.item() if client.judged.size else np.nan)
        optimizer = torch.optim.SGD(network.parameters(), lr=chain.lr)
        batches = []
        for rows in client.steps:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(network(inputs[rows]), labels[rows])
            loss.backward()
            optimizer.step()
            batches.append(loss.item())
        locals_.append(vector(network).astype(np.float64))
        train_losses.append(np.mean(batches))
    return Trained(np.mean(locals_, 0).astype(np.float32), np.array(train_losses), np.array(losses))


def distance(found: NDArray[np.float32], expected: NDArray[np.float32]) -> float:
    """Return the distance relative to the length of ``expected``."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def sensitivity(module: nn.Module, chain: Received, work: Sequence[Work], expected: Trained) -> float:
    """Return how far changes of 1e-6 in the received model carry: far, where a ReLU or a pool sits on its kink."""
    rng = np.random.default_rng(0)
    moved = []
    for _ in range(8):
        noise = 1 + 1e-6 * rng.standard_normal(chain.params.shape)
        near = Received((chain.params * noise).astype(np.float32), chain.lr)
        moved.append(distance(train(module, near, work).params, expected.params))
    return max(moved)


def assert_agree(found: Trained, module: nn.Module, chain: Received, work: Sequence[Work]) -> None:
    """Hold the parameters to 1e-5, except where float32 itself cannot tell on which side of a kink a unit is."""
    expected = train(module, chain, work)
    apart = distance(found.params, expected.params)
    assert apart < 1e-5 or apart < 3 * sensitivity(module, chain, work, expected) < 1e-2
    np.testing.assert_allclose(found.train_losses, expected.train_losses, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-4, atol=1e-5)
