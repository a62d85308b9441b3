"""Keys of the servers on a route: keys for logins, read on demand, and host keys, trusted on first use or not trusted.

Keys for logins are read from their Secrets, which are never listed or watched. Many Machines name the same Secret, and
each Machine that it blocks reads it every two seconds. So a read is shared for that long, and a limit holds for the
reads per second. If there are too many Secrets for this limit, each is read less often: a read of one more Secret does
not have to queue.

The Machine's status has the host keys that are pinned, and the keys for logins that were refused.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from unbounded.api import core
from unbounded.api.conditions import ConditionReason
from unbounded.api.core import SECRETS
from unbounded.api.failures import Rejected, Stale, Transient
from unbounded.api.machine import MACHINES, Machine, SSHHop
from unbounded.api.machine_spec import SecretKeySelector, SSHSpec
from unbounded.api.names import NAMESPACE
from unbounded.kube.api import READ_FORBIDDEN, Api, Conflict, Forbidden, NotFound
from unbounded.kube.cache import Cache
from unbounded.kube.clock import loop_time
from unbounded.kube.events import EventSink
from unbounded.kube.logs import SecretStr
from unbounded.kube.status_writer import StatusWriter
from unbounded.machina.ssh import model
from unbounded.operations.reasons import CRD_OUTDATED_TEXT

READ_EVERY_S: Final = 2.0
READS_A_SECOND: Final = 20.0
KNOWN_SHARE: Final = 0.75  # share of these reads for known Secrets; the rest is for new ones
CACHE_S: Final = 60.0  # in memory since the last request; longer for a Secret that is read less often
PASSPHRASE: Final = "passphrase"  # noqa: S105  # the name of a key
CERTIFICATE: Final = "ssh-certificate"
_NO_IDENTITY: Final = model.SshIdentity(SecretStr(""), "")  # placeholder of a missing key, which is never offered
_TRIES: Final = 10


@dataclass
class _CachedSecret:
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    secret: core.Secret | None = None
    read_at: float | None = None
    requested_at: float = 0.0


class SecretReader:
    """Reader of Secrets by name. Concurrent requests for one Secret share a read.

    Args:
        reads_a_second: of all Secrets together.
    """

    def __init__(self, api: Api, *, reads_a_second: float = READS_A_SECOND) -> None:
        self._api = api
        self._apart_s = 1.0 / reads_a_second
        self._next_at = 0.0
        self._cache: dict[tuple[str, str], _CachedSecret] = {}

    @property
    def every_s(self) -> float:
        """Interval for reading the same Secret again that leaves room for reads of other Secrets."""
        return max(READ_EVERY_S, len(self._cache) * self._apart_s / KNOWN_SHARE)

    async def get(self, namespace: str, name: str, *, max_age_s: float | None = None) -> core.Secret | None:
        """Return a Secret that is at most so many seconds old; None if it does not exist.

        Args:
            max_age_s: None for an age that suits a caller with the interval `every_s`.
        Raises:
            Forbidden: machina may not read the Secret; any other ApiError of the read.
        """
        cached = self._entry(namespace, name)
        oldest_s = max(READ_EVERY_S, self.every_s / 2) if max_age_s is None else max_age_s
        async with cached.lock:
            if cached.read_at is None or loop_time() - cached.read_at > oldest_s:
                await self.pace()
                cached.secret, cached.read_at = await self._read(namespace, name), loop_time()
            return cached.secret

    async def pace(self) -> None:
        """Wait until the limit allows one more read."""
        now = loop_time()
        at = max(self._next_at, now)
        self._next_at = at + self._apart_s
        if at > now:
            await asyncio.sleep(at - now)

    async def _read(self, namespace: str, name: str) -> core.Secret | None:
        try:
            return await self._api.get(SECRETS, name, namespace=namespace)
        except NotFound:
            return None

    def _entry(self, namespace: str, name: str) -> _CachedSecret:
        """Return the cache entry of one Secret, and drop entries that were not requested for a while."""
        now, keep_s = loop_time(), max(CACHE_S, 2 * self.every_s)
        cached = self._cache.pop((namespace, name), None) or _CachedSecret()
        cached.requested_at = now
        self._cache[(namespace, name)] = cached  # at the end, so that the entry with the oldest request is first
        while True:
            key, first = next(iter(self._cache.items()))
            if now - first.requested_at <= keep_s or first.lock.locked():
                return cached
            del self._cache[key]


@dataclass(frozen=True)
class SshCredentials:
    """Route and keys of a Machine.

    Args:
        route: None if an address is invalid. A missing key is empty in it.
        address, key, bastion_key: the fault of each as a message; None without a fault.
        key_reason, bastion_key_reason: reasons of these faults, for conditions.
        key_version, bastion_version: of the Secrets, as in `SshIdentity`; empty without a Secret.
    """

    route: model.SshRoute | None
    address: str | None = None
    key: str | None = None
    bastion_key: str | None = None
    key_reason: ConditionReason = ConditionReason.SECRET_UNUSABLE
    bastion_key_reason: ConditionReason = ConditionReason.SECRET_UNUSABLE

    @property
    def key_version(self) -> str:
        return self.route.host.identity.version if self.route is not None else ""

    @property
    def bastion_version(self) -> str:
        bastion = self.route.bastion if self.route is not None else None
        return bastion.identity.version if bastion is not None else ""


@dataclass(frozen=True)
class _KeyReference:
    """Reference to the key of one hop.

    Args:
        field: of the reference, for messages.
        passphrase, certificate: keys of the Secret that the user names; None for the default keys, which are optional.
    """

    field: str
    ref: SecretKeySelector
    passphrase: str | None
    certificate: str | None


async def credentials_of(machine: Machine, secrets: SecretReader, *, max_age_s: float | None = None) -> SshCredentials:
    """Read the credentials of a Machine with `spec.ssh`.

    Args:
        max_age_s: of its Secrets, as in `SecretReader.get`.
    Raises:
        ApiError: of a read; it may pass.
    """
    ssh = machine.spec.ssh
    if ssh is None:
        raise ValueError(f"Machine {machine.name} has no spec.ssh")
    own, its = _keys(ssh)
    host = await _read_key(own, secrets, max_age_s)
    bastion = _KeyRead() if its is None else await _read_key(its, secrets, max_age_s)
    route, address = None, None
    try:
        route = _route(machine, ssh, host.identity, bastion.identity)
    except ValueError as error:
        address = str(error)
    return SshCredentials(route, address, host.fault, bastion.fault, host.reason, bastion.reason)


def keyless_route(machine: Machine) -> model.SshRoute:
    """Return the route of a probe without login. Raises Rejected if an address is invalid."""
    if machine.spec.ssh is None:
        raise Rejected(f"Machine {machine.name} has no spec.ssh")
    try:
        return _route(machine, machine.spec.ssh, _NO_IDENTITY, _NO_IDENTITY)
    except ValueError as error:
        raise Rejected(str(error)) from error


def _keys(ssh: SSHSpec) -> tuple[_KeyReference, _KeyReference | None]:
    """Return the references to the key of the host and to that of the bastion, which defaults to the host's."""
    own = _KeyReference("spec.ssh.privateKeyRef", ssh.private_key_ref, ssh.passphrase_key, ssh.certificate_key)
    bastion = ssh.bastion
    if bastion is None:
        return own, None
    if bastion.private_key_ref is None:
        passphrase, certificate = bastion.passphrase_key, bastion.certificate_key
        return own, _KeyReference(own.field, own.ref, passphrase or own.passphrase, certificate or own.certificate)
    where = "spec.ssh.bastion.privateKeyRef"
    return own, _KeyReference(where, bastion.private_key_ref, bastion.passphrase_key, bastion.certificate_key)


