"""Times of the readings after a power action: learned from earlier ones, and what that saves without events."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import pytest

from tests.metalman.support.site import Cluster, metalman
from tests.metalman.support.swift_time import run_swiftly
from unbounded.metalman import power
from unbounded.metalman.power_read_times import (
    ENOUGH,
    EXPLORES_EVERY,
    REMEMBERED,
    REMEMBERED_KEYS,
    Effect,
    EffectHistory,
    ReadTimes,
    first_pauses,
)
from unbounded.workflow.procedure import Procedure
from unbounded_lab.bmc import LabBmc


def history(*effects: tuple[float, float], found_first: int = 0) -> EffectHistory:
    return EffectHistory(tuple(Effect(*one) for one in effects), found_first)


SAME = history(*[(48.5, 50.0)] * ENOUGH)
TABLE = [
    (history(), history(), ()),
    (history((48.5, 50.0), (48.5, 50.0)), history(), ()),
    (SAME, history(), (50.0,)),
    (SAME, history(*[(2.0, 3.0)] * 8), (50.0,)),
    (history(), SAME, (25.0, 25.0)),
    (history((48.0, 53.0), (48.0, 53.0), (48.0, 53.0)), history(), (49.8, 1.8, 1.4)),
    (history((40.0, 41.0), (43.0, 44.0), (46.0, 47.0)), history(), (37.8, 1.8, 1.4, 1.8, 1.2, 1.8, 1.2)),
    (
        history((40.0, 41.0), (43.0, 44.0), (43.0, 44.0)),
        history((40.0, 41.0), (43.0, 44.0), (46.0, 47.0)),
        (39.8, 1.2, 1.8, 1.2, 1.8, 1.2),
    ),
    (history((0.0, 1.0), (0.0, 1.0), (60.0, 61.0)), history(), (1.0, 1.8, 3.6, 7.2, 14.4, 28.8, 1.8, 1.8, 0.6)),
    (history(*[(0.0, 1.0)] * ENOUGH), history(), (1.0,)),
    (history(*[(48.5, 50.0)] * 8, found_first=EXPLORES_EVERY - 1), history(), (25.0, 23.5, 1.5)),
    (history(*[(2.0, 3.5)] * 8, found_first=EXPLORES_EVERY - 1), history(), (3.5,)),
]


@pytest.mark.parametrize(("own", "model", "pauses"), TABLE)
def test_first_readings_are_at_the_times_that_were_needed(
    own: EffectHistory, model: EffectHistory, pauses: tuple[float, ...]
) -> None:
    assert first_pauses(own, model) == pauses


KINDS_OF_TIMES: dict[str, tuple[Callable[[random.Random], float], float]] = {
    "always the same": (lambda _chance: 50.0, 1.5),
    "within a second": (lambda chance: chance.uniform(0.2, 1.2), 1.5),
    "within two seconds": (lambda chance: chance.uniform(49.0, 51.0), 2.0),
    "normal within two seconds": (lambda chance: chance.gauss(50.0, 0.7), 2.0),
    "within ten seconds": (lambda chance: chance.uniform(45.0, 55.0), 5.5),
    "within twenty seconds": (lambda chance: chance.uniform(40.0, 60.0), 9.0),
    "normal": (lambda chance: chance.gauss(50.0, 3.0), 5.5),
    "short, or seldom long": (lambda chance: 10.0 + chance.expovariate(1 / 8), 8.5),
    "one of two": (lambda chance: chance.choice((6.0, 90.0)) + chance.random(), 9.5),
}


@pytest.mark.parametrize("kind", KINDS_OF_TIMES)
def test_the_effect_is_read_within_two_seconds_at_p95(kind: str) -> None:
    draw, most = KINDS_OF_TIMES[kind]
    chance, known, lags, readings = random.Random(1), EffectHistory(), [], 0
    usual = Procedure.polls_s
    for _ in range(1000):
        effect_s, pauses = draw(chance), (*first_pauses(known, known), *usual)
        missed_s, now, count = 0.0, pauses[0], 1
        while now < effect_s:
            missed_s, now, count = now, now + pauses[min(count, len(pauses) - 1)], count + 1
        known = known.adding(missed_s, now)
        readings += count
        lags.append(now - effect_s)
    lags = sorted(lags[ENOUGH:])
    assert lags[int(0.95 * len(lags))] <= 2.0
    assert readings / 1000 <= most, "the usual times need up to 14 readings"


@pytest.mark.parametrize("kind", [kind for kind in KINDS_OF_TIMES if kind != "one of two"])
def test_hosts_of_a_known_model_are_read_within_two_seconds_from_their_first_reboot(kind: str) -> None:
    draw, _most = KINDS_OF_TIMES[kind]
    chance, model, lags = random.Random(2), EffectHistory(), []
    usual = Procedure.polls_s
    for number in range(60):
        own = EffectHistory()
        for _ in range(12):
            effect_s, pauses = draw(chance), (*first_pauses(own, model), *usual)
            missed_s, now, count = 0.0, pauses[0], 1
            while now < effect_s:
                missed_s, now, count = now, now + pauses[min(count, len(pauses) - 1)], count + 1
            own, model = own.adding(missed_s, now), model.adding(missed_s, now)
            if number >= 2:  # the model is known
                lags.append(now - effect_s)
    lags.sort()
    assert lags[int(0.95 * len(lags))] <= 2.0


@pytest.mark.parametrize(
    ("before", "missed_s", "found_s", "after"),
    [
        (history(), 46.0, 51.0, history((46.0, 51.0))),
        (history(), 0.0, 1.0, history((0.0, 1.0))),
        (history((46.0, 51.0)), 48.0, 50.0, history((48.0, 50.0), (48.0, 50.0))),
        (history((46.0, 51.0)), 60.0, 62.0, history((46.0, 51.0), (60.0, 62.0))),
        (history((48.0, 50.0)), 0.0, 50.1, history((48.0, 50.0), (48.0, 50.1), found_first=1)),
        (history((48.0, 50.0)), 25.0, 50.0, history((48.0, 50.0), (48.0, 50.0), found_first=1)),
        (history((48.0, 50.0), found_first=7), 0.0, 25.0, history((48.0, 50.0), (0.0, 25.0))),
        (history((48.0, 50.0), found_first=5), 50.0, 51.0, history((48.0, 50.0), (50.0, 51.0))),
    ],
)
def test_an_effect_is_remembered_as_exactly_as_it_was_read(
    before: EffectHistory, missed_s: float, found_s: float, after: EffectHistory
) -> None:
    assert before.adding(missed_s, found_s) == after


def test_only_so_many_effects_are_remembered() -> None:
    found = history()
    for number in range(3 * REMEMBERED):
        found = found.adding(10.0 * number, 10.0 * number + 1.0)
    assert len(found.effects) == REMEMBERED
    times = ReadTimes()
    for number in range(REMEMBERED_KEYS + 10):
        reboot(times, f"host-{number}", 0.0)
    assert len(times._histories) <= REMEMBERED_KEYS


def reboot(times: ReadTimes, host: str, at: float, *, model: str = "", repeats: int = 0) -> None:
    for _ in range(1 + repeats):
        times.accepted(host, power.SWITCH_ON, at)
    times.read(host, model, power.SWITCH_ON, at + 28.5, at + 28.6, is_effective=False)
    times.read(host, model, power.SWITCH_ON, at + 29.9, at + 30.0, is_effective=True)


def pauses(times: ReadTimes, host: str, action: str = power.SWITCH_ON) -> tuple[float, ...]:
    times.accepted(host, power.SWITCH_ON, 1000.0)
    found = times.first_pauses(host, action)
    times.failed(host)
    assert times.first_pauses(host, action) == ()
    return found


def test_a_host_has_the_times_of_its_own_and_else_those_of_its_model() -> None:
    times = ReadTimes()
    for number in range(ENOUGH):
        reboot(times, "a", 100.0 * number, model="one")
    times.read("b", "one", "", 500.0, 500.1, is_effective=False)
    times.read("c", "another", "", 500.0, 500.1, is_effective=False)
    times.read("d", "", "", 500.0, 500.1, is_effective=False)
    assert pauses(times, "a") == (30.0,)
    assert pauses(times, "b") == (15.0, 15.0)
    assert pauses(times, "c") == pauses(times, "d") == pauses(times, "a", power.SHUT_DOWN) == ()


def test_nothing_is_learned_from_a_repeated_action_or_another_operation() -> None:
    times = ReadTimes()
    for number in range(ENOUGH):
        reboot(times, "a", 100.0 * number, repeats=2)
    assert pauses(times, "a") == ()
    times.accepted("a", power.SWITCH_ON, 0.0)
    times.read("a", "", "", 10.0, 10.1, is_effective=False)
    times.read("a", "", power.SWITCH_ON, 9999.0, 9999.1, is_effective=True)
    assert not times._histories


# ---- with a BMC

SYSTEM = "/redfish/v1/Systems/1"


@dataclass(frozen=True)
class Reboot:
    """What a reboot cost: its requests and duration, and the lag from each change of the power to its reading."""

    requests: int
    took_s: float
    lags_s: tuple[float, float]


async def reboots(cluster: Cluster, bmc: LabBmc, machine: str, grace_s: int = 300) -> Reboot:
    requests, began = bmc.bmc.requests, bmc.clock.now()
    parameters = {"graceSeconds": str(grace_s)}
    name = f"{machine}-{began:.0f}"
    operation = await cluster.ended(await cluster.ask("HostReboot", machine, name=name, parameters=parameters))
    assert operation.status.phase == "Complete", operation.status.message
    took_s = bmc.clock.now() - began
    await asyncio.sleep(20.0)  # the session is given back
    switched = {each.detail: each.at for each in bmc.history() if each.what == "power" and each.at > began}
    reads = [each.at for each in bmc.bmc.journal if each.path == SYSTEM and each.at > began]
    off, on = (min(at for at in reads if at >= (change := switched[state])) - change for state in ("Off", "On"))
    return Reboot(bmc.bmc.requests - requests, took_s, (off, on))


@asynccontextmanager
async def host(cluster: Cluster, name: str = "lab-01") -> AsyncIterator[tuple[LabBmc, str]]:
    async with LabBmc(name, shutdown_s=50.0, boot_s=20.0) as bmc:
        (machine,) = await cluster.add(bmc)
        await asyncio.sleep(600.0)  # its inventory is read
        yield bmc, machine


def test_a_known_host_costs_seven_requests_and_its_model_few_more() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with metalman(cluster), host(cluster) as (bmc, machine):
            unknown, *known = [await reboots(cluster, bmc, machine) for _ in range(EXPLORES_EVERY + ENOUGH)]
            assert unknown.requests == 27
            explored, *rest = sorted((one.requests for one in known[ENOUGH - 1 :]), reverse=True)
            assert set(rest) == {7}, "log-in, two actions, a reading before and one after each, and the log-out"
            assert explored == 7 + 4
            assert max(lag for one in known[ENOUGH - 1 :] for lag in one.lags_s) < 2.0
            async with host(cluster, "lab-02") as (other, named):
                first = await reboots(cluster, other, named)
            assert first.requests == 7 + 2
            assert max(first.lags_s) < 2.0

    run_swiftly(scene(), limit_s=30000.0)


# the seconds of a shutdown, and the most requests of a reboot in the mean: 6, and the readings of both actions
SHUTDOWNS: dict[str, tuple[Callable[[random.Random], float], float]] = {
    "within 0.3 s": (lambda chance: chance.uniform(50.0, 50.3), 7.6),
    "within 2 s": (lambda chance: chance.uniform(49.0, 51.0), 8.2),
    "within 10 s": (lambda chance: chance.uniform(45.0, 55.0), 11.0),
    "normal": (lambda chance: chance.gauss(50.0, 1.5), 9.5),
}


@pytest.mark.soak
@pytest.mark.parametrize("kind", SHUTDOWNS)
def test_requests_of_a_host_whose_shutdowns_vary_and_how_late_they_are_read(kind: str) -> None:
    """No host is within 6 requests and 2 s: the log-in, the log-out, two actions and three readings are 7 already."""
    draw, most = SHUTDOWNS[kind]

    async def scene() -> None:
        cluster, chance = Cluster(), random.Random(19)
        async with metalman(cluster), host(cluster) as (bmc, machine):
            known = []
            for number in range(80):
                bmc.host().traits = replace(bmc.host().traits, shutdown_s=draw(chance))
                figures = await reboots(cluster, bmc, machine)
                known += [figures] if number >= REMEMBERED else []
        lags = sorted(one.lags_s[0] for one in known)
        mean = sum(one.requests for one in known) / len(known)
        p95 = lags[int(0.95 * len(lags))]
        print(f"{kind}: {mean:.1f} requests, p95 {p95:.2f} s")
        assert p95 <= 2.0
        assert 7 <= mean <= most

    run_swiftly(scene(), limit_s=60000.0)


def test_a_faster_host_is_found_out() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with metalman(cluster), host(cluster) as (bmc, machine):
            for _ in range(ENOUGH):
                await reboots(cluster, bmc, machine)
            bmc.host().traits = replace(bmc.host().traits, shutdown_s=5.0)
            figures = [await reboots(cluster, bmc, machine) for _ in range(EXPLORES_EVERY + 2)]
            assert figures[0].took_s > 70.0 > 30.0 > figures[-1].took_s
            assert max(figures[-1].lags_s) < 2.0

    run_swiftly(scene(), limit_s=30000.0)


def test_a_reading_is_never_later_than_the_limit_of_the_stage() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with metalman(cluster), host(cluster) as (bmc, machine):
            for _ in range(ENOUGH):
                await reboots(cluster, bmc, machine)
            assert (await reboots(cluster, bmc, machine, grace_s=10)).took_s < 10.0 + 20.0 + 2 * 2.0

    run_swiftly(scene(), limit_s=30000.0)
