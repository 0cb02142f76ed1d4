"""The folder of node keys: who is admitted and revoked by its files, whatever happens to them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from perennial.server.link.fleet import Fleet, RunFacts
from perennial.server.link.key_folder import KeyFolder
from tests.deploy.conftest import key
from tests.processes import wait_until


class Registry:
    def __init__(self) -> None:
        self.nodes: set[int] = set()
        self.clients: list[frozenset[int] | None] = []

    def register(self, key: object, clients: frozenset[int] | None = None) -> int:
        self.nodes.add(len(self.nodes) + 1)
        self.clients.append(clients)
        return len(self.nodes)

    def revoke(self, node_id: int) -> None:
        self.nodes.remove(node_id)


def new_key(path: Path, kind: str = "ecdsa") -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", path], check=True)


def test_a_key_file_admits_and_its_removal_revokes(tmp_path: Path) -> None:
    registry = Registry()
    keys = KeyFolder(tmp_path, registry)
    new_key(tmp_path / "a")
    keys.look()
    assert registry.nodes == {1}
    (tmp_path / "a.pub").rename(tmp_path / "renamed.pub")
    keys.look()
    assert registry.nodes == {1}
    (tmp_path / "renamed.pub").unlink()
    keys.look()
    assert registry.nodes == set()


def test_a_list_of_clients_behind_a_key_goes_with_it_and_may_change(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fleet = Fleet(RunFacts({}))
    keys = KeyFolder(tmp_path, fleet)
    new_key(tmp_path / "a")
    kind, coded, comment = (tmp_path / "a.pub").read_text().split()
    (tmp_path / "a.pub").write_text(f"{kind} {coded} clients=0-2 {comment}")
    keys.look()
    (node,) = keys._nodes.values()
    assert fleet.claim_problem(node, (1, 2)) == ""
    assert "it claims client 7" in fleet.claim_problem(node, (7,))
    (tmp_path / "a.pub").write_text(f"{kind} {coded} {comment} clients=7")
    keys.look()
    assert fleet.claim_problem(node, (7,)) == ""
    # What cannot be read changes nothing, and is said once.
    (tmp_path / "a.pub").write_text(f"{kind} {coded} clients=7-3 {comment}")
    keys.look()
    keys.look()
    assert fleet.claim_problem(node, (7,)) == ""
    said = [record.getMessage() for record in caplog.records if "is no list" in record.getMessage()]
    assert said == ["a.pub is left as it was: clients=7-3 is no list of clients; write it as clients=0-3,7"]
    (tmp_path / "a.pub").unlink()
    keys.look()
    assert fleet.claim_problem(node + 1, (7,)) == ""


def test_a_new_key_whose_list_cannot_be_read_admits_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    keys = KeyFolder(tmp_path, registry := Registry())
    new_key(tmp_path / "a")
    (tmp_path / "a.pub").write_text(f"{(tmp_path / 'a.pub').read_text().strip()} clients=all")
    keys.look()
    assert registry.nodes == set()
    assert "a.pub admits nobody: clients=all is no list of clients" in caplog.text


@pytest.mark.parametrize("kind", ["ed25519", "text", "binary"])
def test_a_file_that_is_no_ecdsa_key_admits_nobody(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    if kind == "ed25519":
        new_key(tmp_path / "a", kind)
    else:
        (tmp_path / "a.pub").write_bytes(b"hello world\n" if kind == "text" else bytes(range(128, 256)))
    keys = KeyFolder(tmp_path, registry := Registry())
    keys.look()
    keys.look()
    assert registry.nodes == set()
    assert len(caplog.records) == (kind != "binary")


def test_a_file_that_cannot_be_read_for_a_moment_revokes_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry()
    new_key(tmp_path / "a")
    monkeypatch.setattr("perennial.server.link.key_folder._SECONDS_BETWEEN_LOOKS", 0.01)
    keys = KeyFolder(tmp_path, registry)
    keys.start()
    broken = OSError(24, "Too many open files")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", lambda path: (_ for _ in ()).throw(broken))
        # A file that did not change is not read again.
        (tmp_path / "a.pub").touch()
        wait_until(lambda: "Too many open files" in caplog.text, 60, "a warning")
    assert registry.nodes == {1}
    (tmp_path / "a.pub").unlink()
    wait_until(lambda: not registry.nodes, 60, "the watch to go on")
    keys.stop()


def test_files_that_cannot_be_read_are_named_once_and_again_when_it_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("a", "b"):
        new_key(tmp_path / name)
    keys = KeyFolder(tmp_path, Registry())
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_text", lambda _: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
            for name in ("a", "b"):
                (tmp_path / f"{name}.pub").touch()
            for _ in range(3):
                keys.look()
        keys.look()
    warned = [record.getMessage() for record in caplog.records if "cannot be read" in record.getMessage()]
    assert [text.split(".pub")[0][-1] for text in warned] == ["a", "b", "a", "b"]


def test_a_folder_that_is_gone_for_a_moment_revokes_nobody(tmp_path: Path) -> None:
    folder = tmp_path / "nodes"
    folder.mkdir()
    new_key(folder / "a")
    keys = KeyFolder(folder, registry := Registry())
    keys.look()
    folder.rename(tmp_path / "away")
    with pytest.raises(FileNotFoundError):
        keys.look()
    assert registry.nodes == {1}


def test_one_file_that_cannot_be_read_keeps_no_other_from_being_revoked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        new_key(tmp_path / name)
    keys = KeyFolder(tmp_path, registry := Registry())
    keys.look()
    assert registry.nodes == {1, 2}
    (tmp_path / "b.pub").unlink()
    read = Path.read_text

    def refuse(path: Path) -> str:
        if path.name == "a.pub":
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_text", refuse)
    (tmp_path / "a.pub").touch()
    keys.look()
    assert registry.nodes == {1}


def test_a_file_that_did_not_change_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new_key(tmp_path / "a")
    keys = KeyFolder(tmp_path, registry := Registry())
    keys.look()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", lambda _: pytest.fail("read again"))
        keys.look()
    new_key(tmp_path / "b")
    (tmp_path / "b.pub").rename(tmp_path / "a.pub")
    keys.look()
    assert registry.nodes == {2}


def test_many_keys_are_admitted_in_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(30):
        public = key().public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        (tmp_path / f"{number}.pub").write_bytes(public)
    with caplog.at_level("INFO"):
        KeyFolder(tmp_path, Registry()).look()
    assert [record.getMessage() for record in caplog.records] == [f"30 keys of {tmp_path} may connect"]
