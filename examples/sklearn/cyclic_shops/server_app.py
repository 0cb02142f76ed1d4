"""The server: MM-PSGD around FedAvg."""

from __future__ import annotations

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from cyclic_shops.task import BLOCKS, SHOPS, initial, load, opened, test
from perennial import MMPSGD, RoundSchedule

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    keys = context.run_config
    strategy = MMPSGD(
        schedule=RoundSchedule(blocks=BLOCKS, rounds_per_block=int(keys["rounds-per-block"])), fraction_evaluate=0.0
    )
    result = strategy.start(
        grid=grid,
        initial_arrays=initial(),
        num_rounds=int(keys["num-server-rounds"]),
        run_dir=str(keys["run-dir"]) or None,
    )
    for block, name in enumerate(BLOCKS):
        # Customers of shops that did not train.
        unseen = [load(block, SHOPS + shop, 500) for shop in range(4)]
        for what, arrays in (("predictor", result.predictors[name]), ("latest model", result.arrays)):
            accuracy = np.mean([test(opened(arrays), data)[1] for data in unseen])
            print(f"{name}: {what} {100 * accuracy:.1f} %")
