"""Answers, pins and writes of attestation: for a TPM, for another one, and for replayed or forged messages."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import random
from base64 import b64decode, b64encode
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given
from hypothesis import strategies as st

from tests.metalman.attest.areas import Opener, Private, Quoted, ak_area, area_of, ecc_key, rsa_key
from tests.metalman.attest.test_trust import EK as CERTIFIED
from tests.support.memory_api import MemoryApi
from tests.support.seeds import first_seed
from tests.support.waiting import eventually
from unbounded.api.core import EVENTS, SECRETS, Secret
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.machine_status import TPMStatus
from unbounded.api.meta import Kind, ObjectMeta
from unbounded.api.names import ANNOTATION_REQUESTED_BY, PCRPolicy
from unbounded.api.operation import MachineOperation, MachineOperationSpec
from unbounded.explain.chain import explain
from unbounded.explain.links import Topic
from unbounded.join.cluster_facts import ClusterFacts
from unbounded.kube.api import Conflict, Forbidden, ServerUnreachable
from unbounded.kube.events import EventRecorder
from unbounded.metalman.attest.challenge import Challenges
from unbounded.metalman.attest.quote import QUOTED
from unbounded.metalman.attest.service import AttestationService
from unbounded.metalman.attest.tpm import parse_public
from unbounded.metalman.attest.trust import TrustedRoots
from unbounded.metalman.http.boot_service import ReportAnswer

FACTS = ClusterFacts("https://10.0.0.1:6443", "-----BEGIN CERTIFICATE-----\n", "v1.34.0", "")
KEY = b"k" * 32


def b64(content: bytes) -> str:
    return b64encode(content).decode()


@dataclass
class Client:
    """A machine with these two keys in its TPM."""

    ek: Private = field(default_factory=rsa_key)
    srk: Private = field(default_factory=lambda: rsa_key(1))
    ak: Private = field(default_factory=lambda: ecc_key(7))
    values: tuple[bytes, ...] = Quoted().values

    @property
    def keys(self) -> dict[str, Any]:
        return {"ekPub": b64(area_of(self.ek)), "srkPub": b64(area_of(self.srk))}

    @property
    def quoting(self) -> dict[str, Any]:
        return self.keys | {"akPub": b64(ak_area(self.ak))}

    def activate(self, body: Any) -> bytes:
        name = parse_public(area_of(self.srk), "srkPub").name
        if "quotePCRs" in body:
            name = parse_public(ak_area(self.ak), "akPub", signs=True).name
        return Opener(self.ek, name).open(b64decode(body["credentialBlob"]), b64decode(body["encryptedSecret"]))

    def answer(self, body: Any, **quote: Any) -> dict[str, Any]:
        """Return the second message of an attestation with a quote."""
        made = Quoted(**({"nonce": b64decode(body["nonce"]), "values": self.values} | quote))
        return self.quoting | {
            "nonce": body["nonce"],
            "proof": b64(self.activate(body)),
            "quote": b64(made.attest),
            "quoteSignature": b64(made.signature(self.ak)),
            "pcrs": [b64(value) for value in made.values],
        }

    def booted(self, **changed: bytes) -> Client:
        """Return the same machine after a boot in which `pcr<n>` has another value."""
        values = [changed.get(f"pcr{number}", value) for number, value in zip(QUOTED, self.values, strict=True)]
        return replace(self, values=tuple(values))

    def token(self, body: Any) -> str:
        key = self.activate(body)
        return AESGCM(key).decrypt(b64decode(body["gcmNonce"]), b64decode(body["encryptedToken"]), None).decode()


def replacement(boot: str, **parameters: str) -> MachineOperation:
    spec = MachineOperationSpec(operation_kind="HostReplace", machine_ref="m1", parameters=parameters)
    marks = {ANNOTATION_REQUESTED_BY: "alice"}
    return MachineOperation(metadata=ObjectMeta(name="replace", uid=boot, annotations=marks), spec=spec)


class Lab:
    """One Machine, and metalman's attestation; the clock is a dial."""

    def __init__(self, api: MemoryApi | None = None, **given: Any) -> None:
        self.api = api or MemoryApi()
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.facts: ClusterFacts | None = FACTS
        self.events = EventRecorder(self.api, "metalman")
        self.attestation = self.replica(**given)
        self.boot, self.operation = "boot-1", replacement("boot-1")

    def replica(self, **given: Any) -> AttestationService:
        return AttestationService(
            self.api, lambda: self.facts, Challenges(KEY), events=self.events, now=lambda: self.now, **given
        )

    async def machine(self) -> Machine:
        if not (await self.api.list(MACHINES)).items:
            await self.api.create(MACHINES, {"metadata": {"name": "m1"}})
        return await self.api.get(MACHINES, "m1")

    async def post(self, by: AttestationService | None = None, **message: Any) -> ReportAnswer:
        content = json.dumps(message).encode()
        return await (by or self.attestation).answer(await self.machine(), content, self.boot, self.operation)

    async def quoted(self, client: Client, boot: str = "", **accepts: str) -> ReportAnswer:
        """Attest with a quote, in a boot of a HostReplace with these parameters."""
        self.boot = boot or self.boot
        self.operation = replacement(self.boot, **accepts)
        first = await self.post(**client.quoting, challenge=True)
        assert (first.code, first.body["quotePCRs"]) == (200, list(QUOTED))
        return await self.post(**client.answer(first.body))

    async def proven(self, client: Client, by: AttestationService | None = None) -> ReportAnswer:
        """Both steps."""
        first = await self.post(by, **client.keys, challenge=True)
        assert first.code == 200, first
        return await self.post(by, **client.keys, nonce=first.body["nonce"], proof=b64(client.activate(first.body)))

    async def secrets(self) -> list[Secret]:
        return list((await self.api.list(SECRETS, namespace="kube-system")).items)

    async def attested(self) -> tuple[str, str] | None:
        return await self.condition("Attested")

    async def condition(self, kind: str) -> tuple[str, str] | None:
        conditions = (await self.machine()).status.conditions
        return next(((one.status, one.reason) for one in conditions if one.type == kind), None)

    async def tpm(self) -> TPMStatus:
        status = (await self.machine()).status.tpm
        assert status is not None
        return status

    async def pinned(self) -> str | None:
        status = (await self.machine()).status
        return status.tpm.ek_public_key if status.tpm else None

    async def told(self, reason: str) -> list[tuple[str, str]]:
        """Return the reasons and messages of the Events, once there is one with this reason."""

        async def written() -> list[tuple[str, str]]:
            events = (await self.api.list(EVENTS, namespace="default")).items
            return [(event.reason, event.message) for event in events if any(one.reason == reason for one in events)]

        task = asyncio.create_task(self.events.run())
        found = await eventually(written)
        task.cancel()
        return found


