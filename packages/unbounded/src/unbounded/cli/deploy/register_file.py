"""`kubectl unbounded register -f FILE`: Machines for many hosts, each described as `machine register` describes one.

All faults of all records are reported at once, and nothing is written where there is one. The fields of a record are
the flags of `machine register`, with the same checks. A faulty value is replaced, so that the others are checked, too.
"""

from __future__ import annotations

import asyncio
import dataclasses
from argparse import Action, ArgumentParser, Namespace
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import msgspec

from unbounded.api.core import SECRETS
from unbounded.api.failures import Failure
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Kind
from unbounded.cli.command_tables.machine import COMMANDS
from unbounded.cli.deploy import host_addresses, validation
from unbounded.cli.deploy.apply import CLIENT
from unbounded.cli.deploy.machine_manifests import MachineDescription, manifest
from unbounded.cli.deploy.records import FileRecord, RecordFault, fault_text, read_records
from unbounded.cli.deploy.register import KIND, ClusterReads, Registration, create_machine, describe, require_same
from unbounded.cli.deploy.ssh_keys import KeySecret, PrivateKey, apply_secrets, read_keys, required_secrets
from unbounded.cli.plugin.command import DONE, USAGE, CliError, CommandSession, Printer
from unbounded.cli.plugin.flags import BooleanFlag, truth
from unbounded.kube.api import Forbidden
from unbounded.machina.machines.eligibility import HostAddress, host_address
from unbounded.plan.intent import Raw

REGISTER: Final = next(row for row in COMMANDS if row.path == ("machine", "register"))
OF_THE_COMMAND: Final = frozenset({"dry_run", "force", "wait", "timeout", "help"})  # no fields of a record
SAMPLE: Final = "sample-in-place-of-a-fault"
SAMPLES: Final = {  # by argument: replacements of a faulty value that has no harmless default
    **dict.fromkeys(("site", "name", "host", "ssh_username", "ssh_secret_name"), SAMPLE),
    **dict.fromkeys(("bastion_host", "bastion_ssh_username"), SAMPLE),
    "bastion_ssh_secret_name": f"bastion-{SAMPLE}",  # another Secret than that of the host
    **dict.fromkeys(("ssh_private_key", "bastion_ssh_private_key"), SAMPLE),
    "agent_url": f"https://{SAMPLE}/agent.tar.gz",
    "agent_base_url": f"https://{SAMPLE}",
    "agent_sha256": "0" * 64,
}
COMMA_SEPARATED: Final = frozenset({"node_label", "register_with_taint"})


@dataclass
class RecordedHost:
    """A record, and what is known of it so far."""

    record: FileRecord
    args: Namespace
    faults: list[RecordFault] = field(default_factory=list)
    described: MachineDescription | None = None
    secrets: tuple[KeySecret, ...] = ()
    registration: Registration | None = None
    existing: Raw | None = None

    def fault(self, name: str, text: str) -> None:
        """Add a fault of a field; of the whole record where it has none of this name."""
        self.faults.append(RecordFault(self.record.line_of(name), name, text))

    def fault_of(self, error: CliError | validation.BadFlag) -> str:
        """Add the fault of an error that begins with a flag, such as `--host: …`; return the name of the field."""
        name = field_of(error)
        self.fault(name, str(error).partition(" ")[2] if name else str(error))
        return name

    def replace(self, name: str) -> None:
        """Replace the value of a field that has a fault; the replacement by none."""
        action = fields_by_name()[name]
        sample = SAMPLES.get(action.dest, action.default)
        setattr(self.args, action.dest, action.default if getattr(self.args, action.dest) == sample else sample)


