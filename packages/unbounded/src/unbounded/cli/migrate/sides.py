"""The two sides of a migration, and the observation of the target before anything is written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from unbounded.agent.cluster_access import ClusterAccess
from unbounded.api.core import CONFIG_MAPS, NAMESPACES, SERVICES
from unbounded.api.crd import custom_resource_definitions
from unbounded.api.meta import Kind
from unbounded.cli.definitions import install_definitions
from unbounded.cli.deploy import components
from unbounded.cli.deploy.pods import namespace
from unbounded.cli.deploy.server_side_apply import Applier, ApplyOutcome
from unbounded.cli.manifests import install_manifests
from unbounded.cli.migrate.copier import read_objects
from unbounded.cli.migrate.copy_plan import ServerObjects
from unbounded.cli.migrate.lease_hold import leaders, leaders_message
from unbounded.cli.migrate.obstacles import too_old
from unbounded.cli.migrate.record import MarkerFile, MigrationRecord, read_record
from unbounded.join.facts import (
    CLUSTER_INFO,
    CLUSTER_INFO_NAMESPACE,
    KUBE_DNS,
    KUBE_DNS_NAMESPACE,
    ROOT_CA,
    InvalidFact,
    dns_of,
    endpoint_of,
    root_ca_of,
)
from unbounded.kube.client import HttpApi
from unbounded.kube.errors import AlreadyExists, NotFound

_REVIEWS: Final[Kind[dict[str, Any]]] = Kind(
    "authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", dict
)


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
            place = endpoint_of(await self.api.get(CONFIG_MAPS, CLUSTER_INFO, namespace=CLUSTER_INFO_NAMESPACE))
            url, ca_pem = url or place.url, place.ca_pem
        except NotFound:
            try:
                ca_pem = root_ca_of(await self.api.get(CONFIG_MAPS, ROOT_CA, namespace="kube-system"))
            except NotFound as error:
                raise InvalidFact(f"the target has neither ConfigMap {CLUSTER_INFO} nor {ROOT_CA}") from error
        try:
            dns = dns_of(await self.api.get(SERVICES, KUBE_DNS, namespace=KUBE_DNS_NAMESPACE))
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
    except InvalidFact as error:
        troubles.append(str(error))
    return TargetObservation(version, record, await read_objects(target.api), access, tuple(troubles), missing)


async def _without_leases(target: MigrationTarget) -> str:
    """Return why the target cannot be held: `unbounded up` leads by the lock on its data, not by Leases."""
    if not (where := await components.running(target.api)):
        return ""
    return f"the target is {where['machina']}, whose controllers use no Lease: only a cluster can take over"


async def _lacking_rights(target: MigrationTarget) -> str:
    desired = {"spec": {"resourceAttributes": {"verb": "*", "group": "*", "resource": "*"}}}
    review = await target.api.create(_REVIEWS, desired)
    if review["status"].get("allowed"):
        return ""
    return "the user of --to lacks permissions on the target: it must write all objects, and needs cluster-admin"
