"""BMCRotatePassword on a lab BMC: one password of the Secret opens it at each moment, and it is set once."""

from __future__ import annotations

import asyncio
from base64 import b64decode, b64encode
from collections.abc import Coroutine
from typing import Any, Final, Literal

import msgspec
import pytest

from tests.metalman.support.site import Cluster, metalman
from tests.metalman.support.swift_time import run_swiftly
from unbounded.api.core import SECRETS
from unbounded.api.machine import MACHINES
from unbounded.api.names import NAMESPACE
from unbounded.api.operation import MachineOperation
from unbounded.metalman.bmc_access import redfish_of
from unbounded.metalman.password_rotation import (
    EVIDENCE_DISCARDED,
    EVIDENCE_KEPT,
    EVIDENCE_LOGIN,
    EVIDENCE_STORED,
    EVIDENCE_USED,
)
from unbounded_lab import machines as lab_machines
from unbounded_lab.bmc.faults import BmcFaults
from unbounded_lab.bmc.local import LabBmc
from unbounded_lab.machines import PASSWORD_KEY, secret_name

pytestmark = pytest.mark.slow

NEXT: Final = f"{PASSWORD_KEY}-next"
KIND: Final = "BMCRotatePassword"
ENDS: Final = {"ends-sessions": BmcFaults(rotation_ends_sessions=True), "keeps-sessions": BmcFaults()}


def run(scene: Coroutine[Any, Any, None]) -> None:
    run_swiftly(scene)


def result(operation: MachineOperation) -> tuple[str | None, str | None]:
    return operation.status.phase, operation.status.reason


def whats(operation: MachineOperation) -> list[str]:
    return [one.what for one in operation.status.evidence]


def grants(operation: MachineOperation) -> tuple[str, str]:
    """Return the ends of the commands, which are the last lines of the message and nothing else."""
    _words, role, binding = (operation.status.message or "").split("\n")
    assert (role.split()[3:5], binding.split()[3:5]) == (["create", "role"], ["create", "rolebinding"])
    return " ".join(role.split()[6:]), binding.split()[-1]


async def stored(cluster: Cluster, bmc: LabBmc) -> dict[str, str]:
    """Return the passwords in the Secret of a BMC, by key."""
    secret = await cluster.api.get(SECRETS, secret_name(bmc), namespace=NAMESPACE)
    return {key: b64decode(value).decode() for key, value in secret.data.items()}


async def put(cluster: Cluster, bmc: LabBmc, **passwords: str) -> None:
    data = {key.replace("_", "-"): b64encode(value.encode()).decode() for key, value in passwords.items()}
    await cluster.api.patch(SECRETS, secret_name(bmc), {"data": data}, namespace=NAMESPACE)


@pytest.mark.parametrize(
    "faults",
    [
        *(pytest.param(faults, id=name) for name, faults in ENDS.items()),
        pytest.param(BmcFaults(session_service="absent"), id="basic"),
        pytest.param(BmcFaults(rotation="action"), id="action"),
        pytest.param(BmcFaults(password_expired=True), id="expired"),
        pytest.param(BmcFaults(if_match_on_patch="required", etags="weak"), id="if-match"),
        pytest.param(BmcFaults(password_lengths=(20, 40)), id="long"),
    ],
)
def test_a_new_password_is_set_once_and_used_without_a_refused_log_in(faults: BmcFaults) -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(faults=faults) as bmc, metalman(cluster):
            former = bmc.password
            (machine,) = await cluster.add(bmc)
            operation = await cluster.done(KIND, machine)
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            passwords = await stored(cluster, bmc)
            assert passwords == {PASSWORD_KEY: bmc.password}
            assert bmc.password != former
            assert len(bmc.password) == (20 if faults.password_lengths else 16)
            assert bmc.bmc.access.passwords_set == [bmc.password]
            assert bmc.bmc.access.refused_logins == 0
            assert whats(operation) == [EVIDENCE_STORED, EVIDENCE_LOGIN, EVIDENCE_USED]
            reboot = await cluster.done("HostReboot", machine)
            assert result(reboot) == ("Complete", "Succeeded"), reboot.status.message
            assert bmc.bmc.access.refused_logins == 0
            assert not any(bmc.password in str(write.new) for write in cluster.written if write.kind != "Secret")

    run(scene())


@pytest.mark.parametrize("ends_sessions", [True, False])
@pytest.mark.parametrize("after_s", [0.0, 20.0])
def test_a_lost_answer_is_decided_by_a_new_log_in(after_s: float, ends_sessions: bool) -> None:
    async def scene() -> None:
        cluster = Cluster()
        faults = BmcFaults(lost_after=1, rotation_after_s=after_s, rotation_ends_sessions=ends_sessions)
        async with LabBmc(faults=faults) as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            operation = await cluster.done(KIND, machine)
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            assert await stored(cluster, bmc) == {PASSWORD_KEY: bmc.password}
            assert len(bmc.bmc.access.passwords_set) == 1
            assert bmc.bmc.access.refused_logins <= 1

    run(scene())


