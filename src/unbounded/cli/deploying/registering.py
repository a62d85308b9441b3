"""`kubectl unbounded machine register`: a host becomes a Machine, with the Secrets that its login needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from unbounded.api.machine import MACHINES, AgentSpec, Machine
from unbounded.api.names import NAMESPACE
from unbounded.cli.deploying import checks, typed
from unbounded.cli.deploying.bringing import CLIENT, SERVER
from unbounded.cli.deploying.key_secrets import bring_secrets, read_keys, wanted_secrets
from unbounded.cli.deploying.live import live_machina
from unbounded.cli.deploying.machine_waiting import wait_machine
from unbounded.cli.deploying.machines import Described, manifest
from unbounded.cli.deploying.origins import note_origin, origin_told
from unbounded.cli.deploying.token_writing import token_of
from unbounded.cli.plugin.command import DONE, MANAGER, USAGE, CliError, Intent, Session
from unbounded.join.facts import release_of
from unbounded.join.install import origin_of
from unbounded.kube.errors import AlreadyExists, Forbidden

Raw = dict[str, Any]

KIND: Final = MACHINES.raw()


async def run(session: Session) -> int:
    """Make the Secrets and the Machine, and wait for it to be Ready if that is wanted; the exit status."""
    args = session.told.args
    described = _typed(session)
    wanted = wanted_secrets(args)
    keys = read_keys(session.told, wanted)
    body = manifest(await _asked(session, described))
    if args.dry_run == CLIENT:
        return _done(session, body, "created (dry run)")
    dry_run = args.dry_run == SERVER
    await _note_origin(session, described)
    await bring_secrets(session, wanted, keys, dry_run=dry_run)
    made, verb = await _bring(session, body, dry_run=dry_run)
    status = _done(session, made, f"{verb} (server dry run)" if dry_run else verb)
    if args.wait and not dry_run:
        return await wait_machine(session, msgspec.convert(made, Machine), timeout_s=args.timeout)
    return status


async def intend(session: Session) -> Intent:
    """What `run` would make; of Secrets their names alone."""
    body = manifest(await _asked(session, _typed(session)))
    made = [one.name for one in wanted_secrets(session.told.args) if one.file is not None]
    return Intent(creates=(body,), notes=tuple(f"Secret {NAMESPACE}/{name} holds the SSH key" for name in made))


def _typed(session: Session) -> Described:
    args = session.told.args
    try:
        described = typed.registered(args)
        if args.kubernetes_version:
            version = checks.flagged("--kubernetes-version", checks.release, args.kubernetes_version)
            return replace(described, version=version)
    except checks.BadFlag as error:
        raise CliError(str(error), status=USAGE) from None
    return described


async def _asked(session: Session, described: Described) -> Described:
    """With what the cluster says: its version, and the token of the site."""
    version = described.version or _released(session, await session.api.version())
    return replace(described, version=version, token=await _token(session, described.site))


def _released(session: Session, said: str) -> str:
    """The version of the cluster as it can be downloaded; empty where it says none, so that machina finds out."""
    try:
        return release_of(said)
    except ValueError as error:
        session.printer.warn(f"{error}; --kubernetes-version says which one the node is to have")
        return ""


async def _token(session: Session, site: str) -> str:
    """Name of the Secret with the token that the host is to join with; empty for what is the default then."""
    try:
        found = await token_of(session.api, site)
    except Forbidden:
        session.printer.warn(
            "bootstrap tokens cannot be seen by this user: the Machine names none, and joins with the default one"
        )
        return ""
    if found is None:
        raise CliError(
            f"site {site} has no bootstrap token that is good now",
            next_step=f"`{session.told.program} site init --name {site}` makes one, or renews it",
        )
    return found.secret


async def _note_origin(session: Session, described: Described) -> None:
    """Of what a machina of the cluster is told by flags nothing is known here; nor of its file, by who may not read
    that."""
    try:
        live = await live_machina(session.api)
    except Forbidden:
        return
    agent = msgspec.convert(described.agent, AgentSpec)
    unless = "" if live.beside else ", unless a flag of machina says otherwise"
    note_origin(session, origin_of(agent, origin_told(live.config)), live, unless=unless)


async def _bring(session: Session, body: Raw, *, dry_run: bool) -> tuple[Raw, str]:
    """The Machine, and what became of it. One that is there already stays as it is."""
    name = body["metadata"]["name"]
    try:
        return await session.api.create(KIND, body, manager=MANAGER, dry_run=dry_run), "created"
    except AlreadyExists:
        there = await session.api.get(KIND, name)
    if differing := sorted(_differing(body["spec"], there.get("spec") or {}, "spec")):
        raise CliError(
            f"Machine {name} exists, and differs: {', '.join(differing)}",
            next_step=f"`kubectl edit machine {name}` changes it; --name registers another one",
        )
    return there, "unchanged"


def _differing(wanted: Mapping[str, Any], there: Mapping[str, Any], path: str) -> list[str]:
    """The fields that are wanted otherwise than they are. A token may have been renewed under another name."""
    found: list[str] = []
    for key, value in wanted.items():
        if key == "bootstrapTokenRef":
            continue
        if isinstance(value, dict) and isinstance(there.get(key), dict):
            found += _differing(value, there[key], f"{path}.{key}")
        elif value != there.get(key) and value not in ({}, []):
            found.append(f"{path}.{key}")
    return found


def _done(session: Session, body: Raw, verb: str) -> int:
    if session.printer.whole:
        session.printer.objects(KIND, [body], alone=True)
    else:
        session.printer.name(KIND, body["metadata"]["name"], verb)
    return DONE