@pytest.mark.parametrize(
    "client",
    [Client(), Client(ecc_key(), ecc_key(1)), Client(ecc_key(), rsa_key())],
    ids=["rsa", "ecc", "ecc and rsa"],
)
async def test_a_tpm_that_proves_itself_gets_the_token_of_its_machine(client: Client) -> None:
    lab = Lab()
    answer = await lab.proven(client)
    assert answer.code == 200
    assert answer.body.keys() == {
        *("credentialBlob", "encryptedSecret", "encryptedToken", "gcmNonce", "clusterCA", "clusterCASeal")
    }
    assert answer.body["clusterCA"] == FACTS.ca_pem
    assert answer.body["clusterCASeal"] == b64(
        hmac.digest(client.activate(answer.body), b"clusterCA\0" + FACTS.ca_pem.encode(), "sha256")
    )
    (secret,) = await lab.secrets()
    identity, _, rest = client.token(answer.body).partition(".")
    assert (secret.value("token-id"), secret.value("token-secret")) == (identity.encode(), rest.encode())
    assert await lab.pinned() == parse_public(area_of(client.ek), "ekPub").pem
    assert await lab.attested() == ("True", "Succeeded")
    assert [reason for reason, _ in await lab.told("EndorsementKeyPinned")] == ["EndorsementKeyPinned"]


async def test_attestation_without_required_proof_returns_a_token_in_one_step() -> None:
    lab, client = Lab(proof_required=False), Client()
    answer = await lab.post(**client.keys)
    assert client.token(answer.body).startswith((await lab.secrets())[0].value("token-id").decode())  # type: ignore[union-attr]
    assert await lab.pinned() is not None
    assert await lab.attested() is None


async def test_a_key_that_nobody_proved_is_not_pinned() -> None:
    """A former fault: any client with a TPM's public key had it pinned, and the host's own was refused from then on."""
    lab, client = Lab(), Client()
    answer = await lab.post(**client.keys)
    assert (answer.code, answer.body["error"]) == (
        400,
        "a proof is required: request a challenge first (challenge: true)",
    )
    assert await lab.pinned() is None
    assert (await lab.proven(client)).code == 200


