"""Every engine agrees with plain torch eager to 1e-5 in the parameters after ten steps."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import nn

from perennial.client.engines.engine import Engine, Received
from perennial.client.engines.loop import LoopEngine
from perennial.client.engines.native import NativeEngine
from perennial.client.engines.stacked import StackedEngine
from perennial.common.task import models
from tests.client.engines import reference
from tests.client.engines.marks import needs_compiler
from tests.client.engines.networks import Case, networks

# Torch's threads wait by spinning, which on a busy machine takes ages.
torch.set_num_threads(1)

Maker = Callable[[nn.Module, tuple[int, ...]], Engine]
MAKERS = [
    pytest.param(lambda module, shape: LoopEngine(module), id="loop"),
    pytest.param(lambda module, shape: StackedEngine(module), id="stacked"),
    pytest.param(NativeEngine, id="native", marks=needs_compiler),
]
# No shrinking: every smaller network would be compiled.
quiet = settings(
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def check(make: Maker, case: Case, batch: int, judged: int, integers: bool) -> None:
    rng = np.random.default_rng(batch)
    work = reference.clients(rng, case.shape, case.classes, 4, batch, judged, integers)
    params = reference.vector(case.module)
    chains = [Received(params, 0.01), Received(params * np.float32(0.5), 0.02)]
    engine = make(case.module, case.shape)
    both = engine.train(chains, work)
    for found, chain in zip(both, chains, strict=True):
        reference.assert_agree(found, case.module, chain, work)
    alone = engine.train(chains[:1], work)[0]
    assert np.array_equal(alone.params, both[0].params)
    for found, losses in zip(both, engine.judge([chain.params for chain in chains], work), strict=True):
        assert np.array_equal(losses, found.losses, equal_nan=True)


@pytest.mark.parametrize("make", MAKERS)
def test_an_activation_that_stands_in_several_places_is_applied_in_each(make: Maker) -> None:
    relu = nn.ReLU()
    module = nn.Sequential(nn.Flatten(), nn.Linear(12, 9), relu, nn.Linear(9, 8), relu, nn.Linear(8, 3))
    check(make, Case(module, (3, 2, 2), 3), batch=3, judged=4, integers=False)


@pytest.mark.parametrize("make", MAKERS)
@quiet
@given(networks(), st.sampled_from([1, 2, 3, 4, 7, 8, 19]), st.sampled_from([0, 1, 10]), st.booleans())
def test_engines_agree_with_eager_on_random_networks(
    make: Maker, case: Case, batch: int, judged: int, integers: bool
) -> None:
    check(make, case, batch, judged, integers)


@pytest.mark.parametrize("batch", [1, 2, 9])
@pytest.mark.parametrize("make", MAKERS)
def test_engines_agree_with_eager_on_the_papers_network(make: Maker, batch: int) -> None:
    shape = (3, 32, 32)
    check(make, Case(models.build("cnn", shape, 10, seed=1), shape, 10), batch, 13, integers=True)


@pytest.mark.parametrize("make", MAKERS)
def test_a_nan_reaches_parameters_and_losses(make: Maker) -> None:
    shape = (3, 32, 32)
    module = models.build("cnn", shape, 10)
    params = reference.vector(module)
    params[0] = np.nan
    work = reference.clients(np.random.default_rng(0), shape, 10, 2, 2, 5, integers=True)
    found = make(module, shape).train([Received(params, 0.1)], work)[0]
    assert np.isnan(found.params).any()
    assert np.isnan(found.train_losses).all()
    assert np.isnan(found.losses).all()


def test_engines_leave_torchs_generator_alone() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(12, 3))
    work = reference.clients(np.random.default_rng(0), (12,), 3, 2, 2, 2, False)
    before = torch.random.get_rng_state()
    first = LoopEngine(module).train([Received(reference.vector(module), 0.1)], work)[0]
    again = LoopEngine(module).train([Received(reference.vector(module), 0.1)], work)[0]
    assert torch.equal(before, torch.random.get_rng_state())
    assert np.array_equal(first.params, again.params)
