"""Slots on a host with a real systemd and machined, from a real registry and a mirror of artifacts."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agent.slots import TOKEN, goal_of, nodes_of, paths_of
from tests.support.authority import PEM
from tests.support.hosts import Host
from tests.support.hosts.images import Images
from tests.support.hosts.mirror import Dial, Mirror
from unbounded.agent.cluster_access import ClusterAccess, access_of_goal
from unbounded.agent.model import CertificateAccess, Slot
from unbounded.agent.node import kubelet
from unbounded.agent.node.machine_runner import MachineLimits
from unbounded.agent.node.nodes import HostNodes
from unbounded.agent.paths import HostPaths
from unbounded.api.failures import Rejected
from unbounded.kube.logs import SecretStr

pytestmark = [pytest.mark.slow, pytest.mark.root]
KUBE1, KUBE2 = Slot.KUBE1, Slot.KUBE2


def quiet(_: str) -> None:
    pass


def tree(root: Path) -> dict[str, tuple[object, ...]]:
    """All of a slot's files: kind, rights, owner, and content of what is small."""
    found: dict[str, tuple[object, ...]] = {}
    for folder, folders, files in os.walk(root):
        for name in [*folders, *files]:
            path = Path(folder) / name
            held = path.lstat()
            content: object = None
            if path.is_symlink():
                content = os.readlink(path)
            elif path.is_file():
                content = hashlib.sha256(path.read_bytes()).hexdigest() if held.st_size < 1 << 20 else held.st_size
            found[str(path.relative_to(root))] = (oct(held.st_mode), held.st_uid, held.st_gid, content)
    return found


async def test_a_slot_is_built_runs_restarts_and_leaves_nothing(
    host: Host, mirror: Mirror, images: Images, tmp_path: Path
) -> None:
    nodes, wanted = nodes_of(host), goal_of(mirror, f"{images.host}/lab/node:v1")
    told: list[str] = []
    await nodes.build(KUBE1, wanted, TOKEN, told.append)
    assert any("fetch containerd" in line for line in told)
    seen = await nodes.observe(KUBE1)
    assert (seen.exists, seen.running) == (True, False)
    assert seen.applied is not None
    assert seen.applied.goal == wanted

    await nodes.start(KUBE1)
    first = await nodes.observe(KUBE1)
    assert (first.running, first.kubelet, first.containerd) == (True, True, True)
    await _a_disk_that_comes_later_reaches_the_node(host, nodes, tmp_path)
    await _kubelet_follows_another_ca_while_its_node_runs_on(nodes, first.boot_id)
    await _kubelet_moves_to_another_cluster_while_its_node_runs_on(nodes, first.boot_id)
    host_boot = await host.boot_id()
    assert first.boot_id not in ("", host_boot)
    ctr = ("systemd-run", "-M", "kube1", "-q", "--pipe", "--wait", "/usr/local/bin/ctr", "version")
    assert "1.6.20" in (await host.run(*ctr)).stdout
    assert await nodes.sandbox_problem(KUBE1) == ""
    sandboxes = ("/usr/local/bin/ctr", "--namespace", "k8s.io", "containers", "list", "--quiet")
    assert (await host.run("systemd-run", "-M", "kube1", "-q", "--pipe", "--wait", *sandboxes)).stdout == ""
    hosts = paths_of(host).rootfs(KUBE1) / "etc/hosts"
    content = hosts.read_bytes()
    hosts.unlink()
    assert (await nodes.sandbox_problem(KUBE1)).endswith("open /etc/hosts: no such file or directory")
    hosts.write_bytes(content)
    await nodes.start(KUBE1)  # again: nothing happens
    assert (await nodes.observe(KUBE1)).boot_id == first.boot_id

    # NodeReboot, as its procedure does it
    files = tree(paths_of(host).rootfs(KUBE1) / "etc")
    await nodes.stop_services(KUBE1)
    stopped = await nodes.observe(KUBE1)
    assert (stopped.running, stopped.kubelet, stopped.containerd) == (True, False, False)
    await nodes.stop(KUBE1)
    assert not (await nodes.observe(KUBE1)).running
    await nodes.stop(KUBE1)
    await nodes.start(KUBE1)
    assert (await nodes.observe(KUBE1)).boot_id not in ("", first.boot_id)
    assert tree(paths_of(host).rootfs(KUBE1) / "etc") == files

    # The other slot needs neither mirror nor registry
    mirror.dials = {path: Dial(status=503) for path in mirror.paths()}
    began = len(mirror.asked)
    try:
        await nodes.build(KUBE2, wanted, TOKEN, quiet)
    finally:
        mirror.dials = {}
    assert len(mirror.asked) == began

    await nodes.stop(KUBE1)
    for slot in (KUBE1, KUBE2):
        await nodes.remove(slot)
        assert (await nodes.observe(slot)).exists is False
    assert os.listdir(paths_of(host).machines) == []
    assert os.listdir(paths_of(host).at("/etc/systemd/nspawn")) == []
    units = await host.run("systemctl", "list-unit-files", "systemd-nspawn@kube*", check=False)
    assert "kube" not in units.stdout


