"""The server of virtual media over loopback, with curl as the BMC, which checks the certificate."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trustme

from tests.metalman.media.support import content, whole
from tests.support.waiting import eventually
from unbounded.kube.serving_certificate import ServingCertificate
from unbounded.metalman.media.image import MediaImage, media_image
from unbounded.metalman.media.server import MediaServerSettings, VirtualMediaServer
from unbounded.metalman.media.tickets import MediaTicket, PresentedTicket, TicketKey

pytestmark = pytest.mark.slow

KEY = TicketKey(b"k" * 32)
EXPIRES = 1_800_000_000


@dataclass
class OneImage:
    """An image for one boot, from which a test takes the boot away or moves the time."""

    made: MediaImage
    boot: str = "boot"
    now: float = EXPIRES - 60.0
    asked: list[str] = field(default_factory=list)

    async def image(self, client: str, ticket: PresentedTicket) -> MediaImage | None:
        self.asked.append(client)
        is_permitted = KEY.permits(ticket, uid="uid", boot=self.boot, client=client, now=self.now)
        return self.made if is_permitted else None


@dataclass
class Site:
    source: OneImage
    server: VirtualMediaServer
    ca: Path
    url: str

    async def curl(self, *arguments: str, url: str = "") -> subprocess.CompletedProcess[bytes]:
        line = ["curl", "-sS", "-m", "30", "--cacert", str(self.ca), *arguments, url or self.url]
        return await asyncio.to_thread(subprocess.run, line, capture_output=True, check=False)

    async def code(self, *arguments: str, url: str = "") -> str:
        ran = await self.curl("-o", "/dev/null", "-w", "%{http_code}", *arguments, url=url)
        return ran.stdout.decode()


@asynccontextmanager
async def serving(folder: Path, image: MediaImage, address: str = "127.0.0.1") -> AsyncIterator[Site]:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued.private_key_pem.write_to_path(str(folder / "key.pem"))
    for number, pem in enumerate(issued.cert_chain_pems):
        pem.write_to_path(str(folder / "cert.pem"), append=number > 0)
    certificate = ServingCertificate(folder / "cert.pem", folder / "key.pem", "virtual media", renewal_s=0.05)
    source = OneImage(image)
    async with VirtualMediaServer(MediaServerSettings("127.0.0.1", 0), certificate, source).serving() as server:
        path = KEY.path(MediaTicket("host-1", "uid", "boot", address, EXPIRES))
        yield Site(source, server, folder / "ca.pem", f"https://127.0.0.1:{server.port}{path}")


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    kernel = os.urandom(1 << 20) + b"tail"
    async with serving(tmp_path, media_image(content(tmp_path, kernel=kernel))) as made:
        yield made


async def test_the_bmc_reads_the_whole_image_again_and_in_ranges(site: Site) -> None:
    every = whole(site.source.made)
    for _ in range(2):
        assert (await site.curl()).stdout == every
    middle = len(every) // 2
    for start, stop in ((0, 2048), (32768, 34816), (middle, middle + 700_001), (len(every) - 1, len(every))):
        assert (await site.curl("-r", f"{start}-{stop - 1}")).stdout == every[start:stop]
    head = (await site.curl("-I")).stdout.lower()
    assert b"accept-ranges: bytes" in head
    assert b"content-length: %d\r" % len(every) in head


async def test_a_client_that_does_not_trust_the_ca_reads_nothing(site: Site) -> None:
    ran = await asyncio.to_thread(subprocess.run, ["curl", "-sS", site.url], capture_output=True, check=False)
    assert ran.returncode == 60
    assert site.source.asked == []


async def test_a_renewed_certificate_is_used_without_a_restart(site: Site, tmp_path: Path) -> None:
    assert await site.code() == "200"
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))  # for a moment they do not belong together
    await asyncio.sleep(0.3)
    assert await site.code() == "200"
    issued.cert_chain_pems[0].write_to_path(str(tmp_path / "cert.pem"))
    for pem in issued.cert_chain_pems[1:]:
        pem.write_to_path(str(tmp_path / "cert.pem"), append=True)
    former = site.ca.read_bytes()
    authority.cert_pem.write_to_path(str(site.ca))

    async def renewed() -> bool:
        return await site.code() == "200"

    await eventually(renewed, within_s=30.0)
    site.ca.write_bytes(former)
    assert await site.code() == "000"


async def test_the_url_ends_with_its_boot_and_at_its_time(site: Site) -> None:
    assert await site.code() == "200"
    site.source.now = EXPIRES
    assert await site.code() == "404"
    site.source.now, site.source.boot = EXPIRES - 60.0, "the next one"
    assert await site.code() == "404"


async def test_the_url_works_for_the_address_of_its_bmc_alone(site: Site) -> None:
    assert await site.code("--interface", "127.0.0.2") == "404"
    assert await site.code("--interface", "127.0.0.1") == "200"
    assert site.source.asked == ["127.0.0.2", "127.0.0.1"]


async def test_all_refusals_are_equal(site: Site) -> None:
    answers = set()
    for url in (site.url.replace("/boot.iso", "/other.iso"), f"{site.url}x", site.url.replace("host-1", "host-2")):
        ran = await site.curl("-w", "%{http_code}", url=url)
        answers.add(ran.stdout)
    assert answers == {b"not found\n404"}
    assert site.server.counts["refused"] == 3


async def test_writing_methods_are_not_allowed(site: Site) -> None:
    assert await site.code("-X", "PUT", "-d", "x") == "405"


async def test_a_range_behind_the_end_and_a_known_image_have_answers_of_their_own(site: Site) -> None:
    assert await site.code("-r", "999999999-") == "416"
    assert await site.code("-H", f'If-None-Match: "{site.source.made.etag}"') == "304"
    assert await site.code("-H", 'If-Match: "other"') == "412"


async def test_a_file_that_was_replaced_is_not_sent(site: Site, tmp_path: Path) -> None:
    (tmp_path / "vmlinuz").write_bytes(b"shorter")
    assert (await site.curl()).returncode != 0
    assert site.server.counts["a file cannot be read"] == 1
