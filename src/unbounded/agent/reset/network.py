"""What a node leaves on the network of its host: which interfaces, rules and tables are a node's, and how they go."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from unbounded.agent.layout import Layout
from unbounded.agent.ports import Commands
from unbounded.api.failures import Failure, Transient

FIXED: Final = ("geneve0", "vxlan0", "ipip0", "unbounded0", "cbr0")
_WIREGUARD: Final = re.compile(r"wg[0-9]+")
KEYS: Final = ("/etc/wireguard/server.priv", "/etc/wireguard/server.pub")
TABLES: Final = range(51820, 51900)
FAMILIES: Final = ("-4", "-6")
ROUNDS: Final = 8  # of removing rules: somebody who still adds them is not outrun


class Rule(msgspec.Struct, frozen=True, order=True):
    """A rule of policy routing that leads into a node's table."""

    family: str
    priority: int
    table: int


class Table(msgspec.Struct, frozen=True, order=True):
    family: str
    number: int


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """What there is on a host of the kinds that a node leaves."""

    interfaces: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    tables: tuple[Table, ...] = ()

    def without(self, other: Left) -> Left:
        """What is here and not in the other."""
        return Left(
            interfaces=_rest(self.interfaces, other.interfaces),
            keys=_rest(self.keys, other.keys),
            rules=_rest(self.rules, other.rules),
            tables=_rest(self.tables, other.tables),
        )


def _rest(these: tuple[Any, ...], those: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(one for one in these if one not in set(those))


def is_nodes(interface: str) -> bool:
    """Whether an interface of this name is one that a node makes."""
    return interface in FIXED or _WIREGUARD.fullmatch(interface) is not None


def nodes_rules(family: str, told: str) -> tuple[Rule, ...]:
    """From `ip -json -N rule show`: the rules that lead into a node's table."""
    seen = ((entry.get("priority"), _number(entry.get("table"))) for entry in _entries(told))
    rules = {Rule(family, priority, table) for priority, table in seen if priority is not None and table in TABLES}
    return tuple(sorted(rules))


def nodes_tables(family: str, told: str) -> tuple[Table, ...]:
    """From `ip -json -N route show table all`: the node's tables that hold routes."""
    numbers = {_number(entry.get("table")) for entry in _entries(told)}
    return tuple(Table(family, number) for number in sorted(numbers) if number in TABLES)


def _entries(told: str) -> list[dict[str, Any]]:
    try:
        return msgspec.json.decode(told or "[]", type=list[dict[str, Any]])
    except msgspec.DecodeError as error:
        raise Transient(f"ip printed no JSON: {error}") from error


def _number(table: object) -> int:
    return int(str(table)) if str(table).isdigit() else 0


async def look(layout: Layout, commands: Commands, *, with_routes: bool) -> Left:
    """What is there now.

    Args:
        with_routes: rules and tables too, for which `ip` is asked.
    """
    folder = layout.at("/sys/class/net")
    interfaces = sorted(one.name for one in folder.iterdir() if is_nodes(one.name)) if folder.is_dir() else []
    keys = tuple(key for key in KEYS if layout.at(key).exists())
    rules: tuple[Rule, ...] = ()
    tables: tuple[Table, ...] = ()
    for family in FAMILIES if with_routes else ():
        rules += nodes_rules(family, await _ip(commands, family, "rule", "show"))
        tables += nodes_tables(family, await _ip(commands, family, "route", "show", "table", "all"))
    return Left(interfaces=tuple(interfaces), keys=keys, rules=rules, tables=tables)


async def _ip(commands: Commands, family: str, *arguments: str) -> str:
    ran = await commands.run("ip", "-json", "-N", family, *arguments, check=False)
    return ran.stdout if ran.ok else "[]"  # a kernel without this family


async def remove_interfaces(commands: Commands, names: Iterable[str]) -> None:
    await _each(commands, [("ip", "link", "delete", "dev", name) for name in names])


async def remove_rules(commands: Commands, rules: Iterable[Rule]) -> None:
    asks = [("ip", one.family, "rule", "delete", "pref", str(one.priority), "table", str(one.table)) for one in rules]
    await _each(commands, asks)


async def flush_tables(commands: Commands, tables: Iterable[Table]) -> None:
    await _each(commands, [("ip", one.family, "route", "flush", "table", str(one.number)) for one in tables])


async def _each(commands: Commands, asks: Iterable[tuple[str, ...]]) -> None:
    """Ask for each, whatever becomes of the others."""
    wrong = []
    for argv in asks:
        try:
            await commands.run(*argv)
        except Failure as error:
            wrong.append(str(error))
    if wrong:
        raise Transient("; ".join(wrong))
