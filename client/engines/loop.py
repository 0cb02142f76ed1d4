"""Any nn.Module, by torch eager, one client after another: the engine the others are compared with."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from perennial.client.engines.engine import Received, Trained, Work
from perennial.client.engines.torch_engine import PART, TorchEngine
from perennial.common.data.partition import Rows
from perennial.common.task.learning_task import Task
from perennial.common.task.ready import classification, cross_entropy
from perennial.common.wire.chains import Vector


class LoopEngine(TorchEngine):
    """Trains a copy of ``module``.

    What a module draws (dropout) depends on the client's ``seed`` alone, so a chain does not change with the others.
    """

    name = "loop"

    def __init__(self, module: nn.Module, task: Task = classification) -> None:
        super().__init__(module, task)
        self._module = copy.deepcopy(module).to(self._device)
        self._state = list(self._module.state_dict(keep_vars=True).values())
        self._trainable = [parameter for parameter in self._module.parameters() if parameter.requires_grad]

    def _train_chain(self, chain: Received, work: Sequence[Work]) -> Trained:
        losses = self._judge_model(chain.params, work)
        total, first = np.zeros(chain.params.shape, np.float64), chain.params
        train_losses = np.empty(len(work))
        for k, client in enumerate(work):
            self._load(chain.params)
            on_gpu = self._device.type == "cuda"
            with torch.random.fork_rng(devices=[self._device] if on_gpu else []):
                torch.default_generator.manual_seed(client.seed)
                if on_gpu:
                    torch.cuda.manual_seed(client.seed)
                train_losses[k] = self._steps(client, chain.lr)
            trained = self._flat()
            total += trained
            first = trained if k == 0 else first
        mean = (total / len(work)).astype(np.float32)
        return Trained(self._layout.settled(mean, first), train_losses, losses)

    def _steps(self, client: Work, lr: float) -> float:
        self._module.train()
        optimiser = self._task.optimiser(self._trainable, lr)
        taken = []
        for rows in client.steps:
            loss = self._loss(client, rows, "mean")
            gradients = torch.autograd.grad(loss, self._trainable, allow_unused=True)
            for parameter, gradient in zip(self._trainable, gradients, strict=True):
                parameter.grad = gradient
            optimiser.step()
            taken.append(loss.detach())
        return float(torch.stack(taken).double().mean()) if taken else float("nan")

    def _judge_model(self, model: Vector, work: Sequence[Work]) -> NDArray[np.float64]:
        self._load(model)
        self._module.eval()
        with torch.no_grad():
            return np.array([self._mean_loss(client) for client in work])

    def _mean_loss(self, client: Work) -> float:
        total = 0.0
        for at in range(0, client.judged.size, PART):
            rows = client.judged[at : at + PART]
            total += float(self._loss(client, rows, "sum"))
        return total / client.judged.size if client.judged.size else float("nan")

    def _loss(self, client: Work, rows: Rows, reduction: Literal["mean", "sum"]) -> Tensor:
        inputs, target = self._task.batch(client.x, client.y, rows)
        target = None if target is None else target.to(self._device)
        outputs = self._module(*(part.to(self._device) for part in inputs))
        if self._task.loss is cross_entropy and target is not None:
            # Torch's own sum is one kernel with it, and differs in the last bit from a sum of its losses.
            return functional.cross_entropy(outputs, target, reduction=reduction)
        losses = self._task.loss(outputs, target)
        return losses.mean() if reduction == "mean" else losses.sum()

    def _load(self, model: Vector) -> None:
        flat, at = torch.from_numpy(np.ascontiguousarray(model)), 0
        with torch.no_grad():
            for value in self._state:
                value.copy_(flat[at : at + value.numel()].view_as(value))
                at += value.numel()

    def _flat(self) -> NDArray[np.float32]:
        pieces = [value.detach().reshape(-1).float() for value in self._state]
        flat: NDArray[np.float32] = torch.cat(pieces).cpu().numpy()
        return flat
