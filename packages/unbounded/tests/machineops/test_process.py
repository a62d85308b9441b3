"""`machine-ops-controller` as it is deployed: a process under its own account, with the sample provider installed."""

from __future__ import annotations

import asyncio
import json
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.apiserver.support import Client
from tests.cli.deployed import deployed
from tests.cli.test_component_rights import Right, given, uses
from tests.cli.test_rights import ACCOUNT, OPERATIONS, OURS, as_account, ended, operation
from tests.support.waiting import eventually
from unbounded.api.core import SECRETS
from unbounded.api.machine import MACHINES
from unbounded.api.machine_spec import ConfigurationRef
from unbounded.api.names import LABEL_CONFIGURATION
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli.servers import publish_cluster_info
from unbounded.join.bootstrap_tokens import site_token_manifest
from unbounded.join.labels_and_taints import read_bound_version
from unbounded.join.token_finder import TokenFinder
from unbounded.kube.api import Forbidden
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded.kube.events import EventRecorder, object_reference
from unbounded.machineops.controller import UncachedSecrets
from unbounded.machineops.replacement_state import ReplacementSecret
from unbounded_apiserver.auth import AuthAttributes, AuthChain, AuthDecision, User
from unbounded_apiserver.server import ApiServer

pytestmark = pytest.mark.slow

COMPONENT = "machine-ops-controller"
SECRETS_PATH = "/api/v1/namespaces/{}/secrets"
Served = tuple[ApiServer, Client]


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    async with deployed(tmp_path / "server") as (server, admin):
        yield server, admin


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, AuthAttributes]]:
    """The requests of the controller, and whether they were allowed."""
    found: list[tuple[bool, AuthAttributes]] = []
    decide = AuthChain.decide

    def watched(guard: AuthChain, user: User, attributes: AuthAttributes) -> AuthDecision:
        decision = decide(guard, user, attributes)
        if user.name == f"{ACCOUNT}{COMPONENT}":
            found.append((decision.allowed, attributes))
        return decision

    monkeypatch.setattr(AuthChain, "decide", watched)
    return found


async def kubeconfig(server: ApiServer, path: Path) -> Path:
    """One with a token of the controller's own account."""
    async with HttpApi(from_kubeconfig(server.kubeconfig_path)) as admin:
        token = (await admin.token(COMPONENT, namespace="unbounded-kube")).token
        await publish_cluster_info(admin, server.url, admin.config.ca or b"")
    _write(server.kubeconfig_path, token, path)
    return path


def _write(like: Path, token: str, path: Path) -> None:
    body = yaml.safe_load(like.read_text())
    body["users"] = [{"name": body["contexts"][0]["context"]["user"], "user": {"token": token}}]
    path.write_text(yaml.safe_dump(body))


@asynccontextmanager
async def controller(config: Path, env: Mapping[str, str], *flags: str) -> AsyncIterator[asyncio.subprocess.Process]:
    command = (sys.executable, "-m", "unbounded.machineops.main", "controller", "--kubeconfig", str(config))
    addresses = ("--metrics-bind-address", "0", "--health-probe-bind-address", "0", *flags)
    log = config.with_suffix(".log").open("ab")
    with closing(log):
        process = await asyncio.create_subprocess_exec(*command, *addresses, env=dict(env), stderr=log, stdout=log)
        try:
            yield process
        finally:
            if process.returncode is None:
                process.terminate()
            await asyncio.wait_for(process.wait(), 30)


async def prepare(admin: Client, folder: Path) -> None:
    """A Machine whose instance is a process, and what its operations need."""
    credential = {"siteName": "lab", "provider": "LocalProcess", "auth": {"mode": "WorkloadIdentity"}}
    await admin.create(f"{OURS}/machineoperationcredentials", _ours("MachineOperationCredential", "local", credential))
    token = site_token_manifest("lab", now=datetime.now(UTC), good_for=timedelta(hours=1), default=True)
    await admin.create(SECRETS_PATH.format("kube-system"), token)
    agent = {"url": "https://example.com/agent.tar.gz"}
    where = {"provider": "LocalProcess", "providerID": f"process://{folder}/m1"}
    template = {"proxy": {"https": "http://proxy:3128"}}
    version = _ours("MachineConfigurationVersion", "edge-v1", {"version": 1, "template": template})
    version["metadata"]["labels"] = {LABEL_CONFIGURATION: "edge"}
    await admin.create(f"{OURS}/machineconfigurationversions", version)
    ref = {"name": "edge", "version": 1}
    spec = {**where, "kubernetes": {"version": "v1.34.0"}, "agent": agent, "configurationRef": ref}
    machine = _ours("Machine", "m1", spec)
    machine["metadata"]["labels"] = {"unbounded-cloud.io/site": "lab"}
    await admin.create(f"{OURS}/machines", machine)


