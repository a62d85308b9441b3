"""Plans of all commands that request something; the API accepts writes only in a dry run."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any, Final

import pytest

from tests.operations.building import claim, operation_of, slot_of
from tests.plan.staging import LAB, SECRET, Staged, plan_data, story
from unbounded.api.configuration import MACHINE_CONFIGURATION_VERSIONS, MACHINE_CONFIGURATIONS
from unbounded.api.core import CONFIG_MAPS, NODES, PODS, SECRETS
from unbounded.api.disruption import MACHINE_DISRUPTION_BUDGETS
from unbounded.api.machine import MACHINES
from unbounded.api.names import ANNOTATION_PAUSED, CONFIGMAP_OPERATIONS, LABEL_CONFIGURATION, NAMESPACE
from unbounded.api.operation import OperationKind
from unbounded.api.profile import MACHINE_PROFILES
from unbounded.cli.deploy import components
from unbounded.cli.plan import plan_lines
from unbounded.intents.rejections import IntentRejected
from unbounded.metalman import power
from unbounded.metalman import reasons as metal
from unbounded.metalman.executor import PROCEDURES
from unbounded.plan.effects import merged, stages
from unbounded.plan.intent import Intent, IntentPatch
from unbounded.plan.model import PlannedChange, UpdateForecast, plan_hash

METALMAN = "metalman-lab"
REBOOT = ("machine", "operation", "create", "op", "--kind", "HostReboot")


@story
async def test_one_machine_that_is_free(staged: Staged) -> None:
    await staged.machine("m1")
    await staged.alive(METALMAN)
    (change,) = await staged.plan("machine", "host-reboot", "m1", "--operation-name", "op")
    assert change.what == "create machineoperation.unbounded-cloud.io/op"
    assert change.operation is not None
    (target,) = change.operation.targets
    assert (target.machine, target.executor, target.held, target.refused) == ("m1", "metalman/lab", (), "")
    assert [one.name for one in change.operation.stages] == [
        power.STARTING,
        power.SHUTTING_DOWN,
        power.WAITING_OFF,
        power.WAITING_ON,
    ]
    assert [one.limit_s for one in change.operation.stages] == [300, 120, 300, 300]
    assert change.operation.deadline_s == 1800
    assert change.operation.loses == ("m1: the workload of the host stops, and starts again with it",)


@story
async def test_what_people_read_of_it(staged: Staged) -> None:
    await staged.machine("m1")
    await staged.alive(METALMAN)
    text = await staged.shown("machine", "power-off", "m1", "--grace", "10s", "--operation-name", "op")
    assert "would create machineoperation.unbounded-cloud.io/op" in text
    assert "1. m1 by metalman/lab: starts in its turn" in text
    assert "stages:" not in text
    assert text.endswith("\n  -o wide shows its 7 stages\nnothing was changed")


HARDWARE: Final[dict[str, Any]] = {
    "source": "Installer",
    "at": "2026-11-28T10:00:00Z",
    "digest": "a" * 64,
    "disks": [
        {"name": name, "sizeBytes": 480_000_000_000, "sectorBytes": 512, "state": state, "byID": [f"wwn-0x{name}"]}
        for name, state in (("sda", "Blank"), ("sdb", "Own"))
    ],
}


@story
async def test_plan_of_a_replacement_names_the_disk_by_the_last_inspection(staged: Staged) -> None:
    await staged.machine("m1", status={"hardware": HARDWARE})
    await staged.alive(METALMAN)
    text = await staged.shown("machine", "replace", "m1", "--operation-name", "op")
    assert "with the hardware of 2026-11-28T10:00:00Z, it writes /dev/disk/by-id/wwn-0xsdb (sdb, 480000 MB)" in text


@story
async def test_plan_of_a_replacement_says_why_no_disk_is_written(staged: Staged) -> None:
    await staged.machine("m1", status={"hardware": HARDWARE, "targetDisk": "/dev/disk/by-id/wwn-0xgone"})
    await staged.alive(METALMAN)
    (change,) = await staged.plan("machine", "replace", "m1", "--operation-name", "op")
    assert change.operation is not None
    (target,) = change.operation.targets
    assert "it writes no disk: /dev/disk/by-id/wwn-0xgone, the disk of this Machine's last install, is" in target.disk
    assert not target.fails_at_once  # a forecast: the install chooses by an inspection of its own


PROFILE: Final[dict[str, Any]] = {
    "devices": [
        {
            "device": {},
            "partitions": [{"name": "efi", "size": "1Gi", "partflags": ["esp"]}, {"name": "root", "size": 0}],
        }
    ],
    "fileSystems": [
        {"fileSystem": "vfat", "partition": "efi", "mountPoint": "/boot/efi"},
        {"fileSystem": "ext4", "partition": "root", "mountPoint": "/"},
    ],
}


@story
async def test_plan_of_a_replacement_shows_the_layout_by_the_last_inspection(staged: Staged) -> None:
    await staged.machine("m1", status={"hardware": HARDWARE})
    await staged.api.patch(MACHINES, "m1", {"spec": {"pxe": {"profileRef": {"name": "one"}}}})
    await staged.api.create(MACHINE_PROFILES, {"metadata": {"name": "one"}, "spec": PROFILE})
    await staged.alive(METALMAN)
    text = await staged.shown("machine", "replace", "m1", "--operation-name", "op")
    shown = text[text.index("it writes layout ") :].splitlines()
    assert re.fullmatch("it writes layout [0-9a-f]{64} of MachineProfile one", shown[0])
    assert [line.strip() for line in shown[1:4]] == [
        "/dev/disk/by-id/wwn-0xsdb (sdb, 480.0 GB, Own)",
        "1: efi, 1.1 GB, vfat at /boot/efi, with the loader",
        "2: root, 478.9 GB, ext4 at /",
    ]
    assert "has commands" not in text


@pytest.mark.parametrize(
    ("tpm", "kubernetes", "expected"),
    [
        (None, {}, "it writes no disk: it has no TPM, and gets its token by a TPM 2.0"),
        ({"version": "1.2"}, {}, "it writes no disk: it has a TPM 1.2, and gets its token by a TPM 2.0"),
        ({"version": "2.0"}, {}, "it writes /dev/disk/by-id/wwn-0xsdb"),
        (None, {"bootstrapTokenRef": {"name": "bootstrap-token-abcdef"}}, "it writes /dev/disk/by-id/wwn-0xsdb"),
        (None, None, "it writes /dev/disk/by-id/wwn-0xsdb"),
    ],
)
def test_plan_says_that_a_host_without_its_tpm_gets_no_token(tpm: Any, kubernetes: Any, expected: str) -> None:
    @story
    async def tell(staged: Staged) -> None:
        await staged.machine("m1", status={"hardware": {**HARDWARE, "tpm": tpm}})
        await staged.api.patch(MACHINES, "m1", {"spec": {"kubernetes": kubernetes}})
        await staged.alive(METALMAN)
        text = await staged.shown("machine", "replace", "m1", "--operation-name", "op")
        assert f"with the hardware of 2026-11-28T10:00:00Z, {expected}" in text

    tell()


@story
async def test_plan_names_kernel_parameters_that_a_signed_image_cannot_have(staged: Staged) -> None:
    grub = {"defaultGrubOptions": ['GRUB_CMDLINE_LINUX="quiet"']}
    signed = [_condition("NetbootImageReady", "True", "PulledSigned")]
    await staged.machine("m1", status={"hardware": HARDWARE, "conditions": signed})
    await staged.api.patch(MACHINES, "m1", {"spec": {"pxe": {"profileRef": {"name": "one"}}}})
    await staged.api.create(MACHINE_PROFILES, {"metadata": {"name": "one"}, "spec": {**PROFILE, "grubConfig": grub}})
    await staged.alive(METALMAN)
    (change,) = await staged.plan("machine", "replace", "m1", "--operation-name", "op")
    assert change.operation is not None
    (target,) = change.operation.targets
    (found,) = (each for each in target.obstacles if each.reason == metal.PROFILE_INVALID)
    assert found.what.startswith("MachineProfile one: spec.grubConfig.defaultGrubOptions[0]: a signed image")
    assert target.fails_at_once
    assert "it writes no disk: MachineProfile one: spec.grubConfig.defaultGrubOptions[0]" in target.disk


@story
async def test_plan_says_that_commands_of_a_profile_need_a_flag_of_metalman(staged: Staged) -> None:
    modules = [{"filename": "a.conf", "content": "options a b=1"}, {"filename": "c.conf", "content": "install c true"}]
    commands = {"postDeployScript": "true", "kernelParameters": {"modules": modules}}
    await staged.machine("m1", status={"hardware": HARDWARE})
    await staged.api.patch(MACHINES, "m1", {"spec": {"pxe": {"profileRef": {"name": "one"}}}})
    await staged.api.create(MACHINE_PROFILES, {"metadata": {"name": "one"}, "spec": {**PROFILE, **commands}})
    await staged.alive(METALMAN)
    text = await staged.shown("machine", "replace", "m1", "--operation-name", "op")
    assert (
        "has commands (spec.postDeployScript, spec.kernelParameters.modules[1].content): a metalman without "
        "--allow-profile-scripts refuses it, and runs none of them"
    ) in text


@pytest.mark.parametrize("source", ["Installer", "Redfish"])
def test_plan_of_a_replacement_says_that_the_profile_is_missing(source: str) -> None:
    @story
    async def tell(staged: Staged) -> None:
        await staged.machine("m1", status={"hardware": HARDWARE | {"source": source}})
        await staged.api.patch(MACHINES, "m1", {"spec": {"pxe": {"profileRef": {"name": "one"}}}})
        await staged.alive(METALMAN)
        text = await staged.shown("machine", "replace", "m1", "--operation-name", "op")
        assert "it writes no disk: there is no MachineProfile one" in text

    tell()


NETWORK: Final[dict[str, Any]] = {"ethernets": [{"name": "one", "mac": "52:54:00:00:00:0A", "dhcp4": True}]}
WITH_CARD: Final = HARDWARE | {"nics": [{"name": "eno1", "mac": "52:54:00:00:00:0a"}]}
FROM_SPEC: Final = "the installed system gets the network of spec.network"


@pytest.mark.parametrize(
    ("network", "hardware", "expected"),
    [
        (NETWORK, WITH_CARD, FROM_SPEC),
        (
            NETWORK,
            HARDWARE,
            "with the hardware of 2026-11-28T10:00:00Z, it writes no disk: spec.network.ethernets: the machine has no "
            "network card one (52:54:00:00:00:0a); its cards: none",
        ),
        (NETWORK, HARDWARE | {"source": "Redfish"}, FROM_SPEC),  # a BMC may not know all cards
        (None, WITH_CARD, ""),
    ],
)
def test_plan_of_a_replacement_names_the_network(
    network: dict[str, Any] | None, hardware: dict[str, Any], expected: str
) -> None:
    @story
    async def tell(staged: Staged) -> None:
        await staged.machine("m1", status={"hardware": hardware})
        await staged.api.patch(MACHINES, "m1", {"spec": {"network": network}})
        await staged.alive(METALMAN)
        text = await staged.shown("machine", "replace", "m1", "--operation-name", "op")
        about = [line.strip() for line in text.splitlines() if "spec.network" in line]
        assert about == ([expected] if expected else [])

    tell()


@pytest.mark.parametrize(
    ("policy", "flags", "expected"),
    [
        (None, (), "is reported, or gets no token, as --pcr-policy of its metalman says"),
        ("Recorded", (), "is reported"),
        (
            "Required",
            ("--accept-pcr", "4", "--accept-pcr", "0"),
            "gets no token, unless only in PCR 0 (firmware code), PCR 4 (boot loader), which it accepts once",
        ),
    ],
)
def test_plan_of_a_replacement_names_the_reference_of_its_boot(
    policy: str | None, flags: tuple[str, ...], expected: str
) -> None:
    @story
    async def tell(staged: Staged) -> None:
        reference = {"boot": "repave-1", "at": "2026-11-28T10:00:00Z"}
        await staged.machine("m1", status={"tpm": {"reference": reference}})
        await staged.api.patch(MACHINES, "m1", {"spec": {"pxe": {"attestation": {"pcrPolicy": policy}}}})
        await staged.alive(METALMAN)
        text = await staged.shown("machine", "replace", "m1", "--operation-name", "op", *flags)
        assert f"a boot that deviates from the reference of 2026-11-28T10:00:00Z {expected}\n" in text

    tell()


TWICE: Final[dict[str, Any]] = {"ethernets": [NETWORK["ethernets"][0] | {"addresses": ["192.0.2.9/24"] * 2}]}


@story
async def test_plan_of_a_replacement_shows_the_faults_of_a_network(staged: Staged) -> None:
    await staged.machine("m1")
    await staged.api.patch(MACHINES, "m1", {"spec": {"network": TWICE}})
    await staged.alive(METALMAN)
    (change,) = await staged.plan("machine", "replace", "m1", "--operation-name", "op")
    assert change.operation is not None
    (found,) = (each for each in change.operation.targets[0].obstacles if each.reason == "NetworkInvalid")
    assert found.what == "spec.network.ethernets[one].addresses: 192.0.2.9/24 occurs twice"


@story
async def test_plan_of_a_replacement_shows_that_a_host_in_stock_has_no_image(staged: Staged) -> None:
    await staged.machine("m1")
    await staged.api.patch(MACHINES, "m1", {"spec": {"pxe": {"image": None}}})
    await staged.alive(METALMAN)
    (change,) = await staged.plan("machine", "replace", "m1", "--operation-name", "op")
    assert change.operation is not None
    (found,) = (each for each in change.operation.targets[0].obstacles if each.reason == "NoImage")
    assert found.what.startswith("spec.pxe.image is absent")


@story
async def test_plan_of_a_replacement_names_the_config_map_of_the_network(staged: Staged) -> None:
    await staged.machine("m1")
    reference = {"networkConfigConfigMapRef": {"name": "net", "namespace": "racks"}}
    await staged.api.patch(MACHINES, "m1", {"spec": {"pxe": {"cloudInit": reference}}})
    await staged.alive(METALMAN)
    text = await staged.shown("machine", "replace", "m1", "--operation-name", "op")
    assert "gets the network of ConfigMap racks/net, key network-config, and is not installed without it" in text


@story
async def test_plan_of_a_reboot_names_no_network(staged: Staged) -> None:
    await staged.machine("m1")
    await staged.api.patch(MACHINES, "m1", {"spec": {"network": NETWORK}})
    await staged.alive(METALMAN)
    (change,) = await staged.plan("machine", "host-reboot", "m1", "--operation-name", "op")
    assert change.operation is not None
    assert change.operation.targets[0].network == ""


@pytest.mark.parametrize(("verb", "source"), [("host-reboot", "Installer"), ("replace", "Redfish")])
def test_plan_shows_no_disk_where_no_install_or_no_inspection_is(verb: str, source: str) -> None:
    @story
    async def tell(staged: Staged) -> None:
        await staged.machine("m1", status={"hardware": HARDWARE | {"source": source}})
        await staged.alive(METALMAN)
        (change,) = await staged.plan("machine", verb, "m1", "--operation-name", "op")
        assert change.operation is not None
        assert change.operation.targets[0].disk == ""
        unknown = [one for one in change.operation.unchecked if "`kubectl unbounded machine inspect m1`" in one]
        assert len(unknown) == (verb == "replace")

    tell()


@story
async def test_plan_lists_machines_first_and_stages_only_with_wide_output(staged: Staged) -> None:
    """A former fault: 20 lines of stages scrolled the Machines above them away."""
    for name in ("m1", "m2"):
        await staged.machine(name)
    await staged.alive(METALMAN)
    text = (await staged.shown(*REBOOT, "-l", "unbounded-cloud.io/site=lab", wide=True)).splitlines()
    assert [line.split()[1] for line in text[1:3]] == ["m1", "m2"]
    assert text[3].startswith("  2 Machines, at most 10 at once")
    assert "    ShuttingDown: waits for the host to shut down, at most 120 s" in "\n".join(text)
    assert not any("-o wide" in line for line in text)


async def _no_secret(staged: Staged) -> None:
    await staged.api.delete(SECRETS, SECRET["name"], namespace=NAMESPACE)


async def _no_key(staged: Staged) -> None:
    await staged.api.patch(SECRETS, SECRET["name"], {"data": {"password": None, "pass": "eA=="}}, namespace=NAMESPACE)


async def _refused(staged: Staged) -> None:
    secret = await staged.api.get(SECRETS, SECRET["name"], namespace=NAMESPACE)
    change = {"status": {"redfish": {"refusedSecretVersion": secret.metadata.resource_version}}}
    await staged.api.patch(MACHINES, "m1", change, subresource="status")


@pytest.mark.parametrize(
    ("spoil", "reason", "words"),
    [
        (_no_secret, metal.CREDENTIALS_MISSING, "Secret unbounded-kube/bmc (passwordRef) does not exist"),
        (_no_key, metal.CREDENTIALS_MISSING, "has no key 'password' (passwordRef.key); its keys: pass"),
        (_refused, metal.CREDENTIALS_REFUSED, "https://m1 rejected 'u' with the password in Secret unbounded-kube/bmc"),
    ],
)
def test_the_secret_of_its_bmc_cannot_be_used(spoil: Any, reason: str, words: str) -> None:
    """As metalman would find it at its first observation: it fails, unless another blocker comes first."""

    @story
    async def tell(staged: Staged) -> None:
        await staged.machine("m1")
        await staged.alive(METALMAN)
        await spoil(staged)
        (change,) = await staged.plan("machine", "power-on", "m1")
        assert change.operation is not None
        (target,) = change.operation.targets
        (obstacle,) = target.obstacles
        assert (obstacle.reason, target.held, target.fails_at_once) == (reason, (), True)
        assert words in obstacle.what
        text = "\n".join(plan_lines([change]))
        assert f"then it would end as Failed/{reason}: machine/m1: " in text
        assert "try:  kubectl -n unbounded-kube create secret generic bmc --from-literal=password=PASSWORD" in text

    tell()


@story
async def test_its_machine_is_paused_and_the_secret_of_its_bmc_is_missing(staged: Staged) -> None:
    await staged.machine("m1")
    await staged.alive(METALMAN)
    await _no_secret(staged)
    await staged.api.patch(MACHINES, "m1", {"metadata": {"annotations": {ANNOTATION_PAUSED: "new disk"}}})
    (change,) = await staged.plan("machine", "power-on", "m1")
    assert change.operation is not None
    (target,) = change.operation.targets
    assert (bool(target.held), len(target.obstacles), target.fails_at_once) == (True, 1, False)


@story
async def test_what_may_not_be_read_or_cannot_be_seen_is_said(staged: Staged) -> None:
    await staged.machine("m1")
    await staged.alive(METALMAN)
    staged.api.hides = SECRETS.plural
    text = await staged.shown("machine", "replace", "m1")
    assert "CredentialsMissing" not in text
    assert [line for line in text.splitlines() if "not checked" in line] == [
        "  not checked: you have no permission to read Secret unbounded-kube/bmc",
        "  not checked: which disk is written on m1, as no installer has reported the hardware: "
        "`kubectl unbounded machine inspect m1` does that, and writes nothing",
        "  not checked: whether the BMC answers, accepts the password and presents the trusted certificate",
        "  not checked: whether the host boots from the network, and reaches metalman there",
        "  not checked: whether the image fits the disk, in size and sector size: metalman alone reads it",
    ]


@story
async def test_a_secret_where_metalman_has_no_rights_of_its_own(staged: Staged) -> None:
    ref = SECRET | {"namespace": "default"}
    redfish = {"url": "https://m1", "username": "u", "passwordRef": ref}
    await staged.machine("m1", pxe={"image": "i", "redfish": redfish})
    await staged.api.create(SECRETS, {"metadata": {"name": "bmc"}, "data": {"password": "eA=="}}, namespace="default")
    await staged.alive(METALMAN)
    (change,) = await staged.plan("machine", "power-on", "m1")
    assert change.operation is not None
    words = "whether metalman may read Secrets in namespace default, as it may in unbounded-kube"
    assert change.operation.unchecked[0] == words


def _condition(kind: str, status: str, reason: str, **more: Any) -> dict[str, Any]:
    at = "2026-01-01T00:00:00Z"
    return {"type": kind, "status": status, "reason": reason, "message": "words", "lastTransitionTime": at, **more}


READY = _condition("NetbootImageReady", "True", "Pulled")
TRY_IMAGE = 'kubectl patch mach m1 --type=merge -p \'{"spec": {"pxe": {"image": "IMAGE"}}}\''


@pytest.mark.parametrize(
    ("conditions", "words", "command"),
    [
        ([], "no metalman has reported its image", "kubectl unbounded site deploy-pxe --site lab"),
        ([_condition("NetbootImageReady", "False", "PullFailed")], "=False (PullFailed): words", TRY_IMAGE),
        ([_condition("NetbootImageReady", "False", "Pulling")], "=False (Pulling): words", None),
        ([READY | {"observedGeneration": 0}], "=True (Pulled), of an earlier spec (generation 0 of 1): words", None),
        (
            [READY, _condition("NetbootServed", "False", "DuplicateLease")],
            "(DuplicateLease)",
            "kubectl edit mach m1",
        ),
        ([READY, _condition("NetbootServed", "True", "Served")], None, None),
    ],
)
def test_who_serves_the_host_and_from_what(
    conditions: list[dict[str, Any]], words: str | None, command: str | None
) -> None:
    """metalman's reports on the Machine block only a replace and an inspection, which wait for its image."""

    @story
    async def tell(staged: Staged) -> None:
        await staged.machine("m1", status={"conditions": conditions})
        await staged.alive(METALMAN)
        for verb, wanted in (("power-off", None), ("replace", words), ("inspect", words)):
            (change,) = await staged.plan("machine", verb, "m1")
            staged.api.dry = 0
            assert change.operation is not None
            (target,) = change.operation.targets
            assert [one.reason for one in target.obstacles] == ([""] if wanted else []), verb
            assert not target.fails_at_once
        assert all((words or "") in one.what for one in target.obstacles)
        assert (words is not None) is ("then in its way: machine/m1: " in "\n".join(plan_lines([change])))
        assert [fix.command for one in target.obstacles for fix in one.fixes] == ([command] if command else [])

    tell()


