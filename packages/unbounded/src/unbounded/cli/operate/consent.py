"""Consent to erase disks: the user who gives it, and what is on the disks by the last inspection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from unbounded.api.hardware import DiskFacts, DiskState
from unbounded.api.machine import Machine
from unbounded.api.meta import Kind
from unbounded.cli.plugin.command import CliError
from unbounded.kube.port import Api

REVIEWS: Final[Kind[dict[str, Any]]] = Kind(
    "authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews", dict
)
SHOWN: Final = 10


async def user_name(api: Api) -> str:
    """Return the name of the present user, as the API server knows it."""
    review = await api.create(REVIEWS, {})
    return str(review["status"]["userInfo"]["username"])


def lost_data(machine: Machine, serials: Sequence[str]) -> str:
    """Describe what is on the disks with these serial numbers.

    Raises:
        CliError: a serial number does not identify a disk of the last inspection.
    """
    return "; ".join(_described(_disk(machine, serial)) for serial in serials)


def _disk(machine: Machine, serial: str) -> DiskFacts:
    hardware = machine.status.hardware
    if hardware is None:
        raise CliError(
            f"Machine {machine.name} has not reported its hardware, so nothing is known of its disk {serial}",
            next_step=f"`kubectl unbounded machine inspect {machine.name}` reports what is on its disks",
        )
    found = [disk for disk in hardware.disks if disk.serial_number == serial]
    if len(found) == 1:
        return found[0]
    there = sorted({disk.serial_number for disk in hardware.disks if disk.serial_number})
    words = f"several disks of Machine {machine.name} have" if found else f"no disk of Machine {machine.name} has"
    shown = ", ".join(there[:SHOWN]) or "none"
    raise CliError(
        f"{words} serial number {serial} in the inspection of {hardware.at}; the serial numbers are: {shown}"
    )


def _described(disk: DiskFacts) -> str:
    model = f", {disk.model}" if disk.model else ""
    size = f"{(disk.size_bytes or 0) // 1_000_000} MB"
    return f"disk {disk.serial_number} ({disk.name}, {size}{model}): {_content(disk)}"


def _content(disk: DiskFacts) -> str:
    if disk.state == DiskState.FOREIGN:
        return disk.contents or "data of an unknown kind"
    if disk.state == DiskState.OWN:
        return "this Machine's earlier install"
    return "blank" if disk.state == DiskState.BLANK else "content unknown, as no installer has reported it"
