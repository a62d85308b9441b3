"""`unbounded lab cloud`: a simulated cloud for users."""

from __future__ import annotations

import argparse
import asyncio
import io
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import oci
import oci.core
import pytest
import yaml
from aiohttp import ClientSession

from unbounded.api.credential import MachineOperationCredential
from unbounded.api.machine import Machine
from unbounded_lab.cloud.__main__ import OFFERS, add_arguments, run


@asynccontextmanager
async def served(*arguments: str, ended_by: signal.Signals = signal.SIGINT) -> AsyncIterator[dict[str, str]]:
    """Run the command; the facts before its table, and its environment, by name."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    out = io.StringIO()
    command = asyncio.create_task(run(parser.parse_args(arguments), out))
    async with asyncio.timeout(60.0):
        while "Ctrl-C" not in out.getvalue() and not command.done():  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
    head = out.getvalue().partition("\n\n")[0].splitlines()
    shown = {name.strip(): value.strip() for name, value in (line.rsplit("  ", 1) for line in head)}
    exports = [line.removeprefix("export ") for line in out.getvalue().splitlines() if line.startswith("export ")]
    yield shown | dict(export.split("=", 1) for export in exports)
    os.kill(os.getpid(), ended_by)
    assert await command == 0


@pytest.mark.slow
async def test_the_manifests_make_machines_that_their_credential_opens(tmp_path: Path) -> None:
    ca, written, environment = tmp_path / "ca.pem", tmp_path / "machines.yaml", tmp_path / "environment"
    files = ("--ca", str(ca), "--manifests", str(written), "--environment", str(environment))
    options = ("--count", "2", "--data-disks", "1", "--name", "far", *files)
    async with served("oci", *options) as shown:
        secret, credential, *machines = yaml.safe_load_all(written.read_text())
        auth = msgspec.convert(credential, MachineOperationCredential).spec
        assert (auth.site_name, auth.provider, auth.auth.mode) == ("far", "OCIInstance", "ExternalPlugin")
        assert auth.auth.secret_ref is not None
        assert (auth.auth.secret_ref.namespace, auth.auth.secret_ref.name) == ("unbounded-kube", "far-auth")
        assert secret["metadata"] == {"name": "far-auth", "namespace": "unbounded-kube"}
        read = [msgspec.convert(each, Machine) for each in machines]
        assert [(each.name, each.site, each.provider) for each in read] == [
            (name, "far", "OCIInstance") for name in ("far-01", "far-02")
        ]
        assert all(each.spec.kubernetes is not None for each in read), "or a replacement would have nothing to join"
        compute = client(secret["stringData"], shown["endpoint"], ca)
        ident = str(read[1].spec.provider_id).removeprefix("oci://")
        instance = (await asyncio.to_thread(compute.get_instance, ident)).data
        assert (instance.display_name, instance.lifecycle_state) == ("far-02", "RUNNING")
        assert written.stat().st_mode & 0o077 == 0
        assert shown["OCI_CORE_ENDPOINT"] == shown["endpoint"]
        assert f"export OCI_CORE_ENDPOINT={shown['endpoint']}\n" in environment.read_text()
        assert await asyncio.to_thread(Path(shown["SSL_CERT_FILE"]).read_bytes) == ca.read_bytes()


def client(secret: dict[str, str], url: str, ca: Path) -> Any:
    config = {
        "tenancy": secret["tenancyOCID"],
        "user": secret["userOCID"],
        "region": secret["region"],
        "fingerprint": secret["fingerprint"],
        "key_content": secret["privateKey"],
        "pass_phrase": secret["privateKeyPassphrase"],
    }
    made = oci.core.ComputeClient(config, service_endpoint=url)
    made.base_client.session.trust_env = False
    made.base_client.session.verify = str(ca)
    return made


async def test_a_cloud_of_workload_identities_needs_no_secret(tmp_path: Path) -> None:
    written = tmp_path / "machines.yaml"
    async with served("azure", "--manifests", str(written)) as shown:
        credential, machine = yaml.safe_load_all(written.read_text())
        assert msgspec.convert(credential, MachineOperationCredential).spec.auth.mode == "WorkloadIdentity"
        read = msgspec.convert(machine, Machine)
        assert (read.name, read.provider) == ("sim-01", "AzureVM")
        assert str(read.spec.provider_id).startswith(f"azure:///subscriptions/{shown['subscription']}/")
        assert shown["AZURE_AUTHORITY_HOST"] == shown["AZURE_RESOURCE_MANAGER_ENDPOINT"] == shown["endpoint"]


async def test_its_faults_are_turned_while_it_runs() -> None:
    async with served("oci", "--profile", "slow") as shown, ClientSession() as http:
        control = shown["control"]
        assert (await (await http.get(control)).json())["faults"] == {"slow_s": 3.0}
        changed = await (await http.patch(f"{control}/faults", json={"slow_s": 0, "terminate": "stuck"})).json()
        assert (changed["profile"], changed["faults"]) == ("custom", {"terminate": "stuck"})
        refused = await http.patch(f"{control}/dials", json={"colour": "red"})  # the former path
        assert (refused.status, await refused.text()) == (400, "unknown fault: colour")
        refused = await http.patch(f"{control}/faults", json={"errors": ["Nonsense"]})
        assert (refused.status, (await refused.text()).partition(";")[0]) == (400, "unknown error: Nonsense")
        assert (await (await http.put(f"{control}/profile", json={"profile": "ideal"})).json())["faults"] == {}
        history = await (await http.get(f"{control}/history")).json()
        assert ("Instance", "sim-01", "created") in [(each["kind"], each["name"], each["what"]) for each in history]


@pytest.mark.parametrize("cloud", OFFERS)
async def test_it_lists_what_can_go_wrong(cloud: str) -> None:
    parser, out = argparse.ArgumentParser(), io.StringIO()
    add_arguments(parser)
    assert await run(parser.parse_args([cloud, "--list-profiles"]), out) == 0
    assert out.getvalue().splitlines()[1].split() == ["ideal", "No", "faults."]


async def test_a_profile_that_there_is_not_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert await run(parser.parse_args(["oci", "--profile", "nonsense"]), io.StringIO()) == 1
    assert capsys.readouterr().err.startswith("error: unknown profile: nonsense; the profiles are ideal, ")


@pytest.mark.parametrize("flag", ["--ca", "--manifests", "--environment"])
@pytest.mark.parametrize(
    ("place", "said"),
    [("nowhere/file", "No such file or directory"), ("folder", "Is a directory"), ("file/file", "Not a directory")],
)
async def test_a_file_that_cannot_be_written_is_named_before_anything_is_begun(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flag: str, place: str, said: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    out = io.StringIO()
    assert await run(_parsed("oci", flag, str(tmp_path / place)), out) == 1
    assert capsys.readouterr().err == f"error: {flag} {tmp_path / place}: {said}\n"
    assert out.getvalue() == ""


async def test_port_in_use_is_named_and_no_file_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert await run(_parsed("oci", "--port", str(port), "--ca", str(tmp_path / "ca.pem")), io.StringIO()) == 1
    assert capsys.readouterr().err == f"error: --port: port {port} of 127.0.0.1: Address already in use\n"
    assert os.listdir(tmp_path) == []


@contextmanager
def _answered(number: signal.Signals, how: signal.Handlers) -> Iterator[None]:
    """A signal as its default is, or ignored, whatever these tests were started by."""
    before = signal.signal(number, how)
    try:
        yield
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_whatever_ends_it_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with _answered(number, signal.SIG_DFL):
        async with served("oci", ended_by=number) as shown:
            assert os.listdir(tmp_path) == [Path(shown["SSL_CERT_FILE"]).name]
    assert os.listdir(tmp_path) == []


async def test_the_end_of_its_terminal_is_outlived_where_that_is_asked_for() -> None:
    with _answered(signal.SIGHUP, signal.SIG_IGN):  # as nohup does
        async with served("oci"):
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def _parsed(*arguments: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(arguments)


@pytest.mark.parametrize(
    ("option", "given", "right"),
    [
        ("--port", "99999", "0 to 65535"),
        ("--port", "-1", "0 to 65535"),
        ("--data-disks", "-3", "0 to 32"),
        ("--data-disks", "99999", "0 to 32"),
        ("--data-disks", "many", "0 to 32"),
    ],
)
def test_a_number_that_no_cloud_has_is_refused(
    option: str, given: str, right: str, capsys: pytest.CaptureFixture[str]
) -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["oci", f"{option}={given}"])
    assert f"argument {option}: must be a whole number from {right}\n" in capsys.readouterr().err
