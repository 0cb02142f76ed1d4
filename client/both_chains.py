"""A client that answers both chains of MC-PSGD in one message, whatever app trains them."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator
from typing import Any

from flwr.app import Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp

from perennial.common.command.errors import InputError, shown
from perennial.common.wire.chains import SEPARATE
from perennial.common.wire.two_chains import Parts, is_two_chain, read_block, read_parts, read_report_loss, write_reply

LOG = logging.getLogger("flwr")
# Before the name of a record in `context.state` that one chain owns; all others are of messages of no chain.
_OWNED = "chain:"


def both_chains(app: ClientApp) -> ClientApp:
    """Return an app that answers ``MCPSGD(..., one_message=True)``, which sends both chains in one message.

    A message of two chains is taken apart before ``app`` and its mods see it. They get the messages that they would
    get if the chains travelled apart, with the evaluation of the received models first. Each chain has its own
    ``context.state``, as has the separate chain of each block; so have messages of no chain. ``app`` gets every other
    message as it is.

    >>> from flwr.clientapp import ClientApp
    >>> from perennial import both_chains
    >>> app = ClientApp()
    >>> app = both_chains(app)
    """
    if not isinstance(app, ClientApp):
        raise InputError(f"both_chains takes a ClientApp, got {shown(app)}")
    return app if isinstance(app, _BothChains) else _BothChains(app)


class _BothChains(ClientApp):
    """``app``, asked for each chain by itself. What is registered here is registered there."""

    def __init__(self, app: ClientApp) -> None:
        super().__init__()
        self._app = app

    def __call__(self, message: Message, context: Context) -> Message:
        if not message.has_content() or not is_two_chain(message.content):
            return self._answer(message, context, "")
        parts, block = read_parts(message.content), read_block(message.content)
        trained, judged = {}, {}
        for chain, records in parts.chains.items():
            owner = f"{_OWNED}{chain}:{block}:" if chain == SEPARATE else f"{_OWNED}{chain}:"
            if read_report_loss(message.content):
                arrived = RecordDict({**records, **parts.losses.get(chain, {})})
                if losses := self._losses(_part(message, arrived, MessageType.EVALUATE), context, owner):
                    judged[chain] = losses
            reply = self._answer(_part(message, records, message.metadata.message_type), context, owner)
            if reply.has_error():
                return Message(reply.error, reply_to=message)
            trained[chain] = reply.content
        return Message(write_reply(Parts(trained, judged)), reply_to=message)

    def _losses(self, message: Message, context: Context, owner: str) -> RecordDict | None:
        """Return what evaluating gave; None if it failed: the models are trained all the same."""
        try:
            reply = self._answer(message, context, owner)
        except Exception:
            LOG.warning("the received model could not be evaluated", exc_info=True)
            return None
        return None if reply.has_error() else reply.content

    def _answer(self, message: Message, context: Context, owner: str) -> Message:
        """Return the app's answer to a message that finds in ``context.state`` what ``owner`` left there."""
        whole = context.state
        context.state = RecordDict(_owned(whole, owner))
        try:
            reply = self._app(message, context)
            others = {name: one for name, one in whole.items() if name not in _names(whole, owner)}
            whole = RecordDict({**others, **{f"{owner}{name}": one for name, one in context.state.items()}})
        finally:
            context.state = whole
        return reply

    def train(self, *args: Any, **options: Any) -> Callable[[Any], Any]:
        return self._app.train(*args, **options)

    def evaluate(self, *args: Any, **options: Any) -> Callable[[Any], Any]:
        return self._app.evaluate(*args, **options)

    def query(self, *args: Any, **options: Any) -> Callable[[Any], Any]:
        return self._app.query(*args, **options)

    def lifespan(self) -> Callable[[Callable[[Context], Iterator[None]]], Callable[[Context], Iterator[None]]]:
        return self._app.lifespan()


def _part(message: Message, records: RecordDict, message_type: str) -> Message:
    """Return the received message with other content; a client may not construct one that is no reply."""
    part = copy.copy(message)
    part.content = records
    # The records and the metadata of a part are its own.
    part = copy.deepcopy(part)
    part.metadata.message_type = message_type
    return part


def _names(state: RecordDict, owner: str) -> list[str]:
    """Return the names in ``state`` that are the owner's: all that no chain owns, if it is no chain."""
    return [name for name in state if (name.startswith(owner) if owner else not name.startswith(_OWNED))]


def _owned(state: RecordDict, owner: str) -> dict[str, Any]:
    return {name.removeprefix(owner): state[name] for name in _names(state, owner)}