def _route(machine: Machine, ssh: SSHSpec, host: model.SshIdentity, bastion: model.SshIdentity) -> model.SshRoute:
    """Build the route; raises ValueError for an invalid address."""
    known = machine.status.ssh
    pins = model.HostKeyPins(ssh.host_keys, known.fingerprint if known else None)
    target = model.Hop(SSHHop.HOST, _address("spec.ssh.host", ssh.host), ssh.username, host, pins)
    if ssh.bastion is None:
        return model.SshRoute(target)
    jump = ssh.bastion
    pins = model.HostKeyPins(jump.host_keys, known.bastion_fingerprint if known else None)
    at = _address("spec.ssh.bastion.host", jump.host)
    return model.SshRoute(target, model.Hop(SSHHop.BASTION, at, jump.username, bastion, pins))


def _address(where: str, text: str) -> model.HostPort:
    try:
        return model.host_port(text)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


@dataclass(frozen=True)
class _KeyRead:
    """Identity of a Secret, or its fault."""

    identity: model.SshIdentity = _NO_IDENTITY
    fault: str | None = None
    reason: ConditionReason = ConditionReason.SECRET_UNUSABLE


async def _read_key(key: _KeyReference, secrets: SecretReader, max_age_s: float | None) -> _KeyRead:
    name, namespace = key.ref.name, key.ref.namespace
    where = f"Secret {namespace}/{name}"
    if namespace != NAMESPACE:
        fault = f"{key.field}: {where} is not in namespace {NAMESPACE}, where SSH keys must be"
        return _KeyRead(fault=fault)
    try:
        secret = await secrets.get(namespace, name, max_age_s=max_age_s)
    except Forbidden as error:
        fault = f"{key.field}: {where} {READ_FORBIDDEN}: {error}"
        return _KeyRead(fault=fault, reason=ConditionReason.SECRET_FORBIDDEN)
    if secret is None:
        return _KeyRead(fault=f"{key.field}: {where} does not exist", reason=ConditionReason.SECRET_MISSING)
    version = f"{namespace}/{name}@{secret.metadata.resource_version}"
    try:
        return _KeyRead(identity_in(secret, where, key.ref.key, key.passphrase, key.certificate, version))
    except Rejected as error:
        return _KeyRead(model.SshIdentity(SecretStr(""), version), f"{key.field}: {error}")


