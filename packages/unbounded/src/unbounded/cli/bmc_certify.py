"""`bmc certify`: read the password, run the checks, and write page and profile."""

from __future__ import annotations

import getpass
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from unbounded.api.failures import Failure
from unbounded.cli.command_tables.bmc import PASSWORD_VARIABLE
from unbounded.cli.plugin.command import DONE, FAILED, USAGE, CliError, CliInvocation, CommandSession
from unbounded.kube.settings import installed_version
from unbounded.metalman.bmc_certification.certify import Certification, certify, summary
from unbounded.metalman.bmc_certification.checks import NoSuchSystem
from unbounded.metalman.bmc_certification.connection import NoRedfish
from unbounded.metalman.bmc_certification.grades import Grade
from unbounded.metalman.redfish import bmc_interface
from unbounded.metalman.redfish.endpoint import endpoint_of, pinned_digest

UNTRUSTED: Final = 4
REFUSED: Final = 5
NO_REDFISH: Final = 6
GRADED_F: Final = 7


async def run(session: CommandSession) -> int:
    invocation = session.invocation
    args = invocation.args
    account = _account(invocation)
    for flag, file in (("--output", args.output), ("--profile", args.profile)):
        _check_writable(flag, file)
    try:
        found = await certify(
            account,
            version=installed_version(),
            day=datetime.now(UTC).date(),
            trust_any=args.insecure,
            allow_writes=args.allow_writes,
            redact=not args.no_redact,
        )
    except Failure as error:
        raise _error_of(error) from error
    _write(invocation, found)
    return GRADED_F if found.grades.overall is Grade.F else DONE


def _account(invocation: CliInvocation) -> bmc_interface.BmcAccount:
    """Return the account; all arguments are checked before the password is read.

    Raises:
        CliError: an invalid argument.
    """
    args = invocation.args
    try:
        is_encrypted = endpoint_of(args.url).encrypted
    except bmc_interface.InvalidBmcUrl:
        raise CliError(
            "URL is not the address of a BMC",
            next_step="write https://HOST[:PORT], without a user name and a password",
            status=USAGE,
        ) from None
    if not is_encrypted and not args.insecure:
        raise CliError(
            "URL is plain http, which shows the password to the network",
            next_step="write https://HOST[:PORT], or permit it with --insecure",
            status=USAGE,
        )
    try:
        if args.fingerprint:
            pinned_digest(args.fingerprint)
    except Failure as error:
        raise CliError(f"--fingerprint: {error}", next_step="write 64 hexadecimal digits", status=USAGE) from None
    return bmc_interface.BmcAccount(
        args.url, args.username, _password(invocation), args.system, cert_fingerprint=args.fingerprint or None
    )


def _password(invocation: CliInvocation) -> str:
    """Return the password from the file, the variable or the terminal."""
    file: Path | None = invocation.args.password_file
    if file is not None:
        try:
            password = file.read_text().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not text"
            raise CliError(f"--password-file {file}: {why}", status=USAGE) from None
    elif PASSWORD_VARIABLE in invocation.environ:
        password = invocation.environ[PASSWORD_VARIABLE]
    elif invocation.stdin.isatty():
        password = _prompt(invocation)
    else:
        raise CliError(
            "no password", next_step=f"name a file with --password-file, or set ${PASSWORD_VARIABLE}", status=USAGE
        )
    if not password:
        raise CliError("the password is empty", status=USAGE)
    return password


def _prompt(invocation: CliInvocation) -> str:
    # with the event loop's handler, Ctrl-C would wait for the input
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return getpass.getpass(f"Password of {invocation.args.username}: ", invocation.err)
    except EOFError:
        return ""
    finally:
        signal.signal(signal.SIGINT, before)


def _check_writable(flag: str, file: str | Path | None) -> None:
    """Check a file before the first request.

    Raises:
        CliError: it cannot be written.
    """
    if not file:
        return
    try:
        with Path(file).open("a"):
            pass
    except OSError as error:
        raise CliError(f"{flag} {file}: {error.strerror}", status=USAGE) from None


def _write(invocation: CliInvocation, found: Certification) -> None:
    output, profile = invocation.args.output, invocation.args.profile
    if profile is not None:
        profile.write_text(found.profile, encoding="utf-8")
    if not output:
        invocation.out.write(found.page)
        return
    Path(output).write_text(found.page, encoding="utf-8")
    invocation.out.write(summary(found.results, found.grades))


def _error_of(error: Failure) -> CliError:
    """Return the error for the user: the cause, what would be right, and the exit status."""
    text = str(error)
    match error:
        case bmc_interface.CertificateChanged():
            step = "compare with the fingerprint that the BMC shows on its own page or console"
            return CliError(text, next_step=step, status=UNTRUSTED)
        case bmc_interface.CertificateUntrusted():
            step = "pin the certificate with --fingerprint SHA256, or accept the present one with --insecure"
            return CliError(text.replace("to the CA bundle", "to a CA of this machine"), next_step=step,
                            status=UNTRUSTED)  # fmt: skip
        case bmc_interface.PasswordRejected():
            step = "correct --username or the password; it was offered once, and is not offered again"
            return CliError(text, next_step=step, status=REFUSED)
        case NoSuchSystem():
            return CliError(text, next_step="name one of them with --system", status=USAGE)
        case NoRedfish():
            return CliError(text, next_step="URL names the BMC itself, not the host: is the port right?",
                            status=NO_REDFISH)  # fmt: skip
        case _:
            return CliError(text, next_step="is URL the BMC's own address, and can this machine reach it?",
                            status=FAILED)  # fmt: skip
