"""metalman as an executor of host operations: observes and acts over Redfish.

`power` and `replace_table` decide on the steps; `replace_observation` reduces the observations of a HostReplace to one
fact.
"""

from __future__ import annotations

import contextlib
import dataclasses
from functools import lru_cache
from typing import Final

from unbounded.api.core import Node
from unbounded.api.failures import Failure, Rejected, Transient, Uncertain
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import MachineOperation, MachineOperationSpec, OperationKind
from unbounded.api.profile import MACHINE_PROFILES
from unbounded.kube.api import Api, NotFound
from unbounded.kube.cache import Cache
from unbounded.kube.clock import WallClock, loop_time, utc_now
from unbounded.kube.logs import Log
from unbounded.metalman import (
    bmc_reset,
    erase_stages,
    firmware_update,
    inspect_stages,
    password_rotation,
    power,
    replace_observation,
    replace_stages,
    replace_table,
)
from unbounded.metalman.bmc_access import BmcAccess, binding_of, redfish_of
from unbounded.metalman.bmc_events import PowerEvents
from unbounded.metalman.boot_override import BootOverrides, as_booted, boots_by_media, media_boot, missing_target
from unbounded.metalman.console_recording import ConsoleRecorder
from unbounded.metalman.disks_to_erase import is_begun
from unbounded.metalman.erase_stages import check_drained
from unbounded.metalman.netboot.installs import (
    boots_signed_image,
    image_refusal,
    network_refusal,
    profile_name,
    profile_refusal,
)
from unbounded.metalman.password_rotation import PasswordSecrets, check_conflict
from unbounded.metalman.power_read_times import ReadTimes
from unbounded.metalman.power_reader import PowerReadings
from unbounded.metalman.reasons import (
    ADDRESS_INVALID,
    BMC_REFUSED,
    CERTIFICATE_CHANGED,
    CERTIFICATE_UNTRUSTED,
    CREDENTIALS_REFUSED,
    NEW_PASSWORD_REFUSED,
    TASK_FAILED,
)
from unbounded.metalman.redfish.bmc_interface import (
    BmcAccount,
    BmcPowerState,
    BootEnabled,
    CertificateChanged,
    CertificateUntrusted,
    InvalidBmcUrl,
    PasswordRejected,
    ResetAcceptance,
    ResetType,
    SystemState,
    TaskFailed,
    Unsupported,
)
from unbounded.metalman.redfish.pool import BmcPool, PooledBmc
from unbounded.metalman.replace_table import ReplaceFact
from unbounded.metalman.settings import ATTEMPTS, POLL_S
from unbounded.metalman.shared_bmcs import SharedBmcs
from unbounded.metalman.virtual_media_boot import BootMedia
from unbounded.operations import reasons
from unbounded.operations.claim_gates import Gate
from unbounded.operations.executor_protocol import NotDone, Refusal, Target
from unbounded.operations.executor_selection import ExecutorKind, executor_of
from unbounded.operations.parameters import IMAGE_URI, firmware_targets, requester
from unbounded.workflow.procedure import Observation, Procedure

RESETS: Final = {
    power.SHUT_DOWN: ResetType.GRACEFUL_SHUTDOWN,
    power.SWITCH_OFF: ResetType.FORCE_OFF,
    power.SWITCH_ON: ResetType.ON,
    replace_table.START: ResetType.ON,
}
NO_NETBOOT: Final = (
    "this metalman does not serve network boots: start `metalman serve-pxe` instead of `metalman "
    "controller`, or `unbounded up` with --pxe-interface"
)
NETBOOT_PROCEDURES: Final = {
    OperationKind.HOST_REPLACE: replace_stages.replace,
    OperationKind.HOST_INSPECT: inspect_stages.inspect,
    OperationKind.HOST_ERASE: erase_stages.erase,
    OperationKind.HOST_RESCUE: inspect_stages.rescue,
}
BMC_PROCEDURES: Final = {
    OperationKind.BMC_RESET: bmc_reset.reset,
    OperationKind.FIRMWARE_UPDATE: firmware_update.update,
    OperationKind.BMC_ROTATE_PASSWORD: password_rotation.rotate,
}
PROCEDURES: Final = {**power.PROCEDURES, **NETBOOT_PROCEDURES, **BMC_PROCEDURES}
# between observations where an event is expected, in case that it is late or never comes
EVENT_POLLS_S: Final = (20.0, 40.0, 120.0)

