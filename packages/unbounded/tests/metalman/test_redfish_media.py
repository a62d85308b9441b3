"""Virtual media: the client finds the drive, inserts an image that the BMC fetches by HTTPS, and ejects it.

Against the lab's BMC with its vendors' differences, and against sushy-tools' emulator, which others wrote.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import trustme
from aiohttp import web

from tests.metalman.conftest import SHORT
from tests.support.sushy import PASSWORD, USERNAME, sushy
from unbounded.api.failures import Uncertain
from unbounded.metalman.redfish.bmc_interface import BmcAccount, ResetType, Unsupported
from unbounded.metalman.redfish.pool import BmcPool, PooledBmc
from unbounded_lab.bmc.faults import BmcFaults
from unbounded_lab.bmc.local import LabBmc

pytestmark = pytest.mark.slow

CONTENT: Final = b"an image" * 1000


@dataclass
class MediaServer:
    url: str
    ca: str
    fetched: list[str] = field(default_factory=list)


@asynccontextmanager
async def media_server() -> AsyncIterator[MediaServer]:
    """Serve one image by HTTPS on loopback, with a certificate of its own CA."""
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    served = MediaServer("", authority.cert_pem.bytes().decode())

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        served.fetched.append(request.path)
        return web.Response(status=404 if "gone" in request.path else 200, body=CONTENT)

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        assert site._server is not None
        served.url = f"https://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/token/boot.iso"  # type: ignore[attr-defined]
        yield served
    finally:
        await runner.cleanup()


@dataclass
class Bench:
    bmc: PooledBmc
    lab: LabBmc
    media: MediaServer


@asynccontextmanager
async def bench(*, trusts: bool = True, **faults: Any) -> AsyncIterator[Bench]:
    async with media_server() as media, BmcPool(SHORT) as pool:
        ca = media.ca if trusts else trustme.CA().cert_pem.bytes().decode()
        async with LabBmc(faults=BmcFaults(**faults), media_ca=ca) as lab:
            account = BmcAccount(lab.url, lab.username, lab.password, cert_fingerprint=lab.fingerprint)
            yield Bench(pool.bmc(account), lab, media)


@pytest.mark.parametrize("place", ["system", "manager"])
async def test_an_image_is_fetched_shown_and_ejected(place: str) -> None:
    async with bench(media=place) as it:
        assert (await it.bmc.media_drive()).is_empty
        drive = await it.bmc.insert_media(it.media.url)
        assert (drive.image, drive.inserted) == (it.media.url, True)
        assert it.lab.media_content == CONTENT
        assert (await it.bmc.eject_media()).is_empty
        assert it.media.fetched == ["/token/boot.iso"]


async def test_a_second_insertion_of_the_same_image_changes_nothing() -> None:
    async with bench() as it:
        await it.bmc.insert_media(it.media.url)
        await it.bmc.insert_media(it.media.url)
        assert len(it.media.fetched) == 1


async def test_another_image_replaces_the_one_in_the_drive() -> None:
    async with bench() as it:
        await it.bmc.insert_media(it.media.url)
        drive = await it.bmc.insert_media(f"{it.media.url}?2")
        assert drive.image == f"{it.media.url}?2"


@pytest.mark.parametrize("second", ["accepted", "refused"])
async def test_ejection_is_safe_to_repeat(second: str) -> None:
    async with bench(second_ejection=second) as it:
        await it.bmc.insert_media(it.media.url)
        for _ in range(2):
            assert (await it.bmc.eject_media()).is_empty


async def test_a_bmc_that_demands_all_fields_gets_them() -> None:
    async with bench(media_refused="without-fields") as it:
        assert (await it.bmc.insert_media(it.media.url)).inserted


async def test_an_insertion_that_shows_late_is_awaited() -> None:
    async with bench(media_shown_after_s=0.3) as it:
        assert (await it.bmc.insert_media(it.media.url)).inserted


async def test_an_insertion_that_never_shows_is_returned_as_it_is() -> None:
    async with bench(media_shown_after_s=60.0) as it:
        assert not (await it.bmc.insert_media(it.media.url)).inserted


async def test_a_bmc_that_loses_its_image_at_a_reset_shows_that() -> None:
    async with bench(media_lost_at_reset=True) as it:
        await it.bmc.insert_media(it.media.url)
        await it.bmc.reset(ResetType.FORCE_OFF)
        await it.bmc.reset(ResetType.ON)
        assert (await it.bmc.media_drive()).is_empty


@pytest.mark.parametrize(
    ("faults", "message"), [({"media": "absent"}, "no CD drive"), ({"media_refused": "plain"}, "ActionParameter")]
)
async def test_a_bmc_without_virtual_media_is_named(faults: dict[str, Any], message: str) -> None:
    async with bench(**faults) as it:
        with pytest.raises(Unsupported, match=message):
            await it.bmc.insert_media(it.media.url)


async def test_an_image_that_the_bmc_cannot_fetch_is_not_inserted() -> None:
    async with bench() as it:
        with pytest.raises(Uncertain):
            await it.bmc.insert_media(it.media.url.replace("boot.iso", "gone.iso"))
        assert (await it.bmc.media_drive()).is_empty


async def test_a_bmc_that_does_not_trust_the_server_fetches_nothing() -> None:
    async with bench(trusts=False) as it:
        with pytest.raises(Uncertain):
            await it.bmc.insert_media(it.media.url)
        assert it.media.fetched == []


async def test_the_emulator_of_sushy_tools_inserts_and_ejects(tmp_path: Path) -> None:
    async with sushy(tmp_path, systems=1) as server, media_server() as media, BmcPool() as pool:
        pin = await pool.fingerprint(server.url)
        bmc = pool.bmc(BmcAccount(server.url, USERNAME, PASSWORD, server.device_ids[0], pin))
        drive = await bmc.insert_media(media.url)
        assert (drive.image, drive.inserted) == (media.url, True)
        assert len(media.fetched) == 1
        for _ in range(2):
            assert (await bmc.eject_media()).is_empty
