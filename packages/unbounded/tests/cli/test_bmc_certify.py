"""`bmc certify` against the lab's BMC: page, profile, exit statuses, and what reaches the BMC."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from unbounded.cli.bmc_certify import GRADED_F, NO_REDFISH, REFUSED, UNTRUSTED
from unbounded.cli.plugin.command import DONE, FAILED, USAGE, CliInvocation
from unbounded.cli.plugin.main import run_command
from unbounded.cli.plugin.parsing import commands, parse
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.bmc.power import HostBootOverride, OverrideEnabled

CHANGES = ("POST", "PATCH", "DELETE", "PUT")


@dataclass(frozen=True)
class Ran:
    status: int
    out: str
    err: str


async def certify(*words: str, environ: Mapping[str, str] | None = None) -> Ran:
    command, args = parse(commands(), ["bmc", "certify", *words], program="unbounded", others={})
    out, err = io.StringIO(), io.StringIO()
    invocation = CliInvocation(args, environ or {}, out, err, io.StringIO(), colour=False, terminal=False)
    return Ran(await run_command(command, invocation), out.getvalue(), err.getvalue())


async def certify_lab(bmc: LabBmc, *words: str) -> Ran:
    known = ("--username", bmc.username, "--fingerprint", bmc.fingerprint)
    return await certify(bmc.url, *known, *words, environ={"UNBOUNDED_BMC_PASSWORD": bmc.password})


def results(page: str) -> dict[str, str]:
    """Return the results by their checks."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in page.splitlines() if "|" in line]
    return {row[0]: row[1] for row in rows if len(row) == 5}


def identities(bmc: LabBmc) -> list[str]:
    own = bmc.identity
    macs = [own.mac(0), own.mac(128), own.mac(255)]
    return [bmc.password, own.uuid, own.system_uuid(0), own.name, *macs, *(mac.replace(":", "") for mac in macs)]


async def test_a_bmc_without_faults_is_graded_by_reads_alone(tmp_path: Path) -> None:
    page, profile = tmp_path / "page.md", tmp_path / "bmc.json"
    async with LabBmc(profile="sends-events") as bmc:
        ran = await certify_lab(bmc, "--output", str(page), "--profile", str(profile))
        changes = [(each.method, each.path) for each in bmc.bmc.journal if each.method in CHANGES]
        assert (ran.status, ran.err) == (DONE, "")
        assert ran.out.startswith("Grade ")
        found = results(page.read_text())
        for name in ("system", "reset", "boot-pxe", "disks", "nics", "event-stream", "manager-reset", "account"):
            assert found[name] == "works", name
        assert found["boot-override-write"] == "not tested"
        sessions = "/redfish/v1/SessionService/Sessions"
        assert [(method, path.startswith(sessions)) for method, path in changes] == [("POST", True), ("DELETE", True)]
        written = page.read_text() + profile.read_text() + ran.out
        assert [each for each in identities(bmc) if each in written] == []


async def test_without_redaction_only_credentials_are_left_out(tmp_path: Path) -> None:
    profile = tmp_path / "bmc.json"
    async with LabBmc() as bmc:
        assert (await certify_lab(bmc, "--profile", str(profile), "--no-redact")).status == DONE
        written = json.loads(profile.read_text())
        system = written["resources"]["/redfish/v1/Systems/1"]["body"]
        assert (system["UUID"], system["HostName"]) == (bmc.identity.system_uuid(0), bmc.identity.name)
        assert bmc.password not in profile.read_text()


@pytest.mark.parametrize("enabled", [OverrideEnabled.DISABLED, OverrideEnabled.CONTINUOUS])
async def test_with_writes_the_override_is_restored_and_the_power_untouched(enabled: OverrideEnabled) -> None:
    before = HostBootOverride(enabled, "None" if enabled is OverrideEnabled.DISABLED else "Hdd")
    async with LabBmc() as bmc:
        bmc.host().boot = before
        ran = await certify_lab(bmc, "--allow-writes")
        assert results(ran.out)["boot-override-write"] == "works", ran.out
        assert (bmc.host().boot, bmc.history()) == (before, [])


async def test_an_interrupted_write_is_restored() -> None:
    async with LabBmc() as bmc:
        before = bmc.host().boot
        running = asyncio.create_task(certify_lab(bmc, "--allow-writes"))
        async with asyncio.timeout(30):
            while bmc.host().boot == before:  # noqa: ASYNC110 (no event of the lab says it)
                await asyncio.sleep(0)
        running.cancel()  # as Ctrl-C does
        with pytest.raises(asyncio.CancelledError):
            await running
        assert bmc.host().boot == before


