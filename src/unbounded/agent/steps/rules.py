"""No packet rules of a dead node: before an nspawn machine starts, the tables that its predecessor left are cleared.

The node shares the host's network, so what kube-proxy put into nftables outlives the machine, and would go on sending
traffic to Pods that are gone. Only tables that the node itself makes are named here; the rest of the ruleset is the
host's firewall, which stays as it is. (The public agent flushes everything.)
"""

from __future__ import annotations

from typing import Final

from unbounded.agent.layout import Layout
from unbounded.agent.model import Slot
from unbounded.agent.node.nspawn import unit_of
from unbounded.agent.ports import Tell
from unbounded.agent.steps.files import OwnFile
from unbounded.agent.steps.host import Host
from unbounded.agent.steps.step import Step

NAME: Final = "nftables"
TABLES: Final = ("inet unbounded", "ip kube-proxy", "ip6 kube-proxy")
UNIT: Final = "unbounded-nftables.service"
_PATH: Final = "/etc/unbounded/kube/nftables-clear.nft"


def cleared() -> str:
    """nftables commands that leave none of the tables; declaring one first makes its deletion succeed without it."""
    return "".join(f"table {table} {{ }}\ndelete table {table}\n" for table in TABLES)


RULES: Final = OwnFile(
    "nftables-file",
    _PATH,
    b"# Written by unbounded-agent: only tables of the node in kube1 or kube2, never the host's.\n"
    + cleared().encode(),
    mode=0o600,
)
_MACHINES: Final = " ".join(unit_of(slot) for slot in Slot)
UNIT_FILE: Final = OwnFile(
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


async def _present(host: Host) -> bool:
    files = RULES.stands(host.layout) and UNIT_FILE.stands(host.layout)
    return files and (await host.units.look(UNIT)).enabled == "enabled"


async def _add(host: Host, _tell: Tell) -> None:
    RULES.put(host.layout)
    UNIT_FILE.put(host.layout)
    await host.units.reload()
    await host.units.enable(UNIT)


async def _remove(host: Host) -> None:
    if _unit_is_there(host.layout):
        await host.units.disable(UNIT)
    UNIT_FILE.take_back(host.layout)
    RULES.take_back(host.layout)
    await host.units.reload()
    if host.has("nft"):
        await host.commands.run("nft", "-f", "-", stdin=cleared().encode())


def _unit_is_there(layout: Layout) -> bool:
    return (layout.units / UNIT).exists()


NFTABLES: Final = Step(NAME, _present, _add, _remove)
