"""What Theorems 1 and 2 prescribe: step sizes, local iterations, and how long a block must last."""

from __future__ import annotations

import math
from dataclasses import dataclass


def most_local_iterations(clients: int, iterations: int, blocks: int = 1) -> int:
    """Return the largest I <= (T/M)^(1/4) / N^(3/4) (Theorem 2; Theorem 1 is ``blocks=1``).

    In integers, I^4 N^3 M <= T: floats would miss the bound where it is met exactly.
    """
    _require_positive(clients=clients, iterations=iterations, blocks=blocks)
    least = clients**3 * blocks
    if iterations < least:
        raise ValueError(f"iterations must be at least N^3 M = {least} for one local iteration, got {iterations}")
    return math.isqrt(math.isqrt(iterations // least))


def mixed_step(clients: int, iterations: int, smoothness: float) -> float:
    """Return gamma = sqrt(N) / (L sqrt(T)), the step size of the mixed chain (Theorems 1 and 2)."""
    return separate_step(clients, iterations, 1, smoothness)


def separate_step(clients: int, iterations: int, blocks: int, smoothness: float) -> float:
    """Return eta = sqrt(N M) / (L sqrt(T)), the step size of the separate chains (Theorem 2)."""
    _require_positive(clients=clients, iterations=iterations, blocks=blocks)
    if not smoothness > 0.0:
        raise ValueError(f"smoothness must be above 0, got {smoothness}")
    return math.sqrt(clients * blocks / iterations) / smoothness


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One run as a theorem prescribes it: C cycles of M blocks of E rounds of I iterations."""

    clients: int  # N
    blocks: int  # M
    cycles: int  # C
    rounds_per_block: int  # E
    local_iterations: int  # I
    gamma: float
    eta: float

    @property
    def block_iterations(self) -> int:
        """K = E I."""
        return self.rounds_per_block * self.local_iterations

    @property
    def iterations(self) -> int:
        """T = C M K."""
        return self.cycles * self.blocks * self.block_iterations


def plan(*, clients: int, iterations: int, blocks: int, cycles: int, smoothness: float, chains: int) -> Plan:
    """Return the run of Theorem 1 (``chains=1``) or 2 (``chains=2``) with the most local iterations it allows.

    T is rounded up to whole rounds, so that the bound on I and K > C M N still hold; the step sizes are of that T.
    """
    if chains not in (1, 2):
        raise ValueError(f"chains must be 1 (Theorem 1) or 2 (Theorem 2), got {chains}")
    _require_positive(cycles=cycles)
    local = most_local_iterations(clients, iterations, blocks if chains == 2 else 1)
    rounds = math.ceil(iterations / (cycles * blocks * local))
    if rounds * local <= cycles * blocks * clients:
        raise ValueError(
            f"a block must last K > C M N = {cycles * blocks * clients} iterations, got {rounds * local}; "
            f"raise iterations above C^2 M^2 N = {cycles**2 * blocks**2 * clients} or take fewer cycles"
        )
    total = cycles * blocks * rounds * local
    return Plan(
        clients=clients,
        blocks=blocks,
        cycles=cycles,
        rounds_per_block=rounds,
        local_iterations=local,
        gamma=mixed_step(clients, total, smoothness),
        eta=separate_step(clients, total, blocks, smoothness),
    )


def _require_positive(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
