"""`kubectl unbounded machine register`: a Machine for a host, the Secrets that its login needs, and the wait for it.

An interruption of the wait (Ctrl-C, --timeout) does not change the Machine.
"""

from __future__ import annotations

import asyncio
import contextlib
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

from unbounded.api.core import SECRETS
from unbounded.api.failures import Failure
from unbounded.api.machine import MACHINES, Machine, MachinePhase
from unbounded.api.names import NAMESPACE
from unbounded.cli.deploy import host_addresses, machine_manifests, validation
from unbounded.cli.deploy.apply import CLIENT, SERVER
from unbounded.cli.deploy.live_machina import LiveMachina, live_machina, require_origin
from unbounded.cli.deploy.machine_manifests import MachineDescription, manifest
from unbounded.cli.deploy.site_tokens import token_of
from unbounded.cli.deploy.ssh_keys import (
    KeySecret,
    PrivateKey,
    apply_secrets,
    kubectl_command,
    read_keys,
    required_secrets,
)
from unbounded.cli.plugin import progress
from unbounded.cli.plugin.command import DONE, MANAGER, TIMED_OUT, USAGE, CliError, CommandSession
from unbounded.cli.plugin.progress import view_for
from unbounded.cli.plugin.wait import limited, next_change, watched_object
from unbounded.cli.terminal_text import one_line
from unbounded.explain.chain import explain
from unbounded.explain.links import Topic
from unbounded.join.cluster_facts import release_of
from unbounded.kube.api import AlreadyExists, Forbidden, NotFound
from unbounded.machina.ssh.model import host_port
from unbounded.plan.intent import Intent

Raw = dict[str, Any]

KIND: Final = MACHINES.raw()
DRY_RUN_OUTCOMES: Final = {  # outcome of a dry run on a Secret
    "created": "would be created from the key",
    "configured": "would get this key in place of its present one, for every Machine that names it",
    "unchanged": "has the key already",
}
ENDS: Final = frozenset({MachinePhase.READY, MachinePhase.FAILED})


@dataclass(frozen=True)
class Registration:
    """The described Machine, completed with facts of the cluster, and its Secrets."""

    described: MachineDescription
    machine: Raw
    secrets: tuple[KeySecret, ...]
    keys: Mapping[str, PrivateKey]

    @property
    def name(self) -> str:
        return self.described.name


async def run(session: CommandSession) -> int:
    """Create the Secrets and the Machine, and with --wait wait until it is Ready; returns the exit status."""
    args = session.invocation.args
    cluster = ClusterReads(session)
    registration = await _registration(session, cluster)
    if args.dry_run == CLIENT:
        _print_secrets(session, registration)
        return _done(session, registration.machine, "created (dry run)")
    dry_run = args.dry_run == SERVER
    aside = " (server dry run)" if dry_run else ""
    await _existing_machine(session, registration, cluster)
    async for name, verb in apply_secrets(session, registration.secrets, registration.keys, dry_run=dry_run):
        session.printer.name(SECRETS, name, f"{verb}{aside}")
    made, verb = await create_machine(session, registration.machine, dry_run=dry_run)
    status = _done(session, made, f"{verb}{aside}")
    if args.wait and not dry_run:
        return await wait_machine(session, msgspec.convert(made, Machine), timeout_s=args.timeout)
    return status


async def intend(session: CommandSession) -> Intent:
    """Return the objects that `run` would create, after the same checks; of Secrets only the outcome."""
    cluster = ClusterReads(session)
    registration = await _registration(session, cluster)
    existing = await _existing_machine(session, registration, cluster)
    secrets = apply_secrets(session, registration.secrets, registration.keys, dry_run=True)
    notes = tuple([f"Secret {NAMESPACE}/{name} {DRY_RUN_OUTCOMES[verb]}" async for name, verb in secrets])
    if existing is None:
        return Intent(creates=(registration.machine,), notes=notes)
    return Intent(notes=(*notes, f"Machine {registration.name} exists as described: it would not change"))


def _print_secrets(session: CommandSession, registration: Registration) -> None:
    """Print the Secrets from files by name, or the commands that create them: no output shows a key."""
    for one in registration.secrets:
        if one.file is None:
            continue
        if session.printer.whole:
            command = kubectl_command(one.name, one.file, registration.keys[one.name])
            session.printer.warn(
                f"Secret {NAMESPACE}/{one.name} is omitted, as it contains a key. Create it with:\n  {command}"
            )
        else:
            session.printer.name(SECRETS, one.name, "created (dry run)")


