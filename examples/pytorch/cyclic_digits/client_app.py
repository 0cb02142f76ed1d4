"""The clients: as in Flower's quickstart, but that the data of a message is that of its block."""

from __future__ import annotations

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from cyclic_digits.task import CLIENTS, Net, load, test, train
from perennial import both_chains

app = ClientApp()


def opened(message: Message, context: Context) -> tuple[Net, ConfigRecord, int]:
    """Return the received network, the settings of the round, and which client this is."""
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return net, message.content["config"], int(context.node_config["partition-id"]) % CLIENTS


@app.train()
def train_model(message: Message, context: Context) -> Message:
    net, config, client = opened(message, context)
    data = load(config["block"], client)
    loss = train(net, data, config["lr"], seed=config["server-round"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(data)})
    return Message(RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate_model(message: Message, context: Context) -> Message:
    net, config, client = opened(message, context)
    data = load(config["block"], client)
    loss, accuracy = test(net, data)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(data)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


# Both chains of MC-PSGD in one message.
app = both_chains(app)
