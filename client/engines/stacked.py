"""All clients of a node as one batch of models (torch.func): any module that vmap takes."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from perennial.client.engines.batch_norm import out_of_place
from perennial.client.engines.batches import joined, of_steps
from perennial.client.engines.engine import Received, Trained, Work
from perennial.client.engines.network import Unsupported
from perennial.client.engines.torch_engine import PART, TorchEngine
from perennial.common.task.learning_task import Batch, Task
from perennial.common.task.local_optimisers import NUMBER_BY_NUMBER
from perennial.common.task.ready import classification
from perennial.common.wire.chains import Vector

# Numbers that one stack of clients may hold, counting weights, gradients and activations.
_BUDGET = 1 << 26

Arrays = dict[str, Tensor]


@dataclass(frozen=True)
class _Parts:
    """The arrays of a model by what happens to them in a step: (k, *shape) each, but those that stay: (*shape)."""

    trained: Arrays
    renewed: Arrays
    kept: Arrays


class StackedEngine(TorchEngine):
    """Trains clients with equal batches together.

    Raises ``network.Unsupported`` for a task whose optimiser is not known to work number by number; a module that vmap
    refuses raises torch's RuntimeError at the first step.
    """

    name = "stacked"

    def __init__(self, module: nn.Module, task: Task = classification) -> None:
        super().__init__(module, task)
        if not isinstance(task.optimiser, NUMBER_BY_NUMBER):
            raise Unsupported("its task has an optimiser of its own, which may mix the clients' numbers")
        self._module = copy.deepcopy(module).to(self._device)
        renewed = out_of_place(self._module)
        state = self._module.state_dict(keep_vars=True)
        # What several layers share stands in the state by each of its names, and is trained by the first one.
        first: dict[int, str] = {}
        self._owner = {name: first.setdefault(id(value), name) for name, value in state.items()}
        own = {name: value for name, value in state.items() if self._owner[name] == name}
        self._dtypes = {name: value.dtype for name, value in own.items()}
        self._trained = [name for name, value in own.items() if value.requires_grad]
        self._renewed = [name for name in own if name in renewed]

    def _train_chain(self, chain: Received, work: Sequence[Work]) -> Trained:
        losses = self._judge_model(chain.params, work)
        total, first = np.zeros(self._layout.size, np.float64), chain.params
        train_losses = np.full(len(work), np.nan)
        self._module.train()
        for stack in self._stacks(work):
            trained, taken = self._steps(chain, [work[k] for k in stack])
            total += trained.double().sum(0).cpu().numpy()
            train_losses[stack] = taken
            if stack[0] == 0:
                first = trained[0].cpu().numpy()
        mean = (total / len(work)).astype(np.float32)
        return Trained(self._layout.settled(mean, first), train_losses, losses)

    def _steps(self, chain: Received, work: Sequence[Work]) -> tuple[Tensor, NDArray[np.float64]]:
        """Return the stack's models, (k, P), and the mean losses, (k,)."""
        parts = self._parts(chain.params, len(work))
        optimiser = self._task.optimiser(list(parts.trained.values()), chain.lr)
        taken = torch.zeros(len(work), dtype=torch.float64, device=self._device)
        with warnings.catch_warnings():
            # Of operations that vmap takes one model after the other: whether it pays was tried.
            warnings.filterwarnings("ignore", message="There is a performance drop")
            for inputs, target in of_steps(self._task, work, self._device, _BUDGET):
                gradients, losses, renewed = self._step(parts.trained, parts.renewed, parts.kept, inputs, target)
                for name, value in parts.trained.items():
                    value.grad = gradients[name]
                optimiser.step()
                parts.renewed.update(renewed)
                taken += losses.detach()
        iterations = len(work[0].steps)
        return self._flat(parts, len(work)), (taken / iterations).cpu().numpy()

    def _step(
        self, trained: Arrays, renewed: Arrays, kept: Arrays, inputs: tuple[Tensor, ...], target: Tensor | None
    ) -> tuple[Arrays, Tensor, Arrays]:
        """Return the gradients, the losses and the renewed buffers of every model of the stack."""
        axes = (0, 0, None, 0, None if target is None else 0)
        slopes = vmap(grad_and_value(self._loss, has_aux=True), in_dims=axes)
        gradients, (losses, after) = slopes(trained, renewed, kept, inputs, target)
        return gradients, losses, after

    def _loss(
        self, trained: Arrays, renewed: Arrays, kept: Arrays, inputs: tuple[Tensor, ...], target: Tensor | None
    ) -> tuple[Tensor, Arrays]:
        # functional_call puts into the mapping what the module has there afterwards.
        state = {**trained, **renewed, **kept}
        outputs = functional_call(self._module, state, inputs)
        return self._task.loss(outputs, target).mean(), {name: state[name] for name in renewed}

    def _parts(self, model: Vector, count: int) -> _Parts:
        arrays = self._arrays(model)
        stacked = {name: arrays[name].expand(count, *arrays[name].shape).clone() for name in self._trained}
        renewed = {name: arrays[name].expand(count, *arrays[name].shape).clone() for name in self._renewed}
        kept = {name: value for name, value in arrays.items() if name not in stacked and name not in renewed}
        return _Parts(stacked, renewed, kept)

    def _arrays(self, model: Vector) -> Arrays:
        """Return the arrays of a model by the names that own them."""
        views = self._layout.views(np.ascontiguousarray(model))
        return {name: torch.from_numpy(views[name]).to(self._device, dtype) for name, dtype in self._dtypes.items()}

    def _flat(self, parts: _Parts, count: int) -> Tensor:
        found = {name: value.expand(count, *value.shape) for name, value in parts.kept.items()}
        found |= parts.trained | parts.renewed
        pieces = [found[self._owner[name]].detach().reshape(count, -1).float() for name in self._layout.names]
        return torch.cat(pieces, 1)

    def _stacks(self, work: Sequence[Work]) -> Iterator[list[int]]:
        """Yield clients with equal batches together, few enough at a time to bound memory."""
        shapes: dict[tuple[int, ...], list[int]] = {}
        for k, client in enumerate(work):
            shapes.setdefault(client.steps.shape, []).append(k)
        for (_, batch), clients in shapes.items():
            numbers = sum(prod(x.shape[1:]) for x in work[clients[0]].x)
            one = 4 * self._layout.size + 64 * batch * numbers
            most = max(1, _BUDGET // one)
            yield from (clients[at : at + most] for at in range(0, len(clients), most))

    def _judge_model(self, model: Vector, work: Sequence[Work]) -> NDArray[np.float64]:
        """Judge the rows of all clients together: they share the model."""
        counts = np.array([client.judged.size for client in work])
        found = np.empty(counts.sum(), np.float64)
        weights = self._arrays(model)
        self._module.eval()
        with torch.no_grad():
            for at in range(0, len(found), PART):
                inputs, target = joined(self._task, self._judged(work, at), torch.cat, self._device)
                outputs = functional_call(self._module, weights, inputs)
                found[at : at + PART] = self._task.loss(outputs, target).cpu().numpy()
        ends = np.cumsum(counts)
        parts = [found[end - count : end] for end, count in zip(ends, counts, strict=True)]
        return np.array([part.mean() if part.size else np.nan for part in parts])

    def _judged(self, work: Sequence[Work], start: int) -> list[Batch]:
        """Return the judged rows from ``start`` to ``start + PART`` of all clients' rows in a row, by client."""
        batches, before = [], 0
        for client in work:
            rows = client.judged[max(0, start - before) : max(0, start + PART - before)]
            if len(rows):
                batches.append(self._task.batch(client.x, client.y, rows))
            before += client.judged.size
        return batches
