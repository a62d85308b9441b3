"""TLS against a real server: small buffers, client certificates, and servers that are not who they should be."""

from __future__ import annotations

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import trustme
from aiohttp import web

from unbounded.api.core import CONFIG_MAPS
from unbounded.kube import tls
from unbounded.kube.api import ApiError, ServerUnreachable
from unbounded.kube.client import HttpApi
from unbounded.kube.config import ClientConfig
from unbounded.kube.credentials import REREAD_S, AuthInfo, StaticCredentials
from unbounded.kube.tls import BUFFER_BYTES, ClientCertificate, bound_buffers, client_context


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@asynccontextmanager
async def tls_server(authority: trustme.CA, *names: str) -> AsyncIterator[str]:
    """An API server on loopback that wants a client certificate and answers with its subject; yields its URL."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(*names).configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_OPTIONAL

    async def handler(request: web.Request) -> web.Response:
        certificate = request.get_extra_info("peercert") or {}
        subject = {key: value for part in certificate.get("subject", ()) for key, value in part}
        return web.json_response(
            {"metadata": {"name": "a", "resourceVersion": "1"}, "data": {"who": subject.get("commonName", "")}}
        )

    app = web.Application()
    app.router.add_get("/api/v1/namespaces/n/configmaps/a", handler)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        yield f"https://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def who(config: ClientConfig) -> str:
    async with HttpApi(config) as api:
        return (await api.get(CONFIG_MAPS, "a", namespace="n")).data["who"]


async def test_a_client_shows_its_certificate(authority: trustme.CA) -> None:
    issued = authority.issue_cert("m1.example", common_name="m1")
    chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    mine = ClientCertificate(chain, issued.private_key_pem.bytes())
    async with tls_server(authority, "127.0.0.1") as url:
        config = ClientConfig(url, StaticCredentials(AuthInfo(certificate=mine)), ca=authority.cert_pem.bytes())
        assert await who(config) == "m1"
        assert await who(ClientConfig(url, ca=authority.cert_pem.bytes())) == ""


@pytest.mark.slow
async def test_a_server_of_another_authority_is_not_spoken_to(authority: trustme.CA) -> None:
    async with tls_server(authority, "127.0.0.1") as url:
        with pytest.raises(ServerUnreachable, match="certificate verify failed"):
            await who(ClientConfig(url, ca=trustme.CA().cert_pem.bytes()))
        with pytest.raises(ServerUnreachable):
            await who(ClientConfig(url))
        assert await who(ClientConfig(url, verify=False)) == ""


async def test_a_renewed_authority_is_read_from_its_file(authority: trustme.CA, tmp_path: Path) -> None:
    file, other = tmp_path / "ca.crt", trustme.CA()
    former = other.cert_pem.bytes()
    file.write_bytes(former)
    async with tls_server(authority, "127.0.0.1") as url, HttpApi(ClientConfig(url, ca=former, ca_file=file)) as api:
        with pytest.raises(ServerUnreachable, match="certificate verify failed"):
            await api.get(CONFIG_MAPS, "a", namespace="n")
        for content in (b"-----BEGIN CERTIFICATE-----\nhalf", authority.cert_pem.bytes()):
            api._ca_read_at -= REREAD_S + 1  # as if the time had passed
            with pytest.raises(ServerUnreachable, match="certificate verify failed"):
                await api.get(CONFIG_MAPS, "a", namespace="n")
            file.write_bytes(content)
        api._ca_read_at -= REREAD_S + 1
        assert (await api.get(CONFIG_MAPS, "a", namespace="n")).data == {"who": ""}


async def test_the_name_that_is_checked_can_be_given(authority: trustme.CA) -> None:
    ca = authority.cert_pem.bytes()
    async with tls_server(authority, "api.internal") as url:
        with pytest.raises(ApiError, match="certificate verify failed"):
            await who(ClientConfig(url, ca=ca))
        assert await who(ClientConfig(url, ca=ca, tls_server_name="api.internal")) == ""


async def test_connections_have_small_buffers(authority: trustme.CA) -> None:
    bound_buffers()
    ca = client_context(ca=authority.cert_pem.bytes())
    async with tls_server(authority, "127.0.0.1") as url:
        _, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]), ssl=ca)
        protocol = getattr(writer.transport, "_ssl_protocol")  # noqa: B009  # asyncio does not show it
        assert isinstance(protocol, SSLProtocol)
        assert len(getattr(protocol, "_ssl_buffer")) == BUFFER_BYTES == 16384  # noqa: B009  # as above
        writer.close()
        await writer.wait_closed()


@pytest.mark.slow
def test_the_private_key_leaves_no_file(authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    issued = authority.issue_cert("m1.example")
    client_context(certificate=ClientCertificate(issued.cert_chain_pems[0].bytes(), issued.private_key_pem.bytes()))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ssl.SSLError):
        client_context(certificate=ClientCertificate(b"no", b"certificate"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False], ids=["openssl-has-its-own", "openssl-has-none"])
def test_host_authorities_are_found_outside_the_openssl_default_paths(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    """As with a packaged program on another distribution than that of its build."""
    bundle = tmp_path / "ca-bundle.crt"
    bundle.write_bytes(authority.cert_pem.bytes())
    places = SimpleNamespace(cafile=None, capath=str(tmp_path) if own else None)
    monkeypatch.setattr(ssl, "get_default_verify_paths", lambda: places)
    monkeypatch.setattr(tls, "SYSTEM_BUNDLES", (str(tmp_path / "missing"), str(bundle)))
    der = ssl.PEM_cert_to_DER_cert(authority.cert_pem.bytes().decode())
    assert (der in client_context().get_ca_certs(binary_form=True)) is not own
