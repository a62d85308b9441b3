"""Observes what a preflight checks: the host, and all network services that the configuration names.

Reads files of /proc, /sys, /dev and /etc and the state of systemd, and sends requests. It changes nothing.
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import aiohttp
from yarl import URL

from unbounded.agent.artifact_cache import BlobStore, find_cached
from unbounded.agent.artifact_sources import Artifact
from unbounded.agent.interfaces import Commands, Units
from unbounded.agent.model import Slot
from unbounded.agent.node.files import HostInputs
from unbounded.agent.node.nspawn import unit_of
from unbounded.agent.node.rootfs import is_image_cached, os_release_fields
from unbounded.agent.node.slot_files import read_build_record
from unbounded.agent.paths import HostPaths
from unbounded.agent.preflight.observations import (
    Graphics,
    HostObservation,
    NetworkFault,
    ServiceAnswer,
    SlotObservation,
)
from unbounded.agent.steps import kernel, packet_filter
from unbounded.agent.steps.packages import MANAGERS, PROGRAMS
from unbounded.agent.steps.step import StepHost as Programs
from unbounded.api.failures import Failure, Rejected
from unbounded.fetch.download import checked_url
from unbounded.fetch.failures import Denied, NotPublished, Unavailable, UnusableContent
from unbounded.fetch.logins import RegistryLogins
from unbounded.fetch.reference import Platform, Reference
from unbounded.fetch.registry import RegistryClient
from unbounded.fetch.web import Patience, Trust, Web

WRITTEN: Final = ("/etc", "/etc/systemd/system", "/usr/local", "/var/lib", "/run")
NVIDIA_VENDOR: Final = "0x10de"
_DISPLAY: Final = "0x03"  # prefix of PCI class codes of display controllers
_CALL_S: Final = 10.0


async def observe_host(paths: HostPaths, commands: Commands, units: Units) -> HostObservation:
    """Return the observed state of the host. An unreadable value counts as absent."""
    has = Programs(paths, commands, units).has
    release = os_release_fields(HostInputs(paths).os_release())
    version, controllers = _cgroups(paths)
    free_bytes, free_inodes = _free(paths.at("/var/lib"))
    return HostObservation(
        uid=os.geteuid(),
        system=release.get("ID", ""),
        like=tuple(release.get("ID_LIKE", "").split()),
        arch=platform.machine(),
        init=_text(paths.at("/proc/1/comm")),
        manager=next((one.program for one in MANAGERS if has(one.program)), ""),
        programs=frozenset(name for name in (*PROGRAMS, "systemd-nspawn", "debootstrap") if has(name)),
        systemd=await _systemd(commands),
        cgroup_version=version,
        controllers=controllers,
        swaps=_swaps(paths.at("/proc/swaps")),
        docker=tuple([unit for unit in packet_filter.DOCKER_UNITS if await _active(units, unit)]),
        free_bytes=free_bytes,
        free_inodes=free_inodes,
        unwritable=_unwritable(paths),
        refused=kernel.refused_by_kubelet(paths) if os.geteuid() == 0 else (),  # other users may set none
        graphics=graphics(paths),
        slots={slot: await _slot(paths, units, slot) for slot in Slot},
        resetting=paths.reset_state.exists(),
        tpm=paths.at("/dev/tpmrm0").exists(),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _cgroups(paths: HostPaths) -> tuple[int, frozenset[str]]:
    """Return the cgroup version, and the controllers of version 2. Where both are mounted, version 1 has the
    controllers.
    """
    mounts = [line.split() for line in _text(paths.at("/proc/self/mounts")).splitlines()]
    kinds = {fields[1]: fields[2] for fields in mounts if len(fields) > 2}
    if kinds.get("/sys/fs/cgroup") == "cgroup2":
        return 2, frozenset(_text(paths.at("/sys/fs/cgroup/cgroup.controllers")).split())
    return (1 if "cgroup" in kinds.values() else 0), frozenset()


def _free(path: Path) -> tuple[int, int]:
    while not path.exists():
        path = path.parent
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize, status.f_favail


def _swaps(path: Path) -> tuple[str, ...]:
    return tuple(line.split()[0] for line in _text(path).splitlines()[1:] if line.strip())


def _unwritable(paths: HostPaths) -> tuple[str, ...]:
    if os.geteuid() != 0:  # another check reports the missing privilege; without it, this list would hold every folder
        return ()
    return tuple(path for path in WRITTEN if paths.at(path).is_dir() and not os.access(paths.at(path), os.W_OK))


def graphics(paths: HostPaths) -> Graphics:
    """Return NVIDIA's cards, their devices, and the driver."""
    cards = [
        device
        for device in paths.at("/sys/bus/pci/devices").glob("*")
        if _text(device / "vendor") == NVIDIA_VENDOR and _text(device / "class").startswith(_DISPLAY)
    ]
    devices = [path for path in paths.at("/dev").glob("nvidia*") if re.fullmatch("nvidia[0-9]+", path.name)]
    match = re.search(r"Kernel Module(?: for \S+)?\s+([0-9][0-9.]*)", _text(paths.at("/proc/driver/nvidia/version")))
    return Graphics(len(cards), len(devices), match[1] if match else "")


async def _slot(paths: HostPaths, units: Units, slot: Slot) -> SlotObservation:
    exists = paths.rootfs(slot).is_dir()
    try:
        applied = read_build_record(paths, slot)
        return SlotObservation(exists, applied, running=applied is not None and await _active(units, unit_of(slot)))
    except Rejected as failure:
        unseen = isinstance(failure.__cause__, PermissionError)  # only root can read it
        return SlotObservation(exists, broken="" if unseen else str(failure))


