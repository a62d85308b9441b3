"""The controllers under their own service accounts, with the rights of deploy/rbac/ and no others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.support import Client, eventually, running
from unbounded.api.core import SECRETS
from unbounded.api.machine import MACHINES
from unbounded.apiserver.auth import Attributes, Decision, Guard, User
from unbounded.apiserver.server import ApiServer
from unbounded.cli.definitions import install_definitions
from unbounded.cli.identities import acting_as
from unbounded.cli.manifests import install_manifests
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded.kube.errors import Forbidden
from unbounded.kube.events import EventRecorder
from unbounded.kube.metrics import Metrics
from unbounded.kube.process import Health, Runtime
from unbounded.lab.bmc import LabBmc
from unbounded.lab.machines import machines, secret
from unbounded.machina import controller as machina
from unbounded.metalman import controller as metalman
from unbounded.metalman.settings import Settings

pytestmark = pytest.mark.slow

OURS = "/apis/unbounded-cloud.io/v1alpha3"
OPERATIONS = f"{OURS}/machineoperations"
ACCOUNT = "system:serviceaccount:unbounded-kube:"


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, Client]]:
    """A server with everything of deploy/ on it."""
    async with running(tmp_path) as (server, admin):
        async with HttpApi(from_kubeconfig(server.kubeconfig_path)) as api:
            await install_definitions(api)
            await install_manifests(api)
        yield server, admin


@asynccontextmanager
async def as_account(server: ApiServer, name: str) -> AsyncIterator[HttpApi]:
    async with (
        HttpApi(from_kubeconfig(server.kubeconfig_path)) as admin,
        acting_as(name, admin, metrics=Metrics(), health=Health(())) as runtime,
    ):
        assert isinstance(runtime.api, HttpApi)
        yield runtime.api


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Attributes]]:
    """What service accounts have asked for in vain."""
    found: list[tuple[str, Attributes]] = []
    decide = Guard.decide

    def watched(guard: Guard, user: User, asked: Attributes) -> Decision:
        decision = decide(guard, user, asked)
        if not decision.allowed and user.name.startswith(ACCOUNT):
            found.append((user.name, asked))
        return decision

    monkeypatch.setattr(Guard, "decide", watched)
    return found


@asynccontextmanager
async def controllers(server: ApiServer) -> AsyncIterator[None]:
    """machina and metalman at work, each as its service account and behind its Lease."""
    async with AsyncExitStack() as stack:
        apis = {name: await stack.enter_async_context(as_account(server, name)) for name in ("machina", "metalman")}
        runtimes = {name: Runtime(api, events=EventRecorder(api, name), elects=True) for name, api in apis.items()}
        group = await stack.enter_async_context(asyncio.TaskGroup())
        tasks = [group.create_task(runtime.events.run()) for runtime in runtimes.values() if runtime.events]
        tasks.append(group.create_task(machina.run(runtimes["machina"])))
        tasks.append(group.create_task(metalman.run(runtimes["metalman"], Settings(site=None))))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def ended(admin: Client, name: str) -> dict[str, Any]:
    async def terminal() -> Any:
        operation = await admin.get(f"{OPERATIONS}/{name}")
        return operation if operation.get("status", {}).get("phase") in {"Complete", "Failed"} else None

    found: dict[str, Any] = await eventually(terminal, within_s=60)
    return found


async def test_the_controllers_need_no_more_than_their_rights(
    served: tuple[ApiServer, Client], refused: list[tuple[str, Attributes]]
) -> None:
    server, admin = served
    async with LabBmc(boot_s=0.2, shutdown_s=0.2) as bmc, controllers(server):
        await admin.create("/api/v1/namespaces/unbounded-kube/secrets", secret(bmc))
        (machine,) = machines(bmc)
        await admin.create(f"{OURS}/machines", machine)
        name = machine["metadata"]["name"]
        reboot = {"machineRef": name, "operationKind": "HostReboot", "ttlSecondsAfterFinished": 1}
        await admin.create(OPERATIONS, operation("one", reboot))
        done = await ended(admin, "one")
        assert done["status"]["phase"] == "Complete", done["status"]

        selector = {"matchLabels": machine["metadata"]["labels"]}
        await admin.create(OPERATIONS, operation("many", {"machineSelector": selector, "operationKind": "HostPowerOn"}))
        assert (await ended(admin, "many"))["status"]["phase"] == "Complete"

        await admin.merge(f"{OURS}/machines/{name}", {"spec": {"operations": {"rebootCounter": 1}}})

        async def counted() -> bool:
            reached = (await admin.get(f"{OURS}/machines/{name}")).get("status", {}).get("operations", {})
            return bool(reached.get("rebootCounter") == 1)

        await eventually(counted, within_s=60)

        async def expired() -> bool:
            return (await admin.ask("GET", f"{OPERATIONS}/one")).status == 404

        await eventually(expired, within_s=30)

        async def announced() -> Any:
            return (await admin.get("/api/v1/namespaces/default/events"))["items"]

        await eventually(announced, within_s=30)
    assert refused == []


def operation(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "unbounded-cloud.io/v1alpha3",
        "kind": "MachineOperation",
        "metadata": {"name": name},
        "spec": spec,
    }


CONFIG_MAPS = "/api/v1/namespaces/unbounded-kube/configmaps"
CORE = 'in API group ""'
OF_OURS = 'in API group "unbounded-cloud.io" at the cluster scope'
HERE = 'in the namespace "unbounded-kube"'
REFUSED = [
    ("machina", "GET", "/api/v1/namespaces/unbounded-kube/secrets", f'cannot list resource "secrets" {CORE} {HERE}'),
    ("machina", "GET", "/api/v1/namespaces/unbounded-kube/secrets/s", f'cannot get resource "secrets" {CORE} {HERE}'),
    ("machina", "DELETE", "/api/v1/nodes/n", f'cannot delete resource "nodes" {CORE} at the cluster scope'),
    ("machina", "POST", f"{OURS}/machines", f'cannot create resource "machines" {OF_OURS}'),
    ("machina", "DELETE", f"{OURS}/machines/m", f'cannot delete resource "machines" {OF_OURS}'),
    ("metalman", "GET", "/api/v1/namespaces/unbounded-kube/secrets", f'cannot list resource "secrets" {CORE} {HERE}'),
    (
        "metalman",
        "GET",
        "/api/v1/namespaces/kube-system/secrets/bootstrap-token-abcdef",
        f'cannot get resource "secrets" {CORE} in the namespace "kube-system"',
    ),
    (
        "metalman",
        "GET",
        "/api/v1/namespaces/unbounded-kube/configmaps",
        f'cannot list resource "configmaps" {CORE} {HERE}',
    ),
    ("metalman", "PATCH", f"{OURS}/machines/m", f'cannot patch resource "machines" {OF_OURS}'),
    ("metalman", "DELETE", f"{OURS}/machineoperations/o", f'cannot delete resource "machineoperations" {OF_OURS}'),
    (
        "metalman",
        "POST",
        "/api/v1/namespaces/unbounded-kube/serviceaccounts/machina/token",
        f'cannot create resource "serviceaccounts/token" {CORE} {HERE}',
    ),
]


async def test_a_controller_is_refused_what_it_has_no_need_of(served: tuple[ApiServer, Client]) -> None:
    _, admin = served
    told = []
    for name, method, path, _ in REFUSED:
        headers = {"Impersonate-User": f"{ACCOUNT}{name}", "Content-Type": "application/merge-patch+json"}
        answer = await admin.ask(method, path, None if method == "GET" else {}, headers=headers)
        told.append((answer.status, answer.json()["message"].partition(" is forbidden: ")[2]))
    assert told == [(403, f'User "{ACCOUNT}{name}" {said}') for name, _, _, said in REFUSED]


@pytest.mark.parametrize("name", ["machina", "metalman"])
async def test_a_token_of_its_own_gives_a_controller_no_more_than_that(
    name: str, served: tuple[ApiServer, Client]
) -> None:
    server, _ = served
    async with as_account(server, name) as api:
        await api.list(MACHINES)
        with pytest.raises(Forbidden, match=f'User "{ACCOUNT}{name}" cannot list resource "secrets" in API group ""'):
            await api.list(SECRETS, namespace="unbounded-kube")
