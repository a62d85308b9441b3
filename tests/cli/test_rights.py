"""The controllers under their own service accounts, with the rights of deploy/rbac/ and no others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.support import Client, eventually, running
from unbounded.api.core import CONFIG_MAPS, SECRETS
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


@pytest.mark.parametrize("name", ["machina", "metalman"])
async def test_a_controller_cannot_list_secrets_nor_reach_those_of_others(
    name: str, served: tuple[ApiServer, Client]
) -> None:
    server, _ = served
    async with as_account(server, name) as api:
        with pytest.raises(Forbidden, match=f'User "{ACCOUNT}{name}" cannot list resource "secrets" in API group ""'):
            await api.list(SECRETS, namespace="unbounded-kube")
        with pytest.raises(Forbidden):
            await api.get(SECRETS, "any", namespace="kube-system")
        with pytest.raises(Forbidden):
            await api.create(CONFIG_MAPS, {"metadata": {"name": "a"}}, namespace="unbounded-kube")
        with pytest.raises(Forbidden):
            await api.list(CONFIG_MAPS, namespace="unbounded-kube")
