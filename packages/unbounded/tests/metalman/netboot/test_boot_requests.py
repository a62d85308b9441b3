"""Requested boots, and the files that they may have."""

from __future__ import annotations

import asyncio
import base64
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.metalman.support.netboot_objects import REDFISH, machine, replacing
from tests.support.embedded_server import embedded_server
from tests.support.memory_api import MemoryApi
from unbounded.api.core import SECRETS
from unbounded.api.failures import Rejected
from unbounded.api.machine import NetbootMilestone
from unbounded.api.names import NAMESPACE
from unbounded.api.operation import MachineOperation
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded.metalman.netboot.boot_requests import (
    BOOTING,
    DATA_KEY,
    FINISHING,
    KEY_BYTES,
    KEY_SECRET,
    UNDOING_BOOT,
    is_same_prefix,
    prefix_key,
    requested_boot,
)
from unbounded.metalman.netboot.model import BootRequest, BootWindow

BMC: dict[str, Any] = {"pxe": {"redfish": REDFISH}}


def seen(boot: str, milestone: str | None) -> dict[str, Any]:
    return {"netboot": {"boot": boot, **({"milestone": milestone} if milestone else {})}}


@pytest.mark.parametrize("stage", sorted(BOOTING))
def test_a_replace_wants_a_boot_from_when_the_host_is_switched_on(stage: str) -> None:
    wanted = requested_boot(machine(**BMC), [replacing(stage)])
    assert wanted == BootRequest(
        "m1", "uid-m1", "op-uid", BootWindow.INSTALLING, operation="replace", executor="metalman/lab"
    )


@pytest.mark.parametrize("stage", sorted(FINISHING))
def test_the_installed_system_still_gets_its_data(stage: str) -> None:
    wanted = requested_boot(machine(**BMC), [replacing(stage)])
    assert wanted is not None
    assert wanted.window is BootWindow.FINISHING


@pytest.mark.parametrize(
    "operation",
    [
        replacing(None),
        replacing("WaitingImage"),
        replacing("ShuttingDown"),
        replacing("WaitingOff"),
        replacing("UndoingLoader"),
        replacing("CleaningUp"),
        replacing("WaitingLoader", phase="Complete"),
        replacing("WaitingLoader", phase="Failed"),
        replacing("WaitingLoader", kind="HostReboot"),
        replacing("WaitingLoader", executor="machine-ops-controller/lab/AzureVM"),
        replacing("WaitingLoader", executor="metalmanx/lab"),
        replacing("WaitingLoader", machine="m2"),
        replacing("WaitingLoader", machine_uid="of-an-earlier-m1"),
    ],
    ids=lambda operation: f"{operation.spec.operation_kind}-{operation.status.phase}-{operation.name}",
)
def test_no_other_operation_wants_one(operation: Any) -> None:
    assert requested_boot(machine(**BMC), [operation]) is None


def test_image_written_report_closes_the_install_window_before_the_executor() -> None:
    wanted = requested_boot(machine(**BMC, status=seen("op-uid", "ImageWritten")), [replacing("WaitingRepave")])
    assert wanted is not None
    assert wanted.window is BootWindow.FINISHING


@pytest.mark.parametrize("stage", sorted(UNDOING_BOOT))
def test_a_boot_whose_operation_is_being_undone_is_suspended(stage: str) -> None:
    wanted = requested_boot(machine(**BMC, status=seen("op-uid", "ImageWriting")), [replacing(stage)])
    assert wanted is not None
    assert wanted.window is BootWindow.SUSPENDED


def test_a_contested_boot_is_over_and_one_of_before_says_nothing() -> None:
    replace = replacing("WaitingRepave")
    assert requested_boot(machine(**BMC, status=seen("op-uid", "Contested")), [replace]) is None
    for milestone in ("Contested", "ImageWritten"):
        wanted = requested_boot(machine(**BMC, status=seen("another", milestone)), [replace])
        assert wanted is not None
        assert wanted.window is BootWindow.INSTALLING


def counters(asked: int, reached: int) -> dict[str, Any]:
    return {"spec": {"operations": {"repaveCounter": asked}}, "status": {"operations": {"repaveCounter": reached}}}


def test_a_counter_wants_a_boot_where_there_is_no_bmc() -> None:
    ahead = counters(3, 2)
    wanted = requested_boot(machine(**ahead), [])
    assert wanted == BootRequest("m1", "uid-m1", "repave-3", BootWindow.INSTALLING, repave=3)
    assert requested_boot(machine(**counters(2, 2)), []) is None
    assert requested_boot(machine(**ahead, pxe={"image": None}), []) is None
    assert requested_boot(machine(**ahead, **BMC), []) is None  # a HostReplace is made of it
    provider = {"spec": {**ahead["spec"], "provider": "Acme"}, "status": ahead["status"]}
    assert requested_boot(machine(**provider), []) is None


