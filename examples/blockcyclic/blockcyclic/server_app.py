"""blockcyclic: A Flower Baseline. The server runs one of the two algorithms."""

from __future__ import annotations

from flwr.app import ArrayRecord, ConfigRecord, Context
from flwr.serverapp import Grid, ServerApp

from blockcyclic.dataset import opened
from blockcyclic.model import initial as initial_net
from blockcyclic.strategy import build
from blockcyclic.utils import Judge

app = ServerApp()


def initial() -> ArrayRecord:
    """Return the model that training starts from."""
    return ArrayRecord(initial_net().state_dict())


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run entry point for the ServerApp."""
    keys = context.run_config
    strategy = build(keys)
    judge = Judge(strategy, opened(keys), keys["evaluate-every"], str(keys["results"]))
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(initial_net(keys["seed"]).state_dict()),
        num_rounds=keys["num-server-rounds"] or None,
        train_config=ConfigRecord({"lr": keys["lr-mixed"]}),
        on_round=judge,
    )
    judge.tell()
