"""The audit log: the users, their requests, and the results."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.apiserver.support import Client, client_identity, running
from unbounded_apiserver.auth import AuthAttributes, User
from unbounded_apiserver.http.audit import AuditEntry, AuditLog

SECRETS = "/api/v1/namespaces/default/secrets"
ALICE = User("alice")


def noted(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "audit.log").read_text().splitlines()]


@pytest.mark.slow
async def test_writes_refusals_and_reads_of_secrets_are_noted_and_nothing_secret(tmp_path: Path) -> None:
    async with running(tmp_path) as (server, admin):
        await admin.create(SECRETS, {"metadata": {"name": "s"}, "stringData": {"password": "hunter2-hunter2"}})
        await admin.get(f"{SECRETS}/s")
        await admin.get("/api/v1/nodes")
        await admin.create("/api/v1/namespaces/default/serviceaccounts/default/token", {"spec": {}})
        await admin.ask("GET", "/api/v1/nodes", headers={"Impersonate-User": "carol"})
        await admin.ask("DELETE", f"{SECRETS}/none")
        connector = aiohttp.TCPConnector(ssl=client_identity(server.data_dir, "alice"))
        async with aiohttp.ClientSession(connector=connector) as session:
            await Client(session, server.url).ask("GET", "/api/v1/pods")
        found = [
            (e["user"]["username"], e["verb"], e["objectRef"]["resource"], e["responseStatus"]["code"])
            for e in noted(tmp_path)
        ]
        assert found == [
            ("unbounded-admin", "create", "secrets", 201),
            ("unbounded-admin", "get", "secrets", 200),
            ("unbounded-admin", "create", "serviceaccounts", 201),
            ("unbounded-admin", "list", "nodes", 403),
            ("unbounded-admin", "delete", "secrets", 404),
            ("alice", "list", "pods", 403),
        ]
        assert noted(tmp_path)[3]["impersonatedUser"]["username"] == "carol"
        text = (tmp_path / "audit.log").read_text()
        assert "hunter2" not in text
        assert "eyJ" not in text  # how tokens begin
        assert (tmp_path / "audit.log").stat().st_mode & 0o077 == 0


def entry(number: int) -> AuditEntry:
    asked = AuthAttributes("create", "", "nodes", name=f"n{number}")
    return AuditEntry("POST", "/api/v1/nodes", ALICE, ALICE, asked, 201, "::1", "test", {})


def test_the_log_does_not_grow_without_bound(tmp_path: Path) -> None:
    audit = AuditLog(tmp_path / "audit.log", lambda: datetime(2026, 1, 1, tzinfo=UTC), limit=2000)
    for number in range(100):
        audit.append(entry(number))
    audit.close()
    audit.append(entry(100))  # too late
    sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
    assert sizes.keys() == {"audit.log", "audit.log.1"}
    assert max(sizes.values()) < 2500
    last = [*(tmp_path / "audit.log.1").read_text().splitlines(), *(tmp_path / "audit.log").read_text().splitlines()]
    names = [json.loads(line)["objectRef"]["name"] for line in last]
    assert names == [f"n{number}" for number in range(100 - len(names), 100)]


def test_a_log_that_cannot_be_written_is_said_once_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("there is no /dev/full")
    audit = AuditLog(full, lambda: datetime(2026, 1, 1, tzinfo=UTC))
    for number in range(3):
        audit.append(entry(number))
    audit.close()
    assert [record.message for record in caplog.records] == ["cannot write the audit log"]
