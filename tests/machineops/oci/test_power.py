"""Power of instances in Oracle's cloud, from end to end: the engine, the provider, the SDK and a simulated cloud."""

from __future__ import annotations

import pytest

from tests.machineops.oci.world import OciWorld, oci_story
from tests.operations.staging import result
from unbounded.lab.cloud.oci import State
from unbounded.lab.cloud.oci.misbehaviours import TABLE
from unbounded.machineops import reasons
from unbounded.operations import reasons as common


async def _run(world: OciWorld, kind: str, state: State = State.RUNNING, **parameters: str) -> tuple[str, str, str]:
    """One operation; how it ended, why, and in what words."""
    await world.oci_machine(state=state)
    world.steward().start()
    world.controller().start()
    await world.operation("op", kind, "m1", parameters=parameters)
    ended = await world.ended("op", within_s=3600)
    phase, reason = result(ended)
    return phase or "", reason or "", ended.status.message or ""


@pytest.mark.parametrize(
    ("kind", "state", "asked", "becomes"),
    [
        ("HostReboot", State.RUNNING, ["RESET"], "RUNNING"),
        ("HostPowerOff", State.RUNNING, ["STOP"], "STOPPED"),
        ("HostPowerOff", State.STOPPED, [], "STOPPED"),
        ("HostPowerOn", State.STOPPED, ["START"], "RUNNING"),
        ("HostPowerOn", State.RUNNING, [], "RUNNING"),
    ],
)
@oci_story()
async def test_each_operation_asks_for_what_is_needed_and_follows_it_to_its_end(
    world: OciWorld, kind: str, state: State, asked: list[str], becomes: str
) -> None:
    phase, _, _ = await _run(world, kind, state)
    assert phase == "Complete"
    assert world.asked == asked
    assert world._power("m1") == becomes


@oci_story()
async def test_a_deallocate_is_refused_in_words(world: OciWorld) -> None:
    phase, reason, message = await _run(world, "HostPowerOff", deallocate="true")
    assert (phase, reason) == ("Failed", common.INVALID_PARAMETERS)
    assert "spec.parameters.deallocate is not a parameter of HostPowerOff on this Machine; it takes: force" in message
    assert world.asked == []


FAILS = {
    ("answers-lost-after-acting", "HostReboot"): (common.OUTCOME_UNKNOWN, "whether Restart was done cannot be seen"),
    ("answers-lost-before-acting", "HostReboot"): (common.OUTCOME_UNKNOWN, "whether Restart was done cannot be seen"),
    ("bad-gateway", "HostReboot"): (common.OUTCOME_UNKNOWN, "whether Restart was done cannot be seen"),
    ("gateway-times-out", "HostReboot"): (common.OUTCOME_UNKNOWN, "whether Restart was done cannot be seen"),
    ("ignores-actions", "HostReboot"): (common.TIMED_OUT, "for the provider to record the restart: instance …"),
    ("hides-resets", "HostReboot"): (common.TIMED_OUT, "for the provider to record the restart: instance …"),
    ("starts-fail", "HostReboot"): (common.TIMED_OUT, "the instance to be running again: instance …fwmjzq is STOPPED"),
    ("stop-never-ends", "HostReboot"): (common.TIMED_OUT, "to be running again: instance …fwmjzq is STOPPING"),
    ("stop-never-ends", "HostPowerOff"): (common.TIMED_OUT, "for the instance to be off: instance …fwmjzq is STOPPING"),
    **{
        (profile, kind): end
        for profile, end in {
            "stalls": (common.NO_ANSWER, "get_instance: no answer within 20 s"),
            "stalls-before-acting": (common.NO_ANSWER, "get_instance: no answer within 20 s"),
            "key-is-revoked": (reasons.AUTH_REFUSED, "MachineOperationCredential oci is refused (its key is not"),
            "clock-is-ahead": (reasons.AUTH_REFUSED, "or the clocks are more than 5 minutes apart"),
            "no-permission": (reasons.AUTH_REFUSED, "not there, or MachineOperationCredential oci may not do it"),
            "no-permission-to-look": (
                reasons.INSTANCE_NOT_FOUND,
                "not there, or MachineOperationCredential oci may not do it; get_instance: 404",
            ),
            "forbidden": (
                reasons.AUTH_REFUSED,
                "MachineOperationCredential oci may not do it; instance_action: 403 NotAuthorized",
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


@pytest.mark.parametrize("kind", ["HostReboot", "HostPowerOff", "HostPowerOn"])
@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.slow
def test_it_succeeds_whatever_the_cloud_does_or_says_why(profile: str, kind: str) -> None:
    @oci_story(profile)
    async def story(world: OciWorld) -> None:
        on = kind != "HostPowerOn"
        phase, reason, message = await _run(world, kind, State.RUNNING if on else State.STOPPED)
        if (profile, kind) in FAILS:
            expected, words = FAILS[profile, kind]
            assert (phase, reason) == ("Failed", expected)
            assert words in message
        else:
            assert (phase, reason) == ("Complete", common.SUCCEEDED)
            assert world._power("m1") == ("STOPPED" if kind == "HostPowerOff" else "RUNNING")
        if kind == "HostReboot":
            accepted = [each for each in world.near.journal if each.call == "InstanceAction" and each.status == 200]
            assert len(accepted) <= 1
            assert accepted or phase != "Complete"  # what somebody else does meanwhile is not taken for it

    story()


@oci_story()
async def test_a_restart_takes_two_calls_and_its_polls(world: OciWorld) -> None:
    assert (await _run(world, "HostReboot"))[0] == "Complete"
    calls = [each.call for each in world.near.journal]
    assert [call for call in calls if call != "GetInstance"] == ["InstanceAction"]
    assert len(calls) <= 2 + 15  # 40 s, looked at every 5 s in the end
