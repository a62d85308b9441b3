"""Slots without a machine: the written files, the calls of systemd, and the results if these fail."""

from __future__ import annotations

import asyncio
import datetime
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.agent.goals import goal
from tests.agent.scripted import ScriptedCommands, ScriptedUnits, failed
from unbounded.agent.interfaces import HostCommandResult, UnitFacts
from unbounded.agent.model import BuildRecord, CertificateAccess, Slot, SlotFacts
from unbounded.agent.node.machine_runner import MachineLimits
from unbounded.agent.node.nodes import HostNodes
from unbounded.agent.node.slot_files import read_build_record, remove_build_record, write_build_record
from unbounded.agent.paths import HostPaths
from unbounded.api.failures import Rejected, Transient
from unbounded.kube.durable_files import remove_durably
from unbounded.kube.logs import SecretStr

KUBE1, KUBE2 = Slot.KUBE1, Slot.KUBE2
UNIT = "systemd-nspawn@kube1.service"
SHORT = MachineLimits(0.001, 0.2, 0.2, 0.2, 0.2, 0.2, 0.5, 0.2)
APPLIED = BuildRecord(goal=goal(), image_digest="sha256:0")
RUNS = UnitFacts(UNIT, "loaded", "active", "running", "enabled", 1)


@dataclass
class Parts:
    paths: HostPaths
    commands: ScriptedCommands
    units: ScriptedUnits
    inside: ScriptedUnits
    nodes: HostNodes


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    paths, commands = HostPaths(tmp_path), ScriptedCommands()
    units, inside = ScriptedUnits(), ScriptedUnits()
    commands.answers[("machinectl", "show")] = [failed("No machine 'kube1' known")]
    nodes = HostNodes(paths, commands, units, inside=lambda _: inside, arch="amd64", limits=SHORT)
    return Parts(paths, commands, units, inside, nodes)


LEADER: Final = ("machinectl", "show", "--property=Leader")
OWN: Final = "90 80 0:25 /boot_id /proc/sys/kernel/random/boot_id rw - tmpfs tmpfs rw\n"


def runs(parts: Parts, mounts: str = OWN) -> None:
    """The machine of kube1 is there, with what its first process sees."""
    parts.units.states[UNIT] = RUNS
    answers = parts.commands.answers
    answers.clear()
    answers.update(
        {
            LEADER: [HostCommandResult((), 0, "7\n", "")],
            ("machinectl", "show"): [HostCommandResult((), 0, "State=running", "")],
        }
    )
    process = parts.paths.at("/proc/7")
    seen = process / "root/proc/sys/kernel/random/boot_id"
    seen.parent.mkdir(parents=True)
    seen.write_text("b00t\n")
    (process / "mountinfo").write_text(f"80 79 0:24 / / rw - ext4 /dev/vda rw\n{mounts}")


def whole(paths: HostPaths, slot: Slot = KUBE1) -> None:
    (paths.rootfs(slot) / "etc").mkdir(parents=True)
    write_build_record(paths, slot, APPLIED)


# Source of a slot


