"""A small network of each kind of layer, as models that a run may name; and examples for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

TOKENS, LENGTH, IMAGE, CLASSES = 9, 5, (2, 5, 5), 3


class Recurrent(nn.Module):
    def __init__(self, kind: Callable[..., nn.Module], outputs: int) -> None:
        super().__init__()
        self.token, self.memory, self.head = (
            nn.Embedding(TOKENS, 6),
            kind(6, 7, batch_first=True),
            nn.Linear(7, outputs),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.head(self.memory(self.token(tokens))[0][:, -1])
        return found


class Attentive(nn.Module):
    """With a mask as a buffer of flags."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.token, self.norm, self.head = nn.Embedding(TOKENS, 8), nn.LayerNorm(8), nn.Linear(8, outputs)
        self.look = nn.MultiheadAttention(8, 2, batch_first=True)
        self.register_buffer("later", torch.triu(torch.full((LENGTH, LENGTH), True), 1))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.token(tokens)
        seen, _ = self.look(x, x, x, need_weights=False, attn_mask=self.later)
        found: Tensor = self.head(self.norm(x + seen)[:, -1])
        return found


class Shared(nn.Module):
    """Its last layer has the weights of its first, turned."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.token, self.back, self.head = nn.Embedding(TOKENS, 6), nn.Linear(6, TOKENS), nn.Linear(TOKENS, outputs)
        self.back.weight = self.token.weight

    def forward(self, tokens: Tensor) -> Tensor:
        found: Tensor = self.head(self.back(self.token(tokens).mean(1)))
        return found


def batch_norm(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 3, bias=False), nn.BatchNorm2d(4), nn.Tanh(),
        nn.Flatten(), nn.Linear(36, 5), nn.BatchNorm1d(5, momentum=None, affine=False), nn.Linear(5, outputs),
    )  # fmt: skip


def gelu(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 3), nn.GroupNorm(2, 4), nn.GELU(), nn.AvgPool2d(3), nn.Flatten(), nn.Linear(4, outputs)
    )


def dropout(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(50, 8), nn.Tanh(), nn.Dropout(0.4), nn.Linear(8, outputs))


def attention(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return Attentive(outputs)


def gru(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return Recurrent(nn.GRU, outputs)


def lstm(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return Recurrent(nn.LSTM, outputs)


def shared(shape: tuple[int, ...], outputs: int) -> nn.Module:
    return Shared(outputs)


IMAGES = {"batch_norm": batch_norm, "gelu": gelu, "dropout": dropout}
TEXTS = {"attention": attention, "gru": gru, "lstm": lstm, "shared": shared}
KINDS = {**IMAGES, **TEXTS}
# What each engine takes of them; the loop takes all.
STACKED = sorted(KINDS.keys() - {"dropout"})


def network(kind: str, seed: int) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return KINDS[kind](IMAGE, CLASSES)


def inputs(kind: str, rng: np.random.Generator, count: int) -> NDArray[Any]:
    if kind in IMAGES:
        return rng.standard_normal((count, *IMAGE), np.float32)
    return rng.integers(0, TOKENS, (count, LENGTH))
