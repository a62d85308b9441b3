"""Serving certificates of kubelets, rule by rule: values in, verdicts out."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from tests.machina.asking import JOINERS, machine_of, pem, request_of
from unbounded.api.core import CertificateRequest, Node
from unbounded.api.names import GROUP_AGENTS, GROUP_NODES
from unbounded.machina.csr_approval.plan import ApproveServing, Defer, DenialReason, Deny, NotOurs, Verdict
from unbounded.machina.csr_approval.plan import plan as plan_client
from unbounded.machina.csr_approval.serving_certificates import (
    NameOwners,
    is_serving,
    machine_serving,
    names_of_other_machines,
    names_of_other_nodes,
    plan_serving,
)

USAGES: Final = ("digital signature", "server auth")
KUBELET: Final = (GROUP_NODES, "system:authenticated")
SSH: Final = {"host": "192.0.2.7:2222", "username": "u", "privateKeyRef": {"name": "k", "namespace": "n", "key": "k"}}


def alternative(*names: str) -> list[x509.GeneralName]:
    def one(name: str) -> x509.GeneralName:
        try:
            return x509.IPAddress(ipaddress.ip_address(name))
        except ValueError:
            return x509.DNSName(name)

    return [one(name) for name in names]


def serving(
    *names: str | x509.GeneralName,
    node: str = "m1",
    organizations: Sequence[str] = (GROUP_NODES,),
    user: str = "system:node:m1",
    groups: Sequence[str] = KUBELET,
    usages: Sequence[str] = USAGES,
    text: bytes | None = None,
    **more: Any,
) -> CertificateRequest:
    """A request as kubelet makes it, for these names and addresses."""
    sans = [one for name in names for one in (alternative(name) if isinstance(name, str) else [name])]
    made = text or pem(f"system:node:{node}", organizations=organizations, alternative=sans)
    spec = {"signerName": "kubernetes.io/kubelet-serving"}
    return request_of(made, user=user, groups=groups, usages=usages, spec=spec, **more)


def node_of(name: str, *addresses: str) -> Node:
    listed = [{"type": "InternalIP", "address": one} for one in addresses]
    return msgspec.convert({"metadata": {"name": name}, "status": {"addresses": listed}}, Node)


M1: Final = machine_of(ssh=SSH)
AROUND: Final = NameOwners(
    node_of("m1", "10.0.0.1", "2001:db8::1", "10.9.9.9", "m1"),
    api=frozenset({"10.96.0.1", "api.example.com", "10.0.0.100"}),
    machines=names_of_other_machines("m1", [M1, machine_of("m2", ssh={**SSH, "host": "10.0.0.2"}), machine_of("m3")]),
    nodes=names_of_other_nodes("m1", [node_of("m1", "10.0.0.1"), node_of("n4", "10.0.0.4", "10.9.9.9")]),
)


def refused(decided: Verdict) -> tuple[str, str]:
    assert isinstance(decided, Deny), decided
    return decided.reason, decided.message


@pytest.mark.parametrize(
    "names",
    [
        ("m1",),
        ("M1",),
        ("m1", "10.0.0.1"),
        ("10.0.0.1", "2001:db8::1"),
        ("2001:DB8:0::1",),
        ("192.0.2.7",),  # of spec.ssh.host alone
        ("::ffff:10.0.0.1",),
    ],
)
def test_a_kubelet_serves_as_its_node(names: tuple[str, ...]) -> None:
    decided = plan_serving(serving(*names), M1, AROUND)
    assert isinstance(decided, ApproveServing)
    assert len(decided.names) == len(names)
    rsa = serving(*names, usages=("key encipherment", *USAGES))
    assert plan_serving(rsa, M1, AROUND) == decided


def test_a_name_and_a_lease_of_the_spec_need_no_node() -> None:
    lease = {"mac": "02:00:00:00:00:01", "ipv4": "10.5.0.1", "subnetMask": "255.255.255.0", "gateway": "10.5.0.254"}
    netbooted = machine_of(pxe={"image": "r/i:v1", "dhcpLeases": [lease]})
    assert plan_serving(serving("m1", "10.5.0.1"), netbooted, NameOwners()) == ApproveServing(("m1", "10.5.0.1"))
    named = machine_of(ssh={**SSH, "host": "Host-1.example.com"})
    assert plan_serving(serving("host-1.example.com"), named, NameOwners()) == ApproveServing(("host-1.example.com",))


FOREIGN: Final = {
    "m2": "m2 belongs to Machine m2",
    "10.0.0.2": "10.0.0.2 belongs to Machine m2",
    "10.0.0.4": "10.0.0.4 belongs to Node n4",
    "10.9.9.9": "10.9.9.9 belongs to Node n4",  # which its own Node reports too
    "n4": "n4 belongs to Node n4",
    "10.96.0.1": "10.96.0.1 belongs to the API server or the cluster's DNS server",
    "10.0.0.100": "10.0.0.100 belongs to the API server",
    "api.example.com": "api.example.com belongs to the API server",
    "::ffff:10.0.0.2": "10.0.0.2 belongs to Machine m2",
    "127.0.0.1": "127.0.0.1 is not an address of a node",
    "::1": "is not an address of a node",
    "0.0.0.0": "is not an address of a node",
    "169.254.1.1": "is not an address of a node",
    "224.0.0.1": "is not an address of a node",
    "localhost": "localhost is a name of the cluster itself",
    "kubernetes": "is a name of the cluster itself",
    "kubernetes.default": "is a name of the cluster itself",
    "kubernetes.default.svc": "is a name of the cluster itself",
    "Web.Team.SVC.cluster.local": "web.team.svc.cluster.local is a name of the cluster itself",
}
UNKNOWN: Final = {
    "m1.example.com": "m1.example.com: neither the name of the Machine (m1), nor an address of its Node or Machine",
    "*": "*: neither",
    "*.example.com": "*.example.com: neither",
    "mm1": "mm1: neither",
}


@pytest.mark.parametrize("waited", [False, True])
@pytest.mark.parametrize("name", [*FOREIGN, *UNKNOWN])
def test_nobody_serves_as_somebody_else(name: str, waited: bool) -> None:
    for names in ((name,), ("m1", name), (name, "10.0.0.1")):
        reason, words = refused(plan_serving(serving(*names), M1, AROUND, waited=waited))
        assert reason == (DenialReason.FOREIGN_NAME if name in FOREIGN else DenialReason.UNKNOWN_NAME)
        assert (FOREIGN | UNKNOWN)[name] in words


@pytest.mark.parametrize("host", ["kubernetes", "kubernetes.default.svc", "api.example.com", "m2"])
def test_machine_named_like_a_cluster_endpoint_gets_no_serving_certificate(host: str) -> None:
    """A host that has the bootstrap token of a site chooses the name of its Machine."""
    around = NameOwners(node_of(host), AROUND.api, {**AROUND.machines, "m2": "Machine m9"}, AROUND.nodes)
    request = serving(host, node=host, user=f"system:node:{host}")
    assert refused(plan_serving(request, machine_of(host), around))[0] == DenialReason.FOREIGN_NAME


def test_serving_certificate_for_an_address_set_by_the_administrator_is_approved() -> None:
    machine = machine_of(ssh={**SSH, "host": "10.0.0.100"})
    assert plan_serving(serving("10.0.0.100"), machine, AROUND) == ApproveServing(("10.0.0.100",))


@pytest.mark.parametrize("node", [None, node_of("m1"), node_of("m1", "10.0.0.1")])
def test_an_address_that_the_node_may_report_later_is_waited_for(node: Node | None) -> None:
    around = NameOwners(node, AROUND.api, AROUND.machines, AROUND.nodes)
    assert plan_serving(serving("m1", "10.0.0.77"), M1, around) == Defer()
    reason, words = refused(plan_serving(serving("m1", "10.0.0.77"), M1, around, waited=True))
    assert (reason, words.partition(":")[0]) == (DenialReason.UNKNOWN_NAME, "10.0.0.77")


@pytest.mark.parametrize(
    ("request_", "reason", "words"),
    [
        (
            serving("m2", node="m2"),
            DenialReason.FOREIGN_IDENTITY,
            "may request its own certificates only, not those of m2",
        ),
        (serving("m1", groups=(GROUP_AGENTS,)), DenialReason.FOREIGN_IDENTITY, "system:node:m1 is not a kubelet"),
        (
            serving("m1", user="system:bootstrap:abcdef", groups=JOINERS),
            DenialReason.FOREIGN_IDENTITY,
            "is not a kubelet",
        ),
        (serving("m1", usages=("digital signature",)), DenialReason.UNFIT_REQUEST, "its usages must be server auth"),
        (serving("m1", usages=("server auth",)), DenialReason.UNFIT_REQUEST, "its usages must be server auth"),
        (
            serving("m1", usages=(*USAGES, "client auth")),
            DenialReason.UNFIT_REQUEST,
            "its usages must be server auth",
        ),
        (
            serving("m1", usages=(*USAGES, "cert sign")),
            DenialReason.UNFIT_REQUEST,
            "not digital signature, server auth, cert",
        ),
        (serving(), DenialReason.UNFIT_REQUEST, "it must name a host or an address"),
        (
            serving("m1", x509.RFC822Name("a@b.c")),
            DenialReason.UNFIT_REQUEST,
            "it may name only hosts and addresses, not RFC822Name",
        ),
        (
            serving("m1", x509.UniformResourceIdentifier("spiffe://a/b")),
            DenialReason.UNFIT_REQUEST,
            "only hosts and addresses, not UniformResourceIdentifier",
        ),
        (
            serving("m1", organizations=("system:masters",)),
            DenialReason.UNFIT_REQUEST,
            "its subject must be O=system:nodes",
        ),
        (
            serving("m1", organizations=(GROUP_NODES, "x")),
            DenialReason.UNFIT_REQUEST,
            "its subject must be O=system:nodes",
        ),
        (serving(text=b"nonsense"), DenialReason.UNFIT_REQUEST, "one PEM block of type CERTIFICATE REQUEST"),
    ],
)
def test_what_is_no_request_of_a_kubelet_is_refused(request_: CertificateRequest, reason: str, words: str) -> None:
    found = refused(plan_serving(request_, M1, AROUND))
    assert found[0] == reason
    assert words in found[1]


def test_another_extension_is_refused() -> None:
    more = (x509.BasicConstraints(ca=True, path_length=None),)
    text = pem("system:node:m1", organizations=(GROUP_NODES,), alternative=alternative("m1"), more=more)
    reason, words = refused(plan_serving(serving(text=text), M1, AROUND))
    assert (reason, "subject alternative names are the only extension" in words) == (DenialReason.UNFIT_REQUEST, True)


def test_machines_that_go_and_nodes_that_are_not_ours() -> None:
    assert plan_serving(serving("m1"), None, AROUND) == NotOurs()
    going = machine_of(metadata={"deletionTimestamp": "2030-01-01T00:00:00Z"})
    assert refused(plan_serving(serving("m1"), going, AROUND))[0] == DenialReason.MACHINE_DELETED
    assert plan_serving(serving("m1", user="alice", groups=("system:authenticated",)), M1, AROUND) == NotOurs()
    decided = serving("m1", status={"conditions": [{"type": "Denied"}]})
    assert plan_serving(decided, M1, AROUND) == NotOurs()
    assert not is_serving(decided)


def test_the_two_plans_leave_each_others_requests_alone() -> None:
    assert plan_client(serving("m1"), M1) == NotOurs()
    client = request_of(purpose="kubelet", user="system:node:m1", groups=KUBELET)
    assert plan_serving(client, M1, AROUND) == NotOurs()
    assert machine_serving(serving("m1")) == "m1"
    assert machine_serving(serving("m1", user="system:bootstrap:abcdef", groups=JOINERS)) is None


NAMES: Final = st.sampled_from(["m1", "M1.", "10.0.0.1", "192.0.2.7", *FOREIGN, *UNKNOWN])


@pytest.mark.slow
@given(st.lists(NAMES | st.ip_addresses().map(str), min_size=1, max_size=4), st.booleans())
def test_each_name_that_is_served_is_the_nodes_own(names: list[str], waited: bool) -> None:
    decided = plan_serving(serving(*names), M1, AROUND, waited=waited)
    if isinstance(decided, ApproveServing):
        assert set(decided.names) <= {"m1", "10.0.0.1", "2001:db8::1", "192.0.2.7"}
    assert not isinstance(decided, NotOurs)
