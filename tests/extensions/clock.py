"""A clock: blocks in turns. `clock: tests.extensions.clock:in_turns` mimics `rounds-per-block` and `cycles`."""

from dataclasses import dataclass

from perennial.common.cycle.schedule import Slot


@dataclass
class Turns:
    """So many rounds in a block, then the next one."""

    names: tuple[str, ...]
    rounds: int
    cycles: int

    @property
    def total_rounds(self):
        return self.cycles * len(self.names) * self.rounds

    @property
    def identity(self):
        return {"turns": self.rounds, "blocks": list(self.names)}

    def after(self, slot):
        done = slot.server_round if slot else 0
        if done == self.total_rounds:
            return None
        cycle, within = divmod(done, len(self.names) * self.rounds)
        return Slot(done + 1, cycle, *divmod(within, self.rounds))


def in_turns(config):
    return Turns(("day", "night"), config.rounds_per_block, config.cycles)