@story
async def test_where_the_server_runs_the_controllers_it_is_what_serves_hosts(staged: Staged) -> None:
    await staged.machine("m1")
    await components.publish(staged.api, {})
    text = await staged.shown("machine", "replace", "m1")
    assert "try:  unbounded up --pxe-interface NAME" in text


@story
async def test_the_pods_on_the_node_are_counted(staged: Staged) -> None:
    await staged.machine("m1", kubernetes={}, status={"agent": {"version": "v1"}})
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    await staged.api.create(NODES, {"metadata": {"name": "m1"}})
    await staged.api.patch(NODES, "m1", {"status": ready}, subresource="status")
    for pod, node in (("a", "m1"), ("b", "m1"), ("c", "m2")):
        await staged.api.create(PODS, {"metadata": {"name": pod}, "spec": {"nodeName": node}}, namespace="default")
    await staged.alive()
    (change,) = await staged.plan("machine", "node-reboot", "m1")
    assert change.operation is not None
    assert change.operation.targets[0].held == ()
    assert (
        change.operation.loses[0] == "m1: the workload of its Node stops, and starts again with it (2 Pods on its Node)"
    )


async def _under_budget(staged: Staged, *machines: str, holder: str = "") -> None:
    """Let a budget of one cover Machines with Nodes; `holder` has its grant, where it is given."""
    for name in machines:
        await staged.machine(name, status={"disruptionBudgets": ["one"]})
        await staged.api.create(NODES, {"metadata": {"name": name}})
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        await staged.api.patch(NODES, name, {"status": ready}, subresource="status")
    spec = {"machineSelector": {"matchLabels": LAB}, "maxUnavailable": 1}
    await staged.api.create(MACHINE_DISRUPTION_BUDGETS, {"metadata": {"name": "one"}, "spec": spec})
    granted = {"kind": "HostReboot", "name": "op", "uid": "u"}
    grant = {"machine": holder, "machineUID": "u", "holder": granted, "since": "2030-01-01T00:00:00Z"}
    group = {"value": "", "machines": len(machines), "unavailable": 1 if holder else 0, "allowed": 0 if holder else 1}
    status = {"groups": [group], "grants": [grant] if holder else []}
    await staged.api.patch(MACHINE_DISRUPTION_BUDGETS, "one", {"status": status}, subresource="status")
    await staged.alive(METALMAN)