async def _kubelet_follows_another_ca_while_its_node_runs_on(nodes: HostNodes, boot_id: str) -> None:
    before = await nodes._running._inside(KUBE1).observe("kubelet.service")
    access = ClusterAccess("https://10.88.0.99:6443", PEM, "10.0.0.53")
    await nodes.follow_access(KUBE1, access)
    after = await nodes._running._inside(KUBE1).observe("kubelet.service")
    assert before.main_pid != after.main_pid != 0
    assert (await nodes.observe(KUBE1)).boot_id == boot_id
    root = nodes._paths.rootfs(KUBE1)
    assert (root / kubelet.CA.lstrip("/")).read_text() == PEM
    assert b"https://10.88.0.99:6443" in (root / kubelet.BOOTSTRAP.lstrip("/")).read_bytes()
    assert b"10.0.0.53" in (root / kubelet.CONFIG.lstrip("/")).read_bytes()
    applied = nodes.applied(KUBE1)
    assert applied is not None
    assert access_of_goal(applied.goal) == access


async def _kubelet_moves_to_another_cluster_while_its_node_runs_on(nodes: HostNodes, boot_id: str) -> None:
    before = await nodes._running._inside(KUBE1).observe("kubelet.service")
    access = ClusterAccess("https://10.88.0.100:6443", PEM, "10.0.0.54")
    await nodes.succeed(KUBE1, access, CertificateAccess(SecretStr("certificate and key")), "the Node there")
    after = await nodes._running._inside(KUBE1).observe("kubelet.service")
    assert before.main_pid != after.main_pid != 0
    assert (await nodes.observe(KUBE1)).boot_id == boot_id
    root = nodes._paths.rootfs(KUBE1)
    shown = json.loads((root / kubelet.KUBECONFIG.lstrip("/")).read_bytes())
    assert shown["clusters"][0]["cluster"]["server"] == "https://10.88.0.100:6443"
    assert shown["users"][0]["user"] == dict.fromkeys(("client-certificate", "client-key"), kubelet.CERTIFICATE)
    link = root / kubelet.CERTIFICATE.lstrip("/")
    assert link.is_symlink()
    assert link.read_text() == "certificate and key"
    applied = nodes.applied(KUBE1)
    assert applied is not None
    assert (access_of_goal(applied.goal), applied.node_uid) == (access, "the Node there")


def losetup(*arguments: str) -> str:
    return subprocess.run(("losetup", *arguments), check=True, capture_output=True, text=True).stdout.strip()


async def _a_disk_that_comes_later_reaches_the_node(host: Host, nodes: HostNodes, tmp_path: Path) -> None:
    """A loop device, whose node this host gets after its machine has started; programs in the machine read it."""
    (tmp_path / "disk").write_bytes(b"of a later disk\n".ljust(1 << 16))
    disk = await asyncio.to_thread(losetup, "--find", "--show", str(tmp_path / "disk"))
    try:
        number = str(os.minor(os.stat(disk).st_rdev))
        await host.run("mknod", disk, "b", "7", number)
        await nodes.show_devices()
        inside = ("systemd-run", "--machine=kube1", "--quiet", "--pipe", "--wait", "--collect")
        said = await host.run(*inside, "dd", f"if={disk}", "bs=16", "count=1")
        assert said.stdout == "of a later disk\n"
    finally:
        await asyncio.to_thread(losetup, "--detach", disk)


