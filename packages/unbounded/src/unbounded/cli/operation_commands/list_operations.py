"""`machine operation list`: as quick as `kubectl get`, with filters of its own."""

from __future__ import annotations

import contextlib
import difflib
import signal
import threading
from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from unbounded.api.names import GROUP
from unbounded.cli.plugin.command import DONE, USAGE, CliError, CommandSession
from unbounded.cli.plugin.output import NONE, rows, table
from unbounded.cli.plugin.reader import ListReader, ServerTable
from unbounded.cli.plugin.target import config_of
from unbounded.kube.api import Forbidden
from unbounded.plan.intent import Raw

if TYPE_CHECKING:
    from unbounded.kube.config import ClientConfig
    from unbounded.kube.credentials import AuthInfo

PLURAL: Final = "machineoperations"
PHASES: Final = ("Pending", "InProgress", "Complete", "Failed")
PENDING: Final = PHASES[0]
_SINGULAR: Final = f"machineoperation.{GROUP}"


async def run(session: CommandSession) -> int:
    args = session.invocation.args
    check(args)
    if args.watch:
        return await _watch(session)
    config = config_of(session.invocation)
    login = await config.credentials.login()
    try:
        with interruptible():
            _list(session, config, login)
    except Forbidden as error:  # another login may work after this one has expired
        if error.code != 401 or not config.credentials.refused(login):
            raise
        with interruptible():
            _list(session, config, await config.credentials.login())
    return DONE


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C interrupt a blocking call: asyncio would only note the signal and continue after the call."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def check(args: Namespace) -> None:
    """Raise CliError for an unknown phase, selector or format."""
    if args.phase and args.phase not in PHASES:
        near = difflib.get_close_matches(args.phase.capitalize(), PHASES, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        text = f"--phase: unknown phase {args.phase!r}: {hint}the phases are {', '.join(PHASES)}"
        raise CliError(text, status=USAGE)
    if args.kind:
        from unbounded.cli.operation_commands.create import kind_of  # noqa: PLC0415  # it brings the client along

        kind_of(args.kind)
    if args.selector:
        from unbounded.kube.selectors import SelectorError, label_test  # noqa: PLC0415

        try:
            label_test(args.selector)
        except SelectorError as error:
            raise CliError(f"--selector: {error}", status=USAGE) from None
    if args.watch and args.output in {"json", "yaml"}:
        raise CliError(f"-o {args.output}: a watch supports only columns or names", status=USAGE)


def fields_of(args: Namespace) -> str:
    """Return the field selector. An operation without a phase counts as Pending, which a selector cannot express."""
    given = {"spec.machineRef": args.machine, "status.phase": "" if args.phase == PENDING else args.phase}
    return ",".join(f"{path}={value}" for path, value in given.items() if value)


def _list(session: CommandSession, config: ClientConfig, login: AuthInfo) -> None:
    args = session.invocation.args
    with ListReader(config, login) as reader:
        if args.output in {"json", "yaml"}:
            from unbounded.api.operation import MACHINE_OPERATIONS  # noqa: PLC0415

            found = reader.objects(PLURAL, labels=args.selector, fields=fields_of(args))
            session.printer.objects(MACHINE_OPERATIONS.raw(), [item for item in found if _fits(item, args)])
            return
        found_rows = picked(reader.table(PLURAL, labels=args.selector, fields=fields_of(args)), args)
    if not found_rows.rows:
        session.printer.warn("No resources found")
    elif args.output == "name":
        session.invocation.out.writelines(f"{_SINGULAR}/{row[0]}\n" for row in found_rows.rows)
    else:
        heads, cells = shown(found_rows, wide=args.output == "wide")
        session.invocation.out.write("\n".join(table(heads, cells, session.invocation.style)) + "\n")


def _fits(item: dict[str, Any], args: Namespace) -> bool:
    phase = item.get("status", {}).get("phase") or PENDING
    return args.kind in {"", item["spec"]["operationKind"]} and args.phase in {"", phase}


def picked(found: ServerTable, args: Namespace) -> ServerTable:
    """Return the rows of the requested kind and phase."""
    if not found.rows:
        return found
    kind, phase = (found.heads.index(name) for name in ("KIND", "PHASE"))
    rows = [row for row in found.rows if args.kind in {"", row[kind]} and args.phase in {"", row[phase] or PENDING}]
    return ServerTable(found.heads, found.wide, rows)


def shown(found: ServerTable, *, wide: bool) -> tuple[list[str], list[list[str]]]:
    """Return headings and cells as text, without the columns for -o wide alone."""
    columns = [at for at, is_wide in enumerate(found.wide) if wide or not is_wide]
    cells = [[NONE if row[at] is None or row[at] == "" else str(row[at]) for at in columns] for row in found.rows]
    return [found.heads[at] for at in columns], cells


async def _watch(session: CommandSession) -> int:
    """Print all operations, then each one that changes, until Ctrl-C."""
    from unbounded.api.operation import MACHINE_OPERATIONS  # noqa: PLC0415  # a list does not wait for the client
    from unbounded.cli.plugin.target import open_api  # noqa: PLC0415
    from unbounded.cli.plugin.watching import GrowingTable, followed_cache  # noqa: PLC0415

    args = session.invocation.args
    kind = MACHINE_OPERATIONS.raw()
    wide = args.output == "wide"

    def print_change(item: Raw, *, gone: bool) -> None:
        if _fits(item, args):
            _, (row,) = rows(kind, [item], wide=wide)
            cells = [f"{_SINGULAR}/{row[0]}"] if args.output == "name" else row
            lines.print([*cells, "(deleted)"] if gone else cells)

    async with (
        open_api(session.invocation) as api,
        followed_cache(api, kind, labels=args.selector, fields=fields_of(args)) as (cache, following),
    ):
        lines = GrowingTable(
            session.invocation.out, *rows(kind, [item for item in cache.all() if _fits(item, args)], wide=wide)
        )
        if args.output != "name":
            lines.print_heads()
        with cache.subscribed(lambda old, new: print_change(new or old or {}, gone=new is None)):
            await following
    return DONE