def _ours(kind: str, name: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "unbounded-cloud.io/v1alpha3",
        "kind": kind,
        "metadata": {"name": name},
        "spec": dict(spec),
    }


def record(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / name / "record.json").read_text())
    return found


async def done(admin: Client, name: str, kind: str) -> dict[str, Any]:
    await admin.create(OPERATIONS, operation(name, {"machineRef": "m1", "operationKind": kind}))
    found = await ended(admin, name)
    assert found["status"]["phase"] == "Complete", found["status"]
    return found


async def test_the_sample_is_carried_through_under_the_controllers_own_account(
    served: Served, example: dict[str, str], tmp_path: Path, asked: list[tuple[bool, AuthAttributes]]
) -> None:
    server, admin = served
    folder = tmp_path / "vms"
    await prepare(admin, folder)
    machines = ("-m", "unbounded_process_provider.machines")
    create = await asyncio.create_subprocess_exec(sys.executable, *machines, "make", f"{folder}/m1", env=example)
    assert await create.wait() == 0
    config = await kubeconfig(server, tmp_path / "kubeconfig")
    flags = ("--site", "lab", "--provider", "LocalProcess")
    names = ["m1"]
    try:
        async with controller(config, example, *flags):
            await done(admin, "reboot", "HostReboot")
            assert record(folder, "m1")["boots"] == 2
            await done(admin, "off", "HostPowerOff")
            assert record(folder, "m1")["pid"] == 0
        async with controller(config, example, *flags):  # another one: the processes are not its own
            await done(admin, "on", "HostPowerOn")
            replaced = await done(admin, "replace", "HostReplace")
        machine = await admin.get(f"{OURS}/machines/m1")
        names.append(machine["spec"]["providerID"].rpartition("/")[2])
        new = record(folder, names[1])
        assert new["made_for"] == replaced["metadata"]["uid"]
        assert new["pid"] > 0
        assert not (folder / "m1").exists()
        user_data = (folder / names[1] / "user-data").read_text()
        assert user_data.startswith("#cloud-config")
        assert server.url in user_data
        assert "http://proxy:3128" in user_data
        stages = [evidence["what"] for evidence in replaced["status"]["evidence"]]
        assert stages[-2:] == ["the Machine names it", "the old folder is gone"]
    finally:
        for name in names:
            end = await asyncio.create_subprocess_exec(
                sys.executable, *machines, "remove", f"{folder}/{name}", env=example
            )
            await end.wait()
    assert [attributes for allowed, attributes in asked if not allowed] == []
    assert set(_unused(asked)) == ELSEWHERE


ELSEWHERE = {
    ("", "machineconfigurationversions", "list"),
    ("unbounded-kube", "secrets", "create"),
    ("unbounded-kube", "secrets", "patch"),
    ("unbounded-kube", "secrets", "delete"),
    ("kube-system", "secrets", "get"),
    ("default", "events", "patch"),
}
"""The rights that this sample has no use for; the next test has."""


async def test_the_rights_that_the_sample_has_no_use_for_are_used_too(
    served: Served, asked: list[tuple[bool, AuthAttributes]], tmp_path: Path
) -> None:
    server, admin = served
    await prepare(admin, tmp_path)
    (token,) = (await admin.get(SECRETS_PATH.format("kube-system")))["items"]
    kubernetes = {"bootstrapTokenRef": {"name": token["metadata"]["name"]}}
    await admin.merge(f"{OURS}/machines/m1", {"spec": {"kubernetes": kubernetes}})
    await admin.create(OPERATIONS, operation("op", {"machineRef": "m1", "operationKind": "HostReplace"}))
    async with as_account(server, COMPONENT) as api:
        # the resume state of a replacement
        machine = await api.get(MACHINES, "m1")
        keep = ReplacementSecret(api, await api.get(MACHINE_OPERATIONS, "op"), machine, "instance:0")
        await keep.store(b"one")
        await keep.store(b"two")
        assert await keep.load() == b"two"
        await keep.delete()
        # a Machine of the newest version of a configuration
        assert (await read_bound_version(api, ConfigurationRef(name="edge"))).spec.version == 1
        # a Machine that names its token
        assert (await TokenFinder(api, UncachedSecrets(api)).find(machine)).token is not None
        # the same event a second time
        recorder = EventRecorder(api, COMPONENT)
        writing = asyncio.create_task(recorder.run())
        for count in (1, 2):
            recorder.event(object_reference(MACHINES, machine), "Warning", "AuthNotFound", "there is no credential")

            async def told(count: int = count) -> bool:
                there = (await admin.get("/api/v1/namespaces/default/events"))["items"]
                return [event["count"] for event in there] == [count]

            await eventually(told, within_s=30)
        writing.cancel()
    assert [attributes for allowed, attributes in asked if not allowed] == []
    rights = {(right.namespace, right.resource, right.verb) for right in given((COMPONENT,))}
    assert rights - set(_unused(asked)) >= ELSEWHERE


