"""Arguments of the commands: accepted, refused, and the speed of the answer."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Final

import pytest

from unbounded.cli.main import main as unbounded
from unbounded.cli.settings import (
    USUAL_CONNECTIONS,
    USUAL_NODE_GRACE_S,
    BackupSettings,
    UpSettings,
    add_up_arguments,
    up_settings_of,
)
from unbounded.kube.options import SettingsError
from unbounded.kube.settings import Address, ProcessSettings, parse_address
from unbounded.machina import settings as machina_settings
from unbounded.machina.main import main as machina
from unbounded.machina.settings import ProvisioningSettings as MachinaSettings
from unbounded.machineops import settings as machine_ops_settings
from unbounded.metalman import flags
from unbounded.metalman.main import main as metalman
from unbounded.metalman.settings import MetalmanSettings

HEAVY = ("aiohttp", "msgspec", "rich", "prometheus_client", "cryptography", "yaml")
Main = Callable[[Sequence[str]], int]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["up", "--port", "65536"], "--port: '65536' is not a port"),
        (["up", "--port", "http"], "--port: 'http' is not a port"),
        (["up", "--lab", "-1"], "--lab"),
        (["up", "--lab", "1001"], "from 0 to 1000"),
        (["up", "--once"], "--once exits after the first operation"),
        (["up", "--lab-cloud", "azure"], "needs --lab N, the number"),
        (["up", "--allow-operations"], "needs --console"),
        (["up", "--log-format", "xml"], "--log-format"),
        (["up", "there"], "there"),
        ([], "COMMAND"),
        (["machine"], "usage: unbounded machine COMMAND"),
        (["machine", "operation", "lits"], "did you mean list?"),
        (["lab"], "SIMULATOR"),
        (["lab", "bmc", "--count", "0"], "1 or more"),
        (["lab", "bmc", "--name", "Rack_1"], "lower case letters"),
        (["up", "--advertise-address", "not a name"], "'not a name' is neither a host name nor an IP address"),
        (["up", "--advertise-address", "10.0.0.1:6443"], "'10.0.0.1:6443' is neither"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_name(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        unbounded(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("site", ["a b", "-rack1", "rack/1", "r" * 64])
def test_a_site_that_cannot_be_a_label_is_refused(site: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        metalman(["controller", f"--site={site}"])
    assert ended.value.code == 2
    assert f"--site: {site!r} is not a valid label value" in capsys.readouterr().err


def test_every_site_has_a_lease_of_its_own_whose_name_kubernetes_takes() -> None:
    sites = ["", "rack1", "Rack1", "rack-1", "rack_1", "rack.1", "R" * 63]
    leases = [MetalmanSettings(site=site).lease for site in sites]
    assert leases[:2] == ["metalman", "metalman-rack1"]
    assert len(set(leases)) == len(sites)
    assert all(re.fullmatch("[a-z0-9]([-a-z0-9]*[a-z0-9])?", lease) for lease in leases)


def test_machine_ops_controllers_of_different_scopes_have_different_leases() -> None:
    scopes = [
        *(("", ""), ("eu", ""), ("EU", ""), ("eu.west", ""), ("eu-west", ""), ("azurevm", ""), ("", "azurevm")),
        *(("", "AzureVM"), ("eu", "AzureVM"), ("EU", "AzureVM"), ("eu", "azurevm"), ("eu-azurevm", "")),
        *(("a", "b"), ("a-b", ""), ("", "a-b"), ("S" * 63, "P" * 63)),
    ]
    leases = [machine_ops_settings.Settings(site=site, provider=provider).lease for site, provider in scopes]
    assert leases[:2] == ["machine-ops-controller", "machine-ops-controller-eu"]
    assert len(set(leases)) == len(scopes)
    assert all(re.fullmatch("[a-z0-9]([-a-z0-9]{0,251}[a-z0-9])?", lease) for lease in leases)


@pytest.mark.parametrize(("main", "command"), [(unbounded, "up"), (machina, "version"), (metalman, "version")])
def test_a_variable_that_cannot_be_meant_is_named(
    main: Main, command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("UNBOUNDED_LOG_FORMAT", "xml")
    with pytest.raises(SystemExit):
        main([command])
    assert "$UNBOUNDED_LOG_FORMAT is 'xml': choose from json, text" in capsys.readouterr().err


@pytest.mark.parametrize("main", [unbounded, machina, metalman])
def test_every_command_tells_its_version(
    main: Main, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert main(["version"]) == 0
    assert capsys.readouterr().out.split()[1].startswith("0.")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("unbounded.cli.main", HEAVY),
        ("unbounded.machina.main", HEAVY),
        ("unbounded.metalman.main", HEAVY),
        ("unbounded.cli.up", ("asyncssh",)),  # which comes with the first host that is reached over SSH
    ],
)
def test_what_takes_long_to_import_waits_until_it_is_used(module: str, heavy: tuple[str, ...]) -> None:
    code = f"import sys, {module}; sys.exit(' '.join(name for name in {heavy!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr.strip() == ""


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], ["machine", "host-reboot", "--help"], ["machine"]], ids=" ".join)
def test_help_of_the_plugin_reads_little(arguments: list[str]) -> None:
    code = f"""
