"""`kubectl unbounded events` on a running `unbounded up`; kubectl says which Events there are."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.plugin.conftest import Cli, Running
from tests.cli.running import KUBECTL, Up, up

pytestmark = [pytest.mark.slow, pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")]
GROUP = "unbounded-cloud.io/v1alpha3"


def event(name: str, about: dict[str, Any], **fields: Any) -> dict[str, Any]:
    body = {"apiVersion": "v1", "kind": "Event", "metadata": {"name": name, "namespace": "default"}, "type": "Warning"}
    return body | {"involvedObject": about, "reason": name.title(), "message": f"about {name}", "count": 1} | fields


async def names(cli: Cli, *words: str) -> list[str]:
    ran = await cli("events", *words, "-o", "json")
    assert ran.status == 0, ran.err
    return [one["metadata"]["name"] for one in json.loads(ran.out)["items"]]


async def about(running: Up, *machines: str) -> set[str]:
    """Return the names of the Events about Machines and operations on them, as kubectl finds them."""
    operations = (await running.get("machineoperations"))["items"]
    subjects = {*machines, *(one["metadata"]["name"] for one in operations if one["spec"]["machineRef"] in machines)}
    events = (await running.get("events", "--all-namespaces"))["items"]
    return {one["metadata"]["name"] for one in events if one["involvedObject"]["name"] in subjects}


async def test_events_of_one_machine_and_of_all(tmp_path: Path) -> None:
    async with up(tmp_path / "data", "--lab", "2", "--port", "0") as running:
        await running.says(r"operation lab-01-host-reboot-\S+: Complete")
        cli = Cli(running.data / "kubeconfig")
        watched = Running(cli, "events", "lab-02", "-w")
        await watched.prints("LAST SEEN")
        await running.operate("lab-02", "HostPowerOff", "off")
        uid = (await running.get("machine", "lab-01"))["metadata"]["uid"]
        machine = {"apiVersion": GROUP, "kind": "Machine", "name": "lab-01"}
        node = {"kind": "Node", "name": "lab-01", "uid": "lab-01"}
        claim = {"apiVersion": "cluster.k8s.io/v1alpha1", "kind": "Machine", "name": "lab-01", "namespace": "default"}
        late = {"lastTimestamp": "2099-01-01T00:00:00Z", "count": 7}
        for one in (
            event("own", machine | {"uid": uid}, **late),
            event("earlier", machine | {"uid": "of-an-earlier-machine"}),
            event("kubelet", node),
            event("claim", claim),
            event("pod", {"apiVersion": "v1", "kind": "Pod", "name": "lab-01", "namespace": "default"}),
        ):
            file = tmp_path / "event.json"
            file.write_text(json.dumps(one))
            await running.kubectl("create", "-f", str(file))
        found = await names(cli, "lab-01")
        assert set(found) == await about(running, "lab-01") - {"earlier", "claim", "pod"}
        assert (len(found) > 2, found[-1]) == (True, "own")
        everything = await names(cli)
        assert set(everything) == await about(running, "lab-01", "lab-02") - {"pod"}
        assert set(await names(cli, "-n", "unbounded-kube")) == set()
        text = (await cli("events", "lab-01")).out.splitlines()
        assert text[0].split("   ")[0] == "LAST SEEN"
        assert text[-1].split() == ["0s", "(x7)", "Warning", "Own", "machine/lab-01", "about", "own"]
        await watched.prints("machineoperation/off")
        assert watched.task.cancel()
        lines = watched.out.getvalue()
        assert "lab-01" not in lines
        assert not watched.err.getvalue()
        refused = await cli("events", "lab-01", "-w", "-o", "json")
        assert (refused.status, "a watch prints only text" in refused.err) == (2, True)