async def test_a_challenge_changes_nothing() -> None:
    lab, client = Lab(), Client()
    await lab.machine()
    writes = lab.api.writes
    for _ in range(3):
        answer = await lab.post(**client.keys, challenge=True)
        assert set(answer.body) == {"nonce", "credentialBlob", "encryptedSecret"}
    assert lab.api.writes == writes


async def test_a_foreign_tpm_is_refused_and_said_on_the_machine_once() -> None:
    lab, ours, foreign = Lab(), Client(), Client(ecc_key(), ecc_key(1))
    await lab.proven(ours)
    pinned, (secret,) = await lab.pinned(), await lab.secrets()
    messages: list[dict[str, Any]] = [{}, {"challenge": True}]
    for message in messages:
        answer = await lab.post(**foreign.keys, **message)
        assert answer.code == 403
        assert "if the TPM was exchanged on purpose, remove that" in str(answer.body["error"])
        assert await lab.attested() == ("False", "ForeignEK")
        writes = lab.api.writes
    await lab.post(**foreign.keys)
    assert lab.api.writes == writes
    assert await lab.pinned() == pinned
    assert [one.metadata.name for one in await lab.secrets()] == [secret.metadata.name]
    assert await lab.told("AttestationRefused")
    assert (await lab.proven(ours)).code == 200
    assert await lab.attested() == ("True", "Succeeded")


def digest_of(client: Client) -> str:
    """SHA-256 of the key as DER, from its PEM alone."""
    lines = parse_public(area_of(client.ek), "ekPub").pem.splitlines()
    return hashlib.sha256(b64decode("".join(line for line in lines if not line.startswith("-----")))).hexdigest()


async def enrol(lab: Lab, digest: str | None) -> None:
    await lab.machine()
    spec = {"pxe": {"image": "r/i:v1", "attestation": {"ekPublicKeySHA256": digest}}}
    await lab.api.patch(MACHINES, "m1", {"spec": spec})


@pytest.mark.parametrize("shown", [str.lower, str.upper])
async def test_only_the_enrolled_endorsement_key_gets_a_token(shown: Callable[[str], str]) -> None:
    """A former fault: the first TPM was trusted, whoever its owner."""
    lab, ours, foreign = Lab(), Client(), Client(ecc_key(), ecc_key(1))
    await enrol(lab, shown(digest_of(ours)))
    answer = await lab.post(**foreign.keys, challenge=True)
    assert answer.code == 403
    wanted = f"but spec.pxe.attestation.ekPublicKeySHA256 names SHA256:{digest_of(ours)}"
    assert str(answer.body["error"]) == f"the TPM's endorsement key is SHA256:{digest_of(foreign)}, {wanted}"
    assert await lab.attested() == ("False", "ForeignEK")
    assert await lab.pinned() is None
    (link,) = (await explain(lab.api, Topic.MACHINE, "m1")).links
    assert [fix.command for fix in link.fixes] == ["kubectl edit mach m1"]
    assert (await lab.proven(ours)).code == 200
    assert await lab.pinned() == parse_public(area_of(ours.ek), "ekPub").pem


async def test_enrollment_of_an_exchanged_tpm_replaces_the_pinned_one() -> None:
    lab, before, after = Lab(), Client(), Client(ecc_key(), ecc_key(1))
    assert (await lab.proven(before)).code == 200
    await enrol(lab, digest_of(after))
    assert (await lab.post(**before.keys, challenge=True)).code == 403
    assert (await lab.proven(after)).code == 200
    assert await lab.pinned() == parse_public(area_of(after.ek), "ekPub").pem
    await enrol(lab, None)
    assert (await lab.post(**before.keys, challenge=True)).code == 403  # the pin stays
    assert (await lab.proven(after)).code == 200


async def test_a_pin_that_is_no_key_lets_nobody_in() -> None:
    lab = Lab()
    await lab.machine()
    await lab.api.patch(MACHINES, "m1", {"status": {"tpm": {"ekPublicKey": "x"}}}, subresource="status")
    answer = await lab.post(**Client().keys)
    assert (answer.code, "pins an unreadable key" in str(answer.body["error"])) == (403, True)


async def test_a_pin_laid_out_otherwise_is_the_same_key() -> None:
    lab, client = Lab(), Client()
    pem = parse_public(area_of(client.ek), "ekPub").pem
    await lab.machine()
    patch = {"status": {"tpm": {"ekPublicKey": "\n" + pem.replace("\n", "\r\n")}}}
    await lab.api.patch(MACHINES, "m1", patch, subresource="status")
    assert (await lab.proven(client)).code == 200


