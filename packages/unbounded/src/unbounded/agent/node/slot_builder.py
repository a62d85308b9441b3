"""Build of a slot from scratch: download, assembly in a work folder, sync, rename, and then the record of the build."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from unbounded.agent.artifact_cache import BRIEF, PATIENT, ArtifactCache, BlobStore, Fetched
from unbounded.agent.artifact_sources import Artifact, artifacts, sandbox_artifact
from unbounded.agent.interfaces import Commands, OnProgress
from unbounded.agent.model import BuildRecord, KubeletAccess, NodeGoal, Slot
from unbounded.agent.node import containerd, contract, files, rootfs
from unbounded.agent.node.containerd import ARCHIVE
from unbounded.agent.node.devices import find_devices
from unbounded.agent.node.files import HostInputs
from unbounded.agent.node.kubelet import node_flags
from unbounded.agent.node.pull_secrets import secret_names, stored_logins, stored_response
from unbounded.agent.node.rootfs import CachedImage, ImageCache
from unbounded.agent.node.settings import added_trust, proxies, require_usable
from unbounded.agent.node.slot_files import workspace, write_build_record
from unbounded.agent.paths import HostPaths
from unbounded.agent.steps.step import ReversibleStep, add_all
from unbounded.api.failures import Rejected, Transient
from unbounded.fetch.archive import Archive, Member, MemberKind, Names, names_of
from unbounded.fetch.failures import Denied, NotPublished
from unbounded.fetch.reference import Platform
from unbounded.fetch.system_tree import SystemTree, sync_file_system
from unbounded.fetch.web import Trust, Web
from unbounded.kube.durable_files import sync_directory
from unbounded.kube.tasks import run_in_thread

AT_ONCE: Final = 6
GENERATIONS: Final = 3  # of each artifact and of images: for the slot in use, the one before, and one on trial


@dataclass
class SlotBuild:
    """A slot that is being built."""

    slot: Slot
    goal: NodeGoal
    access: KubeletAccess
    place: Path  # root file system in the work folder
    images: ImageCache
    artifacts: ArtifactCache
    image: CachedImage | None = None
    fetched: dict[str, Fetched] = field(default_factory=dict)


class SlotBuilder:
    """Builder of slots.

    Args:
        arch: amd64, arm64.
    """

    def __init__(
        self, paths: HostPaths, commands: Commands, host_inputs: HostInputs, *, arch: str, trust: Trust | None = None
    ) -> None:
        self._paths = paths
        self._commands = commands
        self._host_inputs = host_inputs
        self._arch = arch
        self._trust = trust

    async def build(self, slot: Slot, spec: NodeGoal, access: KubeletAccess, report: OnProgress) -> BuildRecord:
        """Build the slot, of which no file may exist. The returned slot is complete and synced to the disk.

        Raises:
            Transient, Rejected: the message begins with the name of the step.
        """
        desired = self._checked(spec)
        shelf = BlobStore(self._paths.artifacts)
        work = workspace(self._paths, slot)
        await run_in_thread(self._prepare, shelf, work)
        async with self._caches(spec, shelf) as (images, cache):
            building = SlotBuild(slot, spec, access, work / "root", images, cache)
            await add_all(self._steps(desired), building, report, at_once=AT_ONCE)
        digest = building.image.digest if building.image else ""
        unchecked = tuple(sorted(name for name, one in building.fetched.items() if not one.checked))
        applied = BuildRecord(goal=spec, image_digest=digest, unchecked=unchecked)
        await run_in_thread(self._settle, building, applied)
        await run_in_thread(shelf.collect, GENERATIONS)
        return applied

    async def fetch(self, spec: NodeGoal, report: OnProgress) -> None:
        """Download the image and the artifacts of a node. A goal without an image gets its packages in the build.

        Raises:
            Transient, Rejected: a download failed.
        """
        desired, extra = self._checked(spec), sandbox_artifact(spec, self._arch)
        shelf = BlobStore(self._paths.artifacts)
        await run_in_thread(shelf.open)
        async with self._caches(spec, shelf) as (images, cache):
            if spec.image:
                await images.get(spec.image, Platform("linux", self._arch), report)
            for artifact in (*desired, *(() if extra is None else (extra,))):
                try:
                    await cache.get(artifact, report)
                except Rejected as failure:
                    if artifact is not extra or not isinstance(failure.__cause__, NotPublished | Denied):
                        raise  # the node image may contain the sandbox image

    def _checked(self, spec: NodeGoal) -> tuple[Artifact, ...]:
        """Return the artifacts; raise Rejected, before any download, for a goal that no node of this host could use."""
        desired = artifacts(spec, self._arch)
        node_flags(spec)
        require_usable(spec.settings)
        self._host_inputs.address(spec)
        return desired

    @asynccontextmanager
    async def _caches(self, spec: NodeGoal, shelf: BlobStore) -> AsyncIterator[tuple[ImageCache, ArtifactCache]]:
        trust, by = added_trust(spec.settings, self._trust), proxies(spec)
        async with Web(trust, PATIENT, proxies=by) as web, Web(trust, BRIEF, proxies=by) as brief:
            logins = await run_in_thread(stored_logins, self._paths) if secret_names(spec.settings) else None
            yield ImageCache(shelf, web, brief, logins), ArtifactCache(shelf, web, brief)

    def _prepare(self, shelf: BlobStore, work: Path) -> None:
        shelf.open()
        try:
            self._paths.machines.mkdir(mode=0o700, parents=True, exist_ok=True)
            work.mkdir(mode=0o700)
        except OSError as error:
            raise Transient(f"{work}: {error.strerror}") from error

    def _steps(self, desired: tuple[Artifact, ...]) -> list[ReversibleStep[SlotBuild]]:
        """Return the build's steps. No step is present before, and a slot is removed as a whole."""
        steps = [_step("image", self._fetch_image), _step("root file system", self._make_rootfs, "image")]
        for artifact in desired:
            fetching = f"fetch {artifact.name}"
            steps.append(_step(fetching, partial(_fetch, artifact)))
            steps.append(_step(artifact.name, partial(_install, artifact), fetching, "root file system"))
        steps.append(_step("sandbox image", self._add_sandbox, "root file system"))
        steps.append(_step("contract", self._check_contract, "sandbox image"))
        steps.append(_step("configuration", self._write_files, "root file system"))
        return steps

    async def _fetch_image(self, building: SlotBuild, report: OnProgress) -> None:
        if building.goal.image:
            platform = Platform("linux", self._arch)
            building.image = await building.images.get(building.goal.image, platform, report)

    async def _make_rootfs(self, building: SlotBuild, report: OnProgress) -> None:
        if building.image is not None:
            await rootfs.unpack_image(building.image.layers, building.place, report)
        else:
            made = rootfs.distribution(self._host_inputs.os_release(), self._arch)
            cache = self._paths.cache / "packages"
            await rootfs.debootstrap(self._commands, building.place, made, self._arch, cache, report)
            await run_in_thread(rootfs.add_hosts, building.place)

    async def _add_sandbox(self, building: SlotBuild, report: OnProgress) -> None:
        """Fetch the sandbox image where the node image has none."""
        artifact = sandbox_artifact(building.goal, self._arch)
        if artifact is None or await run_in_thread(_holds_sandbox, building.place):
            return
        try:
            await _fetch(artifact, building, report)
        except Rejected as failure:
            if not isinstance(failure.__cause__, NotPublished | Denied):
                raise
            message = f"{containerd.ARCHIVE} is missing in the node image, and at the mirror: {failure}"
            raise Rejected(message) from failure
        await _install(artifact, building, report)

    async def _check_contract(self, building: SlotBuild, _: OnProgress) -> None:
        await run_in_thread(contract.require, building.place, self._arch)

    async def _write_files(self, building: SlotBuild, _: OnProgress) -> None:
        await run_in_thread(self._write, building)

    def _write(self, building: SlotBuild) -> None:
        resolve = self._host_inputs.resolver()
        with closing(SystemTree(building.place)) as tree:
            nvidia = find_devices(self._paths).nvidia and tree.has("/usr/bin/nvidia-container-runtime")
            for path, mode in files.FOLDERS.items():
                tree.folder(path, mode=mode)
            for file in files.slot_files(
                building.goal,
                building.access,
                self._host_inputs.names(),
                resolve,
                slot=building.slot,
                nvidia=nvidia,
                address=self._host_inputs.address(building.goal),
                logins=stored_response(self._paths),
            ):
                tree.put(file.path, file.content, mode=file.mode)
            masked = files.masked_parameters(name for folder in files.PARAMETERS for name in tree.names(folder))
            for path, target in {**masked, **files.slot_links(building.access, resolve)}.items():
                tree.link(path, target)

    def _settle(self, building: SlotBuild, applied: BuildRecord) -> None:
        """Sync the file system once, rename the work folder, and write the record of the build."""
        place = self._paths.rootfs(building.slot)
        sync_file_system(building.place)
        try:
            building.place.rename(place)
            building.place.parent.rmdir()
        except OSError as error:
            raise Transient(f"{place}: {error.strerror}") from error
        sync_directory(self._paths.machines)
        write_build_record(self._paths, building.slot, applied)


