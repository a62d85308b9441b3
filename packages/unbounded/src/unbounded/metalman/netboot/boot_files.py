"""Content of the files of a boot: those that the Machine's spec refers to, those of images, and generated ones.

An obstacle that the user has to correct goes into the status of the boot and into an Event. The network configuration,
which cloud-init applies at its first start, is rendered from `spec.network`, or in the ConfigMap that the Machine's
spec refers to. A host that cannot be reached is worse than one that is not installed: what cloud-init would ignore or
misread is rejected before the disk is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from unbounded.api.core import CONFIG_MAPS
from unbounded.api.failures import Rejected
from unbounded.api.machine import Machine
from unbounded.api.names import ANNOTATION_FOR_BOOT, NAMESPACE
from unbounded.gotemplate import TemplateError
from unbounded.kube.api import Api, ApiError, Forbidden, NotFound
from unbounded.kube.events import EventSink
from unbounded.kube.logs import Log
from unbounded.kube.rejection_counters import RepeatFilter
from unbounded.metalman.host_network import network_faults, render_network, with_installer_leases
from unbounded.metalman.http.boot_service import FileRejected, NotReadyYet, OnDisk, Rendered
from unbounded.metalman.images.metadata import load_foreign
from unbounded.metalman.netboot import image_paths, template_data
from unbounded.metalman.netboot.boot_index import BootIndex
from unbounded.metalman.netboot.boot_requests import with_counter_ahead
from unbounded.metalman.netboot.model import BootImages, BootObservation, BootVisit, FactUnknown, TemplateContextSource

TEMPLATE_FAILED: Final = "TemplateFailed"
USER_DATA_MISSING: Final = "UserDataMissing"
NETWORK_CONFIG_MISSING: Final = "NetworkConfigMissing"
NETWORK_CONFIG_INVALID: Final = "NetworkConfigInvalid"
DIGEST: Final = ".sha256"
SIZE: Final = ".size"
TEXT: Final = "text/plain; charset=utf-8"
RETRY_S: Final = 5

log = Log("metalman.netboot")
FIELD: Final = "spec.pxe.cloudInit.networkConfigConfigMapRef"
LARGEST_BYTES: Final = 64 << 10
VERSIONS: Final = (1, 2)  # of cloud-init's format; 2 is netplan's


class BootFiles:
    """Files of the boots of one site.

    Args:
        serve_url: URL of the HTTP server, as clients reach it.
        note: records an observation of a Machine's boot.
    """

    def __init__(
        self,
        api: Api,
        facts: TemplateContextSource,
        library: image_paths.ImageFiles,
        index: BootIndex,
        *,
        serve_url: str,
        announce: EventSink,
        note: Callable[[str, BootObservation], None],
    ) -> None:
        self._api = api
        self._facts = facts
        self._library = library
        self._index = index
        self._serve_url = serve_url
        self._announce = announce
        self._note = note
        self._sizes = image_paths.UnpackedSizes()
        self._repeats = RepeatFilter(asyncio.get_running_loop().time)

    def url(self, machine: str) -> str | None:
        """Return the URL of a Machine's requested boot, which is secret; None if there is no boot."""
        if self._index.request_of(machine) is None:
            return None
        return f"{self._serve_url.rstrip('/')}/boot/{self._index.prefix(machine)}"

    async def file(
        self, visit: BootVisit, served: BootImages, path: str, *, private: bool
    ) -> OnDisk | Rendered | NotReadyYet | FileRejected:
        """Return the file of a plain path.

        Args:
            private: the client knows the prefix of an install; only then may the file contain a token.
        """
        own = await self._own_file(visit, path)
        return own if own is not None else await self._image_file(visit, served, path, private=private)

    def _report_obstacle(self, visit: BootVisit, reason: str, text: str) -> None:
        """Report an obstacle that the user has to correct.

        The message goes into the status of the boot and into an Event. Hosts repeat their requests, so the Event is
        emitted only once in a while.
        """
        machine = visit.machine
        text = self._index.without_prefix(text, machine.name)
        self._note(machine.name, BootObservation(boot=visit.request.boot, message=text))
        if self._repeats.allows((machine.metadata.uid, reason, text)):
            log.warning("cannot serve correctly", machine=machine.name, reason=reason, why=text)
            self._announce(machine, "Warning", reason, text)

    async def _own_file(self, visit: BootVisit, path: str) -> Rendered | NotReadyYet | FileRejected | None:
        """Return a file that the Machine's spec refers to; None for one of the image."""
        if path == image_paths.USER_DATA:
            return await self._user_data(visit)
        return await self._network_config(visit) if path == image_paths.NETWORK_CONFIG else None

    async def _network_config(self, visit: BootVisit) -> Rendered | NotReadyYet | FileRejected | None:
        """Return the Machine's network configuration; None if its spec has none."""
        try:
            content = await network_config(self._api, visit.machine, visit.request.boot)
        except NetworkConfigMissing as error:
            self._report_obstacle(visit, NETWORK_CONFIG_MISSING, str(error))
            return NotReadyYet(RETRY_S, "the network configuration is not there yet")
        except NetworkConfigInvalid as error:
            self._report_obstacle(visit, NETWORK_CONFIG_INVALID, str(error))
            return FileRejected(409, str(error))
        except ApiError as error:
            log.warning("cannot read network-config", error=error, machine=visit.machine.name)
            return NotReadyYet(RETRY_S, "cannot read network-config now")
        return None if content is None else Rendered(content, image_paths.content_etag(content), TEXT)

    async def _user_data(self, visit: BootVisit) -> Rendered | NotReadyYet | FileRejected | None:
        """Return the Machine's own user-data; None if its spec refers to none."""
        machine = visit.machine
        try:
            content, trouble = await template_data.user_data(self._api, machine)
        except template_data.UserDataMissing as error:
            self._report_obstacle(visit, USER_DATA_MISSING, str(error))
            return FileRejected(404, str(error))
        except template_data.UserDataForbidden as error:
            self._report_obstacle(visit, USER_DATA_MISSING, str(error))
            return NotReadyYet(RETRY_S, "no permission to read user-data")
        except ApiError as error:
            log.warning("cannot read user-data", error=error, machine=machine.name)
            return NotReadyYet(RETRY_S, "cannot read user-data now")
        if trouble:
            self._report_obstacle(visit, USER_DATA_MISSING, trouble)
        return None if content is None else Rendered(content, image_paths.content_etag(content), TEXT)

    async def _image_file(
        self, visit: BootVisit, served: BootImages, path: str, *, private: bool
    ) -> OnDisk | Rendered | NotReadyYet | FileRejected:
        found = self._library.find(image_paths.image_of(path, served), path)
        if isinstance(found, image_paths.TemplateFile):
            return await self._rendered(visit, found, private=private)
        if found is not None:
            return found
        if (disk := path.removesuffix(SIZE)) != path and image_paths.file_role(
            disk, served.loaders
        ) is image_paths.FileRole.DISK:
            return await self._size(served, disk)
        made = self._generated(served, path)
        return (
            FileRejected(404, "the image has no such file")
            if made is None
            else Rendered(made, image_paths.content_etag(made), TEXT)
        )

    async def _size(self, served: BootImages, disk: str) -> Rendered | NotReadyYet | FileRejected:
        """Return the unpacked size of a disk image; gzip does not record it."""
        there = self._library.find(served.disk, disk)
        if not isinstance(there, OnDisk):
            return FileRejected(404, "the image has no such file")
        try:
            found = await self._sizes.of(there)
        except TimeoutError:
            return NotReadyYet(RETRY_S, "the disk image is being unpacked to determine its size")
        if found is None:
            return FileRejected(404, "the disk image cannot be unpacked")
        content = f"{found}\n".encode()
        return Rendered(content, image_paths.content_etag(content), TEXT)

    def _generated(self, served: BootImages, path: str) -> bytes | None:
        """Return generated content for a path that the image does not have; None if there is none."""
        if path == image_paths.USER_DATA:
            return template_data.EMPTY_USER_DATA
        disk, is_digest = path.removesuffix(DIGEST), path.endswith(DIGEST)
        is_disk = image_paths.file_role(
            disk, served.loaders
        ) is image_paths.FileRole.DISK and not image_paths.is_rootfs(disk)
        is_disk = is_disk and disk not in image_paths.LARGE_SECTOR_IMAGES
        if is_digest and served.disk_sha256 and is_disk:
            there = self._library.find(served.disk, disk)
            return None if there is None else f"{served.disk_sha256}  {disk}\n".encode()
        return None

    async def _rendered(
        self, visit: BootVisit, rendering: image_paths.TemplateFile, *, private: bool
    ) -> Rendered | NotReadyYet | FileRejected:
        machine = visit.machine
        url = self.url(machine.name)
        if url is None:
            return NotReadyYet(RETRY_S, "the boot is not requested any more")
        try:
            around = await self._facts.template_context(machine, url, private=private)
            shown = with_installer_leases(with_counter_ahead(machine, visit.request))
            content = await asyncio.to_thread(rendering.content, shown, around)
        except FactUnknown as error:
            if isinstance(error.__cause__, Rejected):  # the user has to correct something, such as a Role
                self._report_obstacle(visit, TEMPLATE_FAILED, f"{rendering.name} of the netboot image: {error}")
            return NotReadyYet(RETRY_S, str(error))
        except (TemplateError, OSError, Rejected) as error:
            self._report_obstacle(visit, TEMPLATE_FAILED, f"{rendering.name} of the netboot image: {error}")
            return FileRejected(500, str(error))
        return Rendered(content, image_paths.content_etag(content), TEXT)


