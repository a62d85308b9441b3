"""A recorded BMC and its replay by the lab give metalman's client the same answers."""

from __future__ import annotations

import argparse
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from tests.support.sushy import PASSWORD, USERNAME, sushy
from unbounded.metalman.bmc_certification.certify import Certification, certify
from unbounded.metalman.bmc_certification.grades import CheckName, CheckResult, Verdict
from unbounded.metalman.redfish.bmc_interface import (
    BmcAccount,
    BmcPowerState,
    BootEnabled,
    BootOverride,
    BootTarget,
    ResetType,
    SystemState,
)
from unbounded.metalman.redfish.inventory_reader import Inventory
from unbounded.metalman.redfish.pool import BmcPool
from unbounded_lab.bmc.__main__ import add_arguments
from unbounded_lab.bmc.fleet import start_fleet
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.bmc.replay import BmcRecording, load_recording

PROFILES = (
    "sends-events",
    "no-session-service",
    "no-allowable-values+weak-etags",
    "allowable-values-in-action-info-only",
)


def account(bmc: LabBmc, device_id: str = "1") -> BmcAccount:
    return BmcAccount(bmc.url, bmc.username, bmc.password, device_id, cert_fingerprint=bmc.fingerprint)


async def recorded(access: BmcAccount, folder: Path, *, redact: bool) -> tuple[Certification, BmcRecording]:
    found = await certify(access, version="0", day=date(2026, 11, 29), redact=redact)
    file = folder / "bmc.json"
    file.write_text(found.profile)
    return found, load_recording(file)


async def answers(access: BmcAccount) -> tuple[SystemState, Inventory]:
    """Return the state without the value of its ETag, which no client interprets, and the inventory."""
    async with BmcPool() as pool:
        bmc = pool.bmc(access)
        state, inventory = await bmc.system(), await bmc.inventory(lambda: True)
        return replace(state, etag=state.etag and "some"), inventory


def untimed(results: tuple[CheckResult, ...]) -> list[CheckResult]:
    return [replace(result, seconds=0.0) for result in results]


@pytest.mark.parametrize("profile", PROFILES)
async def test_the_client_gets_the_same_answers(profile: str, tmp_path: Path) -> None:
    async with LabBmc(profile=profile) as bmc:
        expected = await answers(account(bmc))
        found, recording = await recorded(account(bmc), tmp_path, redact=False)
    async with LabBmc(recording=recording) as replay:
        assert await answers(account(replay)) == expected
        again, _ = await recorded(account(replay), tmp_path, redact=False)
    assert untimed(again.results) == untimed(found.results)


async def test_a_redacted_recording_has_the_same_results(tmp_path: Path) -> None:
    async with LabBmc() as bmc:
        found, recording = await recorded(account(bmc), tmp_path, redact=True)
        identities = (bmc.identity.uuid, bmc.identity.system_uuid(0), bmc.identity.mac(0))
    async with LabBmc("replay-1", seed=7, recording=recording) as replay:
        again, _ = await recorded(account(replay), tmp_path, redact=False)
        state, inventory = await answers(account(replay))
    assert untimed(again.results) == untimed(found.results)
    shown = repr((state, inventory)).lower()
    assert [each for each in identities if each in shown] == []
    assert len({nic.mac for nic in inventory.facts.nics}) == 2


async def test_a_replay_can_be_switched_and_booted(tmp_path: Path) -> None:
    async with LabBmc() as bmc:
        _, recording = await recorded(account(bmc), tmp_path, redact=True)
    async with LabBmc(recording=recording) as replay, BmcPool() as pool:
        system = pool.bmc(account(replay))
        await system.reset(ResetType.FORCE_OFF)
        assert (await system.system()).power is BmcPowerState.OFF
        desired = BootOverride(BootEnabled.ONCE, BootTarget.PXE)
        assert await system.set_boot_override(desired) == replace(desired, mode="UEFI")
        assert replay.host().boot.source == "Pxe"


async def test_a_fleet_replays_the_file_of_the_flag(tmp_path: Path) -> None:
    async with LabBmc() as bmc:
        await bmc.set_faults(systems=["node-7"])
        await recorded(account(bmc, "node-7"), tmp_path, redact=True)
    arguments = argparse.ArgumentParser()
    add_arguments(arguments)
    file = arguments.parse_args(["--recording", str(tmp_path / "bmc.json")]).recording
    async with start_fleet(2, recording=file) as fleet:
        assert [(each.device_ids, each.username) for each in fleet] == [(("node-7",), "user-1")] * 2
        async with BmcPool() as pool:
            own = fleet[1]
            pin = own.fingerprint
            access = BmcAccount(own.url, own.username, own.password, "node-7", cert_fingerprint=pin)
            assert (await pool.bmc(access).system()).power is BmcPowerState.ON


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{", "is no profile"),
        ('{"format": "unbounded-bmc-profile/v1"}', "missing required field"),
        ('{"format": "other/v9", "login": "basic", "username": "u", "openRoot": true, "resources": {}}', "other/v9"),
        (
            '{"format": "unbounded-bmc-profile/v1", "login": "basic", "username": "u", "openRoot": true,'
            ' "resources": {"/redfish/v1": {"status": 200}}}',
            "no system",
        ),
    ],
)
def test_another_file_is_no_recording(text: str, word: str, tmp_path: Path) -> None:
    file = tmp_path / "bmc.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=word):
        load_recording(file)


@pytest.mark.slow
async def test_a_server_that_others_wrote_is_replayed(tmp_path: Path) -> None:
    async with sushy(tmp_path) as server:
        access = BmcAccount(server.url, USERNAME, PASSWORD, server.device_ids[0], ca_bundle=server.ca_bundle)
        expected = await answers(access)
        found, recording = await recorded(access, tmp_path, redact=False)
    async with LabBmc(recording=recording) as replay:
        own = account(replay, server.device_ids[0])
        state, inventory = await answers(own)
        again, _ = await recorded(own, tmp_path, redact=False)
    assert (state, inventory.facts, list(inventory.failed)) == (
        expected[0],
        expected[1].facts,
        list(expected[1].failed),
    )
    assert untimed(again.results) == untimed(found.results)
    assert {result.name: result.verdict for result in again.results}[CheckName.SESSIONS] is Verdict.NOT_OFFERED
