"""Servers of network boot in one process, and the addresses at which booting machines reach it.

The servers are bound, counted, and part of the process's readiness. The addresses are DHCP's own address and interface,
and the URL of HTTP.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector, CollectorRegistry

from unbounded.kube.process import Runtime, StartupError
from unbounded.kube.serving_certificate import ServingCertificate, certificate_expiry
from unbounded.metalman.dhcp import model
from unbounded.metalman.dhcp import server as dhcp
from unbounded.metalman.dhcp.server import interface_address
from unbounded.metalman.http import server as http
from unbounded.metalman.http.boot_service import BootService
from unbounded.metalman.http.response_signing import StatementKeySource
from unbounded.metalman.media.server import MediaServerSettings, MediaSource, VirtualMediaServer
from unbounded.metalman.settings import EVERY_ADDRESS, DhcpMode, NetbootSettings
from unbounded.metalman.tftp import server as tftp
from unbounded.metalman.tftp.protocol import TftpFiles

Counts = Callable[[], Mapping[str, int]]
MEDIA: Final = "virtual media"


class PacketCountersCollector(Collector):
    """Counters of servers that start and stop within a process; their counts remain.

    Args:
        name: of the metric, without `_total`.
    """

    def __init__(self, registry: CollectorRegistry, name: str, text: str) -> None:
        self._name, self._text = name, text
        self._ended: dict[str, int] = {}
        self._counts: Counts | None = None
        registry.register(self)

    def begin(self, counts: Counts) -> None:
        """Follow a new server's counts, which start at zero; the counts of the one before are kept."""
        self._ended = self._sum()
        self._counts = counts

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily(self._name, self._text, labels=("result",))
        for result, count in sorted(self._sum().items()):
            family.add_metric((result,), count)
        yield family

    def _sum(self) -> dict[str, int]:
        found = dict(self._ended)
        for result, count in (self._counts() if self._counts else {}).items():
            found[result] = found.get(result, 0) + count
        return found