log = Log("metalman")


def procedure_of_machine(operation: MachineOperation, machine: Machine | None) -> Procedure | None:
    """Return the procedure of an operation on a Machine; None for a kind that metalman does not support."""
    kind, boot = OperationKind(operation.spec.operation_kind), operation.metadata.uid
    if kind not in PROCEDURES:
        return None
    plain = PROCEDURES[kind](operation)
    by_media = machine is not None and kind in NETBOOT_PROCEDURES and boots_by_media(as_booted(machine, boot))
    return replace_stages.by_media(plain) if by_media else plain


@lru_cache(maxsize=256)
def _procedure_of(
    kind: OperationKind,
    parameters: frozenset[tuple[str, str]],
    *,
    attempts: int,
    longest_pause_s: float,
    by_media: bool,
    by_events: bool,
    first_pauses_s: tuple[float, ...],
) -> Procedure:
    """Return the procedure of all operations of a kind that have these parameters: each pass reads it several times.

    Args:
        by_events: observations are expected after events alone.
        first_pauses_s: pauses before those of the procedure.
    """
    spec = MachineOperationSpec(operation_kind=kind, parameters=dict(parameters))
    plain = PROCEDURES[kind](MachineOperation(spec=spec))
    plain = replace_stages.by_media(plain) if by_media else plain
    tuned = plain.tuned(attempts=attempts, longest_pause_s=longest_pause_s)
    return dataclasses.replace(tuned, polls_s=EVENT_POLLS_S if by_events else (*first_pauses_s, *tuned.polls_s))