async def _systemd(commands: Commands) -> int:
    try:
        output = (await commands.run("systemctl", "--version", timeout_s=_CALL_S)).stdout
    except Failure:
        return 0
    found = re.match(r"systemd ([0-9]+)", output)
    return int(found[1]) if found else 0


async def _active(units: Units, unit: str) -> bool:
    try:
        return (await units.observe(unit)).active in ("active", "activating", "reloading")
    except Failure:
        return False


CALL_S: Final = 15.0
PATIENCE: Final = Patience(connect_s=8.0, silence_s=10.0, attempts=1)
# for a checksum: with these statuses, the download continues without one
UNPUBLISHED: Final = (401, 403, 404, 407, 410)
_KEYS: Final = {"containerd": "Containerd", "runc": "Runc", "cni": "CNI", "crictl": "Crictl", "sandbox": "Sandbox"}


async def api_server(url: str, ca_pem: bytes) -> ServiceAnswer:
    """Request `/readyz` of the API server, verified by the configuration's CA."""
    what, key = "API server", "Kubelet.ApiServer"
    async with Web(Trust(authorities={"": ca_pem}), PATIENCE) as web:
        found = await _answer_of(web, f"{url.rstrip('/')}/readyz", what, key)
    if found.fault is NetworkFault.UNTRUSTED:
        return ServiceAnswer(what, key, fault=NetworkFault.UNTRUSTED_CA)
    return found


async def attestation(url: str) -> ServiceAnswer:
    """Request Attest.URL; its rejection of a GET counts as an answer."""
    async with Web(None, PATIENCE) as web:
        return await _answer_of(web, f"{url.rstrip('/')}/attest", "attestation", "Attest.URL")


async def artifact(web: Web, shelf: BlobStore, desired: Artifact) -> ServiceAnswer:
    """Request the artifact and its checksum, unless this host has the artifact."""
    what, key = f"{desired.name} {desired.version}", f"Downloads.{_KEYS.get(desired.name, 'Kubernetes')}"
    if (there := await asyncio.to_thread(find_cached, shelf, desired)) is not None:
        return ServiceAnswer(what, key, cached=True, unchecked=not there.checked)
    found = replace(await _answer_of(web, desired.url, what, key), proxy=_proxy(web, desired.url))
    if found.fault or not 200 <= found.status < 300 or desired.sha256:
        return found
    published = await _answer_of(web, desired.checksum_url, what, key)
    return replace(found, unchecked=published.status in UNPUBLISHED)


async def image(
    web: Web, shelf: BlobStore, reference: str, platform: Platform, logins: RegistryLogins
) -> ServiceAnswer:
    """Request the image for this platform, unless this host has it."""
    what, key = "image of the root file system", "OCIImage"
    try:
        desired = Reference.parse(reference)
    except UnusableContent:
        return ServiceAnswer(what, key, fault=NetworkFault.NO_IMAGE)
    proxy = _proxy(web, f"{web.trust.scheme(desired.host)}://{desired.host}")
    try:
        if await asyncio.to_thread(is_image_cached, shelf, desired, platform):
            return ServiceAnswer(what, key, cached=True)
        async with asyncio.timeout(CALL_S):
            await RegistryClient(web, desired, logins).resolve(platform)
    except (Failure, OSError) as failure:
        return replace(_failed(what, key, failure), proxy=proxy)
    return ServiceAnswer(what, key, status=200, proxy=proxy)


def _proxy(web: Web, text: str) -> str:
    """Return the configuration key of a URL's proxy; empty for none."""
    try:
        url = URL(text)
    except ValueError:
        return ""
    return f"Proxy.{url.scheme.upper()}" if web.proxies.of(url) is not None else ""


async def _answer_of(web: Web, text: str, what: str, key: str) -> ServiceAnswer:
    try:
        url = checked_url(web, text, plain=True)
        if url.scheme == "file":
            there = await asyncio.to_thread(Path(unquote(url.raw_path)).is_file)
            return ServiceAnswer(what, key, status=200 if there else 404)
        async with asyncio.timeout(CALL_S), web.request("GET", url) as response:
            return ServiceAnswer(what, key, status=response.status)
    except (Failure, OSError) as failure:
        return _failed(what, key, failure)


def _failed(what: str, key: str, failure: BaseException) -> ServiceAnswer:
    trouble = _fault_of(failure)
    if trouble is None and isinstance(failure, NotPublished):
        return ServiceAnswer(what, key, status=404)
    if trouble is None and isinstance(failure, Denied):
        return ServiceAnswer(what, key, status=403)
    if trouble is None:
        trouble = NetworkFault.UNREACHABLE if isinstance(failure, Unavailable) else NetworkFault.WRONG
    return ServiceAnswer(what, key, fault=trouble)


def _fault_of(failure: BaseException) -> NetworkFault | None:
    """Return the kind of network error in an exception and its causes; None where there is none."""
    for one in _causes(failure):
        match one:
            case aiohttp.ClientConnectorDNSError():
                return NetworkFault.UNRESOLVED
            case aiohttp.ClientConnectorCertificateError() | ssl.SSLCertVerificationError():
                return NetworkFault.UNTRUSTED
            case aiohttp.ClientSSLError() | ssl.SSLError():
                return NetworkFault.NO_TLS
            case ConnectionRefusedError():
                return NetworkFault.REFUSED
            case TimeoutError():
                return NetworkFault.SILENT
            case aiohttp.ClientConnectorError(os_error=ConnectionRefusedError()):
                return NetworkFault.REFUSED
            case aiohttp.ClientConnectorError() | OSError():
                return NetworkFault.UNREACHABLE
    return None


def _causes(failure: BaseException) -> Iterator[BaseException]:
    at: BaseException | None = failure
    while at is not None:
        yield at
        at = at.__cause__
