"""The ClientApp that `flwr run` looks for; Flower may look while this package is still being imported."""

from perennial.client.app import app

__all__ = ["app"]
