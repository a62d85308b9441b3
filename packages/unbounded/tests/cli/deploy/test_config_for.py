"""machina's configuration if only the kubeconfig has the address of the API server."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.memory_api import MemoryApi
from unbounded.cli.deploy.apply import config_for
from unbounded.cli.deploy.live_machina import LiveMachina
from unbounded.cli.deploy.workloads import MACHINA_CONFIG
from unbounded.cli.plugin.command import CliError


async def test_kubeconfig_unusable_for_hosts_is_rejected_with_the_needed_flag() -> None:
    api = cast("Any", MemoryApi())
    api.config = SimpleNamespace(server="http://127.0.0.1:8001")  # of `kubectl proxy`
    session = cast("Any", SimpleNamespace(api=api, printer=None))
    with pytest.raises(CliError, match=r"http://127\.0\.0\.1:8001") as raised:
        await config_for(session, LiveMachina(config_map=MACHINA_CONFIG), {})
    assert "--api-server-endpoint HOST:PORT" in raised.value.next_step
