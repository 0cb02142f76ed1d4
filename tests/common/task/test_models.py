"""Models by name, and factories that do not fit."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from perennial.common.command.errors import InputError
from perennial.common.task import models
from perennial.common.wire.chains import Vector
from perennial.common.wire.layout import Layout


@pytest.fixture
def factories(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], str]:
    """Return a way to give a factory a name that the configuration could hold."""

    def named(factory: Any) -> str:
        module = types.ModuleType("someones_models")
        module.make = factory  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "someones_models", module)
        return "someones_models:make"

    return named


def initial(name: str, shape: tuple[int, ...], classes: int, seed: int = 0) -> Vector:
    arrays = models.arrays_of(models.build(name, shape, classes, seed))
    return Layout.of(arrays).flatten(arrays)


def test_the_papers_network_has_62006_parameters() -> None:
    assert initial("cnn", (3, 32, 32), 10).size == 62_006


def test_the_papers_network_is_the_tutorials() -> None:
    """Built here from the tutorial's own layers; the arrays' names and shapes must be those."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(3, 6, 5), nn.Conv2d(6, 16, 5)
            self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = nn.functional.max_pool2d(nn.functional.relu(self.conv1(x)), 2, 2)
            x = nn.functional.max_pool2d(nn.functional.relu(self.conv2(x)), 2, 2)
            x = nn.functional.relu(self.fc1(torch.flatten(x, 1)))
            return self.fc3(nn.functional.relu(self.fc2(x)))  # type: ignore[no-any-return]

    ours, tutorial = models.build("cnn", (3, 32, 32), 10, seed=1), Net()
    tutorial.load_state_dict(ours.state_dict())
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(ours(x), tutorial(x))


@pytest.mark.parametrize(
    ("name", "shape"), [("cnn", (1, 28, 28)), ("mlp", (1, 8, 8)), ("linear", (5,)), ("mlp", (2, 3))]
)
def test_named_models_take_their_shapes(name: str, shape: tuple[int, ...]) -> None:
    assert models.build(name, shape, 7)(torch.zeros(3, *shape)).shape == (3, 7)


def test_linear_starts_at_zero() -> None:
    assert not initial("linear", (2, 3), 4, seed=9).any()


def test_initial_weights_come_from_the_seed_alone() -> None:
    torch.manual_seed(5)
    first = initial("mlp", (4,), 2, seed=1)
    before = torch.random.get_rng_state()
    again, other = initial("mlp", (4,), 2, seed=1), initial("mlp", (4,), 2, seed=2)
    assert (first == again).all()
    assert (first != other).any()
    assert torch.equal(before, torch.random.get_rng_state())
    assert first.dtype == np.float32


@pytest.mark.parametrize(
    ("shape", "name"),
    [((3, 32, 32), "cnn"), ((1, 28, 28), "cnn"), ((1, 8, 8), "mlp"), ((20,), "mlp"), ((3, 15, 32), "mlp")],
)
def test_the_default_goes_by_the_images_size(shape: tuple[int, ...], name: str) -> None:
    assert models.default_for(shape) == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("resnet", "model must be one of cnn, mlp, linear or package.module:factory, got 'resnet'"),
        ("no.such.module:make", "'no.such.module:make' cannot be imported.*is its package installed here"),
        ("json:nothing", "'json:nothing' cannot be imported"),
        (":make", "cannot be imported"),
        ("json:", "cannot be imported"),
        ("cnn", "model cnn needs images of at least 16x16"),
    ],
)
def test_a_model_that_is_not_there_is_refused(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        models.build(name, (8, 8), 10)


def test_a_factory_of_ones_own_is_used(factories: Callable[[Any], str]) -> None:
    name = factories(lambda shape, classes: nn.Sequential(nn.Flatten(), nn.Linear(shape[0], classes)))
    assert models.build(name, (4,), 3)(torch.zeros(2, 4)).shape == (2, 3)


def with_buffer(classes: int, value: int) -> nn.Module:
    network = nn.Linear(4, classes)
    network.register_buffer("seen", torch.tensor(value))
    return network


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        (lambda shape, classes: nn.Linear(4, classes + 1), r"must give 3 outputs for each example, got \(4,\)"),
        (lambda shape, classes: nn.Linear(5, classes), r"does not take data of shape \(4,\)"),
        (lambda shape, classes: "network", r"must return a torch nn.Module, got str"),
        (lambda shape, classes: nn.Linear(4, classes).double(), "weight is float64; .* must be float32, whole"),
        (lambda shape, classes: with_buffer(classes, 2**24 + 1), "seen has whole numbers above 16777216"),
        (lambda shape, classes: nn.LSTM(4, classes), "must give 3 outputs for each example, got tuple"),
        (lambda: nn.Linear(4, 3), r"model 'someones_models:make' could not be made: .* takes 0 positional arguments"),
    ],
)  # fmt: skip
def test_a_factory_that_does_not_fit_is_refused(factories: Callable[[Any], str], factory: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        models.build(factories(factory), (4,), 3)


def test_checking_a_model_leaves_it_in_training_mode() -> None:
    assert models.build("mlp", (4,), 3).training
