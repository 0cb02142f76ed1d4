"""Which engine a model gets."""

from __future__ import annotations

import shutil

import pytest
from torch import Tensor, nn

import client.engines as engines
from common import models
from common.errors import InputError

needs_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")


class Branching(nn.Module):
    """Its path depends on the data, which vmap refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y if float(x.sum()) > 0 else -y


@needs_compiler
def test_auto_takes_native_for_the_papers_network() -> None:
    assert engines.choose("auto", models.build("cnn", (3, 32, 32), 10), (3, 32, 32)).name == "native"


def test_auto_takes_stacked_for_other_layers() -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.GELU(), nn.Flatten(), nn.Linear(4 * 36, 3))
    assert engines.choose("auto", module, (1, 8, 8)).name == "stacked"


@pytest.mark.parametrize(
    "module",
    [Branching(), nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))],
)
def test_auto_takes_loop_for_what_vmap_refuses(module: nn.Module) -> None:
    assert engines.choose("auto", module, (4,)).name == "loop"


TWICE = nn.Linear(4, 4)


@pytest.mark.parametrize(
    ("name", "module", "message"),
    [
        ("native", nn.Sequential(TWICE, nn.ReLU(), TWICE), "layer 2 shares its parameters"),
        ("native", nn.Sequential(nn.Linear(4, 4), nn.Tanh()), r"layer 1 \(Tanh\)"),
        ("native", Branching(), "Branching"),
        ("stacked", nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)), "running_mean"),
        ("fast", nn.Linear(4, 4), "auto, loop, stacked, native"),
    ],
)
def test_an_engine_that_does_not_take_the_model_is_an_error(name: str, module: nn.Module, message: str) -> None:
    with pytest.raises(InputError, match=message):
        engines.choose(name, module, (4,))
