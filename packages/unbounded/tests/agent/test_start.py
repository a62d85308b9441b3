"""Decisions of a start around its steps: its configuration, its refusals, and the Node that it waits for."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.agent.made_up_host import made_up_host
from tests.agent.made_up_start import CONFIG, GOAL, MadeUpNodes
from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import run_virtual
from unbounded.agent.model import BuildRecord, Slot, SlotFacts
from unbounded.agent.node_spec import HostFacts, desired_node
from unbounded.agent.paths import HostPaths
from unbounded.agent.preflight.report import IgnoredChecks, as_text
from unbounded.agent.recreation.version_resolution import goal_for_build, recorded_goal
from unbounded.agent.settings import load_config, store_config
from unbounded.agent.start import (
    PreflightOptions,
    StartInputs,
    _starting,
    attestation_token,
    refuse_another_machine,
    start,
    wait_node,
)
from unbounded.api.configuration import MACHINE_CONFIGURATION_VERSIONS
from unbounded.api.core import NODES
from unbounded.api.failures import Rejected, Transient
from unbounded.api.machine import MACHINES
from unbounded.join.agent_config import AgentConfig, ArtifactSource, Attest, Downloads, ExecCredential, KubeletAuth

NO_TOKEN = msgspec.structs.replace(CONFIG, kubelet=msgspec.structs.replace(CONFIG.kubelet, auth=KubeletAuth()))


def joined(paths: HostPaths) -> None:
    paths.identity.mkdir(parents=True)
    (paths.identity / "agent.pem").write_text("a certificate")


def file(folder: Path, config: AgentConfig) -> Path:
    path = folder / "given.json"
    path.write_bytes(msgspec.json.encode(config))
    return path


def test_a_host_that_has_joined_goes_on_with_what_it_kept(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    with pytest.raises(Rejected, match="no configuration"):
        load_config(None, {}, paths)
    store_config(paths, CONFIG)
    joined(paths)
    assert load_config(None, {}, paths).config == NO_TOKEN
    assert load_config(file(tmp_path, NO_TOKEN), {}, paths).config == NO_TOKEN


def test_a_host_that_has_not_joined_needs_a_credential(tmp_path: Path) -> None:
    with pytest.raises(Rejected, match=r"Kubelet\.Auth: needs BootstrapToken or ExecCredential"):
        load_config(file(tmp_path, NO_TOKEN), {}, HostPaths(tmp_path))


def test_what_is_named_counts_more_than_what_was_kept(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    store_config(paths, CONFIG)
    joined(paths)
    other = file(tmp_path, msgspec.structs.replace(NO_TOKEN, oci_image="other"))
    assert load_config(None, {"UNBOUNDED_AGENT_CONFIG_FILE": str(other)}, paths).config.oci_image == "other"


def test_another_machines_configuration_is_refused(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    store_config(paths, CONFIG)
    refuse_another_machine(paths, CONFIG)
    with pytest.raises(Rejected, match="MachineName 'm2': this host is Machine m1; run `unbounded-agent reset`"):
        refuse_another_machine(paths, msgspec.structs.replace(CONFIG, machine_name="m2"))


def test_damaged_stored_configuration_does_not_prevent_a_start(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    paths.etc.mkdir(parents=True)
    paths.config.write_text("{")
    refuse_another_machine(paths, CONFIG)
    store_config(paths, CONFIG)
    with pytest.raises(Rejected, match="this host is Machine m1"):
        refuse_another_machine(paths, msgspec.structs.replace(CONFIG, machine_name="m2"))


def left_at(root: Path) -> set[str]:
    """All but the lock's."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if "lock" not in path.name and not path.is_dir()}


CHECKS = {
    "errors": (PreflightOptions(), "ERROR oci-image-reachable"),
    "warnings that count": (
        PreflightOptions(IgnoredChecks.parse("all"), fail_on_warnings=True),
        "WARNING agent-config",
    ),
}


