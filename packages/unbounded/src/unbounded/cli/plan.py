"""The command `plan`: parse the planned command, get its intent, forecast the effects, and print them."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, cast

import msgspec
import yaml

from unbounded.cli.plugin.command import DONE, FAILED, USAGE, CliCommand, CliError, CommandSession, Intend
from unbounded.cli.plugin.output import as_yaml, printer_for
from unbounded.cli.plugin.parsing import CommandMatch, arguments_of, commands, find, loaded
from unbounded.cli.plugin.target import config_of, open_api
from unbounded.cli.terminal_text import BOLD, CYAN, DIM, PLAIN, RED, YELLOW, Style, one_line
from unbounded.explain.links import PLUGIN
from unbounded.plan.changes import plan_deletions, plan_intent, plan_manifests
from unbounded.plan.container_cloud import DELETABLE, PLANNED, kind_of
from unbounded.plan.intent import Raw
from unbounded.plan.model import Plan, PlannedChange
from unbounded.plan.text import TRY, change_lines


async def run(session: CommandSession) -> int:
    """Run `plan COMMAND…` or `plan -f FILE`; the exit status is FAILED if a change would be rejected."""
    if session.invocation.args.filename:
        return await _run_file(session)
    if session.invocation.args.delete:
        raise CliError("--delete needs -f FILE", status=USAGE)
    inner, intend = _inner(session)
    async with open_api(inner.invocation) as api:
        planned = replace(inner, api=api)
        intent = await intend(planned)
        plan = await plan_intent(api, intent)
    for note in intent.notes:
        session.printer.warn(note)
    output(planned, plan)
    return FAILED if plan.is_refused else DONE


async def _run_file(session: CommandSession) -> int:
    """Plan the objects of Container Cloud in a file."""
    args = session.invocation.args
    if args.command:
        raise CliError("-f has the place of a command: give one of them", status=USAGE)
    namespace = args.namespace or config_of(session.invocation).namespace
    manifests, others = read_manifests(args.filename, namespace, deleted=args.delete)
    async with open_api(session.invocation) as api:
        plan = await (plan_deletions(api, manifests) if args.delete else plan_manifests(api, manifests))
    if others:
        session.printer.warn(f"note: not planned: {', '.join(others)}")
    output(session, plan)
    return FAILED if plan.is_refused else DONE


def _objects(document: Any) -> list[Any]:
    """Return the objects of a document: those of a List, as `kubectl get -o yaml` prints it, in its place."""
    if document is None:
        return []
    if isinstance(document, dict) and document.get("kind") == "List" and isinstance(document.get("items"), list):
        return list(document["items"])
    return [document]


def _fault(found: Any) -> str:
    """Return why an object cannot be planned; empty where its names have the right form."""
    if not isinstance(found, dict):
        return "expected a mapping, with apiVersion, kind and metadata"
    meta = found.get("metadata")
    if not isinstance(meta, dict):
        return "metadata: expected a mapping, with the name of the object"
    texts = {"apiVersion": found.get("apiVersion"), "kind": found.get("kind"), "metadata.name": meta.get("name")}
    texts["metadata.namespace"] = meta.get("namespace", "none")
    wrong = next((field for field, text in texts.items() if not (isinstance(text, str) and text)), "")
    return f"{wrong}: expected a text; a number needs quotes" if wrong else ""


def read_manifests(path: str, namespace: str, *, deleted: bool = False) -> tuple[list[Raw], list[str]]:
    """Return the objects of a file that can be planned, with their namespace, and the names of the others.

    Args:
        path: of the file; - for the standard input.
        deleted: return those whose deletion can be planned.

    Raises:
        CliError: the file cannot be read, or has none of them.
    """
    try:
        content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
        found = [one for body in yaml.load_all(content, Loader=yaml.CSafeLoader) for one in _objects(body)]
    except OSError as error:
        raise CliError(f"-f {path}: {error.strerror}", status=USAGE) from None
    except yaml.YAMLError:
        raise CliError(f"-f {path}: not YAML", status=USAGE) from None
    for number, one in enumerate(found, 1):
        if fault := _fault(one):
            raise CliError(f"-f {path}: object {number}: {fault}", status=USAGE)
    known = {names: kind for names, kind in PLANNED.items() if not deleted or kind in DELETABLE}
    planned = [one for one in found if (one.get("apiVersion"), one["kind"]) in known]
    if not planned:
        kinds = ", ".join(f"{kind} ({group})" for group, kind in known)
        raise CliError(f"-f {path}: has no object that can be planned: {kinds}", status=USAGE)
    own = [
        {**one, "metadata": {"namespace": namespace, **one["metadata"]}} if kind_of(one).namespaced else one
        for one in planned
    ]
    return own, [f"{one['kind']} {one['metadata']['name']}" for one in found if one not in planned]


def _inner(session: CommandSession) -> tuple[CommandSession, Intend]:
    """Return the planned command as if the user had typed it directly.

    Raises:
        CliError: the command has no intent.
    """
    invocation = session.invocation
    command, words = command_with_intent(invocation.args.command)
    args = arguments_of(command, words, program=f"{invocation.program} plan")
    for name in ("kubeconfig", "context", "as_user", "as_groups", "as_uid", "output", "no_color"):
        setattr(args, name, getattr(args, name, None) or getattr(invocation.args, name))
    invocation = replace(invocation, args=args)
    return CommandSession(invocation, session.api, printer_for(invocation)), cast("Intend", loaded(command.intend))


def command_with_intent(words: Sequence[str]) -> tuple[CliCommand, tuple[str, ...]]:
    """Return the command with these words, and its arguments. Raises CliError for one without an intent."""
    found = find(commands(), words)
    if isinstance(found, CommandMatch) and found.command.intend:
        return found.command, found.words
    there = ", ".join(" ".join(command.path) for command in commands() if command.intend)
    raise CliError(
        f"--plan does not support {' '.join(words) or 'no command'}",
        next_step=f"supported commands: {there}",
        status=USAGE,
    )


async def check_hash(session: CommandSession, intend: Intend, expected: str) -> None:
    """Raise CliError where the plan of a command has another hash than `plan` printed."""
    found = (await plan_intent(session.api, await intend(session))).hash
    if found != expected:
        text = f"--plan-hash: the plan has changed: its hash is {found}, not {expected}; nothing was changed"
        raise CliError(text, next_step="`plan` with the same command shows it")


def output(session: CommandSession, plan: Plan) -> None:
    """Print the plan in the format of -o."""
    invocation = session.invocation
    match getattr(invocation.args, "output", ""):
        case "json":
            invocation.out.write(json.dumps(msgspec.to_builtins(plan), indent=4, ensure_ascii=False) + "\n")
        case "yaml":
            invocation.out.write(as_yaml(msgspec.to_builtins(plan)))
        case "name":
            invocation.out.writelines(f"{change.what.split()[1].removesuffix(':')}\n" for change in plan.changes)
        case form:
            is_wide, style = form == "wide", invocation.style
            shown = plan_lines(plan.changes, invocation.program, wide=is_wide, style=style, digest=plan.hash)
            invocation.out.write("\n".join(shown) + "\n")


def plan_lines(
    changes: Sequence[PlannedChange],
    program: str = PLUGIN,
    *,
    wide: bool = False,
    style: Style = PLAIN,
    digest: str = "",
) -> Iterator[str]:
    """Yield a paragraph for each write: the Machines first, then what holds for all.

    Args:
        program: name of this program, for the commands in fixes.
        wide: show the stages of operations, too.
        digest: the hash of the plan.
    """
    lines = (*change_lines(changes, program, wide=wide, digest=digest), "nothing was changed")
    for line in map(one_line, lines):
        command = line.lstrip().startswith(TRY)
        for one in [line] if command else style.wrapped(line):
            yield style.paint(one, _colour(line))


def _colour(line: str) -> str:
    return next((code for pattern, code in _COLOURS if pattern.search(line)), "")


_COLOURS: Final = (
    (re.compile(r"^would "), BOLD),
    (re.compile(r"would end(?: at once)? as Failed/|the server refuses it:"), RED),
    (re.compile(rf"^ +{TRY}"), CYAN),
    (re.compile(r"^ +loses |: would wait$"), YELLOW),
    (re.compile(r"^nothing was changed$"), DIM),
)
