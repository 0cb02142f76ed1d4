"""A task: labels by one layer. `task: tests.extensions.task:labels` mimics `classification` with `model: linear`."""

from collections import OrderedDict
from math import prod

from torch import nn
from torch.nn.functional import cross_entropy

from perennial.common.task.learning_task import Score, Task


def network(signature):
    layers = OrderedDict(flatten=nn.Flatten(), fc=nn.Linear(prod(signature.x[0].shape), 3))
    for parameter in layers["fc"].parameters():
        nn.init.zeros_(parameter)
    return nn.Sequential(layers)


labels = Task(
    network=network,
    loss=lambda outputs, labels: cross_entropy(outputs, labels, reduction="none"),
    score=Score("accuracy", "higher", lambda outputs, labels: (outputs.argmax(1) == labels).float()),
)
