"""Decisions about one Machine: always with a next observation, and never an install over a host that serves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbounded.api.core import ConfigMap, Node
from unbounded.api.machine import MAX_RECENT_OPERATIONS, Machine, SSHHop
from unbounded.api.names import FINALIZER_RESET
from unbounded.machina.machines import conditions as say
from unbounded.machina.machines.conditions import OnHold
from unbounded.machina.machines.eligibility import next_attempt, reason_against, repeats
from unbounded.machina.machines.model import (
    Attempt,
    MachineObservation,
    MachinePlan,
    Prerequisites,
    Probe,
    ProbeHost,
    Provision,
    RecordEnd,
    RecordLateSuccess,
    RecordRefusedKey,
    RecordRetry,
    ReleaseLock,
    StopAttempt,
)
from unbounded.machina.machines.plan import TIMES, is_idle, plan, requires_prerequisites
from unbounded.machina.provisioning.model import Finished, Interrupted, NoRun
from unbounded.machina.ssh.model import SshReason, SshRejected, SshTransient
from unbounded.operations.machine_lock import with_newest

KEY = {"name": "key", "namespace": "unbounded-kube"}
NOW = "2030-01-01T00:00:00Z"
INTENT = {"attempt": "a1", "generation": 1, "startedAt": NOW}
GOOD = {**INTENT, "endedAt": NOW}
BAD = {**GOOD, "failures": 1, "failure": "Failed"}
SLOT = {"uid": "a1", "name": "m1", "kind": "Provisioning", "executor": "machina", "since": NOW}
NEWER = {"generation": 7}
FINE = Prerequisites(key_version="unbounded-kube/key@1", token_id="abc123")


def machine_of(*, status: dict[str, Any] | None = None, meta: dict[str, Any] | None = None, **spec: Any) -> Machine:
    about = {"name": "m1", "uid": "u1", "resourceVersion": "1", "generation": 1, **(meta or {})}
    spec = {"ssh": {"host": "10.0.0.1", "privateKeyRef": KEY}, "kubernetes": {}} | spec
    spec = {key: value for key, value in spec.items() if value is not None}
    return msgspec.convert({"metadata": about, "spec": spec, "status": status or {}}, Machine)


def node_of(*, ready: bool = True) -> Node:
    status = {"conditions": [{"type": "Ready", "status": str(ready)}]}
    labels = {"unbounded-cloud.io/machine": "m1"}
    return msgspec.convert({"metadata": {"name": "m1", "uid": "n1", "labels": labels}, "status": status}, Node)


def seen_of(machine: Machine | None = None, **known: Any) -> MachineObservation:
    known = {"probe": Probe(1.0), "needs": FINE, "new_attempt": "a2", **known}
    return MachineObservation(machine or machine_of(), **known)


def kinds(planned: MachinePlan) -> set[str]:
    return {type(action).__name__ for action in planned.actions} - {"SetNodeRef", "UpdateNode"}


def said(planned: MachinePlan) -> dict[str, str]:
    return {one.kind: f"{one.status}/{one.reason}" for one in planned.conditions}


def phase(planned: MachinePlan) -> str:
    assert planned.phase is not None
    return planned.phase.phase


LOST = SshTransient(SshReason.TIMED_OUT, SSHHop.HOST, "no answer")
OTHER_SLOT = {"uid": "u9", "name": "off", "kind": "HostPowerOff", "executor": "metalman/lab", "since": NOW}
RESET = [{"name": "r", "uid": "r1", "kind": "AgentReset", "phase": "Complete"}]
REPLACED = [{"name": "r", "uid": "r1", "kind": "HostReplace", "phase": "Complete"}]

HELD = {"provisioning": INTENT, "activeOperation": SLOT}
SET_UP = machine_of(status={"provisioning": GOOD})
JOIN = {"used": [{"purpose": "kubelet", "cause": "Registration", "request": "r", "at": NOW}]}
PROVISIONED = {"type": "Provisioned", "status": "True", "reason": "Provisioned", "lastTransitionTime": NOW}
JOINED = machine_of(status={"provisioning": GOOD, "join": JOIN, "conditions": [PROVISIONED]})
FAILED = machine_of(status={"provisioning": BAD})
AT_WORK = machine_of(status=HELD)
TAKEN = machine_of(status={"provisioning": INTENT, "activeOperation": OTHER_SLOT})
ALONE = machine_of(kubernetes=None, status=HELD)
WAS_RESET = {"provisioning": GOOD, "recentOperations": RESET}
IMAGED = machine_of(pxe={"image": "i"}, joinCounter=1, status={"provisioning": BAD, "recentOperations": REPLACED})
UNREADY = node_of(ready=False)
BEFORE_IT = machine_of(status={"provisioning": {**BAD, "node": "Ready"}})
CAME = machine_of(meta=NEWER, kubernetes={"nodeRef": {"name": "m1"}}, status={"provisioning": BAD})
MOVED = machine_of(
    ssh={"host": "10.0.0.2", "privateKeyRef": KEY},
    meta=NEWER,
    status={"provisioning": {**INTENT, "host": "10.0.0.1:22"}, "activeOperation": SLOT},
)
ON_HOLD = machine_of(status={"provisioning": {**BAD, "failure": "OnHold"}})
WELL, BADLY = Attempt("a1", ended=Finished("a1", 0)), Attempt("a1", ended=Finished("a1", 1))

TABLE = [
    ("first sight", seen_of(probe=None), {"ProbeHost"}, "Pending", 30),
    ("a probe is on its way", seen_of(probe=None, probing=True), set(), "Pending", 30),
    ("unreachable", seen_of(probe=Probe(1.0, LOST)), set(), "Pending", 29.05),
    ("unreachable for long", seen_of(probe=Probe(31.0, LOST)), {"ProbeHost"}, "Pending", 30),
    ("unreachable, joined", seen_of(SET_UP, probe=Probe(1.0, LOST), node=node_of()), set(), "Ready", 29.05),
    ("unreachable, joined, its node is gone", seen_of(JOINED, probe=Probe(1.0, LOST)), set(), "Joining", 29.05),
    ("not probed yet, joined", seen_of(SET_UP, probe=None, node=node_of()), {"ProbeHost"}, "Ready", 300),
    ("no node is wanted", seen_of(machine_of(kubernetes=None)), set(), "Ready", 299.05),
    ("everything is there", seen_of(), {"Provision"}, "Provisioning", 29.05),
    ("needs were not looked at", seen_of(needs=None), set(), "Pending", 0),
    ("needs are being read", seen_of(needs=None, reading=True), set(), "Pending", 29.05),
    ("no token", seen_of(needs=Prerequisites(token="there is none")), set(), "Failed", 2),
    ("no key", seen_of(needs=Prerequisites(key="there is none")), set(), "Failed", 2),
    ("no facts", seen_of(needs=Prerequisites(facts="no cluster-info")), set(), "Pending", 2),
    ("no room", seen_of(has_capacity=False), set(), "Pending", 29.05),
    ("slot of somebody else", seen_of(machine_of(status={"activeOperation": OTHER_SLOT})), set(), "Pending", 29.05),
    ("set up, no node yet", seen_of(SET_UP), set(), "Joining", 29.05),
    ("joined", seen_of(SET_UP, node=node_of()), set(), "Ready", 299.05),
    ("joined by itself", seen_of(node=node_of()), set(), "Ready", 299.05),
    ("a node that is not ready", seen_of(node=UNREADY), set(), "Ready", 299.05),
    ("it may join", seen_of(machine_of(joinCounter=1), node=UNREADY), {"Provision"}, "Provisioning", 29.05),
    ("an agent reported", seen_of(machine_of(status={"agent": {"version": "1"}})), set(), "Pending", 29.05),
    ("its node is gone", seen_of(machine_of(kubernetes={"nodeRef": {"name": "m1"}})), set(), "Pending", 29.05),
    ("newer generation", seen_of(machine_of(meta=NEWER, status={"provisioning": GOOD})), set(), "Joining", 29.05),
    ("failed", seen_of(FAILED, retry_s=40.0), set(), "Failed", 40),
    ("due again", seen_of(FAILED, retry_s=-1.0), {"Provision"}, "Provisioning", 29.05),
    ("changed", seen_of(FAILED, retry_s=40.0, changed_since_failure=True), {"Provision"}, "Provisioning", 29.05),
    ("failed, and joined", seen_of(FAILED, node=node_of(), retry_s=-1.0), {"RecordLateSuccess"}, "Ready", 299.05),
    ("failed, its node is not ready", seen_of(FAILED, node=UNREADY, retry_s=-1.0), {"Provision"}, "Provisioning",
     29.05),
    ("failed, its node was ready before", seen_of(BEFORE_IT, node=node_of(), retry_s=-1.0), {"Provision"},
     "Provisioning", 29.05),
    ("failed, and its node came", seen_of(CAME, node=UNREADY, retry_s=40.0, changed_since_failure=True), set(),
     "Failed", 40),
    ("was on hold", seen_of(ON_HOLD, retry_s=40.0), {"Provision"}, "Provisioning", 29.05),
    ("its host is another", seen_of(MOVED, attempt=Attempt("a1")), {"StopAttempt", "RecordEnd"}, "Failed", 59.05),
    ("its host is another, of before", seen_of(MOVED), {"RecordEnd"}, "Failed", 59.05),
    ("reset since", seen_of(machine_of(status=WAS_RESET)), set(), "Pending", 29.05),
    ("failed, reset since", seen_of(machine_of(status={**WAS_RESET, "provisioning": BAD})), set(), "Pending", 29.05),
    ("reset, may join", seen_of(machine_of(joinCounter=1, status=WAS_RESET)), {"Provision"}, "Provisioning", 29.05),
    ("replaced, with an image", seen_of(IMAGED), set(), "Pending", 29.05),
    ("an attempt of before", seen_of(AT_WORK), {"Provision"}, "Provisioning", 29.05),
    ("of before, being read", seen_of(AT_WORK, needs=None, reading=True), set(), "Pending", 29.05),
    ("of before, no key", seen_of(AT_WORK, needs=Prerequisites(key="gone")), {"RecordEnd"}, "Failed", 59.05),
    ("runs", seen_of(AT_WORK, attempt=Attempt("a1", "uploading")), set(), "Provisioning", 29.05),
    ("ended well", seen_of(AT_WORK, attempt=WELL), {"RecordEnd"}, "Joining", 29.05),
    ("ended badly", seen_of(AT_WORK, attempt=BADLY), {"RecordEnd"}, "Failed", 59.05),
    ("its slot was taken", seen_of(TAKEN, attempt=Attempt("a1")), {"StopAttempt", "RecordEnd"}, "Failed", 59.05),
    ("a stray lock", seen_of(machine_of(status={"activeOperation": SLOT})), {"ReleaseLock"}, "Pending", 29.05),
    ("no node any more", seen_of(ALONE, attempt=Attempt("a1")), {"StopAttempt", "RecordEnd"}, "Ready", 299.05),
]  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "actions", "phase_now", "within_s"), [pytest.param(*row[1:], id=row[0]) for row in TABLE]
)
def test_what_comes_next(seen: MachineObservation, actions: set[str], phase_now: str, within_s: float) -> None:
    planned = plan(seen)
    assert (kinds(planned), phase(planned)) == (actions, phase_now)
    assert planned.requeue_after_s == pytest.approx(within_s)


def test_a_machine_without_ssh_is_left_to_others_but_for_its_node() -> None:
    planned = plan(seen_of(machine_of(ssh=None)))
    assert (planned.actions, planned.conditions, planned.phase, planned.requeue_after_s) == ((), (), None, None)


def test_all_conditions_are_there_after_the_first_look() -> None:
    assert said(plan(seen_of(probe=None))) == {
        "SSHReachable": "Unknown/Pending",
        "Provisioning": "Unknown/NotRun",
        "Provisioned": "Unknown/NotRun",
    }


def test_retry_time_is_recorded_once_and_not_while_paused() -> None:
    seen = seen_of(FAILED, retry_s=40.0, retry_at_text=NOW)
    assert plan(seen).actions == (RecordRetry(NOW),)
    told = machine_of(status={"provisioning": {**BAD, "retryAt": NOW}})
    assert plan(replace(seen, machine=told)).actions == ()
    paused = machine_of(meta={"annotations": {"unbounded-cloud.io/paused": "true"}}, status={"provisioning": BAD})
    assert plan(replace(seen, machine=paused)).actions == ()


@pytest.mark.parametrize(
    ("seen", "phase_now", "condition", "words"),
    [
        (seen_of(), "Pending", "Unknown/Waiting", ""),
        (seen_of(FAILED, retry_s=40.0), "Failed", "False/Failed", "the setup of the host has failed; "),
        (seen_of(FAILED, retry_s=-1.0), "Failed", "False/Failed", "the setup of the host has failed; "),
        (
            seen_of(needs=Prerequisites(token="there is no token")),
            "Failed",
            "False/TokenUnusable",
            "there is no token; ",
        ),
        (seen_of(needs=Prerequisites(source="no release")), "Failed", "False/SourceMissing", "no release; "),
        (seen_of(ON_HOLD, retry_s=-1.0), "Pending", "Unknown/Waiting", ""),
    ],
    ids=["nothing wrong", "failed", "due again", "no token", "no release", "was on hold"],
)
def test_pause_message_names_its_source_and_other_failures(
    seen: MachineObservation, phase_now: str, condition: str, words: str
) -> None:
    meta = {"name": "unbounded-operations", "annotations": {"unbounded-cloud.io/paused": "true"}}
    planned = plan(replace(seen, pause=msgspec.convert({"metadata": meta}, ConfigMap)))
    assert (kinds(planned), phase(planned), said(planned)["Provisioning"]) == (set(), phase_now, condition)
    assert planned.why.startswith(words)
    assert planned.why.count("all operations are paused by annotation") == 1


def test_rejected_key_is_not_offered_until_secret_or_machine_change() -> None:
    refused = {"hop": "host", "secretVersion": FINE.key_version, "generation": 1}
    machine = machine_of(status={"provisioning": BAD, "ssh": {"refused": [refused]}})
    assert kinds(plan(seen_of(machine, retry_s=-1.0))) == set()
    other = Prerequisites(key_version="unbounded-kube/key@2")
    assert kinds(plan(seen_of(machine, needs=other, retry_s=-1.0))) == {"Provision"}
    edited = machine_of(meta={"generation": 2}, status={"provisioning": BAD, "ssh": {"refused": [refused]}})
    assert kinds(plan(seen_of(edited, retry_s=-1.0))) == {"Provision"}


def test_attempt_end_records_rejected_keys_of_the_host_only() -> None:
    machine = machine_of(status={"provisioning": INTENT, "activeOperation": SLOT})
    for hop, version in ((SSHHop.HOST, "s@1"), (SSHHop.BASTION, None)):
        ended = Attempt("a1", ended=SshRejected(SshReason.LOGIN, hop, "refused"), version="s@1", generation=1)
        back = next(action for action in plan(seen_of(machine, attempt=ended)).actions if isinstance(action, RecordEnd))
        assert (back.failure, back.refused) == ("CredentialsRefused", version)


def test_key_rejected_before_an_edit_is_not_recorded_afterwards() -> None:
    refused = SshRejected(SshReason.LOGIN, SSHHop.HOST, "refused")
    machine = machine_of(meta=NEWER, status={"provisioning": INTENT, "activeOperation": SLOT})
    for generation, version in ((1, None), (7, "s@1")):
        ended = Attempt("a1", ended=refused, version="s@1", generation=generation)
        back = next(action for action in plan(seen_of(machine, attempt=ended)).actions if isinstance(action, RecordEnd))
        assert back.refused == version


def test_bastion_rejection_before_an_edit_is_ignored_afterwards() -> None:
    version = "unbounded-kube/key@1"
    needs = Prerequisites(key_version=version, bastion_version=version, token_id="abc123")
    refused = SshRejected(SshReason.LOGIN, SSHHop.BASTION, "refused")
    ssh = {"host": "10.0.0.1", "privateKeyRef": KEY, "bastion": {"host": "192.0.2.1"}}
    machine = machine_of(ssh=ssh)
    seen = seen_of(machine, probe=Probe(1.0, refused, version), needs=needs)
    assert [action for action in plan(seen).actions if isinstance(action, RecordRefusedKey)] == [
        RecordRefusedKey(version)
    ]
    known = {"refused": [{"hop": "bastion", "secretVersion": version, "generation": 1}]}
    edited = machine_of(ssh=ssh, meta={"generation": 2}, status={"ssh": known, "phase": "Pending"})
    seen = replace(seen, machine=edited)
    seen = replace(seen, probe=None)  # one of before the edit counts for nothing
    assert requires_prerequisites(seen)
    assert kinds(plan(seen)) == {"ProbeHost"}


@pytest.mark.parametrize(
    ("machine", "node", "name"),
    [
        pytest.param(machine_of(), None, "fresh", id="the first"),
        pytest.param(FAILED, None, "a1-2", id="again"),
        pytest.param(
            machine_of(status={"provisioning": {**BAD, "attempt": "a1-9"}}), None, "a1-10", id="for the tenth time"
        ),
        pytest.param(machine_of(meta=NEWER, status={"provisioning": BAD}), None, "fresh", id="edited"),
        pytest.param(CAME, node_of(ready=False), "a1-2", id="its node came"),
        pytest.param(machine_of(joinCounter=1, status={"provisioning": BAD}), node_of(), "fresh", id="allowed anew"),
        pytest.param(SET_UP, None, "fresh", id="set up"),
    ],
)
def test_a_repetition_has_the_name_of_what_failed(machine: Machine, node: Node | None, name: str) -> None:
    assert next_attempt(machine, node, "fresh") == name
    before = machine.status.provisioning
    assert repeats(name, before.attempt if before else "a1") == name.startswith("a1-")


def test_ready_node_turns_a_failed_attempt_into_a_late_success() -> None:
    planned = plan(seen_of(FAILED, node=node_of(), retry_s=-1.0))
    assert RecordLateSuccess("a1", "Node m1 has joined since") in planned.actions
    assert (said(planned)["Provisioning"], said(planned)["Provisioned"]) == ("False/Completed", "True/Provisioned")
    assert planned.phase is not None
    for kept in (machine_of(joinCounter=1, status={"provisioning": BAD}),
                 machine_of(status={"provisioning": BAD, "recentOperations": RESET})):  # fmt: skip
        assert "RecordLateSuccess" not in kinds(plan(seen_of(kept, node=node_of(), retry_s=-1.0)))


def test_pause_blocks_new_installs_but_not_running_ones() -> None:
    meta = {"name": "unbounded-operations", "annotations": {"unbounded-cloud.io/paused": "true"}}
    pause = msgspec.convert({"metadata": meta}, ConfigMap)
    (resume,) = plan(seen_of(AT_WORK, pause=pause)).actions
    assert isinstance(resume, Provision)
    assert (resume.resume, "paused" in resume.held) == (True, True)
    planned = plan(seen_of(AT_WORK, pause=pause, attempt=Attempt("a1", ended=OnHold(resume.held))))
    assert planned.actions == (RecordEnd("a1", "OnHold", resume.held),)
    assert (said(planned)["Provisioning"], phase(planned)) == ("Unknown/Waiting", "Pending")


# ---- what is known for longer than the history


def later(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The history when so many operations have ended since that they would fill it."""
    for number in range(MAX_RECENT_OPERATIONS + 2):
        power = {"name": f"p{number}", "uid": f"p{number}", "kind": "HostPowerOff", "phase": "Complete"}
        history = [dict(one) for one in with_newest(history, power)]
    assert len(history) == MAX_RECENT_OPERATIONS
    return history


