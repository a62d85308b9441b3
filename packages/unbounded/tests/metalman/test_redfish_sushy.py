"""The client against another project's server: sushy-tools' emulator, over TLS, with basic auth."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.sushy import PASSWORD, USERNAME, Sushy, sushy
from unbounded.api.failures import Rejected
from unbounded.metalman.redfish.bmc_interface import (
    BmcAccount,
    BmcPowerState,
    BootEnabled,
    BootOverride,
    BootTarget,
    CertificateChanged,
    PasswordRejected,
    ResetType,
)
from unbounded.metalman.redfish.pool import BmcPool, PooledBmc

pytestmark = pytest.mark.slow


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Sushy]:
    async with sushy(tmp_path, systems=2) as running:
        yield running


async def access(server: Sushy, pool: BmcPool, **changed: Any) -> BmcAccount:
    pin = await pool.fingerprint(server.url)
    fields: dict[str, Any] = {"url": server.url, "username": USERNAME, "password": PASSWORD, "cert_fingerprint": pin}
    return BmcAccount(**(fields | {"device_id": server.device_ids[0]} | changed))


async def wait_power(bmc: PooledBmc, wanted: BmcPowerState) -> None:
    async with asyncio.timeout(60):
        while (await bmc.system()).power is not wanted:  # noqa: ASYNC110 (the other side is another process)
            await asyncio.sleep(0.2)


async def test_power_changes_affect_only_the_selected_system(server: Sushy, pool: BmcPool) -> None:
    first = pool.bmc(await access(server, pool))
    second = pool.bmc(await access(server, pool, device_id=server.device_ids[1]))
    assert (await first.system()).power is BmcPowerState.OFF
    assert (await first.reset(ResetType.ON)).sent == "On"
    await wait_power(first, BmcPowerState.ON)
    assert (await second.system()).power is BmcPowerState.OFF
    assert (await first.reset(ResetType.GRACEFUL_SHUTDOWN)).sent == "GracefulShutdown"
    await wait_power(first, BmcPowerState.OFF)


async def test_the_boot_override_is_written_and_read_back(server: Sushy, pool: BmcPool) -> None:
    bmc = pool.bmc(await access(server, pool))
    wanted = BootOverride(BootEnabled.CONTINUOUS, BootTarget.PXE)
    assert await bmc.set_boot_override(wanted) == BootOverride("Continuous", "Pxe", "UEFI")
    assert (await bmc.disable_boot_override()).leaves_disk


async def test_a_device_that_is_not_there_is_rejected_with_those_that_are(server: Sushy, pool: BmcPool) -> None:
    with pytest.raises(Rejected, match=server.device_ids[1]):
        await pool.bmc(await access(server, pool, device_id="1")).system()


async def test_a_wrong_password_is_refused_and_not_offered_again(server: Sushy, pool: BmcPool) -> None:
    wrong = await access(server, pool, password="wrong")
    for _ in range(2):
        with pytest.raises(PasswordRejected):
            await pool.bmc(wrong).system()
    assert (await pool.bmc(await access(server, pool)).system()).power is BmcPowerState.OFF


async def test_pins_and_bundles_hold(server: Sushy, pool: BmcPool) -> None:
    with pytest.raises(CertificateChanged):
        await pool.bmc(await access(server, pool, cert_fingerprint="00" * 32)).system()
    bundled = await access(server, pool, cert_fingerprint=None, ca_bundle=server.ca_bundle)
    assert (await pool.bmc(bundled).system()).power is BmcPowerState.OFF


async def test_an_inventory_of_a_server_that_lacks_most_parts_names_the_broken_one(
    server: Sushy, pool: BmcPool
) -> None:
    """The emulator's driver has no processors, no memory and no firmware, and fails for Storage."""
    found = await pool.bmc(await access(server, pool)).inventory(lambda: True)
    assert found.facts.system is not None
    assert (found.facts.system.manufacturer, found.facts.system.uuid) == ("Sushy Emulator", server.device_ids[0])
    assert (list(found.failed), found.cut_short) == (["Storage"], False)