@pytest.mark.parametrize(
    ("faults", "reason"),
    [
        pytest.param(BmcFaults(lost_before=1), "OutcomeUnknown", id="never-arrived"),
        pytest.param(BmcFaults(rotation="ignored"), "NoEffect", id="ignored"),
        pytest.param(BmcFaults(rotation_after_s=20.0), "NoEffect", id="late"),
    ],
)
def test_without_the_effect_both_passwords_stay_and_the_next_rotation_completes(faults: BmcFaults, reason: str) -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(faults=faults) as bmc, metalman(cluster):
            former = bmc.password
            (machine,) = await cluster.add(bmc)
            operation = await cluster.done(KIND, machine)
            assert result(operation) == ("Failed", reason), operation.status.message
            assert EVIDENCE_KEPT in whats(operation)
            passwords = await stored(cluster, bmc)
            assert passwords.keys() == {PASSWORD_KEY, NEXT}
            assert passwords[PASSWORD_KEY] == bmc.password == former
            refused = bmc.bmc.access.refused_logins
            assert refused <= 1
            await asyncio.sleep(20)
            await bmc.set_faults(rotation="works", lost_before=0, rotation_after_s=0.0)
            again = await cluster.done(KIND, machine, name="again")
            assert result(again) == ("Complete", "Succeeded"), again.status.message
            assert await stored(cluster, bmc) == {PASSWORD_KEY: bmc.password}
            assert bmc.password != former
            assert bmc.bmc.access.refused_logins - refused <= 1

    run(scene())


def test_a_password_that_the_bmc_refuses_is_discarded_and_shown_nowhere() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(faults=BmcFaults(rotation="refused")) as bmc, metalman(cluster):
            former = bmc.password
            (machine,) = await cluster.add(bmc)
            await put(cluster, bmc, password_next="of-a-user-1")
            operation = await cluster.done(KIND, machine)
            assert result(operation) == ("Failed", "NewPasswordRefused"), operation.status.message
            words = "The value '***' for the property Password is not a format that the property can accept."
            assert words in (operation.status.message or "")
            assert EVIDENCE_DISCARDED in whats(operation)
            assert await stored(cluster, bmc) == {PASSWORD_KEY: former}
            assert bmc.bmc.access.passwords_set == []
            assert bmc.bmc.access.refused_logins == 0
            assert not any("of-a-user-1" in str(write.new) for write in cluster.written if write.kind != "Secret")

    run(scene())


def test_a_bmc_without_changeable_password_refuses_with_its_words() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(faults=BmcFaults(rotation="absent")) as bmc, metalman(cluster):
            former = bmc.password
            (machine,) = await cluster.add(bmc)
            operation = await cluster.done(KIND, machine)
            assert result(operation) == ("Failed", "NewPasswordRefused"), operation.status.message
            assert "The property Password is a read-only property" in (operation.status.message or "")
            assert await stored(cluster, bmc) == {PASSWORD_KEY: former}

    run(scene())


def test_a_rotation_that_was_left_after_the_set_is_finished_before_another_begins() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            await put(cluster, bmc, password_next="left-behind-1")
            bmc.bmc.access.change_password("left-behind-1")
            operation = await cluster.done(KIND, machine)
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            assert await stored(cluster, bmc) == {PASSWORD_KEY: bmc.password}
            assert len(bmc.bmc.access.passwords_set) == 1
            assert bmc.password != "left-behind-1"
            assert bmc.bmc.access.refused_logins == 1

    run(scene())


def test_metalman_that_may_not_change_the_secret_says_the_command_and_sets_nothing() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            cluster.read_only.add("Secret")
            operation = await cluster.done(KIND, machine)
            assert result(operation) == ("Failed", "CredentialsReadOnly"), operation.status.message
            assert grants(operation) == (
                f"--verb=get,patch --resource=secrets --resource-name={secret_name(bmc)}",
                "--serviceaccount=unbounded-kube:metalman",
            )
            assert bmc.bmc.access.passwords_set == []

    run(scene())


