"""The check that writes: set the boot override for the next boot, read it back, and restore it.

The power is never changed. Once begun, the restoration is completed even if the user interrupts the command.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from unbounded.api.failures import Failure
from unbounded.metalman.redfish.client import RedfishClient
from unbounded.metalman.redfish.ports import BootEnabled, BootOverride, BootTarget, SystemState, clean
from unbounded.metalman.redfish.session import complete_despite_cancel

RESTORE_S: Final = 60.0
TARGETS: Final = (BootTarget.PXE, BootTarget.UEFI_HTTP, BootTarget.CD)


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