@pytest.mark.parametrize(("override", "result"), [("refused", "not offered"), ("dropped", "deviates")])
async def test_an_override_that_cannot_be_written_is_found(override: str, result: str) -> None:
    async with LabBmc() as bmc:
        await bmc.set_faults(override=override)
        assert results((await certify_lab(bmc, "--allow-writes")).out)["boot-override-write"] == result


@pytest.mark.parametrize(
    ("profile", "check", "result"),
    [
        ("no-session-service", "sessions", "not offered"),
        ("no-allowable-values", "reset", "deviates"),
        ("no-graceful-shutdown", "graceful-shutdown", "deviates"),
        ("ideal", "serial-console", "not offered"),
        ("serial-console", "serial-console", "works"),
        ("serial-console-disabled", "serial-console", "not offered"),
    ],
)
async def test_a_deviation_of_the_lab_is_a_result(profile: str, check: str, result: str) -> None:
    async with LabBmc(profile=profile) as bmc:
        assert results((await certify_lab(bmc)).out)[check] == result


async def test_a_bmc_without_reset_types_for_off_is_graded_f() -> None:
    async with LabBmc() as bmc:
        await bmc.set_faults(reset_types=["On", "GracefulShutdown"])
        ran = await certify_lab(bmc)
        assert (ran.status, results(ran.out)["reset"]) == (GRADED_F, "not offered")


async def test_a_wrong_password_is_offered_once(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("wrong\n")
    async with LabBmc() as bmc:
        known = ("--username", bmc.username, "--insecure", "--password-file", str(file))
        ran = await certify(bmc.url, *known)
        assert (ran.status, ran.out, bmc.bmc.access.refused_logins) == (REFUSED, "", 1)
        assert "rejected the password" in ran.err
        assert "wrong" not in ran.err


async def test_a_certificate_that_is_not_trusted_sees_no_password() -> None:
    async with LabBmc() as bmc:
        words = ("--username", bmc.username)
        environ = {"UNBOUNDED_BMC_PASSWORD": bmc.password}
        unknown = await certify(bmc.url, *words, environ=environ)
        other = await certify(bmc.url, *words, "--fingerprint", "00" * 32, environ=environ)
        assert (unknown.status, other.status, bmc.bmc.requests) == (UNTRUSTED, UNTRUSTED, 0)
        assert "--fingerprint" in unknown.err
        assert bmc.fingerprint in other.err


async def test_a_server_without_redfish_is_named_before_a_log_in() -> None:
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        environ = {"UNBOUNDED_BMC_PASSWORD": "secret-1"}
        ran = await certify(f"http://127.0.0.1:{port}", "--username", "u", "--insecure", environ=environ)
    assert ran.status == NO_REDFISH
    assert "no Redfish service" in ran.err
    assert [head.split(b"\r\n")[0] for head in heads] == [b"GET /redfish/v1/ HTTP/1.1"]


async def test_several_systems_need_a_name() -> None:
    async with LabBmc(profile="several-systems") as bmc:
        ran = await certify_lab(bmc)
        assert ran.status == USAGE
        assert all(word in ran.err for word in (*bmc.device_ids, "--system"))
        assert (await certify_lab(bmc, "--system", bmc.device_ids[1])).status == DONE


@pytest.mark.parametrize(
    ("url", "status", "word"),
    [
        ("10.0.0.5", USAGE, "https://HOST[:PORT]"),
        ("https://admin:secret-1@10.0.0.5", USAGE, "without a user name"),
        ("https://10.0.0.5:99999", USAGE, "https://HOST[:PORT]"),
        ("http://10.0.0.5", USAGE, "--insecure"),
        ("https://127.0.0.1:1", FAILED, "connection refused"),
    ],
)
async def test_a_wrong_url_is_named_with_a_right_one(url: str, status: int, word: str) -> None:
    ran = await certify(url, "--username", "u", environ={"UNBOUNDED_BMC_PASSWORD": "secret-1"})
    assert ran.status == status
    assert word in ran.err
    assert "secret-1" not in ran.err


@pytest.mark.parametrize(
    ("words", "word"),
    [
        ((), "--password-file"),
        (("--password-file", "/nowhere/password"), "No such file"),
        (("--fingerprint", "abc"), "64 hexadecimal digits"),
        (("--password-file", "/dev/null"), "empty"),
    ],
)
async def test_wrong_arguments_are_rejected_before_a_request(words: tuple[str, ...], word: str) -> None:
    ran = await certify("https://127.0.0.1:1", "--username", "u", *words)
    assert ran.status == USAGE
    assert word in ran.err


async def test_a_file_that_cannot_be_written_is_rejected_before_a_request() -> None:
    async with LabBmc() as bmc:
        ran = await certify_lab(bmc, "--output", "/nowhere/page.md")
        assert (ran.status, bmc.bmc.requests) == (USAGE, 0)
        assert "--output /nowhere/page.md" in ran.err