def test_what_a_slot_was_made_from_is_read_back(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    assert read_build_record(paths, KUBE1) is None
    write_build_record(paths, KUBE1, APPLIED)
    assert read_build_record(paths, KUBE1) == APPLIED
    assert paths.applied(KUBE1).stat().st_mode & 0o777 == 0o600
    remove_build_record(paths, KUBE1)
    remove_build_record(paths, KUBE1)
    assert list(paths.etc.iterdir()) == []


def test_modified_build_record_is_rejected_and_one_without_checksum_accepted(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    write_build_record(paths, KUBE1, APPLIED)
    path = paths.applied(KUBE1)
    sidecar = path.with_name(f"{path.name}.sha256")
    checksum = sidecar.read_bytes()
    remove_durably(sidecar)
    assert read_build_record(paths, KUBE1) == APPLIED
    sidecar.write_bytes(checksum)
    path.write_bytes(path.read_bytes().replace(b"m1", b"m2"))
    with pytest.raises(Rejected, match="does not match its checksum"):
        read_build_record(paths, KUBE1)


def test_a_description_by_a_later_agent_is_left_alone(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    write_build_record(paths, KUBE1, BuildRecord(goal=goal(), format=2))
    with pytest.raises(Rejected, match="its format is 2, but this agent supports formats up to 1"):
        read_build_record(paths, KUBE1)
    assert paths.applied(KUBE1).exists()


async def test_the_node_that_a_slot_became_is_remembered(parts: Parts) -> None:
    with pytest.raises(Rejected, match="the slot is incomplete"):
        await parts.nodes.registered(KUBE1, "u1")
    whole(parts.paths)
    await parts.nodes.registered(KUBE1, "u1")
    assert parts.nodes.applied(KUBE1) == BuildRecord(goal=goal(), image_digest="sha256:0", node_uid="u1")


async def test_a_kubelet_gets_another_certificate_and_keeps_all_else(parts: Parts) -> None:
    pem = CertificateAccess(SecretStr(certificate(1)))
    with pytest.raises(Rejected, match="the slot is incomplete"):
        await parts.nodes.introduce(KUBE1, pem)
    whole(parts.paths)
    folder = parts.paths.rootfs(KUBE1) / "var/lib/kubelet/pki"
    folder.mkdir(parents=True)
    (folder / "kubelet-client-2026.pem").write_text(certificate(-1))
    os.symlink("/var/lib/kubelet/pki/kubelet-client-2026.pem", folder / "kubelet-client-current.pem")
    parts.units.states[UNIT] = RUNS
    assert await parts.nodes.kubelet_certificate(KUBE1) is None
    await parts.nodes.introduce(KUBE1, pem)
    found = await parts.nodes.kubelet_certificate(KUBE1)
    assert found is not None
    assert found.pem.reveal() == pem.pem.reveal()
    assert "client-certificate" in (folder.parent / "kubeconfig").read_text()
    assert (folder / "kubelet-client-2026.pem").exists()
    assert parts.inside.asked == [("stop", "kubelet.service"), ("stop", "containerd.service")]
    assert parts.nodes.applied(KUBE1) == APPLIED


async def test_what_a_slot_registers_as_follows_without_a_new_node(parts: Parts) -> None:
    whole(parts.paths)
    runs(parts)
    labels = {**APPLIED.goal.labels, "tier": "core"}
    for _ in range(2):
        await parts.nodes.describe(KUBE1, labels, ("x=1:NoExecute",))
    drop_in = parts.paths.rootfs(KUBE1) / "etc/systemd/system/kubelet.service.d/20-node-config.conf"
    assert "tier=core" in drop_in.read_text()
    assert "--register-with-taints=x=1:NoExecute" in drop_in.read_text()
    assert parts.inside.asked == [("reload",)], "it is not restarted"
    applied = parts.nodes.applied(KUBE1)
    assert applied is not None
    assert (applied.goal.labels, applied.goal.taints) == (labels, ("x=1:NoExecute",))
    assert applied.image_digest == APPLIED.image_digest


# Up


async def test_a_slot_that_is_not_whole_is_not_started(parts: Parts) -> None:
    (parts.paths.rootfs(KUBE1) / "etc").mkdir(parents=True)
    with pytest.raises(Rejected, match="the slot is incomplete"):
        await parts.nodes.start(KUBE1)
    assert parts.units.asked == []


async def test_a_start_writes_what_systemd_reads_and_then_starts_machine_containerd_kubelet(parts: Parts) -> None:
    whole(parts.paths)
    (parts.paths.root / "lib/modules").mkdir(parents=True)
    await parts.nodes.start(KUBE1)
    assert "BindReadOnly=/lib/modules:/lib/modules" in parts.paths.nspawn(KUBE1).read_text()
    assert "Restart=on-failure" in parts.paths.override(KUBE1).read_text()
    assert parts.units.asked == [("reload",), ("start", UNIT)]
    assert parts.commands.ran("systemctl", "enable", "--quiet", "--no-reload", "--", "machines.target", UNIT) == 1
    assert parts.inside.asked == [("start", "containerd.service"), ("start", "kubelet.service")]
    parts.units.asked.clear()
    await parts.nodes.start(KUBE1)
    assert ("reload",) not in parts.units.asked  # nothing had changed


async def test_a_machine_of_that_name_that_is_there_already_is_ended_first(parts: Parts) -> None:
    whole(parts.paths)
    parts.units.fail[UNIT] = ["Machine 'kube1' already exists"]
    parts.commands.answers[("machinectl", "show")] = [HostCommandResult((), 0, "State=running", ""), failed()]
    await parts.nodes.start(KUBE1)
    assert parts.commands.ran("machinectl", "terminate") == 1
    assert parts.units.asked[-2:] == [("reset-failed", UNIT), ("start", UNIT)]


async def test_another_failure_of_the_start_is_not_covered_up(parts: Parts) -> None:
    whole(parts.paths)
    parts.units.fail[UNIT] = ["Failed to stat /dev/kvm"]
    with pytest.raises(Transient, match="/dev/kvm"):
        await parts.nodes.start(KUBE1)
    assert parts.commands.ran("machinectl", "terminate") == 0


async def test_old_machine_that_does_not_end_fails_the_start_in_time(parts: Parts) -> None:
    whole(parts.paths)
    parts.units.fail[UNIT] = ["File exists"]
    parts.commands.answers[("machinectl", "show")] = [HostCommandResult((), 0, "State=closing", "")]
    with pytest.raises(Transient, match="the old machine does not end within"):
        await parts.nodes.start(KUBE1)


async def test_a_machine_that_does_not_answer_is_given_up_within_the_limit(parts: Parts) -> None:
    whole(parts.paths)
    parts.inside.silent = True
    with pytest.raises(Transient, match="kube1: the machine does not answer within"):
        await parts.nodes.start(KUBE1)


async def test_a_kubelet_that_does_not_become_active_is_named(parts: Parts) -> None:
    whole(parts.paths)
    parts.inside.fail["kubelet.service"] = ["control process exited"]
    with pytest.raises(Transient, match=r"kube1: kubelet\.service does not become active within"):
        await parts.nodes.start(KUBE1)


# Down


async def test_services_are_stopped_kubelet_first_and_only_where_the_machine_runs(parts: Parts) -> None:
    await parts.nodes.stop_services(KUBE1)
    assert parts.inside.asked == []
    parts.units.states[UNIT] = RUNS
    await parts.nodes.stop_services(KUBE1)
    assert parts.inside.asked == [("stop", "kubelet.service"), ("stop", "containerd.service")]


@pytest.fixture
def deaf() -> Iterator[subprocess.Popen[bytes]]:
    """A process that does not hear SIGTERM."""
    script = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", script]) as process:
        yield process
        process.kill()


async def test_a_kubelet_that_hangs_is_killed_through_its_control_group(
    parts: Parts, deaf: subprocess.Popen[bytes]
) -> None:
    parts.units.states[UNIT] = RUNS
    parts.inside.hang.add("kubelet.service")
    parts.commands.answers[("systemctl", "show")] = [HostCommandResult((), 0, f"/machine.slice/{UNIT}\n", "")]
    group = parts.paths.at("/sys/fs/cgroup/machine.slice") / UNIT / "payload/system.slice/kubelet.service"
    group.mkdir(parents=True)
    procs = group / "cgroup.procs"
    procs.write_text(f"{deaf.pid}\n")

    async def kernel() -> None:
        await asyncio.to_thread(deaf.wait)
        procs.write_text("")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(kernel())
        await parts.nodes.stop_services(KUBE1)
    assert deaf.returncode == -9
    assert parts.inside.asked[-1] == ("stop", "containerd.service")


async def test_a_kubelet_that_cannot_even_be_killed_is_said_within_the_limit(parts: Parts) -> None:
    parts.units.states[UNIT] = RUNS
    parts.inside.hang.add("kubelet.service")
    parts.commands.answers[("systemctl", "show")] = [HostCommandResult((), 0, "/g\n", "")]
    group = parts.paths.at("/sys/fs/cgroup/g/payload/system.slice/kubelet.service")
    group.mkdir(parents=True)
    (group / "cgroup.procs").write_text("4194305\n")  # higher than any process
    with pytest.raises(Transient, match=r"kubelet\.service cannot be killed within"):
        await parts.nodes.stop_services(KUBE1)


async def test_a_machine_that_stops_is_not_killed(parts: Parts) -> None:
    parts.units.states[UNIT] = RUNS
    await parts.nodes.stop(KUBE1)
    assert parts.units.asked == [("stop", UNIT), ("reset-failed", UNIT)]
    assert parts.commands.ran("systemctl", "disable", "--quiet", "--no-reload", "--", UNIT) == 1
    assert parts.commands.ran("machinectl", "terminate") == 0


async def test_a_machine_that_hangs_is_ended_by_force(parts: Parts) -> None:
    parts.units.states[UNIT] = RUNS
    parts.units.hang.add(UNIT)
    await parts.nodes.stop(KUBE1)
    assert parts.commands.ran("machinectl", "terminate") == 1
    assert ("kill", UNIT) in parts.units.asked


async def test_machine_is_stopped_even_when_its_unit_cannot_be_disabled(parts: Parts) -> None:
    """The other slot must not be started beside it then."""
    parts.units.states[UNIT] = RUNS
    parts.commands.answers[("systemctl", "disable")] = [failed("Read-only file system")]
    with pytest.raises(Transient, match="Read-only"):
        await parts.nodes.stop(KUBE1)
    assert ("stop", UNIT) in parts.units.asked


async def test_a_host_that_cannot_have_machines_has_none_to_stop(parts: Parts) -> None:
    parts.commands.answers[("systemctl", "disable")] = [failed("Unit file systemd-nspawn@.service does not exist.")]
    parts.commands.answers[("machinectl",)] = parts.commands.answers[("machinectl", "show")] = [
        Rejected("machinectl: this program is not installed on the host")
    ]
    await parts.nodes.stop(KUBE1)
    await parts.nodes.remove(KUBE1)
    parts.units.states[UNIT] = RUNS
    assert (await parts.nodes.observe(KUBE1)).running is False


async def test_a_machine_that_cannot_be_ended_is_said_within_the_limit(parts: Parts) -> None:
    parts.commands.answers[("machinectl", "show")] = [HostCommandResult((), 0, "State=closing", "")]
    with pytest.raises(Transient, match="the machine cannot be ended within"):
        await parts.nodes.stop(KUBE1)


# Seen


async def test_a_slot_is_seen_as_it_is(parts: Parts) -> None:
    assert await parts.nodes.observe(KUBE1) == SlotFacts(KUBE1)
    whole(parts.paths)
    assert await parts.nodes.observe(KUBE1) == SlotFacts(KUBE1, exists=True, applied=APPLIED)
    runs(parts)
    parts.inside.states["kubelet.service"] = RUNS
    seen = await parts.nodes.observe(KUBE1)
    assert seen == SlotFacts(KUBE1, True, APPLIED, running=True, boot_id="b00t", kubelet=True, containerd=False)
    assert await parts.nodes.observe(KUBE2) == SlotFacts(KUBE2)


@pytest.mark.parametrize("seen", [pytest.param("", id="the-host-s-boot-id"), pytest.param(None, id="no-process")])
async def test_a_machine_that_is_only_being_set_up_does_not_run_yet(parts: Parts, seen: str | None) -> None:
    runs(parts, mounts=seen or "")
    if seen is None:
        parts.paths.at("/proc/7/mountinfo").unlink()
    assert (await parts.nodes.observe(KUBE1)).running is False


async def test_a_machine_that_hangs_runs_without_services(parts: Parts) -> None:
    runs(parts)
    parts.inside.silent = True
    seen = await parts.nodes.observe(KUBE1)
    assert (seen.running, seen.boot_id, seen.kubelet, seen.containerd) == (True, "b00t", False, False)


# Removed


async def test_what_runs_is_not_removed(parts: Parts) -> None:
    whole(parts.paths)
    parts.units.states[UNIT] = RUNS
    with pytest.raises(Transient, match="stop it first"):
        await parts.nodes.remove(KUBE1)
    assert parts.nodes.applied(KUBE1) == APPLIED


async def test_removing_takes_everything_of_one_slot_and_may_be_repeated(tmp_path: Path) -> None:
    paths, units, inside = HostPaths(tmp_path), ScriptedUnits(), ScriptedUnits()
    nodes = HostNodes(paths, Removing(), units, inside=lambda _: inside, limits=SHORT)
    whole(paths)
    whole(paths, KUBE2)
    (paths.machines / ".building-kube1/root").mkdir(parents=True)
    (paths.machines / ".removing-kube1-12345678").mkdir()
    (paths.machines / ".#kube1.lck").touch()
    await nodes.start(KUBE1)
    units.states.clear()
    await nodes.remove(KUBE1)
    await nodes.remove(KUBE1)
    assert [path.name for path in paths.machines.iterdir()] == ["kube2"]
    assert not paths.nspawn(KUBE1).exists()
    assert not paths.override(KUBE1).parent.exists()
    assert nodes.applied(KUBE1) is None
    assert nodes.applied(KUBE2) == APPLIED


class Removing(ScriptedCommands):
    """Runs `rm`, and nothing else."""

    async def run(self, *argv: str, **given: object) -> HostCommandResult:
        if argv[0] == "rm":
            await asyncio.to_thread(subprocess.run, argv, check=True)
        return HostCommandResult(argv, 1 if argv[0] == "machinectl" else 0, "", "")


# kubelet's certificate


def certificate(days: int) -> str:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "system:node:m1")])
    start = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=10)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(start)
        .not_valid_after(start + datetime.timedelta(days=10 + days))
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    )
    return made.public_bytes(serialization.Encoding.PEM).decode() + pem.decode()


