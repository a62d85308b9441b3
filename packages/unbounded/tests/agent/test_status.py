"""Output of `status` about a host, from the files that the agent's own parts have written."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tests.agent.preflight.support import GOAL, NoUnits, config
from unbounded.agent import host_status
from unbounded.agent.build import this_build
from unbounded.agent.host_status import HostState, StateReader, as_json, as_text
from unbounded.agent.interfaces import UnitFacts, Units
from unbounded.agent.lock import host_lock
from unbounded.agent.model import BuildRecord, Slot
from unbounded.agent.paths import BINARY, HostPaths
from unbounded.agent.recreation.state_store import DiskStore, FailedRecreation, RecreationPhase, Transition
from unbounded.agent.settings import store_config
from unbounded.agent.upgrade.releases import Colour, ReleaseInfo, ReleaseSlots
from unbounded.agent.upgrade.trial import Trial, TrialProgress, TrialStore


@dataclass
class Host:
    """A made-up root, and the units that run on it."""

    paths: HostPaths
    units: dict[str, UnitFacts] = field(default_factory=dict)
    inside: dict[str, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.paths.at("/run/systemd/system").mkdir(parents=True)
        self.paths.etc.mkdir(parents=True)

    async def observe(self, unit: str) -> UnitFacts:
        return self.units.get(unit, UnitFacts(unit))

    async def state(self) -> HostState:
        def inside(_slot: str) -> Units:
            return NoUnits(self.inside)

        host: Units = NoUnits()
        host.observe = self.observe  # type: ignore[method-assign]
        return await StateReader(self.paths, host, inside).state()

    async def text(self) -> str:
        return as_text(await self.state())

    def applied(self, slot: Slot, content: bytes | None = None) -> None:
        content = content or msgspec.json.encode(BuildRecord(goal=GOAL, node_uid="uid-1"))
        path = self.paths.applied(slot)
        path.write_bytes(content)
        path.with_name(f"{path.name}.sha256").write_text(hashlib.sha256(content).hexdigest())
        self.paths.rootfs(slot).mkdir(parents=True)

    def release(self, version: str) -> Colour:
        releases = ReleaseSlots(self.paths)
        with releases.scratch() as made:
            (made / BINARY).write_text("#!/bin/sh\n")
            (made / BINARY).chmod(0o755)
            return releases.place(made, ReleaseInfo(version=version))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(HostPaths(tmp_path))


async def test_a_host_that_was_never_started(host: Host) -> None:
    told = await host.text()
    assert "Machine:     none: this host was not started" in told
    assert "Daemon:      not installed" in told
    assert "kube1:       free" in told
    assert "Releases:    none installed" in told
    assert "Unknown" not in told


async def test_a_node_that_runs(host: Host) -> None:
    store_config(host.paths, config(api_server="https://api.example.com"))
    host.applied(Slot.KUBE1)
    name = "unbounded-agent-daemon.service"
    host.units[name] = UnitFacts(name, load="loaded", active="active", enabled="enabled", main_pid=17)
    nspawn = "systemd-nspawn@kube1.service"
    host.units[nspawn] = UnitFacts(nspawn, load="loaded", active="active")
    host.inside = {"kubelet.service": True}
    state = replace(await host.state(), certificate_ends="2030-01-01T00:00:00Z")
    told = as_text(state)
    assert "Machine:     m1" in told
    assert "Certificate: valid until 2030-01-01T00:00:00Z" in told
    assert "Daemon:      active (enabled, pid 17)" in told
    services = ", kubelet active, containerd inactive" if os.geteuid() == 0 else ""
    assert f"kube1:       Kubernetes 1.34.0, machine active{services}, Node uid-1" in told
    assert "kube2:       free" in told


async def test_status_names_unverified_artifacts_of_a_node(host: Host) -> None:
    host.applied(Slot.KUBE1, msgspec.json.encode(BuildRecord(goal=GOAL, unchecked=("cni", "runc"))))
    assert "no Node registered yet, without a verified sha256: cni runc" in await host.text()


async def test_deleted_machine_is_reported_with_its_remedy(host: Host) -> None:
    store_config(host.paths, config(api_server="https://api.example.com"))
    host.paths.machine_missing.parent.mkdir(parents=True)
    host.paths.machine_missing.write_text("Machine m1 was deleted: run something\n")
    assert "Missing:     Machine m1 was deleted: run something" in (await host.text()).splitlines()
    assert json.loads(as_json(await host.state()))["missing"].startswith("Machine m1 was deleted")
    host.paths.machine_missing.unlink()
    assert "Missing" not in await host.text()


async def test_both_releases_and_the_one_on_trial(host: Host) -> None:
    releases = ReleaseSlots(host.paths)
    releases.first(host.release("1.0.0"))
    assert "Releases:    blue 1.0.0 (in use, last good), green empty" in await host.text()
    green = host.release("2.0.0")
    trial = Trial(
        progress=TrialProgress.SWITCHING,
        release=green,
        former=Colour.BLUE,
        operation="upgrade-m1",
        version="2.0.0",
        former_version="1.0.0",
    )
    TrialStore(host.paths).write(trial)
    releases.switch(green)
    told = await host.text()
    assert "Releases:    blue 1.0.0 (last good), green 2.0.0 (in use)" in told
    assert "Upgrade:     1.0.0 → 2.0.0 by upgrade-m1: OnTrial" in told
    releases.prove(green)
    assert "Upgrade" not in await host.text()


async def test_a_recreation_that_is_under_way_and_one_that_failed(host: Host) -> None:
    host.paths.etc.mkdir(parents=True, exist_ok=True)
    store = DiskStore(host.paths)
    now = "2026-01-02T03:04:05Z"
    store.write(
        Transition(
            uid="u", phase=RecreationPhase.PREPARING, source=Slot.KUBE1, goal=GOAL, why="its Node is gone", since=now
        )
    )
    store.fail(FailedRecreation(uid="u", goal=GOAL, attempts=2, why="kubelet was not healthy", at=now))
    told = await host.text()
    assert "Recreation:  Preparing, Kubernetes 1.34.0, attempt 1: its Node is gone" in told
    assert f"Failed:      node with 1.34.0, attempt 2, {now}: kubelet was not healthy" in told


async def test_status_names_damaged_or_newer_files_and_reports_the_rest(host: Host) -> None:
    host.applied(Slot.KUBE1, msgspec.json.encode({"format": 99}))
    host.applied(Slot.KUBE2)
    host.paths.applied(Slot.KUBE2).write_bytes(b"{}")
    host.paths.recreation.write_text('{"format": 99}')
    host.paths.config.write_text("{")
    told = await host.text()
    assert "kube1:       incomplete" in told
    unknown = [line for line in told.splitlines() if line.startswith("Unknown")]
    assert len(unknown) == 4, told
    assert any("format 99" in line and "recreation" in line for line in unknown)


async def test_a_reset_that_has_not_ended(host: Host) -> None:
    host.paths.reset_state.touch()
    assert "Reset:       started and not finished" in await host.text()


async def test_the_json_has_the_same_and_no_secret(host: Host) -> None:
    given = config(api_server="https://api.example.com")
    store_config(host.paths, given)
    document = json.loads(as_json(await host.state()))
    assert document["machine"] == "m1"
    assert [node["slot"] for node in document["nodes"]] == ["kube1", "kube2"]
    assert given.kubelet.auth.bootstrap_token not in json.dumps(document)
    assert base64.b64decode(given.cluster.ca_cert_base64).decode() not in json.dumps(document)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
@pytest.mark.root
async def test_status_for_other_users_than_root_omits_private_parts(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = this_build()  # a checkout below root's home cannot be read by others; a release can
    monkeypatch.setattr(host_status, "this_build", lambda: build)
    store_config(host.paths, config(api_server="https://api.example.com"))
    ReleaseSlots(host.paths).first(host.release("1.0.0"))
    async with host_lock(host.paths, "start"):
        pass
    for folder in [host.paths.root, *host.paths.root.parents[:-1]]:
        folder.chmod(folder.stat().st_mode | 0o055)
    os.seteuid(65534)
    try:
        told = await host.text()
    finally:
        os.seteuid(0)
    assert "configuration: only root can read it" in told
    assert "lock: only root can read it" in told
    assert "blue 1.0.0 (in use, last good)" in told
