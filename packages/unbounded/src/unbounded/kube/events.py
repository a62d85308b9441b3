"""Events for users, as `kubectl describe` shows them: never in the way, equal ones counted, all of it bounded."""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from sys import intern
from typing import Any, Final, NamedTuple

from unbounded.api.configuration import MACHINE_CONFIGURATIONS, MachineConfiguration
from unbounded.api.container_cloud.cluster import (
    CLUSTER_RELEASES,
    CLUSTERS,
    MACHINE_POOLS,
    Cluster,
    ClusterRelease,
    MachinePool,
)
from unbounded.api.container_cloud.host import (
    BARE_METAL_HOST_CREDENTIALS,
    BARE_METAL_HOST_PROFILES,
    BARE_METAL_HOSTS,
    BareMetalHost,
    BareMetalHostCredential,
    BareMetalHostProfile,
)
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES, ContainerCloudMachine
from unbounded.api.container_cloud.network import L2_TEMPLATES, SUBNETS, L2Template, Subnet
from unbounded.api.core import EVENTS, ObjectReference
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.api import Api, ApiError, NotFound, identify
from unbounded.kube.clock import WallClock, rfc3339, utc_now
from unbounded.kube.logs import Log
from unbounded.kube.metrics import ControllerMetrics

MAX_PENDING: Final = 1000  # different events that wait to be written; beyond it the newest is given up
MAX_REMEMBERED: Final = 4096  # written events whose count can still be raised
WRITE_INTERVAL_S: Final = 0.1  # pause after each write: ten a second at most
ATTEMPTS: Final = 3
MESSAGE_CHARACTERS: Final = 1024  # kube-apiserver's limit
CLUSTER_SCOPED: Final = "default"  # the namespace in which clients search for Events of cluster-scoped objects

EventSubject = (
    MachineOperation
    | Machine
    | MachineConfiguration
    | ContainerCloudMachine
    | BareMetalHost
    | BareMetalHostCredential
    | BareMetalHostProfile
    | Cluster
    | ClusterRelease
    | MachinePool
    | L2Template
    | Subnet
)
_KINDS: Final[Mapping[type[EventSubject], Kind[Any]]] = {
    MachineOperation: MACHINE_OPERATIONS,
    Machine: MACHINES,
    MachineConfiguration: MACHINE_CONFIGURATIONS,
    ContainerCloudMachine: CONTAINER_CLOUD_MACHINES,
    BareMetalHost: BARE_METAL_HOSTS,
    BareMetalHostCredential: BARE_METAL_HOST_CREDENTIALS,
    BareMetalHostProfile: BARE_METAL_HOST_PROFILES,
    Cluster: CLUSTERS,
    ClusterRelease: CLUSTER_RELEASES,
    MachinePool: MACHINE_POOLS,
    L2Template: L2_TEMPLATES,
    Subnet: SUBNETS,
}
EventSink = Callable[[MachineOperation | Machine, str, str, str], None]
"""A function that creates an Event: (object, Normal or Warning, reason, message)."""
AnyEventSink = Callable[[EventSubject, str, str, str], None]
"""The same, for all kinds that have Events."""

log = Log(__name__)


class _EventKey(NamedTuple):
    """The parts that make two events equal."""

    namespace: str  # of the object; empty for cluster-scoped kinds
    uid: str
    name: str
    kind: str
    api_version: str
    type: str
    reason: str
    message: str

    @property
    def event_namespace(self) -> str:
        """The namespace of the Event."""
        return self.namespace or CLUSTER_SCOPED

    def event_name(self, number: int) -> str:
        """Return the name of the Event with this number."""
        return f"{self.name}.{number:016x}"


@dataclass(slots=True)
class _PendingEvent:
    count: int
    first: str
    last: str


@dataclass(slots=True)
class _WrittenEvent:
    number: int  # the end of its name
    count: int


def object_reference(kind: Kind[Any], item: object) -> ObjectReference:
    """Return the reference of an event to its object."""
    identity = identify(item)
    return ObjectReference(
        api_version=kind.api_version,
        kind=kind.kind,
        name=identity.key.name,
        namespace=identity.key.namespace or None,
        uid=identity.uid,
    )


