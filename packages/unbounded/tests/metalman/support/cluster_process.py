"""An API server with the project's definitions and rights, as a process of its own: `python -m … FOLDER`.

It prints a line of JSON with the kubeconfigs of its administrator and of metalman's service account.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path

import yaml

from tests.cli.deployed import deployed
from unbounded.cli.servers import publish_cluster_info
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig


async def main(folder: Path) -> None:
    end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    async with deployed(folder / "data") as (server, _):
        async with HttpApi(from_kubeconfig(server.kubeconfig_path)) as admin:
            await publish_cluster_info(admin, server.url, from_kubeconfig(server.kubeconfig_path).ca or b"")
            token = await admin.token("metalman", namespace="unbounded-kube")
        config = yaml.safe_load(server.kubeconfig_path.read_text())
        config["users"] = [{"name": user["name"], "user": {"token": token.token}} for user in config["users"]]
        metalman = folder / "metalman.kubeconfig"
        metalman.write_text(yaml.safe_dump(config))
        print(json.dumps({"ready": {"admin": str(server.kubeconfig_path), "metalman": str(metalman)}}), flush=True)
        await end.wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
