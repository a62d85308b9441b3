"""Execution of an intent: confirm, write, print the changes, and wait for the operation."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TextIO

from unbounded.api.meta import Kind
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli.plugin import command
from unbounded.cli.plugin.wait import wait_operation
from unbounded.intents.consent import consent_question, typed_consent
from unbounded.intents.writes import write_creation, write_patch
from unbounded.kube.api import Conflict
from unbounded.plan.intent import Intent, IntentPatch, Raw
from unbounded.plan.kinds import kind_of

if TYPE_CHECKING:
    pass

NO_DRY_RUN: Final = "none"
CLIENT: Final = "client"
SERVER: Final = "server"
TRIES: Final = 5
DRY_RUNS: Final = (NO_DRY_RUN, CLIENT, SERVER)
_WORDS: Final = {NO_DRY_RUN: "", CLIENT: " (dry run)", SERVER: " (server dry run)"}

Done = tuple[Kind[dict[str, Any]], Raw]


async def execute_intent(
    session: command.CommandSession, intent: Intent, *, wait: bool, timeout_s: float | None
) -> int:
    """Perform the writes of an intent, after the user has confirmed what is destroyed.

    Patches come before new objects. With `wait`, it waits for the last of the created operations.

    Returns:
        The exit status.

    Raises:
        CliError: the user did not confirm; nothing was written.
        Failure: the API rejected a write; those before it were done and printed.
    """
    for note in intent.notes:
        session.printer.warn(note)
    if intent.dry_run == NO_DRY_RUN:
        await confirm(session.invocation, intent.destroys, intent.loses)
    done = [await _patched(session, patch, intent.dry_run) for patch in intent.patches]
    done += [await _created(session, manifest, intent.made, intent.dry_run) for manifest in intent.creates]
    operations = [item for kind, item in done if kind.plural == MACHINE_OPERATIONS.plural]
    if wait and operations and intent.dry_run == NO_DRY_RUN:
        return await wait_operation(session, operations[-1]["metadata"]["name"], timeout_s=timeout_s)
    if session.printer.whole:
        for kind, item in done:
            session.printer.objects(kind, [item], alone=True)
    return command.DONE


async def execute_current(session: command.CommandSession, read: Callable[[], Awaitable[Intent]]) -> tuple[int, Intent]:
    """Perform the writes of an intent; where another client has changed an object meanwhile, read it anew and repeat.

    The user confirms a loss once; a different one needs another confirmation.

    Args:
        read: returns the intent for the objects as they are now. Its patches are bound to their versions and UIDs.

    Returns:
        The exit status, and the performed intent.

    Raises:
        Conflict: the object changed at each attempt, or another object has its name now.
    """
    intent = unconfirmed = await read()
    for left in reversed(range(TRIES)):
        try:
            return await execute_intent(session, unconfirmed, wait=False, timeout_s=None), intent
        except Conflict:
            if not left:
                raise
            before, intent = intent, await read()
            if _is_another(intent, before):
                raise
            unconfirmed = _without_confirmed(intent, before)
    raise AssertionError


def _is_another(intent: Intent, before: Intent) -> bool:
    """Return whether a patch is for a later object of the same name."""
    uids = [(one.kind.plural, one.name, one.body["metadata"]["uid"]) for one in (*before.patches, *intent.patches)]
    return len(set(uids)) != len({(plural, name) for plural, name, _uid in uids})


def _without_confirmed(intent: Intent, before: Intent) -> Intent:
    """Return an intent without the notes and the loss that the user has seen before."""
    notes = tuple(note for note in intent.notes if note not in before.notes)
    is_same = (intent.destroys, intent.loses) == (before.destroys, before.loses)
    return replace(intent, notes=notes, destroys=() if is_same else intent.destroys)


async def _patched(session: command.CommandSession, patch: IntentPatch, dry_run: str) -> Done:
    kind, written = patch.kind.raw(), patch.body
    if dry_run != CLIENT:
        written = await write_patch(session.api, patch, manager=_manager(session), dry_run=dry_run == SERVER)
    session.printer.name(kind, patch.name, patch.verb + _WORDS[dry_run])
    return kind, written


async def _created(session: command.CommandSession, manifest: Raw, verb: str, dry_run: str) -> Done:
    kind, made = kind_of(manifest), manifest
    if dry_run != CLIENT:
        made = await write_creation(session.api, manifest, manager=_manager(session), dry_run=dry_run == SERVER)
    session.printer.name(kind, made["metadata"]["name"], verb + _WORDS[dry_run])
    return kind, made


def _manager(session: command.CommandSession) -> str:
    return getattr(session.invocation.args, "field_manager", "") or command.MANAGER


async def confirm(invocation: command.CliInvocation, machines: Sequence[str], what: str) -> None:
    """Make the user type the name of the Machine at risk (for several: their number), unless --force is given.

    Args:
        what: the effect on the Machines.

    Raises:
        CliError: the input differs, or there is no terminal.
    """
    if not machines or getattr(invocation.args, "force", False):
        return
    desired = typed_consent(machines)
    if not invocation.stdin.isatty():
        text = f"confirm by typing {desired!r}; this needs a terminal"
        raise command.CliError(text, next_step="--force skips the confirmation", status=command.USAGE)
    print(
        f"{consent_question(machines, what)}\nType `{desired}` to continue: ", end="", file=invocation.err, flush=True
    )
    if (await _line(invocation.stdin)).strip() != desired:
        raise command.CliError("the text differs: nothing was changed")


async def _line(source: TextIO) -> str:
    """Read a line of a terminal, without a thread that would outlive Ctrl-C."""
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(source.fileno(), ready.set)
    try:
        await ready.wait()
        with contextlib.suppress(OSError):  # the terminal was closed
            return source.readline()
        return ""
    finally:
        loop.remove_reader(source.fileno())
