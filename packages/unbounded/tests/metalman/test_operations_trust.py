"""Passwords and certificates during host operations: offered once, corrected at once, and never to a stranger."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final

import pytest

from tests.metalman.support.site import Cluster, metalman
from tests.metalman.support.swift_time import run_swiftly
from unbounded.api.core import SECRETS
from unbounded.api.machine import MACHINES
from unbounded.api.names import NAMESPACE
from unbounded.api.operation import MachineOperation
from unbounded.metalman import power
from unbounded_lab.bmc.faults import BmcFaults
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.machines import secret_name

SLOWLY_OFF_S: Final = 60.0  # time to turn something while a host shuts down
NOTICED_S: Final = 10.0  # a poll, its answer, and the reading of a Secret


def run(scene: Coroutine[Any, Any, None]) -> None:
    run_swiftly(scene)


def result(operation: MachineOperation) -> tuple[str | None, str | None]:
    return operation.status.phase, operation.status.reason


def rotate(bmc: LabBmc, password: str) -> None:
    """Give the account another password; who was logged in is not any more."""
    bmc.bmc.access.change_password(password)
    bmc.bmc.access.forget_sessions()


async def refused_version(cluster: Cluster, machine: str) -> str | None:
    redfish = (await cluster.machine(machine)).status.redfish
    return redfish.refused_secret_version if redfish else None


# Secrets


@pytest.mark.slow
def test_missing_secret_is_named_without_a_request_to_the_bmc() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            await cluster.api.delete(SECRETS, secret_name(bmc), namespace=NAMESPACE)
            operation = await cluster.done("HostReboot", machine)
            assert result(operation) == ("Failed", "CredentialsMissing")
            assert f"Secret {NAMESPACE}/{secret_name(bmc)}" in (operation.status.message or "")
            assert bmc.bmc.requests == 0

    run(scene())


def test_a_key_that_does_not_exist_is_named_with_those_that_do() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            reference = {"name": secret_name(bmc), "namespace": NAMESPACE, "key": "pass"}
            (machine,) = await cluster.add(bmc, passwordRef=reference)
            operation = await cluster.done("HostReboot", machine)
            assert result(operation) == ("Failed", "CredentialsMissing")
            assert "has no key 'pass' (passwordRef.key); its keys: password" in (operation.status.message or "")
            assert bmc.bmc.requests == 0

    run(scene())


@pytest.mark.slow
def test_a_wrong_password_is_offered_once_by_all_operations_and_all_processes() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(profile="locks-out") as bmc:
            (machine,) = await cluster.add(bmc)
            version = await cluster.set_password(bmc, "wrong")
            async with metalman(cluster):
                first = await cluster.done("HostReboot", machine, name="first")
                assert result(first) == ("Failed", "CredentialsRefused")
                assert f"{bmc.url} rejected the password of 'admin'" in (first.status.message or "")
                assert await refused_version(cluster, machine) == version
            asked = bmc.bmc.requests
            async with metalman(cluster):
                for kind in ("HostReboot", "HostPowerOff", "HostPowerOn"):
                    operation = await cluster.done(kind, machine)
                    assert result(operation) == ("Failed", "CredentialsRefused")
                    assert f"Secret {NAMESPACE}/{secret_name(bmc)}" in (operation.status.message or "")
            assert bmc.bmc.requests == asked
            assert bmc.bmc.access.refused_logins == 1

    run(scene())


@pytest.mark.slow
@pytest.mark.parametrize("pause_s", [0.0, 3.0, 60.0])
def test_a_corrected_secret_serves_the_next_operation(pause_s: float) -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(profile="locks-out") as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            await cluster.set_password(bmc, "wrong")
            for name in ("first", "second"):  # the second one reads the Secret, and remembers it
                await cluster.done("HostReboot", machine, name=name)
            await cluster.set_password(bmc, bmc.password)
            await asyncio.sleep(pause_s)
            assert result(await cluster.done("HostReboot", machine, name="third")) == ("Complete", "Succeeded")
            assert bmc.bmc.access.refused_logins == 1

    run(scene())


@pytest.mark.slow
def test_two_machines_behind_one_bmc_do_not_offer_the_wrong_password_twice() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(profile="several-systems+locks-out") as bmc, metalman(cluster):
            machines = await cluster.add(bmc)
            await cluster.set_password(bmc, "wrong")
            names = [await cluster.ask("HostReboot", machine) for machine in machines]
            for name in names:
                assert result(await cluster.ended(name)) == ("Failed", "CredentialsRefused")
            assert bmc.bmc.access.refused_logins == 1

    run(scene())


@pytest.mark.slow
@pytest.mark.parametrize("after_s", [0.0, 3.0])  # before the request of the shutdown, and after it
def test_password_rotated_during_a_reboot_blocks_it_until_the_secret_changes(after_s: float) -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(profile="locks-out", shutdown_s=SLOWLY_OFF_S) as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            name = await cluster.ask("HostReboot", machine)
            await cluster.in_stage(name, power.SHUTTING_DOWN)
            await asyncio.sleep(after_s)
            rotate(bmc, "rotated")
            waiting = await cluster.waiting_for(name, "CredentialsRefused", within_s=NOTICED_S)
            assert bmc.url in (waiting.status.message or "")
            await asyncio.sleep(20)
            await cluster.set_password(bmc, "rotated")
            await cluster.waiting_for(name, "InProgress", within_s=NOTICED_S)
            assert result(await cluster.ended(name)) == ("Complete", "Succeeded")
            assert [event.detail for event in bmc.history() if event.what == "pressed"] == ["GracefulShutdown", "On"]
            assert bmc.bmc.access.refused_logins == 1

    run(scene())


@pytest.mark.slow
def test_a_reboot_whose_password_nobody_corrects_ends_with_that_reason() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(shutdown_s=SLOWLY_OFF_S) as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            name = await cluster.ask("HostReboot", machine)
            await cluster.in_stage(name, power.SHUTTING_DOWN)
            rotate(bmc, "rotated")
            assert result(await cluster.ended(name)) == ("Failed", "CredentialsRefused")
            assert bmc.bmc.access.refused_logins == 1

    run(scene())


@pytest.mark.slow
def test_a_password_and_its_secret_rotated_between_two_operations_fail_neither() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(profile="locks-out") as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            assert result(await cluster.done("HostReboot", machine, name="before")) == ("Complete", "Succeeded")
            rotate(bmc, "rotated")
            await cluster.set_password(bmc, "rotated")
            assert result(await cluster.done("HostReboot", machine, name="after")) == ("Complete", "Succeeded")
            assert bmc.bmc.access.refused_logins <= 1

    run(scene())


# Certificates


@pytest.mark.slow
def test_the_certificate_is_pinned_before_the_password_is_sent() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            assert result(await cluster.done("HostReboot", machine)) == ("Complete", "Succeeded")
            redfish = (await cluster.machine(machine)).status.redfish
            assert redfish is not None
            assert redfish.cert_fingerprint == bmc.fingerprint
            pinned_at = next(
                write.at
                for write in cluster.written
                if write.kind == "Machine" and write.new.get("status", {}).get("redfish", {}).get("certFingerprint")
            )
            first = bmc.bmc.journal[0]
            loop_to_lab_s = bmc.clock.now() - asyncio.get_running_loop().time()
            assert (first.method, first.path.rpartition("/")[2]) == ("POST", "Sessions")
            assert pinned_at + loop_to_lab_s < first.at

    run(scene())


async def _stranger(cluster: Cluster, bmc: LabBmc) -> str:
    """Start a reboot, and put another certificate before the BMC in the middle of it; gives the operation's name."""
    (machine,) = await cluster.add(bmc)
    name = await cluster.ask("HostReboot", machine)
    await cluster.in_stage(name, power.SHUTTING_DOWN)
    await bmc.set_faults(certificate=1)
    return name


