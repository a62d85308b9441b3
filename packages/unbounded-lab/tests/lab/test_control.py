"""The control interface: what a person with curl meets."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from aiohttp import ClientSession, TCPConnector, web
from aiohttp.test_utils import TestClient, TestServer

from unbounded_lab.bmc import LabBmc, ManualClock
from unbounded_lab.bmc.misbehaviours import MISBEHAVIOURS
from unbounded_lab.bmc.worker import BmcControl

Client = TestClient[web.Request, web.Application]


@pytest.fixture
async def bmc() -> AsyncIterator[LabBmc]:
    async with LabBmc("lab-07", clock=ManualClock(start=0.0)) as bmc:
        yield bmc


@pytest.fixture
async def control(bmc: LabBmc) -> AsyncIterator[Client]:
    async with TestClient(TestServer(BmcControl({"lab-07": bmc}).application())) as client:
        yield client


async def test_it_lists_profiles_with_a_line_about_each(control: Client) -> None:
    profiles = await (await control.get("/lab/profiles")).json()
    assert profiles.keys() == {"ideal", "field", *MISBEHAVIOURS}
    assert profiles["stalls"] == "Every request takes 30 s to be answered."


async def test_it_says_how_a_bmc_is_reached(control: Client, bmc: LabBmc) -> None:
    (listed,) = await (await control.get("/lab/bmcs")).json()
    assert listed == {
        "name": "lab-07",
        "url": bmc.url,
        "username": "admin",
        "password": bmc.password,
        "deviceIDs": ["1"],
        "certFingerprint": bmc.fingerprint,
        "profile": "ideal",
    }


async def test_it_tells_what_was_asked_of_a_bmc(control: Client, bmc: LabBmc) -> None:
    await control.patch("/lab/bmcs/lab-07/faults", json={"slow_s": [0, 0], "etags": "none"})
    async with (
        ClientSession(connector=TCPConnector(ssl=False)) as http,
        http.get(f"{bmc.url}/redfish/v1/Systems") as answer,
    ):
        assert answer.status == 401
    truth = await (await control.get("/lab/bmcs/lab-07")).json()
    assert (truth["requests"], truth["profile"], truth["faults"]) == (1, "custom", {"etags": "none"})
    (exchange,) = await (await control.get("/lab/bmcs/lab-07/journal")).json()
    assert exchange == {"at": 0.0, "method": "GET", "path": "/redfish/v1/Systems", "status": 401, "fate": "sent"}


async def test_it_cuts_the_mains(control: Client) -> None:
    assert (await (await control.post("/lab/bmcs/lab-07/unplug")).json())["mains"] is False
    history = await (await control.get("/lab/bmcs/lab-07/history")).json()
    assert [event["detail"] for event in history] == ["gone", "Off"]
    assert (await (await control.post("/lab/bmcs/lab-07/plug")).json())["mains"] is True


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("GET", "/lab/bmcs/lab-99", None, 404, "BMC lab-99 does not exist"),
        ("GET", "/lab/bmcs/lab-07/history?system=9", None, 404, "system 9 does not exist; the systems are 1"),
        ("PATCH", "/lab/bmcs/lab-07/faults", {"stals": 1}, 400, "unknown fault: stals"),
        ("PATCH", "/lab/bmcs/lab-07/dials", {"stals": 1}, 400, "unknown fault: stals"),  # the former path
        ("PATCH", "/lab/bmcs/lab-07/faults", {"stalls": "often"}, 400, "stalls"),
        ("PATCH", "/lab/bmcs/lab-07/faults", [1], 400, "Expected `object`"),
        ("PUT", "/lab/bmcs/lab-07/profile", {"profile": "stals"}, 400, "unknown profile: stals"),
        ("GET", "/redfish/v1/", None, 404, ""),
    ],
)
async def test_what_is_wrong_is_said(
    control: Client, method: str, path: str, body: object, status: int, says: str
) -> None:
    answer = await control.request(method, path, json=body)
    assert answer.status == status
    assert says in await answer.text()
