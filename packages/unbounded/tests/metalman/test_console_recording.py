"""Kept console output from end to end: boots that fail or succeed, with lab BMCs whose consoles misbehave."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.metalman.support.serial import LIMIT_S, OURS, PROMPT, SerialWorld, serial_world
from tests.support.waiting import eventually
from unbounded.api.core import SECRETS as CORE_SECRETS
from unbounded.api.machine import MACHINES
from unbounded.api.operation import MachineOperation, MachineOperationSpec, OperationKind
from unbounded.kube.api import Forbidden
from unbounded.metalman.console_recording import (
    KEPT_BYTES,
    MARGIN_BYTES,
    LastOutput,
    console_secret,
    kept_console_name,
)
from unbounded_lab.bmc import FOR_EVER, BmcFaults, HostPower

pytestmark = pytest.mark.slow

SECRETS: Final = "/api/v1/namespaces/unbounded-kube/secrets"
KEPT: Final = f"{SECRETS}/console-lab-01"
TOKEN: Final = "abc123.0123456789abcdef"
FAILING: Final = {"deaf_resets": FOR_EVER}
Made = Callable[..., contextlib.AbstractAsyncContextManager[SerialWorld]]


@pytest.fixture
def world(tmp_path: Path) -> Made:
    def made(**faults: Any) -> contextlib.AbstractAsyncContextManager[SerialWorld]:
        return serial_world(tmp_path, BmcFaults(**{"console": "websocket", **faults}), power=HostPower.OFF)

    return made


async def boot(here: SerialWorld, name: str, kind: str = "HostPowerOn") -> None:
    body = {"apiVersion": "unbounded-cloud.io/v1alpha3", "kind": "MachineOperation", "metadata": {"name": name}}
    spec = {"operationKind": kind, "machineRef": "lab-01"}
    await here.admin.create(f"{OURS}/machineoperations", {**body, "spec": spec})


async def fail(here: SerialWorld, name: str) -> None:
    """Let an operation reach its deadline."""
    await here.admin.merge(f"{OURS}/machineoperations/{name}", {"spec": {"deadlineSeconds": 1}})
    assert (await ended(here, name))["phase"] == "Failed"


async def recorded(here: SerialWorld) -> None:
    async def opened() -> bool:
        return here.bmc.consoles.open.total() == 1

    await eventually(opened, within_s=LIMIT_S)


async def ended(here: SerialWorld, name: str) -> dict[str, Any]:
    async def there() -> Any:
        status = (await here.admin.get(f"{OURS}/machineoperations/{name}")).get("status", {})
        return status if status.get("phase") in ("Complete", "Failed") else None

    found: dict[str, Any] = await eventually(there, within_s=LIMIT_S)
    return found


async def kept(here: SerialWorld, operation: str) -> str:
    """Return the output that the command prints, once that of an operation is kept."""

    async def there() -> bool:
        status = (await here.admin.get(f"{OURS}/machines/lab-01"))["status"]
        return bool(status.get("consoleOutput", {}).get("operation") == operation)

    await eventually(there, within_s=LIMIT_S)
    terminal = here.serial("--last-failed")
    status, messages = await terminal.ended()
    assert status == 0, messages
    assert f"console output of lab-01 until {operation} failed, at " in messages
    return terminal.out.getvalue()


async def nothing_is_kept(here: SerialWorld) -> bool:
    assert (await here.admin.ask("GET", KEPT)).status == 404
    assert "consoleOutput" not in (await here.admin.get(f"{OURS}/machines/lab-01"))["status"]
    return here.bmc.consoles.open.total() == 0


async def events(here: SerialWorld) -> list[str]:
    found = (await here.admin.get("/api/v1/namespaces/default/events"))["items"]
    return [event["message"] for event in found if event["reason"] == "ConsoleOutputKept"]


@pytest.mark.parametrize("way", ["websocket", "ssh"])
async def test_the_output_of_a_failed_boot_is_kept_without_its_secrets(world: Made, way: str) -> None:
    async with world(console=way, **FAILING) as here, here.metalman():
        await boot(here, "r1")
        await recorded(here)
        password = here.bmc.password
        for piece in (b"panic ", password[:3].encode(), b"\x1b[1m", password[3:].encode(), b" " + TOKEN.encode()):
            await here.bmc.consoles.show(piece)
        await fail(here, "r1")
        output = await kept(here, "r1")
        assert output == f"\n{PROMPT}panic [redacted] [redacted]\n"
        secret = await here.admin.get(KEPT)
        assert (secret["type"], secret["immutable"]) == ("unbounded-cloud.io/console-output", True)
        assert [owner["kind"] for owner in secret["metadata"]["ownerReferences"]] == ["Machine"]
        assert await eventually(lambda: events(here), within_s=LIMIT_S) == [
            "Secret unbounded-kube/console-lab-01 has the last console output of r1, which has failed: "
            "kubectl unbounded machine serial lab-01 --last-failed"
        ]
        assert here.bmc.bmc.access.refused_logins == 0


async def test_the_output_of_a_boot_is_kept_without_the_secrets_of_its_profile(world: Made) -> None:
    async with world(**FAILING) as here, here.metalman():
        head = {"apiVersion": "unbounded-cloud.io/v1alpha3", "kind": "MachineProfile", "metadata": {"name": "one"}}
        spec = {
            "devices": [{"device": {}, "partitions": [{"name": "root", "size": 0}]}],
            "fileSystems": [{"fileSystem": "ext4", "partition": "root", "mountPoint": "/"}],
            "postDeployScript": "register --token plain-canary\n",
        }
        await here.admin.create(f"{OURS}/machineprofiles", {**head, "spec": spec})
        await here.admin.merge(f"{OURS}/machines/lab-01", {"spec": {"pxe": {"profileRef": {"name": "one"}}}})
        await boot(here, "r1")
        await recorded(here)
        await here.bmc.consoles.show(b"sh: plain-canary is refused")
        await fail(here, "r1")
        assert await kept(here, "r1") == f"\n{PROMPT}sh: [redacted] is refused\n"


async def test_the_next_failure_replaces_the_output_and_its_machine_removes_it(world: Made) -> None:
    async with world(**FAILING) as here, here.metalman():
        for name in ("r1", "r2"):
            await boot(here, name)
            await recorded(here)
            await here.bmc.consoles.show(f"this is {name}".encode())
            await fail(here, name)
            assert await kept(here, name) == f"\n{PROMPT}this is {name}\n"
        assert (await here.admin.ask("DELETE", f"{OURS}/machines/lab-01")).status == 200

        async def removed() -> bool:
            return (await here.admin.ask("GET", KEPT)).status == 404

        await eventually(removed, within_s=LIMIT_S)


async def test_a_boot_that_succeeds_keeps_nothing(world: Made) -> None:
    async with world() as here, here.metalman():
        await boot(here, "r1", "HostReboot")
        assert (await ended(here, "r1"))["phase"] == "Complete"
        assert here.bmc.consoles.opened == ["websocket"]
        await eventually(lambda: nothing_is_kept(here), within_s=LIMIT_S)


async def test_a_switch_turns_recordings_off(world: Made) -> None:
    async with world(**FAILING) as here, here.metalman(keeps_console_output=False):
        await boot(here, "r1")
        await fail(here, "r1")
        assert here.bmc.consoles.opened == []
        assert await nothing_is_kept(here)
        status, messages = await here.serial("--last-failed").ended()
        assert status == 1
        assert "error: no console output of Machine lab-01 is kept" in messages


async def test_a_user_and_a_recording_share_one_session(world: Made) -> None:
    async with world(**FAILING) as here, here.metalman():
        await here.published()
        user = here.serial()
        await user.prints(PROMPT)
        await boot(here, "r1")

        async def in_progress() -> bool:
            return bool((await here.admin.get(f"{OURS}/machineoperations/r1")).get("status", {}).get("execution"))

        await eventually(in_progress, within_s=LIMIT_S)
        user.type("from the user\r")
        await user.prints("from the user")
        await fail(here, "r1")
        assert "from the user" in await kept(here, "r1")
        await here.bmc.consoles.show(b"still there")
        await user.prints("still there")
        user.type("\r~.")
        assert (await user.ended())[0] == 0
        assert here.bmc.consoles.opened == ["websocket"]


async def test_a_user_joins_a_recording_that_goes_on_without_them(world: Made) -> None:
    async with world(**FAILING) as here, here.metalman():
        await here.published()
        await boot(here, "r1")
        await recorded(here)
        user = here.serial()
        await user.prints("you can type")
        user.type("typed\r~.")
        assert (await user.ended())[0] == 0
        await here.bmc.consoles.show(b"after the user")
        await fail(here, "r1")
        output = await kept(here, "r1")
        assert "typed" in output
        assert output.endswith("after the user\n")
        assert here.bmc.consoles.opened == ["websocket"]


@pytest.mark.parametrize(
    "faults",
    [
        {"console_output": "flood"},
        {"console_output": "silent"},
        {"console_output": "hangs"},
        {"console_sessions": 0},
        {"console_denied": True},
        {"console": "ssh", "console_denied": True},
        {"console": "disabled"},
    ],
    ids=lambda faults: "-".join(str(value) for value in faults.values()),
)
async def test_a_bad_console_does_not_harm_its_operation(world: Made, faults: dict[str, Any]) -> None:
    async with world(**faults) as here, here.metalman():
        await boot(here, "r1", "HostReboot")
        status = await ended(here, "r1")
        assert status["phase"] == "Complete", status
        assert here.bmc.bmc.access.refused_logins <= 1
        await eventually(lambda: nothing_is_kept(here), within_s=LIMIT_S)


async def test_a_flood_leaves_its_end_within_the_limit(world: Made) -> None:
    async with world(console_output="flood", **FAILING) as here, here.metalman():
        await boot(here, "r1")

        async def flooded() -> bool:
            return here.bmc.consoles.sent > 2 * KEPT_BYTES

        await eventually(flooded, within_s=LIMIT_S)
        await fail(here, "r1")
        output = await kept(here, "r1")
        assert set(output) <= set("0123456789abcdef\n")
        assert 0 < len(output) <= KEPT_BYTES + 1
        assert here.bmc.consoles.sent < 64 << 20  # read slowly, so that the host's console waits


async def test_a_console_that_drops_is_opened_again(world: Made) -> None:
    async with world(console_drops_after=1, **FAILING) as here, here.metalman():
        await here.published()
        await boot(here, "r1")
        await recorded(here)
        user = here.serial()
        await user.prints("you can type")
        user.type("x")
        assert "the BMC closed the console" in (await user.ended())[1]

        async def again() -> bool:
            return len(here.bmc.consoles.opened) == 2

        await eventually(again, within_s=LIMIT_S)
        await here.bmc.consoles.show(b"again")
        await fail(here, "r1")
        gap = "\n[metalman: the console was closed here, and opened again]\n"
        assert await kept(here, "r1") == f"\n{PROMPT}{gap}\n{PROMPT}again\n"


async def test_metalman_makes_and_removes_console_output_and_no_other_secret(world: Made) -> None:
    async with world() as here, here.account("metalman") as api:
        machine = await api.get(MACHINES, "lab-01")
        operation = MachineOperation(spec=MachineOperationSpec(operation_kind=OperationKind.HOST_REBOOT))
        body = console_secret("console-lab-01", "text", machine, operation)
        for change in ({"immutable": False}, {"type": "Opaque"}, {"metadata": {"name": "console-lab-01"}}):
            with pytest.raises(Forbidden, match=r"metalman may create|must be immutable|must have one owner"):
                await api.create(CORE_SECRETS, {**body, **change}, namespace="unbounded-kube")
        await api.create(CORE_SECRETS, body, namespace="unbounded-kube")
        with pytest.raises(Forbidden):
            await api.delete(CORE_SECRETS, "lab-01-bmc", namespace="unbounded-kube")
        await api.delete(CORE_SECRETS, "console-lab-01", namespace="unbounded-kube")


async def test_the_output_needs_the_right_to_read_its_secret(world: Made) -> None:
    rules = [{"apiGroups": ["unbounded-cloud.io"], "resources": ["machines"], "verbs": ["get", "serial"]}]
    async with world(**FAILING) as here, here.metalman():
        await here.grant("alice", *rules)
        await boot(here, "r1")
        await recorded(here)
        await fail(here, "r1")
        await kept(here, "r1")
        status, messages = await here.serial("--last-failed", "--as", "alice").ended()
        assert status == 1
        assert 'cannot get resource "secrets"' in messages


def test_memory_of_a_recording_is_bounded() -> None:
    output = LastOutput()
    for size in (1, 1000, 5_000_000, *[16_384] * 100, 7):
        output.add(b"x" * size)
        assert len(output.data) <= KEPT_BYTES + 2 * MARGIN_BYTES
        assert output.dropped in (0, len(output.data) - KEPT_BYTES) or output.dropped >= MARGIN_BYTES
    assert len(output.data) - output.dropped <= KEPT_BYTES


def test_names_of_kept_output_are_valid_and_distinct() -> None:
    long = ["x" * 253, "x" * 252 + "y"]
    assert kept_console_name("m1") == "console-m1"
    assert [len(kept_console_name(name)) for name in long] == [253, 253]
    assert len({kept_console_name(name) for name in long}) == 2
