"""The controllers under their own service accounts, with the rights of deploy/rbac/ and no others."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import pytest

from tests.apiserver.support import Client
from tests.cli.deployed import deployed
from tests.cli.running import KUBECTL
from tests.explain.staging import commands, typed
from tests.support.installer import FakeInstaller, FakeInstalls
from tests.support.machina import FakeHost, FakeSsh
from tests.support.waiting import eventually
from unbounded.api.core import SECRETS
from unbounded.api.machine import MACHINES
from unbounded.cli.servers import component_runtime, publish_cluster_info
from unbounded.explain.chain import explain
from unbounded.explain.links import Topic
from unbounded.join.bootstrap_tokens import site_token_manifest
from unbounded.join.cluster_facts import FactsFollower
from unbounded.kube.api import Forbidden
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded.kube.events import EventRecorder
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.process import HealthServers, Runtime
from unbounded.machina import controller as machina
from unbounded.machina.machines.controller import MachineController, Ports
from unbounded.machina.machines.observe import MachineCaches
from unbounded.machina.settings import ProvisioningSettings as MachineSettings
from unbounded.metalman import controller as metalman
from unbounded.metalman.settings import MetalmanSettings
from unbounded_apiserver.auth import AuthAttributes, AuthChain, AuthDecision, User
from unbounded_apiserver.server import ApiServer
from unbounded_lab.bmc import LabBmc
from unbounded_lab.machines import machines, secret

pytestmark = pytest.mark.slow

OURS = "/apis/unbounded-cloud.io/v1alpha3"
OPERATIONS = f"{OURS}/machineoperations"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
ACCOUNT = "system:serviceaccount:unbounded-kube:"


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, Client]]:
    """A server with everything of deploy/ on it."""
    async with deployed(tmp_path) as (server, admin):
        yield server, admin


@asynccontextmanager
async def as_account(server: ApiServer, name: str) -> AsyncIterator[HttpApi]:
    async with (
        HttpApi(from_kubeconfig(server.kubeconfig_path)) as admin,
        component_runtime(name, admin, metrics=ControllerMetrics(), health=HealthServers(())) as runtime,
    ):
        assert isinstance(runtime.api, HttpApi)
        yield runtime.api


@pytest.fixture
def refused(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, AuthAttributes]]:
    """The refused requests of service accounts."""
    found: list[tuple[str, AuthAttributes]] = []
    decide = AuthChain.decide

    def watched(guard: AuthChain, user: User, asked: AuthAttributes) -> AuthDecision:
        decision = decide(guard, user, asked)
        if not decision.allowed and user.name.startswith(ACCOUNT):
            found.append((user.name, asked))
        return decision

    monkeypatch.setattr(AuthChain, "decide", watched)
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
        tasks.append(group.create_task(metalman.run(runtimes["metalman"], MetalmanSettings(site=None))))
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
    served: tuple[ApiServer, Client], refused: list[tuple[str, AuthAttributes]]
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


async def with_pods(admin: Client, node: str) -> None:
    """A Node that is Ready, with a pod that a budget keeps, and one that nothing keeps."""
    await admin.create("/api/v1/nodes", {"metadata": {"name": node}})
    status = {"conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}]}
    await admin.merge(f"/api/v1/nodes/{node}/status", {"status": status | {"nodeInfo": {"bootID": "first"}}})
    owner = await admin.create("/api/v1/namespaces/default/configmaps", {"metadata": {"name": "owner"}})
    owners = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["metadata"]["uid"]}]
    for name in ("kept", "free"):
        meta = {
            "name": name,
            "labels": {"app": name},
            "ownerReferences": [one | {"controller": True} for one in owners],
        }
        spec = {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [{"name": "a", "image": "a"}]}
        await admin.create("/api/v1/namespaces/default/pods", {"metadata": meta, "spec": spec})
        ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
        await admin.merge(f"/api/v1/namespaces/default/pods/{name}/status", {"status": ready})
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "kept"}}}
    await admin.create(f"{BUDGETS}", {"metadata": {"name": "keeps"}, "spec": budget})


async def test_a_drained_reboot_needs_no_more_than_the_rights_of_machina(
    served: tuple[ApiServer, Client], refused: list[tuple[str, AuthAttributes]]
) -> None:
    server, admin = served
    async with LabBmc(boot_s=0.2, shutdown_s=0.2) as bmc, controllers(server):
        await admin.create("/api/v1/namespaces/unbounded-kube/secrets", secret(bmc))
        (machine,) = machines(bmc)
        await admin.create(f"{OURS}/machines", machine)
        name = machine["metadata"]["name"]
        await with_pods(admin, name)
        selector = {"matchLabels": machine["metadata"]["labels"]}
        budget = {"machineSelector": selector, "maxUnavailable": 1}
        mdb = {"apiVersion": "unbounded-cloud.io/v1alpha3", "kind": "MachineDisruptionBudget", "spec": budget}
        await admin.create(f"{OURS}/machinedisruptionbudgets", mdb | {"metadata": {"name": "one"}})

        async def enforced() -> bool:
            status = (await admin.get(f"{OURS}/machinedisruptionbudgets/one")).get("status", {})
            return [one["status"] for one in status.get("conditions", ())] == ["True"]

        await eventually(enforced, within_s=60)
        drained = {"machineRef": name, "operationKind": "HostReboot"}
        await admin.create(OPERATIONS, operation("drained", drained))

        async def blocked() -> bool:
            status = (await admin.get(f"{OPERATIONS}/drained")).get("status", {})
            text = status.get("message", "")
            return "default/kept is blocked" in text and "PodDisruptionBudget default/keeps" in text

        await eventually(blocked, within_s=60)
        pods = (await admin.get("/api/v1/namespaces/default/pods"))["items"]
        assert [one["metadata"]["name"] for one in pods] == ["kept"]
        node = await admin.get(f"/api/v1/nodes/{name}")
        assert node["spec"]["unschedulable"]
        status = (await admin.get(f"{OURS}/machinedisruptionbudgets/one"))["status"]
        assert [one["machine"] for one in status["grants"]] == [name]
        await admin.ask("DELETE", f"{BUDGETS}/keeps")
        done = await ended(admin, "drained")
        assert done["status"]["phase"] == "Complete", done["status"]
        assert (await admin.get("/api/v1/namespaces/default/pods"))["items"] == []
        await admin.merge(f"/api/v1/nodes/{name}/status", {"status": {"nodeInfo": {"bootID": "second"}}})

        async def returned() -> bool:
            node = await admin.get(f"/api/v1/nodes/{name}")
            states = {one["status"] for one in node["status"]["conditions"] if one["type"] != "Ready"}
            record = (await admin.get(f"{OURS}/machines/{name}"))["status"].get("disruption")
            status = (await admin.get(f"{OURS}/machinedisruptionbudgets/one"))["status"]
            ended = record is None and not status.get("grants")
            return ended and "unschedulable" not in node["spec"] and states == {"False"}

        await eventually(returned, within_s=60)
    assert refused == []


@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
async def test_kubectl_drain_beside_a_drained_reboot_keeps_its_cordon(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    async with LabBmc(boot_s=0.2, shutdown_s=0.2) as bmc, controllers(server):
        await admin.create("/api/v1/namespaces/unbounded-kube/secrets", secret(bmc))
        (machine,) = machines(bmc)
        await admin.create(f"{OURS}/machines", machine)
        name = machine["metadata"]["name"]
        await with_pods(admin, name)
        command = (KUBECTL or "", "--kubeconfig", str(server.kubeconfig_path), "drain", name, "--timeout=120s")
        pipe = asyncio.subprocess.PIPE
        draining = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe)

        async def cordoned() -> bool:
            return (await admin.get(f"/api/v1/nodes/{name}"))["spec"].get("unschedulable") is True

        await eventually(cordoned, within_s=60)
        spec = {"machineRef": name, "operationKind": "HostReboot", "drain": {"mode": "Always"}}
        await admin.create(OPERATIONS, operation("drained", spec))

        async def blocked() -> bool:
            status = (await admin.get(f"{OPERATIONS}/drained")).get("status", {})
            return "PodDisruptionBudget default/keeps" in status.get("message", "")

        await eventually(blocked, within_s=60)
        assert draining.returncode is None
        await admin.ask("DELETE", f"{BUDGETS}/keeps")
        said, errors = await draining.communicate()
        assert draining.returncode == 0, errors
        assert f"node/{name} drained" in said.decode()
        done = await ended(admin, "drained")
        assert done["status"]["phase"] == "Complete", done["status"]
        await admin.merge(f"/api/v1/nodes/{name}/status", {"status": {"nodeInfo": {"bootID": "second"}}})

        async def returned() -> bool:
            return (await admin.get(f"{OURS}/machines/{name}"))["status"].get("disruption") is None

        await eventually(returned, within_s=60)
        assert await cordoned()


class QuickInstaller(FakeInstaller):
    def of(self, uid: str) -> FakeInstalls:
        return self.hosts.setdefault(uid, FakeInstalls(takes_s=0.2, reset_takes_s=0.1))


@asynccontextmanager
async def setting_up(server: ApiServer, told: list[str]) -> AsyncIterator[None]:
    """machina's loop over Machines as its service account, with made-up hosts."""
    async with as_account(server, "machina") as api, asyncio.TaskGroup() as group:
        known, facts = (
            machina.create_machina_caches(api),
            FactsFollower(api, api.version, root_ca_namespace="unbounded-kube"),
        )
        caches = MachineCaches(known.machines, known.nodes, known.operations, known.pause, known.versions)
        ports = Ports(
            api, FakeSsh({"10.0.0.1:22": FakeHost()}), QuickInstaller(), facts, lambda *event: told.append(event[2])
        )
        tasks = [group.create_task(facts.run()), *(group.create_task(cache.run()) for cache in known.each())]
        async with asyncio.timeout(60):
            await asyncio.gather(*(cache.synced.wait() for cache in known.each()))
        tasks.append(
            group.create_task(
                MachineController(
                    ports, caches, MachineSettings(agent_url="https://releases.example.com/a.tar.gz")
                ).run()
            )
        )
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()


