"""What an operator copies: it parses, its commands have only flags that exist, and its paths are in the tree."""

from __future__ import annotations

import argparse
import configparser
import re
import shlex
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from perennial.client.cli import parser as client_parser
from perennial.server.options import parser as server_parser
from perennial.server.predict.cli import parser as predict_parser

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
PARSERS = {"flower-server": server_parser(), "flower-client": client_parser(), "flower-predict": predict_parser()}
UNITS = ("perennial-server", "perennial-client", "perennial-predict")
SCRIPTS = sorted(path.name for path in DEPLOY.glob("*.sh"))
# flower-superlink's flags are Flower's.
COMMAND = re.compile(r"^ *(?:[A-Z_]+=\S+ )*((?:\S*/)?flower-(?:server|client|predict)\b.*)$")


def unit(name: str) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser(interpolation=None, strict=False)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read(DEPLOY / f"{name}.service")
    return parsed


def check_command(words: list[str]) -> argparse.Namespace:
    """Parse a command line of one of ours as the command itself does."""
    parser = PARSERS[Path(words[0]).name]
    try:
        return parser.parse_args(words[1:])
    except SystemExit:
        raise AssertionError(f"refused by its own parser: {shlex.join(words)}") from None


def commands_in(text: str) -> list[list[str]]:
    """Return our command lines in the code blocks of a text, with continued lines joined."""
    blocks = re.findall(r"```(?:sh)?\n(.*?)```", text, re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(found[1], comments=True) for line in lines if (found := COMMAND.match(line))]


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_starts_a_command_with_flags_that_exist(name: str) -> None:
    check_command(shlex.split(unit(name)["Service"]["ExecStart"]))


def test_a_server_has_files_for_all_its_devices_and_its_checkpoints() -> None:
    assert int(unit("perennial-server")["Service"]["LimitNOFILE"]) >= 65536
    composed = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert composed["services"]["server"]["ulimits"]["nofile"] >= 65536


def test_a_client_restarts_no_sooner_than_a_dead_node_is_marked_offline() -> None:
    service = unit("perennial-client")["Service"]
    assert service["Restart"] == "always"
    assert int(service["RestartSec"]) >= 35
    assert service["RestartPreventExitStatus"] == "2"


def test_the_server_resumes_after_a_crash_and_stops_as_on_ctrl_c() -> None:
    service = unit("perennial-server")["Service"]
    assert check_command(shlex.split(service["ExecStart"])).resume
    assert service["KillSignal"] == "SIGINT"
    assert "130" in service["SuccessExitStatus"].split()


@pytest.mark.root
@pytest.mark.parametrize("name", UNITS)
def test_systemd_understands_every_line_of_a_unit(name: str, tmp_path: Path) -> None:
    # Verification wants the program to exist.
    text = (DEPLOY / f"{name}.service").read_text()
    (tmp_path / f"{name}.service").write_text(re.sub(r"ExecStart=\S+", "ExecStart=/bin/true", text))
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / f"{name}.service")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert name not in done.stderr, done.stderr


def compose() -> dict[str, Any]:
    parsed = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert isinstance(parsed, dict)
    return parsed["services"]


def test_compose_services_start_commands_with_flags_that_exist() -> None:
    for name, service in compose().items():
        dockerfile = (DEPLOY.parent / service["build"]["dockerfile"]).read_text()
        entry = service.get("entrypoint") or yaml.safe_load(
            re.findall(r"^ENTRYPOINT (.*)$", dockerfile, re.MULTILINE)[0]
        )
        check_command([*entry, *service["command"]])
        assert service["restart"] in ("on-failure", "unless-stopped"), name


def test_compose_gives_secrets_to_those_who_need_them_only() -> None:
    for name, service in compose().items():
        mounts = " ".join(service["volumes"])
        assert "ca.key" not in mounts
        assert ("server.key" in mounts) == (name in ("server", "predict"))
        assert all(mount.endswith(":ro") for mount in service["volumes"] if "/state" not in mount)


@pytest.mark.parametrize("name", ["Dockerfile.server", "Dockerfile.client"])
def test_a_dockerfile_copies_what_exists_and_does_not_run_as_root(name: str) -> None:
    lines = (DEPLOY / name).read_text().splitlines()
    copied = [word for line in lines if line.startswith("COPY ") for word in line.split()[1:-1]]
    # All that pyproject.toml names, or the image does not build.
    settings = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["tool"]["setuptools"]
    assert {*settings["package-dir"].values(), "pyproject.toml", "LICENSE"} <= set(copied)
    assert [word for word in copied if not (DEPLOY.parent / word).exists() and word != "README.md"] == []
    users = [line for line in lines if line.startswith("USER ")]
    assert users[-1:] == ["USER perennial"]


def test_nginx_opens_the_fleet_api_and_the_health_check_alone() -> None:
    text = (DEPLOY / "nginx.conf").read_text()
    locations = dict(re.findall(r"location ((?:= )?\S+) \{(.*?)\}", text, re.DOTALL))
    assert set(locations) == {"/v1/fleet/", "= /health", "/"}
    assert locations["/"].split() == ["return", "404;"]


