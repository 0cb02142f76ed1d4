"""The ServerApp that `flwr run` looks for; Flower may look while this package is still being imported."""

from perennial.common.command import extras

# Before the import that would fail: what is missing is then named with the command that brings it.
extras.need("app")

from perennial.server.app import app  # noqa: E402

__all__ = ["app"]
