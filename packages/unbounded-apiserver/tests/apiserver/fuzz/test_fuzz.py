"""Thousands of requests that are wrong somewhere, over TLS, against a server in a process of its own."""

from __future__ import annotations

import base64
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.apiserver.fuzz.campaign import Campaign, Findings
from tests.apiserver.support import admin_context
from tests.support.server_process import ServerProcess, server_process
from unbounded.kube.tls import client_context

GROWTH_MIB = 96  # the history of changes alone may take 32 MiB of bodies
SLOWEST_S = 10.0
LOG_LINES = 60


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with server_process(tmp_path / "data") as running:
        yield running


def campaign(server: ServerProcess, seed: int) -> Campaign:
    cluster = yaml.safe_load(server.kubeconfig.read_text())["clusters"][0]["cluster"]
    nobody: ssl.SSLContext = client_context(ca=base64.b64decode(cluster["certificate-authority-data"]))
    return Campaign(cluster["server"], admin_context(server.kubeconfig), nobody, seed)


def check(server: ServerProcess, found: Findings, before_mib: float) -> None:
    assert not found.faults, f"{len(found.faults)} faults; the first:\n" + "\n".join(found.faults[:5])
    seconds, sent = found.slow[0]
    assert seconds < SLOWEST_S, f"{seconds:.1f} s for {sent.family}: {sent.data[:1000]!r}"
    grown = server.resident_mib() - before_mib
    assert grown < GROWTH_MIB, f"grew by {grown:.0f} MiB"
    log = server.log()
    assert "a request failed" not in log
    assert "Traceback" not in log
    assert log.count("\n") < LOG_LINES, log[-3000:]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_thousands_of_bad_requests_do_no_harm(server: ServerProcess) -> None:
    before = server.resident_mib()
    check(server, campaign(server, seed=1).run(3_000), before)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_a_hundred_thousand_bad_requests_do_no_harm(server: ServerProcess) -> None:
    before = server.resident_mib()
    check(server, campaign(server, seed=2).run(100_000), before)
