"""Access to a Machine's BMC: the passwords from its Secret, and the certificate that is pinned on first use.

Certificates of new BMCs are pinned when their Machine appears, instead of by the first operation.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
from dataclasses import dataclass, replace
from typing import Final, Protocol

from unbounded.api.core import SECRETS, Secret
from unbounded.api.failures import Rejected, Transient
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.machine_spec import RedfishSpec, SecretKeySelector
from unbounded.api.operation import OperationKind
from unbounded.kube.api import Api, ApiError, Forbidden, NotFound
from unbounded.kube.cache import Cache
from unbounded.kube.clock import Backoff
from unbounded.kube.controller import Controller
from unbounded.kube.logs import Log
from unbounded.kube.process import Runtime
from unbounded.kube.status_writer import StatusWriter
from unbounded.metalman.reasons import CREDENTIALS_MISSING, CREDENTIALS_REFUSED
from unbounded.metalman.redfish.bmc_interface import BmcAccount
from unbounded.metalman.redfish.pool import BmcPool
from unbounded.operations import reasons
from unbounded.operations.executor_protocol import Refusal
from unbounded.operations.executor_selection import ExecutorKind, executor_of

SECRET_FOR_S: Final = 30.0  # of the use of a password by operations; it is read again then
IDLE_FOR_S: Final = 900.0  # the same for idle machines; a password that the BMC rejects is read again sooner
USELESS_FOR_S: Final = 90.0  # until a Secret that is missing, or gave no password, is read again for an idle machine
IDLE_READS_PER_S: Final = (
    0.25  # repeated reads of all idle machines together; useful and useless Secrets have one such rate each
)
BINDINGS: Final = 4096  # digests that are kept

log = Log("metalman")


@dataclass(frozen=True)
class _Read:
    """The result of a read of a Secret, and the times until which it is used."""

    result: Secret | type[ApiError]
    until: float
    idle_until: float
    is_useful: bool


class BmcAccess:
    """Secrets by name and certificate pins, for all Machines of one process."""

    def __init__(self, api: Api, pool: BmcPool) -> None:
        self._api = api
        self._status = StatusWriter(api, MACHINES, fields=("redfish",))
        self._pool = pool
        self._read: dict[tuple[str, str], _Read] = {}
        self._idle_turns: dict[bool, float] = {}  # the last turn of an idle machine, for useful and useless Secrets

    async def of(self, machine: Machine, *, idle: bool = False) -> BmcAccount:
        """Return the present access to the Machine's BMC. Pins its certificate first, if nothing is pinned yet.

        Args:
            idle: no operation needs it. A Secret that was read before is then read again in its turn only, so that
                many idle machines cost few reads, whether their Secrets exist or not.

        Raises:
            Refusal: the Secret or its key does not exist, or the BMC rejected the password and the Secret is unchanged.
        """
        redfish = redfish_of(machine)
        status = machine.status.redfish
        refused = status.refused_secret_version if status else None
        if not idle and refused is not None and refused == self._version(redfish.password_ref):
            self.forget(redfish.password_ref)  # the user may have corrected the Secret since
        secret = await self._secret(redfish.password_ref, idle=idle)
        try:
            password = password_of(machine, secret)
        except Refusal:
            self._mark_useless(redfish.password_ref)
            raise
        pin = status.cert_fingerprint if status else None
        if pin is None and redfish.ca_bundle is None and redfish.url.startswith("https:"):
            pin = await self.pin(machine)
        return BmcAccount(
            url=redfish.url,
            username=redfish.username,
            password=password,
            device_id=redfish.device_id,
            cert_fingerprint=pin,
            ca_bundle=redfish.ca_bundle,
            secret=_where(redfish.password_ref).removeprefix("Secret "),
            secret_version=secret.metadata.resource_version,
            next_password=_text(secret.value(next_key(redfish.password_ref)) or b""),
        )

    def idle_retry_s(self, machine: Machine) -> float:
        """Return the seconds until an idle machine may find another Secret than the one that `of` refused."""
        reference = redfish_of(machine).password_ref
        read = self._read.get((reference.namespace, reference.name))
        if read is None or read.is_useful:
            return 0.0
        return max(0.0, read.idle_until - asyncio.get_running_loop().time())

    async def pin(self, machine: Machine) -> str:
        """Pin the BMC's present certificate before any password is sent to the BMC (trust on first use)."""
        seen = await self._pool.fingerprint(redfish_of(machine).url)
        await self._status.write(machine, {"redfish": {"certFingerprint": seen}})
        log.info("BMC certificate pinned", machine=machine.name, fingerprint=seen)
        return seen

    async def refused(self, machine: Machine, access: BmcAccount) -> bool:
        """Record in the status that the BMC rejected this version of the Secret; return whether there is a newer
        version.
        """
        reference = redfish_of(machine).password_ref
        self.forget(reference)
        await self._status.merge(machine.name, {"redfish": {"refusedSecretVersion": access.secret_version}})
        return (await self._secret(reference)).metadata.resource_version != access.secret_version

    def forget(self, reference: SecretKeySelector) -> None:
        """Read the Secret again at the next use."""
        self._read.pop((reference.namespace, reference.name), None)

    def _version(self, reference: SecretKeySelector) -> str | None:
        """Return the version of the Secret at the last read."""
        read = self._read.get((reference.namespace, reference.name))
        return read.result.metadata.resource_version if read is not None and isinstance(read.result, Secret) else None

    async def _secret(self, reference: SecretKeySelector, *, idle: bool = False) -> Secret:
        key, now = (reference.namespace, reference.name), asyncio.get_running_loop().time()
        read = self._read.get(key)
        if read is None or now >= (read.idle_until if idle else read.until):
            result = await self._read_secret(reference)
            is_useful = isinstance(result, Secret)
            until = now + SECRET_FOR_S if is_useful else now
            read = self._read[key] = _Read(result, until, self._idle_turn(now, is_useful=is_useful), is_useful)
        if isinstance(read.result, Secret):
            return read.result
        if read.result is NotFound:
            raise no_secret(reference)
        raise Refusal(CREDENTIALS_MISSING, f"metalman has no permission to read {_where(reference)} (passwordRef)")

    async def _read_secret(self, reference: SecretKeySelector) -> Secret | type[ApiError]:
        try:
            return await self._api.get(SECRETS, reference.name, namespace=reference.namespace)
        except (NotFound, Forbidden) as error:
            return type(error)

    def _mark_useless(self, reference: SecretKeySelector) -> None:
        """Have the next operation read the Secret again, and idle machines sooner than one that gave a password."""
        key, now = (reference.namespace, reference.name), asyncio.get_running_loop().time()
        read = self._read.get(key)
        if read is not None and read.is_useful:
            idle_until = min(read.idle_until, self._idle_turn(now, is_useful=False))
            self._read[key] = replace(read, until=now, idle_until=idle_until, is_useful=False)

    def _idle_turn(self, now: float, *, is_useful: bool) -> float:
        """Take the turn in which a Secret is read again for an idle machine; return its time."""
        last = self._idle_turns.get(is_useful, 0.0)
        turn = max(last + 1 / IDLE_READS_PER_S, now + (IDLE_FOR_S if is_useful else USELESS_FOR_S))
        self._idle_turns[is_useful] = turn
        return turn


