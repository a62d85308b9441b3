"""Uses of a BMC, the checks that each needs, and the grades. Pure: results in, grades out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class CheckName(StrEnum):
    SERVICE_ROOT = "service-root"
    SESSIONS = "sessions"
    SYSTEM = "system"
    POWER_STATE = "power-state"
    RESET = "reset"
    GRACEFUL_SHUTDOWN = "graceful-shutdown"
    BOOT_OVERRIDE = "boot-override"
    BOOT_PXE = "boot-pxe"
    BOOT_HTTP = "boot-uefi-http"
    BOOT_CD = "boot-cd"
    BOOT_WRITE = "boot-override-write"
    VIRTUAL_MEDIA = "virtual-media"
    PROCESSORS = "processors-memory"
    DISKS = "disks"
    NICS = "nics"
    FIRMWARE = "firmware-inventory"
    POWER_SUPPLIES = "power-supplies"
    EVENT_STREAM = "event-stream"
    MANAGER_RESET = "manager-reset"
    ACCOUNT = "account"
    SIMPLE_UPDATE = "simple-update"
    SERIAL_CONSOLE = "serial-console"


class Verdict(StrEnum):
    WORKS = "works"
    NOT_OFFERED = "not offered"
    DEVIATES = "deviates"
    NOT_TESTED = "not tested"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one check.

    Args:
        words: the BMC's values or message, for people.
        seconds: time of its requests.
    """

    name: CheckName
    verdict: Verdict
    words: str = ""
    seconds: float = 0.0


class Use(StrEnum):
    REBOOT = "HostReboot"
    PXE = "HostReplace by PXE"
    HTTP = "HostReplace by UEFI HTTP"
    MEDIA = "HostReplace by virtual media"
    INSPECTION = "inspection"
    EVENTS = "events"
    BMC_RESET = "restart of the BMC"
    PASSWORD = "rotation of the password"  # noqa: S105 - a name
    UPDATE = "firmware update"
    CONSOLE = "serial console"


class Grade(StrEnum):
    """Grade of one use of a BMC; A is the best."""

    A = "A"  # all checks work
    B = "B"  # the required checks work; a check that helps does not
    C = "C"  # a required check deviates
    F = "F"  # the BMC does not offer what a required check needs, or its system cannot be read


OVERALL: Final[Mapping[Grade, str]] = {
    Grade.A: "reboots and an install work, and all other uses",
    Grade.B: "reboots and an install work, with limits or without some of the other uses",
    Grade.C: "a reboot, or each way to install, meets a deviation",
    Grade.F: "a reboot, or each way to install, lacks what it needs",
}


@dataclass(frozen=True, slots=True)
class Needs:
    required: tuple[CheckName, ...]
    helps: tuple[CheckName, ...] = ()


N = CheckName
_POWER: Final = (N.SYSTEM, N.POWER_STATE, N.RESET)
_BOOT: Final = (*_POWER, N.BOOT_OVERRIDE, N.BOOT_WRITE)
_POLITE: Final = (N.GRACEFUL_SHUTDOWN, N.SESSIONS, N.SERVICE_ROOT)
NEEDS: Final[Mapping[Use, Needs]] = {
    Use.REBOOT:     Needs(_POWER, _POLITE),
    Use.PXE:        Needs((*_BOOT, N.BOOT_PXE), _POLITE),
    Use.HTTP:       Needs((*_BOOT, N.BOOT_HTTP), _POLITE),
    Use.MEDIA:      Needs((*_BOOT, N.BOOT_CD, N.VIRTUAL_MEDIA), _POLITE),
    Use.INSPECTION: Needs((N.SYSTEM, N.PROCESSORS, N.DISKS, N.NICS), (N.FIRMWARE, N.POWER_SUPPLIES)),
    Use.EVENTS:     Needs((N.SYSTEM, N.EVENT_STREAM)),
    Use.BMC_RESET:  Needs((N.MANAGER_RESET,)),
    Use.PASSWORD:   Needs((N.ACCOUNT,)),
    Use.UPDATE:     Needs((N.SIMPLE_UPDATE,), (N.FIRMWARE,)),
    Use.CONSOLE:    Needs((N.SYSTEM, N.SERIAL_CONSOLE)),
}  # fmt: skip
INSTALLS: Final = (Use.PXE, Use.HTTP, Use.MEDIA)


@dataclass(frozen=True, slots=True)
class UseGrade:
    """Grade of one use, with the checks that lower it."""

    use: Use
    grade: Grade
    because: tuple[CheckName, ...] = ()


@dataclass(frozen=True, slots=True)
class Grades:
    overall: Grade
    uses: tuple[UseGrade, ...]


def uses_of(name: CheckName) -> tuple[Use, ...]:
    """Return the uses that need a check, those that require it first."""
    required = tuple(use for use, needs in NEEDS.items() if name in needs.required)
    return required + tuple(use for use, needs in NEEDS.items() if name in needs.helps)


def grade_bmc(results: Iterable[CheckResult]) -> Grades:
    """Grade each use, and the BMC.

    The BMC has the worse grade of HostReboot and of its best way to install. An A needs an A or B of all other uses.
    The other ways to install do not count, nor does the serial console, which no operation needs.
    """
    verdicts = {result.name: result.verdict for result in results}
    uses = tuple(_grade_use(use, needs, verdicts) for use, needs in NEEDS.items())
    grades = {each.use: each.grade for each in uses}
    core = _worst((grades[Use.REBOOT], _best(grades[use] for use in INSTALLS)))
    others = _worst(grade for use, grade in grades.items() if use not in (Use.REBOOT, Use.CONSOLE, *INSTALLS))
    return Grades(Grade.B if core is Grade.A and others in (Grade.C, Grade.F) else core, uses)


def _grade_use(use: Use, needs: Needs, verdicts: Mapping[CheckName, Verdict]) -> UseGrade:
    """Grade one use. A check that was not tested does not count."""
    for verdict, names, grade in (
        (Verdict.NOT_OFFERED, needs.required, Grade.F),
        (Verdict.DEVIATES, tuple(name for name in needs.required if name is CheckName.SYSTEM), Grade.F),
        (Verdict.DEVIATES, needs.required, Grade.C),
        (Verdict.NOT_OFFERED, needs.helps, Grade.B),
        (Verdict.DEVIATES, needs.helps, Grade.B),
    ):
        if because := tuple(name for name in names if verdicts.get(name) is verdict):
            return UseGrade(use, grade, because)
    return UseGrade(use, Grade.A)


def _worst(grades: Iterable[Grade]) -> Grade:
    return max(grades)  # the letters sort from the best to the worst


def _best(grades: Iterable[Grade]) -> Grade:
    return min(grades)
