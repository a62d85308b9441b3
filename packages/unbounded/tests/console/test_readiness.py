"""The readiness of `unbounded-console`, as the probe of its Pod asks for it."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Final

import aiohttp
import pytest
import trustme

from tests.console.running import console_of
from tests.support.ports import free_port
from tests.support.waiting import eventually
from unbounded.cli.deploy.console_workload import ConsoleWorkload, console_deployment

pytestmark = pytest.mark.slow

SERVER: Final = "https://127.0.0.1:9"  # never asked
_QUICK: Final = """
import sys
from unbounded.kube.serving_certificate import ServingCertificate
ServingCertificate.__init__.__kwdefaults__["renewal_s"] = 0.05
from unbounded.console.main import main
sys.exit(main())
"""


def probed(health: int) -> str:
    """Return the URL that kubelet probes, for another port."""
    [container] = console_deployment(ConsoleWorkload("image"))["spec"]["template"]["spec"]["containers"]
    return f"http://127.0.0.1:{health}{container['readinessProbe']['httpGet']['path']}"


async def readiness(session: aiohttp.ClientSession, url: str) -> tuple[int, str]:
    async with session.get(url) as answer:
        return answer.status, await answer.text()


async def test_a_console_without_its_certificate_is_not_ready_and_names_the_files(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate, key = tmp_path / "tls.crt", tmp_path / "tls.key"
    health = free_port()
    flags = (
        *("--tls-addr", "127.0.0.1:0", "--tls-cert-file", str(certificate), "--tls-private-key-file", str(key)),
        *("--health-addr", f"127.0.0.1:{health}"),
    )
    own = console_of(SERVER, authority.cert_pem.bytes(), tmp_path, *flags, program=("-c", _QUICK))
    async with own as (address, _), aiohttp.ClientSession() as session:
        awaited = f"[-]console: it does not serve yet\n[-]certificate: awaited from {certificate}, {key}\nnot ready"
        assert await readiness(session, probed(health)) == (503, awaited)
        issued = authority.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(key)
        issued.cert_chain_pems[0].write_to_path(certificate)

        async def is_ready() -> bool:
            return await readiness(session, probed(health)) == (200, "[+]console ok\n[+]certificate ok\nok")

        await eventually(is_ready)
        trusted = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
        async with session.get(f"https://{address}/", ssl=trusted) as answer:
            assert "Token of the API server" in await answer.text()


async def test_a_console_on_loopback_is_ready_without_a_certificate(tmp_path: Path) -> None:
    health = free_port()
    flags = ("--plain-addr", "127.0.0.1:0", "--health-addr", f"127.0.0.1:{health}")
    own = console_of(SERVER, trustme.CA().cert_pem.bytes(), tmp_path, *flags)
    async with own as _, aiohttp.ClientSession() as session:

        async def is_ready() -> bool:
            return await readiness(session, probed(health)) == (200, "[+]console ok\nok")

        await eventually(is_ready)
