"""The host's packet filter: isolation of Docker from it, and removal of a former node's rules.

Docker's rules drop traffic that is forwarded to Pods. Its units are stopped and masked. Its configuration gets
`iptables: false` in case a user unmasks them.

The node shares the host's network, so kube-proxy's rules in nftables outlive the machine and would send traffic to Pods
that are gone. Before an nspawn machine starts, its predecessor's tables are cleared. Only tables that the node itself
creates are named here. The rest of the ruleset is the host's firewall, which stays unchanged. (The public agent flushes
everything.)

A reset also removes the chains of kubelet, and of a kube-proxy in iptables mode. They are among the host's own in the
tables of iptables, and a node that starts replaces them itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from unbounded.agent.interfaces import Commands, OnProgress, UnitFacts
from unbounded.agent.model import Slot
from unbounded.agent.node.nspawn import unit_of
from unbounded.agent.paths import HostPaths
from unbounded.agent.steps import original_state
from unbounded.agent.steps.step import ReversibleStep, StepHost
from unbounded.api.failures import Rejected
from unbounded.kube.durable_files import sweep, write_durably
from unbounded.kube.logs import Log

DOCKER_NAME: Final = "docker guard"
DOCKER_UNITS: Final = ("docker.socket", "docker.service")  # the socket first: it would start the service again
DOCKER_CONFIG: Final = "/etc/docker/daemon.json"
IPTABLES_KEY: Final = "iptables"


class FoundUnit(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    active: bool
    enabled: str
    masked: bool


class FoundDocker(msgspec.Struct, frozen=True, kw_only=True):
    """State of Docker before `start`.

    Args:
        written: content that `start` wrote to daemon.json; another content at the reset is a user's edit.
    """

    config: original_state.FoundFile
    written: bytes
    units: tuple[FoundUnit, ...]


BEFORE_DOCKER: Final = original_state.OriginalState("docker", FoundDocker)


def without_iptables(config: bytes | None) -> bytes:
    """Return daemon.json with the agent's key set, and the other keys unchanged.

    Raises:
        Rejected: it is no JSON object.
    """
    values = _docker_values(config)
    return config if config and values.get(IPTABLES_KEY) is False else _docker_text(values | {IPTABLES_KEY: False})


def with_original_iptables(config: bytes, found: bytes | None) -> bytes:
    """Return a daemon.json that a user has edited since, with only the agent's key restored."""
    values, earlier = _docker_values(config), _docker_values(found)
    if values.get(IPTABLES_KEY) is not False:
        return config
    rest = {key: value for key, value in values.items() if key != IPTABLES_KEY}
    return _docker_text(rest | ({IPTABLES_KEY: earlier[IPTABLES_KEY]} if IPTABLES_KEY in earlier else {}))


def _docker_values(config: bytes | None) -> dict[str, Any]:
    if not (config or b"").strip():
        return {}
    try:
        return msgspec.json.decode(config or b"", type=dict[str, Any])
    except msgspec.DecodeError as error:
        message = f"{DOCKER_CONFIG} is not a JSON object, so iptables=false cannot be set in it: {error}"
        raise Rejected(message) from error


def _docker_text(values: dict[str, Any]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(values), indent=2) + b"\n"


async def _docker_isolated(host: StepHost) -> bool:
    config = original_state.found_file(host.paths.at(DOCKER_CONFIG)).content
    if config is None or without_iptables(config) != config:
        return False
    return all([_is_masked(host.paths, await host.units.observe(unit)) for unit in DOCKER_UNITS])


def _is_masked(paths: HostPaths, unit: UnitFacts) -> bool:
    down = unit.load == "masked" or (_is_own(paths, unit.name) and unit.enabled == "disabled")
    return down and unit.active in ("inactive", "failed")


def _is_own(paths: HostPaths, unit: str) -> bool:
    """Return whether the unit is a file of the user at the path of the mask."""
    path = paths.units / unit
    return path.is_file() and not path.is_symlink()


