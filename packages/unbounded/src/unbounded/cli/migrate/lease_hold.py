"""Hold on the target until the hand-over: the migration holds the Leases with which its controllers lead."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any, Final

from unbounded.api.core import LEASES, Lease
from unbounded.api.failures import Rejected
from unbounded.api.machine import Machine
from unbounded.api.names import LEASE_DISRUPTION, LEASE_SUPERVISOR, NAMESPACE
from unbounded.kube.api import AlreadyExists, Api
from unbounded.kube.clock import rfc3339, utc_now
from unbounded.kube.settings import lease_name

HOLDER: Final = "unbounded-migrate/"  # prefix of the holder's identity, before the migration's name
_FOR_S: Final = 2**31 - 1  # a controller waits for the whole duration of a Lease
_SLACK_S: Final = 1.0
_USUAL_S: Final = 15

COMPONENTS: Final = ("machina", "machine-ops-controller", "metalman")


def lease_names(machines: Iterable[Machine]) -> tuple[str, ...]:
    """Return the Leases of all controllers that could serve these Machines."""
    known = tuple(machines)
    sites = sorted({"", *(one.site for one in known)})
    providers = sorted({"", *(one.provider or "" for one in known)})
    clouds = (lease_name("machine-ops-controller", site, provider) for site in sites for provider in providers)
    return (LEASE_SUPERVISOR, LEASE_DISRUPTION, *(lease_name("metalman", site) for site in sites), *clouds)


def _is_controllers(lease: Lease) -> bool:
    name = lease.metadata.name
    return name in (LEASE_SUPERVISOR, LEASE_DISRUPTION) or any(
        name == one or name.startswith(f"{one}-") for one in COMPONENTS
    )


async def leaders(api: Api, migration: str) -> tuple[str, ...]:
    """Return the Leases that controllers hold now, each with its holder, as text; watches each for its duration."""
    leases = [one for one in await _leases(api) if _is_held_by_others(one, migration)]
    versions = {one.metadata.name: one.metadata.resource_version for one in leases if not _is_migrations(one)}
    if versions:
        durations = (one.spec.lease_duration_seconds or _USUAL_S for one in leases if not _is_migrations(one))
        await asyncio.sleep(max(durations) + _SLACK_S)
        leases = [one for one in await _leases(api) if _is_held_by_others(one, migration)]
    return tuple(
        f"Lease {NAMESPACE}/{one.metadata.name}, held by {one.spec.holder_identity}"
        for one in leases
        if _is_migrations(one) or versions.get(one.metadata.name) != one.metadata.resource_version
    )


def _is_migrations(lease: Lease) -> bool:
    """Return whether a migration holds the Lease; migrations do not renew."""
    return (lease.spec.holder_identity or "").startswith(HOLDER)


def _is_held_by_others(lease: Lease, migration: str) -> bool:
    return (lease.spec.holder_identity or "") not in ("", HOLDER + migration)


async def _leases(api: Api) -> Iterator[Lease]:
    return (one for one in (await api.list(LEASES, namespace=NAMESPACE)).items if _is_controllers(one))


async def acquire_leases(api: Api, names: Iterable[str], migration: str) -> None:
    """Acquire these Leases, and all other existing Leases of controllers.

    Raises:
        Rejected: a controller leads.
    """
    if existing := await leaders(api, migration):
        raise Rejected(leaders_message(existing))
    known = {one.metadata.name: one for one in await _leases(api)}
    for name in sorted({*names, *known}):
        await _acquire(api, name, known.get(name), HOLDER + migration)


def leaders_message(existing: Iterable[str]) -> str:
    return (
        f"the target's control plane is running ({'; '.join(existing)}): scale the Deployments of "
        f"machina-controller, machine-ops-controller and metalman-controller in {NAMESPACE} to 0 until "
        "the hand-over, and finish or revert any other migration"
    )


async def _acquire(api: Api, name: str, known: Lease | None, holder: str) -> None:
    """Acquire one Lease. Raises Stale: a controller wrote it meanwhile."""
    at = rfc3339(utc_now(), micro=True)
    spec: dict[str, Any] = {"holderIdentity": holder, "leaseDurationSeconds": _FOR_S, "renewTime": at}
    if known is None:
        try:
            await api.create(
                LEASES, {"metadata": {"name": name}, "spec": spec | {"acquireTime": at}}, namespace=NAMESPACE
            )
        except AlreadyExists as error:
            raise Rejected(leaders_message((f"Lease {NAMESPACE}/{name}, created just now",))) from error
        return
    if known.spec.holder_identity == holder:
        return
    spec["leaseTransitions"] = (known.spec.lease_transitions or 0) + 1
    guard = {"resourceVersion": known.metadata.resource_version}
    await api.patch(LEASES, name, {"metadata": guard, "spec": spec}, namespace=NAMESPACE)


async def release_leases(api: Api, migration: str) -> None:
    """Release all Leases of the migration."""
    for one in [lease for lease in await _leases(api) if lease.spec.holder_identity == HOLDER + migration]:
        guard = {"resourceVersion": one.metadata.resource_version}
        spec = {"holderIdentity": None, "leaseDurationSeconds": _USUAL_S}
        await api.patch(LEASES, one.metadata.name, {"metadata": guard, "spec": spec}, namespace=NAMESPACE)
