"""Two chains in one message: the names of its records, written by one side and read by the other.

A message has the records of each chain c (mixed, separate) as ``c.NAME``, NAME being what they are called in a message
of one chain, and a ConfigRecord ``chains``: ``block``, the block of the separate chain, and ``report-loss``. If that is
true, the models are evaluated as they arrive, before they are trained; a record ``c.loss.NAME`` of the message then
stands in for ``c.NAME``. The reply has each chain's reply as ``c.NAME`` and, if asked, what evaluating gave as
``c.loss.NAME``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flwr.app import ConfigRecord, RecordDict

from perennial.common.wire.chains import CHAINS
from perennial.common.wire.protocol import ProtocolError, flag, record_of, whole

_CHAINS, _BLOCK, _REPORT_LOSS, _LOSS = "chains", "block", "report-loss", "loss."


@dataclass(frozen=True)
class Parts:
    """What a message has for each chain. losses: for evaluating the received models, or what that gave."""

    chains: Mapping[str, RecordDict]
    losses: Mapping[str, RecordDict] = field(default_factory=dict)


def is_two_chain(content: RecordDict) -> bool:
    """Return whether a message's content is that of two chains."""
    return _CHAINS in content.config_records


def write_order(parts: Parts, *, block: int, report_loss: bool) -> RecordDict:
    """Return the content of a message for both chains."""
    return RecordDict({**write_reply(parts), _CHAINS: ConfigRecord({_BLOCK: block, _REPORT_LOSS: report_loss})})


def write_reply(parts: Parts) -> RecordDict:
    """Return the content of a reply for both chains."""
    content = RecordDict()
    for chain, records in parts.chains.items():
        for name, record in records.items():
            if name.startswith(_LOSS):
                raise ProtocolError(f"no record may be called {name!r} in a message of two chains; rename it")
            content[f"{chain}.{name}"] = record
    for chain, records in parts.losses.items():
        for name, record in records.items():
            content[f"{chain}.{_LOSS}{name}"] = record
    return content


def read_parts(content: RecordDict) -> Parts:
    """Return what a message or a reply has for each chain that is in it."""
    chains = {chain: _beginning(content, f"{chain}.") for chain in CHAINS}
    losses = {chain: _beginning(records, _LOSS) for chain, records in chains.items()}
    plain = {chain: _without(records, _LOSS) for chain, records in chains.items()}
    return Parts(
        {chain: records for chain, records in plain.items() if records},
        {chain: records for chain, records in losses.items() if records},
    )


def read_block(content: RecordDict) -> int:
    return whole(record_of(content, _CHAINS, ConfigRecord), _BLOCK, 0)


def read_report_loss(content: RecordDict) -> bool:
    return flag(record_of(content, _CHAINS, ConfigRecord), _REPORT_LOSS)


def _beginning(content: RecordDict, prefix: str) -> RecordDict:
    return RecordDict({name.removeprefix(prefix): one for name, one in content.items() if name.startswith(prefix)})


def _without(content: RecordDict, prefix: str) -> RecordDict:
    return RecordDict({name: record for name, record in content.items() if not name.startswith(prefix)})
