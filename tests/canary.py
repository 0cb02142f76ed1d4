"""The tests of what depends on Flower, with another flwr than the one that is installed here.

    python -m tests.canary 1.42.*       a version
    python -m tests.canary              the newest that can be had

It is installed by itself into an environment in build/, without its dependencies: another package's pin keeps some of
them out. All other libraries are lent by the environment that runs this.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from tests.install.environments import ROOT, Environment, lend_everything

# The library, and both sides of the quick runtime.
TESTS = (
    "tests/server/strategies",
    "tests/server/link",
    "tests/server/run/test_inner_state.py",
    "tests/client/test_both_chains.py",
    "tests/deploy",
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("version", nargs="?", default="", help="as pip takes it, 1.42.* say (default: the newest)")
    parser.add_argument("pytest", nargs=argparse.REMAINDER, help="what pytest is told in place of these tests")
    options = parser.parse_args()
    there = made(ROOT / "build" / f"flower-{options.version.rstrip('.*') or 'newest'}", options.version)
    found = subprocess.run([there.command("python"), "-c", "import flwr; print(flwr.__version__)"],
                           capture_output=True, text=True, check=True).stdout.strip()  # fmt: skip
    print(f"flwr {found}", flush=True)
    line = [there.command("python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", *(options.pytest or TESTS)]
    return subprocess.run(line, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False).returncode


def made(folder: Path, version: str) -> Environment:
    """Return an environment that has a flwr of its own."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
    wanted = f"flwr=={version}" if version else "flwr"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", folder / "bin" / "python"]
    subprocess.run([*pip, "install", "--no-deps", "--upgrade", wanted], check=True)
    return lend_everything(Environment(folder))


if __name__ == "__main__":
    sys.exit(main())