@story
async def test_plan_names_the_holder_of_a_budget_without_room(staged: Staged) -> None:
    await _under_budget(staged, "m1", "m2", holder="m1")
    shown = await staged.shown("machine", "host-reboot", "m2")
    assert "1. m2 by metalman/lab: would wait" in shown
    assert (
        "MachineDisruptionBudget one has no room now: it lets 1 of 2 Machines be unavailable, and 1 is: m1 (HostReboot "
        "op, since 2030-01-01T00:00:00Z)"
    ) in shown
    assert "try:  kubectl describe mdb one" in shown
    assert "MachineDisruptionBudget one lets 0 more Machines be unavailable now" in shown


@story
async def test_plan_names_no_budget_for_a_host_that_never_had_a_node(staged: Staged) -> None:
    await _under_budget(staged, "m1", holder="m1")
    await staged.machine("new", status={"disruptionBudgets": ["one"]})
    shown = await staged.shown("machine", "host-reboot", "new")
    assert "1. new by metalman/lab: starts in its turn" in shown
    assert "MachineDisruptionBudget" not in shown


@story
async def test_plan_shows_the_room_of_a_budget_and_the_drain(staged: Staged) -> None:
    await _under_budget(staged, "m1", "m2")
    shown = await staged.shown(*REBOOT, "-l", "unbounded-cloud.io/site=lab")
    assert "would wait" not in shown
    assert "its Node m2 is drained first, within 3600 s" in shown
    assert "MachineDisruptionBudget one lets 1 more Machine be unavailable now" in shown


