"""Power of instances in Oracle's cloud, from end to end: the engine, the provider, the SDK and a simulated cloud."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from tests.machineops.oci.world import OciWorld, oci_story, wait
from tests.operations.staging import result
from unbounded.machineops import reasons
from unbounded.operations import reasons as common
from unbounded_lab.cloud.oci import InstanceAction, InstanceState
from unbounded_lab.cloud.oci.misbehaviours import TABLE
from unbounded_lab.cloud.oci.power import act


async def _run(
    world: OciWorld, kind: str, state: InstanceState = InstanceState.RUNNING, **parameters: str
) -> tuple[str, str, str]:
    """One operation; how it ended, why, and in what words."""
    await world.oci_machine(state=state)
    world.steward().start()
    world.controller().start()
    await world.operation("op", kind, "m1", parameters=parameters)
    ended = await world.ended("op", within_s=3600)
    phase, reason = result(ended)
    return phase or "", reason or "", ended.status.message or ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "state", "asked", "becomes"),
    [
        ("HostReboot", InstanceState.RUNNING, ["RESET"], "RUNNING"),
        ("HostPowerOff", InstanceState.RUNNING, ["SOFTSTOP"], "STOPPED"),
        ("HostPowerOff", InstanceState.STOPPED, [], "STOPPED"),
        ("HostPowerOn", InstanceState.STOPPED, ["START"], "RUNNING"),
        ("HostPowerOn", InstanceState.RUNNING, [], "RUNNING"),
    ],
)
@oci_story()
async def test_each_power_operation_sends_its_actions_and_completes(
    world: OciWorld, kind: str, state: InstanceState, asked: list[str], becomes: str
) -> None:
    phase, _, _ = await _run(world, kind, state)
    assert phase == "Complete"
    assert world.asked == asked
    assert world._power("m1") == becomes


@oci_story()
async def test_a_forced_stop_does_not_wait_for_the_operating_system(world: OciWorld) -> None:
    phase, _, _ = await _run(world, "HostPowerOff", force="true")
    assert phase == "Complete"
    assert world.asked == ["STOP"]


@pytest.mark.slow
@oci_story("os-ignores-shutdown")
async def test_an_operating_system_that_does_not_listen_loses_its_power(world: OciWorld) -> None:
    phase, _, _ = await _run(world, "HostPowerOff")
    assert phase == "Complete"
    assert world.asked == ["SOFTSTOP"]


@oci_story()
async def test_a_deallocate_is_refused_in_words(world: OciWorld) -> None:
    phase, reason, message = await _run(world, "HostPowerOff", deallocate="true")
    assert (phase, reason) == ("Failed", common.INVALID_PARAMETERS)
    assert "spec.parameters.deallocate is not a parameter of HostPowerOff on this Machine; supported: force" in message
    assert world.asked == []


FAILS = {
    ("ignores-actions", "HostReboot"): (common.OUTCOME_UNKNOWN, "RESET was accepted, and had no visible effect for "),
    ("hides-resets", "HostReboot"): (common.OUTCOME_UNKNOWN, "RESET was accepted, and had no visible effect for "),
    ("starts-fail", "HostReboot"): (common.TIMED_OUT, "the instance to be running again: instance …fwmjzq is STOPPED"),
    ("stop-never-ends", "HostReboot"): (common.TIMED_OUT, "to be running again: instance …fwmjzq is STOPPING"),
    ("stop-never-ends", "HostPowerOff"): (common.TIMED_OUT, "for the instance to be off: instance …fwmjzq is STOPPING"),
    **{
        (profile, kind): end
        for profile, end in {
            "stalls": (common.NO_ANSWER, "no answer yet from OCIInstance oci://ocid1.instance."),
            "stalls-before-acting": (common.NO_ANSWER, "no answer yet from OCIInstance oci://ocid1.instance."),
            "key-is-revoked": (reasons.AUTH_REFUSED, "OCI rejected MachineOperationCredential oci (its key is unknown"),
            "clock-is-ahead": (reasons.AUTH_REFUSED, "or the clocks differ by more than 5 minutes"),
            "no-permission": (
                reasons.AUTH_REFUSED,
                "does not exist, or MachineOperationCredential oci has no permission",
            ),
            "no-permission-to-look": (
                reasons.INSTANCE_NOT_FOUND,
                "does not exist, or MachineOperationCredential oci has no permission; get_instance: 404",
            ),
            "forbidden": (
                reasons.AUTH_REFUSED,
                "MachineOperationCredential oci has no permission; instance_action: 403 NotAuthorized",
            ),
        }.items()
        for kind in ("HostReboot", "HostPowerOff", "HostPowerOn")
    },
}
"""What cannot succeed, and why it says that it did not."""

OF_REPLACEMENTS = (
    *("capac", "over-", "launch", "vnic", "retry-tokens", "terminate", "work-requests", "stale-lists"),
    *("permission-for-networks", "permission-for-volumes"),
)
PROFILES = [profile for profile in TABLE.turns if not any(part in profile for part in OF_REPLACEMENTS)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["HostReboot", "HostPowerOff", "HostPowerOn"])
@pytest.mark.parametrize("profile", PROFILES)
def test_it_succeeds_whatever_the_cloud_does_or_says_why(profile: str, kind: str) -> None:
    @oci_story(profile)
    async def story(world: OciWorld) -> None:
        on = kind != "HostPowerOn"
        phase, reason, message = await _run(world, kind, InstanceState.RUNNING if on else InstanceState.STOPPED)
        if (profile, kind) in FAILS:
            expected, words = FAILS[profile, kind]
            assert (phase, reason) == ("Failed", expected)
            assert words in message
        else:
            assert (phase, reason) == ("Complete", common.SUCCEEDED)
            assert world._power("m1") == ("STOPPED" if kind == "HostPowerOff" else "RUNNING")
        if kind == "HostReboot":
            assert len(_resets(world)) == (0 if phase == "Failed" and profile not in ALL_THE_SAME else 1)

    story()


ALL_THE_SAME = {"hides-resets", "starts-fail", "stop-never-ends"}
"""What was reset, though it is not known, or not well after it."""


def _resets(world: OciWorld) -> list[float]:
    """When the cloud has begun with a RESET, in truth."""
    events = world.near.history.of("Instance", "m1")
    return [each.at for each in events if (each.what, each.detail) == ("asked", "RESET")]


STALLED = {"stalls": 1, "stall_s": 30.0, "of": "changes"}
LOST: dict[str, dict[str, Any]] = {
    "again and again": {"lost_after": 4, "of": "changes"},
    "and acts 30 s later": {"stall_then": "acts-after", **STALLED},
    "after it has acted": {"stall_then": "acted-before", **STALLED},
    "in an error": {"errors": ("InternalServerError", "ServiceUnavailable", "TooManyRequests"), "of": "changes"},
}


@pytest.mark.slow
@pytest.mark.parametrize("how", LOST)
def test_reset_with_lost_answer_is_retried_with_its_token_and_happens_once(how: str) -> None:
    @oci_story()
    async def story(world: OciWorld) -> None:
        world.near.set_faults(**LOST[how])
        assert (await _run(world, "HostReboot"))[:2] == ("Complete", common.SUCCEEDED)
        await asyncio.sleep(120)
        assert len(_resets(world)) == 1
        assert len(world.asked) > 1

    story()


UNSEEN = {"reset_s": 0.0, "reset_shown": "running"}
FAST: dict[str, tuple[dict[str, Any], str, float]] = {
    "which its answer shows": ({"reset_s": 0.0}, "InstanceAction", 90),
    "whose record lags behind": ({"reset_s": 0.0, "get_lag_s": 10.0}, "InstanceAction", 90),
    "of which a list has the work request": ({**UNSEEN, "action_work": "listed"}, "GetWorkRequest ocid1.core", 20),
    "whose answer names the work request": ({**UNSEEN, "action_work": "told"}, "GetWorkRequest ocid1.core", 20),
    "though its answers are lost": (
        {**UNSEEN, "action_work": "told", "lost_after": 3, "of": "changes"},
        "GetWorkRequest ocid1.core",
        30,
    ),
    "though its answers are lost, and no other one names it": (
        {**UNSEEN, "action_work": "listed", "lost_after": 3, "of": "changes"},
        "GetWorkRequest ocid1.core",
        30,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", FAST)
def test_a_reset_that_is_over_at_the_first_look_is_proven(how: str) -> None:
    faults, where, within_s = FAST[how]

    @oci_story()
    async def story(world: OciWorld) -> None:
        world.near.set_faults(**faults)
        assert (await _run(world, "HostReboot"))[:2] == ("Complete", common.SUCCEEDED)
        (evidence,) = (await world.get("op")).status.evidence
        assert where in evidence.where
        (reset,) = _resets(world)
        assert world.near.now - reset < within_s

    story()


@pytest.mark.slow
@pytest.mark.parametrize("reset_s", range(4, 12))
@oci_story()
async def test_a_reset_that_was_seen_once_on_its_way_is_proven(world: OciWorld, reset_s: int) -> None:
    world.near.set_faults(slow_s=3.0, reset_s=float(reset_s))
    assert (await _run(world, "HostReboot"))[:2] == ("Complete", common.SUCCEEDED)


@pytest.mark.slow
@oci_story()
async def test_what_somebody_else_did_earlier_is_not_taken_for_the_reset(world: OciWorld) -> None:
    world.near.set_faults(action_work="listed", reset_s=0.0)
    instance = await world.oci_machine()
    act(world.near.tenancy, instance, InstanceAction.RESET, world.near.now)
    await asyncio.sleep(10)
    world.near.set_faults(deaf_actions=1)
    world.steward().start()
    world.controller().start()
    await world.operation("op", "HostReboot", "m1")
    assert result(await world.ended("op", within_s=600)) == ("Failed", common.OUTCOME_UNKNOWN)


@pytest.mark.slow
@oci_story()
async def test_failed_reset_reports_the_error_of_its_work_request(
    world: OciWorld,
) -> None:
    world.near.set_faults(action_work="told", failing_starts=1)
    phase, reason, message = await _run(world, "HostReboot")
    assert (phase, reason) == ("Failed", reasons.PROVIDER_OPERATION_FAILED)
    assert "RESET has failed: OutOfHostCapacity: Out of host capacity.; instance …fwmjzq is STOPPED" in message


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["HostReboot", "HostReplace"])
@oci_story()
async def test_throttled_tenancy_gets_no_requests_until_retry_after(world: OciWorld, kind: str) -> None:
    world.near.set_faults(spared=2, errors=("TooManyRequests",), retry_after_s=25.0)
    assert (await _run(world, kind))[0] == "Complete"
    (refused,) = (place for place, each in enumerate(world.near.journal) if each.status == 429)
    assert all(each.at - world.near.journal[refused].at >= 25 for each in world.near.journal[refused + 1 :])


@pytest.mark.slow
@oci_story()
async def test_a_work_request_is_asked_for_as_often_as_it_says(world: OciWorld) -> None:
    world.near.set_faults(action_work="told", work_again_s=7.0)
    assert (await _run(world, "HostReboot"))[0] == "Complete"
    asked = [each.at for each in world.near.journal if each.call == "GetWorkRequest"]
    assert len(asked) > 3
    assert min(later - earlier for earlier, later in pairwise(asked)) >= 7


@pytest.mark.slow
@oci_story()
async def test_reset_over_before_its_lost_answer_has_unknown_outcome(world: OciWorld) -> None:
    world.near.set_faults(lost_after=6, of="changes")
    began = asyncio.get_running_loop().time()
    phase, reason, message = await _run(world, "HostReboot")
    assert (phase, reason) == ("Failed", common.OUTCOME_UNKNOWN)
    assert "had no visible effect for " in message
    assert "; instance …fwmjzq is RUNNING" in message
    assert len(_resets(world)) == 1
    assert asyncio.get_running_loop().time() - began < 300


@pytest.mark.slow
@pytest.mark.parametrize(
    "lost",
    [
        {"lost_after": 1, "of": "changes"},
        {"lost_before": 1, "of": "changes"},
        {},
        {**UNSEEN, "action_work": "told", "lost_after": 1, "of": "changes"},
        {**UNSEEN, "action_work": "told"},
    ],
)
@oci_story()
async def test_a_reset_is_done_once_though_the_controller_crashes_upon_it(
    world: OciWorld, lost: dict[str, Any]
) -> None:
    world.near.set_faults(slow_s=3.0, **lost)
    await world.oci_machine()
    world.steward().start()
    first = world.controller().start()
    await world.operation("op", "HostReboot", "m1")
    await wait(lambda: world.asked)
    await first.stop()
    await asyncio.sleep(5)
    world.controller().start()
    assert result(await world.ended("op", within_s=300)) == ("Complete", common.SUCCEEDED)
    assert len(_resets(world)) == 1


@pytest.mark.slow
@oci_story()
async def test_next_controller_follows_the_work_request_of_a_reset(world: OciWorld) -> None:
    world.near.set_faults(reset_shown="running", action_work="listed")
    await world.oci_machine()
    world.steward().start()
    first = world.controller().start()
    await world.operation("op", "HostReboot", "m1")
    await world.until("op", lambda one: bool(one.status.execution and one.status.execution.handle), within_s=60)
    await first.stop()
    world.controller().start()
    ended = await world.ended("op", within_s=300)
    assert result(ended) == ("Complete", common.SUCCEEDED)
    assert "GetWorkRequest ocid1.coreservicesworkrequest." in ended.status.evidence[0].where
    assert len(_resets(world)) == 1


@oci_story()
async def test_reset_with_lost_answer_and_later_stop_has_unknown_outcome(
    world: OciWorld,
) -> None:
    world.near.set_faults(lost_after=1, of="changes")
    instance = await world.oci_machine()
    world.steward().start()
    world.controller().start()
    await world.operation("op", "HostReboot", "m1")
    await wait(lambda: _resets(world))
    tenancy = world.near.tenancy
    tenancy.begin(instance, world.near.now)
    tenancy.enter(instance, InstanceState.STOPPED, world.near.now)
    ended = await world.ended("op", within_s=60)
    assert result(ended) == ("Failed", common.OUTCOME_UNKNOWN)
    assert "was done, and something else changed since: instance_action: 409 InvalidatedRetryToken" in (
        ended.status.message or ""
    )


@pytest.mark.slow
@oci_story()
async def test_a_restart_takes_two_calls_and_its_polls(world: OciWorld) -> None:
    assert (await _run(world, "HostReboot"))[0] == "Complete"
    calls = [each.call for each in world.near.journal]
    assert [call for call in calls if call != "GetInstance"] == ["InstanceAction"]
    assert len(calls) <= 2 + 15  # 40 s, observed every 5 s in the end