async def test_a_repeated_request_gets_the_same_token_and_a_later_one_another() -> None:
    lab, client = Lab(), Client()
    first = client.token((await lab.proven(client)).body)
    writes = lab.api.writes
    again = await lab.proven(client)
    assert client.token(again.body) == first
    assert client.token((await lab.proven(client)).body) == first
    assert lab.api.writes == writes
    other = client.token((await lab.proven(client, lab.replica())).body)  # which does not know the secret
    assert other != first
    assert len(await lab.secrets()) == 1
    assert client.token((await lab.proven(client)).body) not in {first, other}  # the first one's is gone
    assert len(await lab.secrets()) == 1


async def test_what_was_answered_is_not_taken_again() -> None:
    lab, client = Lab(), Client()
    first = await lab.post(**client.keys, challenge=True)
    answer: dict[str, Any] = {"nonce": first.body["nonce"], "proof": b64(client.activate(first.body))}
    assert (await lab.post(**client.keys, **answer)).code == 200
    replayed = await lab.post(**client.keys, **answer)
    assert (replayed.code, replayed.body["error"]) == (400, "the nonce was used before; request another challenge")


@pytest.mark.slow
async def test_old_forged_and_swapped_answers_are_refused_and_change_nothing() -> None:
    lab, client, other = Lab(), Client(), Client(rsa_key(2), rsa_key(3))
    first, second = [await lab.post(**client.keys, challenge=True) for _ in range(2)]
    nonce, proof = str(first.body["nonce"]), b64(client.activate(first.body))
    flipped = bytearray(b64decode(nonce))
    flipped[5] ^= 1
    cases = [
        (client.keys, nonce, b64(bytes(32)), 403, "the proof is not the value that was wrapped for this TPM"),
        (
            client.keys,
            nonce,
            b64(client.activate(second.body)),
            403,
            "the proof is not the value that was wrapped for this TPM",
        ),
        (client.keys, b64(bytes(flipped)), proof, 400, "the nonce was not issued for this Machine and these keys"),
        (client.keys, b64(b64decode(nonce)[:-1]), proof, 400, "the nonce was not issued"),
        (other.keys, nonce, proof, 400, "the nonce was not issued for this Machine and these keys"),
        (client.keys | {"srkPub": other.keys["srkPub"]}, nonce, proof, 400, "the nonce was not issued"),
    ]
    await lab.machine()
    writes = lab.api.writes
    for keys, used, given_, code, said in cases:
        answer = await lab.post(**keys, nonce=used, proof=given_)
        assert (answer.code, said in str(answer.body["error"])) == (code, True), answer
    lab.now += timedelta(seconds=61)
    answer = await lab.post(**client.keys, nonce=nonce, proof=proof)
    assert (answer.code, answer.body["error"]) == (400, "the nonce is older than 60 s; request another challenge")
    lab.now -= timedelta(seconds=120)
    assert (await lab.post(**client.keys, nonce=nonce, proof=proof)).code == 400  # from the future
    assert lab.api.writes == writes


async def test_a_nonce_of_another_machine_is_none_of_this_one() -> None:
    lab, client = Lab(), Client()
    first = await lab.post(**client.keys, challenge=True)
    other = await lab.api.create(MACHINES, {"metadata": {"name": "m2"}})
    message = client.keys | {"nonce": first.body["nonce"], "proof": b64(client.activate(first.body))}
    assert (await lab.attestation.answer(other, json.dumps(message).encode(), "boot-1", None)).code == 400