async def _pods(staged: Staged, node: str, *names: str, owned: bool) -> None:
    """Create Pods on a Node; a controller would create those again that are owned."""
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "controller": True}
    owner["uid"] = (await staged.api.get(NODES, node)).metadata.uid  # of an object that exists
    for name in names:
        metadata = {"name": name, "ownerReferences": [owner] if owned else []}
        await staged.api.create(PODS, {"metadata": metadata, "spec": {"nodeName": node}}, namespace="default")


@story
async def test_plan_names_the_pods_that_would_block_the_drain(staged: Staged) -> None:
    await _under_budget(staged, "m1", "m2")
    await _pods(staged, "m2", "free", "web-1", owned=True)
    await _pods(staged, "m2", "lone", owned=False)
    staged.api.guarded["web-1"] = "web"
    shown = await staged.shown("machine", "host-reboot", "m2")
    assert "1. m2 by metalman/lab: would wait" in shown
    assert "Pod default/lone would block the drain: no controller would create it again" in shown
    assert "Pod default/web-1 would block the drain: The disruption budget web needs 1 healthy pods" in shown
    assert "try:  kubectl -n default describe pdb web" in shown
    assert "default/free" not in shown
    shown = await staged.shown("machine", "drain", "m2")
    assert "the maintenance would wait: Pod default/lone would block the drain" in shown
    assert "try:  kubectl -n default delete pod lone" in shown
    assert "try:  kubectl -n default describe pdb web" in shown


