"""An API server with the project's definitions, rights and policies on it, as `unbounded up` makes it."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Final

from tests.apiserver import support
from tests.apiserver.support import Client
from unbounded.cli.manifests import install_definitions, install_manifests
from unbounded.cli.servers import api_server
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded_apiserver.server import ApiServer

running: Final = partial(support.running, make=api_server)
"""A server with the namespace and the rights of `unbounded up`, without its definitions."""
_MADE: Final[list[Path]] = []


@asynccontextmanager
async def deployed(data: Path) -> AsyncIterator[tuple[ApiServer, Client]]:
    """The server, and its administrator. What is on it is made once in a process, and copied."""
    if not _MADE:
        _MADE.append(await _make())
    shutil.copytree(_MADE[0], data, dirs_exist_ok=True)
    async with running(data) as (server, admin):
        yield server, admin


async def _make() -> Path:
    """The data of a server that was stopped."""
    folder = Path(tempfile.mkdtemp(prefix="deployed-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    async with running(folder / "data") as (server, _), HttpApi(from_kubeconfig(server.kubeconfig_path)) as api:
        await install_definitions(api)
        await install_manifests(api)
    return folder / "data"