async def test_replicas_take_each_others_challenges_and_others_do_not() -> None:
    lab, client = Lab(), Client()
    first = await lab.post(**client.keys, challenge=True)
    answer: dict[str, Any] = {"nonce": first.body["nonce"], "proof": b64(client.activate(first.body))}
    stranger = AttestationService(lab.api, lambda: FACTS, Challenges(b"x" * 32), now=lambda: lab.now)
    assert (await lab.post(stranger, **client.keys, **answer)).code == 400
    assert (await lab.post(lab.replica(), **client.keys, **answer)).code == 200


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "not an attestation request"),
        (b"[]", "not an attestation request"),
        (b"{}", "missing required field `ekPub`"),
        (json.dumps({"ekPub": "AAA="}).encode(), "missing required field `srkPub`"),
        (json.dumps({"ekPub": "%", "srkPub": ""}).encode(), "Invalid base64 encoded string - at `$.ekPub`"),
        (json.dumps(Client().keys | {"srkPub": "AAA="}).encode(), "srkPub: "),
        (json.dumps(Client().keys | {"nonce": "AAAA"}).encode(), "nonce and proof must be given together"),
        (
            json.dumps(Client().keys | {"nonce": "AAAA", "proof": "AAAA", "challenge": True}).encode(),
            "challenge and nonce exclude each other",
        ),
        (b" " * (1 << 20) + b"{}", "the limit is 1048576"),
        (json.dumps(Client().quoting | {"akPub": "AAA="}).encode(), "akPub: "),
        (json.dumps(Client().keys | {"akPub": Client().keys["srkPub"]}).encode(), "akPub: sign is not set"),
        (json.dumps(Client().quoting | {"nonce": "AAAA", "proof": "AAAA"}).encode(), "must be given together"),
        (
            json.dumps(Client().keys | {"quote": "AAAA"}).encode(),
            "quote, quoteSignature and pcrs must be given together",
        ),
        (json.dumps(Client().quoting | {"challenge": True, "pcrs": ["AAAA"]}).encode(), "must be given together"),
        (json.dumps(Client().quoting | {"pcrs": "AAAA"}).encode(), "Expected `array | null`, got `str` - at `$.pcrs`"),
    ],
)
async def test_what_is_no_request_is_a_400_that_names_the_field(content: bytes, said: str) -> None:
    lab = Lab()
    answer = await lab.attestation.answer(await lab.machine(), content, "boot-1", None)
    assert (answer.code, said in str(answer.body["error"])) == (400, True), answer


VALID = json.dumps(Client().keys).encode()


@pytest.mark.slow
@given(st.binary(max_size=60) | st.integers(0, len(VALID) - 1).map(lambda end: VALID[:end]))
def test_no_truncated_or_made_up_message_gets_anything(content: bytes) -> None:
    async def main() -> None:
        lab = Lab()
        assert (await lab.attestation.answer(await lab.machine(), content, "boot-1", None)).code == 400
        assert await lab.secrets() == []

    asyncio.run(main())


class Broken(MemoryApi):
    """An API whose writes fail as configured."""

    failure: Exception | None = None

    async def create(self, kind: Kind[Any], body: Any, *, namespace: str = "") -> Any:
        if self.failure is not None and kind is SECRETS:
            raise self.failure
        return await super().create(kind, body, namespace=namespace)


@pytest.mark.parametrize(
    ("failure", "code", "retry_after_s"),
    [(Conflict("x"), 503, 1), (ServerUnreachable("x"), 503, 5), (Forbidden("x"), 500, None)],
)
async def test_what_fails_is_said_with_when_to_ask_again(
    failure: Exception, code: int, retry_after_s: int | None
) -> None:
    api = Broken()
    lab, client = Lab(api), Client()
    api.failure = failure
    answer = await lab.proven(client)
    assert (answer.code, answer.retry_after_s) == (code, retry_after_s)
    api.failure = None
    assert (await lab.proven(client)).code == 200
    assert len(await lab.secrets()) == 1


async def test_without_facts_and_without_a_machine() -> None:
    lab, client = Lab(), Client()
    machine = await lab.machine()
    lab.facts = None
    answer = await lab.post(**client.keys)
    assert (answer.code, answer.retry_after_s) == (503, 5)
    lab.facts = FACTS
    await lab.api.delete(MACHINES, "m1")
    content = json.dumps(client.keys).encode()
    assert (await lab.attestation.answer(machine, content, "boot-1", None)).code == 404
    await lab.api.create(MACHINES, {"metadata": {"name": "m1"}})  # of the same name, and another one
    assert (await lab.attestation.answer(machine, content, "boot-1", None)).code == 404