@story
async def test_plan_lets_an_operation_take_over_a_node_that_has_not_returned(staged: Staged) -> None:
    await _under_budget(staged, "m1", "m2", holder="m1")
    granted = {"kind": "HostReboot", "name": "op", "uid": "u"}
    away = {"holder": granted, "stage": "Returning", "since": "2030-01-01T00:00:00Z", "worked": True}
    await staged.api.patch(MACHINES, "m1", {"status": {"disruption": away}}, subresource="status")
    shown = await staged.shown("machine", "host-reboot", "m1")
    assert "1. m1 by metalman/lab: starts in its turn" in shown
    assert "its Node m1 is drained first" in shown


@story
async def test_plan_of_a_drain_without_the_right_to_evict_names_what_it_can(staged: Staged) -> None:
    await _under_budget(staged, "m1")
    await _pods(staged, "m1", "web-1", owned=True)
    await _pods(staged, "m1", *(f"lone-{number}" for number in range(7)), owned=False)
    staged.api.guarded["web-1"], staged.api.evicts = "web", False
    shown = await staged.shown("machine", "host-reboot", "m1")
    assert shown.count("would block the drain") == 5
    assert "Pod default/lone-4 would block the drain: no controller would create it again" in shown
    assert "and 2 more Pods" in shown
    assert "web-1" not in shown


@story
async def test_plan_names_the_application_that_holds_a_drain(staged: Staged) -> None:
    await _under_budget(staged, "m1", "m2")
    hold = "hold.unbounded-cloud.io/storage"
    await staged.api.patch(NODES, "m2", {"metadata": {"annotations": {hold: ""}}})
    shown = await staged.shown(*REBOOT, "-l", "unbounded-cloud.io/site=lab")
    assert f"waits until these annotations of it are removed: {hold}" in shown
    assert f"try:  kubectl annotate node m2 {hold}-" in shown
    shown = await staged.shown("machine", "drain", "m2")
    assert f"try:  kubectl annotate node m2 {hold}-" in shown


@story
async def test_plan_of_a_drain_names_the_node_and_the_budget_without_room(staged: Staged) -> None:
    await _under_budget(staged, "m1", "m2", holder="m1")
    shown = await staged.shown("machine", "drain", "m2")
    assert "its Node m2 is drained, and stays cordoned until the maintenance ends" in shown
    assert "the maintenance would wait: MachineDisruptionBudget one has no room now" in shown
    assert "try:  kubectl describe mdb one" in shown


@story
async def test_plan_of_a_drain_names_the_work_of_another_controller(staged: Staged) -> None:
    await _under_budget(staged, "m1", "m2", holder="m1")
    foreign = {"conditions": [{"type": "Drained", "status": "True", "reason": "Kured", "message": "reboot"}]}
    await staged.api.patch(NODES, "m1", {"status": foreign}, subresource="status")
    shown = await staged.shown("machine", "maintenance", "on", "m1")
    assert "the maintenance would wait: another controller works on Node m1" in shown
    assert "has no room" not in shown


@story
async def test_plan_of_a_return_tells_when_the_node_is_uncordoned(staged: Staged) -> None:
    await _under_budget(staged, "m1", "m2", holder="m2")
    await staged.api.patch(MACHINES, "m1", {"spec": {"maintenance": {"enabled": True}}})
    shown = await staged.shown("machine", "return", "m1")
    assert "its Node m1 is uncordoned once it has been Ready for 10 s" in shown
    assert "would wait" not in shown


@story
async def test_its_executor_is_not_there(staged: Staged) -> None:
    await staged.machine("m1")
    await staged.alive()
    (change,) = await staged.plan("machine", "host-reboot", "m1")
    assert change.operation is not None
    assert [link.about for link in change.operation.targets[0].held] == ["metalman/lab"]
    assert "is not running" in change.operation.targets[0].held[0].what


@story
async def test_its_agent_has_never_reported(staged: Staged) -> None:
    await staged.machine("m1", kubernetes={})
    await staged.alive()
    (change,) = await staged.plan("machine", "node-reboot", "m1")
    assert change.operation is not None
    assert change.operation.targets[0].held[0].about == "unbounded-agent/m1"


SUBSCRIPTION = "/subscriptions/8b1d9ee8-5d2f-4a52-9bf0-1f6f1f4f3c11"
VM = f"{SUBSCRIPTION}/resourceGroups/g/providers/Microsoft.Compute/virtualMachines/vm"


@pytest.mark.parametrize(
    ("kind", "parameter", "ends"),
    [
        ("HostReplace", "imageID=urn", "InvalidParameters: spec.parameters.imageID is not a parameter of HostReplace"),
        ("HostReboot", "force=true", "InvalidParameters: spec.parameters.force is not a parameter of HostReboot"),
        ("HostPowerOff", "force=true", ""),
    ],
)
def test_plan_reports_parameters_that_the_provider_rejects(kind: str, parameter: str, ends: str) -> None:
    @story
    async def told(staged: Staged) -> None:
        await staged.machine("vm", provider="AzureVM", providerID=VM)
        await staged.alive("machine-ops-controller")
        words = ("machine", "operation", "create", "op", "--kind", kind, "--machine", "vm", "--param", parameter)
        (change,) = await staged.plan(*words)
        assert change.operation is not None
        (target,) = change.operation.targets
        said = [f"{one.reason}: {one.what}" for one in target.obstacles]
        assert [one[: len(ends)] for one in said] == ([ends] if ends else [])
        assert target.fails_at_once is bool(ends)
        assert bool(change.operation.stages) is not bool(ends)

    told()