@pytest.mark.parametrize("before", [pytest.param(GOOD, id="set-up"), pytest.param(BAD, id="failed")])
def test_a_reset_is_known_however_many_operations_come_after_it(before: dict[str, Any]) -> None:
    machine = machine_of(status={"provisioning": before, "recentOperations": later(RESET)})
    planned = plan(seen_of(machine, retry_s=-1.0))
    assert (kinds(planned), phase(planned), said(planned)["Provisioned"]) == (set(), "Pending", "False/Reset")


def test_replaced_host_is_recognized_despite_many_later_operations() -> None:
    machine = machine_of(provider="AzureVM", status={"provisioning": BAD, "recentOperations": later(REPLACED)})
    assert kinds(plan(seen_of(machine, retry_s=-1.0))) == set()


# ---- what holds whatever is seen

STATUSES = st.fixed_dictionaries(
    {},
    optional={
        "provisioning": st.sampled_from([INTENT, GOOD, BAD]),
        "activeOperation": st.sampled_from([SLOT, OTHER_SLOT]),
        "recentOperations": st.sampled_from([RESET, REPLACED]),
        "agent": st.just({"version": "1"}),
        "conditions": st.lists(
            st.sampled_from([
                {"type": "SSHReachable", "status": "True", "reason": "Reachable", "lastTransitionTime": NOW},
                {"type": "ConfigurationPending", "status": "True", "reason": "Pending", "lastTransitionTime": NOW},
                {"type": "PoweredOff", "status": "True", "reason": "PoweredOff", "lastTransitionTime": NOW},
            ]),
            unique_by=lambda one: one["type"],
        ),
    },
)  # fmt: skip
MACHINES = st.builds(
    lambda status, counter, generation, more: machine_of(
        status=status, meta={"generation": generation}, joinCounter=counter, **more
    ),
    STATUSES,
    st.integers(0, 1),
    st.integers(1, 2),
    st.sampled_from([{}, {"kubernetes": None}, {"ssh": None}, {"pxe": {"image": "i"}}]),
)
ENDS = st.sampled_from(
    [None, Finished("a1", 0), Finished("a1", 1), Interrupted("a1", "rebooted"), NoRun(), LOST]
)  # fmt: skip
SEEN = st.builds(
    MachineObservation,
    machine=MACHINES,
    node=st.sampled_from([None, node_of(), node_of(ready=False)]),
    probe=st.sampled_from([None, Probe(0.0), Probe(1e6), Probe(1.0, LOST)]),
    probing=st.booleans(),
    attempt=st.one_of(st.none(), st.builds(Attempt, st.sampled_from(["a1", "a0"]), ended=ENDS)),
    needs=st.sampled_from(
        [None, FINE, Prerequisites(token="none"), Prerequisites(key="none"), Prerequisites(facts="none")]
    ),
    retry_s=st.sampled_from([None, -1.0, 50.0]),
    changed_since_failure=st.booleans(),
    reading=st.booleans(),
    has_capacity=st.booleans(),
    new_attempt=st.just("a2"),
).map(lambda seen: replace(seen, reading=seen.reading and seen.needs is None))