def no_secret(reference: SecretKeySelector) -> Refusal:
    """Return the error for a missing password Secret."""
    return Refusal(CREDENTIALS_MISSING, f"{_where(reference)} (passwordRef) does not exist")


def password_of(machine: Machine, secret: Secret) -> str:
    """Return the password of a Machine's BMC from its Secret.

    Raises:
        Refusal: the Secret lacks the key, or the BMC rejected the password and the Secret is unchanged.
    """
    redfish, status = redfish_of(machine), machine.status.redfish
    reference = redfish.password_ref
    value = secret.value(reference.key)
    if not value:
        keys = ", ".join(sorted(secret.data)) or "none"
        text = f"{_where(reference)} has no key {reference.key!r} (passwordRef.key); its keys: {keys}"
        raise Refusal(CREDENTIALS_MISSING, text)
    refused = status.refused_secret_version if status else None
    if refused is not None and refused == secret.metadata.resource_version:
        raise Refusal(
            CREDENTIALS_REFUSED,
            f"{redfish.url} rejected {redfish.username!r} with the password in {_where(reference)}; metalman "
            "does not offer it again until that Secret changes (after a correction of the user name, touch "
            "it)",
        )
    return _text(value)


def next_key(reference: SecretKeySelector) -> str:
    """Return the key of the password that a rotation sets."""
    return f"{reference.key}-next"


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace").rstrip("\n")


