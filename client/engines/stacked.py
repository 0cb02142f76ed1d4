"""All clients of a node as one batch of models (torch.func): any module without buffers that vmap takes."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap
from torch.nn.functional import cross_entropy

from perennial.client.engines.engine import Received, Trained, Work, check_size
from perennial.client.engines.network import Unsupported
from perennial.client.engines.torch_engine import PART, TorchEngine
from perennial.common.data.datasets import as_float
from perennial.common.wire.chains import Vector

# Numbers that one stack of clients may hold, counting weights, gradients and activations.
_BUDGET = 1 << 26


class StackedEngine(TorchEngine):
    """Trains clients with equal batches together.

    Raises ``network.Unsupported`` for modules with buffers or shared parameters; a module that vmap refuses raises
    torch's RuntimeError at the first step.
    """

    name = "stacked"

    def __init__(self, module: nn.Module) -> None:
        state = module.state_dict()
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._module = copy.deepcopy(module).to(self._device)
        self._parameters = dict(self._module.named_parameters())
        if list(state) != list(self._parameters):
            extra = next(name for name in state if name not in self._parameters)
            raise Unsupported(f"{extra} is a buffer or a shared parameter")
        self._size = sum(value.numel() for value in state.values())
        self._slopes = vmap(grad_and_value(self._loss), in_dims=(0, None, 0, 0))

    def _train_chain(self, chain: Received, work: Sequence[Work]) -> Trained:
        losses = self._judge_model(chain.params, work)
        total = np.zeros(self._size, np.float64)
        train_losses = np.full(len(work), np.nan)
        self._module.train()
        for stack in self._stacks(work):
            trained, taken = self._steps(chain, [work[k] for k in stack])
            total += trained.double().sum(0).cpu().numpy()
            train_losses[stack] = taken
        return Trained((total / len(work)).astype(np.float32), train_losses, losses)

    def _steps(self, chain: Received, work: Sequence[Work]) -> tuple[Tensor, NDArray[np.float64]]:
        """Return the stack's models, (k, P), and the mean losses, (k,)."""
        stacked = self._tensor(chain.params).repeat(len(work), 1)
        weights = self._views(stacked)
        trainable = {name: weights[name] for name, value in self._parameters.items() if value.requires_grad}
        fixed = {name: value[0] for name, value in weights.items() if name not in trainable}
        taken = torch.zeros(len(work), dtype=torch.float64, device=self._device)
        iterations = len(work[0].steps)
        for i in range(iterations):
            x = self._tensor(np.stack([as_float(client.x[client.steps[i]]) for client in work]))
            y = self._tensor(np.stack([client.y[client.steps[i]] for client in work]))
            slopes, losses = self._slopes(trainable, fixed, x, y)
            with torch.no_grad():
                torch._foreach_add_(list(trainable.values()), [slopes[name] for name in trainable], alpha=-chain.lr)
            taken += losses.detach()
        return stacked, (taken / iterations).cpu().numpy()

    def _loss(self, trainable: dict[str, Tensor], fixed: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(functional_call(self._module, {**trainable, **fixed}, (x,)), y)

    def _stacks(self, work: Sequence[Work]) -> Iterator[list[int]]:
        """Yield clients with equal batches together, few enough at a time to bound memory."""
        shapes: dict[tuple[int, ...], list[int]] = {}
        for k, client in enumerate(work):
            shapes.setdefault(client.steps.shape, []).append(k)
        for (_, batch), clients in shapes.items():
            one = 4 * self._size + 64 * batch * int(np.prod(work[clients[0]].x.shape[1:]))
            most = max(1, _BUDGET // one)
            yield from (clients[at : at + most] for at in range(0, len(clients), most))

    def _judge_model(self, model: Vector, work: Sequence[Work]) -> NDArray[np.float64]:
        """Judge the rows of all clients together: they share the model."""
        check_size(model, self._size)
        counts = np.array([client.judged.size for client in work])
        rows = np.empty(counts.sum(), np.float64)
        owners = [(client, row) for client in work for row in client.judged]
        weights = {name: value[0] for name, value in self._views(self._tensor(model)[None]).items()}
        self._module.eval()
        with torch.no_grad():
            for at in range(0, len(owners), PART):
                part = owners[at : at + PART]
                x = self._tensor(np.stack([as_float(client.x[row]) for client, row in part]))
                y = self._tensor(np.array([client.y[row] for client, row in part]))
                outputs = functional_call(self._module, weights, (x,))
                rows[at : at + PART] = cross_entropy(outputs, y, reduction="none").cpu().numpy()
        ends = np.cumsum(counts)
        parts = [rows[end - count : end] for end, count in zip(ends, counts, strict=True)]
        return np.array([part.mean() if part.size else np.nan for part in parts])

    def _tensor(self, array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)

    def _views(self, stacked: Tensor) -> dict[str, Tensor]:
        views, at = {}, 0
        for name, value in self._parameters.items():
            views[name] = stacked[:, at : at + value.numel()].view(len(stacked), *value.shape)
            at += value.numel()
        return views
