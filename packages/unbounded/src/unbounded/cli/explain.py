"""The command `why`: print the chain of an object, from `unbounded.explain`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from msgspec import structs

from unbounded.cli.plugin.command import DONE, USAGE, CliError, CommandSession, refuse_output
from unbounded.cli.plugin.output import print_struct, table
from unbounded.cli.terminal_text import BOLD, CYAN, DIM, PLAIN, Style, one_line
from unbounded.explain.chain import KINDS, TOPICS, SubjectAmbiguous, SubjectNotFound, explain
from unbounded.explain.links import PLUGIN, ExplainLink, Topic, UnreadFact, links_with_program
from unbounded.explain.results import Explanation
from unbounded.explain.timeline import OperationTimeline, TimelineAttempt, TimelineStage
from unbounded.kube.clock import age, utc_now
from unbounded.kube.config import ClientConfig
from unbounded.kube.http_pool import split_server

if TYPE_CHECKING:
    from unbounded.explain_api.client import ExplainClient

WATCH_EVERY_S: Final = 2.0
SEGMENTS: Final = {topic: word for word, topic in reversed(TOPICS.items())}  # of a path, by topic
WIDTH: Final = 100  # where there is no terminal
STAGE_HEADS: Final = ("STAGE", "STATE", "STARTED", "SPENT", "LIMIT", "WAITS FOR")
ATTEMPT_HEADS: Final = ("ACTION", "ATTEMPT", "STAGE", "STARTED", "REPLY", "MESSAGE")


async def run(session: CommandSession) -> int:
    """Run `why NAME`: print the chain once, or with --watch after each change until nothing blocks any more."""
    refuse_output(session.invocation, "name", "wide", what="an answer can be text, json or yaml")
    args, program = session.invocation.args, session.invocation.program
    topic, name = parsed(args.name, program)
    is_namespaced = topic is not None and KINDS[topic].namespaced
    namespace = (args.namespace or session.api.config.namespace) if is_namespaced else ""
    served = _client(session, topic) if args.url or args.url_ca else None
    before: tuple[ExplainLink, ...] = ()
    while True:
        with subject_errors(program, name):
            if served is None or topic is None:
                found = await explain(session.api, topic, name, namespace=namespace, program=program)
            else:
                found = await served.explain(SEGMENTS[topic], name, namespace=namespace)
                found = structs.replace(found, links=links_with_program(found.links, program))
        if found.links != before:
            show(session, found)
        if found.settled or not args.watch:
            return DONE
        before = found.links
        await asyncio.sleep(WATCH_EVERY_S)


def _client(session: CommandSession, topic: Topic | None) -> ExplainClient:
    """Return the client of --url. Raises CliError."""
    from unbounded.explain_api.client import ExplainClient  # noqa: PLC0415  # only for --url

    args, own = session.invocation.args, session.api.config
    if not args.url:
        raise CliError("--url-ca: valid only with --url", status=USAGE)
    if topic is None:
        raise CliError(f"--url: name the kind of {args.name}, such as machine/{args.name}", status=USAGE)
    try:
        url, authority = endpoint_of(args.url), Path(args.url_ca).read_bytes() if args.url_ca else None
    except ValueError as error:
        raise CliError(f"--url: {error}", status=USAGE) from error
    except OSError as error:
        raise CliError(f"--url-ca: cannot read {args.url_ca}: {error.strerror}", status=USAGE) from error
    if authority is None and split_server(url)[:2] == split_server(own.server)[:2]:
        return ExplainClient(replace(own, server=url))
    return ExplainClient(ClientConfig(server=url, credentials=own.credentials, ca=authority))


def endpoint_of(text: str) -> str:
    """Return the URL of an API of explanations. A login crosses a network only under TLS. Raises ValueError."""
    try:
        parts = urlsplit(text)
        is_local = parts.hostname == "localhost" or ip_address(parts.hostname or "").is_loopback
    except ValueError:  # the host is a name
        is_local = False
    if (parts.scheme == "https" or (parts.scheme == "http" and is_local)) and parts.hostname:
        return text.rstrip("/")
    raise ValueError(f"{text!r} is not https://HOST[:PORT], nor http:// of this machine")


@contextmanager
def subject_errors(program: str, name: str) -> Iterator[None]:
    """Add the next step to the errors of the subject."""
    try:
        yield
    except SubjectAmbiguous as error:
        step = f"{program} why machine/{name}, or {program} why operation/{name}"
        raise CliError(str(error), next_step=step, status=USAGE) from error
    except SubjectNotFound as error:
        kind, step = error.kind, "kubectl get mach,machineoperations"
        if kind is not None and kind.namespaced:
            step = f"kubectl get {kind.plural}.{kind.group} --all-namespaces"
        raise CliError(str(error), next_step=step) from error


def parsed(text: str, program: str = PLUGIN) -> tuple[Topic | None, str]:
    """Parse `machine/m1`, `operation/op`, `configuration/c`, `ma/m`, `bmh/h`, `cluster.cluster.k8s.io/c`, `mp/p`, or
    a bare name, to the topic and the name.

    Raises:
        CliError
    """
    kind, slash, name = text.partition("/")
    if not slash and text:
        return None, text
    topic = TOPICS.get(kind.lower())
    if topic is None or not name:
        raise CliError(
            f"{text!r} is neither machine/NAME nor operation/NAME nor configuration/NAME, nor, of Container Cloud, "
            "machine.cluster.k8s.io/NAME, bmh/NAME, cluster.cluster.k8s.io/NAME, mp/NAME, clusterrelease/NAME, "
            "bmhc/NAME, bmhp/NAME, l2t/NAME, subnet/NAME or ipamhost/NAME",
            next_step=f"{program} why machine/NAME",
            status=USAGE,
        )
    return topic, name


def show(session: CommandSession, found: Explanation) -> None:
    """Print an explanation in the format of -o."""
    if not print_struct(session.invocation, found):
        style = session.invocation.style
        shown = [*links_text(found.links, utc_now(), style), *timeline_text(found.timeline, style)]
        session.invocation.out.write("\n".join(shown) + "\n")
    warn_unread(session, found.unread)


def warn_unread(session: CommandSession, unread: Sequence[UnreadFact]) -> None:
    """Print a note on stderr for each fact that an answer leaves out."""
    for fact in unread:
        session.printer.warn(f"note: {fact.text}; the answer ignores it")


def links_text(links: Sequence[ExplainLink], now: datetime, style: Style = PLAIN) -> list[str]:
    """Return one paragraph for each link, each cause below what it blocks; then the next step, and the fixes."""
    shown: list[str] = []
    for depth, link in enumerate(links):
        shown += _head(link, depth, style)
        shown += [style.paint(one_line(_indent(depth + 1) + word), DIM) for word in _times(link, now)]
    steps = [link for link in links if link.next_step]
    for link in dict.fromkeys((steps[0], steps[-1])) if steps else ():
        shown += style.wrapped(one_line(f"next: {link.about}: {link.next_step}"), usual=WIDTH)
    shown += _fixes(links, style)
    return shown


def timeline_text(timeline: OperationTimeline | None, style: Style = PLAIN) -> list[str]:
    """Return the stages and the attempts of an operation as tables, each below an empty line."""
    if timeline is None:
        return []
    parts = (
        ("stages", timeline.dropped_stages, STAGE_HEADS, tuple(map(_stage_cells, timeline.stages))),
        ("attempts", timeline.dropped_attempts, ATTEMPT_HEADS, tuple(map(_attempt_cells, timeline.attempts))),
    )
    shown: list[str] = []
    for what, dropped, heads, rows in parts:
        if rows:
            shown += ["", *table(heads, rows, style)]
            shown += [f"{dropped} earlier {what} are not listed any more"] if dropped else []
    return shown


def _stage_cells(stage: TimelineStage) -> tuple[str, ...]:
    spent, limit = ("" if time is None else f"{time} s" for time in (stage.spent_seconds, stage.limit_seconds))
    return stage.name, stage.state, stage.started_at, spent, limit, stage.waits_for


def _attempt_cells(attempt: TimelineAttempt) -> tuple[str, ...]:
    message = ": ".join(filter(None, (attempt.reason, attempt.message)))
    return attempt.action, f"{attempt.number}", attempt.stage, attempt.started_at, attempt.reply, message


def _head(link: ExplainLink, depth: int, style: Style) -> Iterator[str]:
    """Yield the wrapped lines of a link: its subject bold, and the phase behind it in its colour."""
    because = f"{_indent(depth)}{'because ' if depth else ''}"
    first, *rest = style.wrapped(one_line(f"{because}{link.about} {link.what}"), usual=WIDTH)
    _, about, what = first.partition(one_line(link.about))
    phase, colon, words = what.lstrip().partition(":")
    reported = f" {style.phase(phase)}{colon}{words}" if what else ""
    yield f"{because}{style.paint(about, BOLD)}{reported}"
    yield from rest


def _fixes(links: Sequence[ExplainLink], style: Style) -> Iterator[str]:
    """Yield the fixes, those of the last link first."""
    seen: set[str] = set()
    for link in reversed(links):
        for fix in link.fixes:
            if fix.command not in seen:
                seen.add(fix.command)
                yield f"try:  {style.paint(one_line(fix.command), CYAN)}"
                yield style.paint(one_line(f"      # {fix.does}"), DIM)


def _times(link: ExplainLink, now: datetime) -> Iterator[str]:
    if link.held_by:
        yield f"held by {link.held_by}"
    if link.since:
        yield f"since {link.since}{_ago(link.since, now)}"
    if link.end:
        yield link.end


def _ago(since: str, now: datetime) -> str:
    found = age(since, now)
    return f" ({found} by the local clock)" if found else ""


def _indent(depth: int) -> str:
    return "  " * depth
