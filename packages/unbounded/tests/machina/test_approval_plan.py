"""Approval of certificates, rule by rule: values in, verdicts out."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from hypothesis import given
from hypothesis import strategies as st

from tests.machina.asking import active, asked_for, machine_of, pem, recent, request_of, token_of, use, used
from unbounded.api.machine import JoinPurpose, Machine
from unbounded.api.names import GROUP_AGENTS, GROUP_NODES
from unbounded.machina.csr_approval.plan import (
    ApproveJoin,
    ApproveRenewal,
    Defer,
    DenialReason,
    Deny,
    NotOurs,
    Verdict,
    machine_concerned,
    open_causes,
    plan,
    with_recorded,
)

NODE = "system:node:m1"
AGENT, KUBELET = JoinPurpose.AGENT, JoinPurpose.KUBELET
BOTH = ("agent", "kubelet")
AUTHENTICATED = "system:authenticated"
NEW = machine_of()
JOINED = used(use("Registration"), use("Registration", "kubelet"))


def refused(decided: Verdict) -> tuple[DenialReason, str]:
    assert isinstance(decided, Deny), decided
    return decided.reason, decided.message


# A join


@pytest.mark.parametrize("purpose", BOTH)
@pytest.mark.parametrize("groups", [token_of(), token_of("uid-m1")], ids=["of the site", "of the Machine"])
def test_new_machine_may_join_once_per_purpose(purpose: str, groups: tuple[str, ...]) -> None:
    decided = plan(request_of(purpose=purpose, groups=groups), NEW)
    assert decided == ApproveJoin(JoinPurpose(purpose), ("Registration",))
    again = plan(request_of(purpose=purpose, groups=groups), machine_of(status=JOINED))
    reason, words = refused(again)
    assert reason is DenialReason.NO_JOIN_OPEN
    assert words == (
        f"the {purpose} of Machine m1 already has its certificate (last for Registration at 2030-01-01T00:00:00Z)."
        " Its host may join once more after a HostReplace that wrote its image, after an AgentReset,"
        " or when spec.joinCounter exceeds 0"
    )


CAUSES: list[tuple[str, dict[str, Any], dict[str, Any], tuple[str, ...]]] = [
    ("nothing", {}, {}, ()),
    ("joinCounter", {"joinCounter": 1}, {}, ("Allowed/1",)),
    ("joinCounter raised by more than one", {"joinCounter": 7}, used(use("Allowed/2")), ("Allowed/7",)),
    ("joinCounter that was used", {"joinCounter": 2}, used(use("Allowed/2")), ()),
    ("joinCounter that was lowered", {"joinCounter": 1}, used(use("Allowed/2")), ()),
    ("a replace that runs", {}, {"activeOperation": active("HostReplace", "u1")}, ("HostReplace/u1",)),
    ("a replace that is complete", {}, {"recentOperations": [recent("HostReplace", "u1")]}, ("HostReplace/u1",)),
    ("a replace that failed", {}, {"recentOperations": [recent("HostReplace", "u1", "Failed")]}, ()),
    (
        "a replace that failed after its image was written",
        {},
        {"recentOperations": [recent("HostReplace", "u1", "Failed", "the host was Off", "the image was written")]},
        ("HostReplace/u1",),
    ),
    (
        "a replace that failed before its image was written",
        {},
        {"recentOperations": [recent("HostReplace", "u1", "Failed", "the host was Off", "the installer started")]},
        (),
    ),
    (
        "a replace whose boot was contested after its image was written",
        {},
        {"recentOperations": [recent("HostReplace", "u1", "Failed", "the image was written", reason="BootContested")]},
        (),
    ),
    (
        "a replace that runs, whose boot was contested",
        {},
        {"activeOperation": active("HostReplace", "u1"), "netboot": {"boot": "u1", "milestone": "Contested"}},
        (),
    ),
    (
        "a replace that runs after one whose boot was contested",
        {},
        {"activeOperation": active("HostReplace", "u2"), "netboot": {"boot": "u1", "milestone": "Contested"}},
        ("HostReplace/u2",),
    ),
    (
        "a replace that failed and was used",
        {},
        {"recentOperations": [recent("HostReplace", "u1", "Failed", "the image was written")],
         **used(use("HostReplace/u1"))},
        (),
    ),
    ("a reboot that claims an image", {}, {"recentOperations": [recent("HostReboot", "u1", "Failed",
                                                                       "the image was written")]}, ()),
    (
        "a replace that was used while it ran",
        {},
        {"recentOperations": [recent("HostReplace", "u1")], **used(use("HostReplace/u1"))},
        (),
    ),
    ("a slot that an agent took", {}, {"activeOperation": active("HostReplace", "u", "unbounded-agent/m1")}, ()),
    ("another operation that runs", {}, {"activeOperation": active("HostReboot", "u1")}, ()),
    ("a reset that is complete", {}, {"recentOperations": [recent("AgentReset", "u2")]}, ("AgentReset/u2",)),
    ("a reset that runs", {}, {"activeOperation": active("AgentReset", "u2", "unbounded-agent/m1")}, ()),
    ("another operation that is complete", {}, {"recentOperations": [recent("HostReboot", "u3")]}, ()),
    (
        "several at once",
        {"joinCounter": 1},
        {"recentOperations": [recent("HostReplace", "u1"), recent("AgentReset", "u2")]},
        ("Allowed/1", "HostReplace/u1", "AgentReset/u2"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("spec", "status", "causes"), [row[1:] for row in CAUSES], ids=[row[0] for row in CAUSES])
def test_what_lets_a_machine_that_has_joined_join_once_more(
    spec: dict[str, Any], status: dict[str, Any], causes: tuple[str, ...]
) -> None:
    before = status.get("join", {}).get("used", [])
    machine = machine_of(status={**status, **used(use("Registration"), *before)}, **spec)
    decided = plan(request_of(), machine)
    if causes:
        assert decided == ApproveJoin(AGENT, causes)
    else:
        assert refused(decided)[0] is DenialReason.NO_JOIN_OPEN


def test_one_certificate_uses_up_all_that_would_have_let_it_be_issued() -> None:
    replaced = {"recentOperations": [recent("HostReplace", "u1")]}
    machine = machine_of(status=replaced, joinCounter=3)
    uses = with_recorded(machine, AGENT, open_causes(machine, AGENT), request="r", now="2030-01-01T00:00:00Z")
    after = machine_of(status={**replaced, "join": {"used": [msgspec.to_builtins(one) for one in uses]}}, joinCounter=3)
    assert open_causes(after, AGENT) == ()
    assert open_causes(after, KUBELET) == ("Registration", "Allowed/3", "HostReplace/u1")


def test_a_request_whose_approval_was_lost_is_approved_without_another_cause() -> None:
    machine = machine_of(status=used(use("Registration", request="uid-csr-1")))
    assert plan(request_of(), machine) == ApproveJoin(AGENT, ())
    assert refused(plan(request_of(purpose="kubelet"), machine_of(status=JOINED)))[0] is DenialReason.NO_JOIN_OPEN
    assert refused(plan(request_of(name="csr-2"), machine))[0] is DenialReason.NO_JOIN_OPEN


# Denied requests

FOREIGN: list[tuple[str, tuple[str, ...]]] = [
    ("of another Machine", token_of("uid-m2")),
    ("of a Machine of this name that is gone", token_of("uid-m1-before")),
    ("of two Machines", token_of("uid-m1", "uid-m2")),
]


@pytest.mark.parametrize("groups", [row[1] for row in FOREIGN], ids=[row[0] for row in FOREIGN])
def test_a_token_opens_its_own_machine_only(groups: tuple[str, ...]) -> None:
    assert refused(plan(request_of(groups=groups), NEW)) == (
        DenialReason.FOREIGN_TOKEN,
        "the bootstrap token of system:bootstrap:abcdef was created for a Machine other than m1"
        " (or for a deleted Machine of that name)",
    )


SUBJECT = "its subject must be O=unbounded-agent-daemons, CN=system:node:MACHINE and nothing else"
BLOCK = "it must contain exactly one PEM block of type CERTIFICATE REQUEST"
OWN = (GROUP_AGENTS,)
USAGES = "its usages must be client auth, digital signature and key encipherment, not "
UNFIT: list[tuple[str, bytes, str]] = [
    (
        "another common name",
        pem("admin", organizations=OWN),
        "its common name must be system:node: and the name of the Machine",
    ),
    (
        "no name after the prefix",
        pem("system:node:", organizations=OWN),
        "its common name must be system:node: and the name",
    ),
    ("no common name", pem(organizations=OWN), SUBJECT),
    ("two common names", pem(NODE, "system:node:m2", organizations=OWN), SUBJECT),
    ("another group", pem(NODE, organizations=("system:masters",)), SUBJECT),
    ("two groups", pem(NODE, organizations=(GROUP_AGENTS, "system:masters")), SUBJECT),
    ("the group of kubelets", pem(NODE, organizations=(GROUP_NODES,)), SUBJECT),
    ("no group", pem(NODE), SUBJECT),
    ("more in the subject", pem(NODE, unit="x", organizations=OWN), SUBJECT),
    (
        "a DNS name",
        pem(NODE, alternative=[x509.DNSName("m1")], organizations=OWN),
        "a client certificate must not have subject alternative names",
    ),
    ("two blocks", asked_for("m1") + asked_for("m2"), BLOCK),
    ("text before the block", b"x\n" + asked_for("m1"), BLOCK),
    ("no request", b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n", "it is not a"),
    ("another block", asked_for("m1").replace(b"CERTIFICATE REQUEST", b"CERTIFICATE"), BLOCK),
    ("nothing", b"", BLOCK),
]


@pytest.mark.parametrize(("text", "words"), [row[1:] for row in UNFIT], ids=[row[0] for row in UNFIT])
def test_a_request_for_something_else_is_refused_in_words(text: bytes, words: str) -> None:
    reason, said = refused(plan(request_of(text), NEW))
    assert (reason, said.startswith(f"refused: {words}")) == (DenialReason.UNFIT_REQUEST, True), said
    holder = plan(request_of(text, user=NODE, groups=(GROUP_AGENTS,)), NEW)
    assert refused(holder) == (reason, said)


def test_a_request_that_another_key_has_signed_is_refused() -> None:
    found = base64.b64decode(b"".join(asked_for("m1").splitlines()[1:-1]))
    forged = base64.encodebytes(found[:-1] + bytes([found[-1] ^ 1]))
    text = b"-----BEGIN CERTIFICATE REQUEST-----\n" + forged + b"-----END CERTIFICATE REQUEST-----\n"
    reason, said = refused(plan(request_of(text), NEW))
    assert reason is DenialReason.UNFIT_REQUEST
    assert said in {
        "refused: its signature is not by the key that it contains",
        "refused: it is not a valid certificate request (PKCS #10)",
    }


@pytest.mark.parametrize("usages", [(), ("digital signature",), ("client auth", "server auth"), ("any",)], ids=str)
def test_only_the_usages_of_a_client_are_granted(usages: tuple[str, ...]) -> None:
    words = ", ".join(usages) or "none"
    assert refused(plan(request_of(usages=usages), NEW)) == (DenialReason.UNFIT_REQUEST, f"refused: {USAGES}{words}")


@pytest.mark.parametrize(
    "usages", [("client auth",), ("client auth", "digital signature", "key encipherment")], ids=str
)
def test_what_clients_ask_for_is_granted(usages: tuple[str, ...]) -> None:
    assert isinstance(plan(request_of(usages=usages), NEW), ApproveJoin)


def test_the_machine_may_be_registered_a_little_later_than_its_agent_asks() -> None:
    assert plan(request_of(), None) == Defer()
    assert refused(plan(request_of(), None, waited=True)) == (
        DenialReason.MACHINE_NOT_FOUND,
        "Machine m1 does not exist",
    )


def test_machine_token_without_its_machine_is_denied_at_once() -> None:
    assert refused(plan(request_of(groups=token_of("u")), None))[0] is DenialReason.MACHINE_NOT_FOUND


GOING = {"deletionTimestamp": "2030-01-01T00:00:00Z"}
ASKERS: list[tuple[str, str, tuple[str, ...]]] = [
    ("a joiner", "system:bootstrap:abcdef", token_of()),
    ("its agent", NODE, (GROUP_AGENTS, AUTHENTICATED)),
    ("its kubelet", NODE, (GROUP_NODES, AUTHENTICATED)),
]


@pytest.mark.parametrize(("user", "groups"), [row[1:] for row in ASKERS], ids=[row[0] for row in ASKERS])
def test_a_machine_that_is_being_deleted_gets_no_certificate(user: str, groups: tuple[str, ...]) -> None:
    decided = plan(request_of(purpose="kubelet", user=user, groups=groups), machine_of(metadata=GOING))
    assert refused(decided) == (DenialReason.MACHINE_DELETED, "Machine m1 is being deleted")


# Renewal


@pytest.mark.parametrize(
    ("group", "purpose"), [(GROUP_AGENTS, "agent"), (GROUP_AGENTS, "kubelet"), (GROUP_NODES, "kubelet")]
)
def test_who_has_a_certificate_gets_the_next_one_without_a_cause(group: str, purpose: str) -> None:
    decided = plan(request_of(purpose=purpose, user=NODE, groups=(group, AUTHENTICATED)), machine_of(status=JOINED))
    assert decided == ApproveRenewal(JoinPurpose(purpose))


@pytest.mark.parametrize("groups", [(GROUP_NODES,), (GROUP_NODES, GROUP_AGENTS), (GROUP_AGENTS, GROUP_NODES)], ids=str)
def test_a_kubelet_does_not_become_an_agent(groups: tuple[str, ...]) -> None:
    assert refused(plan(request_of(user=NODE, groups=groups), NEW)) == (
        DenialReason.FOREIGN_IDENTITY,
        f"kubelet {NODE} may not request the certificate of an agent",
    )


@pytest.mark.parametrize("purpose", BOTH)
def test_renewal_for_another_machine_is_denied(purpose: str) -> None:
    other = request_of(machine="m2", purpose=purpose, user=NODE, groups=(GROUP_AGENTS,))
    assert machine_concerned(other) == "m1"
    assert refused(plan(other, NEW)) == (
        DenialReason.FOREIGN_IDENTITY,
        "system:node:m1 may request its own certificates only, not those of m2",
    )


def test_an_agent_whose_machine_is_gone_renews_nothing() -> None:
    assert refused(plan(request_of(user=NODE, groups=(GROUP_AGENTS,)), None))[0] is DenialReason.MACHINE_NOT_FOUND


# Requests that others decide

CLUSTER = "system:bootstrappers:kubeadm:default-node-token"
OTHERS: list[tuple[str, dict[str, Any], Machine | None]] = [
    ("a token of the cluster's own", {"groups": ("system:bootstrappers", CLUSTER)}, NEW),
    ("a kubelet that is no Machine", {"purpose": "kubelet", "user": NODE, "groups": (GROUP_NODES,)}, None),
    ("a person", {"user": "alice", "groups": (GROUP_AGENTS, GROUP_NODES, "system:bootstrappers")}, NEW),
    ("a person who is said to join", {"user": "alice", "groups": token_of()}, NEW),
    (
        "a kubelet that requests a certificate of its own choice",
        {"text": pem("team", organizations=("x",)), "user": NODE, "groups": (GROUP_NODES,)},
        NEW,
    ),
    ("another signer", {"spec": {"signerName": "kubernetes.io/kubelet-serving"}}, NEW),
    ("what was approved", {"status": {"conditions": [{"type": "Approved", "status": "True"}]}}, NEW),
    ("what was denied", {"status": {"conditions": [{"type": "Denied", "status": "True"}]}}, NEW),
    ("what was issued", {"status": {"certificate": "AAAA"}}, NEW),
]


@pytest.mark.parametrize(("asked", "machine"), [row[1:] for row in OTHERS], ids=[row[0] for row in OTHERS])
def test_requests_of_others_are_left_alone(asked: dict[str, Any], machine: Machine | None) -> None:
    assert plan(request_of(**asked), machine) == NotOurs()


# Rules that always hold


class Story:
    """A Machine through its life, under attack by a client with a token and any number of requests."""

    def __init__(self) -> None:
        self.spec: dict[str, Any] = {}
        self.status: dict[str, Any] = {}
        self.armed = 1  # how often something let it join
        self.issued = {AGENT: 0, KUBELET: 0}
        self.asked = 0
        self.highest = 0

    @property
    def machine(self) -> Machine:
        return machine_of(status=self.status, **self.spec)

    def ask(self, purpose: JoinPurpose) -> None:
        self.asked += 1
        decided = plan(request_of(purpose=purpose, name=f"csr-{self.asked}"), self.machine)
        if isinstance(decided, ApproveJoin):
            uid = f"uid-csr-{self.asked}"
            uses = with_recorded(self.machine, purpose, decided.causes, request=uid, now="2030-01-01T00:00:00Z")
            assert len(uses) <= 30
            self.status = {**self.status, "join": {"used": [msgspec.to_builtins(one) for one in uses]}}
            self.issued[purpose] += 1

    def count(self, number: int) -> None:
        self.spec = {"joinCounter": number}
        self.armed += number > self.highest
        self.highest = max(self.highest, number)

    def begin(self, number: int) -> None:
        if "activeOperation" not in self.status:
            self.status = {**self.status, "activeOperation": active("HostReplace", f"op-{number}-{self.asked}")}
            self.armed += 1

    def end(self, phase: str) -> None:
        running = self.status.get("activeOperation")
        if running is not None:
            history = [*self.status.get("recentOperations", []), recent("HostReplace", running["uid"], phase)][-10:]
            self.status = {k: v for k, v in self.status.items() if k != "activeOperation"}
            self.status["recentOperations"] = history

    def reset(self, number: int) -> None:
        done = recent("AgentReset", f"reset-{number}-{self.asked}")
        if done not in self.status.get("recentOperations", []):
            self.armed += 1
            self.status = {**self.status, "recentOperations": [*self.status.get("recentOperations", []), done][-10:]}


STEPS = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from([AGENT, KUBELET])),
    st.tuples(st.just("count"), st.integers(0, 4)),
    st.tuples(st.just("begin"), st.integers(0, 3)),
    st.tuples(st.just("end"), st.sampled_from(["Complete", "Failed"])),
    st.tuples(st.just("reset"), st.integers(0, 3)),
)


@pytest.mark.slow
@given(st.lists(STEPS, max_size=40))
def test_there_are_never_more_certificates_than_there_were_causes(steps: list[tuple[str, Any]]) -> None:
    story = Story()
    for step, argument in steps:
        getattr(story, step)(argument)
    for purpose, issued in story.issued.items():
        assert issued <= story.armed, purpose


@given(st.binary(max_size=300), st.sampled_from(BOTH))
def test_garbage_is_refused_and_breaks_nothing(text: bytes, purpose: str) -> None:
    assert refused(plan(request_of(text, purpose), NEW))[0] is DenialReason.UNFIT_REQUEST


def test_a_key_of_rsa_or_of_another_curve_is_as_good() -> None:
    text = asked_for("m1", key=ec.generate_private_key(ec.SECP384R1()))
    assert isinstance(plan(request_of(text), NEW), ApproveJoin)
