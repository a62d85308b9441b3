"""A DHCP server as a process of its own, as a network namespace needs one: `python -m … '{"interface": …}'`.

It prints a line of JSON when it serves, one for each finding, and its counts when it is ended.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys

from tests.metalman.support.reservations import FILES, FixedReservations
from unbounded.metalman.dhcp.model import (
    DhcpClient,
    DhcpFinding,
    DhcpServerMode,
    OfferedBoot,
    StaticLease,
    address_octets,
)
from unbounded.metalman.dhcp.server import DhcpServer, DhcpServerSettings, interface_address


def say(what: str, value: object) -> None:
    print(json.dumps({what: value}), flush=True)


def report(finding: DhcpFinding) -> None:
    say("finding", [finding.kind.value, finding.machine, finding.text])


async def main(asked: dict[str, object]) -> None:
    interface = str(asked["interface"])
    leases = asked["leases"]
    assert isinstance(leases, dict)
    boot = OfferedBoot(FILES, "http://10.66.0.1:8880")
    clients = {mac: DhcpClient(f"m-{mac[-2:]}", StaticLease.of(*lease), boot) for mac, lease in leases.items()}
    mode = DhcpServerMode(asked["mode"])
    address = interface_address(interface)
    settings = DhcpServerSettings(
        mode=mode,
        interface=None if mode is DhcpServerMode.RELAY else interface,
        bind_address="10.66.0.1",
    )
    end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    assert address == address_octets(str(asked["address"]))
    async with DhcpServer(settings, FixedReservations(dict(clients), address), report).serving() as server:
        say("ready", True)
        await end.wait()
        say("counts", server.counts)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