def stubborn() -> LabBmc:
    return LabBmc(faults=BmcFaults(closes=True), shutdown_s=SLOWLY_OFF_S)


@pytest.mark.slow
def test_certificate_change_during_an_operation_fails_it_without_a_request() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with stubborn() as bmc, metalman(cluster):
            name = await _stranger(cluster, bmc)
            asked = bmc.bmc.requests
            operation = await cluster.ended(name)
            assert result(operation) == ("Failed", "CertificateChanged")
            message = operation.status.message or ""
            assert bmc.fingerprint in message
            assert "no password was sent" in message
            assert "clear status.redfish.certFingerprint of Machine lab-01" in message
            assert bmc.bmc.requests == asked

    run(scene())


@pytest.mark.slow
def test_a_pin_that_is_cleared_in_time_lets_the_reboot_go_on() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with stubborn() as bmc, metalman(cluster):
            name = await _stranger(cluster, bmc)
            await cluster.waiting_for(name, "CertificateChanged", within_s=NOTICED_S)
            cleared = {"status": {"redfish": {"certFingerprint": None}}}
            await cluster.api.patch(MACHINES, "lab-01", cleared, subresource="status")
            assert result(await cluster.ended(name)) == ("Complete", "Succeeded")
            redfish = (await cluster.machine("lab-01")).status.redfish
            assert redfish is not None
            assert redfish.cert_fingerprint == bmc.fingerprint

    run(scene())


def bundle(bmc: LabBmc, generation: int) -> str:
    """The BMC's own certificate of a generation, without its key."""
    pem = bmc.identity.certificate(generation).pem.decode()
    return pem[: pem.index("-----END CERTIFICATE-----")] + "-----END CERTIFICATE-----\n"


@pytest.mark.parametrize(
    ("generation", "expected"), [(0, ("Complete", "Succeeded")), (1, ("Failed", "CertificateUntrusted"))]
)
def test_a_ca_bundle_decides_instead_of_a_pin(generation: int, expected: tuple[str, str]) -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc, caBundle=bundle(bmc, generation))
            assert result(await cluster.done("HostReboot", machine)) == expected
            redfish = (await cluster.machine(machine)).status.redfish
            assert redfish is None or redfish.cert_fingerprint is None
            assert (bmc.bmc.requests > 0) is (generation == 0)

    run(scene())


# Addresses


@pytest.mark.parametrize("url", ["https://127.0.0.1:99999", "https://[::1"])
def test_an_address_that_cannot_be_used_is_said_at_once_and_named(url: str) -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc, url=url)
            operation = await cluster.ended(await cluster.ask("HostReboot", machine), within_s=NOTICED_S)
            assert result(operation) == ("Failed", "AddressInvalid")
            assert "spec.pxe.redfish.url is invalid: expected https://" in (operation.status.message or "")

    run(scene())


def test_a_ca_bundle_that_is_none_is_said_at_once_and_named() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc, caBundle="my certificate")
            operation = await cluster.ended(await cluster.ask("HostReboot", machine), within_s=NOTICED_S)
            assert result(operation) == ("Failed", "CertificateUntrusted")
            assert "correct spec.pxe.redfish.caBundle" in (operation.status.message or "")
            assert bmc.bmc.requests == 0

    run(scene())
