"""Network boot of one process: images, the data for booting machines, and the servers.

The kernel's table of IPv4 neighbours (ARP) names the MAC behind an address.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
from collections.abc import Callable
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Final, Self

from unbounded.api.failures import Failure, Rejected
from unbounded.fetch.failures import Denied
from unbounded.fetch.logins import RegistryLogins
from unbounded.fetch.store import ImageStore
from unbounded.fetch.web import Web
from unbounded.join.cluster_facts import FactsFollower
from unbounded.kube.clock import Backoff
from unbounded.kube.events import event_sink
from unbounded.kube.logs import Log
from unbounded.kube.process import Runtime, StartupError
from unbounded.metalman.attest.challenge import Challenges
from unbounded.metalman.attest.service import AttestationService
from unbounded.metalman.attest.trust import TrustedRoots
from unbounded.metalman.dhcp.model import format_address
from unbounded.metalman.images.conditions import ImageConditions
from unbounded.metalman.images.image_controller import ImageController
from unbounded.metalman.images.metadata import FOLDER
from unbounded.metalman.images.model import NetbootImageDefaults
from unbounded.metalman.media.tickets import MediaUrls, TicketKey
from unbounded.metalman.netboot.boot_requests import PrefixKey, StatementKeys, prefix_key
from unbounded.metalman.netboot.model import MacLookup
from unbounded.metalman.netboot.request_handler import NetbootDependencies, NetbootRequestHandler
from unbounded.metalman.netboot.servers import HostNetwork, KernelNetwork, NetbootServers, Reachability, reach
from unbounded.metalman.netboot.template_data import ClusterTemplateContext
from unbounded.metalman.settings import MetalmanSettings, NetbootSettings
from unbounded.operations.caches import Caches

CHALLENGES: Final = "attestation challenges"
MEDIA_TICKETS: Final = "virtual media tickets"
KEY_BACKOFF: Final = Backoff(1.0, 30.0)

log = Log("metalman")


class NetbootProcess:
    """Network boot: `run` serves on every replica, and `lead` has the leader's additional work.

    Host operations do not depend on it: a host can be switched off while the folder of images is being read.

    Args:
        caches: filled ones.
    Raises:
        StartupError: the interface is missing, or a file is unusable.
    """

    def __init__(
        self,
        runtime: Runtime,
        settings: MetalmanSettings,
        desired: NetbootSettings,
        caches: Caches,
        *,
        links: HostNetwork | None = None,
    ) -> None:
        self._runtime = runtime
        self._settings = settings
        self._desired = desired
        self._caches = caches
        self._reached = reach(desired, links or KernelNetwork())
        self._roots = _roots(desired)
        self._logins = _logins(desired)
        self._servers = NetbootServers(runtime, desired, self._reached)
        self.media_urls = _media_urls(runtime, desired, self._reached)
        self._facts = FactsFollower(
            runtime.api,
            runtime.api.version,
            apiserver_url=desired.apiserver_url,
            cluster_dns=desired.cluster_dns,
            dns_flag=desired.flags.cluster_dns,
        )
        self._missing = {"image store": "not opened yet", "boot key": "not read yet"}
        self._running: asyncio.Future[tuple[NetbootRequestHandler, ImageController]] = (
            asyncio.get_running_loop().create_future()
        )
        runtime.checks("cluster facts", lambda: self._facts.missing)
        for name in self._missing:
            runtime.checks(name, self._state(name))

    def _state(self, name: str) -> Callable[[], str | None]:
        return lambda: self._missing.get(name)

    async def run(self) -> None:
        """Serve until cancelled: HTTP, TFTP, and DHCP unless it is for the leader alone.

        Raises:
            StartupError: a port or the folder of images is unavailable.
        """
        async with AsyncExitStack() as stack:
            web = await stack.enter_async_context(Web())
            store = await self._opened(stack, web)
            tasks = await stack.enter_async_context(asyncio.TaskGroup())
            tasks.create_task(self._facts.run(), name="cluster facts")
            neighbours = self._neighbours(stack)
            images = self._image_controller(store)
            tasks.create_task(images.run(), name="images")
            site = self._site_of(await self._key(), images, neighbours)
            tasks.create_task(site.run(), name="netboot")
            await stack.enter_async_context(self._servers.http(site, StatementKeys(self._runtime.api).current))
            await stack.enter_async_context(self._servers.tftp(site))
            await stack.enter_async_context(self._servers.media(site.media))
            self._running.set_result((site, images))
            if not self._servers.dhcp_leads:
                tasks.create_task(self._dhcp(site), name="dhcp")
            await asyncio.Event().wait()

    async def lead(self) -> None:
        """Do the leader's additional work until cancelled: write image conditions, and serve DHCP on a segment."""
        site, images = await asyncio.shield(self._running)
        runtime, machines = self._runtime, self._caches.machines
        conditions = ImageConditions(runtime.api, machines, images, site=self._settings.site, metrics=runtime.metrics)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(conditions.run(), name="image conditions")
            if self._servers.dhcp_leads:
                tasks.create_task(self._dhcp(site), name="dhcp")

    async def _dhcp(self, site: NetbootRequestHandler) -> None:
        await self._servers.dhcp(site.reservations, site.findings.report, site.reservations)

    async def _opened(self, stack: AsyncExitStack, web: Web) -> ImageStore:
        folder = self._desired.cache_dir
        try:
            store = await stack.enter_async_context(ImageStore(folder, web, only=FOLDER))
        except Rejected as error:
            raise StartupError(f"{self._desired.flags.cache_dir}: {error}") from error
        except OSError as error:
            raise StartupError(f"{self._desired.flags.cache_dir} {folder}: {error.strerror or error}") from error
        del self._missing["image store"]
        return store

    async def _key(self) -> PrefixKey:
        """Read the key from which URLs of boots are derived; retry until it is available."""
        failures = 0
        while True:
            try:
                key = await prefix_key(self._runtime.api)
            except Failure as error:
                failures += 1
                self._missing["boot key"] = str(error)
                log.warning(
                    "cannot read or create the key of boot URLs; serving no boots until it is available", error=error
                )
                await asyncio.sleep(KEY_BACKOFF.after(failures))
            else:
                del self._missing["boot key"]
                return key

    def _neighbours(self, stack: AsyncExitStack) -> MacLookup:
        """Return the lookup of MACs by address. Behind a relay, the kernel knows only the relay's MAC."""
        interface = self._reached.interface
        return (lambda _address: None) if interface is None else stack.enter_context(NeighbourTable(interface))

    def _image_controller(self, store: ImageStore) -> ImageController:
        desired = self._desired
        return ImageController(
            self._runtime.api,
            self._caches.machines,
            store,
            site=self._settings.site,
            defaults=NetbootImageDefaults(desired.default_image, desired.default_pull_secret),
            logins=self._logins,
            metrics=self._runtime.metrics,
        )

    def _site_of(self, key: PrefixKey, images: ImageController, neighbours: MacLookup) -> NetbootRequestHandler:
        runtime, desired, caches = self._runtime, self._desired, self._caches
        tickets = TicketKey(key.derived(MEDIA_TICKETS))
        if self.media_urls is not None:
            self.media_urls.open(tickets)
        attestation = AttestationService(
            runtime.api,
            lambda: self._facts.facts,
            Challenges(key.derived(CHALLENGES)),
            roots=self._roots,
            events=runtime.events,
            proof_required=desired.challenge,
            pcr_policy=desired.pcr_policy,
        )
        parts = NetbootDependencies(
            api=runtime.api,
            machines=caches.machines,
            operations=caches.operations,
            images=images,
            facts=ClusterTemplateContext(runtime.api, self._facts, desired.pcr_policy, mirror=desired.artifact_mirror),
            attestation=attestation,
            key=key,
            tickets=tickets,
            server=self._reached.server,
            serve_url=self._reached.serve_url,
            site=self._settings.site,
            neighbours=neighbours,
            announce=event_sink(runtime.events),
            metrics=runtime.metrics,
            allow_profile_scripts=desired.allow_profile_scripts,
        )
        return NetbootRequestHandler(parts)


