"""Messages as a node or a server could send them, mutated."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from perennial.common.wire.arrays import encode
from perennial.common.wire.layout import Layout
from perennial.common.wire.orders import Order, read_models, read_order, write_order
from perennial.common.wire.protocol import Identity, ProtocolError, read_identity, write_identity
from perennial.common.wire.updates import Losses, Update, read_losses, read_update, write_losses, write_update
from tests.fuzz import mutate
from tests.fuzz.refusal import refused

LAYOUT = Layout(("w", "b"), ((2, 3), (2,)))
VECTOR = np.arange(8, dtype=np.float32)
CHAINS = ("mixed", "separate")
ORDER = Order(3, 0, 1, (2, 5, 8), True)


class Protocol:
    """Identities, orders, updates and losses as a node or a server could send them."""

    def __init__(self, folder: Path) -> None:
        models = {chain: encode(VECTOR, LAYOUT) for chain in CHAINS}
        update = Update(dict.fromkeys(CHAINS, VECTOR), dict.fromkeys(CHAINS, 0.5), Losses(3, 30, 0.3, 0.4))
        self.cases: list[tuple[RecordDict, Callable[[RecordDict], Any]]] = [
            (write_identity(Identity((1, 2), 2)), read_identity),
            (write_order(ORDER, models), self._order),
            (write_update(update, LAYOUT), self._update),
            (write_losses(Losses(3, 30, 0.3, 0.4)), lambda content: read_losses(content, ORDER)),
        ]

    @staticmethod
    def _order(content: RecordDict) -> None:
        read_order(content)
        read_models(content, LAYOUT)

    @staticmethod
    def _update(content: RecordDict) -> None:
        update = read_update(content, ORDER, LAYOUT, CHAINS)
        # What the server does with what was read must not fail either.
        assert all(np.isfinite(model).all() for model in update.models.values())
        assert np.isfinite([3 * loss for loss in (*update.train_losses.values(), update.losses.mixed)]).all()

    def once(self, rng: random.Random) -> bool:
        content, read = rng.choice(self.cases)
        try:
            read(self._changed(rng, content))
        except ProtocolError as error:
            return refused(error)
        return True

    def _changed(self, rng: random.Random, content: RecordDict) -> RecordDict:
        records: dict[str, Any] = dict(content.items())
        for _ in range(rng.randint(1, 2)):
            name = rng.choice(sorted(records) or [""])
            kind = rng.randrange(10)
            if kind == 0:
                records.pop(name, None)
            elif kind == 1 and records:
                records[rng.choice(("mixed", "separate", "update", "order", "node"))] = rng.choice([*records.values()])
            elif isinstance(records.get(name), ArrayRecord):
                records[name] = self._changed_arrays(rng, records[name])
            elif name in records:
                records[name] = _changed_record(rng, records[name])
        return RecordDict(records)

    @staticmethod
    def _changed_arrays(rng: random.Random, record: ArrayRecord) -> ArrayRecord:
        arrays: dict[str, Array] = dict(record.items())
        name = rng.choice(sorted(arrays))
        old = arrays[name]
        kind = rng.randrange(6)
        if kind == 0:
            del arrays[name]
        elif kind == 1:
            arrays[rng.choice(("", "extra", "w" * 500))] = old
        elif kind == 2:
            shape = rng.choice(((), (0,), (2,), (3, 2), (-1,), (2**62,), (2, 3, 1)))
            dtype = rng.choice(("float32", "float64", "object", "", "\0"))
            arrays[name] = Array(dtype=dtype, shape=shape, stype=rng.choice(("numpy.ndarray", "pickle", "")), data=b"")
        elif kind == 3 and 0 <= np.prod(old.shape) < 100:
            wild = np.frombuffer(rng.randbytes(4 * int(np.prod(old.shape))), np.float32).reshape(old.shape)
            arrays[name] = Array(wild)
        else:
            data = mutate.changed_bytes(rng, old.data)
            arrays[name] = Array(dtype=old.dtype, shape=old.shape, stype=old.stype, data=data)
        return ArrayRecord(arrays)


def _changed_record(rng: random.Random, record: Any) -> Any:
    for _ in range(10):
        values = mutate.changed_tree(rng, dict(record.items()))
        if not isinstance(values, dict):
            continue
        try:
            return rng.choice((type(record), type(record), type(record), ConfigRecord, MetricRecord))(values)
        except (TypeError, ValueError):  # Flower itself refuses such a record
            continue
    return record
