"""A folder of shards in which a client may have one file of samples with timestamps, cut into blocks by the clock."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from perennial.common.command.errors import InputError
from perennial.common.cycle.clock import ClockSpec, utc_now
from perennial.common.data.datasets import Described, Shard
from perennial.common.data.partition import Rows
from perennial.common.data.shards import ShardFolder, shard_path
from perennial.common.data.timestamps import FILE, Samples, read_samples, rows_by_block


class TimedFolder(Described):
    """Fills ``Shards``. A block's rows are found anew every minute: samples grow old, and blocks may become empty.

    now: None on a simulated clock, where time is taken to be that of the client's latest sample.
    """

    def __init__(
        self, folder: ShardFolder, spec: ClockSpec, retention_days: float, now: Callable[[], datetime] | None = utc_now
    ) -> None:
        if len(spec.names) != folder.blocks:
            raise InputError(
                f"{folder.folder}: the manifest says {folder.blocks} blocks, the clock has {len(spec.names)} "
                f"({', '.join(spec.names)})"
            )
        self._folder, self._spec, self._retention, self._now = folder, spec, retention_days or None, now
        self.signature, self.blocks, self.clients = folder.signature, folder.blocks, folder.clients
        # With the file's time and size: a device writes it anew as samples come.
        self._samples: dict[int, tuple[tuple[int, int], Samples]] = {}
        self._rows: dict[int, tuple[datetime, tuple[Rows, ...]]] = {}

    def shard(self, client: int, block: int) -> Shard:
        """Return the client's samples of the block that are not too old, possibly none; or its block file."""
        samples = self._read(client)
        if samples is None:
            return self._folder.shard(client, block)
        return Shard(samples.x, samples.y, self._cut(client, samples)[block])

    def test(self, block: int) -> Shard | None:
        return self._folder.test(block)

    @property
    def folder(self) -> Path:
        return self._folder.folder

    def check(self, done: Callable[[], None] = lambda: None) -> None:
        """Read everything once, and call ``done`` after each shard; an InputError says what is wrong."""
        self._folder.check(done)

    def _read(self, client: int) -> Samples | None:
        path = shard_path(self._folder.folder, client, 0).with_name(FILE)
        if not path.exists():
            return None
        status = path.stat()
        stamp = status.st_mtime_ns, status.st_size
        known = self._samples.get(client)
        if known is None or known[0] != stamp:
            known = self._samples[client] = stamp, read_samples(path, self.signature)
            self._rows.pop(client, None)
        return known[1]

    def _cut(self, client: int, samples: Samples) -> tuple[Rows, ...]:
        latest = datetime.fromtimestamp(int(samples.t.max(initial=0)), UTC)
        minute = (self._now() if self._now else latest).replace(second=59, microsecond=0)
        known = self._rows.get(client)
        if known is None or known[0] != minute:
            rows = rows_by_block(self._spec, samples.t, now=minute, retention_days=self._retention)
            known = self._rows[client] = minute, rows
        return known[1]
