"""A folder of a user's own: packages client, server and common, and a quickstart's app on NumPy alone."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.server.strategies import quickstart

FILES = {
    "common/__init__.py": "",
    "client/__init__.py": "",
    "server/__init__.py": "",
    "client/app.py": "from common.task import make_app\n\napp = make_app()\n",
    "server/model.py": "from common.task import initial_arrays\n\ninitial = initial_arrays\n",
}
APP, INITIAL = "client.app:app", "server.model:initial"
# The learning rates that tests/library_reference.py is told too.
LR, LR_SEPARATE = 0.02, 0.05


def write(folder: Path) -> Path:
    """Write the app's files and return the folder."""
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    shutil.copy(quickstart.__file__, folder / "common" / "task.py")
    return folder


def keys(**others: object) -> dict[str, object]:
    """Return the keys of a run of it."""
    return {
        "app": APP,
        "initial": INITIAL,
        "blocks": "day, night",
        "rounds-per-block": 2,
        "cycles": 2,
        "train-config": {"lr": LR},
        "separate-config": {"lr": LR_SEPARATE},
        **others,
    }
