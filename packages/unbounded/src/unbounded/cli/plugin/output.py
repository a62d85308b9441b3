"""Output in the format of -o. Light: modules that only one format needs are imported for that format."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, TextIO

from unbounded.cli import terminal_text
from unbounded.cli.plugin.command import CliInvocation
from unbounded.cli.terminal_text import PLAIN, Style
from unbounded.plan.intent import Raw, full_name

if TYPE_CHECKING:
    from unbounded.api.crd import PrinterColumn
    from unbounded.api.meta import Kind

NONE: Final = "<none>"
GAP: Final = "   "
LEAST_MESSAGE: Final = 12  # characters; where there is less room, the terminal wraps the line


class TextPrinter:
    """A `Printer` on two streams."""

    def __init__(self, out: TextIO, err: TextIO, *, output: str = "", style: Style = PLAIN) -> None:
        self._out, self._err, self._output, self._style = out, err, output, style

    @property
    def whole(self) -> bool:
        return self._output in {"json", "yaml"}

    def objects(self, kind: Kind[Any], items: Sequence[Raw], *, alone: bool = False) -> None:
        shown = [cleaned(kind, item) for item in items]
        match self._output:
            case "json":
                print(json.dumps(_one(shown, alone=alone), indent=4), file=self._out)
            case "yaml":
                print(as_yaml(_one(shown, alone=alone)), end="", file=self._out)
            case "name":
                for item in shown:
                    print(terminal_text.one_line(full_name(kind, item["metadata"]["name"])), file=self._out)
            case _ if not shown:
                print("No resources found", file=self._err)
            case _:
                for line in table(*rows(kind, shown, wide=self._output == "wide"), self._style):
                    print(line, file=self._out)

    def name(self, kind: Kind[Any], name: str, verb: str) -> None:
        if self.whole:
            return
        done = terminal_text.one_line(
            full_name(kind, name) if self._output == "name" else f"{full_name(kind, name)} {verb}"
        )
        print(done, file=self._out)
        self._out.flush()

    def info(self, text: str) -> None:
        to = self._err if self._output in {"json", "yaml", "name"} else self._out
        print(terminal_text.lines(text), file=to, flush=True)

    def warn(self, text: str) -> None:
        print(terminal_text.lines(text), file=self._err, flush=True)


def printer_for(invocation: CliInvocation) -> TextPrinter:
    return TextPrinter(
        invocation.out, invocation.err, output=getattr(invocation.args, "output", ""), style=invocation.style
    )


def cleaned(kind: Kind[Any], item: Raw) -> dict[str, Any]:
    """Return an object as kubectl prints it: with apiVersion and kind first, without managedFields."""
    metadata = {name: value for name, value in (item.get("metadata") or {}).items() if name != "managedFields"}
    rest = {name: value for name, value in item.items() if name not in {"apiVersion", "kind", "metadata"}}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, **rest}


def _one(items: list[dict[str, Any]], *, alone: bool) -> Raw:
    if alone and len(items) == 1:
        return items[0]
    return {"apiVersion": "v1", "kind": "List", "metadata": {"resourceVersion": ""}, "items": items}


def as_yaml(item: Raw | list[Any]) -> str:
    import yaml  # noqa: PLC0415  # only -o yaml waits for it

    return yaml.dump(item, Dumper=yaml.CSafeDumper, default_flow_style=False, sort_keys=False, allow_unicode=True)


def print_struct(invocation: CliInvocation, found: Any) -> bool:
    """Print a struct as JSON or YAML where -o asks for it; return whether it did."""
    import msgspec  # noqa: PLC0415  # a list of the server's rows does not wait for it

    match getattr(invocation.args, "output", ""):
        case "json":
            invocation.out.write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")
        case "yaml":
            invocation.out.write(as_yaml(msgspec.to_builtins(found)))
        case _:
            return False
    return True


def rows(kind: Kind[Any], items: Iterable[Raw], *, wide: bool) -> tuple[list[str], list[list[str]]]:
    """Return headings and cells, with the columns of the kind's definition."""
    columns = [column for column in columns_of(kind) if wide or not column.wide]
    heads = ["NAME", *(column.name.upper() for column in columns)]
    return heads, [[item["metadata"]["name"], *(_cell(column, item) for column in columns)] for item in items]


def columns_of(kind: Kind[Any]) -> tuple[PrinterColumn, ...]:
    """Return the columns of a kind beside its name."""
    from unbounded.api.crd import AGE, DEFINITIONS  # noqa: PLC0415

    for definition in DEFINITIONS:
        if (definition.kind.group, definition.kind.plural) == (kind.group, kind.plural):
            return definition.columns
    return (AGE,)


def _cell(column: PrinterColumn, item: Raw) -> str:
    value = at_path(item, column.path)
    if value is None or value == "":
        return NONE
    if column.type == "date":
        from unbounded.kube.clock import age, utc_now  # noqa: PLC0415

        return age(str(value), utc_now())
    return str(value).lower() if isinstance(value, bool) else str(value)


def at_path(item: Any, path: str) -> Any:
    r"""Return the value at a path of a printer column: `.a.b[0].c`, with dots of a key as `\.`; None where there is
    none.
    """
    value = item
    for step in path.replace("\\.", "\0").replace("[", ".").replace("]", "").split("."):
        key = step.replace("\0", ".")
        if not key:
            continue
        if isinstance(value, list):
            value = value[int(key)] if key.isdigit() and int(key) < len(value) else None
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return value


def table(heads: Sequence[str], cells: Sequence[Sequence[str]], style: Style = PLAIN) -> Iterable[str]:
    """Yield lines in columns like kubectl's; a message in the last column is cut to the terminal's width."""
    cells = [[terminal_text.one_line(cell) for cell in row] for row in cells]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    phase = heads.index("PHASE") if "PHASE" in heads else None
    has_room = sum(widths[:-1]) + len(GAP) * len(widths[:-1]) + LEAST_MESSAGE <= style.columns
    for row in (heads, *cells):
        line = GAP.join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        line = style.cut(line) if heads[-1] == "MESSAGE" and has_room else line
        if phase is None or row is heads:
            yield line
        else:
            at = sum(widths[:phase]) + len(GAP) * phase
            end = at + len(row[phase])
            yield line[:at] + style.phase(line[at:end]) + line[end:]
