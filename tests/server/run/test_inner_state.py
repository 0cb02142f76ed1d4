"""The state of a strategy: saved without pickles, and put into another instance that goes on to the bit."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedYogi, Strategy

from perennial.common.command.errors import InputError
from perennial.server.run import generators, inner_state, tree
from tests.server.run.flower_strategies import STRATEGIES, Nodes, initial, seed, train


class Own(FedAvg):
    """A user's strategy with whatever attributes a test gives it."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        vars(self).update(attributes)


class Careful(Own):
    """A strategy with a lock, which says itself what its state is."""

    def __init__(self, count: Any = 0) -> None:
        super().__init__(lock=threading.Lock(), count=count)

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "moments": {3: np.arange(2)}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.loaded = state["count"], state


def stored(state: Any) -> Any:
    """Return a state as a checkpoint gives it back."""
    return tree.read(*tree.write(state))


def restored(strategy: Strategy, fresh: Strategy) -> Any:
    inner_state.restore(fresh, stored(inner_state.save(strategy)))
    return fresh


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.usefixtures("flower_identity")
def test_a_restored_strategy_of_flower_goes_on_to_the_bit(name: str) -> None:
    make = STRATEGIES[name]
    seed(1)
    strategy = make()
    arrays = train(strategy, initial(), (1, 2))
    saved = stored({"strategy": inner_state.save(strategy), "generators": generators.save()})
    unbroken, broken = Nodes(), Nodes()
    expected = train(strategy, arrays.copy(), (3, 4), unbroken)
    # A new process: generators somewhere else, and an instance that has never configured a round.
    seed(99)
    other = make()
    inner_state.restore(other, saved["strategy"])
    generators.restore(saved["generators"])
    found = train(other, arrays.copy(), (3, 4), broken)
    assert broken.asked == unbroken.asked
    assert {key: one.data for key, one in found.items()} == {key: one.data for key, one in expected.items()}
    assert tree.first_difference(inner_state.save(other), inner_state.save(strategy)) is None


@pytest.mark.parametrize("name", ["FedAdam", "FedYogi", "FedAdagrad", "FedAvgM", "ServerSideAdaptiveClipping"])
@pytest.mark.usefixtures("flower_identity")
def test_without_its_state_a_strategy_would_go_on_otherwise(name: str) -> None:
    """The check above sees what it looks for: these strategies remember something between rounds."""
    seed(1)
    strategy = STRATEGIES[name]()
    arrays = train(strategy, initial(), (1, 2))
    states = generators.save()
    expected = train(strategy, arrays.copy(), (3, 4))
    generators.restore(states)
    found = train(STRATEGIES[name](), arrays.copy(), (3, 4))
    assert {key: one.data for key, one in found.items()} != {key: one.data for key, one in expected.items()}


@pytest.mark.parametrize(
    "value",
    [
        None, True, 5, 2**70, 0.1, float("nan"), "text", b"", b"\x00\xff", np.float32(0.1), np.int64(3),
        np.arange(6, dtype=np.float16).reshape(2, 3), [1, [2.5, "a"]], (1, (2,)), {"a": (1, [np.zeros(2)])},
        {3: 1, (1, 2): "b", None: 0.5}, Array(np.arange(3)), ConfigRecord({"lr": 0.1, "names": ["a"], "raw": b"x"}),
        MetricRecord({"loss": 0.5, "each": [1, 2]}), {"w": ArrayRecord([np.zeros(2), np.ones((2, 2), np.int8)])},
    ],
)  # fmt: skip
def test_every_kind_of_value_comes_back_as_it_was(value: Any) -> None:
    found = restored(Own(kept=value), Own(kept="other")).kept
    assert type(found) is type(value)
    assert repr(found) == repr(value)
    one, other = (inner_state.save(Own(kept=each)) for each in (found, value))
    assert tree.first_difference(one, other) is None


def test_an_array_keeps_its_bytes_whatever_framework_wrote_it() -> None:
    found = restored(Own(kept=Array("bfloat16", (2,), "other.tensor", b"\x01\x02\x03\x04")), Own()).kept
    assert (found.dtype, found.shape, found.stype, found.data) == (
        "bfloat16",
        (2,),
        "other.tensor",
        b"\x01\x02\x03\x04",
    )


@pytest.mark.parametrize(
    "function", [len, lambda: 1, partial(print, 1), FedAvg, np.add, np.mean, np, logging.getLogger("a")]
)
def test_functions_classes_and_loggers_are_those_of_the_new_instance(function: Any) -> None:
    mine = object.__repr__
    found = restored(Own(function=function, pair=(function, 1)), Own(function=mine, pair=(mine, 2)))
    assert found.function is mine
    assert found.pair == (mine, 1)


def test_a_bound_method_stays_bound_to_the_new_instance() -> None:
    one, other = Own(), Own()
    one.hook, other.hook = one.summary, other.summary  # type: ignore[attr-defined]
    assert restored(one, other).hook.__self__ is other


def test_strategies_within_are_restored_in_place_wherever_they_stand() -> None:
    saved = Own(inner=FedAvgM(), blocks={"day": FedAdam(eta=0.5), "night": [FedAdam(eta=0.25)]})
    saved.inner.momentum_vector = [np.ones(2)]  # type: ignore[attr-defined]
    day, night = FedAdam(), FedAdam()
    fresh = Own(inner=FedAvgM(), blocks={"day": day, "night": [night]})
    restored(saved, fresh)
    assert fresh.inner.momentum_vector[0].tolist() == [1, 1]  # type: ignore[attr-defined]
    assert fresh.blocks["day"] is day  # type: ignore[attr-defined]
    assert (day.eta, night.eta) == (0.5, 0.25)