async def _registration(session: CommandSession, cluster: ClusterReads) -> Registration:
    try:
        described = describe(session.invocation.args)
    except validation.BadFlag as error:
        raise CliError(str(error), status=USAGE) from None
    secrets = required_secrets(session.invocation.args)
    keys = read_keys(session.invocation, secrets)
    return Registration(described, manifest(await cluster.completed(described)), secrets, keys)


async def _existing_machine(session: CommandSession, registration: Registration, cluster: ClusterReads) -> Raw | None:
    """Return the Machine if it exists as described. Warns if its host will get an unreachable address.

    Raises:
        CliError: it differs, or another Machine has its host.
    """
    await cluster.check_host_settings(registration)
    existing = await _read_machine(session, registration.machine)
    if existing is None:
        await host_addresses.require_own_host(session, msgspec.convert(registration.machine, Machine))
    return existing


def describe(args: Namespace) -> MachineDescription:
    """Return the Machine that the flags describe, without what the cluster supplies. Raises BadFlag."""
    described = machine_manifests.description_of(args)
    if args.kubernetes_version:
        version = validation.flagged("--kubernetes-version", validation.release, args.kubernetes_version)
        return replace(described, version=version)
    return described


class ClusterReads:
    """Facts of the cluster that registrations need, each read once."""

    def __init__(self, session: CommandSession) -> None:
        self._session = session
        self._version: str | None = None
        self._tokens: dict[str, str] = {}  # by site: the name of the Secret; empty for the default token
        self._settings: tuple[LiveMachina, str] | None = None  # of machina, and the endpoint that hosts get
        self._settings_are_read = False

    async def completed(self, described: MachineDescription) -> MachineDescription:
        """Complete a description with the cluster's version and the token of the site.

        Raises:
            CliError: the site has no token.
        """
        version = described.version or await self._cluster_version()
        return replace(described, version=version, token=await self._token(described.site))

    async def _cluster_version(self) -> str:
        """Return the cluster's version as a release; empty where it reports none, so that machina chooses it."""
        if self._version is None:
            version = await self._session.api.version()
            try:
                self._version = release_of(version)
            except ValueError as error:
                self._session.printer.warn(f"{error}; set the node's version with --kubernetes-version")
                self._version = ""
        return self._version

    async def _token(self, site: str) -> str:
        """Return the name of the Secret with the host's bootstrap token; empty for the default token."""
        if site in self._tokens:
            return self._tokens[site]
        try:
            found = await token_of(self._session.api, site)
        except Forbidden:
            self._session.printer.warn(
                "this user may not read bootstrap tokens: the Machine names none, and joins with the default one"
            )
            self._tokens[site] = ""
            return ""
        if found is None:
            raise CliError(
                f"site {site} has no valid bootstrap token",
                next_step=f"create or renew it with `{self._session.invocation.program} site init --name {site}`",
            )
        self._tokens[site] = found.secret
        return found.secret

    async def check_host_settings(self, registration: Registration) -> None:
        """Check the settings that machina will pass to the host.

        A user without the right to read machina's settings gets errors from the Machine's conditions.

        Raises:
            CliError: no setting names a release of the agent that the host may run.
        """
        settings = await self._host_settings()
        if settings is None:
            return
        session, (live, endpoint) = self._session, settings
        require_origin(session, msgspec.convert(registration.machine, Machine), live)
        unless = "" if live.embedded else ", unless a variable of machina sets another one"
        if not _is_on_api_server(registration.described, session.api.config.server):
            host_addresses.warn_unreachable(session, endpoint, live, unless=unless)

    async def _host_settings(self) -> tuple[LiveMachina, str] | None:
        if not self._settings_are_read:
            with contextlib.suppress(Forbidden):
                live = await live_machina(self._session.api)
                self._settings = live, await host_addresses.published_endpoint(self._session.api, live.settings)
            self._settings_are_read = True
        return self._settings


def _is_on_api_server(described: MachineDescription, server: str) -> bool:
    """Return whether the host is the machine of the API server; False behind a bastion, where addresses do not show
    that.
    """
    login = described.login if described.bastion is None else None
    return login is not None and host_addresses.is_on_server_host(host_port(login.host).host, server)


