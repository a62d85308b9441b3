"""metalman as an executor of host operations: observing and asking over Redfish; what to do is decided in `power`."""

from __future__ import annotations

from typing import Final

from unbounded.api.conditions import ConditionType, find_condition, set_condition
from unbounded.api.failures import Failure, Rejected
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.kube.clock import WallClock, rfc3339, utc_now
from unbounded.kube.logs import Log
from unbounded.kube.port import Api
from unbounded.metalman import power
from unbounded.metalman.access import CREDENTIALS_REFUSED, BmcAccess, binding_of, redfish_of
from unbounded.metalman.redfish.failures import CertificateChanged, CertificateUntrusted, PasswordRefused, Unsupported
from unbounded.metalman.redfish.pool import Bmc, BmcPool
from unbounded.metalman.redfish.ports import Access, BootEnabled, BootOverride, BootTarget, ResetType, SystemState
from unbounded.operations import reasons
from unbounded.operations.ownership import Executor, executor_of
from unbounded.operations.ports import Refusal, Target
from unbounded.operations.procedure import Procedure, Sight

CERTIFICATE_CHANGED: Final = "CertificateChanged"
CERTIFICATE_UNTRUSTED: Final = "CertificateUntrusted"
BMC_REFUSED: Final = "BMCRefused"

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

    def binding(self, machine: Machine) -> str:
        return binding_of(machine)

    async def observe(self, target: Target) -> Sight:
        state = await self._system(target.machine)
        self._boot[target.machine.metadata.uid] = state.boot
        return Sight(
            fact=power.Power(state.power.value),
            detail=f"PowerState is {state.power_text or 'not told'}",
            where=f"{redfish_of(target.machine).url} Systems/{state.device_id}",
        )

    async def perform(self, target: Target, action: str, *, before: float) -> None:
        access = await self._access.of(target.machine)
        bmc = self._pool.bmc(access)
        try:
            if action == power.SWITCH_ON:
                await self._boot_from_disk(target.machine, bmc, before)
            accepted = await bmc.reset(RESETS[action], leave_by=before)
        except Rejected as error:
            raise await self._refusal(target.machine, access, error) from error
        log.info("power accepted", machine=target.machine.name, wanted=action, sent=accepted.sent, note=accepted.note)

    async def _system(self, machine: Machine) -> SystemState:
        access = await self._access.of(machine)
        try:
            return await self._pool.bmc(access).system()
        except Rejected as error:
            raise await self._refusal(machine, access, error) from error

    async def _refusal(self, machine: Machine, access: Access, error: Rejected) -> Refusal:
        """The BMC's no, as a reason that users can script against."""
        match error:
            case Refusal():
                return error
            case PasswordRefused():
                await self._access.refused(machine, access)
                return Refusal(CREDENTIALS_REFUSED, str(error))
            case CertificateChanged():
                return Refusal(CERTIFICATE_CHANGED, str(error))
            case CertificateUntrusted():
                return Refusal(CERTIFICATE_UNTRUSTED, str(error))
            case _:
                return Refusal(BMC_REFUSED, str(error))

    async def _boot_from_disk(self, machine: Machine, bmc: Bmc, before: float) -> None:
        """A host that nobody wants to boot from the network starts from its disk; a BMC that cannot do it is noted."""
        boot = self._boot.get(machine.metadata.uid)
        if boot is not None and _boots_from_disk(boot):
            return
        try:
            await bmc.disable_boot_override(leave_by=before)
        except Unsupported as error:
            await self._note_boot_order(machine, supported=False, text=str(error))
        except Failure as error:
            log.warning("boot override not cleared", error=error, machine=machine.name)
        else:
            await self._note_boot_order(machine, supported=True, text="")

    async def _note_boot_order(self, machine: Machine, *, supported: bool, text: str) -> None:
        """Say that the BMC cannot set a boot order; that it can is said only where the opposite stood."""
        raw = await self._api.get(MACHINES.raw(), machine.name)
        before = raw.get("status", {}).get("conditions", ())
        kind, reason = ConditionType.BOOT_ORDER_CONFIG_SUPPORTED, "Supported" if supported else "NotSupported"
        if supported and find_condition(before, kind) is None:
            return
        now = rfc3339(self._now())
        conditions = set_condition(before, kind, "True" if supported else "False", reason, text, now)
        if conditions is not None:
            version = {"resourceVersion": raw["metadata"]["resourceVersion"]}
            patch = {"metadata": version, "status": {"conditions": conditions}}
            await self._api.patch(MACHINES, machine.name, patch, subresource="status")


def _boots_from_disk(boot: BootOverride) -> bool:
    unset = boot.enabled in (None, BootEnabled.DISABLED)
    return unset or (boot.enabled, boot.target) == (BootEnabled.CONTINUOUS, BootTarget.HDD)
