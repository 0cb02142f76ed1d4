"""What is fuzzed: each target makes one mutated input and hands it to a reader, which may refuse it in its own words.

A target returns whether the reader took the input; anything raised but the reader's own error is a finding.
"""

from __future__ import annotations

import hashlib
import io
import json
import random
import zipfile
from collections.abc import Callable
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any
from zoneinfo import available_timezones

import numpy as np
import yaml
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from safetensors.numpy import save

from perennial.common.command.config import RunConfig, schedule_of
from perennial.common.command.errors import InputError
from perennial.common.command.typed_keys import key_of
from perennial.common.cycle import clock
from perennial.common.data import npz
from perennial.common.data.shards import ShardFolder
from perennial.common.wire.arrays import encode
from perennial.common.wire.layout import Layout
from perennial.common.wire.orders import Order, read_models, read_order, write_order
from perennial.common.wire.protocol import Identity, ProtocolError, read_identity, write_identity
from perennial.common.wire.updates import Losses, Update, read_losses, read_update, write_losses, write_update
from perennial.server.run.checkpoint import DamagedError, load_checkpoint, load_latest, save_checkpoint
from perennial.simulation import experiment
from tests.fuzz import mutate
from tests.fuzz.samples import a_checkpoint, a_folder

LAYOUT = Layout(("w", "b"), ((2, 3), (2,)))
VECTOR = np.arange(8, dtype=np.float32)
CHAINS = ("mixed", "separate")
ORDER = Order(3, 0, 1, (2, 5, 8), True)


def refused(error: Exception) -> bool:
    """Return False, for an input that was refused in one line that is short enough to read."""
    text = str(error)
    assert len(text) < 2000
    assert "\n" not in text
    return False


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


class Config:
    """Flat mappings, as they come from run-configs, flags and files."""

    def __init__(self, folder: Path) -> None:
        # Naming the nearest time zone lists them all from disk, 0.1 s each time.
        clock.available_timezones = cache(available_timezones)
        self.keys = [key_of(item) for item in fields(RunConfig)]
        self.defaults = RunConfig().to_mapping()
        clocks = (
            "day: 08:00-20:00, night: 20:00-08:00",
            "a: Mon-Fri, b: Sat,Sun",
            "a: Sat-Sun 00:00-24:00, b: Mon-Fri",
        )
        self.words = [*clocks, "Europe/Berlin", "UTC", "../../etc/passwd", "2026-03-27T12:00", "0001-01-01", "3x32x32"]

    def mapping(self, rng: random.Random) -> dict[Any, Any]:
        """Return a few keys with values of the right kind, of the wrong one, or mangled."""
        found: dict[Any, Any] = {}
        for _ in range(rng.randint(1, 4)):
            key: Any = rng.choice(self.keys)
            if rng.randrange(20) == 0:
                key = rng.choice(
                    (mutate.changed_bytes(rng, key.encode()).decode(errors="replace"), 3, None, 1.5, ("a",))
                )
            kind = rng.randrange(8)
            word = mutate.changed_bytes(rng, rng.choice(self.words).encode()).decode(errors="replace")
            default = self.defaults.get(key)
            found[key] = mutate.value(rng) if kind == 0 else word if kind == 1 else default
            if kind == 2 and type(default) in (int, float):
                found[key] = default * rng.choice((-1, 0, 2, 10, 1e300, 10**20))
        if rng.randrange(4) == 0:
            found |= {"clock": word, "timezone": rng.choice(self.words), "clock-start": rng.choice(self.words)}
        return found

    def once(self, rng: random.Random) -> bool:
        try:
            config = RunConfig.from_mapping(self.mapping(rng))
        except InputError as error:
            return refused(error)
        assert RunConfig.from_mapping(config.to_mapping()) == config
        assert config.evaluate_every() >= 1
        schedule_of(config)
        return True


