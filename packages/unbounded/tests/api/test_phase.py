"""Machine.status.phase, row by row of the table that users read."""

from typing import Any

import msgspec
import pytest

from unbounded.api.core import Node
from unbounded.api.machine import ActiveOperation, JoinStatus, MachineStatus
from unbounded.api.machine_spec import MachineSpec
from unbounded.api.meta import Condition
from unbounded.api.phase import PHASE_MEANING, CurrentPhase, machine_phase

KEY = {"name": "k", "namespace": "unbounded-kube"}
SSH_ONLY = {"ssh": {"host": "10.0.0.5", "privateKeyRef": KEY}}
SSH = SSH_ONLY | {"kubernetes": {}}
BARE_METAL = {"pxe": {"image": "i"}, "kubernetes": {}}
CLOUD = {"provider": "AzureVM", "kubernetes": {}}

REACHABLE = "SSHReachable=True/Reachable"
REPAVING = "Repaved=False/Pending"
NEVER = "Provisioned=Unknown/NotRun"
PROVISIONED = "Provisioned=True/Provisioned"
DONE = "Provisioning=False/Completed"
READY_NODE = {"metadata": {"name": "w"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
UNREADY_NODE = {"metadata": {"name": "w"}, "status": {"conditions": [{"type": "Ready", "status": "False"}]}}
KUBELET_JOINED = {
    "used": [{"purpose": "kubelet", "cause": "Registration", "request": "r", "at": "2026-01-01T00:00:00Z"}]
}
REBOOT = {"uid": "u", "name": "r1", "kind": "HostReboot", "executor": "metalman/lab", "since": "2026-01-01T00:00:00Z"}


def condition(text: str) -> Condition:
    """`Type=Status/Reason: message` as a Condition."""
    head, _, message = text.partition(": ")
    kind, _, rest = head.partition("=")
    status, _, reason = rest.partition("/")
    return Condition(type=kind, status=status, reason=reason, message=message, last_transition_time="")


def phase(
    spec: dict[str, Any],
    *conditions: str,
    node: dict[str, Any] | None = None,
    slot: dict[str, Any] | None = None,
    join: dict[str, Any] | None = None,
) -> CurrentPhase:
    return machine_phase(
        msgspec.convert(spec, MachineSpec),
        conditions=[condition(text) for text in conditions],
        node=msgspec.convert(node, Node | None),
        slot=msgspec.convert(slot, ActiveOperation | None),
        join=msgspec.convert(join, JoinStatus | None),
    )


SSH_TABLE = [
    ("SSH has not been tried", SSH, [], None, "Pending"),
    ("SSH is not known", SSH, ["SSHReachable=Unknown/Pending"], None, "Pending"),
    ("SSH is unreachable", SSH, ["SSHReachable=False/Unreachable: no route"], None, "Pending"),
    ("unreachable, its Node is Ready", SSH, ["SSHReachable=False/Unreachable", DONE], READY_NODE, "Ready"),
    ("unreachable, its Node is not Ready", SSH, ["SSHReachable=False/Unreachable", DONE], UNREADY_NODE, "Ready"),
    ("not tried yet, its Node is Ready", SSH, [], READY_NODE, "Ready"),
    ("unreachable, reset since", SSH, ["SSHReachable=False/Unreachable", "Provisioned=False/Reset"], UNREADY_NODE,
     "Pending"),
    ("unreachable, reset since, joined by hand", SSH,
     ["SSHReachable=False/Unreachable", "Provisioned=False/Reset"], READY_NODE, "Ready"),
    ("unreachable before it joined", SSH, ["SSHReachable=False/Unreachable", DONE, PROVISIONED], None, "Pending"),
    ("unreachable, no node wanted", SSH_ONLY, ["SSHReachable=False/Unreachable"], None, "Pending"),
    ("reachable, no node wanted", SSH_ONLY, [REACHABLE], None, "Ready"),
    ("reachable, nothing done", SSH, [REACHABLE], None, "Pending"),
    ("install script runs", SSH, [REACHABLE, "Provisioning=True/InProgress"], None, "Provisioning"),
    ("install script failed", SSH, [REACHABLE, "Provisioning=False/Failed: exit 1"], None, "Failed"),
    ("provisioned, no Node", SSH, [REACHABLE, DONE, PROVISIONED], None, "Joining"),
    ("Node exists", SSH, [REACHABLE, DONE, PROVISIONED], READY_NODE, "Ready"),
    ("Node exists, not Ready", SSH, [REACHABLE, DONE, PROVISIONED], UNREADY_NODE, "Ready"),
    ("Node came without SSH provisioning", SSH | BARE_METAL, [REACHABLE], READY_NODE, "Ready"),
    ("first visit", SSH, [REACHABLE, "Provisioning=Unknown/NotRun", NEVER], None, "Pending"),
    ("held by a pause", SSH, [REACHABLE, "Provisioning=Unknown/Waiting: paused", NEVER], None, "Pending"),
    ("cluster is not known", SSH, [REACHABLE, "Provisioning=Unknown/FactsMissing"], None, "Pending"),
    ("held by a pause, joined", SSH, [REACHABLE, "Provisioning=Unknown/Waiting", PROVISIONED], READY_NODE, "Ready"),
    ("another install runs, joined", SSH, [REACHABLE, "Provisioning=True/InProgress"], READY_NODE, "Provisioning"),
    ("another install failed, joined", SSH, [REACHABLE, "Provisioning=False/Failed"], READY_NODE, "Ready"),
    ("another install failed, its Node is down", SSH, [REACHABLE, "Provisioning=False/Failed"], UNREADY_NODE,
     "Failed"),
    ("token is missing", SSH, [REACHABLE, "Provisioning=False/TokenUnusable: none"], None, "Failed"),
    ("reset since, its Node is left", SSH, [REACHABLE, DONE, "Provisioned=False/Reset"], UNREADY_NODE, "Pending"),
    ("reset since, joined by hand", SSH, [REACHABLE, DONE, "Provisioned=False/Reset"], READY_NODE, "Ready"),
    ("reset since", SSH, [REACHABLE, DONE, "Provisioned=False/Reset: reset"], None, "Pending"),
    ("set up by its image", SSH | BARE_METAL, [REACHABLE, "Repaved=True/Succeeded", NEVER], None, "Joining"),
    ("no configuration matches", SSH, [REACHABLE, "ConfigurationPending=True/Pending"], None, "Pending"),
    ("joined, configuration gone", SSH, [REACHABLE, "ConfigurationPending=True/Pending"], READY_NODE, "Ready"),
]  # fmt: skip

OTHER_TABLE = [
    ("nothing reported", BARE_METAL, [], None, "Pending"),
    ("cloud VM, nothing reported", CLOUD, [], None, "Pending"),
    ("no node wanted", {"provider": "AzureVM"}, [], None, "Ready"),
    ("empty spec", {}, [], None, "Ready"),
    ("Node exists", BARE_METAL, [], READY_NODE, "Ready"),
    ("stale SSH conditions do not count", CLOUD, ["SSHReachable=False/Unreachable"], READY_NODE, "Ready"),
    ("image is being written", BARE_METAL, [REPAVING], None, "Provisioning"),
    ("image is written again", BARE_METAL, [REPAVING, PROVISIONED], None, "Provisioning"),
    ("cloud-init runs", BARE_METAL, ["Repaved=True/Succeeded", "CloudInitDone=False/Running"], None, "Provisioning"),
    ("cloud-init failed", BARE_METAL, ["Repaved=True/Succeeded", "CloudInitDone=False/Failed"], None, "Failed"),
    ("cloud-init was never done", BARE_METAL, ["CloudInitDone=Unknown/TimedOut"], None, "Failed"),
    ("image is written", BARE_METAL, ["Repaved=True/Succeeded"], None, "Joining"),
    ("reset since, its Node is left", CLOUD, ["AgentBootstrapped=False/Reset"], UNREADY_NODE, "Pending"),
    ("reset since", CLOUD, ["AgentBootstrapped=False/Reset"], None, "Pending"),
    ("reset since, and started again", CLOUD, ["AgentBootstrapped=False/Reset"], READY_NODE, "Ready"),
    ("agent is up", CLOUD, ["AgentBootstrapped=True/Succeeded"], None, "Joining"),
    ("powered off", BARE_METAL, ["PoweredOff=True/PoweredOff"], READY_NODE, "Pending"),
    ("going down", BARE_METAL, ["PoweredOff=False/PoweringOff"], READY_NODE, "Ready"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "conditions", "node", "expected"),
    [pytest.param(*row[1:], id=row[0]) for row in SSH_TABLE],
)
def test_a_machine_with_ssh(
    spec: dict[str, Any], conditions: list[str], node: dict[str, Any] | None, expected: str
) -> None:
    assert phase(spec, *conditions, node=node).phase == expected


@pytest.mark.parametrize(
    ("spec", "conditions", "node", "expected"),
    [pytest.param(*row[1:], id=row[0]) for row in OTHER_TABLE],
)
def test_a_machine_without_ssh(
    spec: dict[str, Any], conditions: list[str], node: dict[str, Any] | None, expected: str
) -> None:
    assert phase(spec, *conditions, node=node).phase == expected


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("HostReboot", "Rebooting"),
        ("HostReplace", "Provisioning"),
        ("HostPowerOff", "Ready"),
        ("HostPowerOn", "Ready"),
        ("NodeReboot", "Ready"),
        ("AgentUpgrade", "Ready"),
    ],
)
def test_the_slot_counts_before_everything_else(kind: str, expected: str) -> None:
    assert phase(BARE_METAL, node=READY_NODE, slot=REBOOT | {"kind": kind}).phase == expected


