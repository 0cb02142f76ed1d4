"""The two commands before anything runs: what they refuse, in one line and with exit code 2."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from perennial.client import cli as client_cli
from perennial.common.command import address, extras
from perennial.common.command.config import RunConfig, flags
from perennial.common.command.errors import InputError
from perennial.common.command.typed_keys import key_of
from perennial.server import cli as server_cli
from perennial.server import options
from perennial.server.run.lock import hold
from tests.server.report.records import eight_rounds
from tests.server.report.test_reading import write_run


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is not told otherwise keeps its state in the working folder."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    from tests.deploy.lab import write_shards

    write_shards(tmp_path)
    return tmp_path / "shards" / "device-0"


def refused(capsys: pytest.CaptureFixture[str], main: object, *arguments: object) -> str:
    """Return the one line that a command says before it ends with 2."""
    assert callable(main)
    capsys.readouterr()
    assert main([str(argument) for argument in arguments]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    return said[-1]


def test_the_client_wants_tls_unless_told_otherwise(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, client_cli.main, "--server", "127.0.0.1:1", "--data", shards)
    assert said.startswith("flower-client: give --ca")


def test_insecure_is_for_loopback_only(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, client_cli.main, "--server", "server.example:8000", "--data", shards, "--insecure")
    assert "--insecure-anywhere" in said
    said = refused(capsys, server_cli.main, "--host", "0.0.0.0", "--insecure")
    assert "--insecure-anywhere" in said


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.9.9.9", "::1"])
def test_loopback_is_recognized(host: str) -> None:
    assert address.is_loopback(host)


@pytest.mark.parametrize("host", ["localhost.example", "10.0.0.1", "0.0.0.0", "::", "128.0.0.1", "127.0.0.1.example"])
def test_what_may_be_another_machine_is_not_loopback(host: str) -> None:
    assert not address.is_loopback(host)


def test_going_without_tls_elsewhere_is_loud_when_forced() -> None:
    assert "WITHOUT TLS" in address.check_insecure("10.0.0.1", anywhere=True)


@pytest.mark.parametrize("text", ["server", "server:", ":80", "server:0", "server:65536", "https://server:80", "a:b"])
def test_an_address_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="HOST:PORT"):
        address.parse_address(text)


def test_addresses_are_split_at_the_last_colon() -> None:
    assert address.parse_address("server.example:8000") == ("server.example", 8000)
    assert address.parse_address("[2001:db8::1]:8000") == ("2001:db8::1", 8000)


def test_the_client_says_at_once_that_a_shard_is_wrong(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(shards / "client-00000" / "block-1.npz", x=np.zeros((3, 5), np.float32), y=np.zeros(3, np.int64))
    said = refused(capsys, client_cli.main, "--server", "127.0.0.1:1", "--data", shards, "--insecure")
    assert "block-1.npz" in said
    assert "shape" in said


def test_the_client_refuses_a_folder_without_clients(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    manifest = json.loads((shards / "manifest.json").read_text())
    (shards / "manifest.json").write_text(json.dumps({**manifest, "clients": []}))
    arguments = ("--server", "127.0.0.1:1", "--data", shards, "--insecure")
    assert "holds no client: it is for a server" in refused(capsys, client_cli.main, *arguments)


def test_the_client_says_at_once_that_a_folder_holds_no_shards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(capsys, client_cli.main, "--server", "127.0.0.1:1", "--data", tmp_path, "--insecure")
    assert "manifest.json" in said


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a CA and a server's certificate."""
    folder = tmp_path_factory.mktemp("tls")
    script = Path(__file__).parents[2] / "deploy" / "certificates.sh"
    subprocess.run([script, folder, "server.example"], check=True, stdout=subprocess.DEVNULL)
    return folder


def test_the_client_refuses_a_key_that_is_none(
    shards: Path, tls: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "key").write_text("no key\n")
    arguments = ("--server", "127.0.0.1:1", "--data", shards, "--ca", tls / "ca.crt", "--key", tmp_path / "key")
    assert "deploy/node-key.sh" in refused(capsys, client_cli.main, *arguments)


