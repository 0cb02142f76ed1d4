"""What a command says beside its results: our own warnings, and with --verbose everything."""

from __future__ import annotations

import logging
import sys
import warnings


def set_up_logging(verbose: bool) -> None:
    """Show warnings of ours as plain lines on stderr; keep Flower's chatter and others' warnings to --verbose."""
    import flwr.app  # noqa: F401  (importing it sets its logger up, which must come first)

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    ours = logging.getLogger("perennial")
    ours.handlers, ours.propagate = [handler], False
    ours.setLevel(logging.INFO if verbose else logging.WARNING)
    logging.getLogger("flwr").setLevel(logging.INFO if verbose else logging.ERROR)
    if not verbose:
        warnings.simplefilter("ignore")
