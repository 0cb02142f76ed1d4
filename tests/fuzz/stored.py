"""Folders of shards and checkpoints, mutated."""

from __future__ import annotations

import hashlib
import io
import json
import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save

from perennial.common.command.errors import InputError
from perennial.common.data import npz
from perennial.common.data.shards import ShardFolder
from perennial.server.run.checkpoint import Checkpoints as Kept
from perennial.server.run.checkpoint import load_checkpoint
from perennial.server.run.tree import DamagedError
from tests.fuzz import mutate
from tests.fuzz.refusal import refused
from tests.fuzz.samples import a_checkpoint, a_folder


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
        Kept(self.folder).save(a_checkpoint())
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
        except InputError as error:
            return refused(error)
        assert (saved.server_round, bool(saved.run)) == (7, True)
        assert Kept(self.folder).latest() is not None
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
