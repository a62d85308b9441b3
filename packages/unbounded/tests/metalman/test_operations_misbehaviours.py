"""Host operations through every misbehaviour that the lab knows: the right end state, or the right named reason.

The operations run under their production limits, over TLS, at the speed of `swift_time`. What they claim is held
against the truth that only the lab knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import pytest

from tests.metalman.support.site import Cluster, metalman
from tests.metalman.support.swift_time import run_swiftly
from unbounded.api.operation import MachineOperation
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.bmc.misbehaviours import MISBEHAVIOURS
from unbounded_lab.bmc.power import HostPower
from unbounded_lab.bmc.profiles import faults_for
from unbounded_lab.faults import changed

REBOOT, OFF, ON = KINDS = ("HostReboot", "HostPowerOff", "HostPowerOn")
BEFORE: Final = {REBOOT: HostPower.ON, OFF: HostPower.ON, ON: HostPower.OFF}
AFTER: Final = {REBOOT: {HostPower.ON, HostPower.POWERING_ON}, OFF: {HostPower.OFF}, ON: {HostPower.ON}}
EVIDENCE: Final = {
    REBOOT: {"the host was Off", "the host was On"},
    OFF: {"the host was Off", "the host was Off again, 5 s later"},
    ON: {"the host was On", "the host was On again, 5 s later"},
}

# The failures, for which kinds, with their reason and a word of the message besides the BMC's address.
NAMED: Final[dict[str, tuple[tuple[str, ...], str, str]]] = {
    "accepts-and-does-nothing": (KINDS, "NoEffect", "accepted, without effect"),
    "task-that-fails": (KINDS, "TaskFailed", "Exception: Base.1.18.InternalError"),
    "switches-itself-on-again": ((OFF,), "DoesNotStayOff", "PowerState"),
    "session-service-refuses": (KINDS, "CredentialsRefused", "correct Secret unbounded-kube/"),
    "password-expired": (KINDS, "BMCRefused", "PasswordChangeRequired"),
    "stalls": (KINDS, "NoAnswer", "no answer"),
    "acts-late": (KINDS, "NoAnswer", "no answer"),
    "connection-refused": (KINDS, "NoAnswer", "connection refused"),
}
# Thirty seconds are just what a call may take, and either of the two could come first.
TURNED: Final[dict[str, dict[str, Any]]] = {"stalls": {"stall_s": 45.0}, "acts-late": {"stall_s": 45.0}}

# They carry out requests that their client has abandoned. So a second request can meet the first, and an abandoned
# log-in leaves an unknown session.
GO_ON: Final = frozenset({"stalls", "acts-late"})
AFTERMATH_S: Final = 300.0


def lab(profile: str, kind: str) -> LabBmc:
    faults = changed(faults_for(profile), TURNED.get(profile, {}))
    return LabBmc(kind.lower(), faults=faults, power=BEFORE[kind])


@asynccontextmanager
async def machines(profile: str, cluster: Cluster) -> AsyncIterator[dict[str, str]]:
    """A BMC with that profile for each kind of operation; gives the names of the (first) Machines by kind."""
    async with AsyncExitStack() as stack:
        bmcs = {kind: await stack.enter_async_context(lab(profile, kind)) for kind in KINDS}
        yield {kind: (await cluster.add(bmc))[0] for kind, bmc in bmcs.items()}


@pytest.mark.slow
@pytest.mark.parametrize("profile", ["ideal", *(name for name in MISBEHAVIOURS if "event" not in name)])
def test_an_operation_ends_well_or_says_why(profile: str) -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with machines(profile, cluster) as names:
            async with metalman(cluster):
                operations = {kind: await cluster.ask(kind, names[kind]) for kind in KINDS}
                for kind, name in operations.items():
                    check_end(profile, kind, await cluster.ended(name), cluster.bmcs[names[kind]])
                await asyncio.sleep(AFTERMATH_S)
            for kind, name in operations.items():
                check_manners(profile, cluster.bmcs[names[kind]], ended_at=cluster.ended_at(name))

    run_swiftly(scene())


def check_end(profile: str, kind: str, operation: MachineOperation, bmc: LabBmc) -> None:
    """The status, held against the truth."""
    status = operation.status
    kinds, reason, word = NAMED.get(profile, ((), "", ""))
    if kind not in kinds:
        assert (status.phase, status.reason) == ("Complete", "Succeeded"), status.message
        assert bmc.power(bmc.device_ids[0]) in AFTER[kind]
        assert {evidence.what for evidence in status.evidence} == EVIDENCE[kind]
        assert {bmc.url in evidence.where for evidence in status.evidence} == {True}
        if kind == REBOOT:
            assert HostPower.OFF in [event.detail for event in bmc.history() if event.what == "power"]
    else:
        assert (status.phase, status.reason) == ("Failed", reason), status.message
        assert word in (status.message or "")
        assert bmc.url in (status.message or "")


def check_manners(profile: str, bmc: LabBmc, *, ended_at: float) -> None:
    """Check the client's manners towards a BMC, whatever the BMC does."""
    asked = [event.at for event in bmc.history() if event.what in ("pressed", "unheard")]
    ended_at += bmc.clock.now() - asyncio.get_running_loop().time()
    assert all(at <= ended_at for at in asked), "the power was touched after the operation's end"
    assert bmc.bmc.access.refused_logins <= 1
    if profile not in GO_ON:
        assert bmc.most_concurrent <= 1
        assert not bmc.bmc.access.sessions(bmc.clock.now(), bmc.bmc.faults), "a session was left behind"


def test_every_named_end_belongs_to_a_misbehaviour() -> None:
    assert NAMED.keys() <= MISBEHAVIOURS.keys()
    assert TURNED.keys() <= MISBEHAVIOURS.keys()
