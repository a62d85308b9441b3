"""One certification from the first request to page and profile."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from datetime import date

from unbounded.metalman.certify.checks import CertifiedBmc, bmc_name, run_checks
from unbounded.metalman.certify.connection import Connection, connect
from unbounded.metalman.certify.page import PageHead, render
from unbounded.metalman.certify.profile import learn_recording, profile_of
from unbounded.metalman.certify.redaction import Redactor
from unbounded.metalman.certify.uses import CheckResult, Grades, grade_bmc
from unbounded.metalman.redfish.endpoint import endpoint_of
from unbounded.metalman.redfish.ports import BmcAccount, BmcLimits


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
