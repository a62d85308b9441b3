"""The environment of machines that boot from the network, as a process: a BMC and a registry of images.

`python -m … FILE`, where FILE holds `{"images": {"lab/host:v1": {"disk/vmlinuz": "<base64>"}}}`, prints a line of JSON
with the addresses of both, and then one for each boot of the host with its source.
"""

from __future__ import annotations

import asyncio
import base64
import json
import signal
import sys
from pathlib import Path
from typing import Any

from tests.fetch.layers import files, image
from tests.fetch.registries import Registry
from unbounded_lab.bmc import LabBmc
from unbounded_lab.machines import machines, secret


def say(what: str, value: object) -> None:
    print(json.dumps({what: value}), flush=True)


async def main(asked: dict[str, Any]) -> None:
    end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    registry = Registry()
    for name, contents in asked["images"].items():
        built = image([files({path: base64.b64decode(body) for path, body in contents.items()})])
        registry.add(built, name.rpartition(":")[2])
    async with registry.running(), LabBmc(name="lab-01", boot_s=0.2, shutdown_s=0.2) as bmc:
        (machine,) = machines(bmc, image=f"{registry.host}/{next(iter(asked['images']))}")
        say("ready", {"machine": machine, "secret": secret(bmc), "registry": registry.host})
        boots = asyncio.create_task(tell_boots(bmc))
        await end.wait()
        boots.cancel()


async def tell_boots(bmc: LabBmc) -> None:
    told = 0
    while True:
        seen = [each.detail for each in bmc.host().history if each.what == "boot"]
        for source in seen[told:]:
            say("boot", source)
        told = len(seen)
        await asyncio.sleep(0.05)


if __name__ == "__main__":
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())))
