"""docs/migrate.md, followed unchanged, between `unbounded up` and a server in place of the cluster."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.running import KUBECTL
from tests.docs.runner import DOCS, Shell, follow, unprinted
from tests.e2e.plane import plane
from tests.support.embedded_server import embedded_server
from unbounded.api.machine import MACHINES
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600, func_only=True),
    pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed"),
]


async def test_a_user_moves_to_a_cluster(tmp_path: Path) -> None:
    with embedded_server(tmp_path / "cluster") as kubeconfig:
        async with plane(tmp_path / "data", "--lab", "2") as it:
            await it.running.says("Ctrl-C stops")
            shutil.copy(kubeconfig, it.shell.folder / "cluster.kubeconfig")

            async def stop() -> None:
                await it.running.stops()

            shell = Shell(it.shell.folder, it.shell.kubeconfig, {"--data data": f"--data {tmp_path / 'data'}"})
            said = await follow(DOCS / "migrate.md", shell, {"Move": stop})
        assert f"Migration of {tmp_path / 'data'} to https://" in said
        assert "the target's control plane may act now" in said
        assert "all agents have moved" in said
        assert unprinted(DOCS / "migrate.md", said.replace(str(tmp_path / "data"), "data")) == []
        async with HttpApi(from_kubeconfig(kubeconfig)) as api:
            moved = (await api.list(MACHINES)).items
        assert [one.name for one in moved] == ["lab-01", "lab-02"]
        assert all(one.status.original_uid not in (None, one.metadata.uid) for one in moved)
