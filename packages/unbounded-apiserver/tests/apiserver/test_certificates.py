"""Requests for certificates: valid requests, approvers, signatures, and the lifetime of a request."""

from __future__ import annotations

import base64
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.apiserver.support import Client, client_of, client_with, refusal, running, signing_request
from tests.support.waiting import eventually
from unbounded.kube.tls import ClientCertificate, client_context
from unbounded_apiserver.certificates import csr, csr_types, signers
from unbounded_apiserver.controllers.certificates import removal_time
from unbounded_apiserver.options import WriteOptions
from unbounded_apiserver.pki import CertificateAuthority
from unbounded_apiserver.server import ApiServer
from unbounded_apiserver.server_core import ServerCore
from unbounded_apiserver.writes import WriteTarget

REQUESTS = "/apis/certificates.k8s.io/v1/certificatesigningrequests"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
WHOAMI = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOUR, YEAR, MINUTES = timedelta(hours=1), timedelta(days=365), timedelta(minutes=5)
NODE = ("system:node:n1", "system:nodes")
SAN = (x509.DNSName("n1"), x509.IPAddress(ip_address("10.0.0.1")))
MAIL, LINK = x509.RFC822Name("a@b.c"), x509.UniformResourceIdentifier("https://a")
NEEDED = "missing required usage for client certificate: client auth"
EXACTLY = "usages did not match [client auth digital signature key encipherment]"
EXACTLY_SERVING = "usages did not match [digital signature key encipherment server auth]"
NO_NODE = "subject common name does not begin with system:node:"
SERVING = ("digital signature", "server auth")
KUBELET = ("digital signature", "client auth")


def encode_pem(kind: str, data: bytes) -> bytes:
    """Encode one block."""
    text = base64.b64encode(data)
    lines = b"".join(text[at : at + 64] + b"\n" for at in range(0, len(text), 64))
    return b"-----BEGIN %b-----\n%b-----END %b-----\n" % (kind.encode(), lines, kind.encode())


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[tuple[ApiServer, Client]]:
    async with running(tmp_path) as (server, client):
        yield server, client


def asking(
    name: str,
    text: bytes | None = None,
    *,
    signer: str = signers.CLIENT,
    usages: tuple[str, ...] = ("client auth",),
    **spec: Any,
) -> dict[str, Any]:
    request = base64.b64encode(text if text is not None else signing_request("bob", "team")[0]).decode()
    asked = {"request": request, "signerName": signer, "usages": list(usages), **spec}
    return {"metadata": {"name": name}, "spec": asked}


def node_asking(name: str, node: str, key: list[ec.EllipticCurvePrivateKey]) -> dict[str, Any]:
    text, made = signing_request(f"system:node:{node}", "system:nodes")
    key[:] = [made]
    usages = ("digital signature", "client auth")
    return asking(name, text, signer=signers.KUBELET_CLIENT, usages=usages)


def condition(kind: str, **more: str) -> dict[str, Any]:
    return {"type": kind, "status": "True", **more}


async def decide(client: Client, name: str, kind: str, reason: str = "Test") -> Any:
    found = await client.get(f"{REQUESTS}/{name}")
    found["status"] = {"conditions": [condition(kind, reason=reason)]}
    return await client.ask("PUT", f"{REQUESTS}/{name}/approval", found)


async def signed(client: Client, name: str) -> bytes:
    async def certificate() -> str:
        return str((await client.get(f"{REQUESTS}/{name}"))["status"].get("certificate", ""))

    return base64.b64decode(await eventually(certificate))


def identity(data_dir: Path, certificate: bytes, key: ec.EllipticCurvePrivateKey) -> ssl.SSLContext:
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    ca = (data_dir / "pki" / "ca.crt").read_bytes()
    return client_context(ca=ca, certificate=ClientCertificate(certificate, private))


async def allow(admin: Client, user: str, *some: dict[str, Any]) -> None:
    await admin.create(f"{RBAC}/clusterroles", {"metadata": {"name": user}, "rules": list(some)})
    reference = {"kind": "ClusterRole", "name": user}
    subjects = [{"kind": "User", "name": user}]
    await admin.create(
        f"{RBAC}/clusterrolebindings", {"metadata": {"name": user}, "roleRef": reference, "subjects": subjects}
    )


