"""Leadership by a Lease: at most one process leads, by its own clock and the API server's order of writes.

Each term is an epoch of the Lease: its UID is the line, its count of transitions the number.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from unbounded.api.core import LEASES, Lease
from unbounded.kube.api import Api, ApiError, NotFound
from unbounded.kube.clock import WallClock, rfc3339, utc_now
from unbounded.kube.logs import Log
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.process_epoch import Epoch, ProcessEpoch

RELEASE_S: Final = 2.0  # the time in which a leader that stops releases its Lease


@dataclass(frozen=True)
class _LeaseObservation:
    """A lease as it was first seen in this version, and when, on our own clock."""

    uid: str
    version: str
    holder: str
    expires_at: float
    transitions: int


class LeaderElection:
    """Leader election by a Lease: lead, or wait to lead.

    A Lease counts as expired when this process has seen it unchanged for its whole duration: clocks of different hosts
    are never compared. A leader whose renewals fail stops leading `renew_s` after it *sent* the last successful one.
    That is before another process can take over.

    Args:
        identity: of this process; no two that live at the same time may share it.
        duration_s: how long others respect a Lease that is not renewed.
        renew_s: how long a leader leads without a renewal; less than `duration_s`.
        retry_s: pause between attempts to acquire, and to renew after a failure.
        ended: the identity of a process that has surely ended: its Lease is free.
    """

    def __init__(
        self,
        api: Api,
        *,
        name: str,
        namespace: str,
        identity: str,
        duration_s: float = 15.0,
        renew_s: float = 10.0,
        retry_s: float = 2.0,
        ended: str = "",
        now: WallClock = utc_now,
        metrics: ControllerMetrics | None = None,
    ) -> None:
        if not retry_s < renew_s < duration_s:
            raise ValueError(f"wanted retry_s < renew_s < duration_s, got {retry_s}, {renew_s}, {duration_s}")
        self._api = api
        self._name, self._namespace, self._identity = name, namespace, identity
        self._duration_s, self._renew_s, self._retry_s = duration_s, renew_s, retry_s
        self._free_of = frozenset({"", identity, ended})
        self._now = now
        self._seen: _LeaseObservation | None = None
        self._in_doubt = True  # what we saw may no longer be so
        self._begins = True  # the next write begins a term
        self._leads_until = float("-inf")
        metrics = metrics or ControllerMetrics()
        self._leading_gauge, self._epoch_gauge = metrics.leading.labels(name), metrics.epoch.labels(name)
        self._log = Log(__name__).bind(lease=name, identity=identity)

    @property
    def leading(self) -> bool:
        """True while this process leads; False as soon as its time has run out, before the work is cancelled."""
        return asyncio.get_running_loop().time() < self._leads_until

    async def run(self, lead: Callable[[ProcessEpoch], Awaitable[None]]) -> None:
        """Call `lead` whenever we are the leader, and cancel it when we no longer are; until `lead` returns by itself.

        Each call gets the epoch of its term. What `lead` raises is raised. Cancelled, it cancels `lead`, waits for it,
        and gives the lease back.
        """
        try:
            while True:
                await self._acquire()
                epoch = self._epoch()
                self._log.info("leading", epoch=str(epoch.epoch))
                self._leading_gauge.set(1)
                if epoch.epoch is not None:
                    self._epoch_gauge.set(epoch.epoch.number)
                if await self._lead(lead(epoch)):
                    return
                self._log.warning("leadership lost")
                self._leading_gauge.set(0)
        finally:
            self._leading_gauge.set(0)
            await self._release()

    async def _acquire(self) -> None:
        self._begins = True
        while not await self._attempt():  # noqa: ASYNC110  # there is no event: the others may be gone
            await asyncio.sleep(self._retry_s * random.uniform(1.0, 1.2))  # noqa: S311  # jitter

    def _epoch(self) -> ProcessEpoch:
        if self._seen is None:
            raise AssertionError("the lease was acquired")
        return ProcessEpoch(Epoch(self._seen.uid, self._seen.transitions), acts_until=lambda: self._leads_until)

    async def _lead(self, lead: Awaitable[None]) -> bool:
        """Run `lead` while the lease is ours: whether it returned by itself."""
        work = asyncio.ensure_future(lead)
        renewal = asyncio.create_task(self._renew(), name=f"lease {self._name}")
        by_itself = False
        try:
            await asyncio.wait((work, renewal), return_when=asyncio.FIRST_COMPLETED)
            by_itself = work.done()
        finally:
            for task in (work, renewal):
                task.cancel()
            await asyncio.wait((work, renewal))
        if not work.cancelled():
            work.result()
        return by_itself

    async def _renew(self) -> None:
        """Keep the lease; return when it is lost."""
        certain = True
        while self.leading and self._is_ours():
            await self._pause(self._renew_s / 2 if certain else self._retry_s)
            if self.leading:  # else an attempt would let the work run for as long as the attempt takes
                certain = await self._attempt()
        self._leads_until = float("-inf")

    async def _pause(self, pause_s: float) -> None:
        """Wait, but not beyond the end of our leadership."""
        left_s = self._leads_until - asyncio.get_running_loop().time()
        await asyncio.sleep(max(0.0, min(pause_s, left_s)))

    def _is_ours(self) -> bool:
        return self._seen is not None and self._seen.holder == self._identity

    async def _attempt(self) -> bool:
        """Take the lease if it is free, or renew it if it is ours; whether that is certain to be done."""
        began = asyncio.get_running_loop().time()
        left_s = self._leads_until - began if self.leading else self._renew_s
        try:
            async with asyncio.timeout(min(left_s, self._renew_s / 2)):
                if self._in_doubt:
                    await self._observe()
                if not self._is_free():
                    return False
                await self._write()
        except (ApiError, TimeoutError) as error:
            self._in_doubt = True  # after any error, read before the next write
            self._log.debug("cannot write lease", error=repr(error))
            return False
        self._in_doubt = self._begins = False
        self._leads_until = began + self._renew_s
        return True

    async def _observe(self) -> None:
        try:
            self._notice(await self._api.get(LEASES, self._name, namespace=self._namespace))
        except NotFound:
            self._seen = None

    def _is_free(self) -> bool:
        """Return whether this process may write the Lease: it has no holder, is ours, or has not changed in its
        duration.
        """
        observed = self._seen
        if observed is None or observed.holder in self._free_of:
            return True
        return asyncio.get_running_loop().time() >= observed.expires_at

    async def _write(self) -> None:
        observed = self._seen
        if observed is None:
            body = {"metadata": {"name": self._name}, "spec": self._claim(0, taking=True)}
            self._notice(await self._api.create(LEASES, body, namespace=self._namespace))
            return
        taking = (
            self._begins or observed.holder != self._identity
        )  # a term counts even if no other process led in between
        spec = self._claim(observed.transitions + taking, taking=taking)
        patch = {"metadata": {"resourceVersion": observed.version}, "spec": spec}
        self._notice(await self._api.patch(LEASES, self._name, patch, namespace=self._namespace))

    def _claim(self, transitions: int, *, taking: bool) -> dict[str, Any]:
        at = rfc3339(self._now(), micro=True)
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": round(self._duration_s),
            "renewTime": at,
            "leaseTransitions": transitions,
        }
        return spec | ({"acquireTime": at} if taking else {})

    def _notice(self, lease: Lease) -> None:
        """Remember a lease, and since when we know it unchanged."""
        if self._seen is not None and self._seen.version == lease.metadata.resource_version:
            return
        duration_s = float(lease.spec.lease_duration_seconds or self._duration_s)
        self._seen = _LeaseObservation(
            uid=lease.metadata.uid,
            version=lease.metadata.resource_version,
            holder=lease.spec.holder_identity or "",
            expires_at=asyncio.get_running_loop().time() + duration_s,
            transitions=lease.spec.lease_transitions or 0,
        )

    async def _release(self) -> None:
        """Give the lease back if it is certainly ours, so that a successor need not wait; best effort."""
        observed, certain = self._seen, self.leading and self._is_ours() and not self._in_doubt
        self._leads_until = float("-inf")
        if observed is None or not certain:
            return
        patch = {"metadata": {"resourceVersion": observed.version}, "spec": {"holderIdentity": None}}
        try:
            async with asyncio.timeout(RELEASE_S):
                await self._api.patch(LEASES, self._name, patch, namespace=self._namespace)
        except (ApiError, TimeoutError) as error:
            self._log.debug("cannot release lease", error=repr(error))
