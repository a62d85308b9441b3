"""Boot overrides that get lost, stay or are refused."""

from __future__ import annotations

import pytest

from tests.lab.misbehaviours.checks import Checks, patched
from tests.lab.wire import PXE_ONCE, SYSTEM, Wire
from unbounded_lab.bmc.power import OverrideEnabled

CHECKS = Checks()


async def boot_source(talk: Wire) -> str:
    """Return the boot source of the host at a reset."""
    await talk.reset("ForceRestart")
    return [event.detail for event in talk.bmc.history() if event.what == "boot"][-1]


@CHECKS.shows
async def boot_override_dropped(talk: Wire) -> None:
    assert (await patched(talk)).status == 200
    assert (await talk.get()).json["Boot"]["BootSourceOverrideEnabled"] == "Disabled"


@CHECKS.shows
async def boot_override_not_followed(talk: Wire) -> None:
    await patched(talk)
    assert (await talk.get()).json["Boot"]["BootSourceOverrideTarget"] == "Pxe"
    assert await boot_source(talk) == "Hdd"


@CHECKS.shows
async def boot_override_refused(talk: Wire) -> None:
    assert (await patched(talk)).status == 405
    assert talk.bmc.host().boot.enabled is OverrideEnabled.DISABLED


@CHECKS.shows
async def boot_override_stays(talk: Wire) -> None:
    assert (await patched(talk)).json["Boot"]["BootSourceOverrideEnabled"] == "Continuous"
    assert [await boot_source(talk) for _ in range(2)] == ["Pxe", "Pxe"]


@CHECKS.shows
async def boot_override_fails_when_off(talk: Wire) -> None:
    assert (await patched(talk)).status == 200
    await talk.reset("ForceOff")
    assert (await patched(talk)).status == 500


@CHECKS.shows
async def no_uefi_http(talk: Wire) -> None:
    listed = (await talk.get()).json["Boot"]["BootSourceOverrideTarget@Redfish.AllowableValues"]
    assert "Pxe" in listed
    assert "UefiHttp" not in listed
    http = {"Boot": {**PXE_ONCE["Boot"], "BootSourceOverrideTarget": "UefiHttp"}}
    answer = await talk.ask("PATCH", SYSTEM, http)
    assert (answer.status, answer.message_id) == (400, "Base.1.18.PropertyValueNotInList")
    assert (await patched(talk)).status == 200


@CHECKS.shows
async def boot_mode_reverts(talk: Wire) -> None:
    assert (await patched(talk)).json["Boot"]["BootSourceOverrideMode"] == "Legacy"
    named = {"Boot": {**PXE_ONCE["Boot"], "BootSourceOverrideMode": "UEFI"}}
    assert (await talk.ask("PATCH", SYSTEM, named)).json["Boot"]["BootSourceOverrideMode"] == "UEFI"


@pytest.mark.parametrize("name", CHECKS)
async def test_it_does_what_it_says(name: str) -> None:
    await CHECKS.show(name)