async def one_to_set_up(server: ApiServer, admin: Client) -> str:
    """A Machine m1, its key, and what it joins with; the name of its token's Secret."""
    key = b64encode(b"-----BEGIN OPENSSH PRIVATE KEY-----\nx\n-----END OPENSSH PRIVATE KEY-----\n").decode()
    await admin.create(
        "/api/v1/namespaces/unbounded-kube/secrets", {"metadata": {"name": "key"}, "data": {"ssh-privatekey": key}}
    )
    token = site_token_manifest("lab", now=datetime.now(UTC), good_for=timedelta(hours=1), default=True)
    await admin.create("/api/v1/namespaces/kube-system/secrets", token)
    async with HttpApi(from_kubeconfig(server.kubeconfig_path)) as api:
        await publish_cluster_info(api, server.url, from_kubeconfig(server.kubeconfig_path).ca or b"")
    spec = {
        "ssh": {"host": "10.0.0.1", "privateKeyRef": {"name": "key", "namespace": "unbounded-kube"}},
        "kubernetes": {"nodeLabels": {"node-role.kubernetes.io/worker": ""}},
        "resetOnDelete": True,
    }
    body = {"apiVersion": "unbounded-cloud.io/v1alpha3", "kind": "Machine", "metadata": {"name": "m1"}, "spec": spec}
    await admin.create(f"{OURS}/machines", body)
    return str(token["metadata"]["name"])


