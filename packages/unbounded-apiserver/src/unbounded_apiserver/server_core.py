"""The whole API without HTTP: reads, writes, deletions, and the background controllers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from unbounded_apiserver.access.default_roles import GrantedResources, default_roles, ensure_defaults
from unbounded_apiserver.access.node_authorizer import NodeRules
from unbounded_apiserver.access.rbac_authorizer import RbacAuthorizer
from unbounded_apiserver.admission.policy_index import PolicyIndex
from unbounded_apiserver.auth import AuthChain, Authorizer, MastersAuthorizer
from unbounded_apiserver.builtin_resources import NAMESPACES, NODES
from unbounded_apiserver.controllers.aggregation import RoleAggregationController
from unbounded_apiserver.controllers.certificates import CertificateController, ClusterInfoSigner, RootCaPublisher
from unbounded_apiserver.controllers.crds import DefinitionController
from unbounded_apiserver.controllers.disruption import DisruptionController
from unbounded_apiserver.controllers.expiry import EventExpiry, TokenExpiry
from unbounded_apiserver.controllers.garbage import GarbageCollector
from unbounded_apiserver.controllers.namespaces import NamespaceController
from unbounded_apiserver.controllers.nodes import DEFAULT_TIMES, NodeTimes
from unbounded_apiserver.controllers.nodes.conditions import taint_new
from unbounded_apiserver.controllers.nodes.events import ApiEventRecorder
from unbounded_apiserver.controllers.nodes.lifecycle import NodeLifecycle
from unbounded_apiserver.controllers.nodes.pods import OrphanCollector, TaintEviction
from unbounded_apiserver.controllers.policy_status import PolicyStatusController
from unbounded_apiserver.decoding import normalize
from unbounded_apiserver.deletes import Deletes
from unbounded_apiserver.options import WriteOptions
from unbounded_apiserver.pki import CertificateAuthority
from unbounded_apiserver.reads import Reads
from unbounded_apiserver.served_resources import Catalog
from unbounded_apiserver.store import Store
from unbounded_apiserver.workloads.disruption_budgets import DisruptionBudgets
from unbounded_apiserver.workloads.pod_admission import PodAdmission
from unbounded_apiserver.workloads.pods import PODS
from unbounded_apiserver.workloads.priorities import PRIORITY_CLASSES, PriorityClasses, ensure_system_classes
from unbounded_apiserver.writes import Admit, Writes

INITIAL_NAMESPACES: Final = ("default", "kube-system", "kube-public", "kube-node-lease")


def utc_now() -> datetime:
    return datetime.now(UTC)


def admission(store: Store) -> Mapping[str, Admit]:
    """Return the functions that complete new objects, by resource."""
    return {NODES.name: taint_new, PODS.name: PodAdmission(store), PRIORITY_CLASSES.name: PriorityClasses(store).admit}


class ServerCore:
    """The resources of one data directory, between `open` and `close`."""

    def __init__(
        self,
        store: Store | None = None,
        *,
        now: Callable[[], datetime] = utc_now,
        node_times: NodeTimes = DEFAULT_TIMES,
        namespaces: Sequence[str] = (),
        granted: Sequence[GrantedResources] = (),
        first_groups: Sequence[str] = (),
    ) -> None:
        self.store = store or Store()
        self.catalog = Catalog(first_groups=first_groups)
        self.reads = Reads(self.store)
        self.writes = Writes(self.store, now, admission(self.store))
        self.deletes = Deletes(self.store, self.reads, now)
        self.budgets = DisruptionBudgets(self.store)
        self.roles = RbacAuthorizer(self.store)
        self.policies = PolicyIndex(self.store, self.catalog)
        self.authorizers: tuple[Authorizer, ...] = (MastersAuthorizer(), NodeRules(self.store), self.roles)
        self.now = now
        self._certificates = CertificateController(
            self.store, self.writes, self.deletes, AuthChain((), self.authorizers), now
        )
        self._namespaces = NamespaceController(self.store, self.catalog, self.writes, self.deletes, now)
        self._root_ca = RootCaPublisher(self.store, self.writes)
        events = ApiEventRecorder(self.writes, now)
        self._controllers = (
            DefinitionController(self.store, self.catalog, self.writes, self.deletes, now),
            self._namespaces,
            GarbageCollector(self.store, self.catalog, self.writes, self.deletes),
            EventExpiry(self.store, now),
            TokenExpiry(self.store, self.deletes, now),
            ClusterInfoSigner(self.store, self.writes, now),
            PolicyStatusController(self.store, self.catalog, self.writes),
            RoleAggregationController(self.store, self.writes),
            self._certificates,
            self._root_ca,
            NodeLifecycle(self.store, self.writes, events, now, node_times),
            TaintEviction(self.store, self.writes, self.deletes, events, now),
            OrphanCollector(self.store, self.writes, self.deletes, now, node_times),
            DisruptionController(self.store, self.budgets, self.writes, now),
        )
        self._initial_namespaces = (*INITIAL_NAMESPACES, *namespaces)
        self._default_roles = default_roles(granted)
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self, directory: Path) -> None:
        """Load the data directory, serve the resources that it defines, and start the controllers.

        Raises:
            DataInUse, DataUnusable (of data_dir)
        """
        await self.store.open(directory)
        authority = CertificateAuthority(directory)
        self._certificates.authority, self._root_ca.certificate = authority, authority.certificate.decode()
        for keeper in self._controllers:
            keeper.begin()
        for name in self._initial_namespaces:
            await self._ensure_namespace(name)
            await self._namespaces.ensure_account(name)  # the first client may already need a token of this account
        await asyncio.gather(
            *(self._root_ca.ensure(name) for name in self._initial_namespaces),
            ensure_defaults(self.store, self.writes, self._default_roles),
            ensure_system_classes(self.store, self.writes),
        )
        self._tasks = [asyncio.create_task(keeper.run(), name=type(keeper).__name__) for keeper in self._controllers]

    async def close(self) -> None:
        """Stop the controllers, write what has begun, and release the data directory."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.store.close()

    async def _ensure_namespace(self, name: str) -> None:
        if self.store.get(NAMESPACES.name, name) is None:
            obj = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            normalize(NAMESPACES, obj)
            await self.writes.create_object(NAMESPACES, "", obj, WriteOptions())
