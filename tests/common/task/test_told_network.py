"""Networks that are told something: what they compute, and which networks can be."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from perennial.common.command.errors import InputError
from perennial.common.data.examples import ArrayType, Signature
from perennial.common.task import ready
from perennial.common.task.told_network import ToldNetwork


def told_of(shape: tuple[int, ...], told: str = "block", numbers: int = 3) -> Signature:
    plain = Signature.labelled(shape, 5)
    return replace(plain, x=(*plain.x, ArrayType(("float32",), (numbers,))), told=told)


@pytest.mark.parametrize("told", ["block", "time"])
@pytest.mark.parametrize(("model", "shape"), [("cnn", (3, 20, 20)), ("mlp", (7,)), ("linear", (2, 3))])
def test_the_initial_network_answers_as_the_plain_one_does(model: str, shape: tuple[int, ...], told: str) -> None:
    plain = ready.build(ready.classification, Signature.labelled(shape, 5), model, seed=4)
    network = ready.build(ready.classification, told_of(shape, told), model, seed=4)
    x = torch.randn(6, *shape)
    fact = torch.eye(3)[[0, 1, 2, 0, 1, 2]] if told == "block" else torch.randn(6, 3)
    assert torch.allclose(network(x, fact), plain(x), atol=1e-6)


def test_each_layer_that_is_told_adds_the_blocks_own_bias() -> None:
    network = ready.build(ready.classification, told_of((3, 20, 20)), "cnn")
    assert isinstance(network, ToldNetwork)
    assert sorted(network.facts) == ["conv1", "fc1", "fc2", "fc3"]
    with torch.no_grad():
        for value in network.facts.parameters():
            value.normal_()
    for block in range(3):
        plain = ready.build(ready.classification, Signature.labelled((3, 20, 20), 5), "cnn")
        with torch.no_grad():
            for name, fact in network.facts.items():
                plain.get_submodule(name).bias.copy_(fact.weight[:, block])
        x = torch.randn(4, 3, 20, 20)
        assert torch.allclose(network(x, torch.eye(3)[[block] * 4]), plain(x), atol=1e-5)


def test_a_network_of_a_tasks_own_gets_what_it_is_told_as_its_last_input() -> None:
    class Own(nn.Module):
        def forward(self, x: torch.Tensor, told: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, told], 1)

    task = replace(ready.classification, network=lambda signature: Own())
    assert np.shape(ready.build(task, told_of((2,)))(torch.zeros(4, 2), torch.zeros(4, 3))) == (4, 5)


def test_other_models_are_refused_in_one_line() -> None:
    with pytest.raises(
        InputError, match=r"told: block takes a model that is an nn\.Sequential, got Linear; write a task"
    ):
        ToldNetwork(nn.Linear(2, 2), "block", 3)
    with pytest.raises(InputError, match="needs a model with a Linear or convolutional layer that has a bias"):
        ToldNetwork(nn.Sequential(nn.Linear(2, 2, bias=False)), "time", 2)