def _unused(asked: Iterable[tuple[bool, AuthAttributes]]) -> Iterable[tuple[str, str, str]]:
    """Return the rights of the controller that no request has used."""
    rights: list[Right] = list(given((COMPONENT,)))
    assert rights
    for right in rights:
        if not any(allowed and uses(right, COMPONENT, attributes) for allowed, attributes in asked):
            yield right.namespace, right.resource, right.verb


async def test_a_provider_that_is_not_installed_is_said(tmp_path: Path, example: dict[str, str]) -> None:
    async with controller(tmp_path / "none", example, "--provider", "Acme") as process:
        assert await asyncio.wait_for(process.wait(), 30) == 2
    said = (tmp_path / "none.log").read_text()
    assert "no provider 'Acme' is installed; installed:" in said
    assert "LocalProcess" in said


async def test_it_writes_no_secret_but_what_replacements_keep(served: Served, tmp_path: Path) -> None:
    server, admin = served
    await prepare(admin, tmp_path)
    for name in ("op", "failed"):
        await admin.create(OPERATIONS, operation(name, {"machineRef": "m1", "operationKind": "HostReplace"}))
    data = {"login": b64encode(b"secret").decode()}
    login = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "replacement-login"}, "data": data}
    await admin.create(SECRETS_PATH.format("unbounded-kube"), login)
    async with as_account(server, COMPONENT) as api:
        machine = await api.get(MACHINES, "m1")
        lasting = ReplacementSecret(api, await api.get(MACHINE_OPERATIONS, "failed"), machine, "instance:1")
        await lasting.store(b"all there is")
        await lasting.outlive_operation()
        keep = ReplacementSecret(api, await api.get(MACHINE_OPERATIONS, "op"), machine, "instance:0")
        await keep.store(b"one")
        for name in ("op", "failed"):
            assert (await admin.ask("DELETE", f"{OPERATIONS}/{name}")).status == 200
        await eventually(lambda: _is_gone(keep))
        assert await lasting.load() == b"all there is"
        await lasting.delete()
        assert await lasting.load() is None
        with pytest.raises(Forbidden, match=r"only Secrets of type unbounded-cloud.io/replacement"):
            await api.patch(SECRETS, "replacement-login", {"data": {}}, namespace="unbounded-kube")
        with pytest.raises(Forbidden, match=r"only Secrets of type unbounded-cloud.io/replacement"):
            await api.delete(SECRETS, "replacement-login", namespace="unbounded-kube")
        named = keep._body(b"x") | {"metadata": {"name": "other"}}
        with pytest.raises(Forbidden, match="must have a name replacement-DIGEST"):
            await api.create(SECRETS, named, namespace="unbounded-kube")
        with pytest.raises(Forbidden, match="must belong to a MachineOperation or a Machine"):
            await api.create(
                SECRETS, keep._body(b"x") | {"metadata": {"name": "replacement-x"}}, namespace="unbounded-kube"
            )
        with pytest.raises(Forbidden, match="cannot list resource"):
            await api.list(SECRETS, namespace="unbounded-kube")


async def _is_gone(keep: ReplacementSecret) -> bool:
    return await keep.load() is None


@pytest.mark.parametrize(
    ("patch", "allowed"),
    [
        ({"spec": {"providerID": "process:///vms/m2"}}, True),
        ({"spec": {"agent": {"version": "v9.9.9"}}}, False),
        ({"spec": {"kubernetes": {"version": "v1.33.0"}}}, False),
        ({"metadata": {"labels": {"unbounded-cloud.io/site": "other"}}}, False),
        ({"metadata": {"finalizers": ["example.com/x"]}}, False),
    ],
)
async def test_of_a_machine_it_writes_the_provider_id_alone(
    served: Served, patch: dict[str, Any], allowed: bool, tmp_path: Path
) -> None:
    server, admin = served
    await prepare(admin, tmp_path)
    async with as_account(server, COMPONENT) as api:
        if allowed:
            assert (await api.patch(MACHINES, "m1", patch)).spec.provider_id == "process:///vms/m2"
            return
        with pytest.raises(Forbidden, match="machine-ops-controller"):
            await api.patch(MACHINES, "m1", patch)
