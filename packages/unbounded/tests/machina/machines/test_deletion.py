"""Deleting a Machine with resetOnDelete: by its agent, else over SSH, and never for longer than it is held for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.operations.building import claim, config_map, operation_of, slot_of
from unbounded.api.core import Node
from unbounded.api.failures import Failure, Rejected, Transient
from unbounded.api.machine import PROVISIONING, Machine, SSHHop
from unbounded.api.names import ANNOTATION_MACHINE_UID, ANNOTATION_PAUSED, FINALIZER_RESET
from unbounded.api.operation import MachineOperation
from unbounded.machina.machines.deletion import (
    CLAIM_S,
    RETRY_S,
    deletion,
    finalizer_actions,
    reset_manifest,
)
from unbounded.machina.machines.model import (
    Attempt,
    CreateAgentReset,
    MachineObservation,
    MachinePlan,
    PassIntervals,
    Prerequisites,
    RecordRefusedKey,
    ReleaseLock,
    RemoveFinalizer,
    ResetOverSsh,
    SetFinalizer,
    StopAttempt,
)
from unbounded.machina.machines.plan import requires_prerequisites
from unbounded.machina.provisioning.model import ANOTHER_MACHINE, Finished
from unbounded.machina.ssh.model import SshReason, SshRejected
from unbounded.operations.claim_gates import closed_gate

TIMES = PassIntervals()
SSH = {"host": "10.0.0.1", "privateKeyRef": {"name": "k", "namespace": "unbounded-kube"}}
NODE = msgspec.convert({"metadata": {"name": "m1", "uid": "n-1"}}, Node)
AGENT = {"agent": {"version": "1.0.0"}}


DONE = {"provisioning": {"attempt": "a", "generation": 1, "startedAt": "2030-01-01T00:00:00Z"}}
NAME = "m1-reset-on-delete"
UID = "0123abcd-4567"


def machine_of(
    *,
    deleted: bool = True,
    held: bool = True,
    reset: bool = True,
    ssh: bool = True,
    status: Any = None,
    paused: bool = False,
    generation: int = 3,
) -> Machine:
    meta: dict[str, Any] = {"name": "m1", "uid": UID, "resourceVersion": "7", "generation": generation}
    meta["annotations"] = {ANNOTATION_PAUSED: "true"} if paused else {}
    meta |= {"deletionTimestamp": "2030-01-01T00:00:00Z"} if deleted else {}
    meta |= {"finalizers": ["example.com/other", *([FINALIZER_RESET] if held else [])]}
    spec = {"kubernetes": {}, "resetOnDelete": reset, **({"ssh": SSH} if ssh else {})}
    return msgspec.convert({"metadata": meta, "spec": spec, "status": status or {}}, Machine)


def asked(**status: Any) -> MachineOperation:
    return of_deletion(NAME, UID, **status)


def of_deletion(name: str, uid: str, **status: Any) -> MachineOperation:
    mark = {"annotations": {ANNOTATION_MACHINE_UID: uid}}
    return operation_of(name, "AgentReset", "m1", metadata=mark, status=status)


def planned(machine: Machine, **seen: Any) -> MachinePlan:
    decided = deletion(MachineObservation(machine, **({"deleted_s": 0.0} | seen)), TIMES)
    assert decided is not None
    assert decided.why
    return decided


def tried(ended: Finished | Failure | None, seconds: float = 1.0) -> Attempt:
    return Attempt("reset", "logging in to the host to reset it", seconds, "", ended)


def left_behind(plan: MachinePlan) -> str:
    (action,) = plan.actions
    assert isinstance(action, RemoveFinalizer)
    assert action.unfinished is not None
    assert "the host of Machine m1 was not reset: " in action.unfinished
    assert "`unbounded-agent reset`" in action.unfinished
    return action.unfinished


@pytest.mark.parametrize(
    ("machine", "actions"),
    [
        (machine_of(deleted=False, held=False), (SetFinalizer(True),)),
        (machine_of(deleted=False, held=True), ()),
        (machine_of(deleted=False, held=True, reset=False), (SetFinalizer(False),)),
        (machine_of(deleted=False, held=False, reset=False), ()),
        (machine_of(deleted=True, held=False), ()),
    ],
    ids=["wanted", "held", "taken back", "not wanted", "too late"],
)
def test_machine_has_a_finalizer_while_its_host_needs_a_reset(machine: Machine, actions: tuple[Any, ...]) -> None:
    assert finalizer_actions(machine) == actions


def test_what_machina_does_not_hold_goes_by_itself() -> None:
    assert deletion(MachineObservation(machine_of(held=False)), TIMES) is None


RESET = {"recentOperations": [{"name": "r", "uid": "u-r", "kind": "AgentReset", "phase": "Complete"}]}
REFUSED: dict[str, Any] = {
    "provisioning": DONE["provisioning"] | {"endedAt": "2030-01-01T00:01:00Z", "untouched": True}
}
JOINED = {"purpose": "agent", "cause": "AgentReset/u-r", "request": "q", "at": "2030-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("status", "node", "nothing"),
    [
        ({}, None, True),
        (AGENT | DONE | RESET, None, True),
        ({}, NODE, False),
        (DONE, None, False),
        (AGENT, None, False),
        (AGENT | DONE | RESET, NODE, False),
        (AGENT | RESET | {"join": {"used": [JOINED]}}, None, False),
        (RESET | {"provisioning": DONE["provisioning"] | {"reset": "u-r"}}, None, False),
        (REFUSED, None, True),
        (REFUSED | AGENT, None, False),
        ({"provisioning": REFUSED["provisioning"] | {"endedAt": None}}, None, False),
    ],
    ids=[
        "never",
        "reset",
        "joined by itself",
        "tried",
        "agent",
        "reset, node there",
        "joined again",
        "set up again",
        "not logged in",
        "not logged in, agent",
        "logging in",
    ],
)
def test_machine_without_provisioned_host_loses_its_finalizer_at_once(
    status: dict[str, Any], node: Node | None, nothing: bool
) -> None:
    assert (planned(machine_of(status=status), node=node).actions == (RemoveFinalizer(),)) is nothing


def test_who_takes_reset_on_delete_back_does_not_wait() -> None:
    assert planned(machine_of(reset=False, status=DONE)).actions == (RemoveFinalizer(),)


def test_an_agent_is_asked_first() -> None:
    assert planned(machine_of(status=AGENT | DONE), node=NODE).actions == (CreateAgentReset(NAME),)
    manifest = reset_manifest(machine_of(), NAME)
    assert manifest["metadata"] == {"name": NAME, "annotations": {ANNOTATION_MACHINE_UID: UID}}
    assert (manifest["spec"]["operationKind"], manifest["spec"]["startDeadlineSeconds"]) == ("AgentReset", CLAIM_S)
    alone = reset_manifest(machine_of(ssh=False), NAME)
    assert alone["spec"]["startDeadlineSeconds"] >= TIMES.reset_s


def test_a_start_that_never_came_to_its_daemon_is_reset_over_ssh() -> None:
    starting = {"agent": {"stage": "Preparing", "host": {"hostname": "m1"}}}
    (action,) = planned(machine_of(status=starting | DONE)).actions
    assert isinstance(action, ResetOverSsh)


def test_the_reset_that_was_asked_for_may_start() -> None:
    machine = machine_of(status=AGENT | DONE)
    assert closed_gate(asked(), machine, [asked()], None) is None


@pytest.mark.parametrize("status", [{}, claim(executor="unbounded-agent/m1")], ids=["asked", "claimed"])
def test_host_is_not_reset_over_ssh_during_an_agent_reset(status: dict[str, Any]) -> None:
    plan = planned(machine_of(status=AGENT | DONE), node=NODE, operations=(asked(**status),), deleted_s=100.0)
    assert plan.actions == ()
    assert plan.requeue_after_s == TIMES.reset_s - 100.0
    assert NAME in plan.why
    assert plan.phase is not None
    assert plan.phase.message == plan.why


def test_a_reset_by_the_agent_lets_it_go() -> None:
    ended = asked(phase="Complete")
    assert planned(machine_of(status=AGENT | DONE), node=NODE, operations=(ended,)).actions == (RemoveFinalizer(),)


def test_where_the_agent_did_not_it_is_done_over_ssh() -> None:
    ended = asked(phase="Failed", reason="NotStarted", message="not started within 60 s")
    assert planned(machine_of(status=AGENT | DONE), node=NODE, operations=(ended,)).actions == (ResetOverSsh(),)
    without = planned(machine_of(ssh=False, status=AGENT | DONE), node=NODE, operations=(ended,))
    assert "by its agent: not started within 60 s" in left_behind(without)
    assert without.phase is None


def test_reset_of_a_former_machine_of_the_name_does_not_count() -> None:
    before = of_deletion(NAME, "ffffffff-4567", phase="Complete")
    machine = machine_of(status=AGENT | DONE)
    (action,) = planned(machine, operations=(before,)).actions
    assert action == CreateAgentReset(f"{NAME}-0123abcd")
    own = of_deletion(action.name, UID, phase="Complete")
    assert planned(machine, operations=(before, own)).actions == (RemoveFinalizer(),)


def test_without_agent_and_ssh_it_is_said_at_once_what_stays() -> None:
    assert "spec.ssh is not set" in left_behind(planned(machine_of(ssh=False, status=DONE)))


def test_a_reset_over_ssh_that_went_well_lets_it_go() -> None:
    assert planned(machine_of(status=DONE), reset=tried(Finished("reset", 0))).actions == (RemoveFinalizer(),)


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (Finished("reset", 1, "no space left"), "the reset ended with status 1: no space left"),
        (Transient("no answer"), "no answer"),
        (Rejected("sudo wants a password"), "sudo wants a password"),
    ],
    ids=["status", "no answer", "refused"],
)
def test_failed_ssh_reset_is_retried_until_its_time_limit(ended: Any, words: str) -> None:
    machine = machine_of(status=DONE)
    waits = planned(machine, reset=tried(ended, 20.0), deleted_s=30.0)
    assert (waits.actions, waits.requeue_after_s) == ((), RETRY_S - 20.0)
    assert words in waits.why
    assert planned(machine, reset=tried(ended, RETRY_S), deleted_s=90.0).actions == (ResetOverSsh(),)
    assert f"over SSH: {words}" in left_behind(planned(machine, reset=tried(ended, 20.0), deleted_s=TIMES.reset_s))


def test_host_of_another_machine_is_not_reset() -> None:
    """Such as where a Machine was registered with an address by mistake."""
    found = tried(Finished("reset", ANOTHER_MACHINE, "this host is Machine m2\n"))
    (action,) = planned(machine_of(status=DONE), reset=found).actions
    assert action == RemoveFinalizer("Machine m1: no host was reset: this host is Machine m2, and stays as it is")


KEY, OTHER_KEY = "unbounded-kube/k@1", "unbounded-kube/k@2"


def refused_by(hop: SSHHop, version: str = KEY, *, generation: int = 3) -> Attempt:
    return replace(tried(SshRejected(SshReason.LOGIN, hop, "refused")), version=version, generation=generation)


def remembered(hop: SSHHop, *, generation: int = 3) -> dict[str, Any]:
    one = {"hop": str(hop), "secretVersion": KEY, "generation": generation}
    return DONE | {"ssh": {"refused": [one]}}


@pytest.mark.parametrize("hop", list(SSHHop))
def test_a_key_that_was_refused_is_not_offered_again_for_a_reset(hop: SSHHop) -> None:
    """Neither by a next try nor by another process; a new Secret or an edit is tried at once."""
    key, other = (
        Prerequisites(key_version=one, bastion_version=one) if hop == SSHHop.BASTION else Prerequisites(key_version=one)
        for one in (KEY, OTHER_KEY)
    )
    first = planned(machine_of(status=DONE), needs=key, reset=refused_by(hop))
    assert first.actions == (RecordRefusedKey(KEY, hop=hop, generation=3),)
    for reset in (refused_by(hop), None):
        waits = planned(machine_of(status=remembered(hop)), needs=key, reset=reset)
        assert (waits.actions, waits.requeue_after_s) == ((), TIMES.secret_s)
        assert f"the {hop} rejected user name and key" in waits.why
    for machine, needs in (
        (machine_of(status=remembered(hop)), other),
        (machine_of(status=remembered(hop), generation=4), key),
    ):
        assert planned(machine, needs=needs, reset=refused_by(hop)).actions == (ResetOverSsh(),)
    reading = planned(machine_of(status=remembered(hop) | {"message": "as it was"}), reading=True)
    assert (reading.actions, reading.why) == ((), "as it was")
    late = planned(machine_of(status=remembered(hop)), needs=key, deleted_s=TIMES.reset_s)
    assert f"the {hop} rejected user name and key" in left_behind(late)


def test_a_reset_waits_for_the_secret_that_it_needs() -> None:
    words = "spec.ssh.privateKeyRef: Secret unbounded-kube/k does not exist"
    waits = planned(machine_of(status=DONE), needs=Prerequisites(key=words))
    assert (waits.actions, waits.requeue_after_s) == ((), TIMES.secret_s)
    assert words in waits.why
    assert words in left_behind(
        planned(machine_of(status=DONE), needs=Prerequisites(key=words), deleted_s=TIMES.reset_s)
    )


@pytest.mark.parametrize(
    ("machine", "asked_for"),
    [(machine_of(status=DONE), True), (machine_of(), False), (machine_of(status=DONE, held=False), False)],
    ids=["set up", "nothing to reset", "not held"],
)
def test_secrets_are_read_only_for_a_reset(machine: Machine, asked_for: bool) -> None:
    """A Secret that cannot be read holds up no deletion that does not need it."""
    assert requires_prerequisites(MachineObservation(machine)) is asked_for


def test_setting_up_the_host_ends_first_and_gives_the_machine_back() -> None:
    slot = slot_of("a", executor="machina", kind=PROVISIONING)
    machine = machine_of(status={"activeOperation": slot, **AGENT})
    assert planned(machine, attempt=Attempt("uid-a")).actions == (StopAttempt("uid-a"),)
    assert planned(machine).actions == (ReleaseLock("uid-a"),)


@pytest.mark.parametrize(
    ("machine", "pause", "words"),
    [
        (machine_of(paused=True, status=DONE), None, "paused by annotation"),
        (machine_of(status=DONE), config_map(**{ANNOTATION_PAUSED: "true"}), "all operations are paused"),
        (
            machine_of(status=DONE | {"activeOperation": slot_of("x")}),
            None,
            "HostReboot x (metalman/lab) holds the lock of Machine",
        ),
    ],
    ids=["paused", "all paused", "slot"],
)
def test_reset_waits_for_blockers_until_its_time_limit(machine: Any, pause: Any, words: str) -> None:
    waits = planned(machine, pause=pause)
    assert (waits.actions, waits.requeue_after_s) == ((), TIMES.reset_s)
    assert words in waits.why
    assert words in left_behind(planned(machine, pause=pause, deleted_s=TIMES.reset_s))


STATUS = st.sampled_from([{}, AGENT, DONE, AGENT | DONE, DONE | {"activeOperation": slot_of("x")}])
ENDS = st.sampled_from([None, Finished("reset", 0), Finished("reset", 1), Transient("no answer")])


@pytest.mark.slow
@given(
    st.builds(machine_of, reset=st.booleans(), ssh=st.booleans(), paused=st.booleans(), status=STATUS),
    st.sampled_from([None, NODE]),
    st.sampled_from([(), (asked(),), (asked(phase="Failed"),), (asked(phase="Complete"),)]),
    st.one_of(st.none(), st.builds(tried, ENDS, st.floats(0, 1000))),
    st.floats(0, 2000),
)
def test_deletion_plan_has_one_action_or_a_requeue(
    machine: Machine, node: Node | None, operations: Any, reset: Attempt | None, deleted_s: float
) -> None:
    plan = planned(machine, node=node, operations=operations, reset=reset, deleted_s=deleted_s)
    assert len(plan.actions) == 1 or (plan.requeue_after_s is not None and plan.requeue_after_s > 0)
    assert deleted_s < TIMES.reset_s or isinstance(plan.actions[0], RemoveFinalizer)
    at_work = any(not one.terminal for one in operations)
    assert not (at_work and any(isinstance(action, ResetOverSsh) for action in plan.actions))