@pytest.mark.slow
@given(SEEN)
def test_there_is_always_a_next_look_and_no_action_twice(seen: MachineObservation) -> None:
    planned = plan(seen)
    names = [type(action).__name__ for action in planned.actions]
    assert len(set(names)) == len(names)
    assert plan(seen) == planned
    if seen.machine.spec.ssh is not None:
        assert planned.requeue_after_s is not None
        assert 0 <= planned.requeue_after_s <= max(TIMES.by_phase.values()) + 1
        assert planned.why
        if not names and planned.requeue_after_s < 1:
            assert seen.needs is None
            assert not seen.reading
            assert requires_prerequisites(seen)
    if {"Provision"} & set(names):
        assert not {"RecordEnd", "StopAttempt", "ReleaseLock"} & set(names)


@pytest.mark.slow
@given(SEEN)
def test_a_host_that_serves_is_never_installed_over(seen: MachineObservation) -> None:
    begins = [action for action in plan(seen).actions if isinstance(action, Provision) and not action.resume]
    if not begins:
        return
    machine = seen.machine
    before = machine.status.provisioning
    assert reason_against(machine, seen.node) is None
    assert machine.status.active_operation is None
    assert seen.probe is not None
    assert seen.probe.error is None
    assert seen.attempt is None
    assert before is None or before.ended_at is not None
    if before is None or before.failure is None or (seen.node is not None and seen.node.ready):
        assert before is None or machine.spec.join_counter > before.join_counter
        assert before is not None or seen.node is None or not seen.node.ready