async def test_with_roots_only_a_certified_key_is_trusted() -> None:
    from tests.metalman.attest.test_trust import NOW, ROOT, USAGE, sign

    ek = rsa_key()
    lab = Lab(roots=TrustedRoots([ROOT.certificate]))
    lab.now, client = NOW, Client(ek)
    answer = await lab.post(**client.keys, challenge=True)
    assert (answer.code, "--ek-ca requires the certificate" in str(answer.body["error"])) == (403, True)
    assert await lab.attested() == ("False", "EKNotTrusted")
    (link,) = (await explain(lab.api, Topic.MACHINE, "m1")).links
    assert "--ek-ca requires the certificate of the TPM's maker" in link.what
    assert "with the roots in the file of its --ek-ca" in link.next_step
    assert link.fixes == ()
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization

    start = NOW - timedelta(days=1)
    builder = x509.CertificateBuilder(
        ROOT.certificate.subject, x509.Name([]), ek.public_key(), 7, start, start + timedelta(days=9)
    ).add_extension(*USAGE)
    der = builder.sign(ROOT.key, hashes.SHA256()).public_bytes(serialization.Encoding.DER)
    first = await lab.post(**client.keys, ekCert=b64(der), ekCertChain=[], challenge=True)
    proof = b64(client.activate(first.body))
    done = await lab.post(**client.keys, ekCert=b64(der), nonce=first.body["nonce"], proof=proof)
    assert done.code == 200
    condition = (await lab.machine()).status.conditions[0]
    assert condition.status == "True"
    assert condition.message.endswith(", certified by 'maker root'")
    other = sign("", CERTIFIED, "maker root", ROOT.key, USAGE).public_bytes(serialization.Encoding.DER)
    assert (await lab.post(**client.keys, ekCert=b64(other))).code == 403


async def test_no_secret_stands_in_what_is_logged_written_or_answered(caplog: pytest.LogCaptureFixture) -> None:
    import logging

    caplog.set_level(logging.DEBUG)
    lab, client = Lab(), Client()
    answer = await lab.proven(client)
    token = client.token(answer.body)
    secret = token.partition(".")[2]
    machine = await lab.api.get(MACHINES.raw(), "m1")
    told = await lab.told("EndorsementKeyPinned")
    shown = " ".join(f"{record.getMessage()} {vars(record)}" for record in caplog.records)
    for text in (str(machine), str(told), str(answer), shown, repr(lab.attestation.__dict__)):
        assert secret not in text


async def test_two_requests_at_once_make_one_token() -> None:
    lab, client = Lab(), Client()
    await lab.machine()
    others = lab.replica()
    answers = await asyncio.gather(*(lab.proven(client) for _ in range(5)), lab.proven(client, others))
    assert sorted({answer.code for answer in answers}) in ([200], [200, 503])
    assert len(await lab.secrets()) == 1


# Quotes


REQUIRED = PCRPolicy.REQUIRED


async def test_the_first_quoted_boot_is_recorded_and_later_ones_are_compared() -> None:
    lab, client = Lab(pcr_policy=REQUIRED), Client()
    assert client.token((await lab.quoted(client)).body)
    tpm = await lab.tpm()
    assert tpm.reference == tpm.quote
    assert tpm.reference is not None
    assert (tpm.reference.boot, tpm.reference.at) == ("boot-1", "2026-01-01T00:00:00Z")
    expected = dict(zip(QUOTED, (value.hex() for value in client.values), strict=True))
    assert tpm.reference.values == expected
    assert await lab.condition("BootChanged") == ("False", "Recorded")
    writes = lab.api.writes
    assert (await lab.quoted(client)).code == 200
    assert lab.api.writes == writes
    assert (await lab.quoted(client, "boot-2")).code == 200
    assert await lab.condition("BootChanged") == ("False", "Unchanged")
    tpm = await lab.tpm()
    assert tpm.reference is not None
    assert tpm.quote is not None
    assert (tpm.reference.boot, tpm.quote.boot) == ("boot-1", "boot-2")


async def test_a_changed_boot_gets_no_token_where_the_policy_requires_the_reference() -> None:
    lab, client = Lab(pcr_policy=REQUIRED), Client()
    await lab.quoted(client)
    (secret,) = await lab.secrets()
    reference = (await lab.tpm()).reference
    answer = await lab.quoted(client.booted(pcr7=b"7" * 32), "boot-2")
    assert answer.code == 403
    assert set(answer.body) == {"error"}
    assert "PCR 7 (Secure Boot policy and keys) is 373737373737…, and was 070707070707…" in str(answer.body["error"])
    assert await lab.secrets() == [secret]
    assert await lab.attested() == ("False", "PCRMismatch")
    assert await lab.condition("BootChanged") == ("True", "PCRMismatch")
    tpm = await lab.tpm()
    assert tpm.reference == reference
    assert tpm.quote is not None
    assert tpm.quote.boot == "boot-2"
    assert any("PCR 7" in message for _, message in await lab.told("AttestationRefused"))
    writes = lab.api.writes
    assert (await lab.quoted(client.booted(pcr7=b"7" * 32))).code == 403
    assert lab.api.writes == writes
    (link,) = (await explain(lab.api, Topic.MACHINE, "m1")).links
    assert [fix.command for fix in link.fixes] == ["kubectl unbounded machine replace m1 --accept-pcr 7"]
    assert (await lab.quoted(client, "boot-3")).code == 200  # as before
    assert await lab.attested() == ("True", "Succeeded")


