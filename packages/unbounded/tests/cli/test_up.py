"""`unbounded up` from outside: what it prints, what kubectl meets there, and how it ends."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import socket
import ssl
import sys
from asyncio.subprocess import PIPE, STDOUT
from base64 import b64decode
from functools import partial
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml

from tests.cli.plugin.conftest import Cli
from tests.cli.running import KUBECTL, LIMIT_S, MACHINA_WATCHES, Up, up, watches
from tests.support.waiting import eventually
from unbounded.api.machine import MACHINES
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig

PRLIMIT = shutil.which("prlimit")
STOP_S = 40.0  # 0.3 s where nothing else runs
IN_PROGRESS = r"operation (\S+): InProgress · HostReboot · lab-01 · WaitingOn"
MIRROR = "https://mirror.example.com"
TOLD = ("--cluster-dns", "10.96.0.10", "--artifact-mirror", MIRROR, "--agent-url", f"{MIRROR}/agent.tar.gz")
COMPLETE = r"operation (lab-01-host-reboot-\S+): Complete"

needs_kubectl = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")
pytestmark = pytest.mark.slow


@needs_kubectl
async def test_a_lab_machine_is_rebooted_and_kubectl_works_on_it(tmp_path: Path) -> None:
    async with up(tmp_path / "data", "--lab", "2") as running:
        name = (await running.says(COMPLETE)).group(1)
        await running.says("Ctrl-C stops")
        operation = await running.get("mop", name)
        assert operation["status"]["phase"] == "Complete"
        assert [one["what"] for one in operation["status"]["evidence"]] == [
            "the host was Off",
            "the host was On",
        ]
        assert [one["metadata"]["name"] for one in (await running.get("machines"))["items"]] == ["lab-01", "lab-02"]
        await running.kubectl("delete", "mop", name)
        assert (await running.get("mop"))["items"] == []
        machine = await running.get("machine", "lab-01")
        assert machine["status"]["recentOperations"][0]["name"] == name
        assert await running.stops() < STOP_S


@needs_kubectl
async def test_the_commands_to_try_next_work_as_they_are_printed(tmp_path: Path) -> None:
    async with up(tmp_path / "data", "--lab", "2") as running:
        await running.says("Ctrl-C stops")
        commands = [line.split() for line in running.printed.splitlines() if line.startswith("  kubectl")]
        assert len(commands) == 3
        for command in commands:
            assert command[:3] == ["kubectl", "--kubeconfig", str(tmp_path / "data" / "kubeconfig")]
            await running.kubectl(*command[3:])
        await running.says(r"operation reboot-all-\w+: Complete")
        assert await running.stops(signal.SIGTERM) < STOP_S


@needs_kubectl
async def test_a_counter_reboots_a_machine_and_is_reached(tmp_path: Path) -> None:
    async with up(tmp_path / "data", "--lab", "2") as running:
        await running.says("Ctrl-C stops")
        wanted = '{"spec":{"operations":{"rebootCounter":1}}}'
        await running.kubectl("patch", "machine", "lab-02", "--type=merge", "-p", wanted)
        await running.says("operation lab-02-reboot-1: Complete")
        await running.kubectl("wait", "machine/lab-02", "--for=jsonpath={.status.operations.rebootCounter}=1")


@needs_kubectl
async def test_a_refused_repave_moves_its_counter_all_the_same(tmp_path: Path) -> None:
    async with up(tmp_path / "data", "--lab", "2") as running:
        await running.says("Ctrl-C stops")
        wanted = '{"spec":{"operations":{"repaveCounter":3}}}'
        await running.kubectl("patch", "machine", "lab-02", "--type=merge", "-p", wanted)
        await running.says(
            "operation lab-02-repave-3: Failed · HostReplace · lab-02 · UnsupportedOperation.*--pxe-interface"
        )
        await running.kubectl("wait", "machine/lab-02", "--for=jsonpath={.status.operations.repaveCounter}=3")


@needs_kubectl
async def test_a_killed_process_loses_nothing_and_its_successor_goes_on(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with up(data, "--lab", "2") as running:
        await running.says("serves a Kubernetes API")
        async with HttpApi(from_kubeconfig(data / "kubeconfig")) as api:  # kubectl takes longer than the operation
            cut_off = (await running.says(IN_PROGRESS)).group(1)
            before = await eventually(partial(_pinned, api, "lab-01", "lab-02"))
            running.signal(signal.SIGKILL)
        await running.ended()
    async with up(data, "--lab", "2") as running:
        await running.says("operation lab-02-host-reboot-.*: Complete")
        await running.says(f"operation {cut_off}: Complete")
        for name, machine in before.items():
            now = await running.get("machine", name)
            assert now["metadata"]["uid"] == machine["metadata"]["uid"]
            assert now["spec"] == machine["spec"]
            assert now["status"]["redfish"] == machine["status"]["redfish"]
        assert await running.stops() < STOP_S


async def _pinned(api: HttpApi, *names: str) -> dict[str, Any] | None:
    """Return Machines by name once each has pinned the certificate of its BMC."""
    found = {name: await api.get(MACHINES.raw(), name) for name in names}
    are_pinned = all(one.get("status", {}).get("redfish", {}).get("certFingerprint") for one in found.values())
    return found if are_pinned else None


async def test_its_simulators_die_with_it(tmp_path: Path) -> None:
    async with up(tmp_path / "data", "--lab", "1") as running:
        bmc = (await running.says(r"https://127.0.0.1:(\d+) Systems/1")).group(1)
        running.signal(signal.SIGKILL)
        await running.ended()
    async with asyncio.timeout(LIMIT_S):
        while True:
            if not _listens(int(bmc)):
                return
            await asyncio.sleep(0.05)


def _listens(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


async def test_a_second_process_on_the_same_data_is_refused(tmp_path: Path) -> None:
    async with up(tmp_path / "data") as first:
        await first.says("Ctrl-C stops")
        async with up(tmp_path / "data") as second:
            assert await second.ended() == 1
            assert "error: --data" in second.printed
            assert f"in use by process {first.process.pid}" in second.printed
        assert await first.stops() < STOP_S


async def test_a_port_that_is_taken_is_named_with_its_flag(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        async with up(tmp_path / "data", "--port", port) as running:
            assert await running.ended() == 1
            assert f"error: --port {port}: the port is in use" in running.printed
        async with up(tmp_path / "data", "--health-port", port) as running:
            assert await running.ended() == 1
            assert f"error: --health-port {port}: the port is in use" in running.printed


async def test_an_address_that_is_not_here_is_named_with_its_flag(tmp_path: Path) -> None:
    async with up(tmp_path / "data", "--bind", "192.0.2.1") as running:
        assert await running.ended() == 1
        assert "error: --bind 192.0.2.1" in running.printed
        assert "Traceback" not in running.printed


async def test_all_addresses_of_version_six_can_be_listened_on(tmp_path: Path) -> None:
    async with up(tmp_path / "data", "--bind", "::", "--advertise-address", "::1") as running:
        await running.says(r"serves a Kubernetes API at https://\[::1\]:\d+")
        await running.says("Ctrl-C stops")
        assert await running.stops() < STOP_S


async def test_data_that_cannot_be_kept_is_said_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("not a directory")
    async with up(tmp_path / "data") as running:
        assert await running.ended() == 1
        assert f"error: --data {tmp_path / 'data'}: {tmp_path / 'data'} is not a directory" in running.printed


@pytest.mark.skipif(PRLIMIT is None, reason="prlimit is not installed")
async def test_a_disk_that_is_full_is_said_without_a_traceback(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "unbounded.cli.main", "up", "--data", str(tmp_path / "data"))
    process = await asyncio.create_subprocess_exec(
        PRLIMIT or "prlimit", "--fsize=100000", *command, stdout=PIPE, stderr=STDOUT
    )
    async with asyncio.timeout(LIMIT_S):
        output, _ = await process.communicate()
    assert process.returncode == 1
    assert f"error: --data {tmp_path / 'data'}: " in output.decode()
    assert "could not be stored" in output.decode()
    assert "Traceback" not in output.decode()


async def test_health_and_metrics_are_served_on_loopback(tmp_path: Path) -> None:
    async with up(tmp_path / "data") as running:
        health = (await running.says(r"http://127.0.0.1:\d+/")).group(0)
        await running.says("Ctrl-C stops")
        ready = await asyncio.to_thread(_read, health + "readyz")
        assert "[+]machines cache ok" in ready
        metrics = await asyncio.to_thread(_read, health + "metrics")
        assert 'unbounded_api_requests_total{code="201",kind="customresourcedefinitions",verb="create"} 7.0' in metrics
        async with asyncio.timeout(LIMIT_S):
            while any(watches(metrics).get(kind, 0) < count for kind, count in MACHINA_WATCHES.items()):
                await asyncio.sleep(0.1)  # the facts of the cluster are read after the caches are filled
                metrics = await asyncio.to_thread(_read, health + "metrics")
        assert watches(metrics) == MACHINA_WATCHES  # shared by all controllers


def _read(url: str) -> str:
    with urlopen(url, timeout=10) as answer:
        text: str = answer.read().decode()
        return text


async def test_once_ends_by_itself_and_tells_how_it_went(tmp_path: Path) -> None:
    async with up(tmp_path / "good", "--lab", "1", "--once") as running:
        assert await running.ended() == 0
        assert "is Complete" in running.printed
    async with up(tmp_path / "bad", "--lab", "1", "--once", "--lab-profile", "password-expired") as running:
        assert await running.ended() == 1
        assert "is Failed" in running.printed


async def test_the_port_stays_the_same_from_start_to_start(tmp_path: Path) -> None:
    urls = []
    for options in (("--port", "0"), ()):  # not the usual one, which other tests take when it is free
        async with up(tmp_path / "data", *options) as running:
            urls.append((await running.says(r"https://\S+")).group(0))
            await running.says("Ctrl-C stops")
            await running.stops()
    assert urls[0] == urls[1]


@needs_kubectl
async def test_new_nodes_and_bootstrap_scripts_get_the_present_settings(tmp_path: Path) -> None:
    bootstrap = ("machine", "manual-bootstrap", "web8", "--site", "dc1")
    cli = Cli(tmp_path / "data" / "kubeconfig")
    async with up(tmp_path / "data", *TOLD, "--advertise-address", "127.0.0.1") as running:
        await running.says("Ctrl-C stops")
        await _cluster_info_leads_to(running, "127.0.0.1")
        assert (await cli("site", "init", "--name", "dc1")).status == 0
        ran = await cli(*bootstrap)
        assert "kube-dns" not in ran.err
        assert ran.status == 0
        assert '"ClusterDNS": "10.96.0.10"' in ran.out
        assert ran.out.count(f'"BaseURL": "{MIRROR}"') == 6
        assert f"export AGENT_URL={MIRROR}/agent.tar.gz" in ran.out
        await running.stops()
    async with up(tmp_path / "data", "--advertise-address", "localhost") as running:
        await running.says("Ctrl-C stops")
        await _cluster_info_leads_to(running, "localhost")
        ran = await cli(*bootstrap)
        assert (ran.status, ran.out) == (1, "")
        assert "`unbounded up --agent-url URL` for all hosts" in ran.err
        ran = await cli(*bootstrap, "--agent-url", "https://example.com/agent.tar.gz")
        assert '"ApiServer": "https://localhost:' in ran.out
        assert "set one with `unbounded up --cluster-dns ADDRESS`" in ran.err
        assert MIRROR not in ran.out
        await running.stops()


async def _cluster_info_leads_to(running: Up, address: str) -> None:
    kept = await running.get("-n", "kube-public", "configmap", "cluster-info")
    (cluster,) = yaml.safe_load(kept["data"]["kubeconfig"])["clusters"]
    assert cluster["cluster"]["server"].startswith(f"https://{address}:")
    ca = b64decode(cluster["cluster"]["certificate-authority-data"]).decode()
    context = ssl.create_default_context(cadata=ca)
    url = f"{cluster['cluster']['server']}/version"
    with await asyncio.to_thread(urlopen, url, context=context) as answer:
        assert b"gitVersion" in answer.read()


async def test_each_component_acts_as_itself_and_needs_no_more_than_its_rights(tmp_path: Path) -> None:
    async with up(tmp_path / "data", "--lab", "2", "--once") as running:
        assert await running.ended() == 0
    events = [json.loads(line) for line in (tmp_path / "data" / "audit.log").read_text().splitlines()]
    account = "system:serviceaccount:unbounded-kube:"
    writers = {
        (
            event["user"]["username"].removeprefix(account),
            event["objectRef"]["resource"],
            event["objectRef"].get("subresource"),
        )
        for event in events
        if event["verb"] in {"create", "patch"}
    }
    assert {writer for writer in writers if writer[1] == "machineoperations"} == {
        ("unbounded-admin", "machineoperations", None),  # the reboot that shows how it is done
        ("metalman", "machineoperations", None),  # its finalizer
        ("metalman", "machineoperations", "status"),
        ("machina", "machineoperations", None),
    }
    assert ("machina", "machines", "status") in writers
    assert ("metalman", "machines", "status") in writers
    assert [event["requestURI"] for event in events if event["responseStatus"]["code"] in {401, 403}] == []


@needs_kubectl
async def test_rights_that_were_taken_away_are_given_back_at_the_next_start(tmp_path: Path) -> None:
    async with up(tmp_path / "data") as running:
        await running.says("Ctrl-C stops")
        await running.kubectl("delete", "clusterrolebinding", "unbounded-metalman")
        await running.kubectl("patch", "clusterrole", "unbounded-machina", "--type=merge", "-p", '{"rules":[]}')
        policy = '{"spec":{"validations":[{"expression":"true"}]}}'
        await running.kubectl(
            "patch", "validatingadmissionpolicy", "unbounded-agent-nodes", "--type=merge", "-p", policy
        )
        await running.stops()
    async with up(tmp_path / "data") as running:
        await running.says("Ctrl-C stops")
        await running.kubectl("get", "clusterrolebinding", "unbounded-metalman")
        assert (await running.get("clusterrole", "unbounded-machina"))["rules"]
        kept = await running.get("validatingadmissionpolicy", "unbounded-agent-nodes")
        assert len(kept["spec"]["validations"]) == 4
        assert kept["metadata"]["generation"] == 3
        untouched = await running.get("validatingadmissionpolicy", "unbounded-agent-machines")
        assert untouched["metadata"]["generation"] == 1
        await running.stops()


NOTHING_AT_ALL = """\
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: nothing}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: ["*"], apiVersions: ["*"], operations: ["*"], resources: ["*/*"]}]
  validations: [{expression: "false", message: nothing may be written}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: nothing}
spec: {policyName: nothing, validationActions: [Deny]}
"""


@needs_kubectl
async def test_a_policy_that_refuses_everything_can_be_taken_away_after_a_restart(tmp_path: Path) -> None:
    manifest = tmp_path / "nothing.yaml"
    await asyncio.to_thread(manifest.write_text, NOTHING_AT_ALL)
    async with up(tmp_path / "data") as running:
        await running.says("Ctrl-C stops")
        await running.kubectl("apply", "-f", str(manifest))
        await running.stops()
    async with up(tmp_path / "data") as running:
        await running.says("warning: cannot write the objects of this version: .* nothing may be written")
        await running.says("serves a Kubernetes API")
        await running.kubectl("delete", "-f", str(manifest))
        await running.says("Ctrl-C stops")
        await running.stops()
