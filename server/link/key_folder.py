"""The folder of node keys: a public key in it may connect, and is refused once its file is gone."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path
from typing import Protocol

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from perennial.common.command.errors import InputError
from perennial.server.link.bindings import OPTION, read_clients

LOG = logging.getLogger("perennial")
# Between two looks at the folder, and at least so many times what a look takes: ten thousand files take a while.
_SECONDS_BETWEEN_LOOKS, _TIMES_A_LOOK = 2.0, 50.0
# Of keys that are admitted in one look, more than these are not named one by one.
_MOST_SAID = 20
Stamp = tuple[int, ...]


class Registry(Protocol):
    """What admits nodes; it may be told anew which clients a key is for."""

    def register(self, key: EllipticCurvePublicKey, clients: frozenset[int] | None = None) -> int: ...
    def revoke(self, node_id: int) -> None: ...


class KeyFolder:
    """Keeps ``registry`` in step with the ``*.pub`` files of a folder (OpenSSH format, NIST curves).

    A word ``clients=0-3,7`` behind a key says which clients it is for (see ``perennial.server.link.bindings``).
    """

    def __init__(self, folder: Path, registry: Registry) -> None:
        self._folder, self._registry = folder, registry
        # By content, not by name: a file that is renamed is still the same device.
        self._nodes: dict[str, int] = {}
        # Which clients each of them is for, as its file has it; and keys with such lists that admit nobody.
        self._lists: dict[str, str] = {}
        self._bad: set[tuple[str, str]] = set()
        # By file name: the key and list that were read, and what the file was like then.
        self._read: dict[str, tuple[str, str]] = {}
        self._stamps: dict[str, Stamp] = {}
        # What the last look found, if it was done.
        self._files: list[tuple[str, Stamp]] | None = None
        # What this look and the one before found wrong: a problem is said once, not with every look.
        self._problems: set[str] = set()
        self._known_problems: set[str] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="node-keys", daemon=True)

    def start(self) -> None:
        """Admit what is there now, and keep watching."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self.look()
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()

    def look(self) -> None:
        """Admit new keys and revoke missing ones; a file that is no key is named once and otherwise ignored.

        OSError: the folder cannot be listed, and nothing was changed. A file that cannot be read keeps its key.
        """
        self._known_problems, self._problems = self._problems, set()
        # Not Path.glob, to which a folder that is gone is an empty one.
        with os.scandir(self._folder) as entries:
            files = sorted((entry.name, self._stamp_of(entry)) for entry in entries if entry.name.endswith(".pub"))
        if files == self._files and not self._known_problems and all(stamp for _, stamp in files):
            return
        self._files = None
        self._read = {name: self._key_in(self._folder / name, stamp) for name, stamp in files}
        self._stamps = {name: stamp for name, stamp in self._stamps.items() if name in self._read}
        found = {key: (self._folder / name, listed) for name, (key, listed) in self._read.items() if key}
        new = [
            key
            for key, (_, listed) in found.items()
            if (key not in self._nodes or self._lists[key] != listed) and (key, listed) not in self._bad
        ]
        for key in new:
            self._admit(key, *found[key], say=len(new) <= _MOST_SAID)
        if len(new) > _MOST_SAID:
            LOG.info("%d keys of %s may connect", len(new), self._folder)
        for text in self._nodes.keys() - found.keys():
            node = self._nodes.pop(text)
            self._lists.pop(text)
            self._registry.revoke(node)
            LOG.warning("node %d is revoked: its key is no longer in %s", node, self._folder)
        self._files = files

    def __len__(self) -> int:
        return len(self._nodes)

    def _admit(self, text: str, path: Path, listed: str, *, say: bool) -> None:
        try:
            clients = read_clients(listed.removeprefix(OPTION)) if listed else None
            self._nodes[text] = self._registry.register(read_public_key(text, path), clients)
        except ValueError as error:
            self._bad.add((text, listed))
            LOG.warning("%s %s: %s", path.name, "is left as it was" if text in self._nodes else "admits nobody", error)
        else:
            self._lists[text] = listed
            LOG.log(
                logging.INFO if say else logging.DEBUG,
                "%s may connect as node %d%s", path.name, self._nodes[text], f", {listed}" if listed else "",
            )  # fmt: skip

    def _watch(self) -> None:
        took = 0.0
        while not self._stop.wait(max(_SECONDS_BETWEEN_LOOKS, _TIMES_A_LOOK * took)):
            begun = time.thread_time()
            try:
                self.look()
            except Exception as error:  # a disk that fails for a moment must revoke nobody, nor end the watch
                self._warn(f"{self._folder} cannot be looked through, all stays as it is: {error}")
            took = time.thread_time() - begun

    @staticmethod
    def _stamp_of(entry: os.DirEntry[str]) -> Stamp:
        """Return what changes with a file; a look at ten thousand files must not read them all."""
        try:
            found = entry.stat()
        except OSError:
            return ()
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _key_in(self, path: Path, stamp: Stamp) -> tuple[str, str]:
        """Return the key with its type, and its list of clients; empty where the file went away or is no text."""
        if stamp and self._stamps.get(path.name) == stamp:
            return self._read[path.name]
        try:
            words = path.read_text().split()
        except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError):
            return "", ""
        except OSError as error:
            self._warn(f"{path} cannot be read, and what it admitted stays admitted: {error.strerror}")
            return self._read.get(path.name, ("", ""))
        self._stamps[path.name] = stamp
        return " ".join(words[:2]), next((word for word in words[2:] if word.startswith(OPTION)), "")

    def _warn(self, problem: str) -> None:
        if problem not in self._known_problems:
            LOG.warning("%s", problem)
        self._problems.add(problem)


def read_public_key(text: str, path: Path) -> EllipticCurvePublicKey:
    try:
        key = load_ssh_public_key(text.encode())
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(f"{path} is not an OpenSSH public key; `ssh-keygen -t ecdsa -b 384` makes one") from error
    if not isinstance(key, EllipticCurvePublicKey):
        raise InputError(f"{path} must be an ECDSA key; `ssh-keygen -t ecdsa -b 384` makes one")
    return key
