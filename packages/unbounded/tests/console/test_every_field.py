"""Attacking texts in each field and each name that a view draws, in Chromium: they are shown, and never run."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest
from msgspec.structs import replace
from playwright.async_api import Browser

from tests.console.browser import CHROMIUM, tab
from tests.console.every_field import NAME, NOW, FieldTexts, Raw, drawn_texts, is_attack
from tests.console.hostile import check_texts
from tests.console.running import console
from tests.support.embedded_server import install_crds
from unbounded.api.conditions import ConditionType
from unbounded.api.configuration import MACHINE_CONFIGURATIONS
from unbounded.api.container_cloud.cluster import CLUSTERS, MACHINE_POOLS, ClusterConditionType
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES
from unbounded.api.container_cloud.names import LABEL_CLUSTER
from unbounded.api.core import LEASES, NODES, SECRETS
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind, ObjectMeta
from unbounded.api.names import (
    ANNOTATION_PAUSED,
    LABEL_DEFAULT_BOOTSTRAP_TOKEN,
    LABEL_SITE,
    LEASE_SUPERVISOR,
    NAMESPACE,
)
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli.manifests import install_container_cloud
from unbounded.cli.servers import api_server
from unbounded.console import urls
from unbounded.console.compaction import compaction_of
from unbounded.console.models.fleet import FleetFilter, FleetIndex
from unbounded.console.models.hosts import ContainerCloud, cluster_view, host_view, hosts_view
from unbounded.console.models.leaders import SiteProcesses
from unbounded.console.models.machine import machine_view
from unbounded.console.models.operation import operation_view
from unbounded.console.models.parts import BlockerChain, FactList, ViewData, ViewTable, known
from unbounded.console.models.rollouts import rollouts_view
from unbounded.console.models.site import DefaultTokens, SiteToken, lease_names, site_view
from unbounded.containercloud.hosts.model import CONDITION_AVAILABLE
from unbounded.explain.chain import explain
from unbounded.explain.facts import ExplainFacts, procedure_of
from unbounded.explain.facts_reader import FactsReader, leader_lease
from unbounded.explain.links import Topic
from unbounded.explain.results import Explanation
from unbounded.explain.tree import tree_of
from unbounded.join.bootstrap_tokens import NAMESPACE as TOKENS
from unbounded.kube.client import HttpApi
from unbounded.kube.clock import utc_now
from unbounded.kube.config import from_kubeconfig
from unbounded_apiserver import metadata
from unbounded_apiserver.server import ApiServer

T = TypeVar("T")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed: scripts/browser-tools"),
]
# names that the server accepts: explanations and trees are of such objects alone
PLAIN: Final = "plain"
REPORTED: Final = "reported"  # a Machine whose hardware its agent alone has reported
KINDS: Final[tuple[Kind[Any], ...]] = (
    *(NODES, MACHINE_OPERATIONS, MACHINE_CONFIGURATIONS, MACHINE_DISRUPTION_BUDGETS),
    *(BARE_METAL_HOSTS, CLUSTERS, MACHINE_POOLS, CONTAINER_CLOUD_MACHINES),
)
EXPLAINED: Final = (
    *(urls.machine(PLAIN), urls.machine(REPORTED), urls.operation(PLAIN)),
    *(urls.host(PLAIN, PLAIN), urls.cluster(PLAIN, PLAIN)),
)
# fields whose values no writer chooses freely, or that lead from one object to the others of its set
FIXED: Final[Mapping[str, Any]] = {
    "owner_references": [],  # an owner that does not exist has the object deleted
    "finalizers": [],
    "operation_kind": "HostReboot",
    "ConsumerReference.kind": CONTAINER_CLOUD_MACHINES.kind,
    "ConsumerReference.api_version": CONTAINER_CLOUD_MACHINES.api_version,
    "deletion_timestamp": None,
}


@asynccontextmanager
async def served(data: Path) -> AsyncIterator[tuple[ApiServer, HttpApi]]:
    """Run an API server in this loop, so that its store can be written."""
    server = api_server(data)
    await server.start()
    try:
        await install_crds(server.kubeconfig_path)
        async with HttpApi(from_kubeconfig(server.kubeconfig_path)) as api:
            await install_container_cloud(api)
            yield server, api
    finally:
        await server.stop()


async def store(server: ApiServer, kind: Kind[Any], body: Raw) -> None:
    """Store an object that the server would refuse."""
    meta = body["metadata"]
    resource = f"{kind.plural}.{kind.group}" if kind.group else kind.plural
    key = f"{meta['namespace']}/{meta['name']}" if kind.namespaced else meta["name"]
    await server.core.store.write(resource, key, partial(metadata.encode, body))


def attacking_objects(name: str) -> Iterator[tuple[Kind[Any], Raw]]:
    """Yield an object of each kind, all of one name, that refer to one another."""
    reference = {"name": name}
    refs = {"machine_ref": name, "node_ref": reference, "configuration_ref": reference, "disruption_budgets": [name]}
    texts = FieldTexts({**FIXED, **refs})
    labels = {LABEL_SITE: NAME, LABEL_CLUSTER: name, f"{NAME} key": f"{NAME} value"}
    common = {"uid": f"uid of {name}", "labels": labels, "annotations": {ANNOTATION_PAUSED: f"{NAME} pause"}}
    machine = texts.object_of(MACHINES, {"name": name, **common})
    status = machine["status"]
    status["conditions"] += [{**status["conditions"][0], "type": str(one), "status": "False"} for one in ConditionType]
    status["netboot"]["boot"] = status["activeOperation"]["uid"]
    yield MACHINES, machine
    if name == PLAIN:
        metadata = {**machine["metadata"], "name": REPORTED, "uid": f"uid of {REPORTED}"}
        rest = {key: value for key, value in status.items() if key != "hardware"}
        yield MACHINES, {**machine, "metadata": metadata, "status": rest}
    for kind in KINDS:
        body = texts.object_of(kind, {"name": name, **({"namespace": name} if kind.namespaced else {}), **common})
        if kind == BARE_METAL_HOSTS:
            found = body["status"]["conditions"]
            found.append({**found[0], "type": CONDITION_AVAILABLE, "status": "False"})
        elif kind == CLUSTERS:
            found = body["status"]["providerStatus"]["conditions"]
            found.append({**found[0], "type": str(ClusterConditionType.NODES), "ready": False})
        yield kind, body
    parent = texts.object_of(MACHINE_OPERATIONS, {"name": f"{NAME} on {name}", **common})
    del parent["spec"]["machineRef"]
    yield MACHINE_OPERATIONS, parent


def attacking_processes() -> Iterator[tuple[Kind[Any], Raw]]:
    """Yield the Lease of a boot server, and a bootstrap token."""
    spec = {"holderIdentity": f"{NAME} holder", "renewTime": NOW}
    (lease_name,) = lease_names(NAME) - {LEASE_SUPERVISOR}
    lease = {"metadata": {"name": lease_name, "namespace": NAMESPACE, "uid": "lease"}, "spec": spec}
    yield LEASES, {"apiVersion": LEASES.api_version, "kind": LEASES.kind, **lease}
    labels = {LABEL_SITE: NAME, LABEL_DEFAULT_BOOTSTRAP_TOKEN: "true"}
    token = {"metadata": {"name": f"bootstrap-token-{NAME}", "namespace": TOKENS, "uid": "token", "labels": labels}}
    yield SECRETS, {"apiVersion": "v1", "kind": "Secret", **token, "type": "bootstrap.kubernetes.io/token", "data": {}}


@dataclass(frozen=True)
class Drawn:
    """The data of all views, as the console derives them from the same objects."""

    views: Mapping[str, ViewData]

    def texts(self) -> Iterator[tuple[str, list[str]]]:
        """Yield the address of each view, and the attacking texts that it draws."""
        for path, view in self.views.items():
            yield path, [text for text in drawn_texts(view) if is_attack(text)]

    def explained(self) -> dict[str, bool]:
        """Return the addresses of views with an explanation, and whether that has an attacking text."""
        chains = {
            path: part
            for path, view in self.views.items()
            for part in view.sections
            if isinstance(part, BlockerChain) and part.steps
        }
        return {path: any(map(is_attack, drawn_texts(part))) for path, part in chains.items()}

    def columns_without_attack(self) -> dict[str, str]:
        """Return, by view and section, the facts and columns in which no view has an attacking text."""
        calm, attacked = set[tuple[str, str]](), set[tuple[str, str]]()
        for view in self.views.values():
            for section, head, text in _cells(view):
                (attacked if is_attack(text) else calm).add((section, head))
        found: dict[str, str] = {}
        for section, head in sorted(calm - attacked):
            found[section] = ", ".join(filter(None, (found.get(section), head)))
        return found


def _cells(view: ViewData) -> Iterator[tuple[str, str, str]]:
    """Yield view and section, name of a fact or head of a column, and text of each cell."""
    subject = view.title.partition(" ")[0]
    for part in view.sections:
        section = f"{subject}: {part.title}"
        if isinstance(part, FactList):
            for name, value in part.facts:
                yield section, name, value.text
        elif isinstance(part, ViewTable):
            for row in part.rows:
                for head, cell in zip(part.heads, row, strict=True):
                    yield section, head, cell.text


async def views_of(api: HttpApi) -> Drawn:
    """Return the data of each view of the objects that are there."""

    async def every(kind: Kind[T]) -> tuple[T, ...]:
        return (await api.list(kind)).items

    machines, operations = await every(MACHINES), await every(MACHINE_OPERATIONS)
    found = ContainerCloud(
        await every(BARE_METAL_HOSTS),
        await every(CLUSTERS),
        await every(MACHINE_POOLS),
        await every(CONTAINER_CLOUD_MACHINES),
    )
    leases = {one.metadata.name: leader_lease(one) for one in (await api.list(LEASES, namespace=NAMESPACE)).items}
    tokens = DefaultTokens((SiteToken(f"bootstrap-token-{NAME}", None),))
    views = {
        urls.ROLLOUTS: rollouts_view(
            await every(MACHINE_CONFIGURATIONS), operations, await every(MACHINE_DISRUPTION_BUDGETS), machines
        ),
        urls.site(NAME): site_view(
            NAME, machines, SiteProcesses(ExplainFacts(leader_leases=leases)), tokens, utc_now()
        ),
        urls.HOSTS: hosts_view(found),
    }
    for machine in machines:
        views[urls.machine(machine.name)] = await _machine_view(api, machine)
    by_name = {one.name: one for one in machines}
    for operation in operations:
        execution, target = operation.status.execution, by_name.get(operation.spec.machine_ref or "")
        procedure = procedure_of(operation, "" if execution is None else execution.executor, target)
        explanation = await _explanation(api, Topic.OPERATION, operation.metadata)
        views[urls.operation(operation.name)] = operation_view(operation, procedure, explanation, utc_now(), target)
    for host in known(found.hosts):
        meta = host.metadata
        explanation = await _explanation(api, Topic.HOST, meta)
        tree = tree_of(host, await FactsReader(api).related(host)) if explanation else None
        views[urls.host(meta.namespace or "", host.name)] = host_view(host, tree, explanation)
    for cluster in known(found.clusters):
        meta = cluster.metadata
        explanation = await _explanation(api, Topic.CLUSTER, meta)
        views[urls.cluster(meta.namespace or "", cluster.name)] = cluster_view(cluster, found, explanation)
    return Drawn(views)


async def _explanation(api: HttpApi, topic: Topic, meta: ObjectMeta) -> Explanation | None:
    """Return the explanation of an object; None of one whose name no selector can have."""
    if NAME in meta.name:
        return None
    return await explain(api, topic, meta.name, namespace=meta.namespace or "", is_late=lambda _lease: False)


async def _machine_view(api: HttpApi, machine: Machine) -> ViewData:
    """Return the view of a Machine: of one whose name no selector can have, without what needs a watch of its own."""
    name = machine.name
    if name == NAME:
        live = compaction_of(MACHINES)(machine)
        return machine_view(replace(live, status=replace(live.status, hardware=None)), None, None)
    explanation = await _explanation(api, Topic.MACHINE, machine.metadata)
    around = await FactsReader(api).related(machine)
    return machine_view(machine, tree_of(machine, around), explanation, around.nodes.get(name))


# facts and columns of numbers, of times, and of words that the program or a definition has: no free text is in them
WITHOUT_TEXT: Final = {
    "Cluster: Conditions": "Ready",
    "Cluster: Machines": "Stage, Status",
    "Cluster: Pools": "Desired, Members, Ready",
    "Cluster: State": "Machines, Maintenance",
    "Host: Conditions": "Since, Status",
    "Host: Disks": "Size",
    "Host: State": "Boot mode, Changed, Desired power, Memory, Operational, Power, State",
    "HostReboot: Attempts": "Answer, Attempt, Ended, Sent",
    "HostReboot: Erased disks": "Size, State",
    "HostReboot: Evidence": "After, Time",
    "HostReboot: Last call": "Attempt, Earlier call, Read, Sent",
    "HostReboot: Losses": "Security",
    "HostReboot: Machines": "Completed, Phase, Retry, Spent, Started",
    "HostReboot: Stages of the rollout": "Completed, Failed, Machines, Phase",
    "HostReboot: State": "Abandon, Cancel, Completed, Created, Paused, Phase, Spent, Started",
    "Hosts: Clusters": "Machines, Maintenance, Ready, Ready Machines",
    "Hosts: Hosts": "Online, Operational, State",
    "Hosts: Pools": "Desired, Members, Ready",
    "Machine: BMC": "Power, State",
    "Machine: Conditions of the Node": "Since",
    "Machine: Conditions": "Since, Status",
    "Machine: Disks": "Size",
    "Machine: Hardware": "CPUs, Inspected, Memory, Secure Boot, TPM",
    "Machine: History": "Completed, Started",
    "Machine: Last network boot": "Image written, Milestone, Reached",
    "Machine: Network interfaces": "Link",
    "Machine: Node": "Created, Name, Scheduling",
    "Machine: State": "Agent's work, Created, Phase, Reboot",
    "Rollouts: Budgets": "Allowed now, Granted",
    "Rollouts: Disruptions in progress": "Pods left, Since, Stage",
    "Rollouts: Groups of budgets": "Allowed, Granted, Machines, Unavailable",
    "Rollouts: Holders of budgets": "Since",
    "Rollouts: Operations on several Machines": "Complete, Failed, In progress, Kind, Machines, Phase",
    "Rollouts: Rolling updates": "Outdated, Phase, Prepared, Updated, Version",
    "Rollouts: Stages": "Completed, Failed, Machines, Paused, Phase",
    "Site: BMCs": "Parts, State",
    "Site: Boot servers and controllers": "Last renewed, State",
    "Site: Boots by milestone": "Machines, Milestone",
    "Site: Boots in progress": "Image written, Loads, Milestone, Reached",
    "Site: Default bootstrap tokens": "Expires, Left",
    "Site: Images": "Architecture, Machines",
    "Site: Machines": "All, Booting, Pending",
}


async def test_each_text_that_a_view_draws_is_shown_and_never_runs(browser: Browser, tmp_path: Path) -> None:
    async with (
        served(tmp_path / "server") as (server, api),
        console(server.kubeconfig_path) as own,
        tab(browser, await own.url()) as found,
    ):
        for name in (NAME, PLAIN):
            for kind, body in attacking_objects(name):
                await store(server, kind, body)
        for kind, body in attacking_processes():
            await store(server, kind, body)
        drawn = await views_of(api)
        assert drawn.columns_without_attack() == WITHOUT_TEXT
        assert drawn.explained() == dict.fromkeys(EXPLAINED, True)
        for path, expected in drawn.texts():
            assert expected, path
            await found.visit(path)
            await check_texts(found, expected, path)
        await found.visit("/")
        await check_texts(found, await fleet_texts(api), "/")


async def fleet_texts(api: HttpApi) -> list[str]:
    """Return the attacking texts in the list of the fleet."""
    index = FleetIndex()
    for machine in (await api.list(MACHINES)).items:
        index.changed(None, machine)
    for operation in (await api.list(MACHINE_OPERATIONS)).items:
        index.changed(None, operation)
    rows = index.page(FleetFilter(), 0).rows
    cells = [(one.name, one.site, one.phase, one.reason, one.operation, one.power, one.cause) for one in rows]
    return [text for row in cells for text in row if is_attack(text)]
