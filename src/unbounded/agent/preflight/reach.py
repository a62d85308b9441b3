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

from unbounded.agent.artifacts.cache import kept
from unbounded.agent.artifacts.images import kept_image
from unbounded.agent.artifacts.shelf import Shelf
from unbounded.agent.artifacts.sources import Artifact
from unbounded.agent.preflight.seen import Reached, Trouble
from unbounded.api.failures import Failure
from unbounded.fetch.download import checked_url
from unbounded.fetch.failures import Denied, Missing, Unavailable, Unusable
from unbounded.fetch.logins import Logins
from unbounded.fetch.platforms import Platform
from unbounded.fetch.reference import Reference
from unbounded.fetch.registry import Registry
from unbounded.fetch.web import Patience, Trust, Web

CALL_S: Final = 15.0
PATIENCE: Final = Patience(connect_s=8.0, silence_s=10.0, attempts=1)
# for a checksum: with these statuses, the download continues without one
UNPUBLISHED: Final = (401, 403, 404, 407, 410)
_KEYS: Final = {"containerd": "Containerd", "runc": "Runc", "cni": "CNI", "crictl": "Crictl", "sandbox": "Sandbox"}


async def api_server(url: str, ca_pem: bytes) -> Reached:
    """Request `/readyz` of the API server, verified by the configuration's CA."""
    what, key = "API server", "Kubelet.ApiServer"
    async with Web(Trust(authorities={"": ca_pem}), PATIENCE) as web:
        found = await _asked(web, f"{url.rstrip('/')}/readyz", what, key)
    if found.trouble is Trouble.UNTRUSTED:
        return Reached(what, key, trouble=Trouble.UNTRUSTED_CA)
    return found


async def attestation(url: str) -> Reached:
    """Request Attest.URL; its rejection of a GET counts as an answer."""
    async with Web(None, PATIENCE) as web:
        return await _asked(web, f"{url.rstrip('/')}/attest", "attestation", "Attest.URL")


async def artifact(web: Web, shelf: Shelf, wanted: Artifact) -> Reached:
    """Request the artifact and its checksum, unless this host has the artifact."""
    what, key = f"{wanted.name} {wanted.version}", f"Downloads.{_KEYS.get(wanted.name, 'Kubernetes')}"
    if (there := await asyncio.to_thread(kept, shelf, wanted)) is not None:
        return Reached(what, key, kept=True, unchecked=not there.checked)
    found = replace(await _asked(web, wanted.url, what, key), proxy=_proxy(web, wanted.url))
    if found.trouble or not 200 <= found.status < 300 or wanted.sha256:
        return found
    published = await _asked(web, wanted.checksum_url, what, key)
    return replace(found, unchecked=published.status in UNPUBLISHED)


async def image(web: Web, shelf: Shelf, reference: str, platform: Platform, logins: Logins) -> Reached:
    """Request the image for this platform, unless this host has it."""
    what, key = "image of the root file system", "OCIImage"
    try:
        wanted = Reference.parse(reference)
    except Unusable:
        return Reached(what, key, trouble=Trouble.NO_IMAGE)
    proxy = _proxy(web, f"{web.trust.scheme(wanted.host)}://{wanted.host}")
    try:
        if await asyncio.to_thread(kept_image, shelf, wanted, platform):
            return Reached(what, key, kept=True)
        async with asyncio.timeout(CALL_S):
            await Registry(web, wanted, logins).resolve(platform)
    except (Failure, OSError) as failure:
        return replace(_failed(what, key, failure), proxy=proxy)
    return Reached(what, key, status=200, proxy=proxy)


def _proxy(web: Web, text: str) -> str:
    """Return the configuration key of a URL's proxy; empty for none."""
    try:
        url = URL(text)
    except ValueError:
        return ""
    return f"Proxy.{url.scheme.upper()}" if web.proxies.of(url) is not None else ""


async def _asked(web: Web, text: str, what: str, key: str) -> Reached:
    try:
        url = checked_url(web, text, plain=True)
        if url.scheme == "file":
            there = await asyncio.to_thread(Path(unquote(url.raw_path)).is_file)
            return Reached(what, key, status=200 if there else 404)
        async with asyncio.timeout(CALL_S), web.ask("GET", url) as response:
            return Reached(what, key, status=response.status)
    except (Failure, OSError) as failure:
        return _failed(what, key, failure)


def _failed(what: str, key: str, failure: BaseException) -> Reached:
    trouble = _trouble(failure)
    if trouble is None and isinstance(failure, Missing):
        return Reached(what, key, status=404)
    if trouble is None and isinstance(failure, Denied):
        return Reached(what, key, status=403)
    if trouble is None:
        trouble = Trouble.UNREACHABLE if isinstance(failure, Unavailable) else Trouble.WRONG
    return Reached(what, key, trouble=trouble)


def _trouble(failure: BaseException) -> Trouble | None:
    """Return the kind of network error in an exception and its causes; None where there is none."""
    for one in _causes(failure):
        match one:
            case aiohttp.ClientConnectorDNSError():
                return Trouble.UNRESOLVED
            case aiohttp.ClientConnectorCertificateError() | ssl.SSLCertVerificationError():
                return Trouble.UNTRUSTED
            case aiohttp.ClientSSLError() | ssl.SSLError():
                return Trouble.NO_TLS
            case ConnectionRefusedError():
                return Trouble.REFUSED
            case TimeoutError():
                return Trouble.SILENT
            case aiohttp.ClientConnectorError(os_error=ConnectionRefusedError()):
                return Trouble.REFUSED
            case aiohttp.ClientConnectorError() | OSError():
                return Trouble.UNREACHABLE
    return None


def _causes(failure: BaseException) -> Iterator[BaseException]:
    at: BaseException | None = failure
    while at is not None:
        yield at
        at = at.__cause__
