"""Addresses and who may go without TLS: one rule for server and client."""

from __future__ import annotations

import ipaddress
import ssl
from pathlib import Path

from perennial.common.command.errors import InputError


def parse_address(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT`` or ``[IPV6]:PORT``."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isdigit() or not 0 < int(port) < 2**16 or "/" in host:
        raise InputError(f"an address must be HOST:PORT, as in server.example:8000, got {text!r}")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Return whether ``host`` cannot be anything but this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def check_insecure(host: str, *, anywhere: bool) -> str:
    """Return the warning for going without TLS, or refuse it."""
    if is_loopback(host):
        return "without TLS: models and orders can be read and changed by whoever can listen on this machine"
    if anywhere:
        return f"WITHOUT TLS ON {host}: models and orders can be read and changed on the way, by anybody on the network"
    raise InputError(f"--insecure is for loopback addresses, got {host}; use TLS, or force it with --insecure-anywhere")


def readable(path: Path, flag: str) -> Path:
    """Return ``path`` if it can be read."""
    try:
        with path.open("rb"):
            return path
    except OSError as error:
        raise InputError(f"{flag} {path}: {error.strerror}") from error


def check_authority(path: Path, flag: str) -> None:
    """Refuse a file that is not a certificate to trust others by."""
    try:
        ssl.create_default_context(cafile=readable(path, flag))
    except ssl.SSLError as error:
        raise InputError(f"{flag} {path} is not a certificate (PEM)") from error


def check_pair(cert: Path, key: Path) -> None:
    """Refuse a certificate and a private key that do not belong together."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            readable(cert, "--tls-cert"), readable(key, "--tls-key"), password=""
        )
    except ssl.SSLError as error:
        raise InputError(f"--tls-cert {cert} and --tls-key {key} are not a certificate and its key (PEM)") from error
