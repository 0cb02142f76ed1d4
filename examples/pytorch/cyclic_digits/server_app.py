"""The server: MC-PSGD in the place of FedAvg."""

from __future__ import annotations

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from cyclic_digits.task import BLOCKS, Net, initial, load, test
from perennial import MCPSGD, RoundSchedule

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    keys = context.run_config
    strategy = MCPSGD(
        schedule=RoundSchedule(blocks=BLOCKS, rounds_per_block=int(keys["rounds-per-block"])),
        separate_config=ConfigRecord({"lr": float(keys["separate-learning-rate"])}),
        one_message=True,
        # The remaining arguments are FedAvg's.
        fraction_train=float(keys["fraction-train"]),
        fraction_evaluate=0.0,
    )

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        net = Net()
        net.load_state_dict(arrays.to_torch_state_dict())
        loss, accuracy = test(net, load(strategy.slot.block if strategy.slot else 0))
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    result = strategy.start(
        grid=grid,
        initial_arrays=initial(),
        num_rounds=int(keys["num-server-rounds"]),
        train_config=ConfigRecord({"lr": float(keys["learning-rate"])}),
        evaluate_fn=evaluate,
        run_dir=str(keys["run-dir"]) or None,
    )
    for block, name in enumerate(BLOCKS):
        net = Net()
        net.load_state_dict(result.predictors[name].to_torch_state_dict())
        print(f"{name}: predictor {100 * test(net, load(block))[1]:.1f} %", end=", ")
        net.load_state_dict(result.arrays.to_torch_state_dict())
        print(f"latest model {100 * test(net, load(block))[1]:.1f} %")