def test_rights_lost_after_the_set_leave_both_passwords_and_an_open_bmc() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(faults=BmcFaults(rotation_ends_sessions=True)) as bmc:
            (machine,) = await cluster.add(bmc)
            async with metalman(cluster):
                name = await cluster.ask(KIND, machine)
                await cluster.in_stage(name, "SettingPassword")
                cluster.read_only.add("Secret")
                operation = await cluster.ended(name)
                assert result(operation) == ("Failed", "CredentialsReadOnly"), operation.status.message
                assert "the Secret has both passwords" in (operation.status.message or "")
                assert grants(operation)[1] == "--serviceaccount=unbounded-kube:metalman"
                assert bmc.bmc.access.refused_logins == 0
            assert (await stored(cluster, bmc))[NEXT] == bmc.password
            async with metalman(cluster):
                reboot = await cluster.done("HostReboot", machine)
                assert result(reboot) == ("Complete", "Succeeded"), reboot.status.message
                assert bmc.bmc.access.refused_logins == 1

    run(scene())


@pytest.mark.parametrize("after_s", [0.0, 2.0])
def test_a_next_password_that_is_removed_meanwhile_is_stored_again(after_s: float) -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc(faults=BmcFaults(rotation_after_s=1.0)) as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            name = await cluster.ask(KIND, machine)
            await cluster.in_stage(name, "SettingPassword")
            await asyncio.sleep(after_s)
            await cluster.api.patch(SECRETS, secret_name(bmc), {"data": {NEXT: None}}, namespace=NAMESPACE)
            operation = await cluster.ended(name)
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            assert await stored(cluster, bmc) == {PASSWORD_KEY: bmc.password}
            assert bmc.bmc.access.passwords_set == [bmc.password]

    run(scene())


def test_another_secret_meanwhile_waits_for_the_one_whose_password_opens_the_bmc() -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            reference = msgspec.to_builtins(redfish_of(await cluster.machine(machine)).password_ref)
            other = {"metadata": {"name": "other"}, "data": {PASSWORD_KEY: b64encode(b"other").decode()}}
            await cluster.api.create(SECRETS, other, namespace=NAMESPACE)
            name = await cluster.ask(KIND, machine)
            await cluster.in_stage(name, "SettingPassword")
            await name_secret(cluster, machine, {**reference, "name": "other"})
            await asyncio.sleep(30.0)
            assert f"is in key {PASSWORD_KEY} of Secret {NAMESPACE}/{secret_name(bmc)}" in (
                (await cluster.operation(name)).status.message or ""
            )
            assert bmc.password in (await stored(cluster, bmc)).values()
            await name_secret(cluster, machine, reference)
            operation = await cluster.ended(name)
            assert result(operation) == ("Complete", "Succeeded"), operation.status.message
            assert await stored(cluster, bmc) == {PASSWORD_KEY: bmc.password}

    run(scene())


async def name_secret(cluster: Cluster, machine: str, reference: dict[str, Any]) -> None:
    change = {"spec": {"pxe": {"redfish": {"passwordRef": reference}}}}
    await cluster.api.patch(MACHINES, machine, change)


@pytest.mark.parametrize("events", ["absent", "works"])
def test_readers_of_the_power_have_no_log_in_rejected_meanwhile(events: Literal["absent", "works"]) -> None:
    async def scene() -> None:
        cluster = Cluster()
        faults = BmcFaults(rotation_ends_sessions=True, systems=("1", "2"), event_service=events)
        async with LabBmc(faults=faults) as bmc, metalman(cluster, reads_per_s=5.0, events=events == "works"):
            machine, other = await cluster.add(bmc)
            await asyncio.sleep(120)
            for number in range(3):
                operation = await cluster.done(KIND, machine, name=f"rotation-{number}")
                assert result(operation) == ("Complete", "Succeeded"), operation.status.message
                await asyncio.sleep(120)
            assert len(bmc.bmc.access.passwords_set) == 3
            assert bmc.bmc.access.refused_logins == 0
            assert (await cluster.machine(other)).status.power is not None

    run(scene())


@pytest.mark.parametrize(("field", "value"), [("username", "other"), ("passwordRef", None)])
def test_another_machine_that_would_be_left_with_a_wrong_password_refuses_the_rotation(field: str, value: Any) -> None:
    async def scene() -> None:
        cluster = Cluster()
        async with LabBmc() as bmc, metalman(cluster):
            (machine,) = await cluster.add(bmc)
            manifest = next(lab_machines.machines(bmc))
            manifest["metadata"]["name"] = "twin"
            redfish = manifest["spec"]["pxe"]["redfish"]
            redfish[field] = value or {**redfish["passwordRef"], "name": "copy"}
            await cluster.api.create(MACHINES, manifest)
            operation = await cluster.done(KIND, machine)
            assert result(operation) == ("Failed", "CredentialsShared"), operation.status.message
            assert "Machine twin has the password of" in (operation.status.message or "")
            assert bmc.bmc.access.passwords_set == []

    run(scene())