def _media_urls(runtime: Runtime, desired: NetbootSettings, reached: Reachability) -> MediaUrls | None:
    """Return the URLs of virtual media, without their key; None if there is no server of it."""
    media = desired.media
    if media is None:
        return None
    url = media.url or f"https://{format_address(reached.server)}:{media.port}"
    return MediaUrls(url, timedelta(seconds=media.lifetime_s), runtime.now)


def _roots(desired: NetbootSettings) -> TrustedRoots | None:
    if desired.ek_ca is None:
        return None
    try:
        return TrustedRoots.load(desired.ek_ca)
    except Rejected as error:
        raise StartupError(f"{desired.flags.ek_ca}: {error}") from error


def _logins(desired: NetbootSettings) -> RegistryLogins:
    try:
        return RegistryLogins.from_file(desired.docker_config)
    except Denied as error:
        raise StartupError(f"{desired.flags.docker_config}: {error}") from error


SIOCGARP: Final = 0x8954
COMPLETE: Final = 0x2  # ATF_COM
ETHERNET: Final = 1
ARP_REQUEST: Final = struct.Struct("HH4s8sH14sI16s16s")  # struct arpreq: two sockaddr, flags, netmask, device


class NeighbourTable:
    """Lookup in the kernel's table: one address a call, without a cache that could be outdated.

    Args:
        interface: interface whose neighbours count.
    """

    def __init__(self, interface: str) -> None:
        self._device = interface.encode()[:15]
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def __call__(self, address: str) -> str | None:
        """Return the MAC behind an address, in lower case; None if the kernel has no entry."""
        request = ARP_REQUEST.pack(
            socket.AF_INET, 0, socket.inet_aton(address), bytes(8), 0, bytes(14), 0, bytes(16), self._device
        )
        try:
            answer = fcntl.ioctl(self._socket, SIOCGARP, request)
        except OSError:  # ENXIO: no entry; ENODEV: the interface is gone
            return None
        _, _, _, _, kind, hardware, flags, _, _ = ARP_REQUEST.unpack(answer)
        return hardware[:6].hex(":") if kind == ETHERNET and flags & COMPLETE else None