def test_phase_during_reboot_ignores_lost_ssh_and_power_off() -> None:
    down = ["SSHReachable=False/Unreachable", "PoweredOff=True/PoweredOff"]
    now = phase(SSH | BARE_METAL, *down, node=READY_NODE, slot=REBOOT)
    assert now == ("Rebooting", "HostReboot r1 by metalman/lab", "HostReboot")


def test_a_lost_executor_is_said() -> None:
    assert "executor is silent" in phase(BARE_METAL, slot=REBOOT | {"lost": True}).message


def test_phase_of_a_joined_machine_follows_its_node_not_ssh() -> None:
    """Seen: `Pending: connection refused` of Machines whose Nodes served, for as long as a firewall was closed."""
    away = ["SSHReachable=False/Unreachable: no route to host", DONE, PROVISIONED]
    assert phase(SSH, *away, node=READY_NODE) == ("Ready", "Node w joined", "")
    assert phase(SSH, *away, node=UNREADY_NODE) == ("Ready", "Node w joined, but is not Ready", "NodeNotReady")
    assert phase(SSH, *away, join=KUBELET_JOINED) == ("Joining", "Provisioned; waiting for its Node", "")
    assert phase(SSH, *away) == ("Pending", "no route to host", "Unreachable")


def test_only_a_kubelets_certificate_is_a_join() -> None:
    agent = {"used": [{**KUBELET_JOINED["used"][0], "purpose": "agent"}]}
    assert phase(SSH, "SSHReachable=False/Unreachable", DONE, PROVISIONED, join=agent).phase == "Pending"