async def _isolate_docker(host: StepHost, report: OnProgress) -> None:
    path = host.paths.at(DOCKER_CONFIG)
    config = original_state.found_file(path)
    desired = without_iptables(config.content)
    units = tuple([await _found(host, unit) for unit in DOCKER_UNITS])
    BEFORE_DOCKER.record(host.paths, FoundDocker(config=config, written=desired, units=units))
    if desired != config.content:
        original_state.make_folders(path.parent)
        write_durably(path, desired, mode=config.mode)
    for unit in DOCKER_UNITS:
        if (await host.units.observe(unit)).active not in ("inactive", "failed"):
            report(f"stopping {unit}")
            await host.units.stop(unit)
        if _is_own(host.paths, unit):
            await host.units.disable(unit)
        else:
            await host.units.mask(unit)


async def _found(host: StepHost, unit: str) -> FoundUnit:
    state = await host.units.observe(unit)
    active = state.active in ("active", "activating", "reloading")
    return FoundUnit(name=unit, active=active, enabled=state.enabled, masked=state.load == "masked")


async def _restore_docker(host: StepHost) -> None:
    found = BEFORE_DOCKER.read(host.paths)
    if found is None:
        return
    _restore(host.paths, found)
    for unit in found.units:
        if not unit.masked and not _is_own(host.paths, unit.name):
            await host.units.unmask(unit.name)
    there = [unit for unit in found.units if (await host.units.observe(unit.name)).load == "loaded"]  # or removed since
    for unit in there:
        if unit.enabled == "enabled":
            await host.units.enable(unit.name)
    for unit in there:
        if unit.active:
            await host.units.start(unit.name)
    BEFORE_DOCKER.forget(host.paths)


def _restore(paths: HostPaths, found: FoundDocker) -> None:
    path = paths.at(DOCKER_CONFIG)
    now = original_state.found_file(path)
    if now.content in (found.written, None):
        original_state.restore_file(path, found.config)
    else:
        sweep(path)
        write_durably(path, with_original_iptables(now.content or b"", found.config.content), mode=now.mode)


DOCKER: Final = ReversibleStep(DOCKER_NAME, _docker_isolated, _isolate_docker, _restore_docker)

log = Log("agent")

NAME: Final = "nftables"
TABLES: Final = ("inet unbounded", "ip kube-proxy", "ip6 kube-proxy")
UNIT: Final = "unbounded-nftables.service"
_PATH: Final = "/etc/unbounded/kube/nftables-clear.nft"
_IPTABLES: Final = frozenset({"filter", "nat", "mangle", "raw", "security"})
_KUBERNETES: Final = "KUBE-"


def cleared() -> str:
    """Return nftables commands that remove the tables, each declared first so that its deletion succeeds."""
    return "".join(f"table {table} {{ }}\ndelete table {table}\n" for table in TABLES)


class PacketChain(msgspec.Struct, frozen=True, kw_only=True):
    """A chain in the JSON output of nft.

    Args:
        hook: of a base chain; policy: verdict for packets at its end.
    """

    family: str
    table: str
    name: str
    hook: str = ""
    policy: str = ""

    @property
    def of_kubernetes(self) -> bool:
        return self.name.startswith(_KUBERNETES) and self.table in _IPTABLES and self.family in ("ip", "ip6")

    @property
    def leaves_packets_alone(self) -> bool:
        """Return whether the chain has no effect while it has no rules."""
        return bool(self.hook) and self.policy == "accept"


class PacketRule(msgspec.Struct, frozen=True, kw_only=True):
    family: str
    table: str
    chain: str
    handle: int
    expr: list[Any] = []

    @property
    def leads_to_kubernetes(self) -> bool:
        verdicts = (one.get(verb) for one in self.expr for verb in ("jump", "goto") if isinstance(one, dict))
        return any(verdict and str(verdict.get("target")).startswith(_KUBERNETES) for verdict in verdicts)


class _RulesetEntry(msgspec.Struct, frozen=True):
    chain: PacketChain | None = None
    rule: PacketRule | None = None


class _Ruleset(msgspec.Struct, frozen=True):
    nftables: list[_RulesetEntry] = []


def entries(output: str) -> tuple[list[PacketChain], list[PacketRule]]:
    """Return the chains and the rules in the output of `nft --json list …`. Raises msgspec.DecodeError."""
    found = msgspec.json.decode(output, type=_Ruleset).nftables
    return [one.chain for one in found if one.chain], [one.rule for one in found if one.rule]