@pytest.mark.parametrize("name", CHECKS)
async def test_a_preflight_that_fails_ends_a_start_before_anything_is_changed(name: str, tmp_path: Path) -> None:
    """Nothing listens on port 1 of this machine."""
    checks, words = CHECKS[name]
    nowhere = ArtifactSource(base_url="http://127.0.0.1:1")
    downloads = Downloads(kubernetes=nowhere, containerd=nowhere, runc=nowhere, cni=nowhere, crictl=nowhere)
    kubelet = msgspec.structs.replace(CONFIG.kubelet, api_server="https://127.0.0.1:1")
    config = msgspec.structs.replace(CONFIG, kubelet=kubelet, downloads=downloads, oci_image="127.0.0.1:1/root:v1")
    around = StartInputs(HostPaths(tmp_path), unknown_keys=("unknown key A",))
    told: list[str] = []
    with pytest.raises(Rejected, match="the preflight checks failed, and nothing was changed"):
        await start(config, around, told.append, checks=checks, show=lambda report: told.append(as_text(report)))
    assert words in told[0]
    assert len(told) == 1
    assert left_at(tmp_path) == set()


ATTESTS = msgspec.structs.replace(NO_TOKEN, attest=Attest(url="http://10.0.0.1/x"))
CREDENTIALS = {
    "no URL": NO_TOKEN,
    "a token": msgspec.structs.replace(ATTESTS, kubelet=CONFIG.kubelet),
    "a program": msgspec.structs.replace(
        ATTESTS,
        kubelet=msgspec.structs.replace(
            CONFIG.kubelet, auth=KubeletAuth(exec_credential=ExecCredential(command="/bin/credential"))
        ),
    ),
}


@pytest.mark.parametrize("name", CREDENTIALS)
async def test_the_tpm_is_left_alone_where_there_is_another_credential(name: str) -> None:
    assert await attestation_token(CREDENTIALS[name], lambda _words: None) is None


# The Node


READY = {"status": "True", "reason": "KubeletReady"}


class Waiting:
    """A machine that runs, and the API server that its Node is waited for at."""

    def __init__(self, root: Path) -> None:
        self.api = MemoryApi()
        self.nodes = MadeUpNodes(HostPaths(root))
        self.told: list[str] = []

    async def run(self) -> None:
        paths = self.nodes.paths
        paths.etc.mkdir(parents=True, exist_ok=True)
        paths.applied("kube1").write_text(json.dumps({}))
        self.nodes.goals[Slot.KUBE1] = BuildRecord(goal=GOAL)
        await self.nodes.start(Slot.KUBE1)

    async def node(self, boot_id: str, ready: dict[str, str] = READY) -> None:
        await self.api.create(NODES, {"metadata": {"name": "m1"}})
        info = {"bootID": boot_id, "machineID": "m", "kubeletVersion": "v1.34.0"}
        status = {"nodeInfo": info, "conditions": [{"type": "Ready", **ready}]}
        await self.api.patch(NODES, "m1", {"status": status}, subresource="status")

    async def wait(self) -> str:
        return await wait_node(self.api, self.nodes, "m1", self.told.append, within_s=30)


def test_the_node_of_this_very_boot_is_waited_for(tmp_path: Path) -> None:
    async def story() -> None:
        waiting = Waiting(tmp_path)
        await waiting.run()
        await waiting.node(boot_id="1")
        assert await waiting.wait() == "Node m1 exists; a Pod sandbox ran in kube1"
        assert waiting.told == []

    run_virtual(story())


def test_a_node_without_a_network_is_one_and_that_is_said(tmp_path: Path) -> None:
    async def story() -> None:
        waiting = Waiting(tmp_path)
        await waiting.run()
        await waiting.node("1", {"status": "False", "reason": "KubeletNotReady", "message": "no CNI"})
        assert await waiting.wait() == (
            "Node m1 exists, and not Ready yet: KubeletNotReady, no CNI; a Pod sandbox ran in kube1"
        )

    run_virtual(story())