@story
async def test_a_provider_that_is_not_installed_beside_the_command_is_not_asked(staged: Staged) -> None:
    await staged.machine("vm", provider="AcmeVM", providerID="acme://vm")
    await staged.alive("machine-ops-controller-lab-acmevm")
    (change,) = await staged.plan(*REBOOT, "--machine", "vm", "--param", "force=true")
    assert change.operation is not None
    assert change.operation.targets[0].obstacles == ()
    (said,) = (one for one in change.operation.unchecked if "AcmeVM" in one)
    assert said.startswith("whether provider AcmeVM supports it with these parameters, and its stages: no prov")


@story
async def test_its_machine_is_paused(staged: Staged) -> None:
    await staged.machine("m1")
    await staged.alive(METALMAN)
    await staged.api.patch(MACHINES, "m1", {"metadata": {"annotations": {ANNOTATION_PAUSED: "new disk"}}})
    changes = await staged.plan("machine", "host-reboot", "m1")
    text = "\n".join(plan_lines(changes))
    assert "1. m1 by metalman/lab: would wait" in text
    assert ": new disk" in text
    assert "try:  kubectl unbounded machine resume m1" in text
    assert "     try:  unbounded machine resume m1" in plan_lines(changes, "unbounded")  # where there may be no kubectl


@story
async def test_what_programs_read_of_it(staged: Staged) -> None:
    await staged.machine("m1")
    await staged.alive()
    (change,) = plan_data(await staged.plan("machine", "host-reboot", "m1", "--operation-name", "op"))["changes"]
    assert change["what"] == "create machineoperation.unbounded-cloud.io/op"
    assert change["operation"]["deadlineSeconds"] == 1800
    assert change["operation"]["stages"][0]["waitsFor"] == "a power state that is On or Off"
    (link,) = change["operation"]["targets"][0]["held"]
    assert link.keys() >= {"about", "what", "code", "heldBy", "since", "until", "next", "fixes"}


@story
async def test_another_operation_has_it(staged: Staged) -> None:
    await staged.machine("m1")
    await staged.alive(METALMAN)
    await staged.operation("older", "HostReboot", "m1", status=claim())
    (change,) = await staged.plan("machine", "host-reboot", "m1")
    assert change.operation is not None
    held = change.operation.targets[0].held
    assert [link.about for link in held][1:] == ["operation/older"]
    assert held[0].held_by == "older"


@story
async def test_operation_without_an_executor_is_rejected(staged: Staged) -> None:
    """The command would be refused with the same words, before any request."""
    await staged.machine("m1", kubernetes={})
    with pytest.raises(IntentRejected, match="no executor supports HostPowerOff on Machine m1"):
        await staged.plan("machine", "power-off", "m1")


@story
async def test_a_machine_that_is_not_there(staged: Staged) -> None:
    await staged.alive(METALMAN)
    (change,) = await staged.plan(*REBOOT, "--machine", "m9")
    assert change.operation is not None
    (target,) = change.operation.targets
    assert "Machine m9 does not exist" in target.held[0].what


@story
async def test_the_order_of_many_and_what_holds_some_of_them_up(staged: Staged) -> None:
    for name in ("m3", "m1", "m2"):
        await staged.machine(name)
    await staged.alive(METALMAN)
    await staged.api.patch(MACHINES, "m2", {"metadata": {"annotations": {ANNOTATION_PAUSED: "true"}}})
    selector = "unbounded-cloud.io/site=lab"
    (change,) = await staged.plan(*REBOOT, "-l", selector, "--max-concurrent", "2")
    assert change.operation is not None
    shown = [(one.wave, one.machine, one.operation, bool(one.held)) for one in change.operation.targets]
    assert shown == [(1, "m1", "op-m1", False), (1, "m2", "op-m2", True), (2, "m3", "op-m3", False)]
    assert len(change.operation.loses) == 3


STAGES: Final = """
stages:
- {name: canary, size: 1, soakSeconds: 300, pauseAfter: true}
- {name: some, size: 50%, maxConcurrent: 1, startAfter: {stage: canary, targets: 1}}
- {name: rest, size: 100%}
orderBy: unit
onFailure: Halt
"""


def _stages_file(folder: str) -> str:
    file = Path(folder, "stages.yaml")
    file.write_text(STAGES)
    return str(file)


@story
async def test_stages_are_shown_in_order_with_their_limits(staged: Staged) -> None:
    for number in range(4):
        await staged.machine(f"m{number}")
        await staged.api.patch(MACHINES, f"m{number}", {"metadata": {"labels": {"unit": str(9 - number)}}})
    await staged.alive(METALMAN)
    with tempfile.TemporaryDirectory() as folder:
        text = await staged.shown(*REBOOT, "-l", "unbounded-cloud.io/site=lab", "--strategy", _stages_file(folder))
    shown = [line.strip() for line in text.splitlines() if line.startswith(("  stage", "  1.", "  2.", "  3.", "  4."))]
    assert shown == [
        "stage canary: 1 Machine, at most 10 at once; its Nodes have to stay Ready for 300 s, then it pauses",
        "1. m3 by metalman/lab: starts in its turn",
        "stage some: 2 Machines, at most 1 at once; after 1 of stage canary",
        "2. m2 by metalman/lab: starts in its turn",
        "3. m1 by metalman/lab: starts in its turn",
        "stage rest: 1 Machine, at most 10 at once; after stage some",
        "4. m0 by metalman/lab: starts in its turn",
    ]
    assert "after 1 failure in one stage, no further ones start: it halts" in text


@story
async def test_hundreds_are_shown_in_few_lines(staged: Staged) -> None:
    for number in range(100):
        await staged.machine(f"m{number:03}")
    await staged.alive(METALMAN)
    await staged.api.patch(MACHINES, "m070", {"metadata": {"annotations": {ANNOTATION_PAUSED: "true"}}})
    await _no_secret(staged)
    text = await staged.shown(*REBOOT, "-l", "unbounded-cloud.io/site=lab")
    assert "100 Machines, at most 10 at once" in text
    assert "79 of those have the same obstacles as others before them" in text
    assert "8. m070 by metalman/lab: would wait" in text
    assert "3. m021" not in text
    assert "the same on 80 more" in text
    assert len(text.splitlines()) < 110


@story
async def test_what_the_server_refuses(staged: Staged) -> None:
    await staged.machine("m1")
    await staged.alive(METALMAN)
    staged.api.refuses = "spec.operationKind: Unsupported value"
    text = await staged.shown("machine", "host-reboot", "m1")
    assert "the server refuses it: spec.operationKind: Unsupported value" in text