def kubernetes_removed(chains: Iterable[PacketChain], rules: Iterable[PacketRule]) -> str:
    """Return nftables commands that remove Kubernetes' chains and the rules that jump to them; empty without any.

    A table without other content is removed whole: iptables creates it again when needed.

    Args:
        rules: those of all other chains in tables with such a chain.
    """
    rules = list(rules)
    by_table: dict[tuple[str, str], list[PacketChain]] = {}
    for chain in chains:
        by_table.setdefault((chain.family, chain.table), []).append(chain)
    lines = [line for place, held in by_table.items() for line in _of_table(place, held, rules)]
    return "".join(f"{line}\n" for line in lines)


def _of_table(place: tuple[str, str], chains: Sequence[PacketChain], rules: Sequence[PacketRule]) -> Iterator[str]:
    table = " ".join(place)
    names = [one.name for one in chains if one.of_kubernetes]
    if not names:
        return
    here = [one for one in rules if (one.family, one.table) == place and one.chain not in names]
    others = [one for one in chains if not one.of_kubernetes]
    if all(one.leads_to_kubernetes for one in here) and all(one.leaves_packets_alone for one in others):
        yield f"delete table {table}"
        return
    yield from (f"delete rule {table} {one.chain} handle {one.handle}" for one in here if one.leads_to_kubernetes)
    yield from (f"flush chain {table} {name}" for name in names)
    yield from (f"delete chain {table} {name}" for name in names)


async def _remove_kubernetes(commands: Commands) -> None:
    """Remove Kubernetes' chains. The host's chains are read one by one: all rules of a kube-proxy exceed the output
    limit of a command.
    """
    chains, _ = await _listed(commands, "chains")
    places = {(one.family, one.table) for one in chains if one.of_kubernetes}
    rules: list[PacketRule] = []
    for one in chains:
        if (one.family, one.table) in places and not one.of_kubernetes:
            rules += (await _listed(commands, "chain", one.family, one.table, one.name))[1]
    if script := kubernetes_removed(chains, rules):
        await commands.run("nft", "-f", "-", stdin=script.encode())


async def _listed(commands: Commands, *what: str) -> tuple[list[PacketChain], list[PacketRule]]:
    ran = await commands.run("nft", "--json", "list", *what, check=False)
    try:
        return entries(ran.stdout) if ran.ok else ([], [])
    except msgspec.DecodeError as error:  # for example from an nft that was built without JSON
        log.warning("packet rules of Kubernetes stay until a reboot", error=error, listed=" ".join(what))
        return [], []


RULES: Final = original_state.OwnFile(
    "nftables-file",
    _PATH,
    b"# Written by unbounded-agent: only tables of the node in kube1 or kube2, never the host's.\n"
    + cleared().encode(),
    mode=0o600,
)
_MACHINES: Final = " ".join(unit_of(slot) for slot in Slot)
UNIT_FILE: Final = original_state.OwnFile(
    "nftables-unit",
    f"/etc/systemd/system/{UNIT}",
    f"""# Written by unbounded-agent
[Unit]
Description=Clear the packet rules of an earlier Kubernetes node
Before={_MACHINES}

[Service]
Type=oneshot
ExecStart=/usr/bin/env nft -f {_PATH}
TimeoutStartSec=30

[Install]
WantedBy={_MACHINES}
""".encode(),
)


async def _present(host: StepHost) -> bool:
    files = RULES.is_present(host.paths) and UNIT_FILE.is_present(host.paths)
    return files and (await host.units.observe(UNIT)).enabled == "enabled"


async def _add(host: StepHost, _report: OnProgress) -> None:
    RULES.put(host.paths)
    UNIT_FILE.put(host.paths)
    await host.units.reload()
    await host.units.enable(UNIT)


async def _remove(host: StepHost) -> None:
    if _unit_is_there(host.paths):
        await host.units.disable(UNIT)
    UNIT_FILE.revert(host.paths)
    RULES.revert(host.paths)
    await host.units.reload()
    if host.has("nft"):
        await host.commands.run("nft", "-f", "-", stdin=cleared().encode())
        await _remove_kubernetes(host.commands)


def _unit_is_there(paths: HostPaths) -> bool:
    return (paths.units / UNIT).exists()


NFTABLES: Final = ReversibleStep(NAME, _present, _add, _remove)