class EventRecorder:
    """Takes events without ever waiting; `run` writes them. What cannot be written is dropped and counted."""

    def __init__(
        self, api: Api, component: str, *, now: WallClock = utc_now, metrics: ControllerMetrics | None = None
    ) -> None:
        self._api = api
        self._component = component
        self._now = now
        self._dropped = (metrics or ControllerMetrics()).events_dropped
        self._waiting: OrderedDict[_EventKey, _PendingEvent] = OrderedDict()
        self._written: OrderedDict[_EventKey, _WrittenEvent] = OrderedDict()
        self._some = asyncio.Event()

    def event(self, about: ObjectReference, type: str, reason: str, message: str) -> None:  # Kubernetes' word
        """Record that something happened to an object.

        Args:
            type: "Normal" or "Warning".
            reason: CamelCase, for programs.
            message: for people.
        """
        what = _EventKey(
            namespace=intern(about.namespace or ""),  # each version of an object has its own texts
            uid=intern(about.uid or ""),
            name=intern(about.name),
            kind=about.kind,
            api_version=about.api_version,
            type=type,
            reason=reason,
            message=intern(message[:MESSAGE_CHARACTERS]),
        )
        at = rfc3339(self._now())
        waiting = self._waiting.get(what)
        if waiting is not None:
            waiting.count += 1
            waiting.last = at
        elif len(self._waiting) >= MAX_PENDING:
            self._dropped.inc()
        else:
            self._waiting[what] = _PendingEvent(1, at, at)
            self._some.set()

    async def run(self) -> None:
        """Write events until cancelled."""
        while True:
            while not self._waiting:
                self._some.clear()
                await self._some.wait()
            what, waiting = self._waiting.popitem(last=False)
            await self._write_or_drop(what, waiting)
            await asyncio.sleep(WRITE_INTERVAL_S)

    async def _write_or_drop(self, what: _EventKey, waiting: _PendingEvent) -> None:
        for attempt in range(ATTEMPTS):
            try:
                await self._write(what, waiting)
            except ApiError as error:
                log.debug("cannot write event", reason=what.reason, about=what.name, error=str(error))
                await asyncio.sleep(2.0**attempt)
            else:
                return
        self._dropped.inc()

    async def _write(self, what: _EventKey, waiting: _PendingEvent) -> None:
        """Raise the count of an equal event, or create one."""
        written = self._written.get(what)
        if written is not None:
            patch = {"count": written.count + waiting.count, "lastTimestamp": waiting.last}
            try:
                await self._api.patch(EVENTS, what.event_name(written.number), patch, namespace=what.event_namespace)
            except NotFound:  # events are kept for an hour
                del self._written[what]
            else:
                written.count += waiting.count
                self._written.move_to_end(what)
                return
        number = random.getrandbits(64)  # has to differ, not to be secret
        body = self._body(what.event_name(number), what, waiting)
        await self._api.create(EVENTS, body, namespace=what.event_namespace)
        self._written[what] = _WrittenEvent(number, waiting.count)
        if len(self._written) > MAX_REMEMBERED:
            self._written.popitem(last=False)

    def _body(self, name: str, what: _EventKey, waiting: _PendingEvent) -> dict[str, Any]:
        about = {
            "apiVersion": what.api_version,
            "kind": what.kind,
            "name": what.name,
            "uid": what.uid,
        }
        if what.namespace:
            about["namespace"] = what.namespace
        return {
            "metadata": {"name": name, "namespace": what.event_namespace},
            "involvedObject": about,
            "type": what.type,
            "reason": what.reason,
            "message": what.message,
            "count": waiting.count,
            "firstTimestamp": waiting.first,
            "lastTimestamp": waiting.last,
            "source": {"component": self._component},
            "reportingComponent": self._component,
        }


def no_events(_about: EventSubject, _type: str, _reason: str, _message: str) -> None:
    """Create no Event."""


def event_sink(events: EventRecorder | None) -> AnyEventSink:
    """Return a function that creates Events through the process's recorder; one without effect where there is none."""
    if events is None:
        return no_events

    def emit(about: EventSubject, type_: str, reason: str, message: str) -> None:
        events.event(object_reference(_KINDS[type(about)], about), type_, reason, message)

    return emit