async def test_a_node_comes_back_by_itself_when_the_host_boots(host: Host, mirror: Mirror, images: Images) -> None:
    nodes = nodes_of(host)
    await nodes.build(KUBE1, goal_of(mirror, f"{images.host}/lab/node:v1"), TOKEN, quiet)
    await nodes.start(KUBE1)
    await host.reboot()
    nodes = nodes_of(host, MachineLimits(service_stop_s=3.0, stop_s=3.0))
    limit = time.monotonic() + 60
    while not (await nodes.observe(KUBE1)).kubelet:
        assert time.monotonic() < limit, await nodes.observe(KUBE1)
        await asyncio.sleep(0.1)

    # A hanging kubelet, or machine, does not delay a caller
    facts = await nodes.observe(KUBE1)
    leader = (await host.run("machinectl", "show", "kube1", "--property=Leader", "--value")).stdout.strip()
    paths_of(host).rootfs(KUBE1).joinpath("etc/kubelet-standin").write_text("ignore-term")
    await host.run("systemctl", "-M", "kube1", "restart", "kubelet.service")
    began = time.monotonic()
    await nodes.stop_services(KUBE1)
    assert time.monotonic() - began < 20
    assert not (await nodes.observe(KUBE1)).kubelet
    await host.run("kill", "-STOP", leader)
    began = time.monotonic()
    await nodes.stop(KUBE1)
    assert time.monotonic() - began < 30
    await nodes.start(KUBE1)
    assert (await nodes.observe(KUBE1)).boot_id not in ("", facts.boot_id)


async def test_what_is_not_what_its_source_publishes_makes_no_slot(host: Host, mirror: Mirror, images: Images) -> None:
    nodes, wanted = nodes_of(host), goal_of(mirror, f"{images.host}/lab/node:v1")
    mirror.dials = {mirror.path_of("containerd-"): Dial(wrong=True)}
    try:
        with pytest.raises(Rejected, match=r"containerd 1\.6\.20: .*its digest is sha256"):
            await nodes.build(KUBE1, wanted, TOKEN, quiet)
    finally:
        mirror.dials = {}
    assert (await nodes.observe(KUBE1)).applied is None
    with pytest.raises(Rejected, match="the slot is incomplete"):
        await nodes.start(KUBE1)
    await nodes.build(KUBE1, wanted, TOKEN, quiet)


def fetching(paths: HostPaths) -> bool:
    """Only containerd is on its way, and the image is there."""
    sizes = [path.stat().st_size for path in paths.artifacts.glob("*.partial")]
    return len(sizes) == 1 and sizes[0] > 1 << 20 and (unpacking(paths) or installing(paths))


def unpacking(paths: HostPaths) -> bool:
    return any(paths.machines.glob(".building-kube1/.unfinished-*/usr"))


def installing(paths: HostPaths) -> bool:
    return (paths.machines / ".building-kube1/root").exists()


Point = Callable[[HostPaths], bool] | float  # a condition, or seconds


@pytest.mark.parametrize(
    "points",
    [
        pytest.param((fetching, installing), id="at-each-stage"),
        pytest.param(tuple(number / 8 for number in range(1, 33)), id="every-eighth-second", marks=pytest.mark.soak),
    ],
)
@pytest.mark.timeout(900)
async def test_build_interrupted_anywhere_is_repeated_with_the_same_result(
    host: Host, mirror: Mirror, images: Images, points: tuple[Point, ...]
) -> None:
    nodes, wanted = nodes_of(host), goal_of(mirror, f"{images.host}/lab/node:v1")
    slow = mirror.path_of("containerd-")
    for point in points:
        # A minute for containerd, so that a busy machine unpacks the image meanwhile
        mirror.dials = {slow: Dial(bytes_per_s=500_000 if point is fetching else 5_000_000)}
        build = asyncio.create_task(nodes.build(KUBE1, wanted, TOKEN, quiet))
        if isinstance(point, float):
            await asyncio.wait({build}, timeout=point)
            if build.done():
                break
        else:
            while not point(paths_of(host)):
                assert not build.done(), point
                await asyncio.sleep(0.005)
        build.cancel()
        host.cut()
        await asyncio.gather(build, return_exceptions=True)
        await host.up()
        nodes = nodes_of(host)
        assert (await nodes.observe(KUBE1)).applied is None
        assert not (paths_of(host).rootfs(KUBE1)).exists()
    mirror.dials = {}
    await nodes.build(KUBE1, wanted, TOKEN, quiet)
    assert any(asked.begins for asked in mirror.asked if asked.path == slow)
    await nodes.build(KUBE2, wanted, TOKEN, quiet)
    one, two = (tree(paths_of(host).rootfs(slot)) for slot in (KUBE1, KUBE2))
    assert one.keys() == two.keys()
    assert [path for path in one if one[path] != two[path]] == ["etc/machine-id"]
    await nodes.start(KUBE1)
