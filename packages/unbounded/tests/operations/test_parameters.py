"""Valid content of spec.parameters: the refusal names the field and the valid values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.operations.building import operation_of
from unbounded.api.operation import MachineOperation, OperationKind
from unbounded.operations.executor_selection import ExecutorKind
from unbounded.operations.parameters import (
    TABLE,
    accepted_pcrs,
    disks_to_erase,
    erased_disks,
    grace_s,
    invalid,
    is_forced,
)

URL = "https://example.com/agent.tar.gz"
KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHqczVtRFNAxbrJtsSlx9izzEO4fOvY32RAAoFjZmvZ+"
BLOB = "AAAAC3NzaC1lZDI1NTE5AAAAIJX1"


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        ("HostReboot", {}),
        ("HostReboot", {"force": "true"}),
        ("HostPowerOff", {"force": "false", "graceSeconds": "0"}),
        ("HostPowerOff", {"graceSeconds": "3600"}),
        ("AgentUpgrade", {"downloadURL": URL, "sha256": "a" * 64, "retryFailedDigest": "true"}),
        ("AgentUpgrade", {"downloadURL": URL, "sha256": "sha256:" + "A" * 64}),
        ("HostReplace", {"imageID": "x", "assignPublicIP": "false", "keep": "strict"}),
        ("HostReplace", {"sshAuthorizedKeys": f"# ours\nssh-ed25519 {BLOB} me@here\nrestrict,pty ssh-rsa {BLOB}==\n"}),
        ("HostReplace", {"sshAuthorizedKeys": f"sk-ecdsa-sha2-nistp256@openssh.com {BLOB}"}),
        ("NodeReboot", {}),
        ("HostRescue", {"authorizedKeys": KEY}),
        ("FirmwareUpdate", {"imageURI": "http://images.example.com/BIOS-2.5.0.bin", "targets": "BIOS,NIC.Slot.1-1"}),
        ("HostRescue", {"authorizedKeys": f"{KEY} me@here (laptop)\n{KEY}\n", "minutes": "1440", "graceSeconds": "5"}),
    ],
)
def test_these_are_right(kind: str, parameters: dict[str, str]) -> None:
    assert invalid(operation_of(kind=kind, parameters=parameters)) is None


@pytest.mark.parametrize(
    ("kind", "parameters", "words"),
    [
        ("HostReboot", {"force": "yes"}, ("spec.parameters.force", '"true" or "false"', "'yes'")),
        ("HostReboot", {"force": "True"}, ("spec.parameters.force",)),
        ("HostReboot", {"graceSeconds": "-1"}, ("spec.parameters.graceSeconds", "0 to 3600")),
        ("HostReboot", {"graceSeconds": "3601"}, ("spec.parameters.graceSeconds",)),
        ("HostReboot", {"graceSeconds": "1.5"}, ("spec.parameters.graceSeconds",)),
        ("HostReboot", {"graceSeconds": "٣"}, ("spec.parameters.graceSeconds",)),
        ("HostReboot", {"graceSeconds": "9" * 5000}, ("spec.parameters.graceSeconds",)),
        ("HostReboot", {"gracseconds": "1"}, ("spec.parameters.gracseconds", "force, graceSeconds")),
        ("HostPowerOn", {"force": "true"}, ("spec.parameters.force", "HostPowerOn")),
        ("HostReplace", {"keep": "Strict"}, ("spec.parameters.keep", 'must be "strict", or absent', "'Strict'")),
        ("HostReplace", {"sshAuthorizedKeys": "garbage"}, ("spec.parameters.sshAuthorizedKeys", "ssh-ed25519 AAAA…")),
        ("HostReplace", {"sshAuthorizedKeys": f"ssh-ed25519 {BLOB}\nssh-rsa"}, ("spec.parameters.sshAuthorizedKeys",)),
        ("HostReplace", {"sshAuthorizedKeys": "# none"}, ("spec.parameters.sshAuthorizedKeys",)),
        ("NodeReboot", {"force": "true"}, ("spec.parameters.force", "none")),
        ("AgentUpgrade", {}, ("spec.parameters.downloadURL", "required")),
        ("AgentUpgrade", {"downloadURL": " "}, ("spec.parameters.downloadURL", "required")),
        ("AgentUpgrade", {"downloadURL": "ftp://x/y"}, ("spec.parameters.downloadURL", "https")),
        ("AgentUpgrade", {"downloadURL": "https://u:p@x/y"}, ("spec.parameters.downloadURL",)),
        ("AgentUpgrade", {"downloadURL": "https://[::1/y"}, ("spec.parameters.downloadURL",)),
        ("AgentUpgrade", {"downloadURL": URL, "sha256": "abc"}, ("spec.parameters.sha256", "64 hexadecimal")),
        ("HostRescue", {}, ("spec.parameters.authorizedKeys", "required")),
        ("FirmwareUpdate", {}, ("spec.parameters.imageURI", "required")),
        ("FirmwareUpdate", {"imageURI": "ftp://x/y"}, ("spec.parameters.imageURI",)),
        ("FirmwareUpdate", {"imageURI": "https://x/y", "targets": "/redfish/v1"}, ("spec.parameters.targets",)),
        ("FirmwareUpdate", {"imageURI": "https://x/y", "targets": "BIOS,BIOS"}, ("spec.parameters.targets", "once")),
        (
            "HostRescue",
            {"authorizedKeys": f'command="sh" {KEY}'},
            ("spec.parameters.authorizedKeys", "without options"),
        ),
        ("HostRescue", {"authorizedKeys": f'{KEY} "me"'}, ("spec.parameters.authorizedKeys",)),
        ("HostRescue", {"authorizedKeys": KEY.replace("25519 ", "25519  ")}, ("spec.parameters.authorizedKeys",)),
        ("HostRescue", {"authorizedKeys": KEY[:-8]}, ("spec.parameters.authorizedKeys",)),
        ("HostRescue", {"authorizedKeys": KEY.replace("ed25519", "rsa", 1)}, ("spec.parameters.authorizedKeys",)),
        ("HostRescue", {"authorizedKeys": "\n".join([KEY] * 17)}, ("spec.parameters.authorizedKeys", "1 to 16")),
        ("HostRescue", {"authorizedKeys": KEY, "minutes": "0"}, ("spec.parameters.minutes", "1 to 1440")),
        ("HostRescue", {"authorizedKeys": KEY, "minutes": "1441"}, ("spec.parameters.minutes",)),
    ],
)
def test_a_wrong_one_is_named_with_what_would_be_right(
    kind: str, parameters: dict[str, str], words: tuple[str, ...]
) -> None:
    text = invalid(operation_of(kind=kind, parameters=parameters))
    assert text is not None
    assert all(word in text for word in words), text


SERIALS = "comma-separated serial numbers of disks, exactly as in status.hardware, each once"


def host_erase(disks: str | None, **annotations: str) -> MachineOperation:
    operation = operation_of(kind="HostErase", parameters={} if disks is None else {"disks": disks})
    known = annotations or {"unbounded-cloud.io/requested-by": "alice"}
    return replace(operation, metadata=replace(operation.metadata, annotations=known))


@pytest.mark.parametrize("disks", ["All", "S1", "S1,S2", "S 1,all", ",".join(f"S{number}" for number in range(128))])
def test_disks_of_an_erasure_are_all_or_named(disks: str) -> None:
    assert invalid(host_erase(disks)) is None
    assert disks_to_erase(host_erase(disks)) == tuple(disks.split(","))


@pytest.mark.parametrize(
    "disks",
    ["", "S1,", "S1, S2", "S1,S1", "All,S1", " All", ",".join(f"S{number}" for number in range(129))],
)
def test_other_disks_of_an_erasure_are_refused(disks: str) -> None:
    words = f"spec.parameters.disks must be All, or at most 128 {SERIALS}"
    missing = "spec.parameters.disks is required for HostErase"
    assert (invalid(host_erase(disks)) or "").startswith(words if disks else missing)
    assert disks_to_erase(host_erase(disks)) == ()


def test_an_erasure_without_disks_or_by_nobody_or_of_many_machines_is_refused() -> None:
    assert invalid(host_erase(None)) == "spec.parameters.disks is required for HostErase"
    assert "needs the annotation unbounded-cloud.io/requested-by" in (invalid(host_erase("All", other="x")) or "")
    many = host_erase("All")
    many = replace(many, spec=replace(many.spec, machine_ref=None))
    assert (invalid(many) or "").startswith("spec.parameters.disks needs spec.machineRef")
    for refused in (host_erase("All", other="x"), many):
        assert disks_to_erase(refused) == ()


def test_what_means_something_to_clouds_only_is_refused_on_bare_metal() -> None:
    operation = operation_of(kind="HostPowerOff", parameters={"deallocate": "true"})
    assert invalid(operation) is None
    assert invalid(operation, ExecutorKind.CLOUD) is None
    text = invalid(operation, ExecutorKind.METALMAN)
    assert text is not None
    assert "spec.parameters.deallocate" in text


def test_unknown_parameter_message_lists_the_supported_ones() -> None:
    operation = operation_of(kind="HostReboot", parameters={"colour": "red"})
    for known, words in (
        ((), "; parameters of other Machines: force, graceSeconds"),
        ((ExecutorKind.METALMAN,), " on this Machine; supported: force, graceSeconds"),
        (
            (ExecutorKind.CLOUD,),
            " on this Machine; its provider supports a subset of: force, grace",
        ),
        ((ExecutorKind.CLOUD, {"force"}), " on this Machine; supported: force"),
        ((ExecutorKind.CLOUD, ()), " on this Machine; supported: none"),
    ):
        assert f"spec.parameters.colour is not a parameter of HostReboot{words}" in (invalid(operation, *known) or "")


def test_a_long_value_is_not_repeated_whole() -> None:
    text = invalid(operation_of(parameters={"force": "x" * 10_000}))
    assert text is not None
    assert len(text) < 300


@pytest.mark.slow
@given(st.sampled_from(OperationKind), st.sampled_from([p.name for p in TABLE]), st.text(max_size=40))
def test_any_value_is_right_or_refused_with_its_name(kind: OperationKind, name: str, value: str) -> None:
    required = {
        OperationKind.AGENT_UPGRADE: {"downloadURL": URL},
        OperationKind.HOST_ERASE: {"disks": "S1"},
        OperationKind.HOST_RESCUE: {"authorizedKeys": KEY},
        OperationKind.FIRMWARE_UPDATE: {"imageURI": "https://x/y"},
    }
    operation = host_erase("S1")
    spec = replace(operation.spec, operation_kind=kind, parameters={**required.get(kind, {}), name: value})
    text = invalid(replace(operation, spec=spec))
    assert text is None or f"spec.parameters.{name}" in text


@pytest.mark.slow
@given(st.text(max_size=8))
def test_a_grace_that_is_admitted_can_be_read(value: str) -> None:
    operation = operation_of(parameters={"graceSeconds": value})
    if invalid(operation) is None:
        assert 0 <= grace_s(operation) <= 3600


def test_the_defaults_are_a_grace_of_two_minutes_and_no_force() -> None:
    assert (grace_s(operation_of()), is_forced(operation_of())) == (120, False)
    assert is_forced(operation_of(parameters={"force": "true"}))


BY, COPY = "unbounded-cloud.io/requested-by", "unbounded-cloud.io/migrated-from"


def erasing(value: str, kind: str = "HostReplace", **annotations: str) -> MachineOperation:
    made = operation_of(kind=kind, parameters={"eraseDisks": value})
    return replace(made, metadata=replace(made.metadata, annotations=annotations))


@pytest.mark.parametrize("value", ["S1", "S1,S2", "A 1,s1", "-1"])
def test_disks_to_erase_are_named_by_their_serial_numbers(value: str) -> None:
    operation = erasing(value, **{BY: "alice"})
    assert invalid(operation, ExecutorKind.METALMAN) is None
    assert erased_disks(operation) == tuple(value.split(","))
    assert "is not a parameter of HostReplace" in (invalid(operation, ExecutorKind.CLOUD) or "")


@pytest.mark.parametrize("value", ["", " ", ",", "S1,", "S1,S1", "S1, S2", " S1"])
def test_a_list_that_names_no_disks_permits_nothing(value: str) -> None:
    operation = erasing(value, **{BY: "alice"})
    assert "must be comma-separated serial numbers" in (invalid(operation) or "")
    assert erased_disks(operation) == ()


@pytest.mark.parametrize(
    ("operation", "words"),
    [
        (erasing("S1"), "needs the annotation unbounded-cloud.io/requested-by"),
        (erasing("S1", **{BY: ""}), "needs the annotation unbounded-cloud.io/requested-by"),
        (erasing("S1", **{BY: "alice", COPY: "m/1"}), "is not valid in a copy of a migration"),
        (erasing("S1", "HostReboot", **{BY: "alice"}), "is not a parameter of HostReboot"),
        (
            replace(erasing("S1", **{BY: "alice"}), spec=replace(erasing("S1").spec, machine_ref=None)),
            "needs spec.machineRef",
        ),
    ],
)
def test_erasure_needs_a_person_and_one_machine(operation: MachineOperation, words: str) -> None:
    assert words in (invalid(operation) or "")
    assert erased_disks(operation) == ()


def accepting(value: str, **annotations: str) -> MachineOperation:
    made = operation_of(kind="HostReplace", parameters={"acceptPCRs": value})
    return replace(made, metadata=replace(made.metadata, annotations=annotations))


def test_accepted_pcrs_are_those_that_a_boot_is_compared_by() -> None:
    operation = accepting("0,12", **{BY: "alice"})
    assert invalid(operation, ExecutorKind.METALMAN) is None
    assert accepted_pcrs(operation) == {0, 12}
    for value in ("", "8", "0,0", "0, 1", "-1", "x", "07", "0,24"):
        wrong = accepting(value, **{BY: "alice"})
        assert "must be comma-separated numbers of PCRs, of 0, 1, 2" in (invalid(wrong) or "")
        assert accepted_pcrs(wrong) == frozenset()


def test_acceptance_of_a_boot_needs_a_person() -> None:
    for marks, words in (({}, "needs the annotation"), ({BY: "alice", COPY: "m/1"}, "is not valid in a copy")):
        operation = accepting("0", **marks)
        assert f"spec.parameters.acceptPCRs {words}" in (invalid(operation) or "")
        assert accepted_pcrs(operation) == frozenset()
