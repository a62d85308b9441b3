"""The parts of a recreation by themselves: what is on disk, its table, what proves a node, and kubelet's credential."""

from __future__ import annotations

import datetime
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.agent.goals import goal
from unbounded.agent.interfaces import Nodes, OnProgress
from unbounded.agent.model import BuildRecord, CertificateAccess, KubeletAccess, Slot, SlotFacts, TokenAccess
from unbounded.agent.node_spec import DesiredNode
from unbounded.agent.paths import HostPaths
from unbounded.agent.recreation.controller import choose_home
from unbounded.agent.recreation.perform import reuse_or
from unbounded.agent.recreation.plan import (
    TABLE,
    NodeEvidence,
    RecreationLimits,
    RecreationObservation,
    Side,
    StartMachine,
    StopMachine,
    plan,
    same_version,
    unmet_requirement,
)
from unbounded.agent.recreation.reconcile import EvidenceCollector
from unbounded.agent.recreation.report import repave_pending
from unbounded.agent.recreation.state_store import DiskStore, FailedRecreation, RecreationPhase, Transition
from unbounded.api.configuration import NodeSettings
from unbounded.api.core import Node
from unbounded.api.failures import Rejected
from unbounded.join.agent_config import RecreationConfig
from unbounded.kube.logs import SecretStr

TRANSITION = Transition(
    uid="u",
    phase=RecreationPhase.VERIFYING,
    source=Slot.KUBE1,
    goal=goal(),
    why="Node m1 is gone",
    since="2030-01-01T00:00:00Z",
)
NO_PEM = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
FAILED = FailedRecreation(uid="u", goal=goal(), attempts=2, why="not Ready", at="2030-01-01T00:00:00Z")
RUNS = SlotFacts(Slot.KUBE2, True, BuildRecord(goal=goal()), True, "boot-2", True, True)


def node_of(boot: str = "boot-2", version: str = "v1.34.2", ready: str = "True", uid: str = "n") -> Node:
    status = {
        "conditions": [{"type": "Ready", "status": ready, "reason": "R", "message": "M"}],
        "nodeInfo": {"bootID": boot, "kubeletVersion": version},
    }
    return msgspec.convert({"metadata": {"name": "m1", "uid": uid}, "status": status}, Node)


# On disk


@pytest.fixture
def store(tmp_path: Path) -> DiskStore:
    paths = HostPaths(tmp_path)
    paths.etc.mkdir(parents=True)
    return DiskStore(paths)


def test_recreation_state_files_round_trip_with_private_modes(store: DiskStore, tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    assert (store.current(), store.failed()) == (None, None)
    store.write(TRANSITION)
    store.fail(FAILED)
    assert (store.current(), store.failed()) == (TRANSITION, FAILED)
    assert [path.stat().st_mode & 0o777 for path in (paths.recreation, paths.recreation_failed)] == [0o600, 0o600]
    for _ in range(2):
        store.clear()
        store.forget()
        assert (store.current(), store.failed()) == (None, None)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b'{"format": 2, "news": {}}', "has format 2, but this agent supports 1: a later agent wrote it"),
        (b'{"format": 1}', "missing required field"),
        (b"{", "truncated"),
        (b'{"format": 1, "phase": "Dancing"}', "does not change it"),
    ],
    ids=["later", "fields", "torn", "phase"],
)
def test_what_cannot_be_read_is_refused_in_words_and_left_alone(
    store: DiskStore, tmp_path: Path, content: bytes, words: str
) -> None:
    path = HostPaths(tmp_path).recreation
    path.write_bytes(content)
    with pytest.raises(Rejected, match=words):
        store.current()
    assert path.read_bytes() == content


def test_no_secret_can_stand_in_what_is_kept(store: DiskStore, tmp_path: Path) -> None:
    store.write(TRANSITION)
    known = set(msgspec.json.decode(HostPaths(tmp_path).recreation.read_bytes()))
    assert known == {
        "uid", "phase", "source", "goal", "why", "since", "lostNode", "attempt", "failure", "stranded", "format"
    }  # fmt: skip


# The table


