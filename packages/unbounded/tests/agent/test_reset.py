"""Taking a host back, on one made up in a folder: all of it, again, cut off anywhere, and what cannot be removed."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.agent.made_up_host import in_memory, with_apt, with_swap
from tests.agent.made_up_start import MadeUpStart, made_up_start
from unbounded.agent import reset as resetting
from unbounded.agent import reset_parts
from unbounded.agent.lock import host_lock
from unbounded.agent.model import Slot
from unbounded.agent.paths import DAEMON_UNIT, RECOVERY_TIMER, HostPaths
from unbounded.agent.reset import ResetResult, is_under_way, refuse_if_under_way, reset
from unbounded.agent.reset_parts import ResetContext
from unbounded.agent.steps.start_steps import start_steps
from unbounded.agent.steps.step import StepHost, add_all
from unbounded.agent.steps.survey import (
    NodeNetworkState,
    RoutingRule,
    RoutingTable,
    is_node_interface,
    node_rules,
    node_tables,
)
from unbounded.agent.upgrade.units import arm
from unbounded.api.failures import Rejected, Transient

RULES = [
    {"priority": 0, "src": "all", "table": "255"},
    {"priority": 100, "src": "all", "table": "51820"},
    {"priority": 100, "src": "10.0.0.1", "table": "51820"},
    {"priority": 101, "src": "all", "table": "51899", "fwmark": "0x10"},
    {"priority": 102, "src": "all", "table": "51900"},
    {"priority": 32766, "src": "all", "table": "254"},
]


WRITTEN = (
    "/etc/fstab",
    "/etc/docker/daemon.json",
    "/etc/sysctl.d/99-kubernetes.conf",
    "/etc/systemd/nspawn/kube1.nspawn",
    "/etc/systemd/system/systemd-nspawn@kube1.service.d/override.conf",
    "/etc/systemd/system/unbounded-nftables.service",
    f"/etc/systemd/system/{DAEMON_UNIT}",
    "/usr/local/bin/unbounded-agent-current",
)


def silent(_words: str) -> None:
    pass


@pytest.fixture
def world(tmp_path: Path) -> MadeUpStart:
    made = made_up_start(tmp_path)
    with_swap(made.made)
    with_network(made)
    return made


def with_network(world: MadeUpStart) -> dict[str, list[dict[str, object]]]:
    """An `ip` that remembers: rules by family, and interfaces below /sys/class/net."""
    rules: dict[str, list[dict[str, object]]] = {"-4": [], "-6": []}

    def ip(argv: tuple[str, ...]) -> tuple[int, str]:
        match argv:
            case ("ip", "-json", "-N", family, "rule", "show"):
                return 0, json.dumps(rules[family])
            case ("ip", "-json", "-N", _, "route", "show", "table", "all"):
                return 0, "[]"
            case ("ip", family, "rule", "delete", "pref", priority, "table", table):
                wanted = (int(priority), table)
                at = next(i for i, rule in enumerate(rules[family]) if (rule["priority"], rule["table"]) == wanted)
                del rules[family][at]
            case ("ip", "link", "delete", "dev", name):
                world.paths.at(f"/sys/class/net/{name}").rmdir()
        return 0, ""

    world.made.commands.answers["ip"] = ip
    return rules


def interface(world: MadeUpStart, name: str) -> Path:
    path = world.paths.at(f"/sys/class/net/{name}")
    path.mkdir(parents=True)
    return path


def on(world: MadeUpStart) -> ResetContext:
    return ResetContext(world.made.host, world.nodes)


def seen(world: MadeUpStart) -> dict[str, tuple[int, bytes | str]]:
    tree = world.made.tree()
    for volatile in ("proc/swaps", "run/unbounded-agent/", "run/unbounded-agent/host.lock"):
        tree.pop(volatile, None)
    return tree


async def started(world: MadeUpStart) -> None:
    await add_all(start_steps(debootstrap=False), world.starting(), silent)


@pytest.mark.slow
async def test_a_host_after_reset_is_the_host_before_start(world: MadeUpStart) -> None:
    world.made.write("/etc/docker/daemon.json", '{"iptables":true}')
    before = seen(world)
    await started(world)
    for path in WRITTEN:  # as losses of power leave it
        world.paths.at(path).with_name(f".unfinished-{Path(path).name}0a1b2c3d").touch()
    done = await reset(on(world), silent)
    assert done.whole
    assert seen(world) == before
    assert (await world.made.units.observe(DAEMON_UNIT)).active == "inactive"
    assert not world.nodes.running.get(Slot.KUBE1)


@pytest.mark.slow
async def test_a_second_reset_finds_nothing_to_do_and_says_so(world: MadeUpStart) -> None:
    await started(world)
    await reset(on(world), silent)
    before = seen(world)
    assert (await reset(on(world), silent)).whole
    assert seen(world) == before


async def test_a_host_that_never_was_a_node_is_left_as_it_is(world: MadeUpStart) -> None:
    before = seen(world)
    assert (await reset(on(world), silent)).whole
    assert seen(world) == before


async def test_the_parts_come_in_the_order_of_the_documents(world: MadeUpStart) -> None:
    said: list[str] = []
    await reset(on(world), said.append)
    assert said == [
        "nspawn machines",
        "network interfaces",
        "WireGuard keys",
        "nspawn configuration",
        "machine file systems",
        "policy routing",
        "host settings",
        "agent",
        "systemd",
        "records",
    ]


@pytest.mark.slow
async def test_both_machines_go_whichever_the_node_is_in(world: MadeUpStart) -> None:
    await started(world)
    await reset(on(world), silent)
    assert {f"stop {slot}" for slot in Slot} | {f"remove {slot}" for slot in Slot} <= set(world.nodes.did)
    assert world.nodes.did.index("stop_services kube1") < world.nodes.did.index("stop kube1")


# Failures


@pytest.mark.slow
async def test_what_cannot_be_removed_is_named_and_everything_else_goes(world: MadeUpStart) -> None:
    await started(world)
    for name in ("wg0", "geneve0"):
        interface(world, name)
    world.nodes.stubborn = {"remove kube2"}
    obeying = world.made.commands.answers["ip"]
    world.made.commands.answers["ip"] = lambda argv: (2, "not supported") if argv[-1] == "wg0" else obeying(argv)
    done = await reset(on(world), silent)
    assert [left.name for left in done.left] == ["wg0", "kube2"]
    assert "not supported" in done.left[0].why
    assert not world.paths.rootfs("kube1").exists()
    assert not world.paths.at("/etc/sysctl.d/99-kubernetes.conf").exists()
    assert not interface_exists(world, "geneve0")


def interface_exists(world: MadeUpStart, name: str) -> bool:
    return world.paths.at(f"/sys/class/net/{name}").exists()


@pytest.mark.slow
async def test_the_agent_and_the_marker_stay_until_all_else_is_gone(world: MadeUpStart) -> None:
    await started(world)
    world.nodes.stubborn = {"remove kube1"}
    assert not (await reset(on(world), silent)).whole
    assert is_under_way(world.paths)
    assert world.paths.current.exists()
    assert world.paths.config.exists()
    with pytest.raises(Rejected, match="run `unbounded-agent reset` first"):
        refuse_if_under_way(world.paths)
    world.nodes.stubborn = set()
    assert (await reset(on(world), silent)).whole
    assert not is_under_way(world.paths)
    assert not world.paths.current.is_symlink()


@pytest.mark.slow
async def test_services_that_do_not_stop_keep_no_machine_running(world: MadeUpStart) -> None:
    await started(world)
    world.nodes.stubborn = {"stop_services kube1"}
    assert (await reset(on(world), silent)).whole


async def test_nothing_is_taken_away_while_a_start_holds_the_host(
    world: MadeUpStart, monkeypatch: pytest.MonkeyPatch
) -> None:
    await started(world)
    monkeypatch.setattr(resetting, "host_lock", lambda paths, who: host_lock(paths, who, within_s=0.1))
    async with host_lock(world.paths, "unbounded-agent start"):
        with pytest.raises(Transient, match=r"unbounded-agent start \(pid \d+\) holds the lock of this host"):
            await reset(on(world), silent)
    assert world.paths.rootfs("kube1").exists()
    assert not is_under_way(world.paths)
    assert f"stop {DAEMON_UNIT}" not in world.made.units.did


async def held_by_the_daemon(world: MadeUpStart, *, until: asyncio.Event) -> asyncio.Task[None]:
    """The daemon is this process, and is in the middle of something."""
    units = world.made.units
    units.units[DAEMON_UNIT] = replace(units.units[DAEMON_UNIT], main_pid=os.getpid())
    held = asyncio.Event()

    async def hold() -> None:
        async with host_lock(world.paths, "recreation"):
            held.set()
            await until.wait()

    work = asyncio.create_task(hold())
    await held.wait()
    return work


@pytest.mark.slow
async def test_a_daemon_that_holds_the_host_is_stopped_for_it(
    world: MadeUpStart, monkeypatch: pytest.MonkeyPatch
) -> None:
    await started(world)
    free = asyncio.Event()
    work = await held_by_the_daemon(world, until=free)
    stop = world.made.units.stop

    async def stopping(unit: str, *, timeout_s: float = 90.0) -> None:
        await stop(unit, timeout_s=timeout_s)
        if unit == DAEMON_UNIT:
            free.set()

    monkeypatch.setattr(world.made.units, "stop", stopping)
    assert (await reset(on(world), silent)).whole
    await work


@pytest.mark.slow
async def test_a_daemon_that_was_stopped_in_vain_is_started_again(
    world: MadeUpStart, monkeypatch: pytest.MonkeyPatch
) -> None:
    await started(world)
    monkeypatch.setattr(resetting, "host_lock", lambda paths, who: host_lock(paths, who, within_s=0.1))
    free = asyncio.Event()
    work = await held_by_the_daemon(world, until=free)
    with pytest.raises(Transient, match=r"recreation \(pid \d+\) holds the lock of this host"):
        await reset(on(world), silent)
    assert f"stop {DAEMON_UNIT}" in world.made.units.did
    assert (await world.made.units.observe(DAEMON_UNIT)).active == "active"
    assert not is_under_way(world.paths)
    free.set()
    await work


async def test_a_daemon_that_does_not_stop_keeps_its_recovery(
    world: MadeUpStart, monkeypatch: pytest.MonkeyPatch
) -> None:
    await started(world)
    await arm(world.paths, world.made.units, seconds=300)
    stop = world.made.units.stop

    async def stubborn(unit: str, *, timeout_s: float = 90.0) -> None:
        if unit == DAEMON_UNIT:
            raise Transient("it does not stop")
        await stop(unit, timeout_s=timeout_s)

    monkeypatch.setattr(world.made.units, "stop", stubborn)
    with pytest.raises(Transient, match="it does not stop"):
        await reset(on(world), silent)
    assert (await world.made.units.observe(RECOVERY_TIMER)).active == "active"
    assert not is_under_way(world.paths)


class Cut(Exception):
    """The power is gone."""


class Power:
    """Goes out at one of the calls that are counted."""

    def __init__(self, cut_at: int) -> None:
        self.cut_at = cut_at
        self.calls = 0

    def spend(self, _words: str = "") -> None:
        """One more call."""
        self.calls += 1
        if self.calls > self.cut_at:
            raise Cut

    def over(self, part: object) -> Any:
        """The same part, with every call of it counted."""

        class Counted:
            def __getattr__(_self, name: str) -> Any:  # noqa: N805
                method = getattr(part, name)

                async def call(*args: Any, **kwargs: Any) -> Any:
                    self.spend()
                    return await method(*args, **kwargs)

                return call if inspect.iscoroutinefunction(method) else method

        return Counted()


async def _cut_off_everywhere(attempt: Callable[[int, Path], Awaitable[bool]]) -> int:
    """Return the number of attempts until one, each interrupted a call later than the last, was complete."""
    cut_at, through = 0, False
    with in_memory() as folder:
        while not through:
            through = await attempt(cut_at, folder / str(cut_at))
            cut_at += 1
    return cut_at


@pytest.mark.slow
async def test_reset_interrupted_at_any_call_is_completed_by_the_next() -> None:
    """Commands, systemd and slots are all that a reset waits for: it is cut off before each such call once."""
    assert await _cut_off_everywhere(_cut_off_at) > 20


async def _cut_off_at(cut_at: int, root: Path) -> bool:
    """Return whether the reset was complete before that call."""
    world = made_up_start(root)
    with_swap(world.made)
    with_network(world)
    before = seen(world)
    await started(world)
    for name in ("wg0", "wg1"):
        interface(world, name)
    power, host = Power(cut_at), world.made.host
    cut_host = StepHost(host.paths, power.over(host.commands), power.over(host.units))
    through = False
    try:
        await reset(ResetContext(cut_host, power.over(world.nodes)), silent)
        through = True
    except Cut:
        world.nodes.running.clear()
    assert (await reset(on(world), silent)).whole, cut_at
    assert seen(world) == before, cut_at
    return through


@pytest.mark.slow
async def test_start_interrupted_at_any_call_is_completed_and_can_be_reset() -> None:
    """Inside of steps too: all that a step waits for, and each time that a slot is half built."""
    assert await _cut_off_everywhere(_start_cut_off_at) > 40


async def _start_cut_off_at(cut_at: int, root: Path) -> bool:
    """Return whether the start was complete before that call."""
    world = made_up_start(root)
    with_swap(world.made)
    with_network(world)
    with_apt(world.made)
    world.made.remove_program("nft")
    world.made.write("/etc/docker/daemon.json", '{"debug": true}')
    before, power, host = seen(world), Power(cut_at), world.made.host
    cut_host = StepHost(host.paths, power.over(host.commands), power.over(host.units))
    starting = replace(world.starting(), host=cut_host, nodes=power.over(world.nodes))
    through = False
    try:
        await add_all(start_steps(debootstrap=False), starting, power.spend)
        through = True
    except Cut:
        world.nodes.running.clear()
    if cut_at % 2:
        await started(world)
        daemon, facts = await world.made.units.observe(DAEMON_UNIT), await world.nodes.observe(Slot.KUBE1)
        assert (daemon.active, facts.running, facts.applied is not None) == ("active", True, True), cut_at
    assert (await reset(on(world), silent)).whole, cut_at
    left = seen(world)
    assert {path: left.get(path) for path in before} == before, cut_at
    assert left.keys() - before.keys() <= {"usr/bin/nft"}, (cut_at, left.keys() - before.keys())
    return through


# State before


@pytest.mark.slow
async def test_a_tunnel_and_a_key_from_before_stay_and_are_named(world: MadeUpStart) -> None:
    interface(world, "wg0")
    world.made.write("/etc/wireguard/server.priv", "mine")
    await started(world)
    interface(world, "wg1")
    world.made.write("/etc/wireguard/server.pub", "the node's")
    done = await reset(on(world), silent)
    assert interface_exists(world, "wg0")
    assert not interface_exists(world, "wg1")
    assert world.paths.at("/etc/wireguard/server.priv").read_text() == "mine"
    assert not world.paths.at("/etc/wireguard/server.pub").exists()
    assert "existed before start, and stays: wg0" in done.lines()


@pytest.mark.slow
async def test_a_reset_where_no_node_is_any_more_takes_nothing_for_one(world: MadeUpStart) -> None:
    interface(world, "wg0")
    await started(world)
    await reset(on(world), silent)
    interface(world, "wg1")
    assert (await reset(on(world), silent)).whole
    assert interface_exists(world, "wg0")
    assert interface_exists(world, "wg1")


@pytest.mark.slow
async def test_reset_interrupted_at_its_end_still_spares_foreign_resources(
    world: MadeUpStart, monkeypatch: pytest.MonkeyPatch
) -> None:
    interface(world, "wg0")
    await started(world)
    before = reset_parts.remove_tree

    def cut(path: Path) -> None:
        if path == world.paths.changes:
            raise Cut
        before(path)

    monkeypatch.setattr(resetting, "remove_tree", cut)
    with pytest.raises(Cut):
        await reset(on(world), silent)
    monkeypatch.undo()
    assert (await reset(on(world), silent)).whole
    assert interface_exists(world, "wg0")
    assert not world.paths.etc.exists()


@pytest.mark.slow
async def test_packages_stay_and_are_listed(world: MadeUpStart) -> None:
    world.made.remove_program("nft")
    with_apt(world.made)
    await started(world)
    done = await reset(on(world), silent)
    assert "installed by start, and not removed: libnftables, nftables" in done.lines()


@pytest.mark.slow
async def test_rules_into_the_nodes_tables_go_also_where_two_have_one_priority(world: MadeUpStart) -> None:
    rules = with_network(world)
    await started(world)
    rules["-4"][:] = list(RULES)
    assert (await reset(on(world), silent)).whole
    assert [rule["priority"] for rule in rules["-4"]] == [0, 102, 32766]


@pytest.mark.slow
async def test_rules_that_come_back_are_named(world: MadeUpStart) -> None:
    rules = with_network(world)
    await started(world)
    rules["-6"][:] = [RULES[1]]
    obeying = world.made.commands.answers["ip"]
    world.made.commands.answers["ip"] = lambda argv: (0, "") if "delete" in argv else obeying(argv)
    done = await reset(on(world), silent)
    assert [str(left) for left in done.left] == ["-6 rule 100 into table 51820: they appear again"]


# Pure parts

NAMES = {
    "wg0": True,
    "wg12": True,
    "wg": False,
    "wgvpn": False,
    "wg0a": False,
    "geneve0": True,
    "geneve1": False,
    "vxlan0": True,
    "ipip0": True,
    "unbounded0": True,
    "cbr0": True,
    "eth0": False,
    "xwg0": False,
}


@pytest.mark.parametrize("name", NAMES)
def test_which_interfaces_are_a_nodes(name: str) -> None:
    assert is_node_interface(name) is NAMES[name]


def test_which_rules_and_tables_are_a_nodes() -> None:
    told = json.dumps(RULES)
    assert node_rules("-4", told) == (RoutingRule("-4", 100, 51820), RoutingRule("-4", 101, 51899))
    routes = json.dumps([{"dst": "default", "table": "51830"}, {"dst": "default", "table": "main"}, {"dst": "x"}])
    assert node_tables("-6", routes) == (RoutingTable("-6", 51830),)
    with pytest.raises(Transient, match="printed invalid JSON"):
        node_rules("-4", "Usage: ip")


def test_what_was_there_before_is_not_left() -> None:
    now = NodeNetworkState(interfaces=("wg0", "wg1"), rules=(RoutingRule("-4", 1, 51820),))
    assert now.without(NodeNetworkState(interfaces=("wg0",))) == NodeNetworkState(
        interfaces=("wg1",), rules=(RoutingRule("-4", 1, 51820),)
    )


def test_the_release_goes_after_everything_that_a_reset_needs(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    order = reset_parts.own_files(paths)
    assert order[0] == paths.cache
    assert order[-1] == paths.releases
    assert all(paths.etc not in path.parents for path in order)


def test_a_whole_reset_says_what_is_left_to_do() -> None:
    assert any("delete the Node" in line for line in ResetResult().lines())