def _looks_different(waiting: Waiting, seen: Callable[[SlotFacts, bool], SlotFacts]) -> None:
    """Change the facts from one observation of kube1 to the next; the second argument is whether it is an odd one."""
    looks = 0
    look = waiting.nodes.observe

    async def changed(slot: Slot) -> SlotFacts:
        nonlocal looks
        looks += slot is Slot.KUBE1
        return seen(await look(slot), looks % 2 == 1)

    waiting.nodes.observe = changed  # type: ignore[method-assign]


def test_a_kubelet_that_crashes_soon_after_it_has_registered_is_no_node(tmp_path: Path) -> None:
    async def story() -> None:
        waiting = Waiting(tmp_path)
        await waiting.run()
        await waiting.node("1")
        _looks_different(waiting, lambda facts, odd: replace(facts, kubelet=facts.slot is Slot.KUBE1 and odd))
        with pytest.raises(Transient, match="kubelet in kube1 does not stay up, 30 s after all steps were done"):
            await waiting.wait()

    run_virtual(story())


def test_start_gives_up_on_a_machine_that_changes_too_often(tmp_path: Path) -> None:
    async def story() -> None:
        waiting = Waiting(tmp_path)
        await waiting.run()
        await waiting.node("1")
        _looks_different(waiting, lambda facts, odd: replace(facts, containerd=odd))
        with pytest.raises(Transient, match="the Machine changes too often, 30 s after all steps were done"):
            await waiting.wait()

    run_virtual(story(), limit_s=60)


def test_start_waits_for_a_kubelet_that_reports_unhealthy(tmp_path: Path) -> None:
    async def story() -> None:
        waiting = Waiting(tmp_path)
        await waiting.run()
        await waiting.node("1")
        waiting.nodes.trouble = "kubelet reports that it is not healthy: 500 unhealthy"
        with pytest.raises(Transient, match="500 unhealthy, 30 s after"):
            await waiting.wait()
        waiting.nodes.trouble = ""
        assert await waiting.wait() == "Node m1 exists; a Pod sandbox ran in kube1"

    run_virtual(story())


def test_a_node_in_which_no_pod_sandbox_runs_is_none(tmp_path: Path) -> None:
    async def story() -> None:
        waiting = Waiting(tmp_path)
        await waiting.run()
        await waiting.node("1")
        waiting.nodes.sandbox = "no Pod sandbox starts in kube1: open /etc/hosts: no such file or directory"
        with pytest.raises(Transient, match="open /etc/hosts: no such file or directory, 30 s after"):
            await waiting.wait()
        waiting.nodes.sandbox = ""
        waiting.nodes.proven.clear()
        assert "a Pod sandbox ran in kube1" in await waiting.wait()
        assert waiting.nodes.proven == [Slot.KUBE1]

    run_virtual(story(), limit_s=60)


LACKS = {
    "no machine": (False, None, "no machine is running"),
    "no Node": (True, None, "kubelet in kube1 has not registered its Node"),
    "a Node of before": (True, "0", "the Node's status is from a boot before that of kube1"),
}


@pytest.mark.parametrize("name", LACKS)
def test_missing_node_is_reported_with_what_it_lacks(name: str, tmp_path: Path) -> None:
    runs, boot_id, lack = LACKS[name]

    async def story() -> None:
        waiting = Waiting(tmp_path)
        if runs:
            await waiting.run()
        if boot_id is not None:
            await waiting.node(boot_id)
        with pytest.raises(Transient, match=lack):
            await waiting.wait()
        assert f"waiting for Node m1: {lack}" in waiting.told[0]

    run_virtual(story())


# Spec of the node

WORKERS = "unbounded-cloud.io/machine-configuration"


