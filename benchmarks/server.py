"""A child process with an embedded API server: `python -m benchmarks.server DATA [--bare]`.

Without `--bare` it installs the project's CRDs, rights and policies, as `unbounded up` does. Nodes may be silent, as
the kubelets of a benchmark are.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Final

from benchmarks import children
from unbounded.cli.manifests import install_definitions, install_manifests
from unbounded.cli.servers import api_server
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded.kube.process_tuning import raise_gc_threshold
from unbounded_apiserver.controllers.nodes import NodeTimes

SILENT_S: Final = 86_400.0


async def main(data: Path, *, bare: bool) -> None:
    raise_gc_threshold()  # as `unbounded up` does
    server = api_server(data, node_times=NodeTimes(grace_s=SILENT_S, startup_s=SILENT_S))
    await server.start()
    try:
        if not bare:
            async with HttpApi(from_kubeconfig(server.kubeconfig_path)) as api:
                await install_definitions(api)
                await install_manifests(api)
        await children.serve({"kubeconfig": str(server.kubeconfig_path)})
    finally:
        await server.stop()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), bare="--bare" in sys.argv[2:]))