@pytest.mark.root
def test_nginx_takes_its_configuration(tmp_path: Path) -> None:
    subprocess.run([DEPLOY / "certificates.sh", tmp_path, "server.example"], check=True, stdout=subprocess.DEVNULL)
    text = (DEPLOY / "nginx.conf").read_text().replace("/etc/perennial/tls", str(tmp_path))
    (tmp_path / "nginx.conf").write_text(f"pid {tmp_path}/pid;\nevents {{}}\nhttp {{\n{text}\n}}\n")
    command = ["nginx", "-t", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf"), "-e", str(tmp_path / "log")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_is_plain_sh_that_says_how_it_is_used(name: str) -> None:
    script = DEPLOY / name
    subprocess.run(["sh", "-n", script], check=True)
    done = subprocess.run([script], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 2
    assert done.stderr.startswith("usage: ")


def test_admitted_keys_are_for_the_server_to_read_whoever_admits_them(tmp_path: Path) -> None:
    (tmp_path / "device").write_text("ecdsa-sha2-nistp384 AAAA comment\n")
    command = f"umask 077; '{DEPLOY / 'admit.sh'}' '{tmp_path / 'state'}' '{tmp_path / 'device'}'"
    assert (
        subprocess.run(command, shell=True, check=True, capture_output=True, text=True).stdout == "admitted: device\n"
    )
    admitted = tmp_path / "state" / "nodes" / "device.pub"
    assert admitted.stat().st_mode & 0o777 == 0o644
    assert admitted.parent.stat().st_mode & 0o777 == 0o755


def test_a_key_is_admitted_for_some_clients_alone(tmp_path: Path) -> None:
    (tmp_path / "device.pub").write_text("ecdsa-sha2-nistp384 AAAA a comment\n")
    command = [DEPLOY / "admit.sh", "--clients", "0-3,7", tmp_path / "state", tmp_path / "device.pub"]
    subprocess.run(command, check=True, capture_output=True)
    admitted = (tmp_path / "state" / "nodes" / "device.pub").read_text()
    assert admitted == "ecdsa-sha2-nistp384 AAAA clients=0-3,7\n"
    command[2] = "0-3, 7"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "write --clients as 0-3,7\n")


def test_certificates_name_loopback_and_every_given_address(tmp_path: Path) -> None:
    command = [DEPLOY / "certificates.sh", tmp_path, "server.example", "192.0.2.7", "2001:db8::7"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    show = ["openssl", "x509", "-in", tmp_path / "server.crt", "-noout", "-ext", "subjectAltName"]
    names = subprocess.run(show, check=True, capture_output=True, text=True).stdout
    for name in ("DNS:server.example", "DNS:localhost", "Address:127.0.0.1", "Address:192.0.2.7", "2001:DB8:"):
        assert name in names
    # nginx takes a name for its upstream, and looks for it among the names alone, not among the addresses.
    name = re.search(r"proxy_ssl_name (\S+);", (DEPLOY / "nginx.conf").read_text())
    assert name
    assert f"DNS:{name[1]}" in names
    assert (tmp_path / "ca.key").stat().st_mode & 0o077 == 0
    assert (tmp_path / "server.key").stat().st_mode & 0o077 == 0


def test_renewing_the_certificate_keeps_the_ca(tmp_path: Path) -> None:
    command = [DEPLOY / "certificates.sh", tmp_path, "server.example"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    before = (tmp_path / "ca.crt").read_bytes(), (tmp_path / "server.crt").read_bytes()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert (tmp_path / "ca.crt").read_bytes() == before[0]
    assert (tmp_path / "server.crt").read_bytes() != before[1]
    verify = ["openssl", "verify", "-CAfile", tmp_path / "ca.crt", tmp_path / "server.crt"]
    subprocess.run(verify, check=True, stdout=subprocess.DEVNULL)


def test_a_ca_whose_key_lies_elsewhere_is_not_replaced(tmp_path: Path) -> None:
    command = [DEPLOY / "certificates.sh", tmp_path, "server.example"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    (tmp_path / "ca.key").rename(tmp_path / "elsewhere")
    before = (tmp_path / "ca.crt").read_bytes(), (tmp_path / "server.crt").read_bytes()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "put it back to renew" in done.stderr
    assert ((tmp_path / "ca.crt").read_bytes(), (tmp_path / "server.crt").read_bytes()) == before


@pytest.mark.parametrize("path", ["README.md", "docs/deploy.md"])
def test_every_command_line_in_the_docs_is_taken_by_its_parser(path: str) -> None:
    text = DEPLOY.parent / path
    for words in commands_in(text.read_text()):
        check_command([word for word in words if word != "&"])


def test_the_runbook_has_commands_to_check() -> None:
    assert len(commands_in((DEPLOY.parent / "docs" / "deploy.md").read_text())) >= 3
