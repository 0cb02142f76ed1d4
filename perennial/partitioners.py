"""Partitioners for Flower Datasets (extra ``flower-datasets``): partitions that come in blocks."""

from __future__ import annotations

from perennial.common.data.block_partitioners import BlockCyclicPartitioner, BlockPartitioner, TimeBlockPartitioner

__all__ = ["BlockCyclicPartitioner", "BlockPartitioner", "TimeBlockPartitioner"]
