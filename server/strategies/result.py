"""What a run gives, as Flower's result, and what Flower logs before and after it."""

from __future__ import annotations

import io
import logging
from dataclasses import dataclass, field

from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import Result, Strategy

from perennial.common.wire.arrays import size_of

LOG = logging.getLogger("flwr")


@dataclass(repr=False)
class BlockResult(Result):
    """Flower's result, and the predictor of each block that was trained, by the block's name.

    ``arrays`` is the mixed chain, as the inner strategy gave it.
    """

    predictors: dict[str, ArrayRecord] = field(default_factory=dict)

    def __repr__(self) -> str:
        lines = [f"\t{name}: ArrayRecord ({_megabytes(one):.3f} MB)\n" for name, one in self.predictors.items()]
        return f"{super().__repr__()}\nPredictors:\n{''.join(lines)}"


def log_start(
    strategy: Strategy,
    last_round: int | None,
    arrays: ArrayRecord,
    train_config: ConfigRecord,
    evaluate_config: ConfigRecord,
) -> None:
    LOG.info("Starting %s strategy:", type(strategy).__name__)
    LOG.info("\t├── Number of rounds: %s", last_round or "until the schedule ends")
    LOG.info("\t├── ArrayRecord (%.2f MB)", _megabytes(arrays))
    LOG.info("\t├── ConfigRecord (train): %s", _shown(train_config))
    LOG.info("\t├── ConfigRecord (evaluate): %s", _shown(evaluate_config))
    strategy.summary()
    LOG.info("")


def log_end(result: BlockResult, seconds: float) -> None:
    LOG.info("")
    LOG.info("Strategy execution finished in %.2fs", seconds)
    LOG.info("")
    LOG.info("Final results:")
    LOG.info("")
    for line in io.StringIO(str(result)):
        LOG.info("\t%s", line.rstrip("\n"))
    LOG.info("")


def _megabytes(arrays: ArrayRecord) -> float:
    return size_of(arrays) / 1024**2


def _shown(config: ConfigRecord) -> str:
    items = (f"{key!r}: {'<bytes>' if isinstance(value, bytes) else value}" for key, value in config.items())
    return f"{{{', '.join(items)}}}" if config else "(empty!)"
