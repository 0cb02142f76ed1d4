"""Networks for the benchmarks: one hidden layer of several widths, and kinds that the native engine does not take."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod

from torch import Tensor, nn

from benchmarks.sides.setting import TOKENS


def _mlp(width: int, shape: tuple[int, ...], classes: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), width), nn.ReLU(), nn.Linear(width, classes))


mlp_16, mlp_64, mlp_256, mlp_1024 = (partial(_mlp, width) for width in (16, 64, 256, 1024))


def gelu_net(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The paper's CNN with GELU and average pooling."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 6, 5), nn.GELU(), nn.AvgPool2d(2), nn.Conv2d(6, 16, 5), nn.GELU(), nn.AvgPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.GELU(), nn.Linear(120, 84), nn.GELU(), nn.Linear(84, classes),
    )  # fmt: skip


def batch_norm_net(shape: tuple[int, ...], classes: int) -> nn.Module:
    """The paper's CNN with BatchNorm after each convolution."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 6, 5), nn.BatchNorm2d(6), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(6, 16, 5), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes),
    )  # fmt: skip


class _TokenNet(nn.Module):
    """A block of a transformer over an embedding, and the class of the text."""

    def __init__(self, classes: int, width: int = 32) -> None:
        super().__init__()
        self.token, self.before, self.after = nn.Embedding(TOKENS, width), nn.LayerNorm(width), nn.LayerNorm(width)
        self.look = nn.MultiheadAttention(width, 4, batch_first=True)
        self.think = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens)
        seen = self.before(x)
        x = x + self.look(seen, seen, seen, need_weights=False)[0]
        found: Tensor = self.head((x + self.think(self.after(x))).mean(1))
        return found


class _GRUNet(nn.Module):
    def __init__(self, classes: int, width: int = 32) -> None:
        super().__init__()
        self.token, self.memory = nn.Embedding(TOKENS, width), nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.head(self.memory(self.token(tokens))[0][:, -1])
        return found


def token_net(shape: tuple[int, ...], classes: int) -> nn.Module:
    return _TokenNet(classes)


def gru_net(shape: tuple[int, ...], classes: int) -> nn.Module:
    return _GRUNet(classes)


# By name, those that benchmarks/rounds.py measures beside the paper's, and whether they take tokens.
OTHERS: dict[str, tuple[Callable[[tuple[int, ...], int], nn.Module], bool]] = {
    "token_net": (token_net, True),
    "gelu_net": (gelu_net, False),
    "batch_norm_net": (batch_norm_net, False),
    "gru_net": (gru_net, True),
}