@story
async def test_a_counter_stands_for_an_operation(staged: Staged) -> None:
    await staged.machine("m1")
    await staged.alive(METALMAN)
    (change,) = await staged.plan("machine", "repave", "m1")
    assert change.what == "patch machine.unbounded-cloud.io/m1: requested repave 1"
    assert change.effects == ("its metalman creates HostReplace m1-repave-1",)
    assert change.operation is not None
    assert change.operation.loses == ("m1: everything on its disk: the host is reinstalled from its image",)
    assert change.operation.stages[0].name == "WaitingImage"


@story
async def test_a_pause_and_its_end(staged: Staged) -> None:
    await staged.machine("m1")
    await staged.operation("runs", "HostReboot", "m1", status=claim())
    await staged.operation("waits", "HostReboot", "m1")
    (change,) = await staged.plan("machine", "pause", "m1")
    assert change.effects == (
        "nothing starts any more; of the existing operations that blocks: waits",
        "operations in progress continue: runs",
    )


@story
async def test_the_end_of_a_pause_while_everything_is_paused(staged: Staged) -> None:
    await staged.machine("m1")
    await staged.api.patch(MACHINES, "m1", {"metadata": {"annotations": {ANNOTATION_PAUSED: "true"}}})
    config = {"metadata": {"name": CONFIGMAP_OPERATIONS, "annotations": {ANNOTATION_PAUSED: "true"}}}
    await staged.api.create(CONFIG_MAPS, config, namespace=NAMESPACE)
    await staged.operation("waits", "HostReboot", "m1")
    (change,) = await staged.plan("machine", "resume", "m1")
    assert change.effects[0] == "waiting operations may start: waits"
    assert change.effects[1].startswith("still nothing starts: all operations are paused")
    staged.api.dry = 0
    (change,) = await staged.plan("machine", "resume", "--all")
    assert change.effects == ("waiting operations may start: waits",)


@story
async def test_a_cancel_in_the_middle(staged: Staged) -> None:
    await staged.machine("m1", status={"activeOperation": slot_of("op")})
    await staged.operation("op", "HostPowerOff", "m1", status=claim(stage=power.SHUTTING_DOWN))
    (change,) = await staged.plan("machine", "operation", "cancel", "op")
    assert change.effects == ("in stage ShuttingDown, a cancel undoes the changes, then ends the operation",)


@story
async def test_a_cancel_before_and_after(staged: Staged) -> None:
    await staged.operation("op", "HostReboot", "m1")
    await staged.operation("late", "HostReboot", "m1", status=claim(stage=power.WAITING_ON))
    (change,) = await staged.plan("machine", "operation", "cancel", "op")
    assert change.effects == ("it ends, as it has not started",)
    staged.api.dry = 0
    (change,) = await staged.plan("machine", "operation", "cancel", "late")
    assert change.effects == (
        "in stage WaitingOn, a cancel has no effect: the operation is past the point of no return",
    )


@story
async def test_giving_up_what_is_at_work(staged: Staged) -> None:
    await staged.operation("op", "HostReboot", "m1", status=claim())
    (change,) = await staged.plan("machine", "operation", "abandon", "op")
    assert change.effects == ("it ends once metalman/lab has been silent for 60 s, and not before",)


@story
async def test_one_more_join(staged: Staged) -> None:
    await staged.machine("m1")
    (change,) = await staged.plan("machine", "allow-join", "m1")
    assert change.effects == (
        "its agent may have one more certificate (Allowed/1)",
        "its kubelet may have one more certificate (Allowed/1)",
    )


@story
async def test_plan_of_another_command_names_its_object(staged: Staged) -> None:
    await staged.machine("m1")
    (change,) = await staged.plan("config", "create", "base", "--agent-image", "registry.example.com/node:v1")
    assert change.what == "create machineconfiguration.unbounded-cloud.io/base"
    assert change.operation is None


@pytest.mark.parametrize("kind", PROCEDURES, ids=str)
def test_every_stage_that_is_shown_is_one_that_an_operation_goes_through(kind: OperationKind) -> None:
    """From the start on: neither what undoes a cancel, nor what comes after a failure."""
    procedure = PROCEDURES[kind](operation_of(kind=kind))
    shown = {one.name for one in stages(procedure)}
    undoing = {stage.undo.stage for stage in procedure.stages.values() if stage.undo is not None}
    if kind is OperationKind.HOST_RESCUE:
        undoing -= {"EndingRescue"}  # a cancel ends a rescue as its minutes do
    assert procedure.start in shown
    assert not shown & undoing
    assert not any(procedure.stages[name].is_cleanup for name in shown)


def test_a_merge_patch() -> None:
    assert merged({"a": 1, "b": {"c": 2, "d": 3}}, {"a": None, "b": {"c": 4}, "e": {"f": None, "g": 5}}) == {
        "b": {"c": 4, "d": 3},
        "e": {"g": 5},
    }
    assert merged([1], {"a": 1}) == {"a": 1}


STATIC: Final[dict[str, Any]] = {
    "ethernets": [{"name": "one", "mac": "52:54:00:00:00:0A", "addresses": ["192.0.2.9/24"]}]
}


@story
async def test_plan_of_a_boot_by_virtual_media_names_it(staged: Staged) -> None:
    await staged.machine("m1")
    await staged.api.patch(MACHINES, "m1", {"spec": {"pxe": {"bootMode": "VirtualMedia"}, "network": STATIC}})
    await staged.alive(METALMAN)
    text = await staged.shown("machine", "replace", "m1", "--operation-name", "op")
    assert "it boots the installer from a CD image that its BMC fetches from metalman, ejected at the end" in text
    assert "whether metalman serves boot images, and the BMC fetches one and starts its host from it" in text


@story
async def test_plan_of_a_boot_by_virtual_media_has_its_stages(staged: Staged) -> None:
    await staged.machine("m1")
    await staged.api.patch(MACHINES, "m1", {"spec": {"pxe": {"bootMode": "VirtualMedia"}, "network": STATIC}})
    (change,) = await staged.plan("machine", "replace", "m1", "--operation-name", "op")
    assert change.operation is not None
    stage = next(each for each in change.operation.stages if each.name == "WaitingLoader")
    assert (stage.waits_for, stage.limit_s) == ("the host to start the installer from its virtual CD drive", 1500.0)


@story
async def test_plan_says_that_the_installer_of_virtual_media_has_no_address(staged: Staged) -> None:
    await staged.machine("m1")
    await staged.api.patch(MACHINES, "m1", {"spec": {"pxe": {"bootMode": "VirtualMedia"}, "network": NETWORK}})
    await staged.alive(METALMAN)
    (change,) = await staged.plan("machine", "inspect", "m1", "--operation-name", "op")
    assert change.operation is not None
    (found,) = (each for each in change.operation.targets[0].obstacles if each.reason == "NetworkInvalid")
    assert "or set spec.pxe.dhcpLeases" in found.what