def _where(reference: SecretKeySelector) -> str:
    return f"Secret {reference.namespace}/{reference.name}"


def redfish_of(machine: Machine) -> RedfishSpec:
    """Return the Redfish part of a Machine that metalman owns.

    Raises:
        Refusal: the spec has none any more.
    """
    if machine.spec.pxe is None or machine.spec.pxe.redfish is None:
        raise Refusal(reasons.UNSUPPORTED_TARGET, f"Machine {machine.name} has no spec.pxe.redfish")
    return machine.spec.pxe.redfish


def binding_of(machine: Machine) -> str:
    """Return a digest of the BMC and the system behind it; empty for a Machine without a BMC."""
    if machine.spec.pxe is None or machine.spec.pxe.redfish is None:
        return ""
    redfish = machine.spec.pxe.redfish
    return _binding(redfish.url, redfish.device_id)


@functools.lru_cache(maxsize=BINDINGS)  # each pass over an operation compares it several times
def _binding(url: str, device_id: str) -> str:
    message = f"{url.rstrip('/')}\n{device_id}"
    return "redfish:" + hashlib.sha256(message.encode()).hexdigest()[:32]


WORKERS: Final = 32  # a BMC that does not answer occupies one until its connection times out
UNREACHABLE_BACKOFF: Final = Backoff(base_s=0.5, max_s=300.0)


class CertificatePinner(Protocol):
    async def pin(self, machine: Machine) -> str:
        """Pin the present certificate of the Machine's BMC; return its fingerprint."""
        ...


class PinController:
    """Makes one TLS handshake with each BMC without a pin, and retries silent BMCs with a backoff of up to five
    minutes.

    Silence is logged once: a BMC without power need not be reported repeatedly, and each operation on it reports its
    own error.
    """

    def __init__(
        self, runtime: Runtime, machines: Cache[Machine], pins: CertificatePinner, *, site: str | None
    ) -> None:
        self._machines = machines
        self._pins = pins
        self._site = site
        self._failures: dict[str, int] = {}  # in a row, by name of the Machine
        self._controller: Controller[str] = Controller("pins", self._pin, workers=WORKERS, metrics=runtime.metrics)

    async def run(self) -> None:
        """Work until cancelled."""
        unsubscribe = self._machines.subscribe(self._changed)
        try:
            await self._controller.run()
        finally:
            unsubscribe()

    def _changed(self, old: Machine | None, new: Machine | None) -> None:
        """Enqueue a Machine whose pin is missing now; other changes do not shorten the backoff of a silent BMC."""
        changed = new or old
        if changed is None:
            return
        if new is None or not needs_pin(new, self._site):
            self._failures.pop(changed.name, None)
        elif old is None or not needs_pin(old, self._site) or old.spec != new.spec:
            self._failures.pop(changed.name, None)
            self._controller.enqueue(changed.name)

    async def _pin(self, name: str) -> float | None:
        machine = self._machines.get(name)
        if machine is None or not needs_pin(machine, self._site):
            return None
        try:
            await self._pins.pin(machine)
        except ApiError:  # not caused by the BMC
            raise
        except Transient as failure:
            return self._silent(name, failure)
        except Rejected as refusal:  # a correction of the Machine enqueues it again
            log.warning("cannot reach BMC with this configuration", error=refusal, machine=name)
        return None

    def _silent(self, name: str, failure: Transient) -> float:
        """Record that a BMC sent no certificate; return the seconds until the retry."""
        failures = self._failures[name] = self._failures.get(name, 0) + 1
        again_s = UNREACHABLE_BACKOFF.after(failures)
        report = log.warning if failures == 1 else log.debug
        report("BMC does not answer; its certificate is pinned once it does", machine=name, why=str(failure))
        return again_s


def needs_pin(machine: Machine, site: str | None) -> bool:
    """Return whether the Machine is ours and its BMC has neither a pin nor a CA bundle."""
    if site not in (None, machine.site) or executor_of(OperationKind.HOST_REBOOT, machine) is not ExecutorKind.METALMAN:
        return False
    redfish = machine.spec.pxe.redfish if machine.spec.pxe else None
    if redfish is None or not redfish.url.startswith("https:") or redfish.ca_bundle is not None:
        return False
    return machine.status.redfish is None or machine.status.redfish.cert_fingerprint is None
