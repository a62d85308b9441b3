"""The end of the certificates that `unbounded-explain` and `unbounded-console` serve, and its alert."""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import aiohttp
import pytest
import trustme

from tests.monitoring.promtool import needs_promtool
from tests.monitoring.recording import Recording
from tests.monitoring.test_rules import EXPIRY, check_names, of_certificates, run_rules
from tests.support.waiting import eventually

START_S: Final = 60.0
LOOK_S: Final = 0.05  # of the process at its files
MAIN: Final = """
import sys
from unbounded.kube.serving_certificate import ServingCertificate
ServingCertificate.__init__.__kwdefaults__["renewal_s"] = {seconds}
from unbounded.{package} import main
sys.exit(main.main())
"""
PACKAGES: Final = {"console": "console", "explain": "explain_api"}  # by the certificate

of_both = pytest.mark.parametrize("certificate", PACKAGES)


class Process:
    """A running process, and what it prints."""

    def __init__(self, lines: asyncio.StreamReader) -> None:
        self._lines = lines
        self._address = ""

    async def says(self, text: str) -> str:
        """Return the next line with a text."""
        async with asyncio.timeout(START_S):
            async for line in self._lines:
                if text in line.decode():
                    return line.decode()
        raise AssertionError(f"it ended without {text!r}")

    async def scrape(self) -> str:
        """Return its metrics."""
        if not self._address:
            fields = dict(one.partition("=")[::2] for one in (await self.says("serving health and metrics")).split())
            self._address = f"http://127.0.0.1:{fields['port']}/metrics"
        async with aiohttp.ClientSession() as session, session.get(self._address) as answer:
            assert answer.status == 200
            return await answer.text()

    async def expiry(self, certificate: str) -> float | None:
        """Return the sample of a certificate; None where there is none."""
        prefix = f'{EXPIRY}{{certificate="{certificate}"}} '
        found = [line.removeprefix(prefix) for line in (await self.scrape()).splitlines() if line.startswith(prefix)]
        return float(found[0]) if found else None

    async def expires(self, certificate: str, at: datetime) -> None:
        """Wait until a certificate expires at a time."""

        async def it_does() -> bool:
            return await self.expiry(certificate) == at.timestamp()

        await eventually(it_does)


@asynccontextmanager
async def process(certificate: str, files: tuple[Path, Path], authority: Path) -> AsyncIterator[Process]:
    """Run the process of a certificate inside of the context."""
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", MAIN.format(seconds=LOOK_S, package=PACKAGES[certificate])),
        *("--plain-addr", "0", "--tls-addr", "127.0.0.1:0"),
        *("--health-addr", "127.0.0.1:0", "--log-format", "text"),
        *("--tls-cert-file", str(files[0]), "--tls-private-key-file", str(files[1])),
        *("--api-server", "https://127.0.0.1:9", "--api-server-ca", str(authority)),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=STDOUT,
    )
    assert started.stdout is not None
    try:
        yield Process(started.stdout)
    finally:
        started.terminate()
        await started.wait()


@pytest.mark.slow
@of_both
@needs_promtool
async def test_the_alert_follows_the_certificate_that_is_served(certificate: str, tmp_path: Path) -> None:
    authority, now = trustme.CA(), datetime.now(UTC).replace(microsecond=0)
    ca, files = tmp_path / "ca.crt", (tmp_path / "tls.crt", tmp_path / "tls.key")
    authority.cert_pem.write_to_path(ca)
    ends = [now + timedelta(days=days) for days in (5, 90)]
    first, second = (authority.issue_cert("127.0.0.1", not_after=at) for at in ends)
    async with process(certificate, files, ca) as it:
        assert await it.expiry(certificate) is None
        first.private_key_pem.write_to_path(files[1])
        first.private_key_and_cert_chain_pem.write_to_path(files[0])
        await it.expires(certificate, ends[0])
        second.cert_chain_pems[0].write_to_path(files[0])
        await it.says("cannot use the certificate")  # as its key is not there yet
        assert await it.expiry(certificate) == ends[0].timestamp()
        second.private_key_pem.write_to_path(files[1])
        await it.expires(certificate, ends[1])
        recording = Recording.of(await it.scrape())
    check_names(recording)
    await asyncio.to_thread(run_rules, tmp_path, of_certificates(recording, certificate, "target-0"), every="1d")