async def test_a_changed_boot_is_reported_where_the_policy_records() -> None:
    lab, client = Lab(), Client()
    await lab.quoted(client)
    assert (await lab.quoted(client.booted(pcr0=b"0" * 32), "boot-2")).code == 200
    assert await lab.attested() == ("True", "Succeeded")
    assert await lab.condition("BootChanged") == ("True", "PCRMismatch")
    tpm = await lab.tpm()
    assert tpm.reference is not None
    assert tpm.reference.boot == "boot-1"


@pytest.mark.parametrize(("site", "own", "code"), [("Required", "Recorded", 200), ("Recorded", "Required", 403)])
async def test_the_policy_of_a_machine_overrides_that_of_its_site(site: str, own: str, code: int) -> None:
    lab, client = Lab(pcr_policy=PCRPolicy(site)), Client()
    await lab.machine()
    spec = {"pxe": {"image": "r/i:v1", "attestation": {"pcrPolicy": own}}}
    await lab.api.patch(MACHINES, "m1", {"spec": spec})
    assert (await lab.quoted(client)).code == 200
    assert (await lab.quoted(client.booted(pcr4=b"4" * 32), "boot-2")).code == code


async def test_an_accepted_boot_becomes_the_reference_and_the_consent_is_used() -> None:
    lab, client = Lab(pcr_policy=REQUIRED), Client()
    await lab.quoted(client)
    updated = client.booted(pcr0=b"0" * 32, pcr1=b"1" * 32)
    assert (await lab.quoted(updated, "boot-2", acceptPCRs="0")).code == 403  # PCR 1, too
    assert (await lab.quoted(updated, "boot-3", acceptPCRs="0,1,2")).code == 200
    assert await lab.condition("BootChanged") == ("False", "Accepted")
    reference = (await lab.tpm()).reference
    assert reference is not None
    assert (reference.boot, reference.accepted_by) == ("boot-3", "alice")
    again = updated.booted(pcr0=b"x" * 32)
    assert (await lab.quoted(again, "boot-3", acceptPCRs="0,1,2")).code == 403  # valid once
    assert (await lab.quoted(updated, "boot-4")).code == 200
    assert await lab.condition("BootChanged") == ("False", "Unchanged")
    assert (await lab.quoted(client, "boot-5")).code == 403  # the former firmware


async def test_a_host_that_cannot_quote_gets_a_token_unless_the_policy_requires_it() -> None:
    for policy, code, attested in (
        (PCRPolicy.RECORDED, 200, ("True", "Succeeded")),
        (REQUIRED, 403, ("False", "QuoteMissing")),
    ):
        lab, client = Lab(pcr_policy=policy), Client()
        answer = await lab.proven(client)
        assert (answer.code, await lab.attested()) == (code, attested)
        assert await lab.condition("BootChanged") == ("Unknown", "QuoteMissing")
        assert len(await lab.secrets()) == (code == 200)


async def test_without_a_proof_a_required_quote_is_missed_and_nothing_is_written() -> None:
    lab, client = Lab(proof_required=False, pcr_policy=REQUIRED), Client()
    await lab.machine()
    writes = lab.api.writes
    assert (await lab.post(**client.keys)).code == 403
    assert lab.api.writes == writes


@pytest.mark.slow
async def test_a_quote_of_another_challenge_key_or_boot_is_refused_and_changes_nothing() -> None:
    lab, client = Lab(), Client()
    other = replace(client, ak=ecc_key(8))
    await lab.machine()
    writes = lab.api.writes

    async def challenge() -> Any:
        return (await lab.post(**client.quoting, challenge=True)).body

    replayed = client.answer(await challenge())
    cases: list[tuple[dict[str, Any], int, str]] = [
        (client.answer(await challenge(), nonce=b"x"), 400, "extraData is not the SHA-256 digest"),
        (client.answer(await challenge()) | {"quote": replayed["quote"]}, 400, "akPub has not signed this quote"),
        (
            client.answer(await challenge()) | {one: replayed[one] for one in ("quote", "quoteSignature")},
            400,
            "extraData is not the SHA-256 digest",
        ),
        (
            client.answer(await challenge()) | {"pcrs": replayed["pcrs"][::-1]},
            400,
            "its digest is not that of the values",
        ),
        (client.answer(await challenge()) | {"akPub": other.quoting["akPub"]}, 400, "the nonce was not issued"),
    ]
    for message, code, said in cases:
        answer = await lab.post(**message)
        assert (answer.code, said in str(answer.body["error"])) == (code, True), answer
    lab.boot = "boot-2"
    assert (await lab.post(**replayed)).code == 400
    assert lab.api.writes == writes
    lab.boot = "boot-1"
    assert (await lab.post(**replayed)).code == 200


