"""Nothing is left out, and without a misbehaviour all goes well."""

from __future__ import annotations

from tests.lab.misbehaviours import (
    test_access,
    test_answers,
    test_boot,
    test_console,
    test_events,
    test_hosts,
    test_power,
    test_reports,
)
from tests.lab.wire import wire
from unbounded_lab.bmc.misbehaviours import MISBEHAVIOURS


def test_every_misbehaviour_is_shown() -> None:
    shown = [
        name
        for module in (
            test_power,
            test_reports,
            test_boot,
            test_access,
            test_answers,
            test_events,
            test_console,
            test_hosts,
        )
        for name in module.CHECKS
    ]
    assert sorted(shown) == sorted(MISBEHAVIOURS)


async def test_without_faults_a_machine_is_rebooted() -> None:
    async with wire("ideal") as talk:
        assert (await talk.reset("GracefulShutdown")).status == 204
        talk.clock.move(1.0)
        assert await talk.shown_power() == "Off"
        assert (await talk.reset("On")).status == 204
        talk.clock.move(2.0)
        assert await talk.shown_power() == "On"
        assert [event.detail for event in talk.bmc.history()] == [
            *("GracefulShutdown", "PoweringOff", "Off"),
            *("On", "PoweringOn", "Hdd", "On"),
        ]
