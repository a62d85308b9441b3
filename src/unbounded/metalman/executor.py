"""metalman as an executor of host operations: observing and asking over Redfish; what to do is decided in `power`."""

from __future__ import annotations

from typing import Final

from unbounded.api.conditions import ConditionReason, ConditionType, find_condition, set_condition
from unbounded.api.failures import Failure, Rejected, Transient, Uncertain
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.kube.clock import WallClock, rfc3339, utc_now
from unbounded.kube.logs import Log
from unbounded.kube.port import Api
from unbounded.metalman import power
from unbounded.metalman.access import BmcAccess, binding_of, redfish_of
from unbounded.metalman.reasons import (
    ADDRESS_INVALID,
    BMC_REFUSED,
    CERTIFICATE_CHANGED,
    CERTIFICATE_UNTRUSTED,
    CREDENTIALS_REFUSED,
    TASK_FAILED,
)
from unbounded.metalman.redfish.failures import (
    AnswerLost,
    CertificateChanged,
    CertificateUntrusted,
    Misaddressed,
    PasswordRefused,
    TaskFailed,
    Unsupported,
)
from unbounded.metalman.redfish.pool import Bmc, BmcPool
from unbounded.metalman.redfish.ports import Access, BootEnabled, BootOverride, BootTarget, ResetType, SystemState
from unbounded.operations import reasons
from unbounded.operations.ownership import Executor, executor_of
from unbounded.operations.ports import NotDone, Refusal, Target
from unbounded.operations.procedure import Procedure, Sight

RESETS: Final = {
    power.SHUT_DOWN: ResetType.GRACEFUL_SHUTDOWN,
    power.SWITCH_OFF: ResetType.FORCE_OFF,
    power.SWITCH_ON: ResetType.ON,
}

log = Log("metalman")


