"""Dependencies of a site of network boot, and a request that belongs to one of its boots."""

from __future__ import annotations

from dataclasses import dataclass

from unbounded.api.machine import Machine
from unbounded.api.operation import MachineOperation
from unbounded.kube.api import Api
from unbounded.kube.cache import Cache
from unbounded.kube.clock import WallClock, utc_now
from unbounded.kube.events import EventSink, no_events
from unbounded.kube.metrics import ControllerMetrics
from unbounded.metalman.media.tickets import TicketKey
from unbounded.metalman.netboot import model
from unbounded.metalman.netboot.boot_requests import PrefixKey


@dataclass(frozen=True, slots=True)
class NetbootDependencies:
    """Dependencies of a site.

    Args:
        machines: of all sites; `site` selects, and None selects all.
        operations: indexed by INDEX_MACHINE.
        tickets: key of the tickets of virtual media.
        server: the server's own address as clients reach it, four octets.
        serve_url: URL of its HTTP server, as clients reach it.
        neighbours: returns the MAC behind an address, if clients are on the server's segment.
        allow_profile_scripts: commands of MachineProfiles may run on hosts.
    """

    api: Api
    machines: Cache[Machine]
    operations: Cache[MachineOperation]
    images: model.BootImageSource
    facts: model.TemplateContextSource
    attestation: model.Attester
    key: PrefixKey
    tickets: TicketKey
    server: bytes
    serve_url: str
    site: str | None = None
    neighbours: model.MacLookup = lambda _address: None
    announce: EventSink = no_events
    metrics: ControllerMetrics | None = None
    now: WallClock = utc_now
    allow_profile_scripts: bool = False


@dataclass(frozen=True, slots=True)
class BootVisit:
    """Request that belongs to a boot."""

    request: model.BootRequest
    machine: Machine