async def create_machine(session: CommandSession, body: Raw, *, dry_run: bool) -> tuple[Raw, str]:
    """Create the Machine; returns it and the outcome. An existing one is not changed."""
    try:
        return await session.api.create(KIND, body, manager=MANAGER, dry_run=dry_run), "created"
    except AlreadyExists:
        existing = await _read_machine(session, body)
        if existing is None:  # it was deleted meanwhile, or the user may not read it
            raise
    return existing, "unchanged"


async def _read_machine(session: CommandSession, body: Raw) -> Raw | None:
    """Return the existing Machine of this name; None where there is none, or where the user may not read it.

    Raises:
        CliError: it differs.
    """
    name = body["metadata"]["name"]
    try:
        existing = await session.api.get(KIND, name)
    except (NotFound, Forbidden):
        return None
    require_same(body, existing)
    return existing


def require_same(body: Raw, existing: Raw) -> None:
    """Raise CliError where an existing Machine differs from the described one."""
    name = body["metadata"]["name"]
    if differing := sorted(_differing(body["spec"], existing.get("spec") or {}, "spec")):
        raise CliError(
            f"Machine {name} exists, and differs: {', '.join(differing)}",
            next_step=f"change it with `kubectl edit mach {name}`, or register another one with --name",
        )


def _differing(registration: Mapping[str, Any], existing: Mapping[str, Any], path: str) -> list[str]:
    """Return the fields that differ from the desired ones, except the token, which may have another name after a
    renewal.
    """
    found: list[str] = []
    for key, value in registration.items():
        if key == "bootstrapTokenRef":
            continue
        if isinstance(value, dict) and isinstance(existing.get(key), dict):
            found += _differing(value, existing[key], f"{path}.{key}")
        elif value != existing.get(key) and value not in ({}, []):
            found.append(f"{path}.{key}")
    return found


def _done(session: CommandSession, body: Raw, verb: str) -> int:
    if session.printer.whole:
        session.printer.objects(KIND, [body], alone=True)
    else:
        session.printer.name(KIND, body["metadata"]["name"], verb)
    return DONE


async def wait_machine(session: CommandSession, machine: Machine, *, timeout_s: float | None) -> int:
    """Show a Machine until it is Ready; returns the exit status.

    Args:
        machine: as it was created: a later Machine of the same name is another one.
        timeout_s: None for no limit.

    Raises:
        CliError: it is Failed, it was deleted, or the time was up (TIMED_OUT); with machina's next step.
        Forbidden: the user may not watch it.
    """
    what, program = f"machine/{machine.name}", session.invocation.program
    try:
        async with limited(session, what, f"`{program} why {what}` explains it", timeout_s, late="is not Ready"):
            last = await _settled(session, machine)
    except CliError as error:
        if error.status != TIMED_OUT:
            raise
        text = f"{what} is not Ready within {timeout_s:g} s"
        raise CliError(text, next_step=await _what_follows(session, machine), status=TIMED_OUT) from None
    if last.status.phase == MachinePhase.READY:
        session.printer.info(f"{what} is Ready")
        return DONE
    text = f"{what} is Failed: {one_line(last.status.message or '')}".rstrip(": ")
    raise CliError(text, next_step=await _what_follows(session, machine))


async def _what_follows(session: CommandSession, machine: Machine) -> str:
    """Return what machina does next and the user's options, from the analysis of `why`."""
    program, lines = session.invocation.program, list[str]()
    with contextlib.suppress(CliError, Failure):  # the Machine is gone, or the user may not read it
        links = (await explain(session.api, Topic.MACHINE, machine.name, program=program)).links
        lines += [f"blocked by: {links[-1].about} {links[-1].what}"] if len(links) > 1 else []
        lines += [f"next: {link.next_step}" for link in links[-1:] if link.next_step]
        fixes = [fix for link in reversed(links) for fix in link.fixes]
        lines += [f"try:  {fix.command}\n      # {fix.does}" for fix in fixes[:1]]
    return "\n".join((*lines, f"`{program} why machine/{machine.name}` explains it"))


async def _settled(session: CommandSession, machine: Machine) -> Machine:
    """Wait until the Machine is Ready or Failed, and return it."""
    changed, last = asyncio.Event(), machine
    async with watched_object(session.api, MACHINES, machine.name, changed) as followed:
        with view_for(session) as view:
            while True:
                now = followed.now
                if now is not None and now.metadata.uid == machine.metadata.uid:
                    last = now
                elif followed.synced:
                    raise CliError(f"machine/{machine.name} was deleted")
                view.show(progress.of_machine(last), followed.trouble)
                if now is not None and now.status.phase in ENDS:
                    return now
                await next_change(changed)