class NetworkConfigMissing(Exception):
    """The network configuration does not exist, or metalman may not read it; the installation waits for it."""


class NetworkConfigInvalid(Exception):
    """cloud-init would not apply this network configuration; the message names the fault."""


def has_network_config(machine: Machine) -> bool:
    """Return whether the Machine's spec has a network configuration for the installed system."""
    pxe = machine.spec.pxe
    if machine.spec.network is not None:
        return True
    return pxe is not None and pxe.cloud_init is not None and pxe.cloud_init.network_config_config_map_ref is not None


async def network_config(api: Api, machine: Machine, boot: str) -> bytes | None:
    """Return the Machine's network configuration; None if its spec has none.

    Raises:
        NetworkConfigMissing: the ConfigMap or its key does not exist, it is for another boot, or metalman may not read
            it.
        NetworkConfigInvalid: spec.network has faults, or the value is not a network configuration.
        ApiError: the read failed.
    """
    if machine.spec.network is not None:
        if faults := network_faults(machine.spec.network):
            raise NetworkConfigInvalid("; ".join(faults))
        return render_network(machine.spec.network)
    pxe = machine.spec.pxe
    named = None if pxe is None or pxe.cloud_init is None else pxe.cloud_init.network_config_config_map_ref
    if named is None:
        return None
    where = f"{FIELD}: ConfigMap {named.namespace}/{named.name}"
    try:
        found = await api.get(CONFIG_MAPS, named.name, namespace=named.namespace)
        content = template_data.value_of(found, named.key, where)
    except NotFound as error:
        raise NetworkConfigMissing(f"{where} does not exist; the installation waits for it") from error
    except Forbidden as error:
        text = (
            f"metalman has no permission to read {where}; it reads ConfigMaps of namespace {NAMESPACE}, and of others"
        )
        raise NetworkConfigMissing(f"{text} with a Role there") from error
    except template_data.UserDataMissing as error:
        raise NetworkConfigMissing(f"{error}; the installation waits for it") from error
    made_for = found.metadata.annotations.get(ANNOTATION_FOR_BOOT, boot)
    if made_for != boot:
        text = f"{where} was made from the hardware report of another boot ({made_for})"
        raise NetworkConfigMissing(f"{text}; the installation waits for the one of this boot")
    check_network_config(content, f"{where}, key {named.key}")
    return content


def check_network_config(content: bytes, where: str) -> None:
    """Check that cloud-init reads a text as a network configuration.

    Raises:
        NetworkConfigInvalid: it is too large or too deep, not YAML, or no mapping with a version.
    """
    if len(content) > LARGEST_BYTES:
        raise NetworkConfigInvalid(f"{where}: {len(content)} bytes; the limit is {LARGEST_BYTES}")
    try:
        body = load_foreign(content)
    except ValueError as error:
        raise NetworkConfigInvalid(f"{where}: {error}") from error
    if not isinstance(body, dict):
        raise NetworkConfigInvalid(f"{where}: must be a mapping with `version: 2`, as cloud-init reads it")
    if "network" in body and "version" not in body:
        raise NetworkConfigInvalid(f"{where}: remove `network:` and indent the rest less: `version` stands at the top")
    if body.get("version") not in VERSIONS:
        raise NetworkConfigInvalid(f"{where}: version must be 2, or 1 of cloud-init's older format")
