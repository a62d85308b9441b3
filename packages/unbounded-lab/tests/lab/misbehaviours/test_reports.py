"""Wrong reports of the power."""

from __future__ import annotations

import pytest

from tests.lab.misbehaviours.checks import Checks
from tests.lab.wire import Answer, Wire
from unbounded_lab.bmc import HostPower

CHECKS = Checks()


@CHECKS.shows
async def lies_about_power(talk: Wire) -> None:
    await talk.reset("ForceOff")
    assert talk.bmc.power() is HostPower.OFF
    talk.clock.move(9.9)
    assert await talk.shown_power() == "On"
    talk.clock.move(0.1)
    assert await talk.shown_power() == "Off"


@CHECKS.shows
async def stale_power(talk: Wire) -> None:
    assert await talk.shown_power() == "On"
    await talk.reset("ForceOff")
    talk.clock.move(4.9)
    assert await talk.shown_power() == "On"
    talk.clock.move(0.1)
    assert await talk.shown_power() == "Off"


async def in_transition(talk: Wire) -> Answer:
    await talk.reset("GracefulShutdown")
    assert talk.bmc.power() is HostPower.POWERING_OFF
    changing = await talk.get()
    talk.clock.move(1.0)
    assert await talk.shown_power() == "Off"
    return changing


@CHECKS.shows
async def hides_transitions(talk: Wire) -> None:
    assert (await in_transition(talk)).json["PowerState"] == "On"
    await talk.reset("On")
    assert await talk.shown_power() == "On"
    assert talk.bmc.power() is HostPower.POWERING_ON


@CHECKS.shows
async def null_power_in_transition(talk: Wire) -> None:
    assert (await in_transition(talk)).json["PowerState"] is None


@CHECKS.shows
async def no_power_in_transition(talk: Wire) -> None:
    assert "PowerState" not in (await in_transition(talk)).json


@CHECKS.shows
async def unknown_power_in_transition(talk: Wire) -> None:
    assert (await in_transition(talk)).json["PowerState"] == "Unknown"


@CHECKS.shows
async def odd_power_in_transition(talk: Wire) -> None:
    assert (await in_transition(talk)).json["PowerState"] == "Starting"


@CHECKS.shows
async def empty_system_in_transition(talk: Wire) -> None:
    changing = await in_transition(talk)
    assert (changing.status, changing.body) == (200, b"")


@pytest.mark.parametrize("name", CHECKS)
async def test_it_does_what_it_says(name: str) -> None:
    await CHECKS.show(name)