class RedfishExecutor:
    """The host operations of one site's bare metal."""

    def __init__(self, api: Api, pool: BmcPool, access: BmcAccess, *, site: str = "", now: WallClock = utc_now) -> None:
        self._api = api
        self._pool = pool
        self._access = access
        self._site = site
        self._now = now
        self._boot: dict[str, BootOverride | None] = {}  # by UID of the Machine, as it was read last

    @property
    def name(self) -> str:
        return "/".join(part for part in (Executor.METALMAN, self._site) if part)

    @property
    def call_limit_s(self) -> float:
        return self._pool.limits.act_s

    def claims(self, kind: OperationKind, machine: Machine) -> bool:
        return machine.site == self._site and executor_of(kind, machine) is Executor.METALMAN

    def procedure(self, operation: MachineOperation) -> Procedure:
        kind = OperationKind(operation.spec.operation_kind)
        if kind not in power.PROCEDURES:
            raise Refusal(reasons.UNSUPPORTED_OPERATION, f"metalman does not carry out {kind} yet")
        return power.PROCEDURES[kind](operation)

    def place(self, machine: Machine) -> str:
        redfish = redfish_of(machine)
        return f"{redfish.url} Systems/{redfish.device_id}"

    def binding(self, machine: Machine) -> str:
        return binding_of(machine)

    async def observe(self, target: Target) -> Sight:
        state = await self._system(target.machine)
        self._boot[target.machine.metadata.uid] = state.boot
        where = f"{redfish_of(target.machine).url} Systems/{state.device_id}"
        shown = f"PowerState {state.power_text}" if state.power_text else "no PowerState"
        return Sight(fact=power.Power(state.power.value), detail=f"{where} shows {shown}", where=where)

    async def perform(self, target: Target, action: str, *, before: float) -> None:
        access = await self._access.of(target.machine)
        bmc = self._pool.bmc(access)
        try:
            if action == power.SWITCH_ON:
                await self._boot_from_disk(target, bmc, before)
            accepted = await bmc.reset(RESETS[action], leave_by=before)
        except TaskFailed as error:
            raise NotDone(TASK_FAILED, str(error)) from error
        except (PasswordRefused, CertificateUntrusted) as error:  # nothing was sent: wait for somebody to correct it
            refusal = await self._refusal(target.machine, access, error)
            raise NotDone(refusal.reason, str(refusal)) from error
        except Rejected as error:
            raise await self._refusal(target.machine, access, error) from error
        log.info("power accepted", machine=target.machine.name, wanted=action, sent=accepted.sent, note=accepted.note)

    async def _system(self, machine: Machine) -> SystemState:
        try:
            access = await self._access.of(machine)
        except Misaddressed as error:
            raise Refusal(ADDRESS_INVALID, str(error)) from error
        try:
            return await self._pool.bmc(access).system()
        except Rejected as error:
            raise await self._refusal(machine, access, error) from error

    async def _refusal(self, machine: Machine, access: Access, error: Rejected) -> Refusal | NotDone:
        """The BMC's no, as a reason that users can script against, and what they can do about it."""
        match error:
            case Refusal():
                return error
            case Misaddressed():
                return Refusal(ADDRESS_INVALID, str(error))
            case PasswordRefused():
                if await self._access.refused(machine, access):
                    return NotDone(CREDENTIALS_REFUSED, f"{error}; Secret {access.secret} has changed since")
                return Refusal(CREDENTIALS_REFUSED, f"{error}; correct Secret {access.secret}")
            case CertificateChanged():
                remedy = f"if it may: clear status.redfish.certFingerprint of Machine {machine.name}"
                return Refusal(CERTIFICATE_CHANGED, f"{error}; {remedy}, and the new one is pinned")
            case CertificateUntrusted():
                return Refusal(CERTIFICATE_UNTRUSTED, f"{error}; correct spec.pxe.redfish.caBundle")
            case _:
                return Refusal(BMC_REFUSED, str(error))

    async def _boot_from_disk(self, target: Target, bmc: Bmc, before: float) -> None:
        """A host that nobody wants to boot from the network starts from its disk; a BMC that cannot do it is noted.

        Raises:
            NotDone: it was not possible just now; at the first attempt only, as a host that is wanted on comes first.
        """
        boot = self._boot.get(target.machine.metadata.uid)
        if boot is not None and _boots_from_disk(boot):
            return
        trouble = ""
        try:
            kept = await bmc.disable_boot_override(leave_by=before)
            if not _boots_from_disk(kept):
                trouble = (
                    f"the BMC took a change of its boot override and shows {kept.enabled} {kept.target} all the same"
                )
        except (Transient, AnswerLost) as error:
            if target.run.attempt <= 1:
                raise NotDone(reasons.NO_ANSWER, f"not started before its boot override is cleared: {error}") from error
            log.warning("boot override not cleared", error=error, machine=target.machine.name)
            return
        except (Unsupported, Uncertain) as error:
            trouble = str(error)
        await self._note_boot_order(target.machine, trouble)

    async def _note_boot_order(self, machine: Machine, trouble: str) -> None:
        """Say that the BMC cannot set a boot order; that it can is said only where the opposite stood."""
        raw = await self._api.get(MACHINES.raw(), machine.name)
        before = raw.get("status", {}).get("conditions", ())
        kind = ConditionType.BOOT_ORDER_CONFIG_SUPPORTED
        if not trouble and find_condition(before, kind) is None:
            return
        status, reason = ("False", ConditionReason.NOT_SUPPORTED) if trouble else ("True", ConditionReason.SUPPORTED)
        conditions = set_condition(before, kind, status, reason, trouble, rfc3339(self._now()))
        if conditions is None:
            return
        patch = {
            "metadata": {"resourceVersion": raw["metadata"]["resourceVersion"]},
            "status": {"conditions": conditions},
        }
        try:
            await self._api.patch(MACHINES, machine.name, patch, subresource="status")
        except Failure as error:
            log.warning("boot order not noted", error=error, machine=machine.name)


def _boots_from_disk(boot: BootOverride) -> bool:
    unset = boot.enabled in (None, BootEnabled.DISABLED)
    return unset or (boot.enabled, boot.target) == (BootEnabled.CONTINUOUS, BootTarget.HDD)
