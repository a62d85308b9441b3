"""BMCRotatePassword with a metalman that ends at any point: a stored password opens the BMC at each moment."""

from __future__ import annotations

import asyncio
import random
from base64 import b64decode
from typing import Any, Final

import pytest
from aiohttp import web

from tests.metalman.support.site import Cluster, metalman
from tests.metalman.support.swift_time import run_swiftly
from unbounded.api.meta import Kind
from unbounded_lab.bmc.faults import BmcFaults
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.http import LabReply
from unbounded_lab.machines import PASSWORD_KEY

KIND: Final = "BMCRotatePassword"
FAULTS: Final = {
    "ends-sessions": BmcFaults(rotation_ends_sessions=True),
    "keeps-sessions": BmcFaults(),
    "basic": BmcFaults(session_service="absent"),
    "late": BmcFaults(rotation_after_s=2.0),
}
RANDOM_CUTS: Final = 50
TURNS: Final = 60  # of the event loop, from a request or write to the next one


class JudgedCluster(Cluster):
    """A cluster and a BMC whose writes and requests are points at which a process can end, and are judged."""

    def __init__(self) -> None:
        super().__init__()
        self.points = 0
        self.cut_at: int | None = None
        self.cut = asyncio.Event()
        self.bmc: LabBmc | None = None

    def _note(self, kind: Kind[Any], old: dict[str, Any] | None, new: dict[str, Any]) -> None:
        super()._note(kind, old, new)
        self.point()

    def point(self) -> None:
        self.points += 1
        if self.bmc is not None:
            assert self.bmc.password in self.stored().values(), "no stored password opens the BMC"
        if self.points == self.cut_at:
            self.cut.set()

    def stored(self) -> dict[str, str]:
        data = next(write.new["data"] for write in reversed(self.written) if write.kind == "Secret")
        return {key: b64decode(value).decode() for key, value in data.items()}


class JudgedBmc(LabBmc):
    cluster: JudgedCluster

    async def _reply(self, http: web.BaseRequest) -> LabReply | web.StreamResponse:
        self.cluster.point()
        try:
            return await super()._reply(http)
        finally:
            self.cluster.point()


async def rotate(faults: BmcFaults, cut_at: int, turns: int = 0) -> bool:
    """Rotate a password with a process that ends at a point, and its successor; return whether the first was cut."""
    cluster = JudgedCluster()
    async with JudgedBmc(faults=faults) as bmc:
        bmc.cluster, cluster.bmc, access, former = cluster, bmc, bmc.bmc.access, bmc.password
        (machine,) = await cluster.add(bmc)
        name = await cluster.ask(KIND, machine)
        cluster.cut_at = cluster.points + cut_at
        async with metalman(cluster):
            ended, cut = asyncio.create_task(cluster.ended(name)), asyncio.create_task(cluster.cut.wait())
            await asyncio.wait({ended, cut}, return_when=asyncio.FIRST_COMPLETED)
            is_cut = not ended.done()
            for _ in range(turns):
                await asyncio.sleep(0)
            ended.cancel()
            cut.cancel()
        refused = access.refused_logins
        async with metalman(cluster):
            operation = await cluster.ended(name)
        assert refused <= 1, "the first process"
        assert access.refused_logins - refused <= 1, "its successor"
        if operation.status.phase == "Complete":
            assert access.passwords_set == [bmc.password] != [former]
            assert cluster.stored() == {PASSWORD_KEY: bmc.password}
        else:  # the process may have sent it, so that it is not sent again
            assert operation.status.reason == "OutcomeUnknown", operation.status.message
            assert access.passwords_set == []
            assert cluster.stored().keys() == {PASSWORD_KEY, f"{PASSWORD_KEY}-next"}
        return is_cut


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(faults, id=name, marks=pytest.mark.slow if name == "ends-sessions" else pytest.mark.soak)
        for name, faults in FAULTS.items()
    ],
)
def test_a_process_that_ends_at_any_request_or_write_leaves_a_password_that_opens(faults: BmcFaults) -> None:
    cuts = 1
    while run_swiftly(rotate(faults, cuts)):
        cuts += 1
    assert cuts > 20


@pytest.mark.soak
@pytest.mark.parametrize("faults", FAULTS.values(), ids=FAULTS)
def test_a_process_that_ends_at_a_random_turn_leaves_a_password_that_opens(faults: BmcFaults) -> None:
    chance = random.Random(19)
    for _ in range(RANDOM_CUTS):
        cut_at, turns = chance.randint(1, 60), chance.randint(0, TURNS)
        try:
            run_swiftly(rotate(faults, cut_at, turns))
        except AssertionError as error:
            raise AssertionError(f"cut at point {cut_at}, {turns} turns later") from error
