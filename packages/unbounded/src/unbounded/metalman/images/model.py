"""References of a Machine to its images and their pull secrets, the state of an image for readers, and pinned images.

The logins in pull secrets are read by name. A running boot keeps the images that it began with until it ends, even if
their tags move. This process remembers what it served. For a boot that another replica served, or this one before a
restart, the status of the Machine has the digest of the disk image. That image is served further if it is on this disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import Final

from unbounded.api.core import SECRETS
from unbounded.api.failures import Failure
from unbounded.api.machine import Machine, NetbootMilestone
from unbounded.api.machine_spec import SecretReference
from unbounded.api.operation import OperationsStatus
from unbounded.fetch.failures import Denied, UnusableContent
from unbounded.fetch.logins import RegistryLogins
from unbounded.fetch.reference import Digest, Platform, Reference
from unbounded.fetch.store import ImageStore, PullProgress, Stored
from unbounded.kube.api import Api, Forbidden, NotFound
from unbounded.kube.clock import Backoff
from unbounded.kube.controller import Controller
from unbounded.kube.logs import Log
from unbounded.kube.metrics import ControllerMetrics
from unbounded.metalman.http.boot_service import NotReadyYet
from unbounded.metalman.images.metadata import FOLDER, Metadata, read_disk, read_netboot
from unbounded.metalman.netboot.model import BootImages, NetbootImage

SOON_S: Final = 1
_RUNNING: Final = frozenset(
    {
        NetbootMilestone.OFFERED,
        NetbootMilestone.LOADER_FETCHED,
        NetbootMilestone.KERNEL_FETCHED,
        NetbootMilestone.INSTALLER_STARTED,
        NetbootMilestone.IMAGE_WRITING,
    }
)

log = Log("metalman.images")


class ImageUse(Enum):
    """Purpose of an image; one that contains everything has two of them."""

    NETBOOT = "boot files"
    DISK = "disk image"  # beside boot files; the disk image is optional
    DISK_ALONE = "disk image only"


@dataclass(frozen=True)
class PullSecret:
    """Secret of type kubernetes.io/dockerconfigjson, and the field or flag that refers to it."""

    namespace: str
    name: str
    named_by: str

    def __str__(self) -> str:
        return f"Secret {self.namespace}/{self.name} ({self.named_by})"


@dataclass(frozen=True)
class ImageReference:
    """Reference to an image for a platform. Equal references share one pull.

    Args:
        reference: as the user wrote it.
        secret: None for no login, or that of the process.
    """

    reference: str
    platform: Platform
    secret: PullSecret | None = None

    @property
    def is_immutable(self) -> bool:
        """Return whether the reference always resolves to the same image."""
        try:
            return Reference.parse(self.reference).digest is not None
        except UnusableContent:
            return False


@dataclass(frozen=True)
class ImageReferences:
    """References of one Machine; both may be equal.

    Args:
        disk: None for a host in stock, which boots the installer and is not installed.
    """

    netboot: ImageReference
    disk: ImageReference | None

    def all(self) -> tuple[ImageReference, ...]:
        return (self.netboot,) if self.disk in (None, self.netboot) else (self.netboot, self.disk)

    @property
    def disk_use(self) -> ImageUse:
        return ImageUse.DISK if self.netboot == self.disk else ImageUse.DISK_ALONE

    def uses(self, ref: ImageReference) -> tuple[ImageUse, ...]:
        """Return the purposes of one of the references."""
        netboot = (ImageUse.NETBOOT,) if ref == self.netboot else ()
        return (*netboot, self.disk_use) if ref == self.disk else netboot


@dataclass(frozen=True)
class NetbootImageDefaults:
    """Default netboot image.

    Args:
        image: the netboot image of Machines whose spec has none; if empty, spec.pxe.image contains the boot files.
        secret: its pull secret, as (namespace, name).
    """

    image: str = ""
    secret: tuple[str, str] | None = None


def references_of(machine: Machine, defaults: NetbootImageDefaults) -> ImageReferences | None:
    """Return the image references of a Machine; None if it does not boot from the network, or has no image to boot."""
    pxe = machine.spec.pxe
    if pxe is None:
        return None
    platform = Platform("linux", pxe.architecture)
    pull_secret = _secret(pxe.pull_secret_ref, "spec.pxe.pullSecretRef")
    disk = None if pxe.image is None else ImageReference(pxe.image, platform, pull_secret)
    if pxe.netboot_image:
        named = pxe.netboot_pull_secret_ref or pxe.pull_secret_ref
        field = "spec.pxe.netbootPullSecretRef" if pxe.netboot_pull_secret_ref else "spec.pxe.pullSecretRef"
        return ImageReferences(ImageReference(pxe.netboot_image, platform, _secret(named, field)), disk)
    if defaults.image:
        given = PullSecret(*defaults.secret, "--default-netboot-pull-secret") if defaults.secret else None
        return ImageReferences(ImageReference(defaults.image, platform, given), disk)
    return None if disk is None else ImageReferences(disk, disk)


def _secret(reference: SecretReference | None, named_by: str) -> PullSecret | None:
    return None if reference is None else PullSecret(reference.namespace, reference.name, named_by)


CONFIG_KEY: Final = ".dockerconfigjson"


async def logins_of(api: Api, secret: PullSecret | None, others: RegistryLogins) -> RegistryLogins:
    """Return the logins of a pull secret, followed by `others`. Each call reads the Secret, as users correct Secrets.

    Raises:
        Denied: the Secret is missing, forbidden, or has no logins; the message names the Secret and the referring
            field.
        ApiError: the read failed.
    """
    if secret is None:
        return others
    try:
        found = await api.get(SECRETS, secret.name, namespace=secret.namespace)
    except NotFound as error:
        raise Denied(f"{secret} does not exist") from error
    except Forbidden as error:
        raise Denied(
            f"metalman has no permission to read {secret}; it reads Secrets of namespace unbounded-kube"
        ) from error
    try:
        content = found.value(CONFIG_KEY)
    except ValueError:  # the value is not base64
        content = None
    if content is None:
        raise Denied(f"{secret} has no key {CONFIG_KEY}; its type must be kubernetes.io/dockerconfigjson")
    return RegistryLogins.from_secret(content, str(secret)).joined(others)


FAILED: Final = Backoff(2.0, 60.0)
REFUSED: Final = Backoff(60.0, 600.0)


@dataclass(frozen=True)
class ImageIntervals:
    """Intervals of the image cache.

    Args:
        resolve_s: between two resolutions of a tag, as no registry announces that a tag has moved.
        after_failure: backoff of errors that may resolve themselves.
        after_refusal: backoff of an image that was pulled and is unusable; detecting a correction requires another
            pull.
        collect_after_s: from a change to the removal of unused images; changes come several at a time.
        check_s: between two checks that served images are still in the cache; the requests of each boot check, too.
        keep_bytes: limit on the unused images that are kept: a tag that is set back resolves at once.
    """

    resolve_s: float = 300.0
    after_failure: Backoff = FAILED
    after_refusal: Backoff = REFUSED
    collect_after_s: float = 30.0
    check_s: float = 10.0
    keep_bytes: int = 8 << 30


DEFAULT_INTERVALS: Final = ImageIntervals()


@dataclass(frozen=True)
class ImageProblem:
    """Reason why an image is missing or outdated; `unusable` if it was pulled but cannot be booted."""

    text: str
    unusable: bool = False


@dataclass
class ImageEntry:
    """State of one image. `stored` remains during problems; `read` belongs to the stored digest."""

    stored: Stored | None = None
    read: dict[ImageUse, Metadata | str | ImageProblem] = field(default_factory=dict)
    problem: ImageProblem | None = None
    failures: int = 0
    dropped: asyncio.Event = field(default_factory=asyncio.Event)  # set when no Machine refers to the image any more


@dataclass(frozen=True)
class ImageState:
    """State of an image for conditions.

    Args:
        digest: of the served image; empty if none is served.
        progress: of a running pull.
        is_signed: its programs are signed with the keys of a site.
    """

    want: ImageReference
    digest: str = ""
    problem: ImageProblem | None = None
    progress: PullProgress | None = None
    is_signed: bool = False


class PinnedImages:
    """Images of the running boots of one cache; `run` reads those that were served earlier."""

    def __init__(self, store: ImageStore, metrics: ControllerMetrics | None = None) -> None:
        self._store = store
        self._by_machine: dict[str, tuple[str, str, BootImages]] = {}  # {Machine: (its UID, boot, images)}
        self._read: dict[str, BootImages | None] = {}  # by digest of the disk image, for images that contain everything
        self._controller: Controller[str] = Controller("images of boots", self._read_image, workers=1, metrics=metrics)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._controller.run()

    def of(self, machine: Machine, now: BootImages | NotReadyYet) -> BootImages | NotReadyYet:
        """Return the images for a Machine: those that its running boot began with, else `now`."""
        boot, uid = running_boot(machine), machine.metadata.uid
        if not boot:
            self.forget(machine.name)
            return now
        began = self._by_machine.get(machine.name)
        if began is not None and began[:2] == (uid, boot) and began[2].is_on_disk:
            return began[2]
        earlier = self._earlier(machine, now)
        served = now if earlier is None else earlier
        if isinstance(served, BootImages):
            self._by_machine[machine.name] = (uid, boot, served)
        return served

    def forget(self, name: str) -> None:
        """Forget the boot of a Machine that has ended or was deleted."""
        self._by_machine.pop(name, None)

    def used(self, machines: Iterable[Machine]) -> set[Digest]:
        """Return the images of running boots."""
        under_way = {machine.name: machine for machine in machines if running_boot(machine)}
        self._by_machine = {
            name: began
            for name, began in self._by_machine.items()
            if name in under_way and began[:2] == (under_way[name].metadata.uid, running_boot(under_way[name]))
        }
        digests = {image.digest for _, _, one in self._by_machine.values() for image in (one.netboot, one.disk)}
        digests |= {_recorded_digest(machine) for machine in under_way.values()}
        self._read.clear()  # images that are still needed are read again
        return {Digest.parse(digest) for digest in digests if digest}

    def _earlier(self, machine: Machine, now: BootImages | NotReadyYet) -> BootImages | NotReadyYet | None:
        """Return the images that this boot got before this process knew it; None if they are the present ones."""
        recorded = _recorded_digest(machine)
        if not recorded or (isinstance(now, BootImages) and now.disk.digest == recorded):
            return None
        if (
            isinstance(now, BootImages) and now.netboot != now.disk
        ):  # the status has only the digest of the disk image, which is the larger one
            return None
        read = self._read.get(recorded)
        if recorded in self._read and (read is None or read.is_on_disk):
            return read
        if self._store.at(Digest.parse(recorded)) is None:
            return None
        self._controller.enqueue(recorded)
        return NotReadyYet(SOON_S, f"metalman is reading image {recorded}, with which this boot started")

    async def _read_image(self, recorded: str) -> None:
        root = self._store.at(Digest.parse(recorded))
        if root is None:
            self._read[recorded] = None
            return
        folder = root / FOLDER
        try:
            metadata = await asyncio.to_thread(read_netboot, folder)
            digest = await asyncio.to_thread(partial(read_disk, folder, alone=False))
        except (Failure, OSError) as error:
            log.warning("cannot read image of a boot", error=error, digest=recorded)
            self._read[recorded] = None
            return
        image = NetbootImage(folder, recorded)
        self._read[recorded] = BootImages(image, image, metadata.loaders, digest)


def _recorded_digest(machine: Machine) -> str:
    """Return the digest in the status; empty if there is no valid one."""
    digest = machine.status.netboot.image_digest if machine.status.netboot else None
    try:
        return str(Digest.parse(digest)) if digest else ""
    except UnusableContent:
        return ""


def running_boot(machine: Machine) -> str:
    """Return the boot that fetches files, if it is still the requested one; empty if there is none."""
    netboot, active = machine.status.netboot, machine.status.active_operation
    if netboot is None or netboot.milestone not in _RUNNING:
        return ""
    requested = (machine.spec.operations or OperationsStatus()).repave_counter
    reached = (machine.status.operations or OperationsStatus()).repave_counter
    desired = active.uid if active is not None else f"repave-{requested}" if requested > reached else ""
    return desired if netboot.boot == desired else ""
