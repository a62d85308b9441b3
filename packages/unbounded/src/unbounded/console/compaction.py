"""Compaction of the objects in live data: equal parts are shared, and parts that only one view shows are left out.

The view of a Machine follows that one Machine whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from msgspec.structs import replace

from unbounded.api.core import SECRETS, Secret
from unbounded.api.hardware import BMCReading, HardwareStatus
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind
from unbounded.kube.compaction import ObjectCompaction

T = TypeVar("T")
HEALTHY = frozenset({None, "", "OK"})
UNSHOWN_TIME: Final = ""
SHOWN_OF_SECRETS = frozenset({"expiration"})


def compaction_of(kind: Kind[T]) -> Callable[[T], T]:
    """Return the compaction of all objects of a kind."""
    compact = ObjectCompaction()
    if kind is not cast("Any", MACHINES):
        return compact

    def lean(machine: Machine) -> Machine:
        return compact(without_healthy_parts(machine))

    return cast("Callable[[T], T]", lean)


def reduction_of(kind: Kind[T]) -> Callable[[T], T] | None:
    """Return what reduces the objects of a part of a kind; None where they stay whole, as they are few."""
    return cast("Callable[[T], T]", without_secrets) if kind is cast("Any", SECRETS) else None


def without_secrets(secret: Secret) -> Secret:
    """Return a Secret of which a page may show all values: the console holds no others."""
    return replace(secret, data={key: value for key, value in secret.data.items() if key in SHOWN_OF_SECRETS})


def without_healthy_parts(machine: Machine) -> Machine:
    """Return a Machine whose hardware has the parts alone that are not healthy, by the last reading of its BMC.

    The reading has no time.
    """
    status, agent = machine.status, machine.status.agent
    if agent is not None and agent.host is not None and agent.host.hardware is not None:
        status = replace(status, agent=replace(agent, host=replace(agent.host, hardware=None)))
    hardware = status.hardware
    if hardware is None:
        return machine if status is machine.status else replace(machine, status=status)
    bmc = hardware.bmc
    parts = () if bmc is None else tuple(part for part in bmc.parts if part.health not in HEALTHY)
    reduced = HardwareStatus(
        source=hardware.source,
        at=hardware.at,
        digest=hardware.digest,
        bmc=None if bmc is None else BMCReading(at=UNSHOWN_TIME, parts=parts),  # equal ones are shared
    )
    return replace(machine, status=replace(status, hardware=reduced))


def with_hardware_of(whole: Machine, machine: Machine) -> Machine:
    """Return a Machine of the live data with the hardware that they leave out, from the same Machine read whole."""
    agent, full = machine.status.agent, whole.status.agent
    if agent is not None and agent.host is not None and full is not None and full.host is not None:
        agent = replace(agent, host=replace(agent.host, hardware=full.host.hardware))
    return replace(machine, status=replace(machine.status, hardware=whole.status.hardware, agent=agent))