def test_the_client_refuses_a_certificate_that_is_none(
    shards: Path, tls: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = refused(
        capsys, client_cli.main, "--server", "127.0.0.1:1", "--data", shards, "--ca", shards / "manifest.json"
    )
    assert "manifest.json is not a certificate" in said
    arguments = ("--runtime", "stock", "--tls-cert", tls / "server.crt", "--tls-key", tls / "server.key")
    said = refused(capsys, server_cli.main, *arguments, "--tls-ca", shards / "manifest.json")
    assert "--tls-ca" in said


def test_the_server_refuses_a_certificate_without_its_key(tls: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for key in ("ca.key", "server.crt"):
        said = refused(capsys, server_cli.main, "--tls-cert", tls / "server.crt", "--tls-key", tls / key)
        assert "are not a certificate and its key" in said


@pytest.mark.parametrize("option", ["--output", "--state-dir"])
def test_a_folder_that_cannot_be_made_is_one_line(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    arguments = ("--insecure", "--port", "0", "--shape", "4", "--classes", "2", option, tmp_path / "file" / "x")
    assert "file/x" in refused(capsys, server_cli.main, *arguments)


@pytest.mark.parametrize("missing", ["--ca", "--key"])
def test_the_client_names_a_file_that_is_missing(
    shards: Path, tls: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], missing: str
) -> None:
    here = {"--ca": tls / "ca.crt", "--key": shards / "manifest.json", missing: tmp_path / "gone"}
    arguments = [part for pair in here.items() for part in pair]
    assert "gone" in refused(capsys, client_cli.main, "--server", "127.0.0.1:1", "--data", shards, *arguments)


def test_the_client_refuses_to_train_with_no_threads(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--server", "127.0.0.1:1", "--data", shards, "--insecure", "--threads", "0")
    assert "--threads must be at least 1, got 0" in refused(capsys, client_cli.main, *arguments)


def test_the_server_wants_a_certificate(capsys: pytest.CaptureFixture[str]) -> None:
    assert "--tls-cert" in refused(capsys, server_cli.main, "--strategy", "fedavg")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--strategy", "fedprox"), "strategy must be one of fedavg"),
        (("--cycles", "0"), "cycles"),
        (("--cycles", "many"), "cycles"),
        (("--config", "gone.yaml"), "gone.yaml"),
        (("--port", "70000"), "--port"),
        (("--insecure", "--tls-cert", "x"), "exclude"),
        (("--attach", "server.example:9091", "--overwrite"), "--overwrite and --attach exclude each other"),
    ],
)
def test_the_server_refuses_bad_usage(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in refused(capsys, server_cli.main, *arguments)


def test_every_key_of_a_run_is_a_flag_of_the_server() -> None:
    offered = {text for action in options.parser()._actions for text in action.option_strings}
    assert {f"--{key_of(item)}" for item in flags()} <= offered


def test_flags_overrule_the_file_and_the_file_the_defaults(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("title: a test\nstrategy: [fedavg, mc-psgd]\ncycles: 3\nlr-mixed: 0.5\n")
    parsed = options.parse(["--config", str(file), "--strategy", "mm-psgd", "--cycles", "4"])
    config = options.run_config(parsed)
    assert (config.strategy, config.cycles, config.lr_mixed) == ("mm-psgd", 4, 0.5)


def test_a_deployed_run_waits_for_devices_without_end() -> None:
    config = options.run_config(options.parse([]))
    assert (config.node_timeout, config.round_attempts) == (0, 0)
    assert (RunConfig().node_timeout, RunConfig().round_attempts) != (0, 0)


def test_a_key_that_stands_twice_in_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("cycles: 3\ncycles: 4\n")
    with pytest.raises(InputError, match="a key stands twice: cycles"):
        options.run_config(options.parse(["--config", str(tmp_path / "run.yaml")]))


def test_an_attached_run_leaves_the_folder_here_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n")
    # Not refused for the run that is here, which is none of the SuperLink's.
    assert "--tls-ca" in refused(capsys, server_cli.main, "--state-dir", tmp_path, "--attach", "server.example:9091")


@pytest.mark.parametrize("text", ["strategy: [fedavg, mc-psgd]\n", "runs: [{seed: 1}, {seed: 2}]\n"])
def test_a_file_of_several_runs_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "runs.yaml").write_text(text)
    with pytest.raises(InputError, match="one at a time"):
        options.run_config(options.parse(["--config", str(tmp_path / "runs.yaml")]))


def test_a_flower_that_lacks_a_name_goes_the_stock_way_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from perennial.server.link import stock

    monkeypatch.setattr(server_cli, "_QUICK", {False: "flwr.a_name_that_is_gone"})
    monkeypatch.setattr(stock, "serve", lambda config, arguments: 17)
    assert server_cli.main(["--insecure"]) == 17
    assert "lacks a name that the quick runtime needs" in capsys.readouterr().err


@pytest.mark.parametrize("runtime", ["quick", "stock"])
def test_a_run_that_is_there_is_not_started_over_by_a_forgotten_flag(
    runtime: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "metrics.jsonl").write_text("{}\n{}\n")
    said = refused(capsys, server_cli.main, "--insecure", "--runtime", runtime, "--state-dir", tmp_path)
    assert "run holds a run of 2 rounds; go on with it by --resume" in said
    assert (tmp_path / "run" / "metrics.jsonl").read_text() == "{}\n{}\n"


@pytest.mark.parametrize("runtime", ["quick", "stock"])
def test_two_servers_do_not_share_their_state(runtime: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("--insecure", "--port", "0", "--shape", "4", "--classes", "2", "--output", tmp_path / "other")
    with hold(tmp_path / "state"):
        said = refused(capsys, server_cli.main, *arguments, "--runtime", runtime, "--state-dir", tmp_path / "state")
    assert f"{tmp_path / 'state'} is held by process {os.getpid()} on " in said


def test_the_stock_runtime_does_not_start_a_run_anew_that_was_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run" / "checkpoint").mkdir(parents=True)
    (tmp_path / "run" / "checkpoint" / "00000001.json").write_text("{}")
    arguments = ("--insecure", "--runtime", "stock", "--resume", "--state-dir", tmp_path)
    assert "quick runtime" in refused(capsys, server_cli.main, *arguments)


def test_a_device_needs_neither_ray_nor_plotting_nor_scikit_learn() -> None:
    code = (
        "import sys, perennial.client.cli, perennial.client.node, perennial.client.app\n"
        "import perennial.client.link.connection, perennial.client.link.private_key\n"
        "heavy = ('ray', 'matplotlib', 'sklearn', 'scipy', 'pandas', 'uvicorn')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
    assert done.stdout.strip() == "[]"


def test_a_server_without_matplotlib_writes_the_report_and_says_what_brings_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(extras, "missing", lambda extra: ["matplotlib"] if extra == "ray" else [])
    run = write_run(tmp_path / "run", eight_rounds())
    server_cli._report(run)
    report = run / "report.html"
    assert capsys.readouterr().err == (
        f"no figures/*.png, which need matplotlib: pip install 'perennial-fl[ray]'\nreport: {report}\n"
    )
    assert "Where it is" in report.read_text()
    assert not (run / "figures").exists()


# --- A user's own app -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --data, a folder of shards, or --app, a ClientApp of your own"),
        (["--app", "nowhere:app"], "app 'nowhere:app' cannot be imported"),
        (["--app", "perennial.example:example_app"], "must be a flwr.clientapp.ClientApp"),
        (["--app", "perennial.client_app:app", "--node-config", "x=="], "--node-config 'x==' cannot be read"),
        (["--node-config", "x=1"], "give --data, a folder of shards, or --app"),
    ],
)
def test_a_client_says_what_is_wrong_with_an_app(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    said = refused(capsys, client_cli.main, "--server", "127.0.0.1:1", "--insecure", *arguments)
    assert said.startswith("flower-client: ")
    assert message in said


def test_node_config_is_written_as_for_flower_s_own_command() -> None:
    line = ["--server", "a:1", "--app", "a:b", "--node-config", 'partition-id=3 name="a b" fast=true']
    found = client_cli._node_config(client_cli.parser().parse_args(line))
    assert found == {"threads": 1, "partition-id": 3, "name": "a b", "fast": True}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--app", "a:b"], "initial must be given as package.module:name, got ''"),
        (["--app", "a:b", "--initial", "c:d", "--data", "digits"], "data is a key of the project's own app"),
        (["--app", "a:b", "--initial", "c:d", "--train-config", "0.1"], "train-config must be names with values"),
        (["--app", "a:b", "--initial", "nowhere:d"], "initial 'nowhere:d' cannot be imported"),
        (["--initial", "c:d"], "unknown key 'initial'"),
    ],
)
def test_a_server_says_what_is_wrong_with_a_run_of_an_app(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, arguments: list[str], message: str
) -> None:
    said = refused(capsys, server_cli.main, "--insecure", "--state-dir", tmp_path, *arguments)
    assert message in said
