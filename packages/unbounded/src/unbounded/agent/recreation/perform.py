"""Execution of a recreation's steps over `Nodes`; each holds the host's lock while it works.

kubelet's credential in the new slot is the previous one, or a fresh one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Final, assert_never

from cryptography import x509

from unbounded.agent.durations import Durations
from unbounded.agent.interfaces import Nodes, OnProgress
from unbounded.agent.model import CertificateAccess, KubeletAccess, Slot
from unbounded.agent.node.pull_secrets import BringLogins, bring_none
from unbounded.agent.recreation import plan
from unbounded.agent.recreation.state_store import Transition
from unbounded.api.failures import Failure, Transient
from unbounded.kube.clock import WallClock, utc_now

Fresh = Callable[[OnProgress], Awaitable[KubeletAccess]]
AccessFor = Callable[[Slot, int, OnProgress], Awaitable[KubeletAccess]]
"""(the slot that the node leaves, the attempt, progress) → how kubelet introduces itself in the new slot."""

LEAST: Final = timedelta(hours=1)  # remaining validity; kubelet renews its certificate long before


def reuse_or(nodes: Nodes, fresh: Fresh, *, now: WallClock = utc_now) -> AccessFor:
    """Return a source of credentials: kubelet's certificate from the old slot while it is valid, else a fresh
    credential.

    After a failed attempt it is a fresh one: the old certificate may have been the cause.
    """

    async def access(source: Slot, attempt: int, report: OnProgress) -> KubeletAccess:
        certificate = await nodes.kubelet_certificate(source) if attempt == 1 else None
        return (
            certificate
            if certificate is not None and remaining_validity(certificate, now()) >= LEAST
            else await fresh(report)
        )

    return access


def remaining_validity(access: CertificateAccess, now: datetime) -> timedelta:
    """Return the remaining validity of a certificate; zero for an unreadable one."""
    try:
        leaf = x509.load_pem_x509_certificates(access.pem.reveal().encode())[0]
    except (ValueError, IndexError):
        return timedelta()
    return leaf.not_valid_after_utc - now if leaf.not_valid_before_utc <= now else timedelta()


Lock = Callable[[str], AbstractAsyncContextManager[None]]
ReportProgress = Callable[[str], Awaitable[None]]

PROGRESS_EVERY_S: Final = 15.0  # between two progress reports of a build


class Performer:
    """Executes steps.

    Args:
        lock: the host's lock; its argument names the holder.
    """

    def __init__(
        self,
        nodes: Nodes,
        access: AccessFor,
        lock: Lock,
        limits: plan.RecreationLimits,
        durations: Durations,
        logins: BringLogins = bring_none,
    ) -> None:
        self._nodes = nodes
        self._access = access
        self._lock = lock
        self._limits = limits
        self._durations = durations
        self._logins = logins

    async def perform(self, step: plan.Step, transition: Transition, report: ReportProgress) -> None:
        """Execute one step.

        Args:
            report: writes the progress of a long step for users.
        Raises:
            Transient, Rejected: from the slot; the step may be repeated, or (Rejected) a repetition is useless.
        """
        if isinstance(step, plan.ProveNode | plan.ChangePhase):
            return
        async with self._lock("recreation of the node"):
            await self._act(step, transition, report)

    async def _act(self, step: plan.Step, transition: Transition, report: ReportProgress) -> None:
        nodes = self._nodes
        match step:
            case plan.StopServices(slot=slot):
                await nodes.stop_services(slot)
            case plan.StopMachine(slot=slot):
                await nodes.stop(slot)
            case plan.StartMachine(slot=slot):
                await nodes.start(slot)
            case plan.RegisterNode(slot=slot):
                await nodes.stop_services(slot)
                await nodes.start(slot)
            case plan.RemoveSlot(slot=slot):
                await nodes.stop(slot)
                await nodes.remove(slot)
            case plan.CommitNode(slot=slot, node_uid=node_uid):
                await nodes.registered(slot, node_uid)
            case plan.BuildSlot():
                await self._build(step, transition, report)
            case plan.ProveNode() | plan.ChangePhase():
                return
            case _:
                assert_never(step)

    async def _build(self, step: plan.BuildSlot, transition: Transition, report: ReportProgress) -> None:
        notes: list[str] = []
        within_s = self._limits.on_this_host(self._durations).build_s
        try:
            async with asyncio.timeout(within_s), _reporting(notes, report):
                access = await self._access(transition.source, transition.attempt, notes.append)
                await self._logins(transition.goal.settings)
                await self._nodes.build(step.slot, transition.goal, access, notes.append)
        except TimeoutError as error:
            raise Transient(f"not complete within {within_s:.0f} s") from error


@contextlib.asynccontextmanager
async def _reporting(notes: list[str], report: ReportProgress) -> AsyncIterator[None]:
    """Report the latest note at intervals while inside."""

    async def report_notes() -> None:
        while True:
            await asyncio.sleep(PROGRESS_EVERY_S)
            if notes:
                newest = notes[-1]
                notes.clear()
                with contextlib.suppress(Failure):  # the report is only for users
                    await report(newest)

    reporter = asyncio.create_task(report_notes())
    try:
        yield
    finally:
        reporter.cancel()
        await asyncio.wait({reporter})
