"""The host behind a BMC, as a state machine: hand-written stories, and what holds in every story."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbounded_lab.bmc.power import (
    EFFECTS,
    HostBootOverride,
    HostPower,
    HostTraits,
    OverrideEnabled,
    Press,
    PressEffect,
    SimulatedHost,
)

TRAITS = HostTraits(shutdown_s=4.0, boot_s=10.0, cycle_off_s=2.0)

LEGAL = {
    (HostPower.OFF, HostPower.POWERING_ON),
    (HostPower.POWERING_ON, HostPower.ON),
    (HostPower.POWERING_ON, HostPower.OFF),
    (HostPower.POWERING_ON, HostPower.POWERING_ON),  # a reset during the boot
    (HostPower.ON, HostPower.POWERING_OFF),
    (HostPower.ON, HostPower.OFF),
    (HostPower.ON, HostPower.POWERING_ON),  # a reset
    (HostPower.POWERING_OFF, HostPower.OFF),
    (HostPower.POWERING_OFF, HostPower.POWERING_ON),
}


def powers(host: SimulatedHost) -> list[tuple[float, str]]:
    return [(event.at, event.detail) for event in host.history if event.what == "power"]


def power_at(host: SimulatedHost, now: float) -> HostPower:
    host.advance(now)
    return host.power


def boots(host: SimulatedHost) -> list[str]:
    return [event.detail for event in host.history if event.what == "boot"]


def test_every_press_has_an_effect_in_every_state() -> None:
    assert EFFECTS.keys() == set(product(Press, HostPower))


def test_an_orderly_shutdown_takes_its_time() -> None:
    host = SimulatedHost(TRAITS, now=0.0)
    assert host.press(Press.GRACEFUL_SHUTDOWN, 1.0) is PressEffect.SHUT_DOWN
    assert power_at(host, 4.9) is HostPower.POWERING_OFF
    assert power_at(host, 5.0) is HostPower.OFF


def test_power_is_taken_at_once_and_a_boot_takes_its_time() -> None:
    host = SimulatedHost(TRAITS, now=0.0)
    host.press(Press.FORCE_OFF, 1.0)
    host.press(Press.ON, 2.0)
    host.advance(50.0)
    assert powers(host) == [(1.0, "Off"), (2.0, "PoweringOn"), (12.0, "On")]


def test_a_graceful_restart_goes_through_an_orderly_shutdown() -> None:
    host = SimulatedHost(TRAITS, now=0.0)
    host.press(Press.GRACEFUL_RESTART, 0.0)
    host.advance(100.0)
    assert powers(host) == [(0.0, "PoweringOff"), (4.0, "PoweringOn"), (14.0, "On")]


def test_a_power_cycle_is_off_for_a_moment() -> None:
    host = SimulatedHost(TRAITS, now=0.0)
    host.press(Press.POWER_CYCLE, 0.0)
    host.advance(100.0)
    assert powers(host) == [(0.0, "Off"), (2.0, "PoweringOn"), (12.0, "On")]


def test_on_during_a_shutdown_is_lost() -> None:
    host = SimulatedHost(TRAITS, now=0.0)
    host.press(Press.GRACEFUL_SHUTDOWN, 0.0)
    assert host.press(Press.ON, 1.0) is PressEffect.ALREADY
    host.advance(100.0)
    assert host.power is HostPower.OFF


def test_an_operating_system_can_ignore_the_button() -> None:
    host = SimulatedHost(HostTraits(ignores_shutdown=True), now=0.0)
    assert host.press(Press.GRACEFUL_SHUTDOWN, 0.0) is PressEffect.NOTHING
    assert host.press(Press.PUSH_POWER_BUTTON, 0.0) is PressEffect.NOTHING
    assert host.press(Press.FORCE_OFF, 0.0) is PressEffect.HALT


def test_a_board_can_switch_itself_on_again() -> None:
    host = SimulatedHost(HostTraits(comes_back_s=3.0, boot_s=1.0), now=0.0)
    host.press(Press.FORCE_OFF, 0.0)
    assert power_at(host, 2.9) is HostPower.OFF
    assert power_at(host, 4.0) is HostPower.ON


def test_once_boots_once_from_the_network() -> None:
    host = SimulatedHost(TRAITS, now=0.0)
    host.boot = HostBootOverride(OverrideEnabled.ONCE, "Pxe")
    for at in (0.0, 100.0):
        host.press(Press.FORCE_RESTART, at)
    assert boots(host) == ["Pxe", "Hdd"]
    assert host.boot.enabled is OverrideEnabled.DISABLED


def test_continuous_boots_from_the_network_each_time() -> None:
    host = SimulatedHost(TRAITS, now=0.0)
    host.boot = HostBootOverride(OverrideEnabled.CONTINUOUS, "Pxe")
    for at in (0.0, 100.0):
        host.press(Press.FORCE_RESTART, at)
    assert boots(host) == ["Pxe", "Pxe"]


def test_a_firmware_can_ignore_the_override() -> None:
    host = SimulatedHost(HostTraits(ignores_override=True), now=0.0)
    host.boot = HostBootOverride(OverrideEnabled.ONCE, "Pxe")
    host.press(Press.FORCE_RESTART, 0.0)
    assert boots(host) == ["Hdd"]


class Recorder:
    """A board that records its notifications."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def start(self, boot: HostBootOverride) -> None:
        self.told.append(f"start from {boot.source}")

    def halt(self) -> None:
        self.told.append("halt")

    def press_button(self) -> None:
        self.told.append("button")


