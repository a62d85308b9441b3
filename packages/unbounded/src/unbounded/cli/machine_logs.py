"""Logs of one Machine: the output of its install, the journal of its agent, and the console of a boot that failed.

Install and journal are on the host, and are read over SSH. machina removes the output of an install that has ended
from the host, and puts its end into an Event. The console is in a Secret. Each part that cannot be read says why.
Secrets that their form shows are removed.
"""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import msgspec
from msgspec.structs import replace

from unbounded.api.conditions import ConditionType
from unbounded.api.core import EVENTS, Event
from unbounded.api.failures import Failure
from unbounded.api.machine import Machine
from unbounded.api.names import NAMESPACE
from unbounded.cli import child
from unbounded.cli.host_ssh import ssh_command
from unbounded.cli.plugin.command import CliError, CommandSession
from unbounded.cli.serial_console import kept_console
from unbounded.explain.facts_reader import EVENTS_OF_CLUSTER
from unbounded.kube.api import ApiError
from unbounded.kube.clock import rfc3339
from unbounded.machina.machines.eligibility import address_of
from unbounded.machina.machines.model import PROVISIONING_FAILED
from unbounded.machina.provisioning.remote import command, refusal_of, split_answer
from unbounded.metalman.console_text import redacted

INSTALL: Final = "install"
AGENT: Final = "agent"
CONSOLE: Final = "console"
PARTS: Final = (INSTALL, AGENT, CONSOLE)
READ_S: Final = 60.0
MOST_BYTES: Final = 4 * 1024 * 1024  # of one part
LINE_BYTES: Final = 64 * 1024
OF_SSH: Final = 255  # exit status where ssh itself has failed
OPTIONS: Final = ("-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20")
REPORTS: Final = (  # conditions with the last report of an install, the latest stage first
    ConditionType.AGENT_BOOTSTRAPPED,
    ConditionType.CLOUD_INIT_DONE,
    ConditionType.REPAVED,
    ConditionType.PROVISIONING,
)


class LogPart(msgspec.Struct, frozen=True, kw_only=True):
    """One log.

    Args:
        source: where it is.
        missing: why it could not be read, or that there is none; empty for a log that was read.
    """

    name: str
    source: str
    text: str = ""
    missing: str = ""


@dataclass(frozen=True)
class LogRange:
    """The part of each log that is read.

    Args:
        since: lines before this time are left out, where lines have a time; otherwise a log that ended before it.
        lines: the last ones.
    """

    lines: int
    since: datetime | None = None

    @property
    def since_epoch(self) -> str:
        return str(int(self.since.timestamp())) if self.since is not None else "0"


async def read_logs(
    session: CommandSession,
    machine: Machine,
    parts: Sequence[str],
    within: LogRange,
    *,
    known: Collection[str] = (),
    reads_secrets: bool = True,
) -> list[LogPart]:
    """Read logs of a Machine, in the order of `parts`.

    Args:
        known: secrets that are removed wherever they are.
        reads_secrets: whether the key for SSH may come from its Secret.
    """
    found: dict[str, LogPart] = {}
    if CONSOLE in parts:
        found[CONSOLE] = await _console(session, machine, within, known)
    if wanted := [part for part in parts if part != CONSOLE]:
        try:
            async with ssh_command(session, machine, reads_secrets=reads_secrets) as ssh:
                for part in wanted:
                    found[part] = await _from_host(ssh, machine, part, within, known)
        except CliError as error:
            found |= {part: _unreached(machine, part, str(error)) for part in wanted}
    if INSTALL in parts and not found[INSTALL].text:
        found[INSTALL] = await _failed_attempts(session, machine, found[INSTALL], within, known)
    return [found[part] for part in parts]


