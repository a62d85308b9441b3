"""`unbounded backup` and `unbounded restore`, beside a running `unbounded up`, with kubectl."""

from __future__ import annotations

import asyncio
import stat
import sys
from asyncio.subprocess import PIPE, STDOUT
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli.running import KUBECTL, LIMIT_S, up
from tests.support.paths import ROOT
from unbounded.api.names import ANNOTATION_PAUSED
from unbounded.cli.backup_commands import OPERATIONS, PAUSE, open_operations, paused
from unbounded.cli.main import main as unbounded


async def run(*arguments: str | Path) -> tuple[int | None, str]:
    """A command's exit status, and what it printed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "unbounded.cli.main", *map(str, arguments), cwd=ROOT, stdout=PIPE, stderr=STDOUT
    )
    async with asyncio.timeout(LIMIT_S):
        output, _ = await process.communicate()
    return process.returncode, output.decode()


@pytest.mark.slow
@pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
async def test_what_was_backed_up_while_it_ran_comes_back(tmp_path: Path) -> None:
    data, file = tmp_path / "data", tmp_path / "unbounded.backup"
    async with up(data) as running:
        await running.says("Ctrl-C stops")
        await running.kubectl("create", "configmap", "before", "--from-literal=a=1")
        operation = '{"apiVersion":"unbounded-cloud.io/v1alpha3","kind":"MachineOperation","metadata":{"name":"wanted"}'
        manifest = tmp_path / "operation.json"
        manifest.write_text(operation + ',"spec":{"machineRef":"later","operationKind":"HostReboot"}}')
        await running.kubectl("create", "-f", str(manifest))
        status, said = await run("backup", file, "--data", data)
        assert status == 0, said
        assert "objects at revision" in said
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        await running.kubectl("create", "configmap", "after")
        await running.kubectl("delete", "configmap", "before")
        last = (await running.get("configmap", "after"))["metadata"]["resourceVersion"]
        status, said = await run("backup", file, "--data", data)
        assert (status, said) == (
            1,
            f"error: {file} exists already; choose another name, or replace it with --force\n",
        )
        status, said = await run("restore", file, "--data", data)
        assert status == 1
        assert said.startswith(f"error: {data} is in use by process {running.process.pid}; stop it")
    status, said = await run("restore", file, "--data", data)
    assert status == 0, said
    assert f"{data} has the state of " in said
    assert "wanted  HostReboot was waiting" in said
    async with up(data) as running:
        await running.says("Ctrl-C stops")
        assert (await running.get("configmap", "before"))["data"] == {"a": "1"}
        there = await running.kubectl("get", "configmaps", "-o", "name")
        assert "configmap/after" not in there
        path = f"/api/v1/namespaces/default/configmaps?watch=1&resourceVersion={last}"
        assert '"code":410' in await running.kubectl("get", "--raw", path)
        await running.kubectl("create", "-f", str(_machine(tmp_path)))
        await running.says("operation wanted: .*all operations are paused by annotation unbounded-cloud.io/paused")
        resume = next(line.split()[1:] for line in said.splitlines() if line.startswith("  kubectl annotate"))
        await running.kubectl(*resume)
        await running.says("operation wanted: (?!.*paused)")


def _machine(directory: Path) -> Path:
    """A Machine with a BMC that does not answer."""
    path = directory / "machine.yaml"
    path.write_text("""
apiVersion: unbounded-cloud.io/v1alpha3
kind: Machine
metadata: {name: later}
spec:
  pxe:
    image: registry.example.com/images/host:v1
    redfish:
      url: https://127.0.0.1:1
      username: admin
      passwordRef: {name: none, namespace: unbounded-kube, key: password}
""")
    return path


def _operation(name: str, status: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {"operationKind": "HostReboot"},
        **({"status": status} if status else {}),
    }


def test_only_what_had_not_ended_holds_operations_back() -> None:
    phases = {"new": None, "pending": "Pending", "running": "InProgress", "done": "Complete", "failed": "Failed"}
    objects = {
        (OPERATIONS, name): msgspec.json.encode(_operation(name, {"phase": phase} if phase else None))
        for name, phase in phases.items()
    }
    objects["configmaps", "default/new"] = b'{"metadata":{"name":"new"}}'
    assert [obj["metadata"]["name"] for obj in open_operations(objects)] == ["new", "pending", "running"]


def test_a_pause_is_added_to_what_is_there() -> None:
    there = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"uid": "u", "annotations": {"a": "b"}},
        "data": {"c": "d"},
    }
    put = paused({PAUSE: msgspec.json.encode(there)})
    assert put.obj == {**there, "metadata": {"uid": "u", "annotations": {"a": "b", ANNOTATION_PAUSED: "restored"}}}


def test_what_cannot_be_restored_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert unbounded(["restore", str(tmp_path / "nowhere"), "--data", str(tmp_path / "data")]) == 1
    assert capsys.readouterr().err == f"error: {tmp_path / 'nowhere'} does not exist\n"
    assert unbounded(["backup", str(tmp_path / "file"), "--data", str(tmp_path / "no")]) == 1
    assert (
        capsys.readouterr().err
        == f"error: {tmp_path / 'no'} has no data: {tmp_path / 'no' / 'state.db'} does not exist\n"
    )
    assert unbounded(["backup", str(tmp_path / "no" / "file"), "--data", str(tmp_path / "data")]) == 1
    assert (
        capsys.readouterr().err
        == f"error: {tmp_path / 'data'} has no data: {tmp_path / 'data' / 'state.db'} does not exist\n"
    )


@pytest.mark.slow
async def test_damage_is_said_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"not a database" * 1000)
    async with up(tmp_path) as running:
        assert await running.ended() == 1
        assert f"error: --data {tmp_path}: {tmp_path / 'state.db'} is damaged: it is not a database" in running.printed
        assert "`unbounded restore` restores a backup" in running.printed
        assert "Traceback" not in running.printed
