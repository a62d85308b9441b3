"""Third-party manifests from a folder, a tar.gz, or a URL. They are read in memory, and never unpacked to a disk."""

from __future__ import annotations

import asyncio
import io
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, Final

import aiohttp
import yaml

from unbounded.cli.deploy.server_side_apply import kind_of, names_of_kinds
from unbounded.cli.deploy.workloads import MACHINA_CONFIG

Raw = dict[str, Any]

LARGEST: Final = 8 * 1024 * 1024  # for all manifests together, packed and unpacked
LARGEST_TAR: Final = 64 * 1024 * 1024  # unpacked, with what is no manifest: 8 MiB can be 8 GiB of zeros
MOST_FILES: Final = 1000
DOWNLOAD_S: Final = 60.0
ENDINGS: Final = (".yaml", ".yml", ".json")
# kustomize's own files, which describe how others belong together
NOT_APPLIED: Final = frozenset({"Kustomization", "Component"})


class UnusableBundle(ValueError):
    """The manifests cannot be used; the message names the place and the expected form."""


async def load(source: str) -> tuple[Raw, ...]:
    """Return the objects of a bundle in the order of its files, without machina's configuration, which flags set.

    Args:
        source: a folder, a .tar.gz, or an https URL of one.

    Raises:
        UnusableBundle
    """
    if source.startswith("https://"):
        files = _of_tar(source, await _downloaded(source))
    elif "://" in source:
        raise UnusableBundle(f"{source}: manifests are only downloaded over https")
    else:
        files = await asyncio.to_thread(_local, Path(source))
    found = tuple(body for where, text in files for body in _objects(where, text))
    if not found:
        raise UnusableBundle(f"{source}: has no manifests (files that end in {', '.join(ENDINGS)})")
    return found


def _local(path: Path) -> list[tuple[str, bytes]]:
    if path.is_dir():
        return list(_of_folder(path))
    if not path.is_file():
        raise UnusableBundle(f"{path}: no such folder or file")
    try:
        return _of_tar(str(path), path.read_bytes())
    except OSError as error:
        raise UnusableBundle(f"{path}: {error.strerror}") from error


def _of_folder(path: Path) -> Iterator[tuple[str, bytes]]:
    left = LARGEST
    found = sorted(one for one in path.rglob("*") if one.suffix in ENDINGS and one.is_file())
    if len(found) > MOST_FILES:
        raise UnusableBundle(f"{path}: more than {MOST_FILES} files of manifests")
    for file in found:
        try:
            content = file.read_bytes()
        except OSError as error:
            raise UnusableBundle(f"{file}: {error.strerror}") from error
        left -= len(content)
        if left < 0:
            raise UnusableBundle(f"{path}: more than {LARGEST // 1024**2} MiB of manifests")
        yield str(file), content


def _of_tar(source: str, packed: bytes) -> list[tuple[str, bytes]]:
    found: list[tuple[str, bytes]] = []
    left, unpacked = LARGEST, 0
    try:
        with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as tar:
            for member in tar:
                unpacked += member.size
                if unpacked > LARGEST_TAR:
                    raise UnusableBundle(f"{source}: unpacks to more than {LARGEST_TAR // 1024**2} MiB")
                if not member.isfile() or PurePosixPath(member.name).suffix not in ENDINGS:
                    continue
                left -= member.size
                content = tar.extractfile(member) if left >= 0 and len(found) < MOST_FILES else None
                if content is None:
                    raise UnusableBundle(f"{source}: more than {LARGEST // 1024**2} MiB, or {MOST_FILES} files")
                found.append((f"{source}:{member.name}", content.read()))
    except (tarfile.TarError, EOFError, OSError) as error:
        raise UnusableBundle(f"{source}: not a tar.gz file: {error}") from error
    return sorted(found)


async def _downloaded(url: str) -> bytes:
    timeout = aiohttp.ClientTimeout(total=DOWNLOAD_S)

    async def over_https(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        """Refuse a redirect to another scheme before it is followed: its answer could be anybody's."""
        if request.url.scheme != "https":
            raise UnusableBundle(f"{url}: the server leads to {request.url}, and manifests come over https alone")
        return await send(request)

    session = aiohttp.ClientSession(timeout=timeout, trust_env=True, middlewares=(over_https,))
    try:
        async with session as http, http.get(url) as answer:
            if answer.status != 200:
                raise UnusableBundle(f"{url}: the server answered {answer.status} {answer.reason}")
            content = await answer.content.read(LARGEST + 1)
            while len(content) <= LARGEST and (more := await answer.content.read(LARGEST)):
                content += more
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise UnusableBundle(f"{url}: {error or 'no answer in time'}") from error
    if len(content) > LARGEST:
        raise UnusableBundle(f"{url}: more than {LARGEST // 1024**2} MiB")
    return content


def _objects(where: str, text: bytes) -> Iterator[Raw]:
    try:
        documents = list(yaml.load_all(text, Loader=yaml.CSafeLoader))  # the safe loader, in C
    except yaml.YAMLError as error:
        raise UnusableBundle(f"{where}: not YAML: {error}") from error
    for body in _unfolded(documents):
        if not isinstance(body, dict) or not isinstance((body.get("metadata") or {}).get("name"), str):
            if isinstance(body, dict) and body.get("kind") in NOT_APPLIED:
                continue
            raise UnusableBundle(f"{where}: expected objects with apiVersion, kind and metadata.name")
        if body.get("kind") in NOT_APPLIED:
            continue
        if kind_of(body) is None:
            raise UnusableBundle(
                f"{where}: {body.get('apiVersion')} {body.get('kind')} is not supported here, apply it with "
                f"kubectl; the supported kinds are: {', '.join(names_of_kinds())}"
            )
        if (body["kind"], body["metadata"]["name"]) != ("ConfigMap", MACHINA_CONFIG):
            yield body


def _unfolded(documents: Iterable[Any]) -> Iterator[Any]:
    """Yield the documents, with Lists replaced by their items and without empty ones."""
    for body in documents:
        if isinstance(body, dict) and str(body.get("kind", "")).endswith("List"):
            yield from body.get("items") or ()
        elif body is not None:
            yield body
