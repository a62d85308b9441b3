"""The definitions and the examples under plain kubectl, against the embedded API server."""

import asyncio
import json
import os
import re
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from unbounded.cli.servers import api_server

KUBECTL = shutil.which("kubectl")
LIMIT_S = 60.0

FOREIGN_MACHINES = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "machines.cluster.x-k8s.io"},
    "spec": {
        "group": "cluster.x-k8s.io",
        "names": {"kind": "Machine", "plural": "machines", "singular": "machine", "shortNames": ["ma"]},
        "scope": "Namespaced",
        "versions": [
            {"name": "v1beta1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
        ],
    },
}

pytestmark = [pytest.mark.slow, pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")]


@dataclass(frozen=True)
class Kubectl:
    home: Path

    async def __call__(self, *arguments: str, fails: bool = False) -> str:
        """Run kubectl and return its output, stderr included; its exit status is checked."""
        process = await asyncio.create_subprocess_exec(
            KUBECTL or "kubectl",
            *arguments,
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], "HOME": str(self.home), "KUBECONFIG": str(self.home / "kubeconfig")},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(LIMIT_S):
            output, _ = await process.communicate()
        assert (process.returncode != 0) == fails, output.decode()
        return output.decode()

    async def lines(self, *arguments: str) -> list[list[str]]:
        """The table that kubectl prints, as words."""
        return [line.split() for line in (await self(*arguments)).splitlines()]


@pytest.fixture
async def kubectl(tmp_path: Path) -> AsyncIterator[Kubectl]:
    """kubectl with the definitions and all examples applied."""
    server = api_server(tmp_path)
    await server.start()
    try:
        run = Kubectl(tmp_path)
        await run("apply", "-f", "deploy/namespace.yaml", "-f", "deploy/crd")
        await run("wait", "--for=condition=Established", "crd", "--all", "--timeout=10s")
        await run("apply", "-f", "examples/needed-objects.yaml")
        await run("apply", "-f", "examples")
        yield run
    finally:
        await server.stop()


async def test_applying_the_examples_again_changes_nothing(kubectl: Kubectl) -> None:
    applied = (await kubectl("apply", "-f", "examples")).splitlines()
    ours = [line for line in applied if "unbounded-cloud.io/" in line]
    assert len(ours) >= 16
    assert [line for line in ours if not line.endswith(" unchanged")] == []


async def test_the_examples_keep_the_pod_security_level(kubectl: Kubectl) -> None:
    levels = "jsonpath={.metadata.labels.pod-security\\.kubernetes\\.io/enforce}"
    assert await kubectl("get", "namespace", "unbounded-kube", "-o", levels) == "restricted"


async def test_lists_show_the_columns_and_take_field_selectors(kubectl: Kubectl) -> None:
    head, *machines = await kubectl.lines("get", "machines")
    assert head == ["NAME", "HOST", "SITE", "PHASE", "REASON", "K8S", "VERSION", "AGE"]
    assert [line[0] for line in machines] == [
        "azure-worker-01",
        "baremetal-01",
        "oci-worker-01",
        "rack1-02",
        "worker-01",
        "worker-02",
    ]
    head, *_ = await kubectl.lines("get", "mop")
    assert head == ["NAME", "KIND", "MACHINE", "PHASE", "AGE"]
    head, *operations = await kubectl.lines(
        "get", "mop", "-o", "wide", "--field-selector", "spec.machineRef=oci-worker-01"
    )
    assert head[5:] == ["REASON", "EXECUTOR", "STAGE", "MESSAGE"]
    assert [line[:3] for line in operations] == [["oci-worker-01-poweroff", "HostPowerOff", "oci-worker-01"]]
    for short in ("mach", "mocred", "mc", "mcv"):
        await kubectl("get", short)


async def test_machines_are_ours_beside_those_of_cluster_api_also_after_a_restart(tmp_path: Path) -> None:
    kubectl, crd = Kubectl(tmp_path), tmp_path / "foreign.json"
    crd.write_text(json.dumps(FOREIGN_MACHINES))
    for definitions in ((str(crd), "deploy/crd"), ()):
        server = api_server(tmp_path)
        await server.start()
        try:
            for path in definitions:
                await kubectl("apply", "-f", path)
                await kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=10s")
            shutil.rmtree(tmp_path / ".kube", ignore_errors=True)  # kubectl's copy of the discovery
            for name in ("machines", "machine", "mach", "machines.unbounded-cloud.io"):
                assert "GROUP:      unbounded-cloud.io\n" in await kubectl("explain", name)
            assert "GROUP:      cluster.x-k8s.io\n" in await kubectl("explain", "machines.cluster.x-k8s.io")
        finally:
            await server.stop()


async def test_fields_are_explained(kubectl: Kubectl) -> None:
    assert "matched without regard to case" in await kubectl("explain", "machine.spec.pxe.dhcpLeases.mac")
    assert "ttlSecondsAfterFinished" in await kubectl("explain", "mop.spec")


async def test_fields_of_built_in_kinds_are_explained_as_those_of_kubernetes(kubectl: Kubectl) -> None:
    containers = await kubectl("explain", "pod.spec.containers")
    assert re.search(r"^  name\t<string> -required-$", containers, re.MULTILINE)
    assert re.search(r"^  imagePullPolicy\t<string>\n  enum: Always, IfNotPresent, Never$", containers, re.MULTILINE)
    assert not re.search(r"^  image\t<string> -required-$", containers, re.MULTILINE)
    effect = await kubectl("explain", "node.spec.taints.effect")
    assert "ENUM:\n    NoExecute\n    NoSchedule\n    PreferNoSchedule\n" in effect


async def test_a_refusal_says_what_would_be_right(kubectl: Kubectl) -> None:
    change = ("patch", "mop", "reboot-worker-01", "--type=merge", "-p")
    refused = await kubectl(*change, '{"spec":{"machineRef":"worker-02"}}', fails=True)
    assert "machineRef is immutable: create another MachineOperation" in refused
    await kubectl(*change, '{"spec":{"cancel":true,"ttlSecondsAfterFinished":60}}')
    await kubectl(*change, '{"status":{"phase":"Failed","reason":"Cancelled"}}', "--subresource=status")
    refused = await kubectl(*change, '{"status":{"phase":"Pending"}}', "--subresource=status", fails=True)
    assert "Complete and Failed are final" in refused
    _, failed = await kubectl.lines("get", "mop", "--field-selector", "status.phase=Failed")
    assert failed[:4] == ["reboot-worker-01", "HostReboot", "worker-01", "Failed"]
    namespace = '{"spec":{"ssh":{"privateKeyRef":{"namespace":"default"}}}}'
    refused = await kubectl("patch", "machine", "worker-01", "--type=merge", "-p", namespace, fails=True)
    assert "the Secret with the SSH key must be in namespace unbounded-kube" in refused
