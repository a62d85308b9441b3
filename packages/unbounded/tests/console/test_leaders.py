"""Leases of a site's processes: which changes show, and which Leases are late, whatever the clocks of their holders."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from unbounded.api.core import Lease
from unbounded.console.models.leaders import LATE_S, LeaderTimes
from unbounded.kube.clock import rfc3339

NAME = "metalman-lab"


class Wall:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.at = datetime(2030, 1, 1, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.at

    def go_on(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


def lease(renewed: datetime, holder: str = "pod-1", name: str = NAME) -> Lease:
    spec = {"holderIdentity": holder, "renewTime": rfc3339(renewed, micro=True)}
    return msgspec.convert({"metadata": {"name": name}, "spec": spec}, Lease)


def test_a_renewal_in_time_does_not_show_and_another_holder_does() -> None:
    wall = Wall()
    leaders = LeaderTimes({NAME}, wall)
    last = lease(wall())
    assert leaders.note(None, last)
    for _ in range(40):
        wall.go_on(2)
        before, last = last, lease(wall())
        assert not leaders.note(before, last)
        assert not leaders.has_aged()
    assert leaders.note(last, lease(wall(), "pod-2"))
    assert leaders.note(lease(wall(), "pod-2"), None)
    assert not leaders.note(None, lease(wall(), name="metalman-elsewhere"))


def test_a_lease_is_late_once_and_not_any_more_after_a_renewal() -> None:
    wall = Wall()
    leaders = LeaderTimes({NAME}, wall)
    last = lease(wall())
    leaders.note(None, last)
    wall.go_on(LATE_S)
    assert not leaders.has_aged()
    wall.go_on(1)
    assert leaders.has_aged()
    assert leaders.late == {NAME}
    assert not leaders.has_aged()
    assert leaders.note(last, lease(wall()))
    assert leaders.late == frozenset()


@pytest.mark.parametrize("skew_s", [-3600.0, 3600.0])
def test_the_clock_of_a_holder_counts_until_its_first_renewal_alone(skew_s: float) -> None:
    wall = Wall()
    leaders = LeaderTimes({NAME}, wall)
    last = lease(wall() + timedelta(seconds=skew_s))
    leaders.note(None, last)
    assert bool(leaders.late) == (skew_s < 0)
    wall.go_on(2)
    leaders.note(last, lease(wall() + timedelta(seconds=skew_s)))
    assert not leaders.late
    wall.go_on(LATE_S + 1)
    assert leaders.has_aged()
    assert leaders.late


def test_a_time_without_a_watch_makes_no_lease_late() -> None:
    wall = Wall()
    leaders = LeaderTimes({NAME, "unbounded-operations"}, wall)
    leaders.note(None, lease(wall()))
    leaders.note(None, lease(wall() - timedelta(hours=1), name="unbounded-operations"))
    assert leaders.late == {"unbounded-operations"}
    leaders.interrupt()
    wall.go_on(600)
    assert not leaders.has_aged()
    assert leaders.late == {"unbounded-operations"}
    wall.go_on(LATE_S + 1)
    assert leaders.has_aged()
    assert leaders.late == {"unbounded-operations", NAME}


def test_a_lease_that_is_gone_is_not_remembered() -> None:
    wall = Wall()
    leaders = LeaderTimes({NAME}, wall)
    last = lease(wall() - timedelta(hours=1))
    assert leaders.note(None, last)
    assert leaders.late
    assert leaders.note(last, None)
    assert not leaders.late
    assert not leaders.has_aged()


def test_by_observation_no_clock_of_a_holder_counts() -> None:
    wall = Wall()
    leaders = LeaderTimes(None, wall, late_s=15, by_observation=True)
    old = lease(wall() - timedelta(hours=1))
    assert leaders.note(None, old)
    assert not leaders.late
    wall.go_on(15)
    assert not leaders.has_aged()
    wall.go_on(1)
    assert leaders.has_aged()
    assert leaders.late == {NAME}
    assert leaders.note(old, lease(wall() - timedelta(hours=1, seconds=-1)))
    assert not leaders.late
