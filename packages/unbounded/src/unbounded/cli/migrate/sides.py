"""The two sides of a migration: the observation of the target before anything is written, and the obstacles.

The text of an obstacle names the object and the remedy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from unbounded.agent.cluster_access import ClusterAccess
from unbounded.api.core import CONFIG_MAPS, NAMESPACES, SECRETS, SELF_SUBJECT_ACCESS_REVIEWS, SERVICES
from unbounded.api.crd import custom_resource_definitions
from unbounded.api.machine import Machine
from unbounded.api.operation import MachineOperation
from unbounded.cli.deploy import components
from unbounded.cli.deploy.pods import namespace
from unbounded.cli.deploy.server_side_apply import Applier, ApplyOutcome
from unbounded.cli.manifests import install_definitions, install_manifests
from unbounded.cli.migrate.copier import read_objects
from unbounded.cli.migrate.copy_plan import ServerObject, ServerObjects, clashes
from unbounded.cli.migrate.lease_hold import leaders, leaders_message
from unbounded.cli.migrate.migration_record import MarkerFile, MigrationRecord, read_record
from unbounded.join import cluster_facts
from unbounded.kube.api import AlreadyExists, NotFound
from unbounded.kube.client import HttpApi

LARGEST: Final = 1_500_000  # bytes of a request, etcd's limit
OLDEST_MINOR: Final = 32
SHOWN: Final = 10  # of each kind of obstacle


@dataclass(frozen=True)
class MigrationSource:
    """The control plane to migrate.

    Args:
        name: of the data, for messages on the other side.
    """

    api: HttpApi
    marker: MarkerFile
    name: str


@dataclass(frozen=True)
class MigrationTarget:
    """The cluster to migrate to.

    Args:
        endpoint: URL of its API server for hosts; empty for what the cluster publishes.
    """

    api: HttpApi
    endpoint: str = ""

    @property
    def server(self) -> str:
        return self.api.config.server

    async def cluster(self) -> str:
        """Return the UID of its namespace kube-system, which identifies the cluster."""
        return (await self.api.get(NAMESPACES, "kube-system")).metadata.uid

    async def access(self) -> ClusterAccess:
        """Return what agents need to use it: address, CA and DNS server.

        Raises:
            InvalidFact: one of them is unknown.
        """
        url, ca_pem = self.endpoint, ""
        try:
            place = cluster_facts.endpoint_of(
                await self.api.get(
                    CONFIG_MAPS, cluster_facts.CLUSTER_INFO, namespace=cluster_facts.CLUSTER_INFO_NAMESPACE
                )
            )
            url, ca_pem = url or place.url, place.ca_pem
        except NotFound:
            try:
                ca_pem = cluster_facts.root_ca_of(
                    await self.api.get(CONFIG_MAPS, cluster_facts.ROOT_CA, namespace="kube-system")
                )
            except NotFound as error:
                raise cluster_facts.InvalidFact(
                    f"the target has neither ConfigMap {cluster_facts.CLUSTER_INFO} nor {cluster_facts.ROOT_CA}"
                ) from error
        try:
            dns = cluster_facts.dns_of(
                await self.api.get(SERVICES, cluster_facts.KUBE_DNS, namespace=cluster_facts.KUBE_DNS_NAMESPACE)
            )
        except NotFound:
            dns = ""
        return ClusterAccess((url or self.server).rstrip("/"), ca_pem, dns)

    async def prepare(self) -> None:
        """Create the namespace, the definitions, the rights and the policies."""
        await self.prepare_namespace()
        await install_definitions(self.api)
        await install_manifests(self.api)

    async def prepare_namespace(self) -> None:
        try:
            await self.api.create(NAMESPACES, namespace())
        except AlreadyExists:
            return


@dataclass(frozen=True)
class TargetObservation:
    """Observation of the target before anything is written.

    Args:
        version: of Kubernetes.
        troubles: problems that the user has to solve there first.
        missing: number of definitions that the migration creates.
    """

    version: str
    record: MigrationRecord | None
    holdings: ServerObjects
    access: ClusterAccess | None
    troubles: tuple[str, ...]
    missing: int


async def observe(target: MigrationTarget, migration: str) -> TargetObservation:
    """Read the target, and find the obstacles to a migration."""
    version, record = await target.api.version(), await read_record(target.api, migration)
    troubles = [
        words for words in (too_old(version), await _lacking_rights(target), await _without_leases(target)) if words
    ]
    missing = 0
    if not troubles:
        for change in await Applier(target.api).apply_all(custom_resource_definitions(), dry_run=True):
            missing += change.outcome is ApplyOutcome.CREATED
            if change.outcome is ApplyOutcome.CONFIGURED:
                troubles.append(
                    f"{change.what} on the target is of another version: `kubectl unbounded install` of this version "
                    "installs the right one"
                )
        if existing := await leaders(target.api, migration):
            troubles.append(leaders_message(existing))
    access = None
    try:
        access = await target.access()
    except cluster_facts.InvalidFact as error:
        troubles.append(str(error))
    return TargetObservation(version, record, await read_objects(target.api), access, tuple(troubles), missing)


async def _without_leases(target: MigrationTarget) -> str:
    """Return why the target cannot be held: `unbounded up` leads by the lock on its data, not by Leases."""
    if not (where := await components.running(target.api)):
        return ""
    return f"the target is {where['machina']}, whose controllers use no Lease: only a cluster can take over"


async def _lacking_rights(target: MigrationTarget) -> str:
    desired = {"spec": {"resourceAttributes": {"verb": "*", "group": "*", "resource": "*"}}}
    review = await target.api.create(SELF_SUBJECT_ACCESS_REVIEWS, desired)
    if review["status"].get("allowed"):
        return ""
    return "the user of --to lacks permissions on the target: it must write all objects, and needs cluster-admin"


def obstacles(source: ServerObjects, target: ServerObjects, migration: str) -> tuple[str, ...]:
    """Return the problems that the user has to solve first; nothing where the copy can be made."""
    return (
        *running(source),
        *_limited([_being_deleted(one) for one in source.copied if "deletionTimestamp" in one.body["metadata"]]),
        *_limited([_too_large(one) for one in source.copied if _size(one) > LARGEST]),
        *_limited([_clash(one) for one in clashes(source, target, migration)]),
    )


def running(source: ServerObjects) -> tuple[str, ...]:
    """Return operations that run on the source, and Machines that are occupied otherwise."""
    operations = source.operations()
    terminal = {one.metadata.uid for one in operations if one.terminal}
    return _limited(
        [
            *(_running(one) for one in operations if one.claimed and not one.terminal),
            *_locked_machines(source.machines(), terminal, {one.metadata.uid for one in operations}),
        ]
    )


def _locked_machines(machines: tuple[Machine, ...], terminal: set[str], known: set[str]) -> Iterator[str]:
    """Yield Machines that are locked without a MachineOperation, which is reported by itself."""
    for machine in machines:
        active = machine.status.active_operation
        if active is not None and not active.lost and active.uid not in terminal and active.uid not in known:
            yield f"Machine {machine.name}: {active.kind} {active.name} ({active.executor}) is in progress; {_WAIT}"


_WAIT: Final = "start `unbounded up` again and wait for its end"


def _running(operation: MachineOperation) -> str:
    stage = operation.status.targets[0].stage if operation.status.targets else None
    where = f" ({stage})" if stage else ""
    return (
        f"MachineOperation {operation.name}: {operation.spec.operation_kind} of "
        f"{operation.spec.machine_ref or 'several Machines'} is in progress{where}; {_WAIT}"
    )


def _being_deleted(one: ServerObject) -> str:
    return f"{one.shown} is being deleted, and a deletion cannot be copied; {_WAIT}"


def _size(one: ServerObject) -> int:
    return len(msgspec.json.encode(one.body))


def _too_large(one: ServerObject) -> str:
    return f"{one.shown} has {_size(one):,} bytes; the limit of a cluster is {LARGEST:,}: make it smaller"


def _clash(existing: ServerObject) -> str:
    remedy = "delete it there, or rename it" if existing.kind.kind != SECRETS.kind else "delete it there"
    return f"{existing.shown} exists on the target already, and differs: {remedy}"


def _limited(words: list[str]) -> tuple[str, ...]:
    more = len(words) - SHOWN
    return (*words[:SHOWN], *([f"… and {more} more of this kind"] if more > 0 else ()))


def too_old(version: str) -> str:
    """Return why a version of Kubernetes is unsuitable; empty where it is suitable."""
    try:
        major, minor = (int(part) for part in version.lstrip("v").split(".")[:2])
    except ValueError:
        return f"the target reports {version!r}, which is not a version of Kubernetes"
    if (major, minor) >= (1, OLDEST_MINOR):
        return ""
    return f"the target is Kubernetes {version}; the oldest supported version is 1.{OLDEST_MINOR}"
