"""The ServerApp that `flwr run` looks for; Flower may look while this package is still being imported."""

from perennial.server.app import app

__all__ = ["app"]
