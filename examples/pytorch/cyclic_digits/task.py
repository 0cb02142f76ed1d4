"""The network with BatchNorm, the data, and how both are trained and judged."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch
from flwr.app import ArrayRecord
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

BLOCKS = ("day", "night")
CLIENTS = 10


class Net(nn.Module):
    """A small convolutional network for images of 8 by 8."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
            nn.Flatten(), nn.Linear(128, 10),
        )  # fmt: skip

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


def initial() -> ArrayRecord:
    """Return the model that training starts from."""
    torch.manual_seed(0)
    return ArrayRecord(Net().state_dict())


@cache
def load(block: int, client: int | None = None) -> TensorDataset:
    """Return what comes in a block: by day digits 0 to 4, by night 5 to 9.

    client: the one whose share is returned; None: the test set, which no client holds.
    """
    digits = load_digits()
    images = torch.tensor(digits.images[:, None] / 16, dtype=torch.float32)
    labels = torch.tensor(digits.target)
    places = np.flatnonzero((digits.target >= 5) == bool(block))
    tested = places % 5 == 0
    mine = places[tested] if client is None else places[~tested][client::CLIENTS]
    return TensorDataset(images[mine], labels[mine])


def train(net: Net, data: TensorDataset, learning_rate: float, seed: int) -> float:
    """Train one local epoch; return the mean loss."""
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=learning_rate, momentum=0.9)
    order = torch.Generator().manual_seed(seed)
    losses = []
    # BatchNorm cannot learn from a last batch of one example.
    for images, labels in DataLoader(data, batch_size=16, shuffle=True, generator=order, drop_last=True):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(net(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return float(np.mean(losses))


@torch.no_grad()
def test(net: Net, data: TensorDataset) -> tuple[float, float]:
    """Return the mean loss and the accuracy."""
    net.eval()
    images, labels = data.tensors
    scores = net(images)
    return nn.functional.cross_entropy(scores, labels).item(), (scores.argmax(1) == labels).float().mean().item()