class NetbootMetrics:
    """Metrics of the servers in the registry of a process, beside those of HTTP."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.http_refusals = PacketCountersCollector(
            registry, "unbounded_netboot_http_refusals", "HTTP requests without a file, by reason."
        )
        self.dhcp_packets = PacketCountersCollector(
            registry, "unbounded_netboot_dhcp_packets", "DHCP packets by result."
        )
        self.tftp_requests = PacketCountersCollector(
            registry, "unbounded_netboot_tftp_requests", "TFTP requests by result."
        )
        self.media_refusals = PacketCountersCollector(
            registry, "unbounded_netboot_media_refusals", "Requests for boot images without an answer, by reason."
        )

        self.certificate_expiry = certificate_expiry(registry)


class NetbootServers:
    """HTTP and TFTP servers on every replica. DHCP runs on all of them behind relays, and on a segment on the leader
    alone.
    """

    def __init__(self, runtime: Runtime, settings: NetbootSettings, reach: Reachability) -> None:
        registry = self._registry = runtime.metrics.registry
        self._checks = runtime.checks
        self._settings = settings
        self._reach = reach
        self._states = dict.fromkeys(("HTTP", "TFTP"), "not listening yet")
        if settings.media is not None:
            self._states[MEDIA] = "not listening yet"
        if reach.mode is not None and not self.dhcp_leads:  # a replica that does not lead is ready without DHCP
            self._states["DHCP"] = "not listening yet"
        for name in self._states:
            runtime.checks(name, partial(self._states.get, name))
        self._metrics = NetbootMetrics(registry)

    @property
    def dhcp_leads(self) -> bool:
        """Return whether DHCP is for the leader alone: on a segment, two servers would answer the same client."""
        return self._reach.mode in {model.DhcpServerMode.INTERFACE, model.DhcpServerMode.PROXY}

    @asynccontextmanager
    async def http(self, boots: BootService, keys: StatementKeySource) -> AsyncIterator[http.HttpServer]:
        """Serve HTTP inside of the context.

        Args:
            keys: gives the key that signs answers to installers.

        Raises:
            StartupError: the port is unavailable.
        """
        settings = self._settings
        desired = http.HttpServerSettings(
            bind_address=settings.bind_address, port=settings.http_port, trusted_proxies=settings.trusted_proxies
        )
        server = http.HttpServer(desired, boots, self._registry, keys)
        async with self._bound("HTTP", settings.http_port, settings.flags.http_port, server.serving):
            self._metrics.http_refusals.begin(lambda: server.counts)
            self._checks("HTTP transfers", server.check)
            yield server

    @asynccontextmanager
    async def tftp(self, files: TftpFiles) -> AsyncIterator[tftp.TftpServer]:
        """Serve TFTP inside of the context.

        Raises:
            StartupError: the port is unavailable.
        """
        settings = self._settings
        server = tftp.TftpServer(
            tftp.TftpServerSettings(bind_address=settings.bind_address, port=settings.tftp_port), files
        )
        async with self._bound("TFTP", settings.tftp_port, settings.flags.tftp_port, server.serving):
            self._metrics.tftp_requests.begin(lambda: server.counts)
            yield server

    @asynccontextmanager
    async def media(self, images: MediaSource) -> AsyncIterator[None]:
        """Serve virtual media inside of the context, if it is wanted.

        Raises:
            StartupError: the port is unavailable, or the certificate or its key is unusable.
        """
        settings, media = self._settings, self._settings.media
        if media is None:
            yield
            return
        expiry = self._metrics.certificate_expiry
        certificate = ServingCertificate(media.certificate, media.key, MEDIA, expiry)
        try:
            certificate.load()
        except OSError as error:
            files = f"{settings.flags.media_certificate} {media.certificate}, {settings.flags.media_key} {media.key}"
            raise StartupError(f"{files}: no certificate chain with its key in PEM: {error}") from error
        server = VirtualMediaServer(MediaServerSettings(port=media.port), certificate, images)
        async with self._bound(MEDIA, media.port, settings.flags.media_port, server.serving):
            self._metrics.media_refusals.begin(lambda: server.counts)
            yield

    async def dhcp(
        self,
        reservations: model.ReservationSource,
        report: Callable[[model.DhcpFinding], None],
        listener: model.PacketObserver | None = None,
    ) -> None:
        """Serve DHCP until cancelled.

        Raises:
            StartupError: a port is unavailable.
        """
        settings = self._settings
        if self._reach.mode is None:
            return
        desired = dhcp.DhcpServerSettings(
            mode=self._reach.mode,
            interface=self._reach.interface,
            bind_address=settings.bind_address,
            port=settings.dhcp_port,
            relays=model.Relays(settings.relays),
        )
        server = dhcp.DhcpServer(desired, reservations, report, listener)
        async with self._bound("DHCP", settings.dhcp_port, settings.flags.dhcp_port, server.serving):
            self._metrics.dhcp_packets.begin(lambda: server.counts)
            await asyncio.Event().wait()

    @asynccontextmanager
    async def _bound(
        self, what: str, port: int, flag: str, serving: Callable[[], AbstractAsyncContextManager[object]]
    ) -> AsyncIterator[None]:
        """Start a server; turn an error of its port into one that names the server and the flags to change."""
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(serving())
            except OSError as error:
                raise StartupError(why_not(what, self._settings, port, flag, error)) from error
            self._states.pop(what, None)
            yield


def why_not(what: str, settings: NetbootSettings, port: int, flag: str, error: OSError) -> str:
    """Return the reason why a server cannot listen, with the flags to change."""
    address = EVERY_ADDRESS if what == MEDIA else settings.bind_address
    place = settings.interface if what == "DHCP" and settings.interface else address
    flags, where = settings.flags, f"{what} cannot listen on {place} port {port}"
    match error.errno:
        case errno.EADDRINUSE:
            return f"{where}: the port is in use; end the other process, or choose another {flag}"
        case errno.EADDRNOTAVAIL:
            return f"{where}: this machine does not have that address; correct {flags.bind_address}"
        case errno.EACCES:
            return f"{where}: ports below 1024 need root or CAP_NET_BIND_SERVICE; or choose another {flag}"
        case errno.EPERM:
            return f"{where}: an interface needs root or CAP_NET_RAW; without them, omit {flags.interface}"
        case errno.ENODEV:
            return f"{where}: interface {settings.interface or ''} does not exist any more; correct {flags.interface}"
        case _:
            return f"{where} ({flag}): {error.strerror or error}"


ROUTE_PROBE: Final = ("8.8.8.8", 80)  # nothing is sent there: the kernel only returns the route that it would take


class HostNetwork(Protocol):
    """Present network configuration of this host."""

    # {interface: its first IPv4 address}; interfaces without one are left out
    def addresses(self) -> Mapping[str, str]: ...

    def interfaces(self) -> frozenset[str]: ...

    def outbound(self) -> str | None: ...  # source address of the default route; None without a route


@dataclass(frozen=True, slots=True)
class Reachability:
    """Reachability of this process for clients.

    Args:
        server: its address, four octets, in DHCP answers and of TFTP.
        mode: mode of the DHCP server; None for no DHCP server.
        interface: interface of the DHCP server; None behind relays.
        serve_url: URL of HTTP, without a slash at its end.
    """

    server: bytes
    mode: model.DhcpServerMode | None
    interface: str | None
    serve_url: str


def reach(desired: NetbootSettings, links: HostNetwork) -> Reachability:
    """Determine the reachability from settings and network configuration.

    Raises:
        StartupError: the interface is missing or has no address, or no default route determines the address.
    """
    interface = _interface(desired, links)
    server = _server(desired, links, interface)
    return Reachability(
        server=model.address_octets(server),
        mode=_mode(desired, interface),
        interface=interface,
        serve_url=desired.serve_url or f"http://{server}:{desired.http_port}",
    )


def _mode(desired: NetbootSettings, interface: str | None) -> model.DhcpServerMode | None:
    match desired.dhcp_mode:
        case DhcpMode.NONE:
            return None
        case DhcpMode.PROXY:
            return model.DhcpServerMode.PROXY
        case _:
            return model.DhcpServerMode.RELAY if interface is None else model.DhcpServerMode.INTERFACE


def _interface(desired: NetbootSettings, links: HostNetwork) -> str | None:
    if desired.auto_interface:
        address = _own_address(desired, links)
        found = [name for name, has in links.addresses().items() if has == address]
        if not found:
            raise StartupError(f"{desired.flags.auto_interface}: no interface has the address {address}; name one")
        return found[0]
    if desired.interface is not None and desired.interface not in links.interfaces():
        there = ", ".join(sorted(links.interfaces() - {"lo"})) or "none"
        raise StartupError(
            f"{desired.flags.interface}: interface {desired.interface} does not exist; available: {there}"
        )
    return desired.interface


def _server(desired: NetbootSettings, links: HostNetwork, interface: str | None) -> str:
    if interface is None:
        return _own_address(desired, links)
    addresses = links.addresses()
    if interface not in addresses:
        raise StartupError(
            f"{desired.flags.interface}: {interface} has no IPv4 address: assign one of the machines' network, "
            f"such as `ip addr add 192.0.2.1/24 dev {interface}`"
        )
    return addresses[interface] if desired.bind_address == EVERY_ADDRESS else desired.bind_address


def _own_address(desired: NetbootSettings, links: HostNetwork) -> str:
    """Return the bind address if it is a specific one, else the source address of the default route."""
    if desired.bind_address != EVERY_ADDRESS:
        return desired.bind_address
    found = links.outbound()
    if found is None:
        raise StartupError(
            "cannot determine the address of this machine without a default route: set "
            f"{desired.flags.bind_address} or {desired.flags.interface}"
        )
    return found


class KernelNetwork:
    """Network configuration from the kernel."""

    def interfaces(self) -> frozenset[str]:
        return frozenset(name for _index, name in socket.if_nameindex())

    def addresses(self) -> Mapping[str, str]:
        found = {}
        for _index, name in socket.if_nameindex():
            try:
                found[name] = model.format_address(interface_address(name))
            except OSError as error:
                if error.errno not in (errno.EADDRNOTAVAIL, errno.ENODEV):
                    raise
        return found

    def outbound(self) -> str | None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            try:
                sock.connect(ROUTE_PROBE)
            except OSError:
                return None
            return str(sock.getsockname()[0])
