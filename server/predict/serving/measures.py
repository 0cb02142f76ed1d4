"""What a monitoring system reads at ``/metrics``, by prometheus_client; a registry of its own for each server."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from perennial.server.predict.serving.shelf import Shelf

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
# Blocks and statuses of which each has a counter at hand.
_PREFIX = "perennial_serve_"


class Measures:
    """Counts what a server does. One call for each request costs some microseconds."""

    def __init__(self, shelf: Shelf) -> None:
        self._registry = CollectorRegistry()
        registry = self._registry
        self._requests = Counter(
            _PREFIX + "requests", "Inference requests by HTTP status.", ["status"], registry=registry
        )
        self._examples = Counter(_PREFIX + "examples", "Examples that were answered, by block.", ["block"],
                                 registry=registry)  # fmt: skip
        self._seconds = Histogram(_PREFIX + "request_seconds", "From the head of a request to the end of its answer.",
                                  buckets=_SECONDS, registry=registry)  # fmt: skip
        self._rows = Histogram(_PREFIX + "batch_examples", "Examples in a call of a network.", buckets=_ROWS,
                               registry=registry)  # fmt: skip
        self._network = Counter(_PREFIX + "network_seconds", "Seconds in networks.", registry=registry)
        version = Gauge(_PREFIX + "version", "The version that is served; 0: none yet.", registry=registry)
        version.set_function(lambda: shelf.current.version.number if shelf.current else 0)
        taken_up = Gauge(_PREFIX + "versions_taken_up", "Versions that were taken up.", registry=registry)
        taken_up.set_function(lambda: shelf.taken_up)
        refused = Gauge(_PREFIX + "versions_refused", "Versions that were damaged, or do not fit.", registry=registry)
        refused.set_function(lambda: shelf.refused)

    def request(self, status: int, seconds: float) -> None:
        self._requests.labels(str(status)).inc()
        self._seconds.observe(seconds)

    def answered(self, block: str, examples: int) -> None:
        self._examples.labels(block).inc(examples)

    def call(self, rows: int, seconds: float) -> None:
        """Note a call of a network."""
        self._rows.observe(rows)
        self._network.inc(seconds)

    def text(self) -> tuple[bytes, str]:
        """Return the page and its media type."""
        return generate_latest(self._registry), CONTENT_TYPE_LATEST
