"""A flower-server under attack while honest devices train: what it costs their rounds, its memory and its log.

    python -m benchmarks.attack                 # every attack for 15 seconds, at a limit of 1,024 files
    python -m benchmarks.attack --only garbage --seconds 60

Server, devices and attackers share one machine; attackers are processes that the others go before.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import statistics
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.attacks import STRANGERS, Target, run
from benchmarks.devices import Devices, key_of
from benchmarks.fleet_lab import MEGA, Fleet, Lab, commit, lab, table_row
from benchmarks.insiders import INSIDERS, Insider
from benchmarks.processes import wait_until
from perennial.client.link.failures import Refused, Unreachable
from perennial.client.link.fleet_connection import FleetConnection
from perennial.client.link.http import Response
from perennial.server.link.listener import Listener

HEAD = (
    "| attack | rounds | median, s | slowest, s | server MB, at most | log grew by bytes | what came of it |\n"
    "|---|---|---|---|---|---|---|"
)
_FILES = 1024
ATTACKS = (*STRANGERS, *INSIDERS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--devices", type=int, default=20, help="honest ones (default: 20)")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each attack (default: 15)")
    parser.add_argument("--only", nargs="+", choices=ATTACKS, default=ATTACKS, metavar="ATTACK",
                        help=f"one or more of: {'; '.join(ATTACKS)}")  # fmt: skip
    options = parser.parse_args()
    print(f"commit {commit()}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}, {options.devices} devices\n")
    print(HEAD, flush=True)
    fleet = Fleet(options.devices, rounds=400_000, files=_FILES, spare=1, nodes=options.devices + 1, workers=1)
    with (
        lab(fleet) as made,
        made.usage.watched(),
        ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool,
    ):
        insider = _insider(made, options.devices)
        made.connected()
        made.wait_for_rows(20, 300)
        phases = []
        for name in ("none", *options.only, "none, afterwards"):
            phases.append(_phase(made, name, options.seconds, insider, pool))
            print(phases[-1].row(), flush=True)
        said = impostors(made)
    print(f"\n{verdict(phases)}\n{said}\nload {os.getloadavg()[0]:.1f} at the end")


@dataclass(frozen=True)
class Phase:
    """What became of the rounds that ended while an attack went on.

    size: bytes of the server's memory, at most. log: bytes that it wrote there.
    """

    name: str
    seconds: Sequence[float]
    size: float
    log: int
    said: str

    @property
    def median(self) -> float:
        return statistics.median(self.seconds) if self.seconds else math.inf

    def row(self) -> str:
        times = f"{self.median:.2f}", f"{max(self.seconds, default=math.inf):.2f}"
        return table_row(self.name, len(self.seconds), *times, f"{self.size / MEGA:.0f}", self.log, self.said)


def verdict(phases: Sequence[Phase]) -> str:
    """Return the worst of each figure beside the first phase, which is without an attack."""
    normal, attacks = phases[0], phases[1:-1]
    slow, large, loud = (max(attacks, key=key) for key in (lambda p: p.median, lambda p: p.size, lambda p: p.log))
    return (
        f"rounds took at most {slow.median / normal.median:.1f} times as long as without an attack ({slow.name}); "
        f"memory was at most {(large.size - normal.size) / MEGA:.0f} MB above ({large.name}); the log grew by at most "
        f"{loud.log} bytes in an attack ({loud.name})"
    )


def _phase(made: Lab, name: str, seconds: float, insider: Insider, pool: ProcessPoolExecutor) -> Phase:
    """Attack, and return what came of it."""
    begun, size, rounds = time.time(), len(made.log()), len(made.rows())
    said = ""
    if name in STRANGERS:
        target = Target(insider.target.port, insider.target.ca, insider.target.recorded[-20:])
        said = pool.submit(run, name, target, seconds).result()
    elif name in INSIDERS:
        said = INSIDERS[name](insider, time.monotonic() + seconds)
    else:
        time.sleep(seconds)
    taken = [row["seconds"] for row in made.rows()[rounds:]]
    return Phase(name, taken, made.usage.most(begun), len(made.log()) - size, said)


def _insider(made: Lab, number: int) -> Insider:
    """Return a device in this process, whose requests are recorded."""
    port, ca = int(made.address.rpartition(":")[2]), made.folder / "tls" / "ca.crt"

    def started() -> Devices:
        devices = Devices(made.address, ca, 0.0)
        threading.Thread(target=devices.run, args=(number,), daemon=True).start()
        return devices

    first = started()
    wait_until(lambda: number in first.connections, 300, "the device in this process")
    connection = first.connections[number]
    assert isinstance(connection, FleetConnection)
    other = FleetConnection(made.address, ca=ca, key=key_of(number))
    other.greet()
    assert other._greeting
    challenge = str(other._greeting["challenge"]), time.monotonic()
    other.close(unregister=False)
    insider = Insider(Target(port, ca), connection, started, challenge)
    request = connection._http.request

    def recorded(
        method: str, path: str, headers: Mapping[str, str], pieces: Sequence[bytes] = (), *, seconds: float
    ) -> Response:
        insider.target.recorded.append((path, headers.get("authorization", "")))
        return request(method, path, headers, pieces, seconds=seconds)

    connection._http.request = recorded  # type: ignore[method-assign]
    return insider


def impostors(made: Lab) -> str:
    """Return what a device says to servers with a certificate of another CA, and with an expired one."""
    said = []
    for name, days in (("of another CA", "30"), ("that has expired", "0")):
        folder = made.folder / f"impostor-{days}"
        certificate(folder, days, made.folder / "tls" if days == "0" else None)
        listener = Listener(_nobody, "127.0.0.1", 0, cert=folder / "server.crt", key=folder / "server.key")
        listener.start()
        try:
            address = f"127.0.0.1:{listener.port}"
            FleetConnection(address, ca=made.folder / "tls" / "ca.crt", key=key_of(0)).greet()
            said.append(f"a certificate {name}: TAKEN")
        except (Unreachable, Refused) as error:
            said.append(f"a certificate {name}: refused by the device ({error})")
        finally:
            listener.stop()
    return "\n".join(said)


def certificate(folder: Path, days: str, authority: Path | None) -> None:
    """Make a certificate for loopback, by a CA of its own or by ``authority``; one of no days has expired."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    folder.mkdir()
    key = ec.generate_private_key(ec.SECP256R1())
    issuer, signer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "impostor")]), key
    if authority:
        issuer = x509.load_pem_x509_certificate((authority / "ca.crt").read_bytes()).subject
        loaded = serialization.load_pem_private_key((authority / "ca.key").read_bytes(), None)
        assert isinstance(loaded, ec.EllipticCurvePrivateKey)
        signer = loaded
    begin = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=2)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")]))
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=1 + int(days)))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    (folder / "server.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    pem, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    (folder / "server.key").write_bytes(key.private_bytes(pem, form, plain))


async def _nobody(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        raise AssertionError("a device has spoken to an impostor")


if __name__ == "__main__":
    main()