@pytest.mark.parametrize(
    ("pem", "good"),
    [
        pytest.param(certificate(1), True, id="good"),
        pytest.param(certificate(-1), False, id="run-out"),
        pytest.param(certificate(1).partition("-----BEGIN EC")[0], False, id="without-key"),
        pytest.param("x", False, id="broken"),
    ],
)
async def test_kubelets_certificate_is_taken_from_the_slot_while_it_is_good(parts: Parts, pem: str, good: bool) -> None:
    assert await parts.nodes.kubelet_certificate(KUBE1) is None
    folder = parts.paths.rootfs(KUBE1) / "var/lib/kubelet/pki"
    folder.mkdir(parents=True)
    assert await parts.nodes.kubelet_certificate(KUBE1) is None
    (folder / "kubelet-client-2026.pem").write_text(pem)
    # kubelet links it by its whole path, which is below the slot's own root
    os.symlink("/var/lib/kubelet/pki/kubelet-client-2026.pem", folder / "kubelet-client-current.pem")
    found = await parts.nodes.kubelet_certificate(KUBE1)
    assert (found.pem.reveal() if found else None) == (pem if good else None)


async def test_repeatedly_ending_kubelet_is_reported_with_its_output(parts: Parts) -> None:
    runs(parts)
    journal = ("systemd-run", "--machine=kube1", "--quiet", "--collect", "--pipe", "--wait", "--", "journalctl")
    parts.commands.answers[journal] = [
        HostCommandResult((), 0, "Started kubelet.service\npanic: locked\n", ""),
        failed("no journal"),
    ]
    trouble = "kubelet in kube1 does not stay up"
    assert await parts.nodes.kubelet_problem(KUBE1) == f"{trouble}; its last output: panic: locked"
    assert await parts.nodes.kubelet_problem(KUBE1) == trouble
