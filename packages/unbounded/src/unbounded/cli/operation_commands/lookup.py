"""Reads of the objects that a command names; errors suggest the names of existing ones."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from contextlib import suppress

from unbounded.api.core import CONFIG_MAPS, ConfigMap
from unbounded.api.fields import DNS_SUBDOMAIN
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import CONFIGMAP_OPERATIONS, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.cli.plugin.command import USAGE, CliError, CommandSession
from unbounded.explain.chain import TOPICS
from unbounded.explain.links import Topic
from unbounded.kube.api import Forbidden, NotFound, is_kind_missing

NAME_CHARACTERS = 253


async def machine(session: CommandSession, name: str) -> Machine:
    """Return a Machine. Raise CliError where the name is invalid, and with similar names if it does not exist."""
    kind, slash, rest = name.partition("/")
    if slash and TOPICS.get(kind) is Topic.MACHINE:  # as `why` and `tree` take it
        raise CliError(f"MACHINE: {name!r} is more than a name", next_step=f"did you mean {rest}?", status=USAGE)
    checked_name(name, "MACHINE")
    try:
        return await session.api.get(MACHINES, name)
    except NotFound as error:
        if is_kind_missing(error):
            raise
        existing = []
        with suppress(Forbidden):
            existing = [one.name for one in (await session.api.list(MACHINES)).items]
        raise CliError(f"Machine {name} does not exist", next_step=_near(name, existing, "kubectl get mach")) from error


async def operation(session: CommandSession, name: str) -> MachineOperation:
    """Return a MachineOperation. Raise CliError where the name is invalid, or if it does not exist."""
    checked_name(name, "OPERATION")
    try:
        return await session.api.get(MACHINE_OPERATIONS, name)
    except NotFound as error:
        if is_kind_missing(error):
            raise
        existing = [one.name for one in (await session.api.list(MACHINE_OPERATIONS)).items]
        lists = f"{session.invocation.program} machine operation list"
        raise CliError(f"MachineOperation {name} does not exist", next_step=_near(name, existing, lists)) from error


async def pause_of_all(session: CommandSession) -> ConfigMap | None:
    """Return the ConfigMap whose annotation pauses all operations; None if it does not exist."""
    try:
        return await session.api.get(CONFIG_MAPS, CONFIGMAP_OPERATIONS, namespace=NAMESPACE)
    except NotFound:
        return None


def _near(name: str, existing: Iterable[str], lists: str) -> str:
    near = difflib.get_close_matches(name, existing, n=3)
    return f"did you mean {' or '.join(near)}?" if near else f"`{lists}` lists the existing ones"


def checked_name(name: str, flag: str) -> str:
    """Return the name of an object. Raise CliError where Kubernetes would reject it."""
    if len(name) <= NAME_CHARACTERS and re.fullmatch(DNS_SUBDOMAIN, name):
        return name
    rule = f"lower case letters, digits, '-' and '.', a letter or digit at both ends, {NAME_CHARACTERS} at most"
    raise CliError(f"{flag}: {name!r} is not a valid name: {rule}", status=USAGE)
