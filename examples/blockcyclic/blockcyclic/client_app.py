"""blockcyclic: A Flower Baseline. A client trains on its shard of the round's block."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from blockcyclic.dataset import opened
from blockcyclic.model import Net
from blockcyclic.model import test as test_fn
from blockcyclic.model import train as train_fn

app = ClientApp()


def received(msg: Message, context: Context):
    """Return the received network, the client's shard, and the client's number."""
    net, keys = Net(), context.run_config
    net.load_state_dict(msg.content["arrays"].to_torch_state_dict())
    client = int(context.node_config["partition-id"]) % int(keys["num-clients"])
    return net, opened(keys).shard(client, msg.content["config"]["block"]), client


@app.train()
def train(msg: Message, context: Context) -> Message:
    """Train the model on local data."""
    net, data, client = received(msg, context)
    keys, config = context.run_config, msg.content["config"]
    # Both chains see the same batches.
    seed = hash((keys["seed"], client, config["server-round"]))
    loss = train_fn(
        net, data, config["lr"], keys["local-iterations"], keys["batch-size"], seed
    )
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(data[1])})
    content = RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics})
    return Message(content, reply_to=msg)


@app.evaluate()
def evaluate(msg: Message, context: Context) -> Message:
    """Judge the model on local data: what MC-PSGD votes by."""
    net, data, _ = received(msg, context)
    loss, accuracy = test_fn(net, data)
    metrics = {"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(data[1])}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=msg)