@pytest.mark.slow
@given(SEEN)
def test_what_was_said_and_done_is_not_said_or_done_again(seen: MachineObservation) -> None:
    planned = plan(seen)
    assert say.merged_conditions(seen.machine, planned.conditions, now=NOW) is None or planned.conditions
    conditions = say.after(seen.machine, planned.conditions)
    settled = msgspec.structs.replace(
        seen.machine, status=msgspec.structs.replace(seen.machine.status, conditions=conditions)
    )
    assert say.merged_conditions(settled, planned.conditions, now="2031-01-01T00:00:00Z") is None


@pytest.mark.slow
@given(SEEN, st.sampled_from([False, True]), st.sampled_from([[], [FINALIZER_RESET]]))
def test_an_idle_machine_has_an_empty_plan(seen: MachineObservation, resets: bool, finalizers: list[str]) -> None:
    of = seen.machine
    spec = msgspec.structs.replace(of.spec, ssh=None, reset_on_delete=resets)
    machine = msgspec.structs.replace(
        of, spec=spec, metadata=msgspec.structs.replace(of.metadata, finalizers=finalizers)
    )
    planned = plan(replace(seen, machine=machine, node=None, attempt=None))
    assert is_idle(machine, None) is (planned == MachinePlan(why=planned.why))
    assert not is_idle(machine, node_of())


