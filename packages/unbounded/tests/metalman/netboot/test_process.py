"""Network boot in one process: its missing parts, and its continuation when they exist."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.memory_api import MemoryApi
from tests.support.waiting import eventually
from unbounded.api.core import CONFIG_MAPS, SECRETS
from unbounded.fetch.store import ImageStore
from unbounded.fetch.web import Web
from unbounded.kube.process import HealthCheck, Runtime, StartupError, running_caches
from unbounded.metalman.controller import caches_of
from unbounded.metalman.netboot.process import NetbootProcess
from unbounded.metalman.settings import DhcpMode, MetalmanSettings, NetbootSettings

CLUSTER = {"server": "https://10.0.0.1:6443", "certificate-authority-data": ""}
PEM = "-----BEGIN CERTIFICATE-----\nMAo=\n-----END CERTIFICATE-----\n"


def cluster_info() -> dict[str, Any]:
    cluster = CLUSTER | {"certificate-authority-data": base64.b64encode(PEM.encode()).decode()}
    kubeconfig = json.dumps({"clusters": [{"name": "", "cluster": cluster}]})
    return {"metadata": {"name": "cluster-info"}, "data": {"kubeconfig": kubeconfig}}


@dataclass
class Place:
    """An in-memory API, and the readiness checks."""

    api: MemoryApi = field(
        default_factory=lambda: MemoryApi(namespaces=("kube-public", "kube-system", "unbounded-kube"))
    )
    checks: dict[str, HealthCheck] = field(default_factory=dict)

    @property
    def missing(self) -> dict[str, str]:
        return {name: why for name, check in self.checks.items() if (why := check()) is not None}

    @asynccontextmanager
    async def booting(self, folder: Path, **said: Any) -> AsyncIterator[NetbootProcess]:
        runtime = Runtime(self.api, checks=self.checks.__setitem__)
        caches = caches_of(self.api)
        given: dict[str, Any] = {"bind_address": "127.0.0.1", "http_port": 0, "tftp_port": 0, "cache_dir": folder}
        wanted = NetbootSettings(**({"dhcp_mode": DhcpMode.NONE} | given | said))
        async with running_caches(runtime, *caches.followed), asyncio.TaskGroup() as tasks:
            made = NetbootProcess(runtime, MetalmanSettings(site=None, netboot=wanted), wanted, caches)
            running = tasks.create_task(made.run())
            try:
                yield made
            finally:
                running.cancel()

    async def becomes(self, *missing: str) -> None:
        """Wait until exactly these are missing."""

        async def there() -> bool:
            return set(self.missing) == set(missing)

        try:
            await eventually(there)
        except AssertionError:
            raise AssertionError(f"wanted {missing}, missing are {self.missing}") from None


async def test_what_is_missing_is_named_until_it_is_there(tmp_path: Path) -> None:
    place = Place()
    async with place.booting(tmp_path / "cache"):
        assert set(place.missing) >= {"image store", "boot key", "cluster facts", "HTTP", "TFTP"}
        await place.becomes("cluster facts")
        assert "kube-public/cluster-info" in place.missing["cluster facts"]
        await place.api.create(CONFIG_MAPS, cluster_info(), namespace="kube-public")
        await place.becomes()


@pytest.mark.slow
async def test_invalid_boot_key_is_reported_with_remedy_and_recreated_after_deletion(tmp_path: Path) -> None:
    place = Place()
    await place.api.create(CONFIG_MAPS, cluster_info(), namespace="kube-public")
    body = {"metadata": {"name": "metalman-netboot"}, "data": {"key": "c2hvcnQ="}}
    await place.api.create(SECRETS, body, namespace="unbounded-kube")
    async with place.booting(tmp_path / "cache"):
        await place.becomes("boot key", "HTTP", "TFTP")

        async def told() -> bool:
            return "delete the Secret to create a new one" in place.missing["boot key"]

        await eventually(told)
        assert "short" not in place.missing["boot key"]
        await place.api.delete(SECRETS, "metalman-netboot", namespace="unbounded-kube")
        await place.becomes()


async def test_a_folder_that_another_process_uses_is_named_with_its_flag(tmp_path: Path) -> None:
    with pytest.RaisesGroup(
        pytest.RaisesExc(StartupError, match="--cache-dir: .*: another process uses"), flatten_subgroups=True
    ):
        async with Web() as web, ImageStore(tmp_path / "cache", web), Place().booting(tmp_path / "cache"):
            await asyncio.sleep(20)


async def test_roots_that_are_none_are_named_with_their_flag(tmp_path: Path) -> None:
    (tmp_path / "roots.pem").write_text("nothing")
    with pytest.RaisesGroup(
        pytest.RaisesExc(StartupError, match=f"--ek-ca: {tmp_path}/roots.pem: must contain PEM"), flatten_subgroups=True
    ):
        async with Place().booting(tmp_path / "cache", ek_ca=tmp_path / "roots.pem"):
            pass


async def test_invalid_docker_config_is_named_with_its_flag_but_no_content(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"auths": {"r.example": {"auth": "c2VjcmV0"}}}')
    with pytest.RaisesGroup(
        pytest.RaisesExc(StartupError, match=f"--docker-config: {tmp_path}/config.json, r.example: auth is not base64"),
        flatten_subgroups=True,
    ) as refused:
        async with Place().booting(tmp_path / "cache", docker_config=tmp_path / "config.json"):
            pass
    assert "secret" not in str(refused.value.exceptions)