def test_first_node_is_built_from_the_configuration_of_its_machine() -> None:
    """The agent's configuration counts for fields that the Machine does not set."""

    async def story() -> None:
        api = MemoryApi()
        spec = {"kubernetes": {"version": "v1.33.0", "nodeLabels": {"tier": "edge"}}, "agent": {"image": "mine"}}
        await api.create(MACHINES, {"metadata": {"name": "m1"}, "spec": spec})
        goal = await goal_for_build(api, GOAL)
        assert (goal.kubernetes_version, goal.image, goal.labels["tier"]) == ("1.33.0", "mine", "edge")
        assert goal.api_server == GOAL.api_server

        await api.patch(MACHINES, "m1", {"spec": {"configurationRef": {"name": "workers"}}})
        with pytest.raises(Transient, match="Machine m1: MachineConfiguration workers has no version"):
            await goal_for_build(api, GOAL)
        template = {"kubernetes": {"version": "v1.35.1"}}
        body = {"metadata": {"name": "workers-v1", "labels": {WORKERS: "workers"}}, "spec": {"version": 1}}
        body["spec"]["template"] = template  # type: ignore[index]
        await api.create(MACHINE_CONFIGURATION_VERSIONS, body)
        goal = await goal_for_build(api, GOAL)
        assert goal.kubernetes_version == "1.35.1"
        assert goal.configuration is not None
        machine = await api.get(MACHINES, "m1")
        version = await api.get(MACHINE_CONFIGURATION_VERSIONS, "workers-v1")
        assert desired_node(machine, version, goal).same, "nothing is pending once it is made"

    run_virtual(story())


async def api_with(version: str) -> MemoryApi:
    """Return an API with m1 bound to workers-v1, which has this version of Kubernetes."""
    api = MemoryApi()
    spec = {"kubernetes": {}, "configurationRef": {"name": "workers"}}
    await api.create(MACHINES, {"metadata": {"name": "m1"}, "spec": spec})
    template = {"kubernetes": {"version": version}}
    meta = {"name": "workers-v1", "labels": {WORKERS: "workers"}}
    body = {"metadata": meta, "spec": {"version": 1, "template": template}}
    await api.create(MACHINE_CONFIGURATION_VERSIONS, body)
    return api


def edited_after(api: MemoryApi, edits: int) -> None:
    """Edit the version so often, each time just after the Machine has named it as the source of its node."""
    patch, left = api.patch, iter(range(edits))

    async def noting(kind: Any, name: str, body: Any, **more: Any) -> Any:
        written = await patch(kind, name, body, **more)
        if "configuration" in body.get("status", {}) and (number := next(left, None)) is not None:
            edit = {"spec": {"template": {"kubernetes": {"version": f"v1.35.{number}"}}}}
            await patch(MACHINE_CONFIGURATION_VERSIONS, "workers-v1", edit)
        return written

    api.patch = noting  # type: ignore[method-assign, assignment]


async def test_machine_status_names_the_version_before_the_first_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    api = await api_with("v1.34.0")
    edited_after(api, 1)

    @asynccontextmanager
    async def connected(*_given: object) -> AsyncIterator[MemoryApi]:
        yield api

    monkeypatch.setattr("unbounded.agent.start.connected", connected)
    around = StartInputs(HostPaths(tmp_path), facts=HostFacts(image="registry.example.com/node:v1"))
    starting = _starting(CONFIG, around, made_up_host(tmp_path).host)
    assert (await starting.read_goal()).kubernetes_version == "1.35.0", "as it is, and not as it was"
    said = (await api.get(MACHINES, "m1")).status.configuration
    assert said is not None
    assert (said.name, said.version, said.version_name) == ("workers", 1, "workers-v1")


async def test_no_node_is_made_from_a_version_that_changes_again_and_again() -> None:
    api = await api_with("v1.34.0")
    edited_after(api, 100)
    with pytest.raises(Transient, match="Machine m1: its configuration changes too often"):
        await recorded_goal(api, GOAL)


def test_deleted_machine_is_reported_with_its_remedy() -> None:
    async def story() -> None:
        with pytest.raises(Rejected, match="Machine m1 was deleted: run `unbounded-agent reset`"):
            await goal_for_build(MemoryApi(), GOAL)

    run_virtual(story())
