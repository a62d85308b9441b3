"""One certification from the first request to its results: the page for people, and the profile.

The page is Markdown, readable as it is. The profile has the recorded answers, which the lab's BMC replays.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Final

from unbounded.metalman.bmc_certification.checks import CertifiedBmc, bmc_name, run_checks
from unbounded.metalman.bmc_certification.connection import Connection, RecordedAnswer, connect
from unbounded.metalman.bmc_certification.grades import OVERALL, CheckResult, Grades, Verdict, grade_bmc, uses_of
from unbounded.metalman.bmc_certification.redaction import Redactor
from unbounded.metalman.redfish.bmc_interface import BmcAccount, BmcLimits
from unbounded.metalman.redfish.endpoint import endpoint_of

FORMAT: Final = "unbounded-bmc-profile/v1"


@dataclass(frozen=True, slots=True)
class Certification:
    """Result: grades, page and profile, without secrets."""

    results: tuple[CheckResult, ...]
    grades: Grades
    page: str
    profile: str


async def certify(
    account: BmcAccount,
    *,
    version: str,
    day: date,
    trust_any: bool = False,
    allow_writes: bool = False,
    redact: bool = True,
    limits: BmcLimits | None = None,
) -> Certification:
    """Run all checks against a BMC.

    Raises:
        Failure: the BMC cannot be reached, its certificate is not trusted, it refuses the log-in, or it has no Redfish.
    """
    async with connect(account, trust_any=trust_any, limits=limits) as connection:
        subject = CertifiedBmc(connection, account.username, account.device_id, allow_writes=allow_writes)
        results = await run_checks(subject)
        redactor = _redactor(account, connection, redact=redact)
        if redact:
            results = [replace(result, words=redactor.text(result.words)) for result in results]
        times, slowest = connection.recording.seconds, redactor.text(connection.recording.slowest)
        name = redactor.text(bmc_name(subject))
        head = PageHead(name, version, day, len(times), max(times), slowest, allow_writes, redact)
        profile = profile_of(connection, account.username, redactor if redact else None)
    grades = grade_bmc(results)
    text = json.dumps(profile, indent=1, ensure_ascii=False) + "\n"
    return Certification(tuple(results), grades, render(head, results, grades), text)


def _redactor(account: BmcAccount, connection: Connection, *, redact: bool) -> Redactor:
    """Return a redactor that has learned everything; without `redact` it knows only the secrets."""
    secrets = connection.client.channel.secrets
    if not redact:
        return Redactor(secrets=secrets)
    redactor = Redactor(secrets=secrets, hosts=(endpoint_of(account.url).host,), users=(account.username,))
    learn_recording(redactor, connection)
    return redactor


@dataclass(frozen=True, slots=True)
class PageHead:
    """Facts of the head of a page.

    Args:
        bmc: maker, model and firmware.
        version: of the program that ran the checks.
    """

    bmc: str
    version: str
    day: date
    requests: int
    slowest_s: float
    slowest: str
    allow_writes: bool
    is_redacted: bool


def render(head: PageHead, results: Sequence[CheckResult], grades: Grades) -> str:
    """Return the page."""
    uses = [(each.use, each.grade, ", ".join(each.because) or "-") for each in grades.uses]
    checks = [
        (one.name, one.verdict, one.words or "-", f"{one.seconds:.2f} s", ", ".join(uses_of(one.name)))
        for one in results
    ]
    parts = (
        f"# BMC: {_escaped(head.bmc)}",
        f"Grade **{grades.overall}**: {OVERALL[grades.overall]}.",
        _circumstances(head, results),
        "## Uses",
        _table(("Use", "Grade", "Because of"), uses),
        "## Checks",
        _table(("Check", "Result", "The BMC's words", "Time", "Needed for"), checks),
    )
    return "\n\n".join(parts) + "\n"


def summary(results: Sequence[CheckResult], grades: Grades) -> str:
    """Return the grade of each use as lines, for a terminal."""
    lines = [f"{each.grade}  {each.use}" + _because(each.because) for each in grades.uses]
    untested = sum(1 for result in results if result.verdict is Verdict.NOT_TESTED)
    return "\n".join((f"Grade {grades.overall}; {len(results) - untested} of {len(results)} checks ran", *lines)) + "\n"


def _because(names: Sequence[str]) -> str:
    return f": {', '.join(names)}" if names else ""


def _circumstances(head: PageHead, results: Sequence[CheckResult]) -> str:
    access = "Reads, and one write of the boot override that was restored" if head.allow_writes else "Reads only"
    untested = [result.name for result in results if result.verdict is Verdict.NOT_TESTED]
    sentences = [
        f"{access}; the power was not changed",
        f"{head.requests} requests; the slowest took {head.slowest_s:.2f} s: `{head.slowest}`",
        f"Made by unbounded {head.version} on {head.day.isoformat()}",
    ]
    if untested:
        sentences.append(f"Not tested, and without influence on the grades: {', '.join(untested)}")
    if head.is_redacted:
        sentences.append("Serial numbers, UUIDs, addresses, and names of hosts and users are replaced")
    return "\n".join(f"- {sentence}." for sentence in sentences)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table whose columns are aligned in plain text, too."""
    cells = [[_escaped(cell) for cell in row] for row in rows]
    widths = [max(len(row[at]) for row in (list(heads), *cells)) for at in range(len(heads))]
    lines = [list(heads), ["-" * width for width in widths], *cells]
    return "\n".join(
        "| " + " | ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    )


def _escaped(text: str) -> str:
    """Return a BMC's text so that it stays in its cell and is no markup."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("`", "'")


def profile_of(connection: Connection, username: str, redactor: Redactor | None) -> dict[str, Any]:
    """Return the profile as JSON.

    Args:
        username: of the account, as a name in the answers.
        redactor: has learned the recording; None keeps everything but credentials, which are not recorded.
    """
    answers = sorted(connection.recording.answers.items())
    document = {
        "format": FORMAT,
        "redacted": redactor is not None,
        "login": "session" if connection.has_session else "basic",
        "username": username,
        "openRoot": connection.is_root_open,
        "resources": {path: _resource(answer) for path, answer in answers},
    }
    return document if redactor is None else dict(redactor.replace(document))


def _resource(answer: RecordedAnswer) -> dict[str, Any]:
    """Return one answer. A body that is no JSON object is not kept, only that there was one."""
    found: dict[str, Any] = {"status": answer.status}
    if answer.content_type:
        found["contentType"] = answer.content_type
    if answer.etag:
        found["etag"] = answer.etag
    if answer.document is not None:
        found["body"] = answer.document
    elif not answer.is_empty:
        found["garbled"] = True
    return found


def learn_recording(redactor: Redactor, connection: Connection) -> None:
    """Let a redactor learn all answers and their paths."""
    for path, answer in sorted(connection.recording.answers.items()):
        redactor.learn(path)
        redactor.learn(answer.document or {})
