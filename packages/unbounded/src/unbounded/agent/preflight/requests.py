"""Requests to all network services that the configuration names.

It keeps only the status of an answer, and only the kind of an error.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import aiohttp
from yarl import URL

from unbounded.agent.artifacts.blob_store import BlobStore
from unbounded.agent.artifacts.cache import find_cached
from unbounded.agent.artifacts.images import is_image_cached
from unbounded.agent.artifacts.sources import Artifact
from unbounded.agent.preflight.observations import NetworkFault, ServiceAnswer
from unbounded.api.failures import Failure
from unbounded.fetch.download import checked_url
from unbounded.fetch.failures import Denied, NotPublished, Unavailable, UnusableContent
from unbounded.fetch.logins import RegistryLogins
from unbounded.fetch.reference import Platform, Reference
from unbounded.fetch.registry import RegistryClient
from unbounded.fetch.web import Patience, Trust, Web

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
