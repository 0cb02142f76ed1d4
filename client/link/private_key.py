"""A node's private key."""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from perennial.common.command.errors import InputError


def read_private_key(path: Path) -> EllipticCurvePrivateKey:
    """Return the ECDSA key of an OpenSSH file without a passphrase."""
    try:
        key = load_ssh_private_key(path.read_bytes(), None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InputError(f"--key {path} is no OpenSSH key without passphrase; deploy/node-key.sh makes one") from error
    if not isinstance(key, EllipticCurvePrivateKey):
        raise InputError(f"--key {path} must be an ECDSA key; deploy/node-key.sh makes one")
    return key