def _step(name: str, add: Callable[[SlotBuild, OnProgress], Awaitable[None]], *after: str) -> ReversibleStep[SlotBuild]:
    return ReversibleStep(name, present=_never, add=add, remove=_nothing, after=after)


async def _never(_: SlotBuild) -> bool:
    return False


async def _nothing(_: SlotBuild) -> None:
    """Do nothing: the result of a step is removed with the slot."""


def _holds_sandbox(root: Path) -> bool:
    with closing(SystemTree(root)) as tree:
        return tree.has(containerd.ARCHIVE)


async def _fetch(artifact: Artifact, building: SlotBuild, report: OnProgress) -> None:
    building.fetched[artifact.name] = await building.artifacts.get(artifact, report)


async def _install(artifact: Artifact, building: SlotBuild, _: OnProgress) -> None:
    await run_in_thread(install, building.fetched[artifact.name], building.place)


LARGEST_BYTES: Final = 4 << 30  # of an archive's content


@dataclass(frozen=True)
class ArtifactPlacement:
    """Destination of an artifact.

    Args:
        into: a directory for an archive's files, a path for a binary.
        below: the archive's directory whose files are installed; empty for its top.
        needs: files that the archive must contain; none for a binary that is no archive.
    """

    into: str
    below: str = ""
    needs: tuple[str, ...] = ()


