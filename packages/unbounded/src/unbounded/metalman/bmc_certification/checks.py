"""Checks of a BMC: each reads what one use needs, with metalman's own client, and judges the answer.

A failure of the client is a result: the BMC lacks the resource, or it deviates, with its own words. A rejected password
ends all checks, as no password is offered twice. One check writes the boot override, and restores it even if the user
interrupts the command; none changes the power.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from unbounded.api.failures import Failure, Rejected
from unbounded.api.hardware import HardwareFacts
from unbounded.metalman.bmc_certification.connection import Connection
from unbounded.metalman.bmc_certification.grades import CheckName, CheckResult, Verdict
from unbounded.metalman.redfish.bmc_channel import complete_despite_cancel
from unbounded.metalman.redfish.bmc_interface import (
    BmcPowerState,
    BootEnabled,
    BootOverride,
    BootTarget,
    CircuitOpen,
    PasswordRejected,
    ResetType,
    SystemState,
    Unsupported,
    WebSocketOffer,
    clean,
)
from unbounded.metalman.redfish.client import SYSTEMS, RedfishClient
from unbounded.metalman.redfish.documents import action_values, members
from unbounded.metalman.redfish.inventory import link, links, mapping
from unbounded.metalman.redfish.inventory_reader import Inventory
from unbounded.metalman.redfish.quirks import choices, manager_resets

MAX_MEMBERS: Final = 16
Document = Mapping[str, Any]
RESTORE_S: Final = 60.0
TARGETS: Final = (BootTarget.PXE, BootTarget.UEFI_HTTP, BootTarget.CD)


@dataclass(frozen=True, slots=True)
class Judgement:
    verdict: Verdict
    words: str = ""


def works(words: str = "") -> Judgement:
    return Judgement(Verdict.WORKS, words)


def not_offered(words: str) -> Judgement:
    return Judgement(Verdict.NOT_OFFERED, words)


def deviates(words: str) -> Judgement:
    return Judgement(Verdict.DEVIATES, words)


def not_tested(words: str) -> Judgement:
    return Judgement(Verdict.NOT_TESTED, words)


@dataclass(slots=True)
class CertifiedBmc:
    """The BMC under test, and what earlier checks have read."""

    connection: Connection
    username: str
    device_id: str = "1"
    allow_writes: bool = False
    state: SystemState | None = None
    system: Document = field(default_factory=dict)
    hardware: Inventory | None = None
    manager: Document | None = None

    async def read(self, path: str) -> Document:
        return await self.connection.client.document(path, clean(path))

    async def service(self, name: str) -> Document:
        """Read a service that the root names.

        Raises:
            Unsupported: the root does not name it.
        """
        path = link(self.connection.root, name)
        if path is None:
            raise Unsupported(f"the service root names no {name}")
        return await self.read(path)

    async def members(self, collection: str | None, what: str) -> list[Document]:
        """Read the first members of a collection."""
        if collection is None:
            raise Unsupported(f"the BMC names no {what}")
        return [await self.read(path) for path in list(members(await self.read(collection)).values())[:MAX_MEMBERS]]

    async def read_manager(self) -> Document:
        """Read the manager of the system, or the only one."""
        if self.manager is None:
            paths = links(mapping(self.system, "Links"), "ManagedBy")
            collection = link(self.connection.root, "Managers")
            if not paths and collection is not None:
                paths = list(members(await self.read(collection)).values())
            if not paths:
                raise Unsupported("the BMC lists no manager")
            self.manager = await self.read(paths[0])
        return self.manager


Check = Callable[[CertifiedBmc], Awaitable[Judgement]]


class NoSuchSystem(Rejected):
    """The BMC lists other systems than the requested one."""


async def run_checks(subject: CertifiedBmc) -> list[CheckResult]:
    """Run all checks, one after the other.

    Raises:
        PasswordRejected: the BMC has stopped accepting the log-in.
        NoSuchSystem: as its name says.
    """
    results = []
    for name, check in CHECKS.items():
        started = time.monotonic()
        judgement = await _judge(subject, name, check)
        results.append(CheckResult(name, judgement.verdict, judgement.words, time.monotonic() - started))
    return results


async def _judge(subject: CertifiedBmc, name: CheckName, check: Check) -> Judgement:
    if name in _OF_A_SYSTEM and subject.state is None:
        return not_tested("the system cannot be read")
    where = f"{subject.connection.client.channel.where}: "
    try:
        return await check(subject)
    except (PasswordRejected, NoSuchSystem):
        raise
    except Unsupported as error:
        return not_offered(str(error).removeprefix(where))
    except CircuitOpen as error:
        return not_tested(str(error).removeprefix(where))
    except Failure as error:
        return deviates(str(error).removeprefix(where))


async def _service_root(subject: CertifiedBmc) -> Judgement:
    root = subject.connection.root
    version = clean(str(root.get("RedfishVersion", "unknown")))
    if not subject.connection.is_root_open:
        return deviates(f"Redfish {version}; the service root requires a log-in (DSP0266 13.3.3)")
    return works(f"Redfish {version}")


async def _sessions(subject: CertifiedBmc) -> Judgement:
    if subject.connection.has_session:
        return works("a session was opened")
    root = subject.connection.root
    if "SessionService" in root or link(mapping(root, "Links"), "Sessions"):
        return deviates("the BMC names a SessionService and opens no session; basic auth is used")
    return not_offered("no SessionService; basic auth is used")


async def _system(subject: CertifiedBmc) -> Judgement:
    state = await _find_system(subject)
    document = await subject.read(f"{SYSTEMS}/{quote(state.device_id, safe='')}")
    subject.state, subject.system = state, document
    model = " ".join(str(document[key]) for key in ("Manufacturer", "Model") if isinstance(document.get(key), str))
    return works(clean(f"{state.device_id}: {model}" if model else state.device_id))


async def _find_system(subject: CertifiedBmc) -> SystemState:
    """Read the system.

    Raises:
        NoSuchSystem: the BMC lists others.
    """
    try:
        return await subject.connection.client.system(subject.device_id)
    except (PasswordRejected, Unsupported):
        raise
    except Rejected as error:
        found = members(await subject.read(SYSTEMS))
        if not found or subject.device_id in found:
            raise
        where, listed = subject.connection.client.channel.where, clean(", ".join(sorted(found)))
        raise NoSuchSystem(f"{where} has no system {subject.device_id!r}; it lists {listed}") from error


async def _power_state(subject: CertifiedBmc) -> Judgement:
    state = _state(subject)
    if state.power is BmcPowerState.UNSETTLED:
        return deviates(f"PowerState is {state.power_text or 'missing'}, neither On nor Off")
    return works(state.power_text)


async def _reset(subject: CertifiedBmc) -> Judgement:
    allowable = await _allowable(subject)
    if not allowable:
        return deviates("the BMC lists no ResetTypes; metalman sends On and ForceOff")
    missing = [value for value in (ResetType.ON, ResetType.FORCE_OFF) if not choices(value, allowable)]
    listed = ", ".join(allowable)
    return not_offered(f"no {' and no '.join(missing)}; it lists {listed}") if missing else works(listed)


async def _graceful_shutdown(subject: CertifiedBmc) -> Judgement:
    allowable = await _allowable(subject)
    found = choices(ResetType.GRACEFUL_SHUTDOWN, allowable)
    if not found:
        return not_offered(f"it lists {', '.join(allowable or ())}")
    if not allowable:
        return deviates("the BMC lists no ResetTypes")
    value = found[0].value
    if value != ResetType.GRACEFUL_SHUTDOWN:
        return deviates(f"{value} in place of {ResetType.GRACEFUL_SHUTDOWN}")
    return works(value)


async def _allowable(subject: CertifiedBmc) -> tuple[str, ...] | None:
    """Return the ResetTypes in the system or its ActionInfo; None if neither lists them."""
    state = _state(subject)
    if state.allowable:
        return state.allowable
    reset = mapping(mapping(subject.system, "Actions"), "#ComputerSystem.Reset")
    info = reset.get("@Redfish.ActionInfo")
    return action_values(await subject.read(info)) if isinstance(info, str) else None


async def _boot_override(subject: CertifiedBmc) -> Judgement:
    boot = _state(subject).boot
    if boot is None:
        return not_offered("the system has no BootSourceOverrideEnabled and no BootSourceOverrideTarget")
    if boot.enabled is None or boot.target is None:
        return deviates(f"Enabled is {boot.enabled or 'missing'}, Target is {boot.target or 'missing'}")
    return works(f"{boot.enabled}, {boot.target}, {boot.mode or 'no mode'}")


def _boot_target(target: BootTarget) -> Check:
    async def check(subject: CertifiedBmc) -> Judgement:
        targets = _state(subject).boot_targets
        if _state(subject).boot is None:
            return not_offered("no boot override")
        if not targets:
            return deviates("the BMC lists no targets")
        return (works if target in targets else not_offered)(clean(", ".join(targets)))

    return check


async def _boot_write(subject: CertifiedBmc) -> Judgement:
    if not subject.allow_writes:
        return not_tested("--allow-writes writes the boot override and restores it")
    if _state(subject).boot is None:
        return not_offered("no boot override")
    report = await write_and_restore(subject.connection.client, subject.device_id, _state(subject))
    return (works if report.works else deviates)(report.words)


async def _virtual_media(subject: CertifiedBmc) -> Judgement:
    collection = link(subject.system, "VirtualMedia") or link(await subject.read_manager(), "VirtualMedia")
    media = await subject.members(collection, "VirtualMedia")
    kinds = {kind for one in media for kind in one.get("MediaTypes") or () if isinstance(kind, str)}
    discs = [one for one in media if {"CD", "DVD"} & set(one.get("MediaTypes") or ())]
    if not discs:
        return not_offered(f"no medium of type CD or DVD; {clean(', '.join(sorted(kinds))) or 'no medium'}")
    if not any("#VirtualMedia.InsertMedia" in mapping(one, "Actions") for one in discs):
        return deviates("a CD without the action #VirtualMedia.InsertMedia")
    protocols = {str(each) for one in discs for each in one.get("TransferProtocolTypes") or ()}
    return works(f"InsertMedia; {clean(', '.join(sorted(protocols))) or 'no list of protocols'}")


def _hardware(parts: tuple[str, ...], described: Callable[[HardwareFacts], str]) -> Check:
    """Return a check of parts of the inventory: `described` is empty where facts are missing."""

    async def check(subject: CertifiedBmc) -> Judgement:
        found = await _inventory(subject)
        failed = [f"{part}: {found.failed[part]}" for part in parts if part in found.failed]
        if failed:
            return deviates("; ".join(failed).replace(f"{subject.connection.client.channel.where}: ", ""))
        if words := described(found.facts):
            return works(words)
        if not found.is_on:
            return not_tested("the BMC lists none; the host is off, and many BMCs list them only while it is on")
        return not_offered("the BMC lists none")

    return check


async def _inventory(subject: CertifiedBmc) -> Inventory:
    """Read the inventory once."""
    if subject.hardware is None:
        subject.hardware = await subject.connection.client.inventory(subject.device_id, lambda: True)
    return subject.hardware


def _processors_memory(facts: HardwareFacts) -> str:
    if not (facts.cpus or facts.processor) or not facts.memory_bytes:
        return ""
    return f"{facts.cpus or 'some'} CPUs, {facts.memory_bytes >> 30} GiB"


def _disks(facts: HardwareFacts) -> str:
    named = sum(1 for disk in facts.disks if disk.serial_number or disk.wwn)
    return f"{len(facts.disks)} disks, {named} of them with a serial number or WWN" if facts.disks else ""


def _counted(name: str, count: int) -> str:
    return f"{count} {name}" if count else ""


async def _event_stream(subject: CertifiedBmc) -> Judgement:
    service = await subject.service("EventService")
    if service.get("ServiceEnabled") is False:
        return not_offered("the EventService is not enabled")
    stream = service.get("ServerSentEventUri")
    if not isinstance(stream, str) or not stream:
        return not_offered("the EventService has no ServerSentEventUri")
    return works(clean(stream))


async def _manager_reset(subject: CertifiedBmc) -> Judgement:
    manager = await subject.read_manager()
    reset = mapping(mapping(manager, "Actions"), "#Manager.Reset")
    if not isinstance(reset.get("target"), str):
        return not_offered("the manager has no action #Manager.Reset")
    listed, info = reset.get("ResetType@Redfish.AllowableValues"), reset.get("@Redfish.ActionInfo")
    allowable = tuple(map(str, listed)) if isinstance(listed, list) else None
    if allowable is None and isinstance(info, str):
        allowable = action_values(await subject.read(info))
    if not manager_resets(allowable):
        return not_offered(f"no restart; it lists {clean(', '.join(allowable or ()))}")
    return works(clean(", ".join(allowable))) if allowable else deviates("the BMC lists no ResetTypes")


async def _account(subject: CertifiedBmc) -> Judgement:
    service = await subject.service("AccountService")
    accounts = await subject.members(link(service, "Accounts"), "accounts")
    own = [one for one in accounts if one.get("UserName") == subject.username]
    if not own:
        return deviates(f"{len(accounts)} accounts, and none has the name that is logged in")
    least = service.get("MinPasswordLength")
    limit = f", passwords of {least} characters or more" if isinstance(least, int) else ""
    return works(clean(f"role {own[0].get('RoleId', 'unknown')}{limit}"))


async def _simple_update(subject: CertifiedBmc) -> Judgement:
    service = await subject.service("UpdateService")
    action = mapping(mapping(service, "Actions"), "#UpdateService.SimpleUpdate")
    if not isinstance(action.get("target"), str):
        return not_offered("the UpdateService has no action #UpdateService.SimpleUpdate")
    if service.get("ServiceEnabled") is False:
        return not_offered("the UpdateService is not enabled")
    protocols = action.get("TransferProtocol@Redfish.AllowableValues")
    return works(clean(", ".join(map(str, protocols))) if isinstance(protocols, list) else "no list of protocols")


async def _serial_console(subject: CertifiedBmc) -> Judgement:
    offers = _state(subject).consoles
    if offers.usable:
        return works(", ".join("web socket" if isinstance(one, WebSocketOffer) else "SSH" for one in offers.usable))
    listed = ", ".join(offers.others) or "none"
    return not_offered(f"no web socket and no SSH; SerialConsole of the system lists: {listed}")


def _state(subject: CertifiedBmc) -> SystemState:
    if subject.state is None:
        raise Unsupported("the system cannot be read")
    return subject.state


def bmc_name(subject: CertifiedBmc) -> str:
    """Return maker, model and firmware version of the system and its BMC, for the head of a page."""
    manager = subject.manager or {}
    pairs = ((subject.system, "Manufacturer"), (subject.system, "Model"), (manager, "FirmwareVersion"))
    parts = [clean(found)[:64] for document, key in pairs if isinstance(found := document.get(key), str) and found]
    if isinstance(manager.get("FirmwareVersion"), str):
        parts[-1] = f"BMC firmware {parts[-1]}"
    return ", ".join(parts) or "unknown BMC"


N = CheckName
CHECKS: Final[Mapping[CheckName, Check]] = {
    N.SERVICE_ROOT: _service_root,
    N.SESSIONS: _sessions,
    N.SYSTEM: _system,
    N.POWER_STATE: _power_state,
    N.RESET: _reset,
    N.GRACEFUL_SHUTDOWN: _graceful_shutdown,
    N.BOOT_OVERRIDE: _boot_override,
    N.BOOT_PXE: _boot_target(BootTarget.PXE),
    N.BOOT_HTTP: _boot_target(BootTarget.UEFI_HTTP),
    N.BOOT_CD: _boot_target(BootTarget.CD),
    N.BOOT_WRITE: _boot_write,
    N.VIRTUAL_MEDIA: _virtual_media,
    N.PROCESSORS: _hardware(("Processors", "Memory"), _processors_memory),
    N.DISKS: _hardware(("Storage",), _disks),
    N.NICS: _hardware(("EthernetInterfaces",), lambda facts: _counted("NICs", len(facts.nics))),
    N.FIRMWARE: _hardware(("FirmwareInventory",), lambda facts: _counted("versions", len(facts.firmware_inventory))),
    N.POWER_SUPPLIES: _hardware(
        ("PowerSupplies",), lambda facts: _counted("power supplies", len(facts.power_supplies))
    ),
    N.EVENT_STREAM: _event_stream,
    N.MANAGER_RESET: _manager_reset,
    N.ACCOUNT: _account,
    N.SIMPLE_UPDATE: _simple_update,
    N.SERIAL_CONSOLE: _serial_console,
}
_OF_A_SYSTEM: Final = frozenset(
    {N.POWER_STATE, N.RESET, N.GRACEFUL_SHUTDOWN, N.BOOT_OVERRIDE, N.BOOT_PXE, N.BOOT_HTTP, N.BOOT_CD, N.BOOT_WRITE,
     N.PROCESSORS, N.DISKS, N.NICS, N.FIRMWARE, N.POWER_SUPPLIES, N.SERIAL_CONSOLE}
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class WriteReport:
    works: bool
    words: str


async def write_and_restore(client: RedfishClient, device_id: str, state: SystemState) -> WriteReport:
    """Write the override, and restore the one of `state`.

    Raises:
        Failure: the write was refused, and nothing was changed.
    """
    return await complete_despite_cancel(_write_and_restore(client, device_id, state), within_s=RESTORE_S)


async def _write_and_restore(client: RedfishClient, device_id: str, state: SystemState) -> WriteReport:
    listed = state.boot_targets or TARGETS
    target = next((target for target in TARGETS if target in listed), BootTarget.PXE)
    desired = BootOverride(BootEnabled.ONCE, target)
    refused: Failure | None = None
    written = BootOverride(None)
    try:
        written = await client.set_boot_override(device_id, desired)
    except Failure as error:
        refused = error  # an answer may be lost after the write, so the old values are restored in any case
    before = state.boot or BootOverride(None)
    left = await _restore(client, device_id, before)
    if left:
        return WriteReport(works=False, words=left)
    if refused is not None:
        raise refused
    if (written.enabled, written.target) != (desired.enabled, desired.target):
        return WriteReport(works=False, words=f"{_shown(desired)} was written, and {_shown(written)} was read back")
    return WriteReport(works=True, words=f"{_shown(desired)} was written, and {_shown(before)} restored")


async def _restore(client: RedfishClient, device_id: str, before: BootOverride) -> str:
    """Restore an override; returns what is left, empty if it is restored."""
    try:
        now = (await client.system(device_id)).boot or BootOverride(None)
        if _same(now, before):
            return ""
        if before.leaves_disk and before.enabled != BootEnabled.CONTINUOUS:
            now = await client.disable_boot_override(device_id)
        else:
            now = await client.set_boot_override(device_id, before)
    except Failure as error:
        return clean(f"NOT RESTORED, set it to {_shown(before)} by hand: {error}")
    return "" if _same(now, before) else f"NOT RESTORED: it was {_shown(before)}, and is {_shown(now)}"


def _same(one: BootOverride, other: BootOverride) -> bool:
    """Return whether two overrides boot the same; the target of a disabled one has no meaning."""
    if one.leaves_disk and other.leaves_disk:
        return True
    return (one.enabled, one.target) == (other.enabled, other.target)


def _shown(boot: BootOverride) -> str:
    return clean(f"{boot.enabled or 'nothing'}/{boot.target or 'None'}")