def test_after_its_counter_a_boot_lasts_until_cloud_init_is_done() -> None:
    reached = counters(3, 3)
    status = reached["status"] | seen("repave-3", "ImageWritten")
    wanted = requested_boot(machine(spec=reached["spec"], status=status), [])
    assert wanted is not None
    assert (wanted.boot, wanted.window) == ("repave-3", BootWindow.FINISHING)
    for state, is_over in (("True", True), ("False", False)):
        done = {"type": "CloudInitDone", "status": state, "reason": "x", "lastTransitionTime": "2030-01-01T00:00:00Z"}
        there = requested_boot(machine(spec=reached["spec"], status=status | {"conditions": [done]}), [])
        assert (there is None) is is_over
        joins = {**reached["spec"], "kubernetes": {}}  # its agent attests when cloud-init is done
        assert requested_boot(machine(spec=joins, status=status | {"conditions": [done]}), []) is not None


def test_a_machine_that_is_deleted_or_without_pxe_boots_from_its_disk() -> None:
    replace = replacing("WaitingLoader")
    gone = machine(**BMC)
    deleted = type(gone)(
        metadata=type(gone.metadata)(name="m1", uid="uid-m1", deletion_timestamp="2030-01-01T00:00:00Z"),
        spec=gone.spec,
    )
    assert requested_boot(deleted, [replace]) is None
    assert requested_boot(type(gone)(metadata=gone.metadata), [replace]) is None


stages = st.sampled_from([None, "", "WaitingImage", "CleaningUp", *sorted(BOOTING | FINISHING | UNDOING_BOOT)])
operations = st.lists(
    st.builds(
        lambda stage, phase, number: replacing(stage, phase=phase, name=f"r{number}", uid=f"u{number}"),
        stages,
        st.sampled_from(["Pending", "InProgress", "Complete", "Failed"]),
        st.integers(1, 3),
    ),
    max_size=3,
    unique_by=lambda operation: operation.name,
)
netboots = st.one_of(
    st.just({}),
    st.builds(
        seen, st.sampled_from(["u1", "u2", "u3", "repave-1", "repave-2"]), st.sampled_from([None, *NetbootMilestone])
    ),
)


@pytest.mark.slow
@given(operations, netboots, st.integers(0, 2), st.integers(0, 2), st.booleans())
def test_requested_boot_has_a_requester_and_never_contradicts_observations(
    running: list[MachineOperation], netboot: dict[str, Any], asked: int, reached: int, has_bmc: bool
) -> None:
    fields = counters(asked, reached)
    there = machine(spec=fields["spec"], status=fields["status"] | netboot, **(BMC if has_bmc else {}))
    wanted = requested_boot(there, running)
    if wanted is None:
        return
    claimed = {
        each.metadata.uid: each.status.targets[0].stage for each in running if each.claimed and not each.terminal
    }
    if wanted.operation:
        assert claimed[wanted.boot] in BOOTING | FINISHING | UNDOING_BOOT
        if wanted.window is BootWindow.INSTALLING:
            assert claimed[wanted.boot] in BOOTING
    else:
        assert not has_bmc
        assert wanted.boot == f"repave-{max(asked, reached)}"
        assert (wanted.window is BootWindow.INSTALLING) is (asked > reached)
    told = there.status.netboot
    if told is not None and told.boot == wanted.boot:
        assert told.milestone != NetbootMilestone.CONTESTED
        written = told.milestone == NetbootMilestone.IMAGE_WRITTEN and wanted.operation
        assert not (written and wanted.window is BootWindow.INSTALLING)


async def test_replicas_that_start_together_agree_on_one_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    api = MemoryApi()
    keys = await asyncio.gather(*(prefix_key(api) for _ in range(5)))
    assert len({key.prefix("uid", "boot") for key in keys}) == 1
    secret = await api.get(SECRETS, KEY_SECRET, namespace=NAMESPACE)
    content = secret.value(DATA_KEY)
    assert content is not None
    assert len(content) == KEY_BYTES
    shown = caplog.text + repr(keys) + str(keys[0]) + f"{keys[0]!s}"
    for secret_text in (content.hex(), base64.b64encode(content).decode(), repr(content)):
        assert secret_text not in shown


@pytest.mark.parametrize(
    "data", [{}, {DATA_KEY: ""}, {DATA_KEY: "c2hvcnQ="}, {DATA_KEY: "no base64!"}, {"other": "eA=="}]
)
async def test_a_secret_that_holds_no_key_says_what_to_do(data: dict[str, str]) -> None:
    api = MemoryApi()
    await api.create(SECRETS, {"metadata": {"name": KEY_SECRET}, "data": data}, namespace=NAMESPACE)
    with pytest.raises(
        Rejected, match=rf"Secret {NAMESPACE}/{KEY_SECRET}: data\.{DATA_KEY} .*delete the Secret"
    ) as error:
        await prefix_key(api)
    assert "short" not in str(error.value)


@pytest.mark.slow
def test_the_embedded_server_keeps_it(tmp_path: Path) -> None:
    async def main(kubeconfig: Path) -> None:
        async with HttpApi(from_kubeconfig(kubeconfig)) as one, HttpApi(from_kubeconfig(kubeconfig)) as other:
            first, second = await asyncio.gather(prefix_key(one), prefix_key(other))
            third = await prefix_key(one)
            assert len({key.prefix("uid", "boot") for key in (first, second, third)}) == 1

    with embedded_server(tmp_path / "data") as kubeconfig:
        asyncio.run(main(kubeconfig))


def test_prefixes_are_compared_whole() -> None:
    assert is_same_prefix("abc", "abc")
    for other in ("", "ab", "abcd", "abd", "ABC", "é"):
        assert not is_same_prefix(other, "abc")
