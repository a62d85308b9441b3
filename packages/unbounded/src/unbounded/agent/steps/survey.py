"""Node-like state of a host before `start`, which a reset does not remove, and the network state that a node leaves.

A user's own WireGuard tunnel may be named wg0, and folders may have existed; a reset has to know them to restore the
host. The survey is taken once, before any change. Interfaces, rules and tables of a node are observed and removed here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec

from unbounded.agent.interfaces import Commands, OnProgress
from unbounded.agent.model import Slot
from unbounded.agent.paths import HostPaths
from unbounded.agent.steps.original_state import OriginalState
from unbounded.agent.steps.step import ReversibleStep, StepHost
from unbounded.api.failures import Failure, Transient

FIXED: Final = ("geneve0", "vxlan0", "ipip0", "unbounded0", "cbr0")
_WIREGUARD: Final = re.compile(r"wg[0-9]+")
KEYS: Final = ("/etc/wireguard/server.priv", "/etc/wireguard/server.pub")
TABLES: Final = range(51820, 51900)
FAMILIES: Final = ("-4", "-6")
ROUNDS: Final = 8  # of removing rules: the limit against a process that still adds them


class RoutingRule(msgspec.Struct, frozen=True, order=True):
    """A policy routing rule that selects a node's table."""

    family: str
    priority: int
    table: int


class RoutingTable(msgspec.Struct, frozen=True, order=True):
    family: str
    number: int


class NodeNetworkState(msgspec.Struct, frozen=True, kw_only=True):
    """Network state of the kinds that a node leaves."""

    interfaces: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    rules: tuple[RoutingRule, ...] = ()
    tables: tuple[RoutingTable, ...] = ()

    def without(self, other: NodeNetworkState) -> NodeNetworkState:
        """Return the items that the other does not have."""
        return NodeNetworkState(
            interfaces=_rest(self.interfaces, other.interfaces),
            keys=_rest(self.keys, other.keys),
            rules=_rest(self.rules, other.rules),
            tables=_rest(self.tables, other.tables),
        )


def _rest(these: tuple[Any, ...], those: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(one for one in these if one not in set(those))


def is_node_interface(interface: str) -> bool:
    """Return whether an interface of this name is one that a node creates."""
    return interface in FIXED or _WIREGUARD.fullmatch(interface) is not None


def node_rules(family: str, output: str) -> tuple[RoutingRule, ...]:
    """Return the rules that select a node's table, from `ip -json -N rule show`."""
    seen = ((entry.get("priority"), _number(entry.get("table"))) for entry in _entries(output))
    rules = {
        RoutingRule(family, priority, table) for priority, table in seen if priority is not None and table in TABLES
    }
    return tuple(sorted(rules))


def node_tables(family: str, output: str) -> tuple[RoutingTable, ...]:
    """Return the node's tables that have routes, from `ip -json -N route show table all`."""
    numbers = {_number(entry.get("table")) for entry in _entries(output)}
    return tuple(RoutingTable(family, number) for number in sorted(numbers) if number in TABLES)


def _entries(output: str) -> list[dict[str, Any]]:
    try:
        return msgspec.json.decode(output or "[]", type=list[dict[str, Any]])
    except msgspec.DecodeError as error:
        raise Transient(f"ip printed invalid JSON: {error}") from error


def _number(table: object) -> int:
    return int(str(table)) if str(table).isdigit() else 0


async def observe_network(paths: HostPaths, commands: Commands, *, with_routes: bool) -> NodeNetworkState:
    """Return the present state.

    Args:
        with_routes: include rules and tables, for which `ip` runs.
    """
    folder = paths.at("/sys/class/net")
    interfaces = sorted(one.name for one in folder.iterdir() if is_node_interface(one.name)) if folder.is_dir() else []
    keys = tuple(key for key in KEYS if paths.at(key).exists())
    rules: tuple[RoutingRule, ...] = ()
    tables: tuple[RoutingTable, ...] = ()
    for family in FAMILIES if with_routes else ():
        rules += node_rules(family, await _ip(commands, family, "rule", "show"))
        tables += node_tables(family, await _ip(commands, family, "route", "show", "table", "all"))
    return NodeNetworkState(interfaces=tuple(interfaces), keys=keys, rules=rules, tables=tables)


async def _ip(commands: Commands, family: str, *arguments: str) -> str:
    ran = await commands.run("ip", "-json", "-N", family, *arguments, check=False)
    return ran.stdout if ran.ok else "[]"  # the kernel lacks this address family


async def remove_interfaces(commands: Commands, names: Iterable[str]) -> None:
    await _each(commands, [("ip", "link", "delete", "dev", name) for name in names])


async def remove_rules(commands: Commands, rules: Iterable[RoutingRule]) -> None:
    commands_of_rules = [
        ("ip", one.family, "rule", "delete", "pref", str(one.priority), "table", str(one.table)) for one in rules
    ]
    await _each(commands, commands_of_rules)


async def flush_tables(commands: Commands, tables: Iterable[RoutingTable]) -> None:
    await _each(commands, [("ip", one.family, "route", "flush", "table", str(one.number)) for one in tables])


async def _each(commands: Commands, commands_of_rules: Iterable[tuple[str, ...]]) -> None:
    """Run each command, whether or not others fail."""
    wrong = []
    for argv in commands_of_rules:
        try:
            await commands.run(*argv)
        except Failure as error:
            wrong.append(str(error))
    if wrong:
        raise Transient("; ".join(wrong))


NAME: Final = "survey"


class HostSurvey(msgspec.Struct, frozen=True, kw_only=True):
    """Node-like state of a host before `start`.

    Args:
        network: items of the kinds that a node leaves.
        folders: those of the agent's that did not exist.
        idle: of MACHINE_UNITS, those that were not active.
    """

    network: NodeNetworkState = NodeNetworkState()
    folders: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()


BEFORE: Final = OriginalState("survey", HostSurvey)
MACHINE_UNITS: Final = ("machine.slice", "systemd-machined.service")  # started by the first machine of a host


def folders(paths: HostPaths) -> tuple[Path, ...]:
    """Return folders on the host that the agent creates and others may use as well, outermost first."""
    ours = {paths.changes, paths.state, paths.releases, paths.bin, paths.nspawn(Slot.KUBE1).parent}
    ours |= {paths.machines, paths.at(KEYS[0]).parent, *(paths.override(slot).parent for slot in Slot)}
    above = {folder for one in ours for folder in (one, *one.parents) if folder.is_relative_to(paths.root)}
    return tuple(sorted(above - {paths.root}, key=lambda folder: len(folder.parts)))


def spared(paths: HostPaths) -> NodeNetworkState:
    """Return the network state before `start`, of the kinds that a node leaves."""
    found = BEFORE.read(paths)
    return found.network if found else NodeNetworkState()


async def _present(host: StepHost) -> bool:
    return BEFORE.read(host.paths) is not None


async def _add(host: StepHost, _report: OnProgress) -> None:
    paths = host.paths
    missing = tuple(str(folder) for folder in folders(paths) if not folder.is_dir())
    network = await observe_network(paths, host.commands, with_routes=host.has("ip"))
    idle = tuple([unit for unit in MACHINE_UNITS if (await host.units.observe(unit)).active != "active"])
    BEFORE.record(paths, HostSurvey(network=network, folders=missing, idle=idle))


async def _remove(host: StepHost) -> None:
    """Do nothing: reset reads the record until its end, and removes it with its folder."""


SURVEY: Final = ReversibleStep(NAME, _present, _add, _remove)
