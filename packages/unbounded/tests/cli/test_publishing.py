"""Publications of `unbounded up`: each on its own, whatever a policy of the user's refuses."""

from __future__ import annotations

import argparse
import io
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.join.signing import PUBLIC_KEY
from tests.support.memory_api import MemoryApi
from unbounded.api.core import CONFIG_MAPS
from unbounded.api.meta import Kind
from unbounded.api.names import NAMESPACE
from unbounded.cli import provider_processes, up
from unbounded.cli.deploy import components
from unbounded.cli.deploy.live_machina import live_machina
from unbounded.cli.screen import PlainScreen
from unbounded.cli.settings import UpSettings
from unbounded.join.agent_install import AgentOrigin
from unbounded.kube.api import Forbidden
from unbounded.machina.settings import ProvisioningSettings
from unbounded.machineops import settings as machineops_settings
from unbounded.operations.component_record import COMPONENTS
from unbounded_apiserver.server import ApiServer


class Refusing(MemoryApi):
    """An API with a policy against cluster-info."""

    async def create(self, kind: Kind[Any], body: Mapping[str, Any], *, namespace: str = "") -> Any:
        if namespace == "kube-public":
            raise Forbidden("a policy is against it", code=403, reason="Forbidden")
        return await super().create(kind, body, namespace=namespace)


async def test_components_are_published_despite_a_rejected_cluster_info(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(up, "from_kubeconfig", lambda _path: SimpleNamespace(ca=b"ca"))
    server = cast("ApiServer", SimpleNamespace(kubeconfig_path="", url="https://127.0.0.1:6443"))
    api, out = Refusing(), io.StringIO()
    await up._publish(api, server, UpSettings(data=Path("data")), PlainScreen(out))
    assert "cannot write the objects for discovery: a policy is against it" in out.getvalue()
    assert (await api.get(CONFIG_MAPS, COMPONENTS, namespace=NAMESPACE)).data["machina"].startswith("unbounded up")


async def test_published_host_config_is_no_controller_and_replaces_the_former() -> None:
    api = MemoryApi()
    for config in ({"clusterDns": "10.96.0.10"}, {}):
        await components.publish(api, config)
        assert (await components.running(api)).keys() == {"machina", "machine-ops-controller", "metalman"}
        live = await live_machina(api)
        assert (live.embedded, live.config) == (True, config)


def test_providers_tell_new_hosts_what_machina_tells_them() -> None:
    mirror = "https://mirror.example.com"
    hosts = ProvisioningSettings(
        agent_version="v1",
        agent_base_url=f"{mirror}/agent",
        agent_url=f"{mirror}/agent.tar.gz",
        agent_sha256="a" * 64,
        agent_public_key=PUBLIC_KEY,
        agent_image="registry.example.com/node:v1",
        cluster_dns="10.96.0.10",
        apiserver_endpoint="https://api.example.com:6443",
        artifact_mirror=mirror,
    )
    assert [one.name for one in fields(hosts) if getattr(hosts, one.name) == ""] == []
    parser = argparse.ArgumentParser()
    machineops_settings.add_arguments(parser, {})
    told, _ = machineops_settings.parse_settings(parser.parse_args(provider_processes._host_flags(hosts)), {})
    assert told.origin == AgentOrigin(hosts.agent_version, hosts.agent_base_url, hosts.agent_url, "a" * 64)
    assert told.agent_public_key == PUBLIC_KEY
    assert (told.agent_image, told.artifact_mirror) == (hosts.agent_image, hosts.artifact_mirror)
    assert (told.cluster_dns, told.api_server_endpoint) == (hosts.cluster_dns, hosts.apiserver_endpoint)