async def phase(admin: Client) -> Any:
    return (await admin.get(f"{OURS}/machines/m1")).get("status", {}).get("phase")


async def until_it_is(wanted: str, admin: Client) -> None:
    async def so() -> bool:
        return bool(await phase(admin) == wanted)

    await eventually(so, within_s=60)


async def test_machina_sets_a_host_up_and_resets_it_with_its_rights(
    served: tuple[ApiServer, Client], refused: list[tuple[str, AuthAttributes]]
) -> None:
    """The keys, a default token, the facts of the cluster, the Node and its labels, and a deletion."""
    server, admin = served
    told: list[str] = []
    await one_to_set_up(server, admin)

    async def labelled() -> bool:
        named = (await admin.get(f"{OURS}/machines/m1"))["spec"]["kubernetes"].get("nodeRef")
        labels = (await admin.get("/api/v1/nodes/m1"))["metadata"].get("labels", {})
        return bool(
            await phase(admin) == "Ready" and named == {"name": "m1"} and "node-role.kubernetes.io/worker" in labels
        )

    async def gone() -> bool:
        return (await admin.ask("GET", f"{OURS}/machines/m1")).status == 404

    async with setting_up(server, told):
        await until_it_is("Joining", admin)
        await admin.create("/api/v1/nodes", {"metadata": {"name": "m1"}})
        await eventually(labelled, within_s=60)
        await admin.ask("DELETE", f"{OURS}/machines/m1")
        await eventually(gone, within_s=60)
    assert refused == []
    assert told == ["HostKeyTrusted", "Provisioned"]