def identity_in(
    secret: core.Secret, where: str, key: str, passphrase: str | None, certificate: str | None, version: str
) -> model.SshIdentity:
    """Return the identity in a Secret. Raises Rejected; the message names the key but not its value."""
    private = _value(secret, where, key)
    if private is None:
        there = ", ".join(sorted(secret.data)) or "no data"
        raise Rejected(f"{where} has no key {key}; its keys: {there}")
    try:
        model.check_private_key(private)
    except ValueError as error:
        raise Rejected(f"{where}, key {key}: {error}") from error
    words = _optional(secret, where, passphrase, PASSPHRASE)
    signed = _optional(secret, where, certificate, CERTIFICATE)
    return model.SshIdentity(
        SecretStr(private.replace("\r\n", "\n")),
        version,
        SecretStr(words.rstrip("\r\n")) if words else None,
        SecretStr(signed.strip()) if signed else None,
    )


def _optional(secret: core.Secret, where: str, named: str | None, otherwise: str) -> str | None:
    """Return the value of the named key, or of the default key if it exists."""
    value = _value(secret, where, named or otherwise)
    if value is None and named is not None:
        raise Rejected(f"{where} has no key {named}")
    return value


def _value(secret: core.Secret, where: str, key: str) -> str | None:
    try:
        raw = secret.value(key)
        return None if raw is None else raw.decode()
    except ValueError as error:
        raise Rejected(f"{where}, key {key}: is not text") from error


class PinWriter:
    """Writer of pins for one process, before a user key is offered; if another process pins first, its pin counts."""

    def __init__(self, api: Api, machines: Cache[Machine], announce: EventSink) -> None:
        self._api = api
        self._status = StatusWriter(api, MACHINES, fields=("ssh",), cache=machines)
        self._announce = announce

    def of(self, machine: Machine) -> model.FirstUse:
        """Return the callback that pins host keys in a login of this Machine."""

        async def first_use(hop: SSHHop, fingerprint: str) -> None:
            for _ in range(_TRIES):
                try:
                    return await self._pin(machine, hop, fingerprint)
                except Conflict:
                    continue
            raise Transient(f"Machine {machine.name} changes too often; cannot store the {hop}'s key")

        return first_use

    async def _pin(self, machine: Machine, hop: SSHHop, fingerprint: str) -> None:
        now = await self._api.get(MACHINES, machine.name)
        if now.metadata.uid != machine.metadata.uid:
            raise Stale(f"Machine {machine.name} has been replaced by another of its name")
        known = pinned(now, hop)
        if known is not None:
            return _must_be(known, fingerprint, machine, hop)
        field = "fingerprint" if hop == SSHHop.HOST else "bastionFingerprint"
        written = await self._status.write(now, {"ssh": {field: fingerprint}})
        if written is None or pinned(written, hop) != fingerprint:
            raise Rejected(CRD_OUTDATED_TEXT)
        words = (
            f"machina trusts the {hop}'s SSH key {fingerprint} from now on: it is the first one that the "
            f"{hop} presented"
        )
        self._announce(written, "Normal", "HostKeyTrusted", words)
        return None


def pinned(machine: Machine, hop: SSHHop) -> str | None:
    ssh = machine.status.ssh
    if ssh is None:
        return None
    return ssh.fingerprint if hop == SSHHop.HOST else ssh.bastion_fingerprint


def _must_be(known: str, fingerprint: str, machine: Machine, hop: SSHHop) -> None:
    if known != fingerprint:
        words = f"the {hop} of Machine {machine.name} presents the key {fingerprint}, but {known} is trusted"
        raise model.SshRejected(model.SshReason.HOST_KEY, hop, words, fingerprint=fingerprint)


def is_refused(machine: Machine, hop: SSHHop, version: str) -> bool:
    """Return whether this key was refused, and neither its Secret nor the Machine's spec has changed since."""
    known = machine.status.ssh.refused if machine.status.ssh is not None else ()
    return any(
        one.hop == hop and one.secret_version == version and one.generation == machine.metadata.generation
        for one in known
    )


def refused_message(hop: str) -> str:
    until = "machina does not offer them again until the Secret or the Machine's spec changes"
    return f"the {hop} rejected user name and key; {until}"


def known_refusal(machine: Machine, key_version: str, bastion_version: str) -> SSHHop | None:
    """Return the server on the route that has refused its key."""
    hops = ((SSHHop.HOST, key_version), (SSHHop.BASTION, bastion_version))
    return next((hop for hop, version in hops if version and is_refused(machine, hop, version)), None)


def untrusted(machine: Machine, hop: SSHHop) -> str | None:
    """Return the fingerprint of the last key that a server showed instead of the trusted one."""
    known = machine.status.ssh.untrusted if machine.status.ssh is not None else ()
    return next((one.fingerprint for one in known if one.hop == hop), None)


def without_untrusted(machine: Machine, hop: SSHHop) -> list[dict[str, Any]]:
    """Return status.ssh.untrusted for a patch, without the key of one server."""
    known = machine.status.ssh.untrusted if machine.status.ssh is not None else ()
    return [msgspec.to_builtins(one) for one in known if one.hop != hop]