class RedfishExecutor:
    """Executor of host operations for one site's bare metal.

    Args:
        nodes: all Nodes; None if no HostReplace is requested.
        netboot: machines can boot from the network; False rejects a kind that boots the installer and has not begun.
        sharing: separates operations on Machines with the same BMC; None if no two share one.
        readings: what operations read last; None if nothing uses them.
        events: hints of the BMCs' events; None if none are followed.
        recorder: records the consoles of hosts that boot; None for no recordings.
    """

    def __init__(
        self,
        api: Api,
        pool: BmcPool,
        access: BmcAccess,
        media: BootMedia,
        *,
        nodes: Cache[Node] | None = None,
        site: str = "",
        netboot: bool = True,
        attempts: int = ATTEMPTS,
        poll_s: float = POLL_S,
        now: WallClock = utc_now,
        sharing: SharedBmcs | None = None,
        readings: PowerReadings | None = None,
        events: PowerEvents | None = None,
        recorder: ConsoleRecorder | None = None,
    ) -> None:
        self.name = "/".join(part for part in (ExecutorKind.METALMAN, site) if part)
        self._api = api
        self._pool = pool
        self._access = access
        self._media = media
        self._nodes = nodes
        self._site = site
        self._netboot = netboot
        self._attempts, self._poll_s = attempts, poll_s
        self._boot_override = BootOverrides(api, now)
        self._passwords = PasswordSecrets(api, access, pool)
        self._sharing = sharing
        self._readings = readings or PowerReadings()
        self._events = events or PowerEvents()
        self._read_times = ReadTimes()
        self._recorder = recorder

    @property
    def call_limit_s(self) -> float:
        return self._pool.limits.act_s

    def claims(self, kind: OperationKind, machine: Machine) -> bool:
        return machine.site == self._site and executor_of(kind, machine) is ExecutorKind.METALMAN

    def procedure(self, operation: MachineOperation) -> Procedure:
        kind = OperationKind(operation.spec.operation_kind)
        if kind not in PROCEDURES:
            raise Refusal(reasons.UNSUPPORTED_OPERATION, f"metalman does not support {kind}")
        if kind in NETBOOT_PROCEDURES and not self._netboot and operation.status.execution is None:
            raise Refusal(reasons.UNSUPPORTED_OPERATION, NO_NETBOOT)
        machine, is_power = operation.spec.machine_ref or "", kind in power.PROCEDURES
        by_events = is_power and self._events.arrive(machine)
        return _procedure_of(
            kind,
            frozenset(operation.spec.parameters.items()),
            attempts=self._attempts,
            longest_pause_s=self._poll_s,
            by_media=kind in NETBOOT_PROCEDURES and self._media.is_used(machine, operation.metadata.uid),
            by_events=by_events,
            first_pauses_s=self._first_pauses_s(operation) if is_power and not by_events else (),
        )

    def _first_pauses_s(self, operation: MachineOperation) -> tuple[float, ...]:
        """Return the first pauses between two observations of the power, in the operation's stage."""
        stage = operation.status.targets[0].stage if operation.status.targets else ""
        action, _fact = power.EFFECTS.get(stage or "", ("", None))
        return self._read_times.first_pauses(operation.spec.machine_ref or "", action)

    def endpoint(self, machine: Machine) -> str:
        redfish = redfish_of(machine)
        return f"{redfish.url} Systems/{redfish.device_id}"

    def concurrency_group(self, machine: Machine) -> str:  # noqa: ARG002  # each has a BMC of its own
        return ""

    def target_digest(self, machine: Machine) -> str:
        return binding_of(machine)

    def claim_gate(self, operation: MachineOperation, machine: Machine) -> Gate | None:
        return None if self._sharing is None else self._sharing.claim_gate(operation, machine)

    def observation_key(self, operation: MachineOperation, machine: Machine) -> object:
        if operation.spec.operation_kind not in NETBOOT_PROCEDURES:
            return None
        return replace_observation.observed_parts(machine)

    async def observe(self, target: Target) -> Observation:
        if target.operation.spec.operation_kind in NETBOOT_PROCEDURES:
            target = _as_booted(target)
            if target.operation.spec.operation_kind == OperationKind.HOST_ERASE:
                return await self._observe_erase(target)
            observation = await self._observe_netboot(target)
            boot = target.operation.metadata.uid
            erased = replace_observation.erasure_evidence(target.machine, boot, requester(target.operation))
            others = (
                *replace_observation.acceptance_evidence(target.machine, boot),
                *replace_observation.rescue_evidence(target.machine, boot),
            )
            return dataclasses.replace(observation, evidence=(*erased, *others))
        if target.operation.spec.operation_kind in BMC_PROCEDURES:
            return await self._observe_bmc(target)
        began_at = loop_time()
        state = await self._system(target)
        where, fact = _system_path(target.machine, state), power.BmcPowerFact(state.power.value)
        action, effect = power.EFFECTS.get(target.run.stage, ("", None))
        self._read_times.read(
            target.machine.name, state.model, action, began_at, loop_time(), is_effective=fact is effect
        )
        return Observation(fact, detail=_power_text(where, state), where=where)

    async def _observe_bmc(self, target: Target) -> Observation:
        is_rotation = target.operation.spec.operation_kind == OperationKind.BMC_ROTATE_PASSWORD
        if is_rotation:
            await self._check_rotation(target)
        access = await self._account(target.machine)
        operation, run, bmc, url = target.operation, target.run, self._pool.bmc(access), access.url
        try:
            if operation.spec.operation_kind == OperationKind.FIRMWARE_UPDATE:
                return await firmware_update.observe(operation, run, bmc, url, target.machine)
            if is_rotation:
                return await password_rotation.observe(run, bmc, access)
            return await bmc_reset.observe(run, bmc, url)
        except Rejected as error:
            raise await self._refusal(target.machine, access, error) from error

    async def _check_rotation(self, target: Target) -> None:
        """Let the Secret be read anew.

        Before anything is stored, no other Machine may depend on it. Afterwards, it must keep both passwords.
        """
        self._access.forget(redfish_of(target.machine).password_ref)
        if target.run.stage in ("", password_rotation.READING_ACCOUNT) and self._sharing is not None:
            check_conflict(target.machine, self._sharing.machines())
        if target.run.stage in (password_rotation.SETTING, password_rotation.PROMOTING):
            await self._passwords.keep_next(target.machine)

    async def _observe_erase(self, target: Target) -> Observation:
        """Observe a HostErase. Until the host is shut down, its Node must not exist, or be drained.

        In the end, the Machine is read anew: the message must not call a disk untouched that has been begun.
        """
        stage = target.run.stage or replace_table.WAITING_IMAGE
        if stage == replace_table.WAITING_IMAGE:
            await check_drained(self._api, target.machine)
        if stage in replace_table.RESTORING_STAGES:
            target = dataclasses.replace(target, machine=await self._api.get(MACHINES, target.machine.name))
        records = replace_observation.erasures_of(target.machine, target.operation.metadata.uid)
        observation = await self._observe_netboot(target)
        evidence = replace_observation.erase_evidence(records, requester(target.operation))
        return dataclasses.replace(observation, evidence=evidence, erasures=records)

    async def _observe_netboot(self, target: Target) -> Observation:
        """Observe a network boot: the servers' reports decide first; the BMC is read only if its power matters."""
        snapshot = self._snapshot(target)
        is_replace = target.operation.spec.operation_kind == OperationKind.HOST_REPLACE
        if snapshot.stage == replace_table.WAITING_IMAGE:
            if boots_by_media(target.machine):
                self._media.urls()
            if refusal := await self._plan_refusal(target.machine, installs=is_replace):
                raise refusal
            if is_replace and replace_observation.is_image_ready(target.machine):
                await self._check_profile(target.machine)
        # undoing must not be reported complete on outdated data
        if replace_table.fact_source(snapshot.stage) is replace_table.FactSource.UNDOING:
            snapshot = dataclasses.replace(snapshot, machine=await self._api.get(MACHINES, target.machine.name))
        fact, words = replace_observation.boot_fact(snapshot), replace_observation.boot_text(snapshot)
        boot_id = (
            replace_observation.node_identity(snapshot.node)
            if replace_table.is_before_boot(snapshot.stage)
            else target.run.boot_id
        )
        if fact is not None and not replace_table.needs_power(snapshot.stage, fact):
            return Observation(
                fact,
                words,
                replace_observation.boot_evidence(snapshot),
                boot_id=boot_id,
                progress=replace_observation.progress_of(snapshot),
            )
        try:
            state = await self._system(target)
            has_media = await self._has_media(target, snapshot.stage)
        except Failure as error:
            if not replace_table.is_independent_of_power(snapshot.stage):
                raise
            return Observation(
                fact or ReplaceFact.UNSETTLED,
                f"{error}; {words}",
                replace_observation.boot_evidence(snapshot),
                boot_id=boot_id,
            )
        where = _system_path(target.machine, state)
        if fact is None:
            armed = replace_observation.is_armed(snapshot, state.boot, state.boot_targets, has_media=has_media)
            fact = replace_observation.power_fact(snapshot.stage, state.power, armed=armed)
            if snapshot.stage in replace_table.RESTORING_STAGES:
                was_on = inspect_stages.WAS_ON in {one.what for one in target.run.evidence}
                begun = is_begun(replace_observation.erasures_of(snapshot.machine, snapshot.boot))
                fact = replace_observation.restored(fact, was_on=was_on and not begun)
        elif state.power is BmcPowerState.OFF:
            fact = ReplaceFact.WRITTEN_OFF
        shown = f"{_power_text(where, state)}, {_override_text(state)}; {words}"
        aside = (
            "" if replace_table.is_clearing(snapshot.stage) else missing_target(snapshot.machine, state.boot_targets)
        )
        return Observation(
            fact, shown, where, boot_id=boot_id, progress=replace_observation.progress_of(snapshot) or aside
        )

    async def _plan_refusal(self, machine: Machine, *, installs: bool) -> Refusal | None:
        """Return why a Machine cannot be booted as its spec is; None if it can.

        The Machine is read anew before a refusal: the watch of operations may be ahead of that of Machines.
        """
        found = image_refusal(machine, installs=installs) or network_refusal(machine, installs=installs)
        if found is None:
            return None
        live = await self._api.get(MACHINES, machine.name)
        return image_refusal(live, installs=installs) or network_refusal(live, installs=installs)

    async def _check_profile(self, machine: Machine) -> None:
        """Refuse a profile that the Machine's image cannot be installed by, before the host is shut down."""
        if not boots_signed_image(machine) or not (name := profile_name(machine)):
            return
        with contextlib.suppress(NotFound):  # it may exist until the installer reports, as for other images
            if refusal := profile_refusal(machine, await self._api.get(MACHINE_PROFILES, name)):
                raise refusal

    async def _has_media(self, target: Target, stage: str) -> bool:
        """Return whether the image that the host is to boot from is in the drive; True for a boot from the network.

        The drive is read only where that decides.
        """
        if not boots_by_media(target.machine):
            return True
        if stage != replace_table.WAITING_IMAGE and stage not in replace_table.SETTING_STAGES:
            return False
        access = await self._account(target.machine)
        try:
            return await self._media.is_inserted(target.machine, target.operation.metadata.uid, self._pool.bmc(access))
        except Rejected as error:
            raise await self._refusal(target.machine, access, error) from error

    def _snapshot(self, target: Target) -> replace_observation.ReplaceState:
        machine, run = target.machine, target.run
        node = self._nodes.get(replace_observation.node_name(machine)) if self._nodes is not None else None
        return replace_observation.ReplaceState(
            run.stage or replace_table.WAITING_IMAGE, target.operation.metadata.uid, machine, node, run.boot_id
        )

    async def perform(self, target: Target, action: str, *, before: float) -> str | None:
        if target.operation.spec.operation_kind in NETBOOT_PROCEDURES:
            target = _as_booted(target)
        if self._sharing is not None:
            await self._sharing.check(target.machine)
        if action == password_rotation.SET:  # exactly what the Secret has now
            self._access.forget(redfish_of(target.machine).password_ref)
        access = await self._access.of(target.machine)
        bmc = self._pool.bmc(access)
        self._readings.forget(target.machine)
        try:
            accepted = await self._acted(target, bmc, action, before)
        except TaskFailed as error:
            raise NotDone(TASK_FAILED, str(error)) from error
        except (PasswordRejected, CertificateUntrusted) as error:  # nothing was sent: wait for the user's correction
            refusal = await self._refusal(target.machine, access, error)
            raise NotDone(refusal.reason, str(refusal)) from error
        except Rejected as error:
            raise await self._refusal(target.machine, access, error) from error
        facts = {"machine": target.machine.name, "desired": action}
        if isinstance(accepted, ResetAcceptance):
            self._read_times.accepted(target.machine.name, action, loop_time())
            if accepted.note:  # else the engine's line says as much
                log.info("power accepted", **facts, sent=accepted.sent, note=accepted.note)
            return None
        log.info("action accepted", **facts)
        return accepted

    async def _acted(self, target: Target, bmc: PooledBmc, action: str, before: float) -> ResetAcceptance | str | None:
        """Execute an action; the BMC is observed soon after one that failed."""
        try:
            return await self._act(target, bmc, action, before)
        except Failure:
            self._events.failed(target.machine.name)
            self._read_times.failed(target.machine.name)
            raise

    async def _act(self, target: Target, bmc: PooledBmc, action: str, before: float) -> ResetAcceptance | str | None:
        """Execute an action; return the accepted reset, or the handle of a long call, if it was one."""
        order, once, stays = self._boot_override, BootEnabled.ONCE, BootEnabled.CONTINUOUS
        action = await self._prepare_media(target, bmc, action, before)
        match action:
            case replace_table.BOOT_ONCE:
                await order.from_network(target, bmc, once, before, is_last=False)
            case replace_table.BOOT_TO_STAY:
                await order.from_network(target, bmc, stays, before, is_last=True)
            case replace_table.CLEAR_BOOT:
                await self._clear(target, bmc, before)
            case firmware_update.UPDATE:
                image, targets = target.operation.spec.parameters[IMAGE_URI], firmware_targets(target.operation)
                return await bmc.update_firmware(image, targets, leave_by=before)
            case bmc_reset.RESTART_BMC:
                await bmc.reset_manager(leave_by=before)
            case password_rotation.STORE:
                user = await bmc.user()
                await self._passwords.store_next(target.machine, user.min_length, user.max_length)
            case password_rotation.PROMOTE:
                await self._passwords.promote_next(target.machine)
            case password_rotation.DISCARD:
                await self._passwords.discard_next(target.machine)
            case password_rotation.SET:
                await self._set_password(bmc, before)
            case _:
                if action == power.SWITCH_ON:
                    await order.from_disk_if_possible(target, bmc, before)
                elif action == replace_table.START and replace_table.is_started_again(
                    target.run.stage, target.run.attempt
                ):
                    await order.from_network_again(target, bmc, replace_table.is_second_round(target.run.stage), before)
                return await bmc.reset(RESETS[action], leave_by=before)
        return None

    async def _prepare_media(self, target: Target, bmc: PooledBmc, action: str, before: float) -> str:
        """Insert the image of a boot from virtual media, or eject it; return the action as that of a network boot.

        The first start needs the image. A later one is made without it, if it has to be.
        """
        boot, action = target.operation.metadata.uid, replace_table.NETWORK_ACTIONS.get(action, action)
        is_again = action == replace_table.START and replace_table.is_started_again(
            target.run.stage, target.run.attempt
        )
        arms = action in (replace_table.BOOT_ONCE, replace_table.BOOT_TO_STAY, replace_table.START) and not is_again
        if arms and boots_by_media(target.machine):
            await self._media.insert(target.machine, boot, bmc, before)
        try:
            if is_again and boots_by_media(target.machine):
                await self._media.insert(target.machine, boot, bmc, before)
            elif action == power.SWITCH_ON and media_boot(target.machine) == boot:
                await self._media.eject(target.machine, boot, bmc, before)
        except (Transient, Unsupported, Uncertain) as error:
            if target.run.attempt <= 1:
                raise NotDone(reasons.NO_ANSWER, f"not started: cannot change its CD drive first: {error}") from error
            log.warning("cannot change the virtual CD drive", error=error, machine=target.machine.name)
        return action

    async def _clear(self, target: Target, bmc: PooledBmc, before: float) -> None:
        """Remove the boot override, and eject the image of the boot; each is tried whatever becomes of the other."""
        boot, failed = target.operation.metadata.uid, None
        try:
            await self._boot_override.from_disk(bmc, before)
        except Failure as error:
            failed = error
        if boots_by_media(target.machine):
            await self._media.eject(target.machine, boot, bmc, before)
        if failed is not None:
            raise failed

    async def _set_password(self, bmc: PooledBmc, before: float) -> None:
        """Set the next password; a refusal by the BMC has a reason of its own, as it alone permits to discard it."""
        try:
            await bmc.set_password(leave_by=before)
        except (PasswordRejected, CertificateUntrusted):  # nothing was sent
            raise
        except Rejected as error:
            raise Refusal(NEW_PASSWORD_REFUSED, str(error)) from error

    async def _system(self, target: Target) -> SystemState:
        machine = target.machine
        access = await self._account(machine)
        try:
            state = await self._pool.bmc(access).system()
        except Failure as error:
            self._events.failed(machine.name)
            if isinstance(error, Rejected):
                raise await self._refusal(machine, access, error) from error
            raise
        self._boot_override.record(machine, state)
        self._readings.record(machine, state, awaits_effect=target.run.action is not None)
        self._events.record(machine.name, state.power)
        if self._recorder is not None:
            self._recorder.observed(target.operation, machine, state.consoles)
        return state

    async def _account(self, machine: Machine) -> BmcAccount:
        try:
            return await self._access.of(machine)
        except InvalidBmcUrl as error:
            raise Refusal(ADDRESS_INVALID, str(error)) from error

    async def _refusal(self, machine: Machine, access: BmcAccount, error: Rejected) -> Refusal | NotDone:
        """Map an error of the BMC to a reason that users can script against, with a remedy."""
        match error:
            case Refusal():
                return error
            case InvalidBmcUrl():
                return Refusal(ADDRESS_INVALID, str(error))
            case PasswordRejected():
                if await self._access.refused(machine, access):
                    return NotDone(CREDENTIALS_REFUSED, f"{error}; Secret {access.secret} has changed since")
                return Refusal(CREDENTIALS_REFUSED, f"{error}; correct Secret {access.secret}")
            case CertificateChanged():
                remedy = f"if the change is expected, clear status.redfish.certFingerprint of Machine {machine.name}"
                return Refusal(CERTIFICATE_CHANGED, f"{error}; {remedy}, and metalman pins the new certificate")
            case CertificateUntrusted():
                return Refusal(CERTIFICATE_UNTRUSTED, f"{error}; correct spec.pxe.redfish.caBundle")
            case _:
                return Refusal(BMC_REFUSED, str(error))


def _as_booted(target: Target) -> Target:
    return dataclasses.replace(target, machine=as_booted(target.machine, target.operation.metadata.uid))


def _system_path(machine: Machine, state: SystemState) -> str:
    return f"{redfish_of(machine).url} Systems/{state.device_id}"


def _power_text(where: str, state: SystemState) -> str:
    return f"{where} reports PowerState {state.power_text}" if state.power_text else f"{where} reports no PowerState"


def _override_text(state: SystemState) -> str:
    boot = state.boot
    if boot is not None and boot.enabled == BootEnabled.DISABLED:
        return "boot override Disabled"
    shown = " ".join(part for part in (boot.enabled, boot.target) if part) if boot is not None else ""
    return f"boot override {shown}" if shown else "no boot override"