async def _failed_attempts(
    session: CommandSession, machine: Machine, on_host: LogPart, within: LogRange, known: Collection[str]
) -> LogPart:
    """Return what machina has reported of the failed attempts; the part itself where there is nothing."""
    about = f"involvedObject.kind=Machine,involvedObject.name={machine.name}"
    try:
        events = (await session.api.list(EVENTS, namespace=EVENTS_OF_CLUSTER, fields=about)).items
    except ApiError as error:
        return replace(on_host, missing=f"{on_host.missing}; the Events of its attempts cannot be read: {error}")
    since = "" if within.since is None else rfc3339(within.since)
    own = [
        one
        for one in events
        if one.reason == PROVISIONING_FAILED
        and one.involved_object.uid == machine.metadata.uid
        and _time_of(one) >= since
    ]
    if not own:
        return on_host
    texts = [f"{_time_of(one)} {one.message}" for one in sorted(own, key=_time_of)]
    text = _last_lines(redacted("\n".join(texts).encode(), known), within.lines)
    source = f"Events {PROVISIONING_FAILED} of the Machine, with the end of the output; {on_host.missing}"
    return LogPart(name=INSTALL, source=source, text=text)


def _time_of(event: Event) -> str:
    return event.last_timestamp or event.metadata.creation_timestamp or ""


async def _console(session: CommandSession, machine: Machine, within: LogRange, known: Collection[str]) -> LogPart:
    live = f"`{session.invocation.program} machine serial {machine.name}` shows the present output"
    kept, pxe = machine.status.console_output, machine.spec.pxe
    if kept is None:
        has_bmc = pxe is not None and pxe.redfish is not None
        never = f"no boot failed while metalman recorded the console; {live}"
        why = never if has_bmc else "the Machine has no BMC (spec.pxe.redfish) with a console to record"
        return LogPart(name=CONSOLE, source=f"Secret in {NAMESPACE}", missing=f"none is kept: {why}")
    source = f"Secret {NAMESPACE}/{kept.secret}: until {kept.operation} failed, at {kept.at}"
    if within.since is not None and datetime.fromisoformat(kept.at) < within.since:
        return LogPart(name=CONSOLE, source=source, missing="it ended before --since")
    try:
        text = await kept_console(session.api, machine)
    except (CliError, Failure) as error:
        return LogPart(name=CONSOLE, source=source, missing=str(error))
    return LogPart(name=CONSOLE, source=source, text=_last_lines(redacted(text.encode(), known), within.lines))


def _last_lines(text: str, count: int) -> str:
    return "\n".join(text.splitlines()[-count:])


def host_source(machine: Machine, part: str) -> str:
    """Return where a log on the host is."""
    host = address_of(machine) or "the host"
    if part == AGENT:
        return f"journal of units unbounded-agent* on {host}, over SSH"
    return f"output of the install script on {host}, over SSH"


def _unreached(machine: Machine, part: str, why: str) -> LogPart:
    return LogPart(name=part, source=host_source(machine, part), missing=why + _last_report(machine, part))


def _last_report(machine: Machine, part: str) -> str:
    """Return what the Machine's status says of its install."""
    if part != INSTALL:
        return ""
    found, boot = list[str](), machine.status.netboot
    known = {one.type: one for one in machine.status.conditions}
    if boot is not None and boot.milestone is not None:
        found.append(f"its last boot from the network reached {boot.milestone} at {boot.at}: {boot.message}")
    if (last := next((known[kind] for kind in REPORTS if kind in known), None)) is not None:
        found.append(f"the last report is condition {last.type}={last.status} ({last.reason}): {last.message}")
    return "; ".join(("", *(found or ["its status has no report of an install"])))


def remote_command(machine: Machine, part: str, within: LogRange, *, follow: bool = False) -> str:
    """Return the command for the host that prints a log."""
    how = "follow" if follow else "once"
    if part == AGENT:
        return command("print_journal.sh", machine.lasting_uid, str(within.lines), within.since_epoch, how)
    return command("print_log.sh", machine.lasting_uid, str(within.lines), how)