@pytest.mark.slow
@given(SEEN)
def test_secrets_are_read_only_where_something_asks_for_them(seen: MachineObservation) -> None:
    machine = seen.machine
    if machine.spec.ssh is None or machine.spec.kubernetes is None:
        assert not requires_prerequisites(seen)
    elif any(isinstance(action, Provision) for action in plan(seen).actions):
        assert requires_prerequisites(seen)


@pytest.mark.slow
@given(SEEN)
def test_plan_waits_for_secrets_and_keeps_their_conditions_meanwhile(seen: MachineObservation) -> None:
    planned = plan(replace(seen, needs=None, reading=True))
    assert not any(isinstance(action, Provision) for action in planned.actions)
    bastion = {"host": "192.0.2.1", "username": "jump"}
    known = {"type": "SSHReachable", "status": "False", "reason": "SecretUnusable", "lastTransitionTime": NOW}
    ssh = {"host": "10.0.0.1", "privateKeyRef": KEY, "bastion": bastion}
    through = machine_of(ssh=ssh, status={"conditions": [known]})
    planned = plan(replace(seen, machine=through, needs=None, reading=True))
    assert not any(isinstance(action, Provision | ProbeHost) for action in planned.actions)
    assert "SSHReachable" not in said(planned)


def test_an_attempt_of_a_machine_that_is_deleted_ends_first() -> None:
    meta = {"deletionTimestamp": NOW, "finalizers": [FINALIZER_RESET]}
    machine = machine_of(meta=meta, resetOnDelete=True, status={"provisioning": INTENT, "activeOperation": SLOT})
    planned = plan(seen_of(machine, attempt=Attempt("a1")))
    assert [type(action) for action in planned.actions] == [StopAttempt, RecordEnd]
    assert ReleaseLock not in map(type, planned.actions)
    assert ProbeHost not in map(type, planned.actions)
