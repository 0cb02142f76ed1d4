"""Who is there: the online nodes, the clients they host, and which of them sit out."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from perennial.common.command.config import RunConfig
from perennial.common.command.errors import RunError, shown
from perennial.common.wire import protocol
from perennial.common.wire.pacing import pause
from perennial.common.wire.protocol import Identity, ProtocolError
from perennial.common.wire.seeding import generator
from perennial.server.cohort.exchange import Answer, Answered, Rejection, life
from perennial.server.cohort.quarantine import Quarantine

LOG = logging.getLogger("perennial")
_QUERY_TIMEOUT = 30.0
# Between two looks at who is online, which cost by their number: while nodes come, and when none has come for long.
_POLL, _SELDOM = 0.05, 1.0
# A node that was not taken is asked again after at least so many seconds, then twice as long, at most so often.
_REST, _DOUBLINGS = 1.0, 6


@dataclass(frozen=True)
class _Rest:
    """Why a node was not taken the last time ('': it was silent), how often, and until when it is left alone."""

    problem: str
    times: int
    until: float


class Roster:
    """Asks every node that appears for its identity, and samples cohorts of clients.

    A node that is refused, or says nothing sensible, is asked again after a rest: somebody may have mended it.
    """

    def __init__(self, config: RunConfig, blocks: int) -> None:
        self._config, self._blocks = config, blocks
        self._nodes: dict[int, Identity] = {}
        self._resting: dict[int, _Rest] = {}
        self._doubted: set[int] = set()
        self._hosts: dict[int, int] = {}
        # The sorted clients that may be drawn, kept until nodes come, go or sit out: a round must not cost by the
        # clients that exist.
        self._clients: list[int] = []
        self._held: frozenset[int] | None = None
        # By lowest client, since node ids change with every restart; and by node, since whoever claims clients may
        # claim others. Only the first is worth keeping.
        self.quarantine = Quarantine(config.quarantine_after, config.quarantine_rounds)
        self._quarantined_nodes = Quarantine(config.quarantine_after, config.quarantine_rounds)
        # The last round in which a node went offline before it had answered.
        self._left_in: dict[int, int] = {}
        # Nodes that have begun a new session, and have not been here since.
        self._returned: set[int] = set()

    def gather(self, grid: Grid, nodes: int) -> None:
        """Wait until ``nodes`` nodes with clients are there, or raise after node-timeout."""
        timeout = self._config.node_timeout
        deadline = time.monotonic() + timeout if timeout else float("inf")
        there, since = -1, time.monotonic()
        while True:
            self.refresh(grid)
            if len(self._nodes) >= nodes:
                return
            if len(self._nodes) != there:
                there, since = len(self._nodes), time.monotonic()
                LOG.info("waiting for nodes: %d of %d are here", there, nodes)
            if time.monotonic() > deadline:
                raise RunError(
                    f"{len(self._nodes)} of {nodes} nodes appeared within {timeout:g} s; "
                    "start more clients, lower nodes, or raise node-timeout"
                )
            time.sleep(pause(time.monotonic() - since, least=_POLL, most=_SELDOM))

    def refresh(self, grid: Grid) -> None:
        """Forget nodes that left, and ask those that came; a client belongs to the node that claimed it first."""
        self._ask_and_take(grid)
        self._welcome(grid)

    def _ask_and_take(self, grid: Grid) -> None:
        online, now = set(grid.get_node_ids()), time.monotonic()
        left = self._nodes.keys() - online
        # A client's node that left may be back under another id, refused until now because of its old one.
        resting = {node for node, rest in self._resting.items() if now < rest.until and not (left and rest.problem)}
        asked = sorted((online - self._nodes.keys() | self._doubted & online) - resting)
        self._doubted.clear()
        if not left and not asked:
            return
        self._nodes = {node: identity for node, identity in self._nodes.items() if node in online}
        self._resting = {node: rest for node, rest in self._resting.items() if node in online}
        answers = sorted(self._ask(grid, asked), key=_by_client)
        self._hosts = {client: node for node, identity in self._nodes.items() for client in identity.clients}
        # Some grids know which clients a node's key is for.
        may_not: Callable[[int, Sequence[int]], str] = getattr(grid, "claim_problem", lambda node, clients: "")
        for node, identity in answers:
            # What it claimed before holds no more, whatever comes of this.
            for client in self._nodes[node].clients if node in self._nodes else ():
                self._hosts.pop(client, None)
            if problem := self._problem(identity) or may_not(node, identity.clients):
                self._refuse(node, problem)
            else:
                self._nodes[node] = identity
                self._hosts.update(dict.fromkeys(identity.clients, node))
                self._resting.pop(node, None)
        self._held = None

    def _welcome(self, grid: Grid) -> None:
        """Let nodes that were silent sit out no longer once they have begun a new session: they were away."""
        returned: Callable[[], set[int]] = getattr(grid, "returned", set)
        self._returned = (self._returned | returned()) & set(grid.get_node_ids())
        for node in self._returned & self._nodes.keys():
            self.quarantine.welcome(self.first_client(node))
            self._quarantined_nodes.welcome(node)
            self._returned.discard(node)

    @property
    def online(self) -> int:
        """How many nodes are here, as far as was seen before the round."""
        return len(self._nodes)

    def doubt(self, node: int) -> None:
        """Ask a node again who it is, before the next round: it may be back with other shards under its old id."""
        self._doubted.add(node)

    def judge(self, answered: Answered[Answer], server_round: int, *, trained: bool) -> None:
        """Strike the nodes that were rejected, whatever for, and clear those whose updates count.

        trained: the exchange was to train; a sensible vote makes no wrong update good.
        """
        for rejection in answered.rejections:
            if rejection.failed:
                self.doubt(rejection.node)
            # A round is repeated within seconds, and a connection that broke may take longer.
            if rejection.left and self._left_in.get(rejection.node) == server_round:
                continue
            if rejection.left:
                self._left_in[rejection.node] = server_round
            self._strike(rejection, server_round)
        for node in answered.replies if trained else ():
            self.quarantine.accept(self.first_client(node))
            self._quarantined_nodes.accept(node)

    def _strike(self, rejection: Rejection, server_round: int) -> None:
        client, quarantine = self.first_client(rejection.node), self.quarantine
        wrong = rejection.bad or (rejection.failed and not rejection.left)
        by_client = quarantine.reject(client, server_round, wrong=wrong)
        by_node = self._quarantined_nodes.reject(rejection.node, server_round, wrong=wrong)
        if by_client or by_node:
            until = max(quarantine.until.get(client, 0), self._quarantined_nodes.until.get(rejection.node, 0))
            LOG.warning("the node of client %d sits out until round %d: %d rejections in a row, the last: %s",
                        client, until, quarantine.after, rejection.reason)  # fmt: skip

    def cohort(self, server_round: int, attempt: int) -> dict[int, tuple[int, ...]]:
        """Return the clients of a round by node, drawn from the seed and the round; sorted, so reruns agree."""
        held = frozenset(self.held(server_round))
        if held != self._held:
            self._held, self._clients = held, sorted(c for c, node in self._hosts.items() if node not in held)
        clients = self._clients
        if self._config.participation < 1.0 and clients:
            wanted = self._config.participation * (1.0 + self._config.oversample)
            count = min(len(clients), max(1, round(wanted * len(clients))))
            rng = generator(self._config.seed, "cohort", server_round, attempt)
            picks = rng.choice(len(clients), count, replace=False, shuffle=False)
            clients = sorted(clients[pick] for pick in picks.tolist())
        by_node: dict[int, list[int]] = {}
        for client in clients:
            by_node.setdefault(self._hosts[client], []).append(client)
        return {node: tuple(hosted) for node, hosted in by_node.items()}

    def held(self, server_round: int) -> tuple[int, ...]:
        """Return the nodes that sit out; none where nobody would be left, since the round would then never end."""
        held = tuple(
            node
            for node in self._nodes
            if self.quarantine.holds(self.first_client(node), server_round)
            or self._quarantined_nodes.holds(node, server_round)
        )
        return held if len(held) < len(self._nodes) else ()

    def largest(self) -> int:
        """Return the most clients that a node hosts."""
        return max((len(identity.clients) for identity in self._nodes.values()), default=0)

    def first_client(self, node: int) -> int:
        """Return the name that a node keeps over restarts: its lowest client."""
        return self._nodes[node].clients[0]

    def _problem(self, identity: Identity) -> str:
        if twice := [client for client in identity.clients if client in self._hosts]:
            return f"client {min(twice)} is hosted by another node that is online"
        if identity.blocks < self._blocks:
            return f"its shards cover {identity.blocks} blocks, the run has {self._blocks}"
        return ""

    def _refuse(self, node: int, problem: str, took: float = 0.0) -> None:
        """Let a node rest, the longer the more time it costs; say why, unless that was said the last time.

        One that was here stays only where it is silent: it may be busy.
        """
        if problem:
            self._nodes.pop(node, None)
        last = self._resting.get(node)
        times = last.times if last else 0
        if problem and (last is None or last.problem != problem):
            LOG.warning("node %d is refused: %s", node, problem)
        rest = max(_REST, took) * 2 ** min(times, _DOUBLINGS)
        self._resting[node] = _Rest(problem, times + 1, time.monotonic() + rest)

    def _ask(self, grid: Grid, nodes: Sequence[int]) -> Iterable[tuple[int, Identity]]:
        ttl = life(_QUERY_TIMEOUT)
        asked = [Message(protocol.write_query(), node, MessageType.QUERY, ttl=ttl) for node in nodes]
        start = time.monotonic()
        replies = grid.send_and_receive(asked, timeout=_QUERY_TIMEOUT) if asked else ()
        took = time.monotonic() - start
        node_of = {message.metadata.message_id: message.metadata.dst_node_id for message in asked}
        for reply in replies:
            # A node's first answer counts; what answers to no question of these is late.
            node = node_of.pop(reply.metadata.reply_to_message_id, None)
            if node is None:
                continue
            if reply.has_error():
                self._refuse(node, f"it did not say who it is: {shown((reply.error.reason or '')[-120:])}", took)
                continue
            try:
                identity = protocol.read_identity(reply.content)
            except ProtocolError as error:
                self._refuse(node, str(error))
            else:
                yield node, Identity(tuple(sorted(identity.clients)), identity.blocks)
        for node in node_of.values():
            # A node that never answers would cost every round the whole timeout.
            self._refuse(node, "", took)


def _by_client(pair: tuple[int, Identity]) -> tuple[int, int]:
    return pair[1].clients[0], pair[0]
