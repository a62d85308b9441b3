"""A slot from scratch, out of small images and archives: what is in it, what is refused, what a failure leaves."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import logging
import os
import stat
import tarfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import bcrypt
import msgspec
import pytest
from aiohttp import web
from msgspec.structs import replace

from tests.agent.goals import goal
from tests.agent.scripted import ScriptedCommands, ScriptedUnits
from tests.fetch.layers import entry, files, image, symlink, tar
from tests.fetch.registries import Registry, docker_registry, push, served
from tests.support.hosts.mirror import sandbox_image
from tests.support.memory_api import MemoryApi
from unbounded.agent.artifact_sources import artifacts, sandbox_artifact
from unbounded.agent.interfaces import HostCommandResult
from unbounded.agent.model import KubeletAccess, NodeGoal, Slot, TokenAccess
from unbounded.agent.node.nodes import HostNodes
from unbounded.agent.node.pull_secrets import FOLDER, PullSecrets
from unbounded.agent.paths import HostPaths
from unbounded.api.configuration import NodeSettings
from unbounded.api.core import SECRETS
from unbounded.api.failures import Rejected, Transient
from unbounded.api.names import NAMESPACE
from unbounded.join.agent_config import ArtifactSource, Downloads
from unbounded.kube.logs import SecretStr

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="owners of files need root")]

KUBE1, KUBE2 = Slot.KUBE1, Slot.KUBE2
ELSEWHERE = msgspec.convert({"kubelet": {"nodeIP": "203.0.113.0/24"}}, NodeSettings)
CONTRACT = ("etc/os-release", "etc/hosts", "usr/bin/dbus-daemon", "usr/bin/mount", "usr/bin/umount", "usr/sbin/nft",
            "etc/ssl/certs/ca-certificates.crt")  # fmt: skip


def elf(arch: str, content: bytes = b"") -> bytes:
    """The head of a program, as far as the contract reads it."""
    machine = {"amd64": 62, "arm64": 183}[arch]
    return b"\x7fELF\2\1\1".ljust(18, b"\0") + machine.to_bytes(2, "little") + content


TOKEN = TokenAccess(SecretStr("abcdef.0123456789abcdef"))
SYSTEM = tar(
    entry("usr/lib/systemd/systemd", elf("amd64", b"libsystemd-core-252.so"), mode=0o755),
    *(entry(path, b"", mode=0o755) for path in CONTRACT),
    entry("usr/bin/su", b"su", mode=0o4755),
    symlink("sbin", "usr/sbin"),
    symlink("usr/sbin/init", "/usr/lib/systemd/systemd"),
    symlink("etc/resolv.conf", "../run/systemd/resolve/stub-resolv.conf"),
    entry("etc/machine-id", b"00000000000000000000000000000000\n"),
)
PARTS = {
    "containerd": files(
        {"bin/containerd": b"c", "bin/containerd-shim-runc-v2": b"s", "bin/ctr": b"t", "README": b"no"}
    ),
    "cni": files({"./bridge": b"b", "./host-local": b"h", "./loopback": b"l"}),
    "crictl": files({"crictl": b"cri"}),
    "sandbox": sandbox_image(),
}


class Commands(ScriptedCommands):
    """Real for what only deletes files."""

    async def run(self, *argv: str, **given: Any) -> HostCommandResult:
        if argv[0] == "rm":
            os.system("rm -rf " + argv[-1])  # noqa: ASYNC221, a few small files
        return await super().run(*argv, **given)


@dataclass
class Site:
    """A registry and a mirror, with a host that is a folder."""

    root: Path
    registry: Registry = field(default_factory=Registry)
    held: dict[str, bytes] = field(default_factory=dict)
    commands: Commands = field(default_factory=Commands)
    units: ScriptedUnits = field(default_factory=ScriptedUnits)
    mirror: str = ""
    asked: list[str] = field(default_factory=list)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked.append(request.path)
        content = self.held.get(request.path)
        return web.Response(status=404) if content is None else web.Response(body=content)

    @property
    def paths(self) -> HostPaths:
        return HostPaths(self.root)

    @property
    def nodes(self) -> HostNodes:
        return HostNodes(self.paths, self.commands, self.units, arch="amd64")

    def goal(self, **changed: Any) -> NodeGoal:
        source = ArtifactSource(base_url=f"http://{self.mirror}")
        downloads = Downloads(
            kubernetes=source, containerd=source, runc=source, cni=source, crictl=source, sandbox=source
        )
        return goal(**{"image": f"{self.registry.host}/rootfs:1", "downloads": downloads, **changed})

    def publish(self, wanted: NodeGoal, **parts: bytes) -> None:
        sandbox = sandbox_artifact(wanted, "amd64")
        for artifact in (*artifacts(wanted, "amd64"), *([sandbox] if sandbox else [])):
            content = {**PARTS, **parts}.get(artifact.name, artifact.name.encode())
            self.held["/" + artifact.url.partition(f"{self.mirror}/")[2]] = content
            line = f"{hashlib.sha256(content).hexdigest()}  {artifact.file_name}\n"
            self.held["/" + artifact.checksum_url.partition(f"{self.mirror}/")[2]] = line.encode()

    async def build(self, wanted: NodeGoal, *, slot: Slot = KUBE1, access: KubeletAccess = TOKEN) -> Path:
        await self.nodes.build(slot, wanted, access, lambda _: None)
        return self.paths.rootfs(slot)


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path / "host")
    for path, content in (("etc/resolv.conf", "nameserver 10.0.0.1\n"), ("etc/machine-id", "1" * 32)):
        (made.root / path).parent.mkdir(parents=True, exist_ok=True)
        (made.root / path).write_text(content)
    made.registry.add(image([SYSTEM]), "1")
    async with AsyncExitStack() as stack:
        made.registry.host = await stack.enter_async_context(served(made.registry.handle))
        made.mirror = await stack.enter_async_context(served(made.handle))
        made.publish(made.goal())
        yield made


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.slow
async def test_a_slot_holds_its_image_its_binaries_and_its_configuration(site: Site) -> None:
    root = await site.build(site.goal())
    assert (root / "usr/local/bin/kubelet").read_bytes() == b"kubelet"
    assert (root / "usr/local/sbin/runc").read_bytes() == b"runc"
    assert (root / "usr/local/bin/containerd").read_bytes() == b"c"
    assert not (root / "usr/local/bin/README").exists()
    assert {path.name for path in (root / "opt/cni/bin").iterdir()} == {"bridge", "host-local", "loopback"}
    assert mode(root / "usr/local/bin/crictl") == mode(root / "opt/cni/bin/bridge") == 0o755
    assert mode(root / "usr/bin/su") == 0o4755
    assert (root / "etc/resolv.conf").read_text() == "nameserver 10.0.0.1\n"
    assert not (root / "etc/resolv.conf").is_symlink()
    assert (root / "etc/machine-id").read_text().strip() not in ("0" * 32, "1" * 32)
    assert mode(root / "var/lib/kubelet/bootstrap-kubeconfig") == 0o600
    assert mode(root / "etc/kubernetes/manifests") == 0o700
    assert os.readlink(root / "etc/systemd/system/systemd-resolved.service") == "/dev/null"
    applied = site.nodes.applied(KUBE1)
    assert applied is not None
    assert applied.goal == site.goal()
    assert applied.image_digest.startswith("sha256:")
    assert site.paths.nspawn(KUBE1).exists()
    assert [path.name for path in site.paths.machines.iterdir()] == ["kube1"]


@pytest.mark.slow
async def test_a_slot_that_is_built_again_has_nothing_of_the_one_before(site: Site) -> None:
    root = await site.build(site.goal())
    (root / "etc/left").write_text("over")
    (site.paths.machines / ".building-kube1").mkdir()
    await site.build(site.goal(cluster_dns="10.96.0.99"))
    assert not (root / "etc/left").exists()
    applied = site.nodes.applied(KUBE1)
    assert applied is not None
    assert applied.goal.cluster_dns == "10.96.0.99"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "content", "words"),
    [
        pytest.param("containerd", files({"bin/containerd": b"c"}), "no containerd-shim-runc-v2", id="incomplete"),
        pytest.param("containerd", files({"containerd": b"c"}), "no containerd, containerd-shim", id="elsewhere"),
        pytest.param("cni", tar(symlink("bridge", "/etc/shadow")), "only regular files are accepted", id="a-link"),
        pytest.param("cni", files({"../../etc/passwd": b"x"}), "leads out of the tree", id="out-of-it"),
        pytest.param("crictl", b"<html>", "not a readable tar archive", id="no-archive"),
    ],
)
async def test_archives_that_are_not_what_they_should_be_are_refused_by_name(
    site: Site, part: str, content: bytes, words: str
) -> None:
    site.publish(site.goal(), **{part: content})
    with pytest.raises(Rejected, match=rf"^{part}: {part}, from http://.*{words}"):
        await site.build(site.goal())
    assert site.nodes.applied(KUBE1) is None
    assert not site.paths.rootfs(KUBE1).exists()


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        pytest.param({"labels": {"node-role.kubernetes.io/worker": ""}}, "node-role.kubernetes.io/worker", id="label"),
        pytest.param({"containerd_version": "latest"}, "Containerd.Version 'latest'", id="version"),
        pytest.param({"settings": ELSEWHERE}, "this host has no address in this network", id="network"),
    ],
)
async def test_what_can_never_be_a_node_is_refused_before_anything_is_fetched(
    site: Site, changed: dict[str, Any], words: str
) -> None:
    """Machines can contain such values, which no configuration may; or the host has no address for it."""
    with pytest.raises(Rejected, match=words):
        await site.build(site.goal(**changed))
    with pytest.raises(Rejected, match=words):
        await site.nodes.fetch(site.goal(**changed), lambda _: None)
    assert site.asked == []


@pytest.mark.slow
async def test_unverified_artifacts_are_recorded_with_the_slot(site: Site) -> None:
    site.publish(site.goal())
    site.held = {path: content for path, content in site.held.items() if not path.endswith("v1.5.1.tgz.sha256")}
    await site.build(site.goal())
    applied = site.nodes.applied(KUBE1)
    assert applied is not None
    assert applied.unchecked == ("cni",)


async def test_an_image_without_a_system_is_refused(site: Site) -> None:
    site.registry.add(image([files({"app": b"x"})]), "2")
    with pytest.raises(
        Rejected,
        match=r"contract: the node image does not meet the requirements .* init: no /lib/systemd/systemd or /sbin/init",
    ):
        await site.build(site.goal(image=f"{site.registry.host}/rootfs:2"))


@pytest.mark.slow
async def test_an_image_does_not_change_the_parameters_of_the_host(site: Site) -> None:
    """Files as Ubuntu 24.04 has them, whose systemd-sysctl a node ran on a host of Debian 12."""
    privacy, linked = "etc/sysctl.d/10-ipv6-privacy.conf", entry("etc/sysctl.d/99-sysctl.conf", b"../sysctl.conf")
    own = files({privacy: b"net.ipv6.conf.all.use_tempaddr = 2\n", "usr/lib/sysctl.d/50-pid-max.conf": b"x"})
    site.registry.add(image([SYSTEM, own, tar(linked)]), "2")
    root = await site.build(site.goal(image=f"{site.registry.host}/rootfs:2"))
    names = ("10-ipv6-privacy.conf", "50-pid-max.conf", "99-sysctl.conf")
    assert [os.readlink(root / "etc/sysctl.d" / name) for name in names] == ["/dev/null"] * 3


def others(content: bytes) -> bytes:
    """A sandbox image for another architecture."""
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        held = {info.name: tar.extractfile(info).read() for info in tar if info.isreg()}  # type: ignore[union-attr]
    return files({name: data.replace(b'"amd64"', b'"arm64"') for name, data in held.items()})


@pytest.mark.slow
async def test_an_image_that_breaks_the_contract_is_refused_with_each_clause(site: Site) -> None:
    gone = tar(entry("etc/.wh.hosts", b""), entry("usr/lib/systemd/systemd", elf("arm64", b"libsystemd-core-243.so")))
    site.registry.add(image([SYSTEM, gone]), "2")
    with pytest.raises(Rejected) as refused:
        await site.build(site.goal(image=f"{site.registry.host}/rootfs:2"))
    assert str(refused.value) == (
        "contract: the node image does not meet the requirements of node images: "
        "hosts: no /etc/hosts: containerd copies it into every Pod sandbox; "
        "architecture: its systemd is for arm64, but this host is amd64; "
        "systemd: version 243 is older than 244"
    )
    assert site.nodes.applied(KUBE1) is None


@pytest.mark.slow
async def test_sandbox_image_comes_from_the_node_image_or_else_the_mirror(site: Site) -> None:
    root = await site.build(site.goal())
    assert (root / "usr/share/unbounded/sandbox.tar").read_bytes() == sandbox_image()
    own = tar(entry("usr/share/unbounded/sandbox.tar", sandbox_image()))
    site.registry.add(image([SYSTEM, own]), "own")
    site.asked.clear()
    goal = site.goal(image=f"{site.registry.host}/rootfs:own")
    site.held = {path: content for path, content in site.held.items() if "sandbox" not in path}
    root = await site.build(goal, slot=KUBE2)
    assert (root / "usr/share/unbounded/sandbox.tar").read_bytes() == sandbox_image()
    assert not any("sandbox" in path for path in site.asked)


NO_SANDBOX: dict[str, tuple[Callable[[Site], object], str]] = {
    "the mirror has none": (
        lambda site: site.held.pop("/sandbox/v1.0.0/sandbox-amd64.tar"),
        r"^sandbox image: /usr/share/unbounded/sandbox.tar is missing in the node image, and at the mirror: sandbox 1",
    ),
    "a wrong digest": (
        lambda site: site.held.update({"/sandbox/v1.0.0/sandbox-amd64.tar.sha256": b"0" * 64}),
        "^sandbox image: sandbox 1.0.0: .*its digest is sha256",
    ),
    "another architecture": (
        lambda site: site.publish(site.goal(), sandbox=others(sandbox_image())),
        "contract.* sandbox: the image in /usr/share/unbounded/sandbox.tar is for arm64, but this host is amd64",
    ),
    "no image": (
        lambda site: site.publish(site.goal(), sandbox=files({"index.json": b"{}"})),
        "contract.* sandbox: /usr/share/unbounded/sandbox.tar is not an image archive",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", NO_SANDBOX)
async def test_a_slot_without_a_sandbox_image_that_can_be_used_is_none(site: Site, case: str) -> None:
    change, words = NO_SANDBOX[case]
    change(site)
    with pytest.raises(Rejected, match=words):
        await site.build(site.goal())
    assert site.nodes.applied(KUBE1) is None


@pytest.mark.slow
async def test_a_node_image_without_the_sandbox_image_needs_a_mirror(site: Site) -> None:
    downloads = replace(site.goal().downloads, sandbox=ArtifactSource())
    neither = r"sandbox: /usr/share/.* is missing in the node image and at the artifact mirror \(Downloads.Sandbox\)"
    with pytest.raises(Rejected, match=neither):
        await site.build(site.goal(downloads=downloads))


def docker_secret(**auths: dict[str, str]) -> dict[str, str]:
    return {".dockerconfigjson": base64.b64encode(json.dumps({"auths": auths}).encode()).decode()}


@pytest.mark.slow
async def test_a_private_image_is_fetched_with_the_logins_of_the_pull_secrets(
    site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    api = MemoryApi()
    secrets = PullSecrets(api, site.paths)
    settings = msgspec.convert({"containerd": {"pullSecrets": [{"name": "hub"}]}}, NodeSettings)
    hashed = bcrypt.hashpw(b"calvin", bcrypt.gensalt(4)).decode()
    (tmp_path / "registry").mkdir()
    async with docker_registry(tmp_path / "registry", htpasswd=f"robot:{hashed}\n") as host:
        await push(host, "lab/rootfs", "1", image([SYSTEM]), user="robot", password="calvin")
        wanted = site.goal(image=f"{host}/lab/rootfs:1", settings=settings)

        async def build(password: str | None) -> None:
            if password is not None:
                data = docker_secret(**{host: {"username": "robot", "password": password}})
                await api.patch(SECRETS, "hub", {"data": data}, namespace=NAMESPACE)
            await secrets.bring(settings)
            await site.build(wanted)

        data = docker_secret(elsewhere={"username": "robot", "password": "calvin"})
        await api.create(SECRETS, {"metadata": {"name": "hub"}, "data": data}, namespace=NAMESPACE)
        with pytest.raises(Rejected, match="requires a login, and none is configured for it: set a pull secret"):
            await build(None)
        with pytest.raises(Rejected, match=r"image: .* does not let 'robot' read lab/rootfs: check the pull secret"):
            await build("hobbes")
        await build("calvin")
        with pytest.raises(
            Rejected, match="requires a login, and none is configured for it"
        ):  # kept logins are of others
            await site.build(site.goal(image=f"{host}/lab/rootfs:1"), slot=KUBE2)
    private = [one for one in site.root.rglob("*") if one.is_file() and b"calvin" in one.read_bytes()]
    response = site.paths.rootfs(KUBE1) / FOLDER[1:] / "response.json"
    assert {site.paths.pull_secrets, response} == set(private)
    assert {mode(one) for one in private} == {0o600}
    assert "calvin" not in repr([one.__dict__ for one in caplog.records]) + repr(site.commands.asked)


@pytest.mark.slow
async def test_a_node_with_an_nvidia_card_has_the_driver_of_its_host(site: Site) -> None:
    for name in ("nvidia0", "nvidiactl"):
        (site.root / "dev").mkdir(exist_ok=True)
        os.mknod(site.root / "dev" / name, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    told = "\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1\n"
    site.commands.answers[("ldconfig", "-p")] = [HostCommandResult((), 0, told, "")]
    runtime = entry("usr/bin/nvidia-container-runtime", b"x", mode=0o755)
    site.registry.add(image([SYSTEM, tar(runtime)]), "gpu")
    root = await site.build(site.goal(image=f"{site.registry.host}/rootfs:gpu"))
    assert (root / "etc/containerd/conf.d/99-nvidia-runtime.toml").exists()
    assert os.readlink(root / "usr/local/lib/libcuda.so.1") == "/run/host-nvidia/0/libcuda.so.1"
    nspawn = site.paths.nspawn(KUBE1).read_text()
    assert "Bind=/dev/nvidia0\n" in nspawn
    assert "BindReadOnly=/usr/lib/x86_64-linux-gnu:/run/host-nvidia/0\n" in nspawn
    # without the runtime in the image, Pods that need no card must still run
    plain = await site.build(site.goal(), slot=KUBE2)
    assert not (plain / "etc/containerd/conf.d/99-nvidia-runtime.toml").exists()


@pytest.mark.slow
async def test_without_an_image_debootstrap_makes_the_system(site: Site) -> None:
    (site.root / "etc/os-release").write_text("ID=debian\nVERSION_CODENAME=bookworm\n")

    async def made(*argv: str, **given: Any) -> HostCommandResult:
        if argv[0] == "debootstrap":
            for path in ("usr/lib/systemd/systemd", *CONTRACT):
                (Path(argv[-1]) / path).parent.mkdir(parents=True, exist_ok=True)
                (Path(argv[-1]) / path).touch()
            (Path(argv[-1]) / "etc/hosts").unlink()
        return await original(*argv, **given)

    original = site.commands.run
    site.commands.run = made  # type: ignore[method-assign]
    root = await site.build(site.goal(image=""))
    assert (root / "usr/local/bin/kubelet").exists()
    assert "localhost" in (root / "etc/hosts").read_text(), "no package of Debian brings it"
    (asked,) = [argv for argv in site.commands.asked if argv[0] == "debootstrap"]
    assert asked[-2] == "bookworm"
    assert "--arch=amd64" in asked


async def test_a_debootstrap_that_fails_makes_no_slot(site: Site) -> None:
    site.commands.answers[("debootstrap",)] = [Transient("debootstrap: status 1: no mirror")]
    with pytest.raises(Transient, match="root file system: debootstrap: status 1: no mirror"):
        await site.build(site.goal(image=""))
    assert site.nodes.applied(KUBE1) is None


@pytest.mark.slow
async def test_what_runs_is_not_built_over(site: Site) -> None:
    root = await site.build(site.goal())
    await site.units.start("systemd-nspawn@kube1.service")
    with pytest.raises(Transient, match="stop it first"):
        await site.build(site.goal())
    assert root.exists()


async def test_a_fetched_slot_is_built_without_mirror_and_registry(site: Site) -> None:
    wanted = site.goal()
    await site.nodes.fetch(wanted, lambda _: None)
    assert site.nodes.applied(KUBE1) is None
    assert not site.paths.rootfs(KUBE1).exists()
    site.held.clear()
    site.asked.clear()
    root = await site.build(wanted)
    assert (root / "usr/local/bin/kubelet").read_bytes() == b"kubelet"
    assert site.asked == []


async def test_a_fetch_of_what_a_mirror_lacks_is_refused_by_name(site: Site) -> None:
    site.held = {path: content for path, content in site.held.items() if "runc" not in path}
    with pytest.raises(Rejected, match="runc"):
        await site.nodes.fetch(site.goal(), lambda _: None)
