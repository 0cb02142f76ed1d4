"""`pip install perennial-fl` alone: a small device and a scikit-learn user have no use for torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.install.environments import Environment

APP, SIMULATION = "pip install 'perennial-fl[app]'", "pip install 'perennial-fl[simulation]'"


def test_nothing_heavy_is_there(light: Environment, tmp_path: Path) -> None:
    code = "from importlib.util import find_spec; print([m for m in ('torch', 'ray', 'matplotlib') if find_spec(m)])"
    assert light.run("python", "-c", code, cwd=tmp_path).stdout == "[]\n"


@pytest.mark.parametrize("module", ["perennial", "perennial.server.strategies", "perennial.server.psgd"])
def test_the_library_is_imported_from_the_wheel(light: Environment, tmp_path: Path, module: str) -> None:
    done = light.run("python", "-c", f"import {module} as it; print(it.__file__)", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(light.folder)


@pytest.mark.parametrize("command", ["flower-client", "flower-server", "flower-simulation"])
def test_a_command_says_how_it_is_used(light: Environment, tmp_path: Path, command: str) -> None:
    done = light.run(command, "--help", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"usage: {command}")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("flower-client --server 127.0.0.1:1 --data shards --insecure", f"torch must be installed first: {APP}"),
        ("flower-server --insecure", f"torch must be installed first: {APP}"),
        ("flower-server --insecure --runtime stock", f"torch must be installed first: {APP}"),
        ("flower-simulation run a.yaml", f"torch, ray, matplotlib must be installed first: {SIMULATION}"),
    ],
)
def test_a_command_names_what_is_missing_in_one_line(light: Environment, tmp_path: Path, line: str, said: str) -> None:
    command, *arguments = line.split()
    (tmp_path / "a.yaml").write_text("strategy: mc-psgd\n")
    done = light.run(command, *arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, f"{command}: {said}\n")


@pytest.mark.parametrize(
    ("tool", "arguments"), [("paper", ["run", "--quick"]), ("theory", ["--quick", "--output", "there"])]
)
def test_the_tools_of_the_paper_name_it_too(
    light: Environment, tmp_path: Path, tool: str, arguments: list[str]
) -> None:
    done = light.run("python", "-m", f"perennial.simulation.{tool}", *arguments, cwd=tmp_path)
    missing = f"{tool}: torch, ray, matplotlib must be installed first: {SIMULATION}\n"
    assert (done.returncode, done.stderr) == (2, missing)


def test_data_that_must_be_downloaded_names_its_extra(light: Environment, tmp_path: Path) -> None:
    line = ("flower-simulation", "shards", "there", "--data", "cifar10")
    done = light.run(*line, cwd=tmp_path, PERENNIAL_DATA=str(tmp_path))
    assert done.returncode == 2
    assert "needs torchvision (pip install 'perennial-fl[datasets]')" in done.stderr
    assert done.stderr.count("\n") == 1


def test_shards_are_cut_without_torch(light: Environment, tmp_path: Path) -> None:
    done = light.run("flower-simulation", "shards", "shards", "--clients", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "shards" / "client-00001" / "block-4.npz").is_file()


@pytest.mark.parametrize("side", ["server", "client"])
def test_the_app_that_flower_loads_names_what_is_missing(light: Environment, tmp_path: Path, side: str) -> None:
    done = light.run("python", "-c", f"import perennial.{side}_app", cwd=tmp_path)
    # Flower prints the last line of what an app raises.
    assert done.stderr.splitlines()[-1].endswith(f"torch must be installed first: {APP}")
