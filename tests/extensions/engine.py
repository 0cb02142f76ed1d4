"""An engine: plain SGD, one client after another. `engine: tests.extensions.engine:PlainSGD` mimics `engine: loop`."""

import copy

import numpy as np
import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from perennial.client.engines.engine import Trained


class PlainSGD:
    name = "plain-sgd"

    def __init__(self, module, task):
        self.module, self.task = copy.deepcopy(module), task

    def train(self, chains, work):
        return [self._chain(chain, work) for chain in chains]

    def judge(self, models, work):
        return [np.array([self._loss(model, one) for one in work]) for model in models]

    def _chain(self, chain, work):
        trained = [self._client(chain, one) for one in work]
        params = np.mean([params for params, _ in trained], axis=0, dtype=np.float64).astype(np.float32)
        losses = np.array([self._loss(chain.params, one) for one in work])
        return Trained(params, np.array([loss for _, loss in trained]), losses)

    def _client(self, chain, one):
        vector_to_parameters(torch.from_numpy(chain.params.copy()), self.module.parameters())
        losses = [self._step(chain.lr, one, rows) for rows in one.steps]
        return parameters_to_vector(self.module.parameters()).detach().numpy().copy(), float(np.mean(losses))

    def _step(self, lr, one, rows):
        inputs, target = self.task.batch(one.x, one.y, rows)
        loss = self.task.loss(self.module(*inputs), target).mean()
        for parameter, gradient in zip(
            self.module.parameters(), torch.autograd.grad(loss, list(self.module.parameters())), strict=True
        ):
            parameter.data -= lr * gradient
        return loss.item()

    def _loss(self, model, one):
        if not len(one.judged):
            return np.nan
        vector_to_parameters(torch.from_numpy(np.array(model)), self.module.parameters())
        inputs, target = self.task.batch(one.x, one.y, one.judged)
        with torch.no_grad():
            return self.task.loss(self.module(*inputs), target).mean().item()
