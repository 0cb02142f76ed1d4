"""Grids around the user's own: one notes the nodes that it shows, one shows noted nodes, one counts bytes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import Grid

from perennial.common.command.errors import InputError
from perennial.common.wire.arrays import size_of

# Flower's strategies look twice in a round, and once a second while they wait for nodes.
_MOST_LOOKS = 100


class AroundGrid(Grid):
    """Does what the grid inside does."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def __getattr__(self, name: str) -> Any:
        # What a grid has beyond Flower's interface; the interface itself is written out below.
        return getattr(self.__dict__["_grid"], name)

    def set_run(self, run: Any) -> None:
        self._grid.set_run(run)

    @property
    def run(self) -> Any:
        return self._grid.run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        return self._grid.create_message(content, message_type, dst_node_id, group_id, ttl)

    def get_node_ids(self) -> Iterable[int]:
        return self._grid.get_node_ids()

    def get_nodes(self) -> Iterable[Any]:
        return self._grid.get_nodes()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._grid.pull_messages(message_ids)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self._grid.send_and_receive(messages, timeout=timeout)

    def stream(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        """Return the replies one by one, when the last one is there: a subclass may change them above."""
        return iter(self.send_and_receive(messages, timeout=timeout))


class NotingGrid(AroundGrid):
    """Notes the last list of nodes that it showed."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self.shown: list[int] = []

    def get_node_ids(self) -> Iterable[int]:
        self.shown = list(self._grid.get_node_ids())
        return list(self.shown)

    def get_nodes(self) -> Iterable[Any]:
        nodes = list(self._grid.get_nodes())
        self.shown = [node.node_id for node in nodes]
        return nodes


class ShowingGrid(AroundGrid):
    """Shows a list of nodes that was noted, whatever nodes there are by now, so that nobody waits."""

    def __init__(self, grid: Grid, shown: Sequence[int], viewer: str) -> None:
        super().__init__(grid)
        self._shown, self._viewer, self._looks = list(shown), viewer, 0

    def get_node_ids(self) -> Iterable[int]:
        self._looks += 1
        if self._looks > _MOST_LOOKS:
            raise InputError(
                f"{self._viewer} waits for more nodes than the {len(self._shown)} that the mixed chain's strategy took "
                "its own from; give both the same min_available_nodes and fractions"
            )
        return list(self._shown)

    def get_nodes(self) -> Iterable[Any]:
        known = {node.node_id: node for node in self._grid.get_nodes()}
        return [known[node] for node in self.get_node_ids() if node in known]


class MeteredGrid(AroundGrid):
    """Counts the bytes of the models that pass."""

    def __init__(self, grid: Grid) -> None:
        super().__init__(grid)
        self._down = self._up = 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self._grid.push_messages(self._sent(messages))

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self._received(self._grid.pull_messages(message_ids))

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return self._received(self._grid.send_and_receive(self._sent(messages), timeout=timeout))

    def stream(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterator[Message]:
        """Return the replies as they come, if the grid inside gives them so; else when the last one is there."""
        arriving = getattr(self._grid, "stream", self._grid.send_and_receive)
        return map(self._counted, arriving(self._sent(messages), timeout=timeout))

    def take(self) -> tuple[int, int]:
        """Return the bytes sent and received since this was last asked."""
        taken = (self._down, self._up)
        self._down = self._up = 0
        return taken

    def _sent(self, messages: Iterable[Message]) -> list[Message]:
        listed = list(messages)
        self._down += _sizes(listed)
        return listed

    def _received(self, replies: Iterable[Message]) -> list[Message]:
        listed = list(replies)
        self._up += _sizes(listed)
        return listed

    def _counted(self, reply: Message) -> Message:
        self._up += _sizes([reply])
        return reply


def _sizes(messages: Iterable[Message]) -> int:
    """Return the bytes of the models in messages, most of which may have the same ones."""
    records = [
        record
        for message in messages
        if message.has_content()
        for record in message.content.values()
        if isinstance(record, ArrayRecord)
    ]
    known = {id(record): record for record in records}
    size = {key: size_of(record) for key, record in known.items()}
    return sum(size[id(record)] for record in records)