UPDATE_STAGES: Final = [{"name": "canary", "size": 1, "soakSeconds": 60}, {"name": "rest", "size": "100%"}]


async def _outdated(staged: Staged, **rolling: Any) -> None:
    """Four Machines whose Nodes are of version 1, where version 2 exists; their rolling update is paused."""
    strategy = {"type": "RollingUpdate", "maxUnavailable": 2, "rollingUpdate": {"paused": True, **rolling}}
    spec = {"template": {}, "updateStrategy": strategy}
    await staged.api.create(MACHINE_CONFIGURATIONS, {"metadata": {"name": "c"}, "spec": spec})
    for number in (1, 2):
        labels = {LABEL_CONFIGURATION: "c"}
        version: dict[str, Any] = {"version": number, "template": {}}
        meta = {"name": f"c-v{number}", "labels": labels}
        await staged.api.create(MACHINE_CONFIGURATION_VERSIONS, {"metadata": meta, "spec": version})
    made: dict[str, Any] = {"configuration": {"name": "c", "version": 1, "versionName": "c-v1"}}
    made |= {"disruptionBudgets": ["one"], "agent": {"version": "1.0.0", "waitsForGrants": True}}
    for number in range(4):
        await staged.machine(f"m{number}", status=made, kubernetes={}, configurationRef={"name": "c"})
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        await staged.api.create(NODES, {"metadata": {"name": f"m{number}"}})
        await staged.api.patch(NODES, f"m{number}", {"status": ready}, subresource="status")


@story
async def test_plan_of_a_resumed_update_shows_stages_order_and_blockers(staged: Staged) -> None:
    await _outdated(staged, stages=UPDATE_STAGES, orderBy="order")
    await staged.api.patch(MACHINES, "m3", {"metadata": {"labels": {"order": "1"}}})
    await staged.api.patch(NODES, "m1", {"spec": {"unschedulable": True}})
    groups = [{"value": "", "machines": 4, "unavailable": 1, "granted": 0, "allowed": 0}]
    budget = {"machineSelector": {"matchLabels": LAB}, "maxUnavailable": 1}
    await staged.api.create(MACHINE_DISRUPTION_BUDGETS, {"metadata": {"name": "one"}, "spec": budget})
    await staged.api.patch(MACHINE_DISRUPTION_BUDGETS, "one", {"status": {"groups": groups}}, subresource="status")
    (change,) = await staged.plan("config", "resume", "c")
    text = "\n".join(plan_lines([change], wide=True)).splitlines()
    assert text[:3] == [
        "would patch machineconfiguration.unbounded-cloud.io/c: resumed",
        "  stage canary: 1 Machine, at most 2 at once; its Nodes have to stay Ready for 60 s",
        "  1. m3 by unbounded-agent/m3: would wait",
    ]
    room = "MachineDisruptionBudget one has no room now: it lets 1 of 4 Machines be unavailable, and 1 is"
    assert text[3] == f"     {room}"
    assert "  stage rest: 3 Machines, at most 2 at once; after stage canary" in text
    at = text.index("  2. m1 by unbounded-agent/m1: would wait")
    assert text[at + 1] == "     machine/m1 does not start: Node m1 is cordoned, which a new Node would not be"
    assert "     try:  kubectl uncordon m1" in text
    assert [(one.wave, one.machine) for one in _update_of(change).targets] == [
        (1, "m3"), (2, "m0"), (2, "m1"), (3, "m2")
    ]  # fmt: skip
    assert "  4 outdated Machines, at most 2 unavailable at once, in this order;" in text
    assert "  after 1 failure in one stage, it halts" in text
    assert _update_of(change).now.startswith("InProgress: 0 of 4 Nodes have version 2")
    assert "  at work then: m3" in text


@story
async def test_hash_of_an_update_covers_its_order_but_not_its_blockers(staged: Staged) -> None:
    await _outdated(staged)
    hashes = list[str]()
    for change in ({}, {"annotations": {ANNOTATION_PAUSED: "true"}}, {"labels": {"order": "1"}}):
        staged.api.closed = False
        staged.api.dry = 0
        await staged.api.patch(MACHINES, "m3", {"metadata": change})
        if "labels" in change:
            order = {"spec": {"updateStrategy": {"rollingUpdate": {"orderBy": "order"}}}}
            await staged.api.patch(MACHINE_CONFIGURATIONS, "c", order)
        changes = await staged.plan("config", "resume", "c")
        body = {"spec": {"updateStrategy": {"rollingUpdate": {"paused": False}}}}
        intent = Intent(patches=(IntentPatch(MACHINE_CONFIGURATIONS, "c", body, verb="resumed"),))
        hashes.append(plan_hash(intent, changes))
    assert hashes[0] == hashes[1] != hashes[2]


@story
async def test_plan_of_a_paused_update_starts_nothing(staged: Staged) -> None:
    await _outdated(staged, paused=False)
    (change,) = await staged.plan("config", "pause", "c")
    assert _update_of(change).now.startswith("Paused: ")
    assert _update_of(change).starts == ()


@story
async def test_plan_of_an_update_names_the_image_of_each_replaced_host(staged: Staged) -> None:
    await _outdated(staged, host=True)
    redfish = {"url": "https://192.0.2.7", "username": "u", "passwordRef": {"name": "s", "namespace": "n"}}
    spec = {"pxe": {"image": "os:v2", "redfish": redfish}}
    image = {"image": "os:v1", "digest": "sha256:1", "boot": "b", "at": "2030-01-01T00:00:00Z"}
    (before,) = await staged.plan("config", "resume", "c")
    staged.api.closed, staged.api.dry = False, 0
    await staged.api.patch(MACHINES, "m1", {"spec": spec})
    await staged.api.patch(MACHINES, "m1", {"status": {"image": image}}, subresource="status")
    (change,) = await staged.plan("config", "resume", "c")
    text = "\n".join(plan_lines([change], wide=True)).splitlines()
    at = text.index("  1. m1 by metalman/lab: starts in its turn")
    assert text[at + 1] == "     its host is replaced with image os:v2"
    assert "  1. m0 by unbounded-agent/m0: starts in its turn" in text
    assert ", 1 host has another image" in _update_of(change).now
    intent = Intent(patches=())
    assert plan_hash(intent, [before]) != plan_hash(intent, [change])


@story
async def test_stages_without_a_machine_of_theirs_are_refused_in_the_plan(staged: Staged) -> None:
    await _outdated(staged, stages=UPDATE_STAGES[:1])
    text = await staged.shown("config", "resume", "c")
    assert "  no update would start: no stage of spec.strategy has 3 of the 4 Machines (m1, m2, m3)" in text


def _update_of(change: PlannedChange) -> UpdateForecast:
    assert change.update is not None
    return change.update
