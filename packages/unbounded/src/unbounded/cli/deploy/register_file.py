"""`kubectl unbounded register -f FILE`: Machines for many hosts, each described as `machine register` describes one.

All faults of all records are reported at once, and nothing is written where there is one. The fields of a record are
the flags of `machine register`, with the same checks.
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
from unbounded.cli.deploy.records import FileRecord, RecordFault, read_records
from unbounded.cli.deploy.register import KIND, ClusterReads, Registration, create_machine, describe, require_same
from unbounded.cli.deploy.ssh_keys import KeySecret, PrivateKey, apply_secrets, read_keys, required_secrets
from unbounded.cli.plugin.command import DONE, USAGE, CliError, CommandSession, Printer
from unbounded.cli.plugin.flags import BooleanFlag, truth
from unbounded.kube.api import Forbidden
from unbounded.machina.machines.eligibility import HostAddress, host_address
from unbounded.plan.intent import Raw

REGISTER: Final = next(row for row in COMMANDS if row.path == ("machine", "register"))
OF_THE_COMMAND: Final = frozenset({"dry_run", "force", "wait", "timeout", "help"})  # no fields of a record
SAMPLES: Final = {"site": "site", "host": "host", "ssh_username": "user"}  # stand in for values with a fault


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
        first, _, rest = str(error).partition(" ")
        name = first.removeprefix("--").rstrip(":")
        if not first.startswith("--") or name not in fields_by_name():
            self.fault("", str(error))
            return ""
        self.fault(name, rest)
        return name


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
    await _check_on_cluster(session, [one for one in hosts if not one.faults])
    faults += [fault for one in hosts for fault in one.faults]
    if faults:
        raise _report(args.filename, faults)
    return await _write(session, hosts)


def _report(name: str, faults: Sequence[RecordFault]) -> CliError:
    lines = "\n".join(f"  {fault}" for fault in sorted(set(faults)))
    count = "1 fault" if len(set(faults)) == 1 else f"{len(set(faults))} faults"
    return CliError(f"{name} has {count}; nothing was written:\n{lines}")


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
            setattr(args, action.dest, list(value.texts))
        elif len(value.texts) > 1:
            host.fault(name, f"it has {len(value.texts)} values, and takes one")
        elif value.texts:
            _set(host, name, action, value.texts[0])
    for name, action in actions.items():
        if action.required and getattr(args, action.dest) is None:
            setattr(args, action.dest, SAMPLES[action.dest])
            if name not in record.fields:
                host.fault(name, "it is missing")
    return host


def _set(host: RecordedHost, name: str, action: Action, text: str) -> None:
    try:
        setattr(host.args, action.dest, truth(text) if isinstance(action, BooleanFlag) else text)
    except ValueError as error:
        host.fault(name, str(error))


def _describe(host: RecordedHost) -> None:
    """Describe the Machine; after a fault once more without the value, to find the others."""
    actions, faulty = fields_by_name(), set[str]()
    while True:
        try:
            host.described = describe(host.args)
        except validation.BadFlag as error:
            name = host.fault_of(error)
            if not name or name in faulty:
                return
            faulty.add(name)
            action = actions[name]
            setattr(host.args, action.dest, SAMPLES.get(action.dest, action.default))
        else:
            return


def _session_of(session: CommandSession, host: RecordedHost) -> CommandSession:
    """Return the session of `machine register` with the values of a record."""
    return dataclasses.replace(session, invocation=dataclasses.replace(session.invocation, args=host.args))


def _check_locally(session: CommandSession, hosts: Sequence[RecordedHost]) -> None:
    """Check the values, the keys, and that no two records are the same Machine or host."""
    keys: dict[KeySecret, PrivateKey] = {}
    for host in hosts:
        _describe(host)
        if not host.faults:
            try:
                host.secrets = required_secrets(host.args)
                unread = tuple(one for one in host.secrets if one not in keys)
                read = read_keys(session.invocation, unread)
                keys |= {one: read[one.name] for one in unread if one.name in read}
            except CliError as error:
                host.fault_of(error)
    names: dict[str, RecordedHost] = {}
    ways: dict[HostAddress, RecordedHost] = {}
    files: dict[str, tuple[KeySecret, RecordedHost]] = {}
    for host in hosts:
        if host.faults or host.described is None:
            continue
        first = names.setdefault(host.described.name, host)
        if first is not host:
            name = "name" if "name" in host.record.fields else "host"
            host.fault(name, f"Machine {host.described.name} is that of line {first.record.line}, too")
        way = host_address(msgspec.convert(manifest(host.described), Machine))
        if way is not None and (other := ways.setdefault(way, host)) is not host:
            host.fault("host", f"it is the host of line {other.record.line}, too")
        for one in host.secrets:
            secret, earlier = files.setdefault(one.name, (one, host))
            if one.file is not None and secret.file is not None and secret.file != one.file:
                text = f"Secret {one.name} gets another key on line {earlier.record.line}"
                host.fault(one.flag.removeprefix("--"), text)
            elif secret.file is None:
                files[one.name] = (one, host)
        own = {one.name: keys[one] for one in host.secrets if one in keys}
        host.registration = Registration(host.described, manifest(host.described), host.secrets, own)


# All records against the cluster


async def _check_on_cluster(session: CommandSession, hosts: Sequence[RecordedHost]) -> None:
    """Complete the Machines with facts of the cluster, and let the server validate what does not exist yet."""
    cluster = ClusterReads(session)
    for host in hosts:
        if host.registration is None or host.described is None:
            continue
        name = "site"
        try:
            described = await cluster.completed(host.described)
            host.registration = dataclasses.replace(host.registration, machine=manifest(described))
            name = ""
            await cluster.check_host_settings(host.registration)
        except CliError as error:
            host.fault(name, _with_next_step(error))
    await _check_existing(session, hosts)
    if session.invocation.args.dry_run == CLIENT:
        return
    await _write_secrets(session, hosts, dry_run=True)
    new = [host for host in hosts if host.existing is None and not host.faults]
    await asyncio.gather(*(_dry_run(session, host) for host in new))


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
    known = await host_addresses.resolved(names, host_addresses.system_resolver())
    for host, machine in registered:
        host.existing = by_name.get(machine.name)
        try:
            if host.existing is not None and host.registration is not None:
                require_same(host.registration.machine, host.existing)
            elif (other := host_addresses.of_same_host(machine, existing, known)) is not None:
                raise host_addresses.same_host(machine, other, known, session.invocation.program)
        except CliError as error:
            host.fault_of(error)


async def _dry_run(session: CommandSession, host: RecordedHost) -> None:
    if host.registration is None:
        return
    try:
        await create_machine(session, host.registration.machine, dry_run=True)
    except Failure as error:
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
            if one.name in done or host.registration is None or (one.file is None and one.name in given):
                continue
            keys = host.registration.keys
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
