"""The tests of what depends on Flower, with other versions of flwr than the one that is installed here.

    python -m tests.canary '1.42.*' newest      each version once, also if the newest one is another of them
    python -m tests.canary newest -- -x tests/server/link

Each is installed by itself into an environment in build/, without its dependencies: another package's pin keeps some of
them out. All other libraries are lent by the environment that runs this.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.install.environments import ROOT, Environment, lend_everything

NEWEST = "newest"
# The library, and both sides of the quick runtime.
TESTS = (
    "tests/server/strategies",
    "tests/server/link",
    "tests/server/run/test_inner_state.py",
    "tests/client/test_both_chains.py",
    "tests/deploy",
)


def main() -> int:
    given = sys.argv[1:]
    end = given.index("--") if "--" in given else len(given)
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("versions", nargs="+", metavar="VERSION", help=f"as pip takes it, 1.42.* say, or {NEWEST}")
    tested: dict[str, int] = {}
    for version in parser.parse_args(given[:end]).versions:
        there = made(ROOT / "build" / f"flower-{version.rstrip('.*')}", version)
        found = flower_in(there)
        if found in tested:
            print(f"flwr {found}, by {version}: tested already", flush=True)
        else:
            tested[found] = test(there, found, given[end + 1 :] or list(TESTS))
    return max(tested.values())


def made(folder: Path, version: str) -> Environment:
    """Return an environment that has a flwr of its own."""
    subprocess.run([sys.executable, "-m", "venv", "--clear", "--without-pip", folder], check=True)
    wanted = "flwr" if version == NEWEST else f"flwr=={version}"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "--python", folder / "bin" / "python"]
    subprocess.run([*pip, "install", "--no-deps", "--upgrade", wanted], check=True)
    return lend_everything(Environment(folder))


def flower_in(there: Environment) -> str:
    line = [there.command("python"), "-c", "import flwr; print(flwr.__version__)"]
    return subprocess.run(line, capture_output=True, text=True, check=True).stdout.strip()


def test(there: Environment, version: str, tests: list[str]) -> int:
    """Return pytest's exit code."""
    print(f"flwr {version}", flush=True)
    began = time.monotonic()
    line = [there.command("python"), "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    code = subprocess.run(line, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False).returncode
    print(f"flwr {version}: {'passed' if code == 0 else 'FAILED'} in {time.monotonic() - began:.0f} s", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