class _EachWarningOnce:
    """A Printer that prints each warning once, however many records cause it."""

    def __init__(self, printer: Printer) -> None:
        self._printer, self._warned = printer, set[str]()

    @property
    def whole(self) -> bool:
        return self._printer.whole

    def objects(self, kind: Kind[Any], items: Sequence[Raw], *, alone: bool = False) -> None:
        self._printer.objects(kind, items, alone=alone)

    def name(self, kind: Kind[Any], name: str, verb: str) -> None:
        self._printer.name(kind, name, verb)

    def info(self, text: str) -> None:
        self._printer.info(text)

    def warn(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            self._printer.warn(text)


def _takes_several() -> dict[str, bool]:
    """Return the fields of a record, and whether they take several values."""
    return {name: isinstance(action.default, list) for name, action in fields_by_name().items()}


@cache
def fields_by_name() -> dict[str, Action]:
    """Return the fields of a record: the flags of `machine register` that describe one host, without dashes."""
    parser = ArgumentParser(add_help=False)
    REGISTER.arguments(parser)
    return {
        flag.removeprefix("--"): action
        for action in parser._actions
        for flag in action.option_strings
        if flag.startswith("--") and action.dest not in OF_THE_COMMAND
    }


def field_of(error: Exception) -> str:
    """Return the field that an error begins with, as a flag; empty if it begins with none."""
    flag = str(error).partition(" ")[0].rstrip(":")
    name = flag.removeprefix("--")
    return name if flag != name and name in fields_by_name() else ""


async def run(session: CommandSession) -> int:
    """Check all records, then create their Secrets and Machines; returns the exit status.

    Raises:
        CliError: there are faults; nothing was written.
    """
    args = session.invocation.args
    session = dataclasses.replace(session, printer=_EachWarningOnce(session.printer))
    try:
        records, faults = read_records(Path(args.filename), _takes_several())
    except ValueError as error:
        raise CliError(f"-f: {error}", status=USAGE) from None
    if not records and not faults:
        raise CliError(f"-f: {args.filename} has no hosts", status=USAGE)
    hosts = [parsed(record, session) for record in records]
    _check_locally(session, hosts)
    await _check_on_cluster(session, [one for one in hosts if one.registration is not None])
    faults += [fault for one in hosts for fault in one.faults]
    if faults:
        raise _report(args.filename, faults)
    return await _write(session, hosts)


def _report(name: str, faults: Iterable[RecordFault]) -> CliError:
    """Return the report of all faults; one that several records have is one entry with all their lines."""
    lines: dict[tuple[str, str], list[int]] = {}
    for fault in sorted(set(faults)):
        lines.setdefault((fault.field, fault.text), []).append(fault.line)
    entries = "\n".join(f"  {fault_text(at, field, text)}" for (field, text), at in lines.items())
    count = "1 fault" if len(lines) == 1 else f"{len(lines)} faults"
    return CliError(f"{name} has {count}; nothing was written:\n{entries}")


# Each record alone


def parsed(record: FileRecord, session: CommandSession) -> RecordedHost:
    """Return a record with its values as the flags of `machine register` would give them, and its faults."""
    actions = fields_by_name()
    own = session.invocation.args
    args = Namespace(**{action.dest: action.default for action in actions.values()})
    args.dry_run, args.force = own.dry_run, own.force
    host = RecordedHost(record, args)
    for name, value in record.fields.items():
        action = actions[name]
        if isinstance(action.default, list):
            setattr(args, action.dest, list(_values(action, value.texts)))
        elif len(value.texts) > 1:
            host.fault(name, f"it has {len(value.texts)} values, and takes one")
            host.replace(name)
        elif value.texts and (value.texts[0] or not action.required):
            _set(host, name, action, value.texts[0])
    for name, action in actions.items():
        if action.required and getattr(args, action.dest) is None:
            host.replace(name)
            if name not in record.fields or "" in record.fields[name].texts:
                host.fault(name, "it is missing")
    return host


def _values(action: Action, texts: Iterable[str]) -> Iterable[str]:
    """Return the values of a field one by one, so that each fault is found."""
    return (part for text in texts for part in (text.split(",") if action.dest in COMMA_SEPARATED else (text,)))


def _set(host: RecordedHost, name: str, action: Action, text: str) -> None:
    try:
        setattr(host.args, action.dest, truth(text) if isinstance(action, BooleanFlag) else text)
    except ValueError as error:
        host.fault(name, str(error))


def _describe(host: RecordedHost) -> None:
    """Describe the Machine; after a fault once more without the value, to find the others."""
    while True:
        try:
            host.described = describe(host.args)
        except validation.BadFlag as error:
            name = host.fault_of(error)
            if not name or not _without_fault(host, name):
                return
        else:
            return


def _without_fault(host: RecordedHost, name: str) -> bool:
    """Drop the faulty value of a field, which is one of several in a list; return whether that changed anything."""
    dest = fields_by_name()[name].dest
    before = getattr(host.args, dest)
    if isinstance(before, list):
        for count in range(1, len(before)):
            setattr(host.args, dest, before[:count])
            if _faulty_field(host.args) == name:
                setattr(host.args, dest, before[: count - 1] + before[count:])
                return True
        setattr(host.args, dest, before[:-1])
    else:
        host.replace(name)
    return bool(getattr(host.args, dest) != before)


def _faulty_field(args: Namespace) -> str:
    """Return the name of the first field with a fault; empty for none."""
    try:
        describe(args)
    except validation.BadFlag as error:
        return field_of(error)
    return ""


def _session_of(session: CommandSession, host: RecordedHost) -> CommandSession:
    """Return the session of `machine register` with the values of a record."""
    return dataclasses.replace(session, invocation=dataclasses.replace(session.invocation, args=host.args))


def _check_locally(session: CommandSession, hosts: Sequence[RecordedHost]) -> None:
    """Check the values and the keys of each record, and that the records agree."""
    keys: dict[KeySecret, PrivateKey] = {}
    for host in hosts:
        _describe(host)
        if host.described is not None:
            own = _read_keys(session, host, keys)
            host.registration = Registration(host.described, manifest(host.described), host.secrets, own)
    _check_contradictions([host for host in hosts if host.registration is not None])


def _check_contradictions(hosts: Sequence[RecordedHost]) -> None:
    """Check that no two records are the same Machine or host, or have two keys for one Secret."""
    names: dict[str, RecordedHost] = {}
    ways: dict[HostAddress, RecordedHost] = {}
    files: dict[str, tuple[KeySecret, RecordedHost]] = {}
    for host in hosts:
        if host.registration is None:
            continue
        name = host.registration.name
        if not _is_sample(name) and (first := names.setdefault(name, host)) is not host:
            field = "name" if "name" in host.record.fields else "host"
            host.fault(field, f"Machine {name} is that of line {first.record.line}, too")
        way = host_address(msgspec.convert(host.registration.machine, Machine))
        is_known = way is not None and not any(_is_sample(hop.host) for hop in way)
        if way is not None and is_known and (other := ways.setdefault(way, host)) is not host:
            host.fault("host", f"it is the host of line {other.record.line}, too")
        for one in host.secrets:
            if _is_sample(one.name) or _is_sample(str(one.file)):
                continue
            secret, earlier = files.setdefault(one.name, (one, host))
            if one.file is not None and secret.file is not None and secret.file != one.file:
                text = f"Secret {one.name} gets another key on line {earlier.record.line}"
                host.fault(one.flag.removeprefix("--"), text)
            elif secret.file is None:
                files[one.name] = (one, host)


def _read_keys(session: CommandSession, host: RecordedHost, keys: dict[KeySecret, PrivateKey]) -> dict[str, PrivateKey]:
    """Return the keys of a record by the names of their Secrets, and set those.

    Args:
        keys: those that were read already; new ones are added.
    """
    try:
        host.secrets = required_secrets(host.args)
    except CliError as error:
        host.fault("", str(error))
        host.args.bastion_ssh_secret_name = SAMPLES["bastion_ssh_secret_name"]
        host.secrets = required_secrets(host.args)
    for one in host.secrets:
        if one not in keys and not _is_sample(str(one.file)):
            try:
                read = read_keys(session.invocation, (one,))
                keys |= {one: read[one.name]} if one.name in read else {}
            except CliError as error:
                host.fault_of(error)
    return {one.name: keys[one] for one in host.secrets if one in keys}


def _is_sample(text: str) -> bool:
    return SAMPLE in text


# All records against the cluster


async def _check_on_cluster(session: CommandSession, hosts: Sequence[RecordedHost]) -> None:
    """Complete the Machines with facts of the cluster, and let the server validate what does not exist yet."""
    cluster = ClusterReads(session)
    for host in hosts:
        if host.registration is None:
            continue
        if not _is_sample(host.registration.described.site):
            try:
                described = await cluster.completed(host.registration.described)
                host.registration = dataclasses.replace(host.registration, machine=manifest(described))
            except CliError as error:
                host.fault("site", _with_next_step(error))
        try:
            await cluster.check_host_settings(host.registration)
        except CliError as error:
            host.fault("", _with_next_step(error))
    await _check_existing(session, hosts)
    if session.invocation.args.dry_run == CLIENT:
        return
    await _write_secrets(session, hosts, dry_run=True)
    await asyncio.gather(*(_dry_run(session, host) for host in hosts if host.existing is None))


def _with_next_step(error: CliError) -> str:
    return f"{error}: {error.next_step}" if error.next_step else str(error)


async def _check_existing(session: CommandSession, hosts: Sequence[RecordedHost]) -> None:
    """Compare the records with the Machines of the cluster, by name and by host."""
    try:
        listed = (await session.api.list(KIND)).items
    except Forbidden:
        session.printer.warn("this user may not list Machines: existing Machines of the same hosts are not detected")
        return
    by_name: Mapping[str, Raw] = {one["metadata"]["name"]: one for one in listed}
    existing = [msgspec.convert(one, Machine) for one in listed]
    registered = [(host, msgspec.convert(one.machine, Machine)) for host in hosts if (one := host.registration)]
    names = {name for _, machine in registered for name in host_addresses.names_to_compare(machine, existing)}
    known = await host_addresses.resolved(
        {name for name in names if not _is_sample(name)}, host_addresses.system_resolver()
    )
    for host, machine in registered:
        host.existing = by_name.get(machine.name)
        try:
            if host.existing is not None:
                require_same(_comparable(host), host.existing)
        except CliError as error:
            host.fault_of(error)
        if (host.existing is None or host.faults) and (
            other := host_addresses.of_same_host(machine, existing, known)
        ) is not None:
            host.fault_of(host_addresses.same_host(machine, other, known, session.invocation.program))


def _comparable(host: RecordedHost) -> Raw:
    """Return the Machine of a record to compare with an existing one; of a record with faults, what has none."""
    if host.registration is None or not host.faults:
        return {} if host.registration is None else host.registration.machine
    known: Raw = _without_samples(manifest(host.registration.described))
    return known


def _without_samples(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _without_samples(one) for name, one in value.items() if not (isinstance(one, str) and _is_sample(one))
        }
    return value


async def _dry_run(session: CommandSession, host: RecordedHost) -> None:
    if host.registration is None:
        return
    try:
        await create_machine(session, host.registration.machine, dry_run=True)
    except CliError as error:  # the Machine exists, and the user may not list Machines
        if not host.faults:
            host.fault("", _with_next_step(error))
    except Failure as error:
        if not _is_sample(str(error)):
            host.fault("", str(error))


async def _write_secrets(
    session: CommandSession, hosts: Sequence[RecordedHost], *, dry_run: bool
) -> list[tuple[str, str]]:
    """Check the Secrets without a file, and write the others; return the names and outcomes of those.

    A fault of a dry run is one of the first record that needs the Secret.
    """
    given = {one.name for host in hosts for one in host.secrets if one.file is not None}
    done: dict[str, str] = {}
    for host in hosts:
        for one in host.secrets:
            if one.name in done or host.registration is None or _is_sample(one.name):
                continue
            keys = host.registration.keys
            if one.name not in keys and one.name in given:  # another record has it, or its file has a fault
                continue
            own = {one.name: keys[one.name]} if one.name in keys else {}
            try:
                outcomes = [at async for at in apply_secrets(_session_of(session, host), (one,), own, dry_run=dry_run)]
            except (CliError, Failure) as error:
                if not dry_run:
                    raise
                text = _with_next_step(error) if isinstance(error, CliError) else str(error)
                host.fault(one.flag.removeprefix("--"), text)
            else:
                done |= dict(outcomes)
    return list(done.items())


async def _write(session: CommandSession, hosts: Sequence[RecordedHost]) -> int:
    """Write the Secrets and then the Machines, unless --dry-run is given; returns the exit status."""
    dry_run = session.invocation.args.dry_run
    aside = {"none": "", CLIENT: " (dry run)"}.get(dry_run, " (server dry run)")
    if dry_run == CLIENT:
        secrets = [(name, "created") for name in dict.fromkeys(name for host in hosts for name in _keys(host))]
    else:
        secrets = await _write_secrets(session, hosts, dry_run=dry_run != "none")
    for name, verb in secrets:
        session.printer.name(SECRETS, name, f"{verb}{aside}")
    made: list[Raw] = []
    for host in hosts:
        if host.registration is None:
            raise AssertionError("a record without a fault has a Machine")
        machine, verb = host.registration.machine, "created" if host.existing is None else "unchanged"
        if host.existing is not None:
            machine = host.existing
        elif dry_run != CLIENT:
            machine, verb = await _create(session, host, machine, len(made), dry_run=dry_run != "none")
        made.append(machine)
        session.printer.name(MACHINES, machine["metadata"]["name"], f"{verb}{aside}")
    if session.printer.whole:
        session.printer.objects(KIND, made)
    return DONE


def _keys(host: RecordedHost) -> Iterable[str]:
    return () if host.registration is None else host.registration.keys


async def _create(
    session: CommandSession, host: RecordedHost, machine: Raw, before: int, *, dry_run: bool
) -> tuple[Raw, str]:
    """Create a Machine. Raises CliError with the number of those that exist already."""
    try:
        return await create_machine(session, machine, dry_run=dry_run)
    except Failure as error:
        raise CliError(
            f"line {host.record.line}: {error}",
            next_step=f"the {before} Machines before it exist now; run the command again: it leaves them as they are",
        ) from error
