"""The ClientApp: answers identity queries, train orders and loss orders. Stateless; a node may host many clients."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from flwr.app import Context, Message, UserConfigValue
from flwr.clientapp import ClientApp

from perennial.client import engines
from perennial.client.engines.engine import Engine, Received, Work
from perennial.client.engines.trial import load_of
from perennial.client.hosting import Hosted, hosted
from perennial.common.command.config import RunConfig, flags
from perennial.common.command.typed_keys import key_of
from perennial.common.task.models import arrays_of
from perennial.common.task.ready import build, open_task
from perennial.common.wire.chains import MIXED, SEPARATE
from perennial.common.wire.layout import Layout
from perennial.common.wire.orders import Order, read_models, read_order
from perennial.common.wire.protocol import Identity, ProtocolError, write_identity
from perennial.common.wire.seeding import draw_rows
from perennial.common.wire.updates import Losses, Update, write_losses, write_update

app = ClientApp()
# So many seeds there are for what a network draws by itself.
_SEEDS = 2**53


@app.query()
def query(message: Message, context: Context) -> Message:
    """Say which clients this node hosts."""
    node = _hosted(context)
    return Message(write_identity(Identity(node.clients, node.shards.blocks)), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the ordered clients on both chains from the models received, and judge those where asked."""
    config, node = _config(context), _hosted(context)
    order = read_order(message.content)
    engine, layout = _engine(config, node, order)
    received = read_models(message.content, layout, config.wire_down)
    work, examples = _work(order, node, config, judged=order.report_loss)
    rates = {MIXED: config.lr_mixed, SEPARATE: config.lr_separate}
    results = engine.train([Received(model, rates[chain]) for chain, model in received.items()], work)
    for chain, result in zip(received, results, strict=True):
        _check_finite(order, chain, work, result.train_losses)
    losses = {chain: float(result.losses.mean()) for chain, result in zip(received, results, strict=True)}
    update = Update(
        {chain: result.params for chain, result in zip(received, results, strict=True)},
        {chain: float(result.train_losses.mean()) for chain, result in zip(received, results, strict=True)},
        Losses(len(work), examples, **(losses if order.report_loss else {})),
    )
    return Message(write_update(update, layout, config.wire_up, received), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Judge the received models on the ordered clients' shards."""
    config, node = _config(context), _hosted(context)
    order = read_order(message.content)
    engine, layout = _engine(config, node, order)
    received = read_models(message.content, layout, config.wire_down)
    work, examples = _work(order, node, config, judged=True)
    judged = engine.judge(list(received.values()), work)
    for chain, losses in zip(received, judged, strict=True):
        _check_finite(order, chain, work, losses)
    means = {chain: float(losses.mean()) for chain, losses in zip(received, judged, strict=True)}
    return Message(write_losses(Losses(len(work), examples, **means)), reply_to=message)


def _work(order: Order, node: Hosted, config: RunConfig, *, judged: bool) -> tuple[list[Work], int]:
    """Return each client's batches and judged rows, which depend on (seed, client, server-round) alone.

    And how many examples the clients have: with a clock, the shards of the next minute may be others.
    """
    if unknown := sorted(set(order.clients) - set(node.clients)):
        raise ProtocolError(f"client {unknown[0]} is not hosted here")
    if order.block >= node.shards.blocks:
        raise ProtocolError(f"block must be in [0, {node.shards.blocks}), got {order.block}")
    # Samples with timestamps grow old, so that a client may have none of this block: it then takes no part.
    shards = {client: node.shards.shard(client, order.block) for client in order.clients}
    shards = {client: shard for client, shard in shards.items() if len(shard.rows)}
    if not shards:
        raise ProtocolError(f"no ordered client has data of block {order.block}")
    clients, sizes = list(shards), [len(shard.rows) for shard in shards.values()]
    drawn = config.local_iterations * config.batch_size
    steps = draw_rows(config.seed, "batches", order.server_round, clients, sizes, drawn)
    sampled = config.selection_examples if judged else 0
    picks = draw_rows(config.seed, "judged", order.server_round, clients, sizes, sampled)
    seeds = draw_rows(config.seed, "network", order.server_round, clients, [_SEEDS] * len(clients), 1)
    work = []
    for (client, shard), step, pick, seed in zip(shards.items(), steps, picks, seeds, strict=True):
        whole = np.broadcast_to(shard.rows, (config.local_iterations, len(shard.rows)))
        batches = shard.rows[step].reshape(config.local_iterations, -1) if config.batch_size else whole
        rows = shard.rows[pick] if 0 < sampled < len(shard.rows) else shard.rows if judged else shard.rows[:0]
        work.append(Work(client, shard.x, shard.y, batches, rows, int(seed[0])))
    return work, sum(sizes)


def _check_finite(
    order: Order, chain: str, work: Sequence[Work], losses: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> None:
    if not np.isfinite(losses).all():
        client = work[int(np.flatnonzero(~np.isfinite(losses))[0])].client
        raise FloatingPointError(
            f"loss is not finite in round {order.server_round}, block {order.block}, {chain} chain, client {client}; "
            "lower the learning rate"
        )


def _hosted(context: Context) -> Hosted:
    return hosted(context.node_config, _config(context))


def _config(context: Context) -> RunConfig:
    return _parsed(tuple(context.run_config.items()))


@lru_cache(maxsize=8)
def _parsed(items: tuple[tuple[str, UserConfigValue], ...]) -> RunConfig:
    # A server that is newer than this node may have more keys; those that a node needs it has.
    known = {key_of(item) for item in flags()}
    return RunConfig.from_mapping({key: value for key, value in items if key in known})


# A process serves one run at a time, which has one engine.
_made: dict[tuple[object, ...], tuple[Engine, Layout]] = {}


def _engine(config: RunConfig, node: Hosted, order: Order) -> tuple[Engine, Layout]:
    """Return the engine, made at the first order: what that asks for is what `auto` tries engines on."""
    signature = node.shards.signature
    key = (config.engine, config.task, node.model, signature, node.threads, config.gpus_per_worker)
    if key not in _made:
        task = open_task(config.task)
        network = build(task, signature, node.model)
        hosted = set(node.clients)
        load = load_of(node.shards, [client for client in order.clients if client in hosted], config)
        gpu = config.gpus_per_worker > 0
        engine = engines.choose(config.engine, network, signature, node.threads, task, load, gpu=gpu)
        _made.clear()
        _made[key] = engine, Layout.of(arrays_of(network))
    return _made[key]
