"""blockcyclic: A Flower Baseline. The paper's network, and how it learns."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Net(nn.Module):
    """The network of PyTorch's CIFAR-10 tutorial: 62,006 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of the labels."""
        hidden = F.max_pool2d(F.relu(self.conv1(images)), 2)
        hidden = F.max_pool2d(F.relu(self.conv2(hidden)), 2).flatten(1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(hidden)))))


def initial(seed: int = 0) -> Net:
    """Return the network that training starts from."""
    torch.manual_seed(seed)
    return Net()


def train(
    net: Net, data: tuple[Tensor, Tensor], lr: float, steps: int, batch: int, seed: int
) -> float:
    """Take local steps of SGD on batches drawn from the shard; return the mean loss."""
    images, labels = data
    rng, total = torch.Generator().manual_seed(seed), 0.0
    optimizer = torch.optim.SGD(net.parameters(), lr=lr)
    for _ in range(steps):
        rows = torch.randint(len(labels), (batch,), generator=rng)
        loss = F.cross_entropy(net(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / steps


@torch.no_grad()
def test(net: Net, data: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Return the mean loss and the accuracy."""
    scores = net(data[0])
    hits = (scores.argmax(1) == data[1]).float().mean()
    return F.cross_entropy(scores, data[1]).item(), hits.item()