def test_every_phase_has_a_row_and_every_way_ends() -> None:
    assert TABLE.keys() == set(RecreationPhase)
    for phase in RecreationPhase:
        passed: list[RecreationPhase] = []
        here: RecreationPhase | None = phase
        while here is not None:
            assert here not in passed, f"{phase} leads in a circle"
            passed.append(here)
            here = TABLE[here].then
        passed, here = [], phase
        while here is not None:
            assert here not in passed, f"the failures of {phase} form a loop"
            passed.append(here)
            here = TABLE[here].back if TABLE[here].limit is not None else TABLE[here].then


def test_only_phases_before_the_proof_lead_back_and_none_after_it() -> None:
    after = {RecreationPhase.COMMITTED}
    assert all(TABLE[phase].back is None for phase in after)
    assert {row.side for phase, row in TABLE.items() if phase in after} == {Side.SOURCE}


@pytest.mark.parametrize("phase", [phase for phase in RecreationPhase if TABLE[phase].quiet is not None])
def test_a_machine_that_should_not_run_is_stopped_before_anything_else(phase: RecreationPhase) -> None:
    source = SlotFacts(Slot.KUBE1, True, BuildRecord(goal=goal()), True, "boot-1", True, True)
    transition = msgspec.structs.replace(TRANSITION, phase=phase)
    step = plan(transition, RecreationObservation(source, RUNS), RecreationLimits())
    quiet = Slot.KUBE1 if TABLE[phase].quiet is Side.SOURCE else Slot.KUBE2
    assert step == StopMachine(quiet, phase, again=True)


def test_ended_kubelet_is_restarted_and_reported_with_its_output() -> None:
    transition = msgspec.structs.replace(TRANSITION, phase=RecreationPhase.VERIFYING)
    seen = RecreationObservation(
        SlotFacts(Slot.KUBE1), replace(RUNS, kubelet=False), NodeEvidence(trouble="it ended with: panic")
    )
    assert plan(transition, seen, RecreationLimits()) == StartMachine(
        Slot.KUBE2, RecreationPhase.VERIFYING, "it ended with: panic"
    )


def test_limits_are_those_of_the_configuration_where_it_has_some() -> None:
    assert RecreationLimits().configured(RecreationConfig()) == RecreationLimits()
    told = RecreationLimits().configured(RecreationConfig(verify_seconds=7, retry_seconds=20_000))
    assert (told.verify_s, told.retry_s, told.retry_max_s, told.build_s) == (
        7,
        20_000,
        20_000,
        RecreationLimits().build_s,
    )
    assert [RecreationLimits().retry_after(attempt) for attempt in (1, 2, 3, 9)] == [900, 1800, 3600, 14_400]


# The proof


@pytest.mark.parametrize(
    ("facts", "seen", "lacks"),
    [
        (RUNS, NodeEvidence(node_of(), renewed=True), ""),
        (SlotFacts(Slot.KUBE2), NodeEvidence(node_of(), renewed=True), "kubelet is not running"),
        (replace(RUNS, kubelet=False), NodeEvidence(trouble="it ended with: panic"), "it ended with: panic"),
        (RUNS, NodeEvidence(), "the Node does not exist"),
        (RUNS, NodeEvidence(node_of(), renewed=True, trouble="not well: 500"), "not well: 500"),
        (RUNS, NodeEvidence(node_of(), renewed=True, sandbox_problem="no Pod sandbox starts"), "no Pod sandbox starts"),
        (RUNS, NodeEvidence(node_of(boot="boot-1"), renewed=True), "this boot of the machine has not reported"),
        (RUNS, NodeEvidence(node_of(version="v1.33.0"), renewed=True), "reports version v1.33.0, not 1.34.2"),
        (RUNS, NodeEvidence(node_of(ready="False"), renewed=True), "is not Ready: R, M"),
        (RUNS, NodeEvidence(node_of()), "lease of the Node has not been renewed"),
    ],
    ids=["proven", "kubelet", "crashes", "none", "unwell", "sandbox", "another boot", "version", "unready", "lease"],
)
def test_a_node_is_proven_by_all_of_it_together(facts: SlotFacts, seen: NodeEvidence, lacks: str) -> None:
    told = unmet_requirement(facts, "1.34.2", seen)
    assert lacks in told
    assert bool(told) is bool(lacks)


