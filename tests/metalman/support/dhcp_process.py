"""A DHCP server as a process of its own, as a network namespace needs one: `python -m … '{"interface": …}'`.

It prints a line of JSON when it serves, one for each finding, and its counts when it is ended.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys

from tests.metalman.support.net_book import FILES, FixedBook
from unbounded.metalman.dhcp.model import Boot, Client, Finding, Lease, Mode, packed
from unbounded.metalman.dhcp.server import Server, Settings, interface_address


def say(what: str, value: object) -> None:
    print(json.dumps({what: value}), flush=True)


def report(finding: Finding) -> None:
    say("finding", [finding.trouble.value, finding.machine, finding.text])


async def main(asked: dict[str, object]) -> None:
    interface = str(asked["interface"])
    leases = asked["leases"]
    assert isinstance(leases, dict)
    boot = Boot(FILES, "http://10.66.0.1:8880")
    clients = {mac: Client(f"m-{mac[-2:]}", Lease.of(*lease), boot) for mac, lease in leases.items()}
    mode = Mode(asked["mode"])
    address = interface_address(interface)
    settings = Settings(
        mode=mode,
        interface=None if mode is Mode.RELAY else interface,
        bind_address="10.66.0.1",
    )
    end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    assert address == packed(str(asked["address"]))
    async with Server(settings, FixedBook(dict(clients), address), report).serving() as server:
        say("ready", True)
        await end.wait()
        say("counts", server.counts)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