import sys
from unbounded.cli.plugin.main import main
try:
    main({arguments!r})
except SystemExit:
    print(*sorted(sys.modules), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    read = done.stderr.splitlines()[-1].split()
    assert not set(HEAVY) & set(read)
    assert "asyncio" not in read
    assert len([name for name in read if name.startswith("unbounded")]) < 40


def test_an_unknown_profile_is_refused_before_anything_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert unbounded(["up", "--lab", "1", "--lab-profile", "gentle", "--data", str(tmp_path / "data")]) == 1
    assert "error: --lab-profile:" in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("main", [machina, metalman])
def test_a_kubeconfig_that_is_not_there_is_named(
    main: Main, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["controller", "--kubeconfig", str(tmp_path / "none")]) == 1
    assert f"error: {tmp_path / 'none'}: No such file or directory" in capsys.readouterr().err


def _up(*arguments: str, **environ: str) -> UpSettings:
    parser = argparse.ArgumentParser()
    add_up_arguments(parser, environ)
    return up_settings_of(parser.parse_args(arguments))


def test_up_defaults_to_loopback_and_few_logs() -> None:
    assert _up() == UpSettings(data=Path("data"))
    assert _up("--verify-kubelets") == UpSettings(data=Path("data"), verify_kubelets=True)
    assert _up("--log-level", "debug", UNBOUNDED_LOG_LEVEL="error").log_level == "debug"
    assert _up(UNBOUNDED_LOG_LEVEL="error").log_level == "error"


def test_up_passes_the_settings_of_serial_consoles_to_metalman() -> None:
    metalman = _up("--serial-console-address", "192.0.2.1:8884", "--keep-console-output", "false").metalman
    assert (metalman.serial_consoles, metalman.keeps_console_output) == (Address("192.0.2.1", 8884), False)
    assert _up("--serial-console-address", "").metalman.serial_consoles is None
    assert _up().metalman == MetalmanSettings(site=None, netboots=False)


@pytest.mark.parametrize("text", ["192.0.2.1", "host:1", "127.0.0.1:99999"])
def test_up_rejects_a_malformed_address_of_serial_consoles(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _up("--serial-console-address", text)
    assert f"--serial-console-address: {text!r} is not ADDRESS:PORT, such as 127.0.0.1:0" in capsys.readouterr().err


def _machina(*arguments: str, **environ: str) -> tuple[ProcessSettings, MachinaSettings, list[str]]:
    parser = argparse.ArgumentParser()
    machina_settings.add_arguments(parser, environ)
    return machina_settings.settings_of(parser.parse_args(arguments), environ)


def test_machina_takes_flags_before_variables_before_its_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("metricsAddr: ':1'\nprobeAddr: ':2'\nenableLeaderElection: false\nmetricsPath: /m\n")
    settings, _, without_meaning = _machina(
        "--config", str(file), "--metrics-addr", "127.0.0.1:9", MACHINA_METRICS_ADDR=":3", MACHINA_PROBE_ADDR=":4"
    )
    assert settings.health == (Address("127.0.0.1", 9), Address("", 4))
    assert settings.leader_election is False
    assert without_meaning == ["metricsPath"]


def test_machina_takes_the_file_that_is_shipped_elsewhere(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("apiServerEndpoint: 10.0.0.1:6443\nmaxConcurrentReconciles: 20\nprovisioningTimeout: 5m\n")
    _, settings, without_meaning = _machina("--config", str(file), "--cluster-dns", "10.96.0.10")
    assert without_meaning == []
    assert settings.apiserver_endpoint == "https://10.0.0.1:6443"
    assert (settings.attempts_at_once, settings.provisioning_timeout_s) == (20, 300.0)
    assert settings.cluster_dns == "10.96.0.10"


@pytest.mark.parametrize(
    ("option", "text", "words"),
    [
        ("api-server-endpoint", "http://10.0.0.1", "is not an address of an API server"),
        ("api-server-endpoint", "https://10.0.0.1/path", "is not an address of an API server"),
        ("cluster-dns", "kube-dns", "does not appear to be an IPv4 or IPv6 address"),
        ("artifact-mirror", "ftp://mirror", "is not a URL like"),
        ("agent-url", "https://user:secret@mirror/agent.tar.gz", "without user and password"),
        ("artifact-mirror", "https://mirror/?a=b", "to which paths can be appended"),
        ("max-concurrent-reconciles", "0", "not a number from 1"),
    ],
)
def test_machina_says_what_is_wrong_with_an_option(option: str, text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    first, *others = option.split("-")
    file.write_text(f"{first}{''.join(map(str.capitalize, others))}: '{text}'\n")
    with pytest.raises(SettingsError, match=words):
        _machina("--config", str(file))


def test_machina_without_a_file_elects_and_serves_on_its_usual_ports() -> None:
    settings, machines, _ = _machina()
    assert machines == MachinaSettings()
    assert settings.health == (Address("", 8080), Address("", 8081))
    assert settings.leader_election is True


def test_an_address_of_0_is_not_served() -> None:
    assert _machina("--metrics-addr", "0")[0].health == (Address("", 8081),)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("metricsAddr: 8080", "metricsAddr in"),
        ("enableLeaderElection: perhaps", "'perhaps' is neither true nor false"),
        ("- a list", "must be a mapping"),
        ("{", "not YAML"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_by_its_key(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(content)
    with pytest.raises(SettingsError, match=words):
        _machina("--config", str(file))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        (":8080", Address("", 8080)),
        ("[::1]:1", Address("::1", 1)),
        ("localhost:0", Address("localhost", 0)),
        ("0", None),
    ],
)
def test_addresses_are_written_as_elsewhere_in_kubernetes(text: str, wanted: Address | None) -> None:
    assert parse_address(text) == wanted


def _metalman(*arguments: str, **environ: str) -> tuple[MetalmanSettings, ProcessSettings]:
    parser = argparse.ArgumentParser()
    flags.add_arguments(parser, environ, netboot=True)
    return flags.parse_settings(parser.parse_args(arguments), environ, netboot=True)


def test_metalman_has_a_lease_for_each_site() -> None:
    assert [_metalman(*site)[0].lease for site in ((), ("--site", "rack1"))] == ["metalman", "metalman-rack1"]


def test_metalman_reads_the_environment_where_there_is_no_flag() -> None:
    environ = {"METALMAN_SITE": "rack1", "METALMAN_HEALTH_PORT": "9", "METALMAN_OPERATION_MAX_CONCURRENT_MACHINES": "3"}
    settings, process = _metalman("--operation-max-concurrent-machines", "4", **environ)
    assert (settings.site, settings.concurrent) == ("rack1", 4)
    assert process.health == (Address("", 9),)


@pytest.mark.parametrize("count", ["0", "-1", "many"])
def test_metalman_wants_to_work_on_one_machine_at_least(count: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        metalman(["controller", "--operation-max-concurrent-machines", count])
    assert "is not a number from 1" in capsys.readouterr().err


def test_the_usual_number_of_connections_is_that_of_the_server() -> None:
    from unbounded_apiserver.http.listener import CONNECTIONS

    assert USUAL_CONNECTIONS == CONNECTIONS
    assert UpSettings(data=Path("x")).max_connections == CONNECTIONS


def test_connections_of_an_address_have_a_limit_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert _up().max_connections_per_address == 0
    assert _up("--max-connections-per-address", "200").max_connections_per_address == 200
    with pytest.raises(SystemExit):
        _up("--max-connections-per-address", "29")
    assert "--max-connections-per-address: '29' is not a number from 30 to 100000" in capsys.readouterr().err


def test_back_ups_have_a_folder_a_pace_and_an_end(capsys: pytest.CaptureFixture[str]) -> None:
    assert _up().backups is None
    assert _up("--backup-to", "/share").backups == BackupSettings(Path("/share"), 3600.0, 72)
    given = _up("--backup-to", "share", "--backup-every", "15", "--backup-keep", "7").backups
    assert given == BackupSettings(Path("share").absolute(), 900.0, 7)
    for flag in ("--backup-every", "--backup-keep"):
        with pytest.raises(ValueError, match=f"{flag} needs --backup-to FOLDER"):
            _up(flag, "15")
        with pytest.raises(SystemExit):
            _up("--backup-to", "share", flag, "0")
        assert f"{flag}: '0' is not a number from 1 to " in capsys.readouterr().err


def test_the_usual_grace_of_nodes_is_that_of_the_server() -> None:
    from unbounded_apiserver.controllers.nodes import DEFAULT_TIMES

    assert UpSettings(data=Path("x")).node_grace_s == USUAL_NODE_GRACE_S == DEFAULT_TIMES.grace_s


@pytest.mark.parametrize("text", ["19", "3601", "1m", "-1", ""])
def test_a_grace_of_nodes_has_bounds(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _up("--node-monitor-grace-period", text)
    assert f"--node-monitor-grace-period: {text!r} is not a number from 20 to 3600" in capsys.readouterr().err


_HELPER: Final = "kubectl_complete-unbounded"  # kubectl gives it the words to complete, and no flags
_SCRIPTS: Final = {
    script.name: script.load()
    for script in entry_points(group="console_scripts")
    if script.value.startswith("unbounded.") and script.name != _HELPER
}


@pytest.mark.parametrize(
    ("arguments", "program"),
    [
        *(([name], name) for name in sorted(_SCRIPTS)),
        *((["unbounded", *words], f"unbounded {' '.join(words)}") for words in (["up"], ["backup"], ["lab", "bmc"])),
        (["unbounded", "lab", "cloud"], "unbounded lab cloud"),
        (["kubectl-unbounded", "machine"], "kubectl-unbounded"),
        *(
            ([name, *words], " ".join((name, *words)))
            for name, words in (
                ("metalman", ["serve-pxe"]),
                ("metalman", ["controller"]),
                ("machina", ["controller"]),
                ("machine-ops-controller", ["providers"]),
                ("unbounded-agent", ["start"]),
                ("unbounded-agent", ["status"]),
                ("kubectl-unbounded", ["why"]),
                ("kubectl-unbounded", ["machine", "register"]),
            )
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_every_process_prints_its_version(
    capsys: pytest.CaptureFixture[str], arguments: list[str], program: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        raise SystemExit(_SCRIPTS[arguments[0]]([*arguments[1:], "--version"]))
    said = capsys.readouterr()
    assert (ended.value.code, said.err) == (0, "")
    assert said.out == f"{program.replace('kubectl-', 'kubectl ')} {version('unbounded')}\n"
