"""Events of BMCs: what a reboot costs with them, how soon a change is seen, and that they cannot harm."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.metalman.support.site import Cluster, metalman
from tests.metalman.support.swift_time import run_swiftly
from unbounded.api.machine import MACHINES
from unbounded.metalman.bmc_events import SETTLE_S, SPREAD_S
from unbounded.metalman.power_reader import INTERVAL_S
from unbounded.metalman.redfish.event_stream import EventStreamReader, concerns
from unbounded_lab import machines as lab_machines
from unbounded_lab.bmc import HostPower, LabBmc, Press
from unbounded_lab.bmc.faults import BmcFaults

SYSTEM = "/redfish/v1/Systems/1"
OPENED_S = SETTLE_S + SPREAD_S + 1.0


def event(*records: Any) -> bytes:
    return msgspec.json.encode({"@odata.type": "#Event.v1_13_0.Event", "Id": "1", "Events": records})


def framed(data: bytes, *, end: bytes = b"\n") -> bytes:
    lines = [b"id: 7", *(b"data: " + line for line in data.splitlines()), b""]
    return b"".join(line + end for line in lines)


LINK = {"MessageId": "ResourceEvent.1.4.ResourcePoweredOff", "OriginOfCondition": {"@odata.id": SYSTEM}}
TEXT = {"MessageId": "CMC9000", "OriginOfCondition": SYSTEM}
BARE = {"MessageId": "FQXSPSE4001I"}
TRANSITION = {"MessageId": "ResourceEvent.1.4.ResourcePoweringOff", "OriginOfCondition": {"@odata.id": SYSTEM}}


def test_origins_are_links_or_text_or_absent_and_a_transition_is_no_change() -> None:
    read = EventStreamReader()
    assert list(read.feed(b": stream keep-alive\n\n")) == []
    assert list(read.feed(framed(event(LINK, TEXT, BARE, TRANSITION)))) == [SYSTEM, SYSTEM, None]
    assert list(read.feed(framed(event(LINK, TEXT, BARE, TRANSITION)))) == [], "the same event again"


@pytest.mark.parametrize("data", [b"{", b"[]", b"7", b'{"Events": 5}', b'{"Events": [null, 3]}', b"\xff", b"[" * 5000])
def test_unusable_data_is_no_event(data: bytes) -> None:
    assert list(EventStreamReader().feed(framed(data))) == []


def test_the_data_of_an_event_is_bounded() -> None:
    read = EventStreamReader()
    for _ in range(3):
        assert list(read.feed(b"data: " + b"x" * (1 << 19) + b"\n")) == []
    assert list(read.feed(b"\n")) == []
    assert list(read.feed(b"y" * (3 << 20))) == []
    assert list(read.feed(b"\n\n" + framed(event(LINK)))) == [SYSTEM]


@settings(max_examples=40)
@given(st.lists(st.integers(1, 40), max_size=30), st.sampled_from([b"\n", b"\r\n", b"\r"]), st.booleans())
def test_a_stream_is_the_same_in_any_parts(sizes: list[int], end: bytes, is_long: bool) -> None:
    bodies = [event(LINK | {"EventId": str(number)}, BARE) for number in range(3)]
    bodies = [msgspec.json.format(each, indent=2) for each in bodies] if is_long else bodies
    text = b": opened" + end + end + b"".join(framed(each, end=end) for each in bodies) + b": end" + end
    read = EventStreamReader()
    found: list[str | None] = []
    for size in (*sizes, len(text)):
        found += read.feed(text[:size])
        text = text[size:]
    assert found == [SYSTEM, None] * 3


def test_an_event_of_another_system_or_of_a_service_is_none_of_a_machines() -> None:
    assert concerns(None, "1", is_alone=False)
    assert concerns(SYSTEM, "1", is_alone=False)
    assert concerns(f"{SYSTEM}/LogServices/SEL/Entries/4", "1", is_alone=False)
    assert concerns("/redfish/v1/Chassis/1", "1", is_alone=False)
    assert not concerns("/redfish/v1/Systems/2", "1", is_alone=False)
    assert concerns("/redfish/v1/Systems/System.Embedded.1", "1", is_alone=True), "the default id names any system"
    assert not concerns("/redfish/v1/SessionService/Sessions/3", "1", is_alone=True)


# ---- with a BMC


def run(scene: Coroutine[Any, Any, None]) -> None:
    run_swiftly(scene, limit_s=7200.0)


async def power_of(cluster: Cluster, name: str) -> str | None:
    power = (await cluster.machine(name)).status.power
    return power.state if power is not None else None


def test_a_reboot_costs_at_most_six_requests_and_a_change_is_seen_at_once() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with (
            LabBmc(profile="sends-events", shutdown_s=50.0, boot_s=15.0) as bmc,
            metalman(cluster, reads_per_s=30.0, events=True),
        ):
            (machine,) = await cluster.add(bmc)
            await asyncio.sleep(OPENED_S)
            for number in range(2):
                asked, began = bmc.bmc.requests, bmc.clock.now()
                await cluster.ended(
                    await cluster.ask("HostReboot", machine, name=f"r{number}", parameters={"graceSeconds": "300"})
                )
                assert bmc.bmc.requests - asked == 6, "one reading after 20 s of the shutdown"
                assert bmc.clock.now() - began < 50.0 + 15.0 + 2.0
                changes = [at for at, what, detail in map(parts, bmc.history()) if what == "power" and at > began]
                reads = [each.at for each in bmc.bmc.journal if each.path == SYSTEM and each.at > began]
                off, on = changes[1], changes[3]
                for change in (off, on):
                    assert min(at - change for at in reads if at >= change) < 0.5
                await asyncio.sleep(200.0)

    run(scene())


def parts(event: Any) -> tuple[float, str, str]:
    return event.at, event.what, event.detail


def test_an_idle_host_is_seen_at_once_and_not_polled() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(profile="sends-events") as bmc, metalman(cluster, reads_per_s=30.0, events=True):
            (machine,) = await cluster.add(bmc)
            await asyncio.sleep(OPENED_S + 2 * INTERVAL_S)
            asked = bmc.bmc.requests
            await asyncio.sleep(3000.0)
            assert bmc.bmc.requests - asked <= 5, "a slow reading alone, in the session of the stream"
            assert bmc.bmc.access.logins == 1 + 1, "that of its first reading, and that of the stream"
            bmc.host().press(Press.FORCE_OFF, bmc.clock.now())
            await asyncio.sleep(2.0)
            assert await power_of(cluster, machine) == "Off"
            bmc.host().press(Press.ON, bmc.clock.now())
            await asyncio.sleep(4.0)
            assert await power_of(cluster, machine) == "On"
        assert not bmc.bmc.access.sessions(bmc.clock.now(), bmc.bmc.faults), "the session is given back"

    run(scene())


def test_a_stream_without_events_is_found_out() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(profile="events-never") as bmc, metalman(cluster, reads_per_s=30.0, events=True):
            (machine,) = await cluster.add(bmc)
            await asyncio.sleep(OPENED_S + INTERVAL_S)
            first = await timed_reboot(cluster, machine, "first")
            second = await timed_reboot(cluster, machine, "second")
            assert second < 8.0 < 20.0 < first, "from then on, it is read as a BMC without events"
            bmc.host().press(Press.FORCE_OFF, bmc.clock.now())
            await asyncio.sleep(120.0)
            assert await power_of(cluster, machine) == "Off"

    run(scene())


def test_a_stream_whose_events_are_late_is_found_out() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(profile="events-late") as bmc, metalman(cluster, reads_per_s=30.0, events=True):
            (machine,) = await cluster.add(bmc)
            await asyncio.sleep(OPENED_S + INTERVAL_S)
            first = await timed_reboot(cluster, machine, "first")
            assert 20.0 < first < 30.0
            for number in range(3):
                assert await timed_reboot(cluster, machine, f"late-{number}") < 8.0
                await asyncio.sleep(100.0 * number)
            await bmc.set_faults(event_delay_s=0.0)
            await asyncio.sleep(100.0)
            await timed_reboot(cluster, machine, "in time")
            requests = bmc.bmc.requests
            await timed_reboot(cluster, machine, "trusted again")
            assert bmc.bmc.requests - requests <= 6

    run(scene())


def test_a_machine_that_joins_an_open_stream_has_its_events_at_once() -> None:
    async def scene() -> None:
        cluster = Cluster()
        faults = BmcFaults(event_service="works", systems=("1", "2"))
        async with LabBmc(faults=faults) as bmc, metalman(cluster, reads_per_s=30.0, events=True):
            _first, other = await cluster.add(bmc)
            await cluster.api.delete(MACHINES, other)
            await asyncio.sleep(OPENED_S + INTERVAL_S)
            manifest = {each["metadata"]["name"]: each for each in lab_machines.machines(bmc)}[other]
            await cluster.api.create(MACHINES, manifest)
            await asyncio.sleep(2 * INTERVAL_S)
            reads = len(reads_of(bmc))
            await timed_reboot(cluster, other, "joined")
            assert len(reads_of(bmc)) - reads == 3, "one before, and one after each of two events"

    run(scene())


def reads_of(bmc: LabBmc) -> list[float]:
    return [each.at for each in bmc.bmc.journal if each.path == "/redfish/v1/Systems/2" and each.method == "GET"]


async def timed_reboot(cluster: Cluster, machine: str, name: str) -> float:
    began = asyncio.get_running_loop().time()
    operation = await cluster.ended(await cluster.ask("HostReboot", machine, name=name))
    assert operation.status.phase == "Complete", operation.status.message
    return cluster.ended_at(name) - began


MISBEHAVING = (
    *("events-late", "events-twice", "events-out-of-order", "events-never", "event-stream-ends", "event-streams-taken"),
    *("sends-events+stale-power", "sends-events+session-ends-midway", "sends-events+flapping"),
)


@pytest.mark.slow
@pytest.mark.parametrize("profile", MISBEHAVING)
def test_operations_end_well_whatever_the_events_do(profile: str) -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(profile=profile) as bmc, metalman(cluster, reads_per_s=30.0, events=True):
            (machine,) = await cluster.add(bmc)
            await asyncio.sleep(OPENED_S)
            for number, kind in enumerate(("HostReboot", "HostPowerOff", "HostPowerOn")):
                operation = await cluster.ended(await cluster.ask(kind, machine, name=f"o{number}"))
                assert operation.status.phase == "Complete", operation.status.message
                assert bmc.power() is (HostPower.OFF if kind == "HostPowerOff" else HostPower.ON)
            asked = [each.detail for each in bmc.history() if each.what == "pressed"]
            assert asked == ["GracefulShutdown", "On"] * 2
            bmc.host().press(Press.FORCE_OFF, bmc.clock.now())
            await asyncio.sleep(120.0)
            assert await power_of(cluster, machine) == "Off"
            assert bmc.bmc.access.refused_logins == 0
        assert not bmc.bmc.access.sessions(bmc.clock.now(), bmc.bmc.faults)
        assert bmc.most_concurrent <= 1

    run(scene())


def test_a_wrong_password_is_offered_once() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(profile="sends-events") as bmc, metalman(cluster, reads_per_s=30.0, events=True):
            (machine,) = await cluster.add(bmc)
            await cluster.set_password(bmc, "wrong")
            await asyncio.sleep(1500.0)
            assert bmc.bmc.access.refused_logins == 1
            await cluster.set_password(bmc, bmc.password)
            await asyncio.sleep(650.0)
            bmc.host().press(Press.FORCE_OFF, bmc.clock.now())
            await asyncio.sleep(2.0)
            assert await power_of(cluster, machine) == "Off", "the stream is open again"

    run(scene())