def with_board(power: HostPower) -> tuple[SimulatedHost, Recorder]:
    host = SimulatedHost(TRAITS, now=0.0, power=power)
    host.board = board = Recorder()
    return host, board


def test_a_board_does_what_its_host_does() -> None:
    host, board = with_board(HostPower.OFF)
    host.boot = HostBootOverride(OverrideEnabled.ONCE, "Pxe")
    for at, press in ((0.0, Press.ON), (20.0, Press.FORCE_RESTART), (40.0, Press.FORCE_OFF), (50.0, Press.FORCE_OFF)):
        host.press(press, at)
    assert board.told == ["start from Pxe", "start from Hdd", "halt"]


def test_with_a_board_a_shutdown_takes_as_long_as_it_takes() -> None:
    host, board = with_board(HostPower.ON)
    host.press(Press.GRACEFUL_SHUTDOWN, 0.0)
    assert power_at(host, 100.0) is HostPower.POWERING_OFF
    host.board_ended(101.0)
    assert host.power is HostPower.OFF
    assert board.told == ["button", "halt"]


def test_a_graceful_restart_of_a_board_starts_it_when_it_has_ended() -> None:
    host, board = with_board(HostPower.ON)
    host.press(Press.GRACEFUL_RESTART, 0.0)
    host.board_ended(5.0)
    assert host.power is HostPower.POWERING_ON
    assert board.told == ["button", "start from Hdd"]


def test_self_resetting_board_boots_from_its_next_boot_device() -> None:
    host, board = with_board(HostPower.OFF)
    host.boot = HostBootOverride(OverrideEnabled.ONCE, "Pxe")
    host.press(Press.ON, 0.0)
    host.board_ended(30.0, restarts=True)
    assert host.power is HostPower.POWERING_ON
    assert boots(host) == ["Pxe", "Hdd"]
    assert board.told == ["start from Pxe", "start from Hdd"]


@pytest.mark.parametrize(
    ("restore", "before", "after"),
    [
        ("AlwaysOff", HostPower.ON, HostPower.OFF),
        ("AlwaysOn", HostPower.OFF, HostPower.ON),
        ("LastState", HostPower.ON, HostPower.ON),
        ("LastState", HostPower.OFF, HostPower.OFF),
    ],
)
def test_the_mains_come_back_to_what_the_policy_says(restore: str, before: HostPower, after: HostPower) -> None:
    host = SimulatedHost(TRAITS, now=0.0, power=before)
    host.unplug(1.0)
    assert host.power is HostPower.OFF
    assert host.press(Press.ON, 2.0) is PressEffect.IMPOSSIBLE
    host.plug(3.0, restore=restore)
    host.advance(100.0)
    assert host.power is after


steps = st.lists(st.tuples(st.floats(0.0, 20.0), st.sampled_from([*Press, "unplug", "plug"])), min_size=1, max_size=30)
some_traits = st.builds(
    HostTraits,
    shutdown_s=st.floats(0.0, 5.0),
    boot_s=st.floats(0.0, 5.0),
    cycle_off_s=st.floats(0.0, 5.0),
    ignores_shutdown=st.booleans(),
    comes_back_s=st.none() | st.floats(0.5, 5.0),
)


def lived(host: SimulatedHost, story: list[tuple[float, Press | str]], looks: list[float]) -> SimulatedHost:
    """Return the host after a story, brought up to date at some times in between."""
    now = 0.0
    for pause, step in story:
        then = now + pause
        for look in sorted(looks):
            if now < look < then:
                host.advance(look)
        now = then
        match step:
            case "unplug":
                host.unplug(now)
            case "plug":
                host.plug(now, restore="LastState")
            case Press():
                host.press(step, now)
    host.advance(now + 100.0)
    return host


@pytest.mark.slow
@given(some_traits, steps, st.lists(st.floats(0.0, 600.0), max_size=20))
def test_looking_at_a_host_changes_nothing(
    traits: HostTraits, story: list[tuple[float, Press | str]], looks: list[float]
) -> None:
    watched = lived(SimulatedHost(traits, now=0.0), story, looks)
    alone = lived(SimulatedHost(traits, now=0.0), story, [])
    assert list(watched.history) == list(alone.history)
    assert (watched.power, watched.boots) == (alone.power, alone.boots)


@pytest.mark.slow
@given(some_traits, steps)
def test_what_holds_in_every_story(traits: HostTraits, story: list[tuple[float, Press | str]]) -> None:
    host = lived(SimulatedHost(traits, now=0.0), story, [])
    times = [event.at for event in host.history]
    assert times == sorted(times)
    assert host.boots == len(boots(host))
    states = [HostPower.ON, *(HostPower(detail) for _, detail in powers(host))]
    assert all(pair in LEGAL or pair[1] is HostPower.OFF for pair in pairwise(states))
    assert states[-1] is host.power
    assert host.boots == sum(state is HostPower.POWERING_ON for state in states)
    assert host.mains or host.power is HostPower.OFF
    if traits.comes_back_s is None:
        assert host.power in (HostPower.ON, HostPower.OFF), "left alone for long enough, it settles"