class Experiments(Config):
    """Experiment files: YAML that is damaged, and YAML that is sound and wrong."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.path = folder / "experiment.yaml"
        self.texts = [
            b"title: A\nstrategy: [fedavg, mm-psgd]\nlr-mixed: [.1, .2]\nruns:\n  - {name: a, seed: 3}\n  - seed: 4\n",
            b"data: digits\nclients: 20  # twenty\nclock: 'day: 08:00-20:00, night: 20:00-08:00'\noutput: runs/x\n",
            b"a: &a [1, 2]\nb: *a\nseed: 0x1F\nlr-mixed: 1e-1\ndecay: .5\nshuffled: yes\nblocks: 1_0\nclients: 1:30\n",
        ]

    def once(self, rng: random.Random) -> bool:
        if rng.randrange(2):
            self.path.write_bytes(mutate.changed_bytes(rng, rng.choice(self.texts)))
        else:
            tree: Any = {**self.mapping(rng), "runs": [self.mapping(rng) for _ in range(rng.randint(1, 3))]}
            if rng.randrange(2):
                tree = mutate.changed_tree(rng, tree)
            try:
                self.path.write_text(yaml.dump(tree), errors="replace")
            except (ValueError, yaml.YAMLError):  # numbers too long to be written
                return False
        overrides = (
            [mutate.changed_bytes(rng, b"lr-mixed=0.5").decode(errors="replace")] if rng.randrange(3) == 0 else []
        )
        try:
            found = experiment.load(self.path, overrides)
        except InputError as error:
            return refused(error)
        assert found.passes
        return True


class Shards:
    """Folders of shards: damaged files, and archives whose headers lie with sound checksums."""

    def __init__(self, folder: Path) -> None:
        self.folder = a_folder(folder / "shards")
        self.files = {path: path.read_bytes() for path in sorted(self.folder.rglob("*")) if path.is_file()}

    def once(self, rng: random.Random) -> bool:
        path = rng.choice(list(self.files))
        path.write_bytes(self._changed(rng, path))
        try:
            shards = ShardFolder(self.folder)
            if shards.blocks < 10 and len(shards.clients) < 10:
                shards.check()
                shards.test(0)
            if path.suffix == ".npz":
                arrays = npz.read(path, ("x", "y"), mapped=True)
                assert all(array.nbytes < 2**20 for array in arrays.values())
        except InputError as error:
            return refused(error)
        finally:
            path.write_bytes(self.files[path])
        return True

    def _changed(self, rng: random.Random, path: Path) -> bytes:
        content = self.files[path]
        if rng.randrange(2):
            return mutate.changed_bytes(rng, content)
        if path.suffix == ".json":
            return _json(mutate.changed_tree(rng, json.loads(content)))
        return self._archive(rng, content)

    @staticmethod
    def _archive(rng: random.Random, content: bytes) -> bytes:
        buffer = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(buffer, "w") as target:
            for name in source.namelist():
                data = source.read(name)
                kind = rng.randrange(4)
                if kind == 0:
                    data = mutate.changed_bytes(rng, data[:128]) + data[128:]
                elif kind == 1:
                    data = _with_header(rng, data)
                elif kind == 2:
                    name = rng.choice((name, "x.npy", "y.npy", "../x.npy", "z"))
                target.writestr(name, data, rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)))
        return buffer.getvalue()


def _with_header(rng: random.Random, data: bytes) -> bytes:
    """Return .npy data under a header of its own making."""
    dtype = rng.choice(
        ("<f4", "|u1", "<i8", ">i8", "|O", "<U3", "V8", "<M8[s]", "<c8", "|b1", "f4,(2,)i8", "", "S0", "x")
    )
    shape = rng.choice(
        ("(4, 2, 3)", "(4,)", "()", "(0,)", "(-1,)", "(2**62,)", "(99999999999999999999,)", "4", "(4.0,)")
    )
    order = rng.choice(("False", "True", "1", "None"))
    header = f"{{'descr': '{dtype}', 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    version = rng.choice((1, 1, 1, 2, 3, 255))
    size = len(header).to_bytes(2 if version == 1 else 4, "little")
    return b"\x93NUMPY" + bytes((version, 0)) + size + header + data[128:]


class Checkpoints:
    """Checkpoints: damaged bytes, and bodies changed by someone who mends the checksums."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "checkpoint"
        save_checkpoint(self.folder, a_checkpoint())
        self.json = next(self.folder.glob("*.json"))
        self.tensors = self.json.with_suffix(".safetensors")
        self.contents = self.json.read_bytes(), self.tensors.read_bytes()
        self.body = json.loads(json.loads(self.contents[0])["body"])

    def once(self, rng: random.Random) -> bool:
        kind = rng.randrange(4)
        outer, tensors = self.contents
        if kind == 0:
            outer = mutate.changed_bytes(rng, outer)
        elif kind == 1:
            tensors = mutate.changed_bytes(rng, tensors)
        elif kind == 2:
            outer = self._sealed(mutate.changed_tree(rng, self.body), tensors)
        else:
            tensors = self._other_tensors(rng, tensors)
            outer = self._sealed(self.body, tensors)
        self.json.write_bytes(outer)
        self.tensors.write_bytes(tensors)
        try:
            saved = load_checkpoint(self.json)
        except DamagedError:
            return False
        assert saved.state.slot is not None
        sizes = {model.shape for one in saved.state.predictors for model in one.models}
        assert sizes == {saved.state.chains.mixed.shape}
        assert load_latest(self.folder) is not None
        return True

    @staticmethod
    def _sealed(body: Any, tensors: bytes) -> bytes:
        if isinstance(body, dict) and "sha256" in body:
            body = {**body, "sha256": hashlib.sha256(tensors).hexdigest()}
        text = _json(body).decode(errors="replace")
        return json.dumps({"sha256": hashlib.sha256(text.encode()).hexdigest(), "body": text}).encode()

    @staticmethod
    def _other_tensors(rng: random.Random, tensors: bytes) -> bytes:
        kinds = (np.float32, np.float64, np.int64, np.uint8, np.bool_)
        if rng.randrange(3) == 0:
            return mutate.changed_bytes(rng, tensors)
        return save({
            rng.choice((str(place), "x", "")): np.ones(rng.choice(((2,), (3,), (0,), (2, 1), ())), rng.choice(kinds))
            for place in range(rng.randint(0, 6))
        })  # fmt: skip


def _json(tree: Any) -> bytes:
    try:
        return json.dumps(tree, default=str).encode(errors="surrogatepass")
    except ValueError:  # a number too long to be written
        return b"[" + b"9" * 5000 + b"]"


TARGETS: dict[str, Callable[[Path], Any]] = {
    "protocol": Protocol,
    "config": Config,
    "experiment": Experiments,
    "shards": Shards,
    "checkpoint": Checkpoints,
}