async def test_machina_without_token_list_right_reports_it_and_uses_named_token(
    served: tuple[ApiServer, Client], refused: list[tuple[str, AuthAttributes]]
) -> None:
    """An administrator whose Machines all name their token may delete that binding."""
    server, admin = served
    bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/kube-system/rolebindings"
    assert (await admin.ask("DELETE", f"{bindings}/unbounded-machina-default-token")).status == 200
    token = await one_to_set_up(server, admin)
    async with setting_up(server, []), HttpApi(from_kubeconfig(server.kubeconfig_path)) as api:
        await until_it_is("Failed", admin)
        links = (await explain(api, Topic.MACHINE, "m1")).links
        assert links[0].what.startswith("Failed: default bootstrap tokens may not be read (")
        assert f'User "{ACCOUNT}machina" cannot list resource "secrets"' in links[0].what
        assert links[0].held_by == "condition Provisioning=False (TokenForbidden)"
        name_it, restore = commands(links[:1])
        assert restore == "kubectl unbounded install"
        await typed(api, name_it.replace("bootstrap-token-ID", token))
        await until_it_is("Joining", admin)
    assert {(who.removeprefix(ACCOUNT), asked.verb, asked.resource, asked.namespace) for who, asked in refused} == {
        ("machina", "list", "secrets", "kube-system")
    }


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
    (
        "machina",
        "GET",
        "/api/v1/namespaces/default/secrets/s",
        f'cannot get resource "secrets" {CORE} in the namespace "default"',
    ),
    (
        "machina",
        "POST",
        "/api/v1/namespaces/kube-system/secrets",
        f'cannot create resource "secrets" {CORE} in the namespace "kube-system"',
    ),
    (
        "machina",
        "GET",
        "/api/v1/namespaces/unbounded-kube/configmaps/other",
        f'cannot get resource "configmaps" {CORE} {HERE}',
    ),
    ("machina", "PUT", "/api/v1/nodes/n/status", f'cannot update resource "nodes/status" {CORE} at the cluster scope'),
    ("machina", "POST", "/api/v1/nodes", f'cannot create resource "nodes" {CORE} at the cluster scope'),
    ("machina", "POST", f"{OURS}/machines", f'cannot create resource "machines" {OF_OURS}'),
    ("machina", "DELETE", f"{OURS}/machines/m", f'cannot delete resource "machines" {OF_OURS}'),
    (
        "machina",
        "DELETE",
        f"{OURS}/machineconfigurations/c",
        f'cannot delete resource "machineconfigurations" {OF_OURS}',
    ),
    (
        "machine-ops-controller",
        "POST",
        "/api/v1/namespaces/kube-system/secrets",
        f'cannot create resource "secrets" {CORE} in the namespace "kube-system"',
    ),
    (
        "machine-ops-controller",
        "POST",
        f"{OURS}/machineoperations",
        f'cannot create resource "machineoperations" {OF_OURS}',
    ),
    (
        "machine-ops-controller",
        "PATCH",
        f"{OURS}/machineoperationcredentials/c",
        f'cannot patch resource "machineoperationcredentials" {OF_OURS}',
    ),
    ("machine-ops-controller", "GET", "/api/v1/nodes", f'cannot list resource "nodes" {CORE} at the cluster scope'),
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
    (
        "metalman",
        "GET",
        "/api/v1/namespaces/kube-system/secrets",
        f'cannot list resource "secrets" {CORE} in the namespace "kube-system"',
    ),
    (
        "metalman",
        "PATCH",
        "/api/v1/namespaces/kube-system/secrets/bootstrap-token-abcdef",
        f'cannot patch resource "secrets" {CORE} in the namespace "kube-system"',
    ),
    (
        "metalman",
        "POST",
        "/api/v1/namespaces/default/secrets",
        f'cannot create resource "secrets" {CORE} in the namespace "default"',
    ),
    (
        "metalman",
        "GET",
        "/api/v1/namespaces/kube-public/configmaps/other",
        f'cannot get resource "configmaps" {CORE} in the namespace "kube-public"',
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


@pytest.mark.parametrize("name", ["machina", "machine-ops-controller", "metalman"])
async def test_a_token_of_its_own_gives_a_controller_no_more_than_that(
    name: str, served: tuple[ApiServer, Client]
) -> None:
    server, _ = served
    async with as_account(server, name) as api:
        await api.list(MACHINES)
        with pytest.raises(Forbidden, match=f'User "{ACCOUNT}{name}" cannot list resource "secrets" in API group ""'):
            await api.list(SECRETS, namespace="unbounded-kube")


@pytest.mark.parametrize(
    ("namespace", "name", "code", "words"),
    [
        ("unbounded-kube", "metalman-netboot", 201, ""),
        (
            "unbounded-kube",
            "another",
            403,
            "metalman may create and delete Secrets in kube-system only, except for its own key",
        ),
        (
            "unbounded-kube",
            "",
            403,
            "metalman may create and delete Secrets in kube-system only, except for its own key",
        ),
        ("kube-system", "metalman-netboot", 403, "metalman may create and delete bootstrap tokens only"),
        ("default", "metalman-netboot", 403, "cannot create resource"),
    ],
)
async def test_metalman_makes_its_own_key_and_tokens_and_no_other_secret(
    namespace: str, name: str, code: int, words: str, served: tuple[ApiServer, Client]
) -> None:
    _, admin = served
    body: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": {"key": "AA=="}}
    body["metadata"] = {"name": name} if name else {"generateName": "metalman-netboot"}
    headers = {"Impersonate-User": f"{ACCOUNT}metalman"}
    answer = await admin.ask("POST", f"/api/v1/namespaces/{namespace}/secrets", body, headers=headers)
    assert (answer.status, words in answer.text) == (code, True), answer.text


MAY_PATCH: Final = [{"apiGroups": [""], "resources": ["secrets"], "resourceNames": ["bmc"], "verbs": ["get", "patch"]}]


async def test_metalman_changes_a_password_by_its_rotation_alone(served: tuple[ApiServer, Client]) -> None:
    _, admin = served
    rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/unbounded-kube"
    bmc, headers = "/api/v1/namespaces/unbounded-kube/secrets/bmc", {"Content-Type": "application/merge-patch+json"}
    acting = {**headers, "Impersonate-User": f"{ACCOUNT}metalman"}
    secret = {"metadata": {"name": "bmc"}, "data": {"password": "MQ==", "user": "eA=="}}
    await admin.create("/api/v1/namespaces/unbounded-kube/secrets", secret)
    stored = {"data": {"password-next": "Mg=="}}
    assert (await admin.ask("PATCH", bmc, stored, headers=acting)).status == 403, "without a grant"
    await admin.create(f"{rbac}/roles", {"metadata": {"name": "bmc"}, "rules": MAY_PATCH})
    subjects = [{"kind": "ServiceAccount", "name": "metalman", "namespace": "unbounded-kube"}]
    reference = {"kind": "Role", "name": "bmc", "apiGroup": "rbac.authorization.k8s.io"}
    bound = {"metadata": {"name": "bmc"}, "roleRef": reference, "subjects": subjects}
    await admin.create(f"{rbac}/rolebindings", bound)

    async def change(**data: str | None) -> bool:
        body = {"data": {key.replace("_", "-"): value for key, value in data.items()}}
        answer = await admin.ask("PATCH", bmc, body, headers=acting)
        assert answer.status == 200 or "denied request: metalman may" in answer.text, answer.text
        return answer.status == 200

    assert not await change(password="Mg==")
    assert not await change(password=None)
    assert not await change(other="Mg==")
    assert not await change(user=None)
    assert await change(password_next="Mg==")
    assert not await change(password_next="Mw==")
    assert not await change(password="Mw==", password_next=None)
    assert not await change(user="Mg==")
    assert await change(password="Mg==", password_next=None)
    assert await change(password_next="NA==")
    assert await change(password_next=None)
    assert (await admin.ask("GET", bmc)).json()["data"] == {"password": "Mg==", "user": "eA=="}