async def _from_host(
    ssh: Sequence[str], machine: Machine, part: str, within: LogRange, known: Collection[str]
) -> LogPart:
    if part == INSTALL and (why := _not_begun(machine, within)):
        return _unreached(machine, part, why)
    try:
        async with asyncio.timeout(READ_S):
            status, out, err = await _output([*ssh, *OPTIONS, remote_command(machine, part, within)])
    except TimeoutError:
        return _unreached(machine, part, f"the host did not send it within {READ_S:g} s")
    if status:
        return _unreached(machine, part, failure_of(status, out, err))
    if part == AGENT:
        text = redacted(out, known).strip("\n")
        missing = "" if text else "the journal has no lines of these units"
        return LogPart(name=part, source=host_source(machine, part), text=text, missing=missing)
    return _of_run(machine, out, known)


def _not_begun(machine: Machine, within: LogRange) -> str:
    run = machine.status.provisioning
    if run is None:
        return "machina has not begun to set up the host"
    ended = (
        within.since is not None and run.ended_at is not None and datetime.fromisoformat(run.ended_at) < within.since
    )
    return "it ended before --since" if ended else ""


def _of_run(machine: Machine, out: bytes, known: Collection[str]) -> LogPart:
    words, output = split_answer(out) or ([], out)
    source = f"{host_source(machine, INSTALL)}; {run_state(words)}"
    text = redacted(output, known).strip("\n")
    if text:
        return LogPart(name=INSTALL, source=source, text=text)
    kept = "the host has no run of this Machine" if words[:1] == ["none"] else "the host keeps no output of it"
    return LogPart(name=INSTALL, source=source, missing=kept + _last_report(machine, INSTALL))


def run_state(words: Sequence[str]) -> str:
    """Return the state of a run, from the first line of its log."""
    match words:
        case ["running", attempt, seconds]:
            return f"run {attempt} is in progress, since {seconds} s"
        case ["finished", attempt, status]:
            return f"run {attempt} ended with status {status}"
        case ["interrupted", attempt]:
            return f"run {attempt} was interrupted"
    return "no run"


def failure_of(status: int, out: bytes, err: bytes) -> str:
    """Return why a command over SSH has failed."""
    if status == OF_SSH:
        lines = redacted(err, ()).strip().splitlines()
        return f"ssh: {'; '.join(lines[-2:]) or 'no connection'}"
    return refusal_of(status, err, out).words


async def _output(command: Sequence[str]) -> tuple[int, bytes, bytes]:
    """Run a command; return its exit status, and the end of its output."""
    async with _process(command) as process:
        out, err = await asyncio.gather(_end_of(process.stdout), _end_of(process.stderr))
        return await process.wait(), out, err


@asynccontextmanager
async def _process(command: Sequence[str]) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
    try:
        yield process
    finally:
        await child.end(process)


async def _end_of(stream: asyncio.StreamReader | None) -> bytes:
    kept = bytearray()
    while stream is not None and (data := await stream.read(LINE_BYTES)):
        kept += data
        if len(kept) > 2 * MOST_BYTES:
            del kept[:-MOST_BYTES]
    if len(kept) <= MOST_BYTES:
        return bytes(kept)
    return bytes(kept[-MOST_BYTES:]).partition(b"\n")[2]  # a cut line may begin within a secret


async def follow_log(
    ssh: Sequence[str], machine: Machine, part: str, within: LogRange, show: Callable[[str], None]
) -> str:
    """Show a log and what comes, until its end; return why it ended early, else an empty text."""
    async with _process([*ssh, *OPTIONS, remote_command(machine, part, within, follow=True)]) as process:
        errors = asyncio.create_task(_end_of(process.stderr))
        async for line in _lines(process.stdout):
            show(line)
        status = await process.wait()
        err = await errors
    return failure_of(status, b"", err) if status else ""


async def _lines(stream: asyncio.StreamReader | None) -> AsyncIterator[str]:
    """Yield lines without secrets; of a long one, parts."""
    pending = b""
    while stream is not None and (data := await stream.read(LINE_BYTES)):
        *whole, pending = (pending + data).split(b"\n")
        for line in whole:
            yield redacted(line, ())
        if len(pending) > LINE_BYTES:
            yield redacted(pending, ())
            pending = b""
    if pending:
        yield redacted(pending, ())
