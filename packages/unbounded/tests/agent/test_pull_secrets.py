"""Logins with which kubelet pulls: from Secrets of the cluster to a file that root alone may read."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import stat
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml

from tests.agent.goals import goal
from tests.agent.scripted import ScriptedCommands, ScriptedUnits
from tests.support.memory_api import MemoryApi
from tests.support.paths import ROOT
from unbounded.agent.daemon.cluster_sync import follow_logins
from unbounded.agent.model import BuildRecord, Slot
from unbounded.agent.node.nodes import HostNodes
from unbounded.agent.node.pull_secrets import FOLDER, PROGRAMS, PROVIDER, PullSecrets, bring_none, stored_response
from unbounded.agent.node.slot_files import write_build_record
from unbounded.agent.paths import HostPaths
from unbounded.agent.recreation.perform import Lock
from unbounded.api.configuration import NodeSettings
from unbounded.api.core import SECRETS
from unbounded.api.failures import Rejected, Transient
from unbounded.api.names import GROUP_AGENTS, NAMESPACE
from unbounded.kube.api import Forbidden

AUTHS: Final = {
    "https://index.docker.io/v1/": {"auth": base64.b64encode(b"me:hush").decode()},
    "registry.example.com:5000/team": {"username": "robot", "password": "s3cret"},
}
SETTINGS: Final = msgspec.convert({"containerd": {"pullSecrets": [{"name": "hub"}]}}, NodeSettings)


def secret(auths: Any, *, key: str = ".dockerconfigjson") -> dict[str, Any]:
    content = base64.b64encode(json.dumps({"auths": auths}).encode()).decode()
    return {"metadata": {"name": "hub", "namespace": "unbounded-kube"}, "data": {key: content}}


async def api_with(auths: Any, **more: Any) -> MemoryApi:
    api = MemoryApi()
    await api.create(SECRETS, secret(auths, **more), namespace="unbounded-kube")
    return api


def slot(paths: HostPaths, one: Slot = Slot.KUBE1) -> Path:
    root = paths.rootfs(one)
    (root / "etc").mkdir(parents=True)
    write_build_record(paths, one, BuildRecord(goal=goal()))
    return root


async def test_pull_secrets_are_given_to_kubelet_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    paths, api = HostPaths(tmp_path), await api_with(AUTHS)
    root, secrets = slot(paths), PullSecrets(api, paths)
    assert await secrets.bring(SETTINGS) == stored_response(paths) == await secrets.read(SETTINGS) != b""
    nodes = HostNodes(paths, ScriptedCommands(), ScriptedUnits(), arch="amd64")
    await nodes.configure(Slot.KUBE1, SETTINGS)
    response = root / FOLDER[1:] / "response.json"
    assert stat.S_IMODE(response.stat().st_mode) == stat.S_IMODE(paths.pull_secrets.stat().st_mode) == 0o600
    assert json.loads(response.read_bytes())["auth"] == {
        "docker.io": {"username": "me", "password": "hush"},
        "registry.example.com:5000/team": {"username": "robot", "password": "s3cret"},
    }
    (provider,) = json.loads((root / FOLDER[1:] / "config.json").read_bytes())["providers"]
    assert provider["matchImages"] == ["docker.io", "registry.example.com:5000/team"]
    script = root / PROGRAMS[1:] / PROVIDER
    text = script.read_text().replace(FOLDER, str(root / FOLDER[1:]))
    ran = await asyncio.to_thread(subprocess.run, ["sh", "-c", text], capture_output=True, check=True)
    assert ran.stdout == response.read_bytes()
    flags = (root / "etc/systemd/system/kubelet.service.d/30-settings.conf").read_text()
    assert f"--image-credential-provider-bin-dir={PROGRAMS}" in flags
    others = [one for one in tmp_path.rglob("*") if one.is_file() and one not in (response, paths.pull_secrets)]
    told = "".join(one.read_text(errors="replace") for one in others) + caplog.text
    assert "hush" not in told
    assert "s3cret" not in told
    assert not await secrets.bring(NodeSettings())
    await nodes.configure(Slot.KUBE1, NodeSettings())
    assert (response.exists(), script.exists(), stored_response(paths)) == (False, False, b"")


@pytest.mark.parametrize(
    ("auths", "key", "words"),
    [
        (
            AUTHS,
            "config.json",
            "key .dockerconfigjson is missing, which Secrets of type kubernetes.io/dockerconfigjson have",
        ),
        ([], ".dockerconfigjson", "not a Docker config with auths"),
        ({"r": {"identitytoken": "hush"}}, ".dockerconfigjson", "r: kubelet needs a registry with a user and a"),
        ({"r\nx": {"username": "u", "password": "hush"}}, ".dockerconfigjson", "kubelet needs a registry"),
    ],
)
async def test_a_secret_without_logins_is_named_by_its_field(auths: Any, key: str, words: str, tmp_path: Path) -> None:
    secrets = PullSecrets(await api_with(auths, key=key), HostPaths(tmp_path))
    with pytest.raises(Rejected) as refused:
        await secrets.bring(SETTINGS)
    assert str(refused.value).startswith("containerd.pullSecrets[hub]")
    assert words in str(refused.value)
    assert "hush" not in str(refused.value)


async def test_a_key_that_is_not_base64_is_named(tmp_path: Path) -> None:
    api = await api_with(AUTHS)
    await api.patch(SECRETS, "hub", {"data": {".dockerconfigjson": "hushh"}}, namespace=NAMESPACE)
    with pytest.raises(Rejected, match=r"^containerd\.pullSecrets\[hub\]: key \.dockerconfigjson is not base64$"):
        await PullSecrets(api, HostPaths(tmp_path)).bring(SETTINGS)


class Refusing(MemoryApi):
    async def get(self, *_given: Any, **_more: Any) -> Any:
        raise Forbidden('secrets "hub" is forbidden')


async def test_documented_role_allows_agents_to_read_only_that_secret() -> None:
    guide = (ROOT / "docs/node-settings.md").read_text()
    blocks = [part.partition("```")[0] for part in guide.split("```yaml\n")[1:]]
    (configuration,) = yaml.safe_load_all(blocks[0])
    role, binding = yaml.safe_load_all(blocks[1])
    names = [one["name"] for one in configuration["spec"]["template"]["containerd"]["pullSecrets"]]
    assert role["rules"] == [
        {"apiGroups": [""], "resources": ["secrets"], "resourceNames": names, "verbs": ["get"]},
    ]
    assert (binding["roleRef"]["name"], binding["metadata"]["namespace"]) == (role["metadata"]["name"], NAMESPACE)
    assert binding["subjects"][0]["name"] == GROUP_AGENTS


@pytest.mark.parametrize("api", [MemoryApi(), Refusing()], ids=["none", "no right"])
async def test_a_secret_that_agents_may_not_read_says_what_they_need(api: MemoryApi, tmp_path: Path) -> None:
    with pytest.raises(Rejected, match=r"containerd\.pullSecrets\[hub\]: .*agents need permission to get it"):
        await PullSecrets(api, HostPaths(tmp_path)).bring(SETTINGS)
    assert not await PullSecrets(api, HostPaths(tmp_path)).bring(NodeSettings())
    assert not await bring_none(SETTINGS)


@asynccontextmanager
async def following(nodes: HostNodes, secrets: PullSecrets, lock: Lock) -> AsyncIterator[None]:
    task = asyncio.create_task(follow_logins(nodes, secrets, lock, every_s=0.01))
    try:
        async with asyncio.timeout(20):
            yield
    finally:
        task.cancel()


@asynccontextmanager
async def free(_who: str) -> AsyncIterator[None]:
    yield


async def has(nodes: HostNodes, slot: Slot, word: bytes) -> None:
    while word not in nodes.logins(slot):  # noqa: ASYNC110  # a file changes
        await asyncio.sleep(0.01)


async def replace_password(api: MemoryApi, password: str) -> None:
    auths = {"docker.io": {"username": "me", "password": password}}
    await api.patch(SECRETS, "hub", {"data": secret(auths)["data"]}, namespace="unbounded-kube")


async def test_a_password_that_is_replaced_reaches_each_slot(tmp_path: Path) -> None:
    """Both have one while a node is recreated, and what this host keeps is of one of them."""
    paths, api = HostPaths(tmp_path), await api_with(AUTHS)
    secrets, nodes = PullSecrets(api, paths), HostNodes(paths, ScriptedCommands(), ScriptedUnits(), arch="amd64")
    for one in Slot:
        slot(paths, one)
        await secrets.bring(SETTINGS)
        await nodes.configure(one, SETTINGS)
    async with following(nodes, secrets, free):
        await replace_password(api, "newer")
        for one in Slot:
            await has(nodes, one, b"newer")


async def test_a_slot_that_missed_a_password_gets_it_the_next_time(tmp_path: Path) -> None:
    paths, api = HostPaths(tmp_path), await api_with(AUTHS)
    slot(paths)
    secrets, nodes = PullSecrets(api, paths), HostNodes(paths, ScriptedCommands(), ScriptedUnits(), arch="amd64")
    await secrets.bring(SETTINGS)
    await nodes.configure(Slot.KUBE1, SETTINGS)
    await replace_password(api, "newer")
    await secrets.bring(SETTINGS)  # as by a process that was killed before it configured the slot
    refused = asyncio.Event()

    @asynccontextmanager
    async def lock(_who: str) -> AsyncIterator[None]:
        if not refused.is_set():
            refused.set()
            raise Transient("another operation has the host")
        yield

    async with following(nodes, secrets, lock):
        await has(nodes, Slot.KUBE1, b"newer")
    assert refused.is_set()


async def test_logins_of_a_slot_that_is_being_built_are_left_alone(tmp_path: Path) -> None:
    """The builder has the lock, and has written the logins of its settings, which may name no Secret."""
    paths, api = HostPaths(tmp_path), await api_with(AUTHS)
    slot(paths)
    secrets, nodes = PullSecrets(api, paths), HostNodes(paths, ScriptedCommands(), ScriptedUnits(), arch="amd64")
    await secrets.bring(SETTINGS)
    await nodes.configure(Slot.KUBE1, SETTINGS)
    await replace_password(api, "newer")
    asked, over = asyncio.Event(), asyncio.Event()

    @asynccontextmanager
    async def lock(_who: str) -> AsyncIterator[None]:
        asked.set()
        await over.wait()
        yield

    await secrets.bring(NodeSettings())
    async with following(nodes, secrets, lock):
        await asked.wait()
        assert stored_response(paths) == b""
        over.set()
        await has(nodes, Slot.KUBE1, b"newer")