@pytest.mark.parametrize("node", [READY_NODE, UNREADY_NODE, None], ids=["Ready", "not Ready", "gone"])
@pytest.mark.parametrize("spec", [SSH, CLOUD], ids=["ssh", "cloud"])
def test_a_machine_whose_reset_on_deletion_fails_is_not_ready(spec: Any, node: Any) -> None:
    """Seen: `Ready` while the host could not be reset, for all of the 15 minutes that the Machine was held."""
    now = phase(spec, REACHABLE, DONE, PROVISIONED, "HostReset=False/Failed: no answer", node=node)
    assert now == ("Failed", "no answer", "Failed")
    assert phase(spec, REACHABLE, "HostReset=False/InProgress", node=READY_NODE).phase == "Ready"


def test_the_message_of_the_deciding_condition_is_shown() -> None:
    assert phase(SSH, "SSHReachable=False/Unreachable: no route to host").message == "no route to host"
    assert phase(SSH, REACHABLE, "Provisioning=False/Failed: exit 1").message == "exit 1"


def test_a_change_of_the_reason_alone_is_written() -> None:
    now = phase(SSH, REACHABLE, "Provisioning=False/DiskFull: exit 1")
    same = {"phase": "Failed", "message": "exit 1", "reason": "DiskFull"}
    assert now.change(msgspec.convert(same, MachineStatus)) == {}
    assert now.change(msgspec.convert(same | {"reason": "Failed"}, MachineStatus)) == same
    ready = phase(SSH, REACHABLE, DONE, node=READY_NODE)
    assert ready.change(msgspec.convert(same, MachineStatus))["reason"] is None


def test_what_holds_the_setting_up_is_said() -> None:
    assert phase(SSH, REACHABLE, "Provisioning=Unknown/Waiting: paused by Ada").message == "paused by Ada"
    assert phase(SSH, REACHABLE, "Provisioning=Unknown/NotRun: an agent is there").message == "an agent is there"
    assert phase(SSH, REACHABLE, DONE, "Provisioned=False/Reset: reset since").message == "reset since"


def test_an_unready_node_is_said() -> None:
    assert phase(BARE_METAL, node=READY_NODE).message == "Node w joined"
    assert phase(BARE_METAL, node=UNREADY_NODE).message == "Node w joined, but is not Ready"


def test_every_phase_is_explained_and_reached() -> None:
    reached = {row[-1] for row in SSH_TABLE + OTHER_TABLE} | {"Rebooting"}
    assert reached == set(PHASE_MEANING)
