"""Virtual media: what the image of a boot takes to make, and how fast a BMC gets it beside a single `sendfile`.

Both streams go over TLS with the same certificate to the same client, in turns. The peer is one call of Python's
`SSLSocket.sendfile` for one file with the same bytes: where the kernel has no TLS, it reads and encrypts them.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trustme

from unbounded.kube.serving_certificate import ServingCertificate
from unbounded.metalman.media.image import FilePart, MediaContent, MediaImage, Part, media_image
from unbounded.metalman.media.server import MediaServerSettings, VirtualMediaServer
from unbounded.metalman.media.tickets import PresentedTicket

MIB: Final = 1 << 20
CONFIG: Final = b"menuentry x { linux /vmlinuz unbounded.serve_url=http://192.0.2.1:8880/boot/x\n initrd /initrd }\n"
PATH: Final = f"/media/host-1/1.{'a' * 32}/boot.iso"


@dataclass(frozen=True)
class MediaFigures:
    made_ms: list[float]  # each time that an image was made
    stream_vs_sendfile: float  # the rate of the image over that of one file
    image_mib: float


def media_content(folder: Path, initrd_mib: int) -> MediaContent:
    """Write files of the sizes that a netboot image has."""
    parts: dict[str, FilePart] = {}
    for name, size in (("shim", MIB), ("grub", 4 * MIB), ("vmlinuz", 14 * MIB), ("initrd", initrd_mib * MIB)):
        (folder / name).write_bytes(os.urandom(size))
        parts[name] = FilePart(folder / name, size)
    files: dict[str, Part] = {"grub/grub.cfg": CONFIG, "vmlinuz": parts["vmlinuz"], "initrd": parts["initrd"]}
    return MediaContent(parts["shim"], parts["grub"], files)


def made_ms(content: MediaContent, turns: int) -> list[float]:
    """Make the image some times; return the milliseconds of each."""
    spent = []
    for _ in range(turns):
        began = time.perf_counter()
        _ = media_image(content).etag
        spent.append((time.perf_counter() - began) * 1e3)
    return spent


@dataclass(frozen=True)
class _AnyTicket:
    made: MediaImage

    async def image(self, client: str, ticket: PresentedTicket) -> MediaImage | None:
        return self.made


def _send(listener: socket.socket, file: Path, context: ssl.SSLContext, times: int) -> None:
    """Send the file to each client by one call of `sendfile`. Blocks."""
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {file.stat().st_size}\r\n\r\n".encode()
    for _ in range(times):
        plain, _address = listener.accept()
        with context.wrap_socket(plain, server_side=True) as sock, file.open("rb") as opened:
            sock.recv(4096)
            sock.sendall(head)
            sock.sendfile(opened)


def _read(port: int, context: ssl.SSLContext, size: int) -> float:
    """Read an image as a BMC does; return the seconds from the request to the last byte. Blocks."""
    buffer, got = bytearray(MIB), 0
    with (
        socket.create_connection(("127.0.0.1", port)) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as sock,
    ):
        began = time.perf_counter()
        sock.sendall(f"GET {PATH} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        while got < size and (count := sock.recv_into(buffer)):
            got += count
        spent = time.perf_counter() - began
    if got < size:
        raise RuntimeError(f"the stream ended after {got} of {size} bytes")
    return spent


async def media_figures(folder: Path, *, quick: bool) -> MediaFigures:
    """Measure; the files are in a folder of their own."""
    content = media_content(folder, 8 if quick else 64)
    image = media_image(content)
    whole, pem = folder / "whole.iso", folder / "site.pem"
    whole.write_bytes(b"".join(part if isinstance(part, bytes) else part.path.read_bytes() for part in image.parts))
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(pem))
    client, server = ssl.create_default_context(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.configure_trust(client)
    issued.configure_cert(server)
    streams, peers = [], []
    settings, certificate = MediaServerSettings("127.0.0.1", 0), ServingCertificate(pem, pem, "virtual media")
    turns = 3 if quick else 9
    with socket.create_server(("127.0.0.1", 0)) as listener:
        peer = asyncio.create_task(asyncio.to_thread(_send, listener, whole, server, turns))
        async with VirtualMediaServer(settings, certificate, _AnyTicket(image)).serving() as ours:
            for _ in range(turns):
                streams.append(await asyncio.to_thread(_read, ours.port, client, image.size))
                peers.append(await asyncio.to_thread(_read, listener.getsockname()[1], client, image.size))
        await peer
    ratio = statistics.median(peers) / statistics.median(streams)
    return MediaFigures(made_ms(content, 20 if quick else 500), ratio, image.size / MIB)
