"""The clients: a shop trains on the customers of the message's block."""

from __future__ import annotations

from flwr.app import Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from cyclic_shops.task import SHOPS, closed, load, opened, test

app = ClientApp()


@app.train()
def train_model(message: Message, context: Context) -> Message:
    config, shop = message.content["config"], int(context.node_config["partition-id"]) % SHOPS
    model, (customers, bought) = opened(message.content["arrays"]), load(config["block"], shop)
    model.partial_fit(customers, bought)
    loss, _ = test(model, (customers, bought))
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(bought)})
    return Message(RecordDict({"arrays": closed(model), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate_model(message: Message, context: Context) -> Message:
    config, shop = message.content["config"], int(context.node_config["partition-id"]) % SHOPS
    data = load(config["block"], shop)
    loss, accuracy = test(opened(message.content["arrays"]), data)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(data[1])})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
