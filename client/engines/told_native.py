"""The native engine for a network that is told the block: in one order all examples are of one block.

Of the block's biases and of all that the blocks share it makes the plain network that its kernels know.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from perennial.client.engines.engine import Received, Trained, Work, check_size
from perennial.client.engines.native import NativeEngine
from perennial.client.engines.network import Unsupported
from perennial.common.data.examples import BLOCK, Inputs, Targets
from perennial.common.task.models import arrays_of
from perennial.common.task.told_network import ToldNetwork
from perennial.common.wire.chains import Vector
from perennial.common.wire.layout import Layout


class ToldNativeEngine:
    """As the native engine, for a ``ToldNetwork``. Plain SGD leaves the biases of the other blocks as they are."""

    name = "native"

    def __init__(self, module: ToldNetwork, shape: tuple[int, ...], threads: int = 1) -> None:
        if module.told != BLOCK:
            raise Unsupported(f"it is told the {module.told}, which differs from example to example")
        plain = _plain(module)
        self._engine = NativeEngine(plain, shape, threads)
        self._places = _places(module, plain)
        self._size = Layout.of(arrays_of(module)).size

    def train(self, chains: Sequence[Received], work: Sequence[Work]) -> list[Trained]:
        """Return one result a chain; both chains see the same batches."""
        places = self._places[_block(work)]
        plain = [replace(chain, params=self._taken(chain.params, places)) for chain in chains]
        return [
            replace(trained, params=_put(chain.params, places, trained.params))
            for chain, trained in zip(chains, self._engine.train(plain, [_untold(one) for one in work]), strict=True)
        ]

    def judge(self, models: Sequence[Vector], work: Sequence[Work]) -> list[NDArray[np.float64]]:
        """Return, for each model, every client's mean loss on its ``judged`` rows, (K,)."""
        places = self._places[_block(work)]
        return self._engine.judge([self._taken(model, places) for model in models], [_untold(one) for one in work])

    def right(self, model: Vector, x: Inputs, y: Targets, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Tell for each of ``rows``, which are of one block, whether the model's best guess is its label."""
        places = self._places[_told(x[-1], rows)]
        return self._engine.right(self._taken(model, places), x[:-1], y, rows)

    def _taken(self, model: Vector, places: NDArray[np.int64]) -> Vector:
        check_size(model, self._size)
        return model[places]


def _plain(module: ToldNetwork) -> nn.Sequential:
    """Return the network with a bias of its own in each layer that is told the block."""
    network = copy.deepcopy(module.network)
    for name in module.facts:
        layer: Any = network.get_submodule(name)
        layer.bias = nn.Parameter(torch.zeros(len(layer.weight)))
    return network


def _places(module: ToldNetwork, plain: nn.Sequential) -> list[NDArray[np.int64]]:
    """Return, for each block, where the parameters of its plain network stand in the model."""
    layout = Layout.of(arrays_of(module))
    stands = {
        name: np.arange(start, stop).reshape(shape)
        for name, shape, start, stop in zip(
            layout.names, layout.shapes, layout.bounds[:-1], layout.bounds[1:], strict=True
        )
    }
    biases = {f"{name}.bias": stands[f"facts.{name}.weight"] for name in module.facts}
    blocks = next(iter(biases.values())).shape[1]
    return [
        np.concatenate(
            [
                biases[name][:, block] if name in biases else stands[f"network.{name}"].reshape(-1)
                for name in plain.state_dict()
            ]
        )
        for block in range(blocks)
    ]


def _put(model: Vector, places: NDArray[np.int64], trained: Vector) -> Vector:
    found = model.astype(np.float32)
    found[places] = trained
    return found


def _untold(work: Work) -> Work:
    return replace(work, x=work.x[:-1])


def _block(work: Sequence[Work]) -> int:
    """Return the block that all examples of an order are of."""
    if not work:
        raise ValueError("an order needs at least one client, got none")
    told = {_told(one.x[-1], rows) for one in work for rows in (one.steps, one.judged) if rows.size}
    if len(told) != 1:
        raise ValueError(f"an order must be of one block, got {sorted(told)}")
    return told.pop()


def _told(facts: NDArray[np.float32], rows: NDArray[np.int64]) -> int:
    """Return the block that the one-hots of ``rows`` name."""
    if facts.strides[0] == 0:
        rows = rows.reshape(-1)[:1]
    blocks = np.unique(facts[rows.reshape(-1)].argmax(1))
    if len(blocks) != 1:
        raise ValueError(f"all rows must be of one block, got {blocks.tolist()}")
    return int(blocks[0])
