"""Keys and tokens as they are read from Secrets: what is wrong is named, no value is shown, and reads are few."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import run_virtual, virtual_now
from unbounded.api.core import SECRETS
from unbounded.api.failures import Rejected
from unbounded.api.machine import Machine
from unbounded.api.meta import Kind
from unbounded.api.names import GROUP_BOOTSTRAP, LABEL_DEFAULT_BOOTSTRAP_TOKEN, LABEL_SITE
from unbounded.join.bootstrap_tokens import machine_group, site_token_manifest
from unbounded.join.token_finder import FoundToken, TokenFinder
from unbounded.kube.api import Forbidden, ObjectList
from unbounded.machina.machines.credentials import (
    CACHE_S,
    READ_EVERY_S,
    READS_A_SECOND,
    SecretReader,
    SshCredentials,
    credentials_of,
    keyless_route,
)

KEY = "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAAsecret\n-----END OPENSSH PRIVATE KEY-----\n"
FINGERPRINT = "SHA256:abc"


class CountedApi(MemoryApi):
    """Counts reads of Secrets, and forbids some."""

    def __init__(self) -> None:
        super().__init__(now=virtual_now)
        self.reads: list[str] = []
        self.forbidden: set[str] = set()

    async def get(self, kind: Kind[Any], name: str, *, namespace: str = "") -> Any:
        self.reads.append(name)
        if name in self.forbidden:
            raise Forbidden(f"cannot get Secret {name}")
        await asyncio.sleep(0.1)
        return await super().get(kind, name, namespace=namespace)

    async def list(
        self, kind: Kind[Any], *, namespace: str = "", labels: str = "", fields: str = ""
    ) -> ObjectList[Any]:
        self.reads.append(labels)
        if "list" in self.forbidden:
            raise Forbidden("cannot list Secrets")
        return await super().list(kind, namespace=namespace, labels=labels, fields=fields)


async def make(api: MemoryApi, name: str, data: Mapping[str, str | bytes], namespace: str = "unbounded-kube") -> None:
    values = {key: value.encode() if isinstance(value, str) else value for key, value in data.items()}
    encoded = {key: b64encode(value).decode() for key, value in values.items()}
    await api.create(SECRETS, {"metadata": {"name": name}, "data": encoded}, namespace=namespace)


def machine_of(
    ssh: dict[str, Any] | None = None, *, site: str = "lab", status: Any = None, **kubernetes: Any
) -> Machine:
    meta = {"name": "m1", "uid": "u-1", "labels": {LABEL_SITE: site} if site else {}}
    way = {"host": "10.0.0.1:2222", "username": "admin", "privateKeyRef": ref("k")} | (ssh or {})
    return msgspec.convert(
        {"metadata": meta, "spec": {"ssh": way, "kubernetes": kubernetes}, "status": status or {}}, Machine
    )


def ref(name: str, **more: str) -> dict[str, str]:
    return {"name": name, "namespace": "unbounded-kube", **more}


def read(machine: Machine, secrets: Mapping[str, Mapping[str, str | bytes]], *forbidden: str) -> SshCredentials:
    async def story() -> SshCredentials:
        api = CountedApi()
        api.forbidden |= set(forbidden)
        for name, data in secrets.items():
            await make(api, name, data)
        return await credentials_of(machine, SecretReader(api))

    return run_virtual(story())


def test_bastion_uses_the_key_of_the_host_unless_it_has_one() -> None:
    known = {"ssh": {"fingerprint": FINGERPRINT, "bastionFingerprint": "SHA256:b"}}
    jump: dict[str, Any] = {"host": "[2001:db8::1]:2200", "username": "jump", "hostKeys": ["ssh-ed25519 AAAA"]}
    secrets = {
        "k": {"ssh-privatekey": KEY.replace("\n", "\r\n"), "passphrase": "words\n"},
        "b": {"mine": KEY, "cert": "ssh-cert x\n"},
    }
    shared = read(machine_of({"bastion": jump}, status=known), secrets)
    assert shared.route is not None
    assert shared.route.bastion is not None
    host, bastion = shared.route.host, shared.route.bastion
    assert (str(host.at), host.user, host.pins.fingerprint) == ("10.0.0.1:2222", "admin", FINGERPRINT)
    assert (str(bastion.at), bastion.user, bastion.pins.keys) == ("[2001:db8::1]:2200", "jump", ("ssh-ed25519 AAAA",))
    assert host.identity == bastion.identity
    assert host.identity.private_key.reveal() == KEY
    assert host.identity.passphrase is not None
    assert host.identity.passphrase.reveal() == "words"
    assert host.identity.version.startswith("unbounded-kube/k@")
    assert (shared.key, shared.bastion_key, shared.address) == (None, None, None)
    assert KEY not in repr(shared)
    own = read(
        machine_of({"bastion": jump | {"privateKeyRef": ref("b", key="mine"), "certificateKey": "cert"}}), secrets
    )
    assert own.bastion_version.startswith("unbounded-kube/b@")
    assert own.route is not None
    assert own.route.bastion is not None
    assert own.route.bastion.identity.certificate is not None
    assert own.route.bastion.identity.certificate.reveal() == "ssh-cert x"
    assert own.route.bastion.identity.passphrase is None


@pytest.mark.parametrize(
    ("ssh", "data", "words"),
    [
        ({}, None, "spec.ssh.privateKeyRef: Secret unbounded-kube/k does not exist"),
        ({}, {"ssh-private-key": KEY}, "Secret unbounded-kube/k has no key ssh-privatekey; its keys: ssh-private-key"),
        ({}, {}, "its keys: no data"),
        ({}, {"ssh-privatekey": " \n"}, "key ssh-privatekey: is empty"),
        ({}, {"ssh-privatekey": b"\xff\xfe"}, "key ssh-privatekey: is not text"),
        ({}, {"ssh-privatekey": "ssh-ed25519 AAAA me"}, "is a public key; it must be a private key"),
        ({}, {"ssh-privatekey": "secret"}, "contains no private key"),
        ({}, {"ssh-privatekey": "PuTTY-User-Key-File-3: x"}, "is a PuTTY key; convert it with `puttygen"),
        ({}, {"ssh-privatekey": KEY * 2000}, "exceeds"),
        ({"passphraseKey": "words"}, {"ssh-privatekey": KEY}, "Secret unbounded-kube/k has no key words"),
        ({"certificateKey": "cert"}, {"ssh-privatekey": KEY}, "Secret unbounded-kube/k has no key cert"),
        ({"privateKeyRef": {"name": "k", "namespace": "other"}}, {}, "is not in namespace unbounded-kube"),
    ],
    ids=["gone", "other key", "empty", "blank", "bytes", "public", "text", "putty", "long", "words", "cert", "away"],
)
def test_what_is_wrong_with_a_key_is_named(ssh: dict[str, Any], data: Any, words: str) -> None:
    found = read(machine_of(ssh), {} if data is None else {"k": data})
    assert found.key is not None
    assert words in found.key
    assert "AAAA" not in found.key
    assert found.route is not None
    assert not found.route.host.identity.private_key


def test_forbidden_secret_and_invalid_address_are_reported() -> None:
    found = read(machine_of({"host": "10.0.0.1:99999"}), {}, "k")
    assert found.key == "spec.ssh.privateKeyRef: Secret unbounded-kube/k may not be read: cannot get Secret k"
    assert found.address is not None
    assert found.address.startswith("spec.ssh.host: '10.0.0.1:99999'")
    assert found.route is None
    with pytest.raises(Rejected, match=r"spec\.ssh\.host: "):
        keyless_route(machine_of({"host": "10.0.0.1:99999"}))
    assert not keyless_route(machine_of()).host.identity.private_key


def test_concurrent_reads_of_a_secret_are_shared_until_it_is_old() -> None:
    async def story() -> None:
        api = CountedApi()
        await make(api, "k", {"a": "1"})
        reader = SecretReader(api)
        found = await asyncio.gather(*(reader.get("unbounded-kube", "k") for _ in range(50)))
        assert (len(api.reads), len({id(one) for one in found})) == (1, 1)
        await asyncio.sleep(READ_EVERY_S + 0.1)
        await api.delete(SECRETS, "k", namespace="unbounded-kube")
        assert await reader.get("unbounded-kube", "k", max_age_s=60.0) is not None
        assert await reader.get("unbounded-kube", "k") is None
        assert len(api.reads) == 2

    run_virtual(story())


def test_cancelled_secret_read_is_taken_over_by_the_next_waiter() -> None:
    async def story() -> None:
        api = CountedApi()
        await make(api, "k", {"a": "1"})
        reader = SecretReader(api)
        first = asyncio.create_task(reader.get("unbounded-kube", "k"))
        second = asyncio.create_task(reader.get("unbounded-kube", "k"))
        await asyncio.sleep(0.05)
        first.cancel()
        assert await second is not None

    run_virtual(story())


def test_many_secrets_are_read_one_after_another_and_not_kept() -> None:
    async def story() -> None:
        api = CountedApi()
        reader = SecretReader(api)
        began = asyncio.get_running_loop().time()
        await asyncio.gather(*(reader.get("unbounded-kube", f"k{number}") for number in range(100)))
        assert asyncio.get_running_loop().time() - began >= 99 / READS_A_SECOND
        await asyncio.sleep(CACHE_S + 1)
        await reader.get("unbounded-kube", "last")
        assert list(reader._cache) == [("unbounded-kube", "last")]

    run_virtual(story())


@pytest.mark.slow
def test_secret_read_interval_grows_with_the_number_of_secrets() -> None:
    async def story() -> None:
        api, loop = CountedApi(), asyncio.get_running_loop()
        reader = SecretReader(api)
        assert reader.every_s == READ_EVERY_S

        async def asks(name: str) -> None:
            while True:
                await reader.get("unbounded-kube", name)
                await asyncio.sleep(reader.every_s)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(asks(f"k{number}")) for number in range(600)]
            await asyncio.sleep(120)
            for number in range(5):
                before, at = len(api.reads), loop.time()
                await reader.get("unbounded-kube", f"another-{number}")
                assert loop.time() - at < 1
                await asyncio.sleep(40)
                assert 0.5 * READS_A_SECOND * 40 < len(api.reads) - before < READS_A_SECOND * 40
            reads = Counter(api.reads)
            assert all(reads[f"k{number}"] >= 4 for number in range(600))
            for task in tasks:
                task.cancel()
        await asyncio.sleep(300)
        await reader.get("unbounded-kube", "last")
        assert reader.every_s == READ_EVERY_S

    run_virtual(story())


# Tokens


def find(machine: Machine, *secrets: dict[str, Any], forbidden: str = "") -> FoundToken:
    async def story() -> FoundToken:
        api = CountedApi()
        api.forbidden |= {forbidden}
        for body in secrets:
            await api.create(SECRETS, body, namespace="kube-system")
        finder = TokenFinder(api, SecretReader(api), now=virtual_now)
        found = await finder.find(machine)
        if forbidden != "list":
            assert await finder.find(machine) == found
            assert len(api.reads) == 1
        return found

    return run_virtual(story())


def token(site: str = "lab", *, default: bool = True, minutes: float = 60, groups: str = "") -> dict[str, Any]:
    async def made() -> dict[str, Any]:
        body = site_token_manifest(site, now=virtual_now(), good_for=timedelta(minutes=minutes), default=default)
        if groups:
            body["data"]["auth-extra-groups"] = b64encode(groups.encode()).decode()
        return body

    return run_virtual(made())


def test_the_token_that_a_machine_names_is_the_one() -> None:
    named, other = token(default=False), token()
    found = find(machine_of(bootstrapTokenRef={"name": named["metadata"]["name"]}), named, other)
    assert found.need is None
    assert found.token is not None
    assert f"bootstrap-token-{found.token.id}" == named["metadata"]["name"]


@pytest.mark.parametrize(
    ("secret", "words", "comes_back"),
    [
        ("bootstrap-token-aaaaaa", "Secret kube-system/bootstrap-token-aaaaaa does not exist", True),
        ("my-token", "Secret kube-system/my-token does not exist", False),
        (token(minutes=-1), "the token expired at", True),
        (token("other", minutes=-1), "the token expired at", False),
        (token(groups="system:bootstrappers:x"), f"must contain {GROUP_BOOTSTRAP}", False),
        (token(groups=f"{GROUP_BOOTSTRAP},{machine_group('u-2')}"), "was created for another Machine", False),
    ],
    ids=["missing", "no token's name", "expired", "expired, of another site", "group", "other machine"],
)
def test_named_token_fault_is_reported_with_its_remedy(secret: Any, words: str, comes_back: bool) -> None:
    """`site init` creates a token again under its name if it is the site's, and has only expired."""
    name = secret if isinstance(secret, str) else secret["metadata"]["name"]
    found = find(machine_of(bootstrapTokenRef={"name": name}), *([] if isinstance(secret, str) else [secret]))
    assert found.token is None
    assert found.need is not None
    assert words in found.need
    assert found.need.startswith("spec.kubernetes.bootstrapTokenRef: ")
    assert "`kubectl unbounded site init --name lab`" in found.need
    assert (found.reason == "TokenNotRenewable") is not comes_back
    assert ("name another one in spec.kubernetes.bootstrapTokenRef" in found.need) is not comes_back
    if secret == name:
        unlabelled = find(machine_of(site="", bootstrapTokenRef={"name": name}))
        assert unlabelled.reason == "TokenNotRenewable"


def test_without_a_name_the_default_token_is_taken() -> None:
    found = find(machine_of(), token(default=False), wanted := token())
    assert found.token is not None
    assert f"bootstrap-token-{found.token.id}" == wanted["metadata"]["name"]


@pytest.mark.parametrize(
    ("secrets", "words"),
    [
        ((), f"no default bootstrap token for site lab exists (label {LABEL_DEFAULT_BOOTSTRAP_TOKEN}=true"),
        ((token("other"),), "no default bootstrap token for site lab exists"),
        ((token(minutes=-1),), "no default bootstrap token for site lab is valid: Secret kube-system/"),
    ],
    ids=["none", "other site", "expired"],
)
def test_why_there_is_no_default_token_is_said(secrets: tuple[dict[str, Any], ...], words: str) -> None:
    found = find(machine_of(), *secrets)
    assert found.need is not None
    assert words in found.need
    assert "`kubectl unbounded site init --name lab`" in found.need


def test_where_defaults_may_not_be_listed_a_machine_names_its_token() -> None:
    found = find(machine_of(), forbidden="list")
    assert found.need is not None
    assert "default bootstrap tokens may not be read" in found.need
    assert "name one in spec.kubernetes.bootstrapTokenRef" in found.need
