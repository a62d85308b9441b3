"""Findings of a preflight, its verdict, and its output as text and JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import msgspec

ALL: Final = "all"
CHECKS: Final = (
    "agent-config",
    "is-privileged-user",
    "host-packages",
    "host-os-configuration",
    "kernel-parameters",
    "nspawn-runtime",
    "docker-active",
    "swap-active",
    "disk-space",
    "cgroups",
    "nvidia-driver",
    "attestation",
    "api-server-reachable",
    "oci-image-reachable",
    "kubernetes-artifacts",
    "cri-artifacts",
    "cni-artifacts",
    "nspawn-machine-provisioning",
)
_COLOURS: Final = {"ok": "32", "warning": "33", "error": "31"}


class Severity(StrEnum):
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True)
class PreflightFinding:
    """Result of one check for one target.

    Args:
        name: of the check, one of CHECKS.
        target: checked thing, such as `/var/lib` or `Kubelet.ApiServer`; never an address.
        message: fault and remedy; for `ok`, the observed state.
        ignored: an error that the user chose to ignore.
    """

    name: str
    target: str
    severity: Severity
    message: str
    ignored: bool = False


def fine(name: str, target: str, message: str) -> PreflightFinding:
    return PreflightFinding(name, target, Severity.OK, message)


def warning(name: str, target: str, message: str) -> PreflightFinding:
    return PreflightFinding(name, target, Severity.WARNING, message)


def error(name: str, target: str, message: str) -> PreflightFinding:
    return PreflightFinding(name, target, Severity.ERROR, message)


@dataclass(frozen=True)
class IgnoredChecks:
    """The checks whose errors do not count."""

    names: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, text: str) -> IgnoredChecks:
        """Parse check names separated by commas, or `all`.

        Raises:
            ValueError: there is no such check.
        """
        names = {name.strip() for name in text.split(",")} - {""}
        if ALL in names:
            return cls(frozenset(CHECKS))
        if unknown := sorted(names - {*CHECKS}):
            raise ValueError(f"unknown checks: {', '.join(unknown)}; available: {', '.join(CHECKS)}, and {ALL}")
        return cls(frozenset(names))


@dataclass(frozen=True)
class PreflightReport:
    """Findings in the order of CHECKS; those that the user ignores are marked."""

    findings: tuple[PreflightFinding, ...]
    fail_on_warnings: bool = False

    @property
    def failed(self) -> bool:
        return any(self.counts(one) for one in self.findings)

    def counts(self, finding: PreflightFinding) -> bool:
        """Return whether this finding makes the preflight fail."""
        if finding.severity is Severity.WARNING:
            return self.fail_on_warnings and not finding.ignored
        return finding.severity is Severity.ERROR

    def reasons(self) -> str:
        """Return why the preflight failed, in one line."""
        return "; ".join(f"{one.name}: {one.message}" for one in self.findings if self.counts(one))


def report(
    findings: Iterable[PreflightFinding], ignored: IgnoredChecks, *, fail_on_warnings: bool = False
) -> PreflightReport:
    """Return the report, with ignored errors as warnings that are marked."""

    def judged(one: PreflightFinding) -> PreflightFinding:
        if one.severity is Severity.ERROR and one.name in ignored.names:
            return replace(one, severity=Severity.WARNING, ignored=True)
        return one

    ordered = sorted(findings, key=lambda one: CHECKS.index(one.name))
    return PreflightReport(tuple(judged(one) for one in ordered), fail_on_warnings)


def as_json(preflight: PreflightReport) -> str:
    """Return {status, checks, summary} as one indented document."""
    counted = _summary(preflight.findings)
    document = {
        "status": "failed" if preflight.failed else "ok",
        "checks": [
            {
                "name": one.name,
                "target": one.target,
                "severity": one.severity,
                "message": one.message,
                "ignored": one.ignored,
            }
            for one in preflight.findings
        ],
        "summary": {
            "ok": counted[Severity.OK],
            "warnings": counted[Severity.WARNING],
            "errors": counted[Severity.ERROR],
        },
    }
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def as_text(preflight: PreflightReport, *, colour: bool = False) -> str:
    """Return a line for each finding, and a summary line."""
    counted = _summary(preflight.findings)
    lines = [_line(one, colour=colour) for one in preflight.findings]
    verdict = "this host cannot become a node yet" if preflight.failed else "this host can become a node"
    numbers = f"{counted[Severity.ERROR]} errors, {counted[Severity.WARNING]} warnings, {counted[Severity.OK]} ok"
    return "\n".join([*lines, f"{numbers}: {verdict}"])


def _line(one: PreflightFinding, *, colour: bool) -> str:
    word = one.severity.upper()
    if colour:
        word = f"\033[{_COLOURS[one.severity]}m{word}\033[0m"
    ignored = " (ignored error)" if one.ignored else ""
    return f"[{word} {one.name}] {one.target}: {one.message}{ignored}"


def _summary(findings: Sequence[PreflightFinding]) -> Counter[Severity]:
    return Counter(one.severity for one in findings)
