"""No password before the certificate is known to be the right one."""

from __future__ import annotations

import base64

import pytest
from aiohttp import web

from tests.metalman.fake_bmc import RESET, SYSTEM, FakeBmc, Handler, certificate, says
from unbounded.api.failures import Rejected
from unbounded.metalman.redfish.bmc_interface import (
    BmcPowerState,
    BmcUnreachable,
    CertificateChanged,
    CertificateUntrusted,
    ResetType,
)
from unbounded.metalman.redfish.endpoint import endpoint_of, pinned_digest
from unbounded.metalman.redfish.pool import BmcPool


async def test_the_fingerprint_is_fetched_by_a_handshake_alone(bmc: FakeBmc, pool: BmcPool) -> None:
    assert bmc.tls is not None
    assert await pool.fingerprint(bmc.url) == bmc.tls.fingerprint
    assert not bmc.requests


async def test_the_fingerprint_of_a_dead_bmc_is_unreachable(bmc: FakeBmc, pool: BmcPool) -> None:
    await bmc.deafen()
    with pytest.raises(BmcUnreachable, match="refused"):
        await pool.fingerprint(bmc.url)


async def test_nothing_is_sent_to_another_certificate_than_the_pinned_one(bmc: FakeBmc, pool: BmcPool) -> None:
    other = certificate().fingerprint
    assert bmc.tls is not None
    with pytest.raises(CertificateChanged) as changed:
        await pool.bmc(bmc.access(cert_fingerprint=other)).system()
    assert (changed.value.pinned, changed.value.seen) == (other, bmc.tls.fingerprint)
    assert other in str(changed.value)
    assert bmc.tls.fingerprint in str(changed.value)
    assert not bmc.requests


async def test_every_new_connection_is_checked_not_only_the_first(bmc: FakeBmc, pool: BmcPool) -> None:
    handle = pool.bmc(bmc.access())
    await handle.system()
    sent = len(bmc.requests)
    await bmc.deafen()
    bmc.tls = certificate()
    await bmc.listen()
    with pytest.raises(CertificateChanged):
        await handle.reset(ResetType.FORCE_OFF)
    assert len(bmc.requests) == sent
    assert bmc.count("POST", RESET) == 0


async def test_a_new_pin_reaches_the_bmc_again(bmc: FakeBmc, pool: BmcPool) -> None:
    with pytest.raises(CertificateChanged):
        await pool.bmc(bmc.access(cert_fingerprint=certificate().fingerprint)).system()
    assert (await pool.bmc(bmc.access()).system()).power is BmcPowerState.ON


async def test_without_a_pin_nothing_is_sent(bmc: FakeBmc, pool: BmcPool) -> None:
    with pytest.raises(CertificateUntrusted, match="no certificate is pinned"):
        await pool.bmc(bmc.access(cert_fingerprint=None)).system()
    assert not bmc.requests


@pytest.mark.parametrize("wrap", [str, lambda pem: base64.b64encode(pem.encode()).decode()], ids=["pem", "base64"])
async def test_a_ca_bundle_is_verified_instead_of_the_pin(bmc: FakeBmc, pool: BmcPool, wrap: type[str]) -> None:
    assert bmc.tls is not None
    access = bmc.access(cert_fingerprint="00" * 32, ca_bundle=wrap(bmc.tls.pem))
    assert (await pool.bmc(access).system()).power is BmcPowerState.ON


async def test_a_certificate_that_the_bundle_does_not_vouch_for_gets_nothing(bmc: FakeBmc, pool: BmcPool) -> None:
    with pytest.raises(CertificateUntrusted, match="does not chain to the CA bundle"):
        await pool.bmc(bmc.access(ca_bundle=certificate().pem)).system()
    assert not bmc.requests


async def test_a_certificate_for_another_host_name_gets_nothing(pool: BmcPool) -> None:
    async with FakeBmc(tls=certificate("elsewhere.example")) as bmc:
        assert bmc.tls is not None
        with pytest.raises(CertificateUntrusted, match=r"127\.0\.0\.1"):
            await pool.bmc(bmc.access(ca_bundle=bmc.tls.pem)).system()
        assert not bmc.requests


async def test_plain_http_works_and_is_said(pool: BmcPool, caplog: pytest.LogCaptureFixture) -> None:
    async with FakeBmc(tls=None) as bmc:
        assert (await pool.bmc(bmc.access()).system()).power is BmcPowerState.ON
    assert "not encrypted" in caplog.text


async def test_a_redirect_to_another_host_or_scheme_is_not_followed(bmc: FakeBmc, pool: BmcPool) -> None:
    async with FakeBmc() as elsewhere:
        for target in (f"{elsewhere.url}{SYSTEM}", f"http://127.0.0.1:{bmc.port}{SYSTEM}"):
            bmc.once("GET", SYSTEM, _redirect(target))
            with pytest.raises(Rejected, match="does not follow"):
                await pool.bmc(bmc.access()).system()
        assert not elsewhere.requests


async def test_what_the_bmc_refers_to_never_leads_to_another_host() -> None:
    here = endpoint_of("https://bmc.example:8443/blades/7/redfish/v1/")
    for reference in ("https://evil.example/x y", "//evil.example/x y", "/x y", "x y"):
        assert str(here.url(reference)) == "https://bmc.example:8443/blades/7/x%20y"
    assert str(here.url("/blades/7/redfish/v1/Systems?$top=1\r\nX: 1")).endswith("/Systems?$top=1X:%201")


@pytest.mark.parametrize(
    "url", ["bmc.example", "ftp://bmc", "https://", "https://admin:pw@bmc", "https://bmc:99999", "https://[::1"]
)
def test_invalid_bmc_url_is_rejected_without_its_secrets(url: str) -> None:
    with pytest.raises(Rejected) as rejected:
        endpoint_of(url)
    assert "pw" not in str(rejected.value)


def test_pins_are_read_with_and_without_colons_and_in_any_case() -> None:
    plain = "ab" * 32
    with_colons = ":".join(["AB"] * 32)
    assert pinned_digest(plain) == pinned_digest(with_colons) == pinned_digest(f"sha256:{plain}")
    with pytest.raises(Rejected):
        pinned_digest("ab" * 20)


def _redirect(to: str) -> Handler:
    return says(lambda: web.Response(status=307, headers={"Location": to}))
