"""An agent writes what is its own: what it may do, and the words in which all else is refused."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.apiserver.support import Client, client_identity, eventually, running
from tests.cli.running import KUBECTL
from unbounded.api.conditions import CONDITIONS
from unbounded.api.machine import Machine
from unbounded.api.operation import MachineOperation, OperationKind, OperationPhase
from unbounded.apiserver.server import ApiServer
from unbounded.cli.definitions import install_definitions
from unbounded.cli.manifests import install_manifests, manifests
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded.operations import slot
from unbounded.operations.ownership import Executor, executor_of
from unbounded.operations.record import Run, running_patch, terminal_patch

pytestmark = pytest.mark.slow

AGENTS = "unbounded-agent-daemons"
AGENT = "system:node:m1"
OURS = "/apis/unbounded-cloud.io/v1alpha3"
MACHINES, OPERATIONS = f"{OURS}/machines", f"{OURS}/machineoperations"
NODES = "/api/v1/nodes"
NOW = "2026-01-01T00:00:00Z"
MERGE = {"Content-Type": "application/merge-patch+json"}


@asynccontextmanager
async def acting(server: ApiServer, user: str, *groups: str) -> AsyncIterator[Client]:
    connector = aiohttp.TCPConnector(ssl=client_identity(server.data_dir, user, *groups))
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Client(session, server.url)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, Client]]:
    """A server as `unbounded up` makes it, with two Machines, their Nodes, and operations on them."""
    async with running(tmp_path) as (server, admin):
        async with HttpApi(from_kubeconfig(server.kubeconfig_path)) as api:
            await install_definitions(api)
            await install_manifests(api)
        for name in ("m1", "m2"):
            await admin.create(MACHINES, obj("Machine", name))
            await admin.create(NODES, {"metadata": {"name": name}})
        await admin.create(OPERATIONS, obj("MachineOperation", "mine", machineRef="m1", operationKind="NodeReboot"))
        await admin.create(OPERATIONS, obj("MachineOperation", "other", machineRef="m2", operationKind="NodeReboot"))
        await admin.create(OPERATIONS, obj("MachineOperation", "host", machineRef="m1", operationKind="HostReplace"))
        await admin.create(OPERATIONS, obj("MachineOperation", "taken", machineRef="m1", operationKind="HostReboot"))
        claimed = {"execution": execution("metalman/lab"), "targets": [{"machineRef": "m1"}]}
        await status(admin, OPERATIONS, "taken", claimed)
        power = {"type": "PoweredOff", "status": "True", "reason": "PoweredOff", "lastTransitionTime": NOW}
        known = {"phase": "Ready", "conditions": [power], "recentOperations": [recent("old")]}
        await status(admin, MACHINES, "m1", known)
        yield server, admin


def obj(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "unbounded-cloud.io/v1alpha3", "kind": kind, "metadata": {"name": name}, "spec": spec}


def execution(executor: str) -> dict[str, Any]:
    return {"executor": executor, "incarnation": "i", "machineUID": "u", "binding": "b"}


def recent(name: str) -> dict[str, Any]:
    return {"name": name, "uid": f"uid-{name}", "kind": "NodeReboot", "phase": "Complete"}


def active(executor: str, *, lost: bool = False) -> dict[str, Any]:
    told = {"uid": "uid-x", "name": "x", "kind": "NodeReboot", "executor": executor, "since": NOW}
    return told | ({"lost": True} if lost else {})


async def status(admin: Client, path: str, name: str, content: dict[str, Any]) -> None:
    await admin.merge(f"{path}/{name}/status", {"status": content})


@dataclass(frozen=True)
class Refused:
    """Something that an agent tries, and what it is told; `policy` is '' where its role already says no."""

    what: str
    path: str
    body: dict[str, Any] | None
    said: str
    policy: str = ""
    method: str = "PATCH"
    user: str = AGENT
    wide: bool = False  # with all rights that roles can give
    groups: tuple[str, ...] = field(default=(AGENTS,))


def no_right(verb: str, resource: str, group: str = "unbounded-cloud.io") -> str:
    where = "at the cluster scope"
    return f'User "{AGENT}" cannot {verb} resource "{resource}" in API group "{group}" {where}'


def condition(kind: str, state: str) -> dict[str, Any]:
    return {"type": kind, "status": state, "reason": "Pending", "lastTransitionTime": NOW}


POWER = condition("PoweredOff", "True") | {"reason": "PoweredOff"}
NOT_OURS = (
    "an agent writes agent, configuration, activeOperation, recentOperations and conditions in the status of its "
)
CONDITIONS_OURS = "an agent writes the conditions NodeUpdated, RepavePending and AgentBootstrapped of its Machine, and "
TABLE = [
    Refused(
        "the status of another Machine",
        f"{MACHINES}/m2/status",
        {"status": {"agent": {"version": "v1"}}},
        f"an agent writes the status of its own Machine only, and m2 is not that of {AGENT}",
        "machines",
    ),
    Refused("a spec", f"{MACHINES}/m1", {"spec": {"provider": "Mine"}}, no_right("patch", "machines")),
    Refused(
        "a spec, with a wider role",
        f"{MACHINES}/m1",
        {"spec": {"provider": "Mine"}},
        "an agent changes nothing of a Machine but its status",
        "machines",
        wide=True,
    ),
    Refused("to delete a Machine", f"{MACHINES}/m1", None, no_right("delete", "machines"), method="DELETE"),
    Refused(
        "to delete a Machine, with a wider role",
        f"{MACHINES}/m1",
        None,
        "an agent changes nothing of a Machine but its status",
        "machines",
        method="DELETE",
        wide=True,
    ),
    Refused(
        "the phase",
        f"{MACHINES}/m1/status",
        {"status": {"phase": "Failed"}},
        f"{NOT_OURS}Machine, and nothing else",
        "machines",
    ),
    Refused(
        "the pin of the BMC",
        f"{MACHINES}/m1/status",
        {"status": {"redfish": {"certFingerprint": "aa:bb"}}},
        f"{NOT_OURS}Machine, and nothing else",
        "machines",
    ),
    Refused(
        "a condition of metalman's",
        f"{MACHINES}/m1/status",
        {"status": {"conditions": [POWER | {"status": "False"}]}},
        f"{CONDITIONS_OURS}no others",
        "machines",
    ),
    Refused(
        "to drop a condition of metalman's",
        f"{MACHINES}/m1/status",
        {"status": {"conditions": [condition("RepavePending", "True")]}},
        f"{CONDITIONS_OURS}no others",
        "machines",
    ),
    Refused(
        "to take the slot for somebody else",
        f"{MACHINES}/m1/status",
        {"status": {"activeOperation": active("metalman/lab")}},
        "an agent takes a free slot for itself, and gives back its own",
        "machines",
    ),
    Refused(
        "to make up a past",
        f"{MACHINES}/m1/status",
        {"status": {"recentOperations": [recent("old"), recent("made-up")]}},
        "an agent adds the operation that it carries out to recentOperations, and changes no other",
        "machines",
    ),
    Refused(
        "to forget the past",
        f"{MACHINES}/m1/status",
        {"status": {"recentOperations": []}},
        "an agent adds the operation that it carries out to recentOperations, and changes no other",
        "machines",
    ),
    Refused(
        "the status of another's operation",
        f"{OPERATIONS}/other/status",
        {"status": {"execution": execution("unbounded-agent/m1")}},
        f"an agent writes operations on its own Machine only, and other is not for that of {AGENT}",
        "operations",
    ),
    Refused(
        "the status of a kind that is not an agent's",
        f"{OPERATIONS}/host/status",
        {"status": {"execution": execution("unbounded-agent/m1")}},
        "an agent does not carry out HostReplace",
        "operations",
    ),
    Refused(
        "the status of an operation that metalman carries out",
        f"{OPERATIONS}/taken/status",
        {"status": {"execution": execution("unbounded-agent/m1")}},
        "an agent writes the status of operations that it carries out itself",
        "operations",
    ),
    Refused(
        "to claim for somebody else",
        f"{OPERATIONS}/mine/status",
        {"status": {"execution": execution("metalman/lab")}},
        "an agent writes the status of operations that it carries out itself",
        "operations",
    ),
    Refused(
        "to end an operation without a claim",
        f"{OPERATIONS}/mine/status",
        {"status": {"phase": "Complete"}},
        "an agent writes the status of operations that it carries out itself",
        "operations",
    ),
    Refused(
        "to cancel",
        f"{OPERATIONS}/mine",
        {"spec": {"cancel": True}},
        "of an operation itself an agent changes the finalizers only",
        "operations",
    ),
    Refused(
        "labels of an operation",
        f"{OPERATIONS}/mine",
        {"metadata": {"labels": {"a": "b"}}},
        "of an operation itself an agent changes the finalizers only",
        "operations",
    ),
    Refused(
        "to create an operation",
        OPERATIONS,
        obj("MachineOperation", "new", machineRef="m1", operationKind="NodeReboot"),
        no_right("create", "machineoperations"),
        method="POST",
    ),
    Refused(
        "to create an operation, with a wider role",
        OPERATIONS,
        obj("MachineOperation", "new", machineRef="m1", operationKind="NodeReboot"),
        "an agent neither creates nor deletes operations",
        "operations",
        method="POST",
        wide=True,
    ),
    Refused(
        "to delete an operation, with a wider role",
        f"{OPERATIONS}/mine",
        None,
        "an agent neither creates nor deletes operations",
        "operations",
        method="DELETE",
        wide=True,
    ),
    Refused(
        "another's Node",
        f"{NODES}/m2",
        {"spec": {"unschedulable": True}},
        f"an agent writes its own Node only, and m2 is not that of {AGENT}",
        "nodes",
    ),
    Refused(
        "to pass its Node off as another Machine's",
        f"{NODES}/m1",
        {"metadata": {"labels": {"unbounded-cloud.io/machine": "m2"}}},
        "the label unbounded-cloud.io/machine of a Node names its own Machine",
        "nodes",
    ),
    Refused(
        "a role for its Node",
        f"{NODES}/m1",
        {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}},
        "an agent changes no label of node-role.kubernetes.io or node-restriction.kubernetes.io",
        "nodes",
    ),
    Refused(
        "anything, under a name that is no node's",
        f"{MACHINES}/m1/status",
        {"status": {"agent": {"version": "v1"}}},
        "an agent writes the status of its own Machine only, and m1 is not that of m1",
        "machines",
        user="m1",
    ),
    Refused(
        "anything, outside of the group",
        f"{MACHINES}/m1/status",
        {"status": {"agent": {"version": "v1"}}},
        no_right("patch", "machines/status"),
        groups=("some",),
    ),
    Refused("Secrets", "/api/v1/secrets", None, no_right("list", "secrets", ""), method="GET"),
]


def expected(row: Refused) -> str:
    """The whole message; policies say which they are, before what they say."""
    plural, _, rest = row.path.partition("v1alpha3/" if row.path.startswith(OURS) else "v1/")[2].partition("/")
    name = rest.partition("/")[0] or ((row.body or {}).get("metadata", {}).get("name", "") if row.policy else "")
    subject = f"{plural}.unbounded-cloud.io" if row.path.startswith(OURS) else plural
    policy = f"unbounded-agent-{row.policy}"
    through = f"ValidatingAdmissionPolicy '{policy}' with binding '{policy}' denied request: " if row.policy else ""
    return (f'{subject} "{name}"' if name else subject) + f" is forbidden: {through}{row.said}"


async def test_what_is_not_its_own_is_refused_to_an_agent(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    told, wanted = {}, {}
    for row in TABLE:
        if row.wide:
            await widen(admin)
        async with acting(server, row.user, *row.groups) as agent:
            headers = MERGE if row.method == "PATCH" else None
            answer = await agent.ask(row.method, row.path, row.body, headers=headers)
        told[row.what] = (answer.status, answer.json().get("message"))
        wanted[row.what] = (403, expected(row))
        if row.wide:
            await admin.ask("DELETE", f"{BINDINGS}/wide")
    assert told == wanted


BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


async def widen(admin: Client) -> None:
    subjects = [{"kind": "Group", "name": AGENTS}]
    role = {"kind": "ClusterRole", "name": "cluster-admin"}
    await admin.create(BINDINGS, {"metadata": {"name": "wide"}, "roleRef": role, "subjects": subjects})


async def test_an_agent_carries_its_operation_out_as_executors_do(served: tuple[ApiServer, Client]) -> None:
    server, admin = served

    async with acting(server, AGENT, AGENTS) as agent:
        machine = await admin.get(f"{MACHINES}/m1")
        operation = msgspec.convert(await admin.get(f"{OPERATIONS}/mine"), MachineOperation)
        finalizers = {"metadata": {"finalizers": ["unbounded-cloud.io/operation"]}}
        await agent.merge(f"{OPERATIONS}/mine", finalizers)
        take = slot.take_patch(machine, operation, "unbounded-agent/m1", None, now=NOW)
        machine = await agent.merge(f"{MACHINES}/m1/status", take)
        run = Run(
            machine="m1",
            machine_uid=machine["metadata"]["uid"],
            executor="unbounded-agent/m1",
            incarnation="i",
            binding="b",
            stage="Starting",
            started_at=NOW,
        )
        patch = running_patch(run, message="at work", waiting=None, conditions=[])
        await agent.merge(f"{OPERATIONS}/mine/status", {"status": patch})
        report = {"status": {"agent": {"version": "v1", "hostBootID": "b"}}}
        machine = await agent.merge(f"{MACHINES}/m1/status", report)
        marks = [*machine["status"]["conditions"], condition("RepavePending", "True")]
        await agent.merge(f"{MACHINES}/m1/status", {"status": {"conditions": marks}})
        end = terminal_patch(run, OperationPhase.COMPLETE, "Completed", "done", now=NOW, conditions=[])
        done = await agent.merge(f"{OPERATIONS}/mine/status", {"status": end})
        machine = await admin.get(f"{MACHINES}/m1")
        release = slot.release_patch(machine, msgspec.convert(done, MachineOperation), None, now=NOW)
        machine = await agent.merge(f"{MACHINES}/m1/status", release)
        assert [one["name"] for one in machine["status"]["recentOperations"]] == ["old", "mine"]
        assert "activeOperation" not in machine["status"]
        node = await agent.merge(f"{NODES}/m1", {"metadata": {"labels": {"unbounded-cloud.io/machine": "m1"}}})
        assert node["metadata"]["labels"] == {"unbounded-cloud.io/machine": "m1"}


async def test_a_slot_changes_hands_only_when_it_is_free_or_its_holder_was_lost(
    served: tuple[ApiServer, Client],
) -> None:
    server, admin = served
    mine = {"status": {"activeOperation": active("unbounded-agent/m1")}}
    async with acting(server, AGENT, AGENTS) as agent:
        await status(admin, MACHINES, "m1", {"activeOperation": active("metalman/lab")})
        for patch in (mine, {"status": {"activeOperation": None}}):
            answer = await agent.ask("PATCH", f"{MACHINES}/m1/status", patch, headers=MERGE)
            assert answer.json()["message"].endswith("an agent takes a free slot for itself, and gives back its own")
        report = {"status": {"agent": {"version": "v2"}}}  # which does not touch the slot
        assert (await agent.ask("PATCH", f"{MACHINES}/m1/status", report, headers=MERGE)).status == 200
        await status(admin, MACHINES, "m1", {"activeOperation": active("metalman/lab", lost=True)})
        assert (await agent.ask("PATCH", f"{MACHINES}/m1/status", mine, headers=MERGE)).status == 200


def test_the_policies_name_the_conditions_and_kinds_that_are_an_agents() -> None:
    variables = {
        variable["name"]: variable["expression"]
        for manifest in manifests()
        if manifest["kind"] == "ValidatingAdmissionPolicy"
        for variable in manifest["spec"]["variables"]
    }
    own = [str(kind) for kind, meaning in CONDITIONS.items() if meaning.writer == Executor.AGENT]
    assert variables["types"] == str(own)
    with_agent = msgspec.convert(obj("Machine", "m") | {"status": {"agent": {"version": "v1"}}}, Machine)
    kinds = [str(kind) for kind in OperationKind if executor_of(kind, with_agent) is Executor.AGENT]
    assert sorted(msgspec.json.decode(variables["kinds"].replace("'", '"'))) == sorted(kinds)


async def test_the_policies_fit_the_schemas_of_what_they_match(served: tuple[ApiServer, Client]) -> None:
    _, admin = served
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"

    async def checked() -> Any:
        items = (await admin.get(path))["items"]
        return [one["status"] for one in items] if all(one["status"] for one in items) else None

    assert await eventually(checked) == [{"observedGeneration": 1, "typeChecking": {}}] * 3


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
async def test_kubectl_shows_the_refusal(served: tuple[ApiServer, Client]) -> None:
    server, _ = served
    assert KUBECTL is not None
    command = [KUBECTL, "--kubeconfig", str(server.kubeconfig_path), "--as", AGENT, "--as-group", AGENTS]
    process = await asyncio.create_subprocess_exec(
        *command, *["label", "node", "m2", "a=b"], stderr=asyncio.subprocess.PIPE
    )
    _, error = await process.communicate()
    assert process.returncode == 1
    assert "an agent writes its own Node only, and m2 is not that of system:node:m1" in error.decode()
