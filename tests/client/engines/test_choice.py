"""Which engine a model gets."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import perennial.client.engines as engines
from perennial.client.engines.loop import LoopEngine
from perennial.client.engines.stacked import StackedEngine
from perennial.common.command.errors import InputError
from perennial.common.data.examples import Signature
from perennial.common.task import models
from tests.client.engines.marks import needs_compiler


def labelled(shape: tuple[int, ...]) -> Signature:
    return Signature.labelled(shape, 2)


class Branching(nn.Module):
    """Its path depends on the data, which vmap refuses."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.linear(x)
        return y if float(x.sum()) > 0 else -y


class Counting(nn.Module):
    """It changes a buffer of its own in place, as BatchNorm does, of which vmap knows nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.seen += x.detach().sum(0)
        return x


@needs_compiler
def test_auto_takes_native_for_the_papers_network() -> None:
    assert engines.choose("auto", models.build("cnn", (3, 32, 32), 10), labelled((3, 32, 32))).name == "native"


def test_auto_takes_no_engine_for_cpus_if_a_gpu_was_given() -> None:
    cnn = models.build("cnn", (3, 32, 32), 10)
    assert engines.choose("auto", cnn, labelled((3, 32, 32)), gpu=True).name == "stacked"


@pytest.mark.parametrize("engine", [LoopEngine, StackedEngine])
def test_an_engine_that_computes_by_torch_uses_the_gpu_that_its_worker_was_given(
    monkeypatch: pytest.MonkeyPatch, engine: type[LoopEngine] | type[StackedEngine]
) -> None:
    moved: list[object] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(nn.Module, "to", lambda module, device: moved.append(device) or module)
    engine(nn.Linear(2, 2))
    assert moved == [torch.device("cuda")]


def test_auto_takes_stacked_for_other_layers() -> None:
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.GELU(), nn.Flatten(), nn.Linear(4 * 36, 3))
    assert engines.choose("auto", module, labelled((1, 8, 8))).name == "stacked"


@pytest.mark.parametrize(
    "module",
    [Branching(), nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), nn.Sequential(nn.Linear(4, 4), Counting())],
)
def test_auto_takes_loop_for_what_vmap_refuses(module: nn.Module) -> None:
    assert engines.choose("auto", module, labelled((4,))).name == "loop"


TWICE = nn.Linear(4, 4)


@pytest.mark.parametrize(
    ("name", "module", "message"),
    [
        ("native", nn.Sequential(TWICE, nn.ReLU(), TWICE), "layer 2 shares its parameters"),
        ("native", nn.Sequential(nn.Linear(4, 4), nn.Tanh()), r"layer 1 \(Tanh\)"),
        ("native", Branching(), "Branching"),
        ("stacked", nn.Sequential(nn.Linear(4, 4), Counting()), "ends elsewhere than engine loop|fails in a step"),
        ("fast", nn.Linear(4, 4), "auto, native, compiled, stacked, loop"),
    ],
)
def test_an_engine_that_does_not_take_the_model_is_an_error(name: str, module: nn.Module, message: str) -> None:
    with pytest.raises(InputError, match=message):
        engines.choose(name, module, labelled((4,)))


@pytest.mark.parametrize(
    "tail", [[], [nn.ReLU()], [nn.MaxPool2d(3, 1)], [nn.MaxPool2d(2)]], ids=["conv", "relu", "pool", "fused pool"]
)
def test_native_refuses_an_image_that_is_flattened_into_the_output(tail: list[nn.Module]) -> None:
    module = nn.Sequential(nn.Conv2d(1, 5, 3), *tail, nn.Flatten())
    with pytest.raises(InputError, match="end with Flatten and Linear"):
        engines.choose("native", module, labelled((1, 6, 6)))
    assert engines.choose("auto", module, labelled((1, 6, 6))).name == "stacked"


def hooked_outside() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4))
    module.register_forward_hook(lambda _module, _given, found: 2 * found)
    return module


def test_native_refuses_what_runs_something_of_the_users() -> None:
    with pytest.raises(InputError, match="has hooks or parametrizations; use engine auto"):
        engines.choose("native", hooked_outside(), labelled((4,)))
    assert engines.choose("auto", hooked_outside(), labelled((4,))).name == "stacked"


@pytest.mark.parametrize("name", ["auto", "native", "stacked", "loop"])
def test_no_engine_takes_hooks_that_its_copy_of_the_model_would_lose(name: str) -> None:
    module = nn.Sequential(nn.Linear(4, 4))
    module[0].weight.register_hook(lambda gradient: 2 * gradient)
    with pytest.raises(InputError, match=r"hooks on its parameters, .* put them on its modules"):
        engines.choose(name, module, labelled((4,)))
