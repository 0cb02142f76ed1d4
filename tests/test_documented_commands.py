"""Every command of a page is one that there is: its flags are taken, and a test runs it, or a reason is stated here."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from perennial.client import cli as client
from perennial.server import options as server
from perennial.server.predict import cli as predict
from perennial.simulation import cli as simulation
from tests.test_links import PAGES, ROOT

PARSERS = {
    "flower-client": client.parser,
    "flower-predict": predict.parser,
    "flower-server": server.parser,
    "flower-simulation": simulation._parser,
}
MEASURES = "measures for minutes or hours on a machine that does nothing else"
BREAKS = "breaks a real run over and over, for minutes or hours; a short one of its kind is in the gate or in .ci/run"
SYSTEM = "is a program of the reader's system"
# What begins so is run by this test, or has this reason not to be. The longest beginning counts.
RUN_BY = {
    "flower-client": "tests/deploy/test_namespaces.py",
    "flower-predict eval": "tests/server/predict/test_cli.py",
    "flower-predict export": "tests/server/predict/test_cli.py",
    "flower-predict run": "tests/server/predict/test_cli.py",
    "flower-predict serve": "tests/server/predict/serving/served.py",
    "flower-predict show": "tests/server/predict/test_cli.py",
    "flower-server": "tests/deploy/test_namespaces.py",
    "flower-server --attach": "tests/deploy/test_stock.py",
    "flower-simulation run": "tests/simulation/test_cli.py",
    "flwr run": "tests/install/test_examples.py",
    "deploy/admit.sh": "tests/deploy/lab.py",
    "deploy/certificates.sh": "tests/deploy/lab.py",
    "deploy/node-key.sh": "tests/deploy/lab.py",
    "make": "is a target of the Makefile, whose commands are below",
    "make demo": "tests/install/test_full.py",
    "make help": "prints the comments of the Makefile",
    "make paper": "takes hours; tests/simulation/paper runs its steps on little data",
    "make real": "takes hours; tests/simulation/real runs its steps on little data",
    "make test": ".ci/run",
    "python -m benchmarks": MEASURES,
    "python benchmarks": MEASURES,
    "python -m perennial.simulation.paper collect": "tests/simulation/paper/test_page.py",
    "python -m perennial.simulation.paper run": "tests/simulation/paper/test_main.py",
    "python -m tests": BREAKS,
    "pytest tests/chaos": ".ci/run",
    "git": SYSTEM,
    "curl": SYSTEM,
    "journalctl": SYSTEM,
    "tail": SYSTEM,
    "pip install": "downloads; tests/install has the environments that it makes",
    ".venv/bin/pip install": "downloads",
    ".venv/bin/pre-commit install": "is pre-commit's own",
    "pyenv": SYSTEM,
    "python3 -m venv": SYSTEM,
    ".": SYSTEM,
    "ray start": "needs several machines; tests/chaos/machines.py starts raylets on one",
}
_BLOCK = re.compile(r"^```(?:|bash|sh)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FIRST = {name.split()[0] for name in RUN_BY}


def commands(text: str) -> Iterator[list[str]]:
    """Yield the commands in the blocks of a page, as words, without variables before them and comments behind."""
    for block in _BLOCK.findall(text):
        for line in re.sub(r"\\\n\s*", "", block).splitlines():
            for part in re.split(r" && | \| |\$\(", line.strip()):
                words = part.split()
                while words and re.match(r"[A-Z_]+=", words[0]):
                    words.pop(0)
                if words and words[0] in _FIRST:
                    yield shlex.split(" ".join(words), comments=True)


FOUND = [(page, words) for page in PAGES for words in commands(page.read_text())]


def entry_of(words: list[str]) -> str:
    line = " ".join(words)
    fitting = [name for name in RUN_BY if line == name or line.startswith((f"{name} ", f"{name}.", f"{name}/"))]
    return max(fitting, key=len, default="")


def test_every_command_is_run_by_a_test_or_has_a_reason() -> None:
    assert [" ".join(words) for _, words in FOUND if not entry_of(words)] == []
    named = {text for text in RUN_BY.values() if text.startswith(("tests/", ".ci/"))}
    assert [text for text in named if not (ROOT / text).is_file()] == []


@pytest.mark.parametrize(("page", "words"), FOUND, ids=lambda one: one[0] if isinstance(one, list) else one.stem)
def test_a_command_takes_what_a_page_gives_it(page: Path, words: list[str]) -> None:
    name, *arguments = words
    if name in PARSERS and "--help" not in arguments:
        parsed = PARSERS[name]().parse_args(arguments)
        assert isinstance(parsed, argparse.Namespace)
    elif name == "make":
        assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif name.startswith("deploy/"):
        assert (ROOT / name).stat().st_mode & 0o111
    elif words[:2] == ["python", "-m"]:
        spec = find_spec(words[2])
        package = find_spec(f"{words[2]}.__main__") if spec and spec.submodule_search_locations else spec
        source = Path(str(package and package.origin)).read_text()
        assert [flag for flag in arguments if flag.startswith("--") and f'"{flag}"' not in source] == []
    elif words[:2] == ["flwr", "run"]:
        for at, word in enumerate(words):
            if word == "--run-config":
                assert (page.parent / words[at + 1]).is_file()
