"""Ray for a simulation: a private one on this machine, or the cluster that RAY_ADDRESS names."""

from __future__ import annotations

import logging
import os
import signal
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from perennial.common.command.errors import RunError
from perennial.simulation.scratch import scratch_folder

# Read when ray is imported, which is why that comes later.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
# Ray starts its workers at nice 15: on a machine that does anything else, a simulation would crawl.
os.environ.setdefault("RAY_worker_niceness", "0")
# A model travels inside its call: through the object store, which Ray prefers from 100 kB on, a round takes half as
# long again.
os.environ.setdefault("RAY_max_direct_call_object_size", "4000000")
os.environ.setdefault("RAY_task_rpc_inlined_bytes_limit", "20000000")
# Ray's head keeps a record of the last 100,000 calls for its dashboard: memory that grows for hours.
os.environ.setdefault("RAY_task_events_report_interval_ms", "0")

# Orders and updates of a round; Ray would take a third of the machine's memory.
_OBJECT_STORE_BYTES = 512 * 1024 * 1024
# Ray gives a node 30 s to start, which a machine busy with other things may not keep.
_ATTEMPTS = 3


@contextmanager
def connected(*, verbose: bool) -> Iterator[int]:
    """Connect to Ray and yield the CPUs that it has; what was started here is stopped and removed on the way out."""
    if not verbose:
        hush()
    import ray

    options: dict[str, Any] = {"log_to_driver": verbose, "logging_level": logging.INFO if verbose else logging.ERROR}
    address = os.environ.get("RAY_ADDRESS")
    with nullcontext() if address else scratch_folder() as scratch:
        if address:
            options |= {"address": address}
        else:
            options |= {
                "include_dashboard": False,
                "object_store_memory": _OBJECT_STORE_BYTES,
                "_temp_dir": str(scratch),
            }
        try:
            _start(options)
            resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
            yield max(1, int(resources.get("CPU", 1)))
        finally:
            ray.shutdown()


def hush() -> None:
    """Let Ray, which is not imported yet, print nothing of its own.

    If a machine dies, it prints what the raylet there logged last, also to those who want no log.
    """
    os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "(?s).")


def _start(options: dict[str, Any]) -> None:
    import ray

    terminate = signal.getsignal(signal.SIGTERM)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ray.init(**options)
            return
        except SystemExit:
            # Ray's own answer to SIGTERM while it starts.
            if callable(terminate):
                terminate(signal.SIGTERM, None)
            raise
        except Exception as error:  # Ray raises bare exceptions of its own
            ray.shutdown()
            where = f"at {options['address']} cannot be reached" if "address" in options else "did not start"
            if attempt == _ATTEMPTS or "address" in options:
                raise RunError(f"Ray {where} ({' '.join(str(error).split())[:200]})") from error
        finally:
            # Ray takes SIGTERM for a crash, of which it prints the stack.
            signal.signal(signal.SIGTERM, terminate)