PLACEMENTS: Final[Mapping[str, ArtifactPlacement]] = {
    "kubelet": ArtifactPlacement("/usr/local/bin/kubelet"),
    "kubectl": ArtifactPlacement("/usr/local/bin/kubectl"),
    "kube-proxy": ArtifactPlacement("/usr/local/bin/kube-proxy"),
    "containerd": ArtifactPlacement("/usr/local/bin", "bin", ("containerd", "containerd-shim-runc-v2", "ctr")),
    "runc": ArtifactPlacement("/usr/local/sbin/runc"),
    "cni": ArtifactPlacement("/opt/cni/bin", "", ("bridge", "host-local", "loopback")),
    "crictl": ArtifactPlacement("/usr/local/bin", "", ("crictl",)),
    "sandbox": ArtifactPlacement(ARCHIVE),
}


def install(fetched: Fetched, root: Path) -> None:
    """Install an artifact into the root file system of a slot.

    Raises:
        Rejected: the archive lacks a required file, or has members other than regular files; the message names it.
        Transient: the disk refuses.
    """
    place = PLACEMENTS[fetched.artifact.name]
    with closing(SystemTree(root)) as tree:
        if not place.needs:
            tree.copy(fetched.path, place.into)
            return
        try:
            _unpack(fetched.path, place, tree)
        except Rejected as failure:
            raise Rejected(f"{fetched.artifact.name}, from {fetched.artifact.shown}: {failure}") from failure


def _unpack(path: Path, place: ArtifactPlacement, tree: SystemTree) -> None:
    found: set[str] = set()
    into = names_of(place.into)
    with path.open("rb") as file:
        archive = Archive(file, LARGEST_BYTES)
        for member in archive:
            if member.names[:-1] != names_of(place.below) or not _is_file(member):
                continue
            name = member.names[-1]
            plain = replace(member, names=(*into, name), mode=0o755, owner=(0, 0), attributes=())
            tree.add(plain, archive)
            found.add(name)
    if missing := set(place.needs) - found:
        raise Rejected(f"it has no {', '.join(sorted(missing))}")


def _is_file(member: Member) -> bool:
    """Return whether the member is a regular file. Raises Rejected for types that such an archive must not contain."""
    if member.kind is MemberKind.FOLDER or not member.names:
        return False
    if member.kind is not MemberKind.FILE or "\\" in member.names[-1]:
        raise Rejected(f"{_shown(member.names)}: only regular files are accepted")
    return True


def _shown(names: Names) -> str:
    return ascii("/".join(names))