@pytest.mark.parametrize(
    ("reported", "wanted", "same"),
    [
        ("v1.34.0", "1.34.0", True),
        ("v1.34.0+k3s1", "1.34.0", True),
        ("v1.34.0-gke.7", "1.34.0-gke.7", True),
        ("v1.34.0", "1.34.0-gke.7", False),
        ("v1.34.10", "1.34.1", False),
        ("", "1.34.0", False),
    ],
)
def test_builds_of_a_version_are_that_version_unless_one_is_named(reported: str, wanted: str, same: bool) -> None:
    assert same_version(reported, wanted) is same


def test_invalid_node_settings_are_named_before_the_node_is_deleted() -> None:
    wanted = DesiredNode(goal(settings=NodeSettings(ca_bundle=NO_PEM)), ("caBundle",), ())
    said = repave_pending(wanted, None)
    words = "differs in caBundle; a node built from it would be rolled back: caBundle: at least one certificate in PEM"
    assert (said.status, said.reason, words in said.message) == ("True", "Pending", True)


def test_a_lease_counts_as_renewed_when_it_changed_before_our_eyes() -> None:
    witness = EvidenceCollector()
    witness.begin("Verifying", "boot-2")
    assert not witness.observe(None, "10:00").renewed
    assert not witness.observe(None, "10:00").renewed
    assert not witness.observe(None, None).renewed
    assert witness.observe(None, "10:01").renewed
    witness.begin("Verifying", "boot-3")
    assert not witness.observe(None, "10:02").renewed, "of another boot"
    witness.begin("Checking", "boot-3")
    assert not witness.observe(None, None).renewed
    assert witness.observe(None, "10:03").renewed, "made since"


def test_vanished_node_of_this_boot_is_evidence_until_kubelet_registers() -> None:
    witness = EvidenceCollector()
    witness.begin("Verifying", "boot-2")
    assert not witness.observe(None, None).vanished
    assert not witness.observe(node_of(boot="boot-1"), None).vanished
    assert not witness.observe(None, None).vanished, "that was the Node of another boot"
    assert not witness.observe(node_of(), None).vanished
    assert witness.observe(None, None).vanished
    assert witness.observe(node_of(boot="boot-1", uid="other"), None).vanished
    witness.forget_node()
    assert not witness.observe(None, None).vanished


# Choice of the home slot


def test_home_is_the_running_slot_or_else_the_registered_one() -> None:
    one = SlotFacts(Slot.KUBE1, True, BuildRecord(goal=goal(), node_uid="a"))
    two = SlotFacts(Slot.KUBE2, True, BuildRecord(goal=goal(), node_uid="n"))
    assert choose_home([one, RUNS], None) is Slot.KUBE2
    assert choose_home([one, two], node_of()) is Slot.KUBE2
    assert choose_home([one, two], node_of(uid="a")) is Slot.KUBE1
    assert choose_home([one, two], None) is Slot.KUBE1


# kubelet's credential


class _Certificates:
    """The one method of Nodes that is called here."""

    def __init__(self, held: CertificateAccess | None) -> None:
        self.held = held

    async def kubelet_certificate(self, _slot: Slot) -> CertificateAccess | None:
        return self.held


NOW = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)


def certificate(until: datetime.timedelta) -> CertificateAccess:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "system:node:m1")])
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(NOW - datetime.timedelta(days=30))
        .not_valid_after(NOW + until)
        .sign(key, hashes.SHA256())
    )
    return CertificateAccess(SecretStr(made.public_bytes(serialization.Encoding.PEM).decode()))


GOOD = certificate(datetime.timedelta(days=30))


@pytest.mark.parametrize(
    ("held", "attempt", "carried"),
    [
        (GOOD, 1, True),
        (GOOD, 2, False),
        (None, 1, False),
        (certificate(datetime.timedelta(minutes=5)), 1, False),
        (certificate(-datetime.timedelta(days=1)), 1, False),
        (CertificateAccess(SecretStr("garbage")), 1, False),
    ],
    ids=["good", "after a failure", "none", "about to end", "over", "garbage"],
)
async def test_the_certificate_is_carried_over_while_it_is_good(
    held: CertificateAccess | None, attempt: int, carried: bool
) -> None:
    fresh = TokenAccess(SecretStr("token"))

    async def ask(_tell: OnProgress) -> KubeletAccess:
        return fresh

    nodes: Any = _Certificates(held)
    given: Nodes = nodes
    access = await reuse_or(given, ask, now=lambda: NOW)(Slot.KUBE1, attempt, print)
    assert access is (held if carried else fresh)
