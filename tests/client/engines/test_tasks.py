"""Engines on other tasks than classification: each agrees with a plain torch loop after ten steps."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import perennial.client.engines as engines
from perennial.client.engines.engine import Received, Trained, Work
from perennial.common.command.errors import InputError
from perennial.common.data.examples import ArrayType, Inputs, Signature, Targets
from perennial.common.task import ready
from perennial.common.task.learning_task import Batch, Score, Task
from perennial.common.task.local_optimisers import SGD, Adam, Optimiser
from tests.client.engines.reference import distance, vector

torch.set_num_threads(1)


class TwoInputs(nn.Module):
    """Numbers, and a category of five."""

    def __init__(self) -> None:
        super().__init__()
        self.category, self.head = nn.Embedding(5, 3), nn.Linear(7, 2)

    def forward(self, numbers: Tensor, category: Tensor) -> Tensor:
        found: Tensor = self.head(torch.cat([numbers, self.category(category)], 1))
        return found


class NextToken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token, self.norm, self.head = nn.Embedding(11, 6), nn.LayerNorm(6), nn.Linear(6, 11)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.norm(self.token(tokens).cumsum(1)))  # type: ignore[no-any-return]


def shifted(x: Inputs, y: Targets) -> Batch:
    tokens = torch.from_numpy(x[0].astype(np.int64))
    return (tokens[:, :-1],), tokens[:, 1:]


def token_loss(outputs: Tensor, tokens: Tensor) -> Tensor:
    return functional.cross_entropy(outputs.transpose(1, 2), tokens, reduction="none").mean(1)


Draw = Callable[[np.random.Generator, int], tuple[Inputs, Targets]]


@dataclass(frozen=True)
class Case:
    """A task, how its examples are drawn, and the mean loss of a batch written without it."""

    task: Task
    model: str
    draw: Draw
    mean: Callable[[nn.Module, Inputs, Any], Tensor]


def floats(rng: np.random.Generator, *shape: int) -> Any:
    return rng.standard_normal(shape, np.float32)


def t(array: Any) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))


CASES = {
    "binary": Case(
        ready.binary,
        "mlp",
        lambda rng, n: ((floats(rng, n, 4),), rng.integers(0, 2, n)),
        lambda net, x, y: functional.binary_cross_entropy_with_logits(net(t(x[0])), t(y).float()[:, None]),
    ),
    "regression": Case(
        ready.regression,
        "linear",
        lambda rng, n: ((rng.standard_normal((n, 2, 3)),), floats(rng, n)),
        lambda net, x, y: functional.mse_loss(net(t(x[0]).float()), t(y)[:, None]),
    ),
    "regression of whole numbers": Case(
        ready.regression,
        "mlp",
        lambda rng, n: ((floats(rng, n, 3),), rng.integers(-3, 9, n)),
        lambda net, x, y: functional.mse_loss(net(t(x[0])), t(y).float()[:, None]),
    ),
    "vectors out of two inputs": Case(
        replace(ready.regression, network=lambda signature: TwoInputs()),
        "auto",
        lambda rng, n: ((floats(rng, n, 4), rng.integers(0, 5, n).astype(np.int16)), floats(rng, n, 2)),
        lambda net, x, y: functional.mse_loss(net(t(x[0]), t(x[1]).long()), t(y)),
    ),
    "tokens without targets": Case(
        Task(
            loss=token_loss,
            score=Score("loss of a token", "lower", token_loss),
            network=lambda signature: NextToken(),
            collate=shifted,
        ),
        "auto",
        lambda rng, n: ((rng.integers(0, 11, (n, 6)).astype(np.uint8),), None),
        lambda net, x, y: functional.cross_entropy(
            net(t(x[0]).long()[:, :-1]).reshape(-1, 11), t(x[0]).long()[:, 1:].reshape(-1)
        ),
    ),
}
OPTIMISERS: dict[str, tuple[Optimiser, Callable[[Any], torch.optim.Optimizer]]] = {
    "plain": (SGD(), lambda parameters: torch.optim.SGD(parameters, 0.01)),
    "momentum": (
        SGD(momentum=0.9, weight_decay=0.01),
        lambda parameters: torch.optim.SGD(parameters, 0.01, momentum=0.9, weight_decay=0.01),
    ),
    "adam": (Adam(weight_decay=0.1), lambda parameters: torch.optim.Adam(parameters, 0.01, weight_decay=0.1)),
    "of one's own": (
        lambda parameters, lr: torch.optim.Adagrad(parameters, lr),
        lambda parameters: torch.optim.Adagrad(parameters, 0.01),
    ),
}


def clients(case: Case, seed: int, batch: int) -> list[Work]:
    rng = np.random.default_rng(seed)
    return [
        Work(client, *case.draw(rng, 20), rng.integers(0, 20, (10, batch + client % 2)), rng.integers(0, 20, 7))
        for client in range(3)
    ]


def rows_of(work: Work, rows: Any) -> tuple[Inputs, Any]:
    return tuple(x[rows] for x in work.x), None if work.y is None else work.y[rows]


def plainly(case: Case, network: nn.Module, make: Callable[[Any], torch.optim.Optimizer], work: list[Work]) -> Trained:
    """Train by torch alone."""
    found, train_losses, losses = [], [], []
    for client in work:
        own = copy.deepcopy(network)
        with torch.no_grad():
            losses.append(case.mean(own, *rows_of(client, client.judged)).item())
        optimiser, taken = make(own.parameters()), []
        for rows in client.steps:
            optimiser.zero_grad()
            loss = case.mean(own, *rows_of(client, rows))
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            taken.append(loss.item())
        found.append(vector(own).astype(np.float64))
        train_losses.append(np.mean(taken))
    return Trained(np.mean(found, 0).astype(np.float32), np.array(train_losses), np.array(losses))


@pytest.mark.parametrize("optimiser", OPTIMISERS)
@pytest.mark.parametrize("name", CASES)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 1000), batch=st.sampled_from([1, 2, 5]))
def test_every_engine_that_takes_a_task_agrees_with_a_plain_torch_loop(
    name: str, optimiser: str, seed: int, batch: int
) -> None:
    ours, theirs = OPTIMISERS[optimiser]
    case = CASES[name]
    task = replace(case.task, optimiser=ours)
    work = clients(case, seed, batch)
    signature = Signature.of(work[0].x, work[0].y, "here")
    if name == "regression of whole numbers":
        signature = replace(signature, classes=0)
    if name == "binary":
        signature = replace(signature, classes=2)
    network = ready.build(task, signature, case.model, seed)
    expected = plainly(case, network, theirs, work)
    for engine in ("loop",) if optimiser == "of one's own" else ("loop", "stacked"):
        chosen = engines.choose(engine, network, signature, task=task)
        (found,) = chosen.train([Received(vector(network), 0.01)], work)
        assert distance(found.params, expected.params) < 1e-5
        np.testing.assert_allclose(found.train_losses, expected.train_losses, rtol=1e-4)
        np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-4)
        assert np.array_equal(chosen.judge([vector(network)], work)[0], found.losses)


def labels() -> Signature:
    return Signature.labelled((4,), 3)


def network() -> nn.Module:
    return ready.build(ready.classification, labels(), "linear")


@pytest.mark.parametrize(
    ("task", "signature", "message"),
    [
        (replace(ready.classification, optimiser=Adam()), labels(), "not plain SGD on cross-entropy"),
        (replace(ready.classification, loss=lambda o, y: o.sum(1)), labels(), "not plain SGD on cross-entropy"),
        (ready.classification, replace(labels(), x=(ArrayType(("float64",), (4,)),)), "one array of uint8 or float32"),
    ],
)
def test_the_native_engine_takes_nothing_but_what_its_kernels_compute(
    task: Task, signature: Signature, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        engines.choose("native", network(), signature, task=task)
    assert engines.choose("auto", network(), signature, task=task).name == "stacked"


def test_an_optimiser_of_ones_own_is_kept_to_the_loop() -> None:
    task = replace(ready.classification, optimiser=lambda parameters, lr: torch.optim.RMSprop(parameters, lr))
    with pytest.raises(InputError, match="an optimiser of its own"):
        engines.choose("stacked", network(), labels(), task=task)
    assert engines.choose("auto", network(), labels(), task=task).name == "loop"


def test_batches_that_cannot_be_stacked_name_the_engine_that_takes_them() -> None:
    def longest(x: Inputs, y: Targets) -> Batch:
        return (torch.from_numpy(x[0][:, : int(x[0].max()) + 1]),), torch.from_numpy(np.asarray(y))

    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: Tensor) -> Tensor:
            return x.sum(1, keepdim=True) * self.weight

    task = replace(ready.classification, network=lambda signature: Sum(), collate=longest)
    x = np.array([[0.0, 0, 0, 0], [3, 0, 0, 0]], np.float32)
    work: Sequence[Work] = [Work(k, (x,), np.array([0, 1]), np.array([[k, k]]), np.array([0])) for k in (0, 1)]
    chain = Received(np.ones(3, np.float32), 0.1)
    with pytest.raises(InputError, match=r"its collate gives clients batches of other shapes .* use engine loop"):
        engines.choose("stacked", Sum(), labels(), task=task).train([chain], work)
    assert np.isfinite(engines.choose("loop", Sum(), labels(), task=task).train([chain], work)[0].train_losses).all()