@pytest.mark.slow
@given(st.data())
def test_any_quote_beside_a_good_proof_is_a_400(data: st.DataObject) -> None:
    async def main() -> None:
        lab, client = Lab(), Client()
        first = await lab.post(**client.quoting, challenge=True)
        message = client.answer(first.body)
        part = data.draw(st.sampled_from(["quote", "quoteSignature"]))
        message[part] = b64(data.draw(st.binary(min_size=1, max_size=300)))
        answer = await lab.post(**message)
        assert (answer.code, await lab.secrets()) == (400, [])
        assert str(answer.body["error"]).startswith(part)

    asyncio.run(main())


class TokenThief:
    """An attacker with the address of an enrolled machine, a TPM of its own, and every message."""

    def __init__(self, lab: Lab, owner: Client, chance: random.Random) -> None:
        self.lab, self.owner, self.chance = lab, owner, chance
        self.own = Client(rsa_key(2), rsa_key(3))

    async def _challenge(self) -> dict[str, Any]:
        return dict((await self.lab.post(**self.owner.keys, challenge=True)).body)

    async def without_a_tpm(self) -> ReportAnswer:
        message: dict[str, Any] = {
            name: b64(self.chance.randbytes(self.chance.randrange(400))) for name in self.owner.keys
        }
        return await self.lab.post(
            **message, nonce=b64(self.chance.randbytes(48)), proof=b64(self.chance.randbytes(32))
        )

    async def with_another_tpm(self) -> ReportAnswer:
        nonce = (await self._challenge())["nonce"]
        return await self.lab.post(**self.own.keys, nonce=nonce, proof=b64(self.chance.randbytes(32)))

    async def with_the_public_keys_of_the_machine(self) -> ReportAnswer:
        nonce = (await self._challenge())["nonce"]
        return await self.lab.post(**self.owner.keys, nonce=nonce, proof=b64(self.chance.randbytes(32)))

    async def in_one_step(self) -> ReportAnswer:
        return await self.lab.post(**self.owner.keys)

    async def with_a_key_that_the_token_is_wrapped_for(self) -> ReportAnswer:
        """Have the machine open a challenge, and name another storage key in the second step."""
        challenge = await self._challenge()
        proof = b64(self.owner.activate(challenge))
        keys = self.owner.keys | {"srkPub": self.own.keys["srkPub"]}
        return await self.lab.post(**keys, nonce=challenge["nonce"], proof=proof)

    async def with_a_late_answer(self) -> ReportAnswer:
        challenge = await self._challenge()
        proof = b64(self.owner.activate(challenge))
        self.lab.now += timedelta(minutes=self.chance.randrange(10, 1000))
        return await self.lab.post(**self.owner.keys, nonce=challenge["nonce"], proof=proof)

    async def with_a_changed_number(self) -> ReportAnswer:
        challenge = await self._challenge()
        nonce = bytearray(b64decode(challenge["nonce"]))
        nonce[self.chance.randrange(len(nonce))] ^= 1 << self.chance.randrange(8)
        proof = b64(self.owner.activate(challenge))
        return await self.lab.post(**self.owner.keys, nonce=b64(bytes(nonce)), proof=proof)


THEFTS = [name for name in vars(TokenThief) if name.startswith(("w", "in_"))]


async def steal(name: str, tries: int) -> None:
    lab, owner = Lab(), Client()
    await enrol(lab, digest_of(owner))
    thief = TokenThief(lab, owner, random.Random(first_seed()))
    for _ in range(tries):
        answer = await getattr(thief, name)()
        assert answer.code in (400, 401, 403, 409), answer
        assert "encryptedToken" not in answer.body
    assert await lab.secrets() == []


@pytest.mark.parametrize("name", THEFTS)
async def test_an_attacker_gets_no_token_of_an_enrolled_machine(name: str) -> None:
    await steal(name, 10)


@pytest.mark.soak
@pytest.mark.parametrize("name", THEFTS)
async def test_no_token_is_got_in_a_thousand_tries(name: str) -> None:
    await steal(name, 1000)