async def bind(admin: Client, name: str, role: str, group: str) -> None:
    reference, subjects = {"kind": "ClusterRole", "name": role}, [{"kind": "Group", "name": group}]
    body = {"metadata": {"name": name}, "roleRef": reference, "subjects": subjects}
    await admin.create(f"{RBAC}/clusterrolebindings", body)


async def bootstrap_token(admin: Client) -> None:
    data = {"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"}
    body = {"metadata": {"name": "bootstrap-token-abcdef"}, "type": "bootstrap.kubernetes.io/token", "stringData": data}
    await admin.create("/api/v1/namespaces/kube-system/secrets", body)


def right(resources: str, *verbs: str, **more: Any) -> dict[str, Any]:
    return {"apiGroups": ["certificates.k8s.io"], "resources": resources.split(), "verbs": list(verbs), **more}


@pytest.mark.slow
async def test_who_asks_is_written_by_the_server_and_stays(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    await allow(admin, "alice", right("certificatesigningrequests", "create", "get", "update"))
    async with client_of(server, "alice", "team") as alice:
        body = asking("a", username="root", uid="1", groups=["system:masters"], extra={"a": ["b"]})
        made = await alice.create(REQUESTS, {**body, "status": {"conditions": [condition("Approved")]}})
        spec = made["spec"]
        assert (spec["username"], spec["groups"]) == ("alice", ["team", "system:authenticated"])
        assert "uid" not in spec
        assert list(spec["extra"]) == ["authentication.kubernetes.io/credential-id"]
        assert made["status"] == {}
        changed = await alice.ask("PUT", f"{REQUESTS}/a", {**body, "metadata": {"name": "a", "labels": {"x": "y"}}})
        assert changed.json()["spec"] == spec
        assert changed.json()["metadata"]["labels"] == {"x": "y"}


@pytest.mark.slow
async def test_approval_asks_for_the_right_to_the_signer(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    updates = right("certificatesigningrequests/approval", "update"), right("certificatesigningrequests", "get")
    await allow(admin, "nobody", *updates)
    await allow(admin, "one", *updates, right("signers", "approve", resourceNames=[signers.CLIENT]))
    await allow(admin, "all", *updates, right("signers", "approve", resourceNames=["kubernetes.io/*"]))
    for name in ("x", "y"):
        await admin.create(REQUESTS, asking(name))
    async with client_of(server, "nobody") as nobody:
        refused = await decide(nobody, "x", "Approved")
        assert refused.status == 403
        assert refused.json()["message"] == (
            'certificatesigningrequests.certificates.k8s.io "x" is forbidden: '
            'user not permitted to approve requests with signerName "kubernetes.io/kube-apiserver-client"'
        )
    for user, name in (("one", "x"), ("all", "y")):
        async with client_of(server, user) as allowed:
            assert (await decide(allowed, name, "Denied")).status == 200


@pytest.mark.slow
async def test_signing_asks_for_the_right_to_the_signer_and_does_not_approve(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    updates = right("certificatesigningrequests/status", "update", "patch"), right("certificatesigningrequests", "get")
    await allow(admin, "nobody", *updates)
    await allow(admin, "signer", *updates, right("signers", "sign", resourceNames=["example.com/own"]))
    made = await admin.create(REQUESTS, asking("x", signer="example.com/own", usages=("any",)))
    certificate = CertificateAuthority(server.data_dir).issue_client("x").certificate
    made["status"] = {"certificate": base64.b64encode(certificate).decode()}
    async with client_of(server, "nobody") as nobody, client_of(server, "signer") as signer:
        refused = await nobody.ask("PUT", f"{REQUESTS}/x/status", made)
        assert 'user not permitted to sign requests with signerName "example.com/own"' in refused.json()["message"]
        more = {**made, "status": {}, "metadata": {**made["metadata"], "labels": {"a": "b"}}}
        labelled = await nobody.ask("PUT", f"{REQUESTS}/x/status", more)
        assert labelled.status == 200  # neither certificate nor conditions
        made["metadata"]["resourceVersion"] = labelled.json()["metadata"]["resourceVersion"]
        own = {**made, "status": {**made["status"], "conditions": [condition("Approved")]}}
        refused = await signer.ask("PUT", f"{REQUESTS}/x/status", own)
        assert refused.json()["details"]["causes"][0]["message"] == (
            'Forbidden: updates may not add a condition of type "Approved"'
        )
        done = await signer.ask("PUT", f"{REQUESTS}/x/status", made)
        assert done.json()["status"]["certificate"] == made["status"]["certificate"]
        other = {"status": {"certificate": base64.b64encode(certificate * 2).decode()}}
        merge = {"Content-Type": "application/merge-patch+json"}
        refused = await signer.ask("PATCH", f"{REQUESTS}/x/status", other, headers=merge)
        assert "updates may not modify existing certificate content" in refused.json()["message"]


@pytest.mark.slow
async def test_what_was_decided_stays(served: tuple[ApiServer, Client]) -> None:
    _, admin = served
    await admin.create(REQUESTS, asking("x", signer="example.com/own"))
    first = (await decide(admin, "x", "Denied")).json()["status"]["conditions"][0]
    assert first["lastUpdateTime"] == first["lastTransitionTime"]
    again = await admin.get(f"{REQUESTS}/x")
    again["status"]["conditions"][0] = {**first, "message": "twice", "lastUpdateTime": None, "lastTransitionTime": None}
    del again["metadata"]["resourceVersion"]
    kept = (await admin.ask("PUT", f"{REQUESTS}/x/approval", again)).json()["status"]["conditions"][0]
    assert (kept["message"], kept["lastTransitionTime"]) == ("twice", first["lastTransitionTime"])
    for conditions, why in (
        ([], 'updates may not remove a condition of type \\"Denied\\"'),
        ([condition("Denied"), condition("Approved")], "Approved and Denied conditions are mutually exclusive"),
        ([condition("Denied"), condition("Denied")], "Duplicate value"),
        ([{"type": "Denied", "status": "False"}], 'supported values: \\"True\\"'),
        ([condition("Denied"), {"type": "", "status": ""}], "status.conditions[1].type: Required value"),
    ):
        refused = await admin.ask("PUT", f"{REQUESTS}/x/approval", {**again, "status": {"conditions": conditions}})
        assert refused.status == 422, conditions
        assert why in refused.text


@pytest.mark.slow
async def test_certificate_request_for_system_masters_is_rejected(served: tuple[ApiServer, Client]) -> None:
    _, admin = served
    text, _ = signing_request("mallory", "team", "system:masters")
    refused = await admin.ask("POST", REQUESTS, asking("x", text))
    assert refused.status == 403
    assert refused.json()["message"].endswith(
        "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed"
    )


@pytest.mark.parametrize(
    ("spec", "field", "why"),
    [
        ({"request": ""}, "spec.request", "PEM block type must be CERTIFICATE REQUEST"),
        ({"request": "eA=="}, "spec.request", "PEM block type must be CERTIFICATE REQUEST"),
        ({"usages": []}, "spec.usages", "Required value"),
        ({"usages": ["client auth", "client auth"]}, "spec.usages[1]", 'Duplicate value: "client auth"'),
        ({"usages": ["x"]}, "spec.usages[0]", 'Unsupported value: "x": supported values: "any", "cert sign",'),
        ({"signerName": ""}, "spec.signerName", "Required value"),
        ({"signerName": "a.b/c/d"}, "spec.signerName", "must be a fully qualified domain and path of the form"),
        ({"signerName": "a/c"}, "spec.signerName", "should be a domain with at least two segments separated by dots"),
        ({"signerName": "a.B/c"}, "spec.signerName", 'validating label "B": a lowercase RFC 1123 label'),
        ({"signerName": "a.b/C"}, "spec.signerName", 'validating label "C": a lowercase RFC 1123 subdomain'),
        ({"signerName": "a" * 254 + ".b/c"}, "spec.signerName", "Too long: may not be more than 253 bytes"),
        ({"signerName": signers.LEGACY}, "spec.signerName", "the legacy signerName is not allowed"),
        ({"expirationSeconds": 599}, "spec.expirationSeconds", "may not specify a duration less than 600 seconds"),
    ],
)
def test_what_cannot_be_asked(spec: dict[str, Any], field: str, why: str) -> None:
    obj = asking("x")
    obj["spec"] |= spec
    csr_types.REQUESTS.type.decode(obj)
    obj["spec"].setdefault("usages", [])
    errors = csr_types.check(obj, None)
    assert (field, True) in [(error.field, why in error.message) for error in errors], errors


def test_a_request_that_was_touched_is_not_of_its_key() -> None:
    text, _ = signing_request("bob", "team")
    good = csr.parse_csr(b"some text\n" + text + text)
    assert (good.common_name, good.organizations, good.names) == ("bob", ("team",), ())
    data = next(csr.pem_blocks(text)).data
    for touched in (data.replace(b"team", b"tean"), data[:-1] + bytes([data[-1] ^ 1])):
        wrong = refusal(csr.MalformedCsr, partial(csr.parse_csr, encode_pem(csr.REQUEST, touched)))
        assert str(wrong) in {"x509: ECDSA verification failure", "asn1: structure error: not a certificate request"}


@pytest.mark.slow
@given(st.binary(max_size=400), st.booleans())
@example(b"", True)
def test_garbage_is_no_request_and_no_crash(data: bytes, wrapped: bool) -> None:
    text = encode_pem(csr.REQUEST, data) if wrapped else data
    assert refusal(csr.MalformedCsr, lambda: csr.parse_csr(text)) is not None


def resigned(content: bytes, key: ec.EllipticCurvePrivateKey) -> bytes:
    """A request with this content, signed by its key."""

    def part(tag: int, body: bytes) -> bytes:
        size = len(body)
        return bytes([tag, size]) + body if size < 128 else bytes([tag, 0x82, size >> 8, size & 255]) + body

    algorithm = part(0x30, part(0x06, bytes.fromhex("2a8648ce3d040302")))  # ecdsa-with-SHA256
    signature = key.sign(content, ec.ECDSA(hashes.SHA256()))
    return encode_pem(csr.REQUEST, part(0x30, content + algorithm + part(0x03, b"\0" + signature)))


WHOLE, WHOLE_KEY = signing_request(*NODE, alternative=(*SAN, MAIL, LINK))
CONTENT = x509.load_pem_x509_csr(WHOLE).tbs_certrequest_bytes
VERSION = CONTENT.index(b"\x02\x01\x00") + 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Attribute's length")
@settings(max_examples=300)
@given(changes=st.lists(st.tuples(st.integers(0, len(CONTENT) - 1), st.integers(0, 255)), max_size=3))
@example(changes=[])
@example(changes=[(VERSION, 1)])
@example(changes=[(CONTENT.index(b"a@b.c"), 0)])
def test_what_a_key_has_signed_is_refused_or_can_be_signed(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    content = bytearray(CONTENT)
    for index, value in changes:
        content[index] = value
    try:
        request = csr.parse_csr(resigned(bytes(content), WHOLE_KEY))
    except csr.MalformedCsr:
        assert changes
        return
    authority = CertificateAuthority(tmp_path_factory.getbasetemp() / "authority")
    made = x509.load_pem_x509_certificate(authority.sign(request, KUBELET, NOW, NOW + HOUR))
    assert made.subject == request.subject


@pytest.mark.slow
async def test_certificate_user_is_the_name_that_its_signer_validated(
    served: tuple[ApiServer, Client],
) -> None:
    server, _ = served
    text, key = signing_request("system:node:n1", "system:nodes", before="system:admin")
    request, now = csr.parse_csr(text), datetime.now(UTC)
    assert signers.SIGNERS[signers.KUBELET_CLIENT](request, KUBELET) == ""
    certificate = CertificateAuthority(server.data_dir).sign(request, KUBELET, now - MINUTES, now + HOUR)
    async with client_with(server, identity(server.data_dir, certificate, key)) as node:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        told = (await node.create(WHOAMI, body))["status"]["userInfo"]
        assert told["username"] == request.common_name == "system:node:n1"


def test_what_a_signer_writes_is_certificates(tmp_path: Path) -> None:
    good = CertificateAuthority(tmp_path).issue_client("bob").certificate
    data = next(csr.pem_blocks(good)).data
    other_version = data.replace(b"\x02\x01\x02", b"\x02\x01\x07", 1)
    for text, why in (
        (good * 2, ""),
        (b"x", "must contain at least one CERTIFICATE PEM block"),
        (WHOLE, 'only CERTIFICATE PEM blocks are allowed, found "CERTIFICATE REQUEST"'),
        (good.replace(b"-----\n", b"-----\na: b\n\n", 1), "no PEM block headers are permitted"),
        (encode_pem("CERTIFICATE", data[:-9]), "x509: malformed certificate"),
        (encode_pem("CERTIFICATE", other_version), "x509: malformed certificate"),
    ):
        status = {"certificate": base64.b64encode(text).decode()}
        errors = csr_types.check_status({"status": status}, {"status": {}})
        assert [e.message.partition(": ")[2].partition(": ")[2] for e in errors] == ([why] if why else []), text


@pytest.mark.slow
@given(st.binary(max_size=300), st.sampled_from(["CERTIFICATE", "X"]), st.binary(max_size=30))
def test_what_was_put_into_pem_comes_out(data: bytes, kind: str, around: bytes) -> None:
    text = around.replace(b"-", b"") + b"\n" + encode_pem(kind, data) + around.replace(b"-", b"")
    assert [(block.kind, block.data) for block in csr.pem_blocks(text)] == [(kind, data)]


@pytest.mark.parametrize(
    ("signer", "subject", "names", "usages", "why"),
    [
        (signers.CLIENT, ("bob",), SAN, ("client auth", "digital signature", "key encipherment"), ""),
        (signers.CLIENT, (*NODE, "unbounded-agent-daemons"), (), KUBELET, ""),
        (signers.CLIENT, ("bob",), (), ("server auth",), "invalid usage for client certificate: server auth"),
        (signers.CLIENT, ("bob",), (), ("digital signature",), NEEDED),
        (signers.KUBELET_CLIENT, NODE, (), KUBELET, ""),
        (signers.KUBELET_CLIENT, NODE, (), (*KUBELET, "key encipherment"), ""),
        (signers.KUBELET_CLIENT, NODE, (), ("client auth",), EXACTLY),
        (signers.KUBELET_CLIENT, NODE, (), (*KUBELET, "server auth"), EXACTLY),
        (signers.KUBELET_CLIENT, (*NODE, "more"), (), KUBELET, "subject organization is not system:nodes"),
        (signers.KUBELET_CLIENT, ("n1", "system:nodes"), (), KUBELET, NO_NODE),
        (signers.KUBELET_CLIENT, NODE, SAN, KUBELET, "DNS subjectAltNames are not allowed"),
        (signers.KUBELET_CLIENT, NODE, (MAIL,), KUBELET, "Email subjectAltNames are not allowed"),
        (signers.KUBELET_CLIENT, NODE, SAN[1:], KUBELET, "IP subjectAltNames are not allowed"),
        (signers.KUBELET_CLIENT, NODE, (LINK,), KUBELET, "URI subjectAltNames are not allowed"),
        (signers.KUBELET_SERVING, NODE, SAN, SERVING, ""),
        (signers.KUBELET_SERVING, NODE, (), SERVING, "DNS or IP subjectAltName is required"),
        (signers.KUBELET_SERVING, NODE, (*SAN, MAIL), SERVING, "Email subjectAltNames are not allowed"),
        (signers.KUBELET_SERVING, NODE, SAN, KUBELET, EXACTLY_SERVING),
        (signers.KUBELET_SERVING, ("n1", "system:nodes"), SAN, SERVING, NO_NODE),
        (signers.KUBELET_SERVING, ("system:node:n1",), SAN, SERVING, "subject organization is not system:nodes"),
    ],
)  # fmt: skip
def test_each_signer_signs_what_is_its_own(
    signer: str, subject: tuple[str, ...], names: tuple[x509.GeneralName, ...], usages: tuple[str, ...], why: str
) -> None:
    text, _ = signing_request(*subject, alternative=names)
    assert signers.SIGNERS[signer](csr.parse_csr(text), usages) == why


@pytest.mark.parametrize(
    ("asked_s", "left", "lives"),
    [
        (None, 10 * YEAR, YEAR - MINUTES),
        (600, 10 * YEAR, timedelta(seconds=600)),
        (3600, 10 * YEAR, HOUR),
        (24 * 3600, 10 * YEAR, 24 * HOUR - MINUTES),
        (2**31 - 1, 10 * YEAR, YEAR - MINUTES),
        (None, HOUR, HOUR),
        (600, MINUTES, MINUTES),
    ],
)
def test_certificate_validity_is_capped_by_a_year_and_the_authority(
    asked_s: int | None, left: timedelta, lives: timedelta
) -> None:
    assert signers.validity(NOW, asked_s, NOW + left) == (NOW - MINUTES, NOW + lives)


def stored(certificate: bytes = b"", **conditions: timedelta) -> dict[str, Any]:
    def text(moment: datetime) -> str:
        return moment.isoformat().replace("+00:00", "Z")

    found = [condition(kind, lastUpdateTime=text(NOW + after)) for kind, after in conditions.items()]
    status: dict[str, Any] = {"conditions": found} if found else {}
    if certificate:
        status["certificate"] = base64.b64encode(certificate).decode()
    return {"metadata": {"name": "x", "creationTimestamp": text(NOW)}, "status": status}


def test_requests_are_kept_an_hour_after_their_end_and_a_day_without(tmp_path: Path) -> None:
    assert removal_time(stored()) == NOW + 24 * HOUR
    assert removal_time(stored(Approved=HOUR)) == NOW + 25 * HOUR
    assert removal_time(stored(Denied=HOUR)) == NOW + 2 * HOUR
    assert removal_time(stored(Approved=HOUR, Failed=2 * HOUR)) == NOW + 3 * HOUR
    authority = CertificateAuthority(tmp_path)
    request = csr.parse_csr(signing_request("x")[0])
    long, short = (authority.sign(request, ("client auth",), NOW, NOW + life) for life in (24 * HOUR, HOUR / 2))
    assert removal_time(stored(long, Approved=HOUR)) == NOW + 2 * HOUR
    assert removal_time(stored(short, Approved=HOUR)) == NOW + HOUR / 2


@pytest.mark.slow
async def test_a_request_that_has_had_its_time_is_gone(tmp_path: Path) -> None:
    clock = [NOW]

    async def opened() -> ServerCore:
        core = ServerCore(now=lambda: clock[0])
        await core.open(tmp_path)
        return core

    async def are_left(core: ServerCore, names: list[str]) -> bool:
        return core.store.snapshot(csr_types.REQUESTS.name).keys == names

    core = await opened()
    try:
        for name, kind in (("waits", ""), ("denied", "Denied")):
            obj = asking(name)
            csr_types.REQUESTS.type.decode(obj)
            obj |= {"apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest"}
            await core.writes.create_object(csr_types.REQUESTS, "", obj, WriteOptions())
            if kind:
                await core.writes.edit(
                    WriteTarget(csr_types.REQUESTS, "", name),
                    lambda obj: csr_types.with_condition(obj, "Denied", "R", "", NOW),
                )
    finally:
        await core.close()
    for later, left in ((HOUR - MINUTES, ["denied", "waits"]), (HOUR, ["waits"]), (24 * HOUR, [])):
        clock[0] = NOW + later
        core = await opened()
        try:
            await eventually(partial(are_left, core, left))
        finally:
            await core.close()


@pytest.mark.slow
async def test_a_node_joins_with_a_bootstrap_token_and_is_then_itself(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    await bootstrap_token(admin)
    key: list[ec.EllipticCurvePrivateKey] = []
    anybody = client_context(ca=(server.data_dir / "pki" / "ca.crt").read_bytes())
    async with client_with(server, anybody, Authorization="Bearer abcdef.0123456789abcdef") as joining:
        refused = await joining.ask("POST", REQUESTS, node_asking("early", "n1", key))
        assert refused.status == 403
        await bind(admin, "join", "system:node-bootstrapper", "system:bootstrappers")
        made = await joining.create(REQUESTS, node_asking("n1", "n1", key))
        assert made["spec"]["username"] == "system:bootstrap:abcdef"
        assert (await decide(joining, "n1", "Approved")).status == 403
        assert (await decide(admin, "n1", "Approved")).status == 200
        certificate = await signed(joining, "n1")
    found = x509.load_pem_x509_certificate(certificate)
    purposes = found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(purposes) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert found.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    async with client_with(server, identity(server.data_dir, certificate, key[0])) as node:
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        told = (await node.create(WHOAMI, body))["status"]["userInfo"]
        assert (told["username"], told["groups"]) == ("system:node:n1", ["system:nodes", "system:authenticated"])


@pytest.mark.slow
async def test_a_role_lets_nodes_have_their_certificates_without_a_person(served: tuple[ApiServer, Client]) -> None:
    server, admin = served
    prefix = "system:certificates.k8s.io:certificatesigningrequests"
    await bind(admin, "renew", f"{prefix}:selfnodeclient", "system:nodes")
    await bind(admin, "ask", "system:node-bootstrapper", "system:nodes")
    key: list[ec.EllipticCurvePrivateKey] = []
    async with client_of(server, "system:node:n1", "system:nodes") as node:
        await node.create(REQUESTS, node_asking("own", "n1", key))
        await signed(node, "own")
        found = (await node.get(f"{REQUESTS}/own"))["status"]["conditions"]
        assert [(c["type"], c["reason"], c["message"]) for c in found] == [
            ("Approved", "AutoApproved", "Auto approving self kubelet client certificate after SubjectAccessReview.")
        ]
        await node.create(REQUESTS, node_asking("other", "n2", key))
        await node.create(REQUESTS, node_asking("again", "n1", key))
        await signed(node, "again")  # processed after the other one
        assert (await node.get(f"{REQUESTS}/other"))["status"] == {}
    async with client_of(server, "joiner", "joiners") as joiner:
        await bind(admin, "join", f"{prefix}:nodeclient", "joiners")
        await bind(admin, "join-ask", "system:node-bootstrapper", "joiners")
        await joiner.create(REQUESTS, node_asking("new", "n3", key))
        await signed(joiner, "new")


@pytest.mark.slow
async def test_what_a_signer_does_not_sign_is_said(served: tuple[ApiServer, Client]) -> None:
    _, admin = served
    await admin.create(REQUESTS, asking("x", usages=("server auth",)))
    await decide(admin, "x", "Approved")

    async def failed() -> Any:
        found = (await admin.get(f"{REQUESTS}/x"))["status"]["conditions"]
        return [c for c in found if c["type"] == "Failed"]

    (why,) = await eventually(failed)
    assert (why["reason"], why["message"]) == (
        "SignerValidationFailure",
        "invalid usage for client certificate: server auth",
    )
    assert "certificate" not in (await admin.get(f"{REQUESTS}/x"))["status"]


@pytest.mark.slow
async def test_a_certificate_is_good_until_it_expires_also_on_an_open_connection(tmp_path: Path) -> None:
    clock = [datetime.now(UTC)]
    server = ApiServer(tmp_path)
    server.core.now = lambda: clock[0]
    await server.start()
    try:
        authority = CertificateAuthority(tmp_path)
        text, key = signing_request("bob")
        begin, end = clock[0] - MINUTES, clock[0] + HOUR
        certificate = authority.sign(csr.parse_csr(text), ("client auth",), begin, end)
        async with client_with(server, identity(tmp_path, certificate, key)) as bob:
            assert (await bob.ask("GET", "/apis")).status == 200
            clock[0] += HOUR
            refused = await bob.ask("GET", "/apis")
            assert (refused.status, refused.json()["reason"]) == (401, "Unauthorized")
        past = authority.sign(csr.parse_csr(text), ("client auth",), begin - HOUR, begin)
        async with client_with(server, identity(tmp_path, past, key)) as bob:
            with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
                await bob.ask("GET", "/apis")
    finally:
        await server.stop()


@pytest.mark.slow
async def test_a_serving_certificate_does_not_make_a_client(served: tuple[ApiServer, Client]) -> None:
    server, _ = served
    text, key = signing_request("system:node:n1", "system:nodes", alternative=SAN)
    request, now = csr.parse_csr(text), datetime.now(UTC)
    for usages, good in ((KUBELET, True), (SERVING, False)):
        certificate = CertificateAuthority(server.data_dir).sign(request, usages, now - MINUTES, now + HOUR)
        async with client_with(server, identity(server.data_dir, certificate, key)) as node:
            if good:
                assert (await node.ask("GET", "/apis")).status == 200
            else:
                with pytest.raises((aiohttp.ClientError, ssl.SSLError, ConnectionError)):
                    await node.ask("GET", "/apis")