def test_a_strategy_that_is_met_twice_or_knows_its_owner_is_saved_once() -> None:
    def family() -> Own:
        inner = FedAdam(eta=0.5)
        owner = Own(inner=inner, all=[inner])
        inner.owner = owner  # type: ignore[attr-defined]
        return owner

    saved, fresh = family(), family()
    saved.inner.eta = 0.125  # type: ignore[attr-defined]
    restored(saved, fresh)
    assert fresh.inner.eta == 0.125  # type: ignore[attr-defined]
    assert fresh.all[0] is fresh.inner  # type: ignore[attr-defined]
    assert fresh.inner.owner is fresh  # type: ignore[attr-defined]


def test_attributes_in_slots_are_saved_too() -> None:
    class Slotted(FedAvg):
        __slots__ = ("__hidden", "empty", "shown")

        def __init__(self, value: int) -> None:
            super().__init__()
            self.__hidden, self.shown = value, value

        def both(self) -> tuple[int, int]:
            return self.__hidden, self.shown

    assert restored(Slotted(7), Slotted(0)).both() == (7, 7)


def test_a_saved_state_shares_nothing_with_the_strategy() -> None:
    strategy = Own(array=np.zeros(2), listed=[np.zeros(2)])
    saved = inner_state.save(strategy)
    strategy.array += 1  # type: ignore[attr-defined]
    strategy.listed[0] += 1  # type: ignore[attr-defined]
    one, other = Own(array=None, listed=None), Own(array=None, listed=None)
    for fresh in (one, other):
        inner_state.restore(fresh, saved)
        fresh.array += 1  # type: ignore[attr-defined]
    assert one.array.tolist() == [1, 1]  # type: ignore[attr-defined]
    assert one.listed[0].tolist() == [0, 0]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (threading.Lock(), r"Own\.odd is a lock"),
        ({"a": [threading.Lock()]}, r"Own\.odd\['a'\]\[0\] is a lock"),
        ({1, 2}, r"Own\.odd is a set"),
        (np.random.default_rng(0), r"Own\.odd is a Generator"),
        (np.zeros(2, np.complex128), r"Own\.odd is a ndarray of complex128"),
    ],
)
def test_an_attribute_of_another_kind_is_refused_by_name_with_what_to_do(value: Any, says: str) -> None:
    with pytest.raises(InputError, match=says + ", which a checkpoint cannot keep; give Own state_dict and load_state"):
        inner_state.save(Own(odd=value))


def test_an_attribute_of_a_strategy_within_is_refused_by_its_own_class() -> None:
    inner = FedAvgM()
    inner.rng = random.Random(0)  # type: ignore[attr-defined]
    with pytest.raises(InputError, match=r"Own\.inner\.rng is a Random, which a checkpoint cannot keep; give FedAvgM "):
        inner_state.save(Own(inner=inner))


def test_a_list_that_holds_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InputError, match="does a list or a dict hold itself"):
        inner_state.save(Own(loop=loop))


def test_state_dict_and_load_state_dict_are_used_where_a_strategy_has_them() -> None:
    found = restored(Careful(count=5), Careful())
    assert found.count == 5
    assert found.loaded["moments"][3].tolist() == [0, 1]


@pytest.mark.parametrize("value", [len, threading.Lock(), FedAvg()])
def test_a_state_dict_must_hold_values_alone(value: Any) -> None:
    with pytest.raises(InputError, match=r"Careful\.state_dict\(\)\['count'\] is a .*cannot keep; return numbers"):
        inner_state.save(Careful(count=value))


@pytest.mark.parametrize(
    ("fresh", "says"),
    [
        (FedYogi(), r"FedYogi: the saved state is of flwr\.serverapp\.strategy\.FedAdam, .* \S*strategy\.FedYogi"),
        (Own(), r"Own: the saved state is of flwr\.serverapp\.strategy\.FedAdam, the strategy is \S*\.Own; go on with"),
    ],
)
def test_the_state_of_another_class_is_refused_by_name(fresh: Strategy, says: str) -> None:
    with pytest.raises(InputError, match=says):
        restored(FedAdam(), fresh)


@pytest.mark.parametrize("make", [lambda: Own(inner=FedYogi()), lambda: Own(inner=None), lambda: Own()])
def test_other_strategies_within_are_refused_and_nothing_changes(make: Callable[[], Own]) -> None:
    fresh = make()
    with pytest.raises(InputError, match=r"Own\.inner"):
        restored(Own(a=1, inner=FedAdam()), fresh)
    assert not hasattr(fresh, "a")


def test_a_function_in_a_list_that_the_new_instance_lacks_is_refused() -> None:
    with pytest.raises(InputError, match=r"Own\.hooks\[1\] was a function when the state was saved"):
        restored(Own(hooks=[len, len]), Own(hooks=[len]))


@pytest.mark.parametrize("state", [None, {}, {"class": 5}, {"class": "x", "attributes": 3}, []])
def test_a_tree_that_is_no_state_is_an_error_of_input_or_damage(state: Any) -> None:
    with pytest.raises(ValueError, match=r"FedAvg|cannot be used"):
        inner_state.restore(FedAvg(), state)


@pytest.mark.parametrize("value", [{"thing": 1}, {"list": 3}, {"array": [1]}, {}, {"a": 1, "b": 2}])
def test_values_that_nobody_saves_are_damage(value: Any) -> None:
    state = inner_state.save(FedAvg())
    state["attributes"]["x"] = value
    with pytest.raises(tree.DamagedError):
        inner_state.restore(FedAvg(), state)
