"""Machines that are stuck, each with the one right answer. The conditions are as their writers set them."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import pytest

from tests.explain.staging import MACHINA, abouts, beat, commands, typed, why
from tests.operations.building import REDFISH, slot_of
from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import run_virtual, virtual_now
from unbounded.api.conditions import CONDITIONS, ConditionReason, ConditionType
from unbounded.api.configuration import MACHINE_CONFIGURATIONS
from unbounded.api.core import CONFIG_MAPS, EVENTS, NODES
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.names import ANNOTATION_PAUSED, CONFIGMAP_OPERATIONS, FINALIZER_RESET, NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.cli.deploy import components
from unbounded.explain.conditions import NOTICES, TABLE
from unbounded.explain.fix_commands import ssh_command
from unbounded.explain.fixes import OPERATION
from unbounded.explain.links import ExplainLink, Topic
from unbounded.explain.ssh_fixes import OF_RESET
from unbounded.machineops import reasons as cloud
from unbounded.metalman import reasons as metal
from unbounded.operations import reasons

Body = dict[str, Any]
AT: Final = "2030-01-01T00:00:00Z"
KEY: Final = {"name": "ssh-lab", "namespace": "unbounded-kube"}
SSH: Final = {"host": "10.0.0.5:2222", "username": "root", "privateKeyRef": KEY}
PINNED: Final = {"hostKeys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAA"]}
BASTION: Final = {"host": "jump.example.com", "username": "jump"}
PATCH: Final = "kubectl patch mach m1 --type=merge -p "
STATUS: Final = "kubectl patch mach m1 --subresource=status --type=merge -p "


def said(kind: str, status: str, reason: str, message: str = "") -> Body:
    return {"type": kind, "status": status, "reason": reason, "message": message, "lastTransitionTime": AT}


REACHABLE: Final = said("SSHReachable", "True", "Reachable")


async def machine(api: MemoryApi, *conditions: Body, status: Body | None = None, **spec: Any) -> None:
    """A Machine m1 of site lab."""
    labels = {"unbounded-cloud.io/site": "lab"}
    await api.create(MACHINES, {"metadata": {"name": "m1", "labels": labels}, "spec": spec})
    body = {"conditions": list(conditions), **(status or {})}
    await api.patch(MACHINES, "m1", {"status": body}, subresource="status")


async def ask(api: MemoryApi, **options: Any) -> tuple[ExplainLink, ...]:
    return await why(api, "m1", topic=Topic.MACHINE, **options)


def told(report: Callable[[MemoryApi], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """A test from a story on an API of its own."""

    def test() -> None:
        async def run() -> None:
            await report(MemoryApi(now=virtual_now))

        run_virtual(run())

    test.__name__, test.__doc__, test.__module__ = report.__name__, report.__doc__, report.__module__
    return test


@dataclass(frozen=True)
class Case:
    """One condition, and the explanation.

    Attributes:
        phase: the begin of the explanation.
        command: the first one to type; empty if there is nothing to do.
    """

    id: str
    conditions: tuple[Body, ...]
    phase: str
    words: str
    command: str
    ssh: Body | None = None
    pxe: Body | None = None
    status: Body | None = None


def failed(reason: str, text: str) -> tuple[Body, ...]:
    return (REACHABLE, said("Provisioning", "False", reason, text))


def unreachable(text: str) -> Body:
    return said("SSHReachable", "False", "Unreachable", text)


PXE: Final = {"image": "i", "redfish": REDFISH}

CASES: Final = (
    Case(
        "no configuration",
        (REACHABLE, said("ConfigurationPending", "True", "Pending", "MachineConfiguration c has no version yet")),
        "Pending",
        "has no version yet",
        "kubectl unbounded config assign OTHER m1",
        SSH,
    ),
    Case(
        "another key than those that are named",
        failed("HostKeyChanged", "host 10.0.0.5:2222: shows the host key SHA256:b"),
        "Failed",
        "shows the host key SHA256:b",
        "kubectl unbounded machine trust-host-key m1 --host-key KEY",
        SSH | PINNED,
    ),
    Case(
        "another key than those that are named of the bastion",
        (said("SSHReachable", "False", "HostKeyChanged", "bastion jump.example.com:22: shows another"),),
        "Pending",
        "shows another",
        "kubectl unbounded machine trust-host-key m1 --host-key KEY",
        SSH | {"bastion": BASTION | PINNED},
        status={"ssh": {"failedHop": "bastion"}},
    ),
    Case(
        "its turn has not come",
        (REACHABLE, said("Provisioning", "Unknown", "Waiting", "50 other hosts are being set up")),
        "Pending",
        "50 other hosts are being set up",
        "",
        SSH,
    ),
    Case(
        "machina lacks the right to read its key",
        failed("SecretForbidden", "spec.ssh.privateKeyRef: Secret unbounded-kube/ssh-lab may not be read: forbidden"),
        "Failed",
        "may not be read",
        "kubectl unbounded install",
        SSH,
    ),
    Case(
        "machina lacks the right to list tokens",
        failed("TokenForbidden", "default bootstrap tokens may not be read (forbidden): name one"),
        "Failed",
        "may not be read",
        PATCH + """'{"spec": {"kubernetes": {"bootstrapTokenRef": {"name": "bootstrap-token-ID"}}}}'""",
        SSH,
    ),
    Case(
        "reset, and not allowed to join",
        (REACHABLE, said("Provisioned", "False", "Reset", "its agent was reset")),
        "Pending",
        "its agent was reset",
        "kubectl unbounded machine allow-join m1",
        SSH,
    ),
    Case(
        "image cannot be pulled",
        (said("NetbootImageReady", "False", "PullFailed", "registry: denied"),),
        "Pending",
        "registry: denied",
        PATCH + """'{"spec": {"pxe": {"image": "IMAGE"}}}'""",
        None,
        PXE,
    ),
    Case(
        "netboot image cannot be pulled without its Secret",
        (
            said(
                "NetbootImageReady", "False", "PullFailed", "Secret ns/pull (spec.pxe.netbootPullSecretRef) is missing"
            ),
        ),
        "Pending",
        "is missing",
        "kubectl -n ns create secret docker-registry pull --docker-server=REGISTRY --docker-username=USER"
        " --docker-password=PASSWORD --dry-run=client -o yaml | kubectl apply -f -",
        None,
        PXE | {"netbootPullSecretRef": {"name": "pull", "namespace": "ns"}},
    ),
    Case(
        "address is somebody's else",
        (said("NetbootServed", "False", "AddressInUse", "192.0.2.1 is in use"),),
        "Pending",
        "is in use",
        "kubectl edit mach m1",
        None,
        PXE,
    ),
    Case(
        "another TPM",
        (said("Attested", "False", "ForeignEK", "another TPM answers"),),
        "Pending",
        "another TPM",
        STATUS + """'{"status": {"tpm": {"ekPublicKey": null}}}'""",
        None,
        PXE,
    ),
    Case(
        "cloud-init failed",
        (said("Repaved", "True", "Succeeded"), said("CloudInitDone", "False", "Failed", "module runcmd failed")),
        "Failed",
        "module runcmd failed",
        "kubectl unbounded machine replace m1",
        None,
        PXE,
    ),
    Case(
        "no working node",
        (said("NodeUpdated", "False", "NoWorkingNode", "v1.35 did not work"),),
        "Pending",
        "v1.35 did not work",
        "sudo unbounded-agent status",
        None,
        PXE,
    ),
    Case(
        "nobody knows what a recreation came to",
        (said("NodeUpdated", "Unknown", "Failed", "the state of the recreation cannot be read"),),
        "Pending",
        "the state of the recreation cannot be read",
        "sudo unbounded-agent status",
        None,
        PXE,
    ),
    Case(
        "nothing has begun with it",
        (),
        "Pending",
        "The host is not provisioned yet",
        "kubectl unbounded machine replace m1",
        None,
        PXE,
    ),
    Case(
        "switched off",
        (said("PoweredOff", "True", "PoweredOff"),),
        "Pending",
        "powered off",
        "kubectl unbounded machine power-on m1",
        None,
        PXE,
    ),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id.replace(" ", "-"))
def test_a_condition_is_the_first_cause(case: Case) -> None:
    async def run() -> None:
        api = MemoryApi(now=virtual_now)
        spec = {"ssh": case.ssh} if case.ssh else {"pxe": case.pxe}
        await machine(api, *case.conditions, status=case.status, kubernetes={}, **spec)
        (link,) = await ask(api)
        assert link.what.startswith(f"{case.phase}: ")
        assert case.words in link.what
        assert link.since == (AT if case.conditions else "")
        assert [*commands([link]), ""][0] == case.command

    run_virtual(run())


@told
async def test_the_printed_command_trusts_the_key_that_is_shown(api: MemoryApi) -> None:
    shown = {"untrusted": [{"hop": "host", "fingerprint": "SHA256:b"}]}
    status = {"ssh": {"fingerprint": "SHA256:a", "bastionFingerprint": "SHA256:c"} | shown}
    await machine(api, *failed("HostKeyChanged", "10.0.0.5:2222 shows another"), status=status, ssh=SSH, kubernetes={})
    (link,) = await ask(api)
    await typed(api, commands([link])[0])
    pins = (await api.get(MACHINES, "m1")).status.ssh
    assert pins is not None
    assert (pins.fingerprint, pins.bastion_fingerprint, pins.untrusted) == ("SHA256:b", "SHA256:c", ())
    assert link.fixes[0].does == "trusts the key SHA256:b, if it is the server's own"


@told
async def test_machina_is_not_running(api: MemoryApi) -> None:
    """A host that is down, and no machina that would notice its return."""
    await beat(api, MACHINA, renewed="2029-12-31T23:00:00Z")
    await machine(api, unreachable("10.0.0.5:2222: connection refused"), ssh=SSH)
    links = await ask(api, alive=())
    assert abouts(links) == ["machine/m1", "machina"]
    assert "is not running: Lease unbounded-kube/unbounded-operations was last renewed at" in links[1].what
    assert commands(links)[0] == "kubectl -n unbounded-kube rollout restart deployment/machina-controller"


@told
async def test_why_reports_an_untried_ssh_machine(api: MemoryApi) -> None:
    await machine(api, ssh=SSH)
    links = await ask(api)
    assert abouts(links) == ["machine/m1", "machina"]
    assert links[0].what == "Pending: SSH has not been tried yet"
    assert links[1].what.startswith("is running: ")


@told
async def test_where_the_server_runs_the_controllers_there_is_no_lease(api: MemoryApi) -> None:
    await components.publish(api, {})
    await machine(api, unreachable("10.0.0.5:2222: connection refused"), ssh=SSH)
    assert abouts(await ask(api, alive=())) == ["machine/m1"]


@told
async def test_it_is_paused_before_it_is_set_up(api: MemoryApi) -> None:
    await machine(api, REACHABLE, said("Provisioning", "Unknown", "NotRun"), ssh=SSH, kubernetes={})
    await api.patch(MACHINES, "m1", {"metadata": {"annotations": {ANNOTATION_PAUSED: "true"}}})
    links = await ask(api)
    assert abouts(links) == ["machine/m1", "machine/m1"]
    assert links[0].held_by == "Machine m1"
    await typed(api, commands(links)[0])
    assert links != await ask(api)


@told
async def test_it_is_paused_where_it_serves(api: MemoryApi) -> None:
    await machine(api, REACHABLE, ssh=SSH)
    await api.patch(MACHINES, "m1", {"metadata": {"annotations": {ANNOTATION_PAUSED: "true"}}})
    links = await ask(api)
    assert abouts(links) == ["machine/m1", "machine/m1"]
    assert links[0].what.startswith("Ready: Machine is reachable; ")
    assert commands(links) == ["kubectl unbounded machine resume m1"]


@told
async def test_its_deletion_is_paused(api: MemoryApi) -> None:
    await machine(api, REACHABLE, ssh=SSH, kubernetes={}, resetOnDelete=True)
    meta = {"finalizers": [FINALIZER_RESET], "annotations": {ANNOTATION_PAUSED: "true"}}
    await api.patch(MACHINES, "m1", {"metadata": meta})
    await api.delete(MACHINES, "m1")
    links = await ask(api)
    assert abouts(links) == ["machine/m1", "machine/m1"]
    assert links[0].held_by == FINALIZER_RESET
    assert commands(links)[0] == "kubectl unbounded machine resume m1"
    await typed(api, commands(links)[0])
    assert abouts(await ask(api)) == ["machine/m1"]


@told
async def test_why_reports_a_ready_machine_despite_unreachable_ssh(api: MemoryApi) -> None:
    away = said("SSHReachable", "False", "Unreachable", "host 10.0.0.5:2222: connection refused")
    await machine(api, away, said("Provisioning", "False", "Completed"), ssh=SSH, kubernetes={})
    await node(api, ready=True)
    (link,) = await ask(api)
    assert link.what == "Ready: Node m1 joined; host 10.0.0.5:2222: connection refused"
    assert link.held_by == "condition SSHReachable=False (Unreachable)"


@told
async def test_it_is_paused_and_its_host_cannot_be_reached_besides(api: MemoryApi) -> None:
    """After the pause the second cause remains: both have their remedy, the pause's first."""
    await machine(api, unreachable("10.0.0.5:2222: connection refused"), ssh=SSH, kubernetes={})
    without = await ask(api)
    await api.patch(MACHINES, "m1", {"metadata": {"annotations": {ANNOTATION_PAUSED: "new disk"}}})
    links = await ask(api)
    assert "10.0.0.5:2222: connection refused; " in links[0].what
    assert commands(links) == ["kubectl unbounded machine resume m1", *commands(without)]
    await typed(api, commands(links)[0])
    assert await ask(api) == without


@told
async def test_everything_is_paused(api: MemoryApi) -> None:
    config = {"metadata": {"name": CONFIGMAP_OPERATIONS, "annotations": {ANNOTATION_PAUSED: "power cut"}}}
    await api.create(CONFIG_MAPS, config, namespace=NAMESPACE)
    await machine(api, REACHABLE, ssh=SSH, kubernetes={})
    links = await ask(api)
    assert abouts(links) == ["machine/m1", "ConfigMap unbounded-kube/unbounded-operations"]
    assert links[1].what.endswith(": power cut")
    assert commands(links) == ["kubectl unbounded machine resume --all"]


@told
async def test_an_operation_has_it(api: MemoryApi) -> None:
    await machine(api, REACHABLE, ssh=SSH, pxe=PXE)
    spec = {"operationKind": "HostReboot", "machineRef": "m1", "startDeadlineSeconds": 3600}
    made = await api.create(MACHINE_OPERATIONS, {"metadata": {"name": "op"}, "spec": spec})
    slot = slot_of("op") | {"uid": made.metadata.uid}
    await api.patch(MACHINES, "m1", {"status": {"activeOperation": slot}}, subresource="status")
    execution = {"executor": "metalman/lab", "incarnation": "p", "machineUID": "u", "binding": "b"}
    targets = [{"machineRef": "m1", "phase": "InProgress", "stage": "WaitingOn"}]
    status = {"phase": "InProgress", "execution": execution, "targets": targets}
    await api.patch(MACHINE_OPERATIONS, "op", {"status": status}, subresource="status")
    links = await ask(api)
    assert abouts(links) == ["machine/m1", "operation/op"]
    assert links[0].what == "Rebooting: HostReboot op by metalman/lab"
    assert "stage WaitingOn: waiting for the host to be On" in links[1].what
    assert links[1].next_step == "after 300 s without that it fails as TimedOut"


@told
async def test_a_lost_operation_has_it(api: MemoryApi) -> None:
    await machine(api, pxe=PXE, status={"activeOperation": slot_of("op", lost=True)})
    links = await ask(api, alive=[MACHINA])
    assert abouts(links) == ["machine/m1", "machine/m1", "metalman/lab"]
    assert "executor is silent" in links[0].what
    assert "observes the host, then takes the lock" in links[1].next_step


@told
async def test_its_agent_makes_the_node_anew(api: MemoryApi) -> None:
    slot = slot_of("kube2", kind="NodeRecreation", executor="unbounded-agent/m1")
    doing = said("NodeUpdated", "False", "InProgress", "building v1.34 in kube2")
    await machine(api, doing, kubernetes={}, status={"activeOperation": slot})
    links = await ask(api)
    assert abouts(links) == ["machine/m1", "machine/m1"]
    assert links[1].what.endswith("recreates the node: building v1.34 in kube2")


@told
async def test_it_is_being_set_up(api: MemoryApi) -> None:
    """Without a fault: the explanation has the progress, and when it ends by itself."""
    attempt = {"attempt": "a1", "generation": 1, "startedAt": AT}
    doing = said("Provisioning", "True", "InProgress", "node: image: 40 %")
    await machine(api, REACHABLE, doing, ssh=SSH, kubernetes={}, status={"provisioning": attempt})
    (link,) = await ask(api)
    assert link.what == "Provisioning: node: image: 40 %"
    assert (link.held_by, link.since) == ("machina", AT)
    assert "30 minutes" in link.next_step


@told
async def test_its_agent_may_not_join_again(api: MemoryApi) -> None:
    uses = [{"purpose": one, "cause": "Registration", "request": "r", "at": AT} for one in ("agent", "kubelet")]
    done = said("Provisioned", "True", "Provisioned")
    await machine(api, REACHABLE, done, ssh=SSH, kubernetes={}, status={"join": {"used": uses}})
    uid = (await api.get(MACHINES, "m1")).metadata.uid
    event = {
        "metadata": {"name": "m1.1"},
        "involvedObject": {"kind": "Machine", "name": "m1", "uid": uid},
        "reason": "JoinRefused",
        "message": "csr-1: the agent of Machine m1 has had its certificate already",
        "lastTimestamp": AT,
    }
    await api.create(EVENTS, event, namespace="default")
    (link,) = await ask(api)
    assert link.what.startswith("Joining: csr-1: the agent of Machine m1 has had its certificate already")
    assert commands([link]) == ["kubectl unbounded machine allow-join m1"]
    await typed(api, commands([link])[0])
    (link,) = await ask(api)
    assert link.next_step.startswith("it may join now")
    assert link.fixes[0].does == "sets up its host over SSH, with another token"


@told
async def test_its_agent_is_silent(api: MemoryApi) -> None:
    await machine(api, REACHABLE, said("Provisioned", "True", "Provisioned"), ssh=SSH, kubernetes={})
    (link,) = await ask(api)
    assert link.what.startswith("Joining: ")
    assert link.what.endswith("; its agent has not reported")
    assert link.held_by == "unbounded-agent/m1"
    assert commands([link])[0] == "ssh -p 2222 root@10.0.0.5 sudo unbounded-agent status"


@told
async def test_its_agent_sets_the_node_up(api: MemoryApi) -> None:
    await machine(api, said("AgentBootstrapped", "True", "Succeeded"), provider="AzureVM", kubernetes={})
    for agent, text in (
        ({"stage": "Preparing"}, "its agent downloads what the Node needs, and builds its root file system"),
        ({"version": "1.0", "stage": "Starting"}, "its agent (1.0) has started the node, and waits for kubelet"),
        ({"stage": "Running"}, "its agent (1.0) has reported, but kubelet has not"),
        ({"stage": None}, "its agent (1.0) has reported, but kubelet has not"),
    ):
        await api.patch(MACHINES, "m1", {"status": {"agent": agent}}, subresource="status")
        (link,) = await ask(api)
        assert f"; {text}" in link.what


@pytest.mark.parametrize(
    ("host", "bastion", "words"),
    [
        ("web1", "", "ssh root@web1 "),
        ("10.0.0.5:2222", "", "ssh -p 2222 root@10.0.0.5 "),
        ("2001:db8::1", "", "ssh root@2001:db8::1 "),
        ("[2001:db8::1]:2222", "2001:db8::2", "ssh -J 'jump@[2001:db8::2]' -p 2222 root@2001:db8::1 "),
        ("2001:db8::1", "[2001:db8::2]:2200", "ssh -J 'jump@[2001:db8::2]:2200' root@2001:db8::1 "),
        ("2001:db8::1", "jump.example.com:2200", "ssh -J jump@jump.example.com:2200 root@2001:db8::1 "),
        ("a b:c:d", "", "ssh 'root@a b:c:d' "),
    ],
)
def test_what_is_typed_to_get_to_a_host(host: str, bastion: str, words: str) -> None:
    ssh = SSH | {"host": host} | ({"bastion": {"host": bastion, "username": "jump"}} if bastion else {})
    assert ssh_command(msgspec.convert({"metadata": {"name": "m1"}, "spec": {"ssh": ssh}}, Machine)) == words


async def node(api: MemoryApi, *, ready: bool) -> None:
    await api.create(NODES, {"metadata": {"name": "m1", "labels": {"unbounded-cloud.io/machine": "m1"}}})
    condition = {"type": "Ready", "status": "True" if ready else "False", "message": "" if ready else "cni is missing"}
    await api.patch(NODES, "m1", {"status": {"conditions": [condition]}}, subresource="status")


@told
async def test_its_node_is_not_ready(api: MemoryApi) -> None:
    await machine(api, REACHABLE, ssh=SSH, kubernetes={})
    await node(api, ready=False)
    links = await ask(api)
    assert abouts(links) == ["machine/m1", "node/m1"]
    assert links[1].what == "is not Ready: cni is missing"


@told
async def test_why_explains_unready_node_of_a_host_without_ssh(api: MemoryApi) -> None:
    await machine(api, pxe=PXE, kubernetes={})
    await node(api, ready=False)
    links = await ask(api)
    assert abouts(links) == ["machine/m1", "node/m1"]
    assert links[0].what == "Ready: Node m1 joined, but is not Ready"
    assert links[1].what == "is not Ready: cni is missing"


@told
async def test_why_reports_image_provisioning_instead_of_ssh(api: MemoryApi) -> None:
    done = (said("Repaved", "True", "Succeeded"), said("CloudInitDone", "True", "Succeeded"))
    await machine(api, REACHABLE, *done, ssh=SSH, pxe=PXE, kubernetes={})
    (link,) = await ask(api)
    assert link.what == "Joining: the host is set up by its image, not over SSH"
    assert commands([link]) == ["kubectl unbounded machine replace m1"]


@told
async def test_its_node_is_not_what_it_is_to_be(api: MemoryApi) -> None:
    differs = said("RepavePending", "True", "Pending", "c-v2 differs in kubernetes.version")
    await machine(api, REACHABLE, differs, ssh=SSH, kubernetes={})
    await node(api, ready=True)
    (link,) = await ask(api)
    assert "c-v2 differs in kubernetes.version" in link.what
    await typed(api, commands([link])[0])
    assert not (await api.list(NODES)).items


@pytest.mark.parametrize(
    ("boot", "expected"),
    [
        ("b1", ["kubectl describe node m1", "kubectl unbounded machine host-reboot m1"]),
        ("b2", ["kubectl describe node m1"]),
    ],
    ids=["not rebooted", "lease not renewed"],
)
def test_its_node_has_not_proved_its_return(boot: str, expected: list[str]) -> None:
    @told
    async def its_node(api: MemoryApi) -> None:
        holder = {"kind": "HostReboot", "name": "op", "uid": "u"}
        away = {"holder": holder, "stage": "Returning", "since": AT, "bootID": "b1", "worked": True, "message": "M"}
        await machine(api, kubernetes={}, status={"disruption": away})
        await node(api, ready=True)
        await api.patch(NODES, "m1", {"status": {"nodeInfo": {"bootID": boot}}}, subresource="status")
        (link,) = await ask(api)
        assert (link.what.rpartition("; ")[2], link.since) == ("M", AT)
        assert commands([link]) == expected

    its_node()


@told
async def test_a_rolling_update_needs_no_deletion_of_the_node(api: MemoryApi) -> None:
    strategy = {"type": "RollingUpdate"}
    await api.create(
        MACHINE_CONFIGURATIONS, {"metadata": {"name": "c"}, "spec": {"updateStrategy": strategy, "template": {}}}
    )
    rollout = {"version": 2, "phase": "Paused", "updated": 0, "outdated": 1, "message": "0 of 1 Node have version 2"}
    await api.patch(MACHINE_CONFIGURATIONS, "c", {"status": {"rollout": rollout}}, subresource="status")
    differs = said("RepavePending", "True", "Pending", "c-v2 differs in kubernetes.version")
    made: dict[str, Any] = {"configuration": {"name": "c", "version": 1, "versionName": "c-v1"}}
    made["agent"] = {"version": "1.0.0"}
    await machine(api, REACHABLE, differs, status=made, ssh=SSH, kubernetes={}, configurationRef={"name": "c"})
    await node(api, ready=True)
    links = await ask(api)
    assert abouts(links) == ["machine/m1", "configuration/c"]
    assert links[0].what == (
        "Ready: Node m1 joined; c-v2 differs in kubernetes.version; "
        "the rolling update of configuration c to version 2 has not reached it"
    )
    assert not any("delete node" in command for command in commands(links))
    made["configuration"] |= {"version": 2, "versionName": "c-v2"}  # what differs is in spec, and no other version
    await api.patch(MACHINES, "m1", {"status": made}, subresource="status")
    (link,) = await ask(api)
    assert commands([link]) == ["kubectl delete node m1"]


NO_DRIVER: Final = "2 NVIDIA cards on the PCI bus and no driver: install it on the host, and restart the node"
BY_HAND: Final = "1 file was changed by hand in kube1, and a recreation discards the changes: /etc/motd (changed)"


@told
async def test_files_that_were_changed_by_hand_hold_nothing_up(api: MemoryApi) -> None:
    await machine(api, REACHABLE, said("NodeModified", "True", "Modified", BY_HAND), ssh=SSH, kubernetes={})
    await node(api, ready=True)
    (link,) = await ask(api)
    assert link.what == f"Ready: Node m1 joined; nothing blocks it; {BY_HAND}"
    assert (link.held_by, link.fixes) == ("", ())


@told
async def test_who_recreates_a_node_learns_what_is_lost(api: MemoryApi) -> None:
    differs = said("RepavePending", "True", "Pending", "c-v2 differs in kubernetes.version")
    by_hand = said("NodeModified", "True", "Modified", BY_HAND)
    await machine(api, REACHABLE, differs, by_hand, ssh=SSH, kubernetes={})
    await node(api, ready=True)
    (link,) = await ask(api)
    assert BY_HAND in link.what
    assert link.fixes[0].does == "recreates the node, which discards the manual changes of files"


@told
async def test_its_gpus_are_not_described(api: MemoryApi) -> None:
    await machine(api, REACHABLE, said("GPUsDescribed", "False", "NoDriver", NO_DRIVER), ssh=SSH, kubernetes={})
    await node(api, ready=True)
    (link,) = await ask(api)
    assert link.what == f"Ready: Node m1 joined; {NO_DRIVER}"
    assert link.held_by == "condition GPUsDescribed=False (NoDriver)"
    assert commands([link]) == [
        "ssh -p 2222 root@10.0.0.5 nvidia-smi",
        "kubectl unbounded machine node-reboot m1",
    ]


@told
async def test_its_agent_cannot_follow_the_clusters_address(api: MemoryApi) -> None:
    text = "a stays in use, although the cluster publishes b: the API server at b does not answer"
    await machine(api, REACHABLE, said("ClusterAccessCurrent", "False", "Pending", text), ssh=SSH, kubernetes={})
    await node(api, ready=True)
    (link,) = await ask(api)
    assert link.what == f"Ready: Node m1 joined; {text}"
    assert "every minute" in link.next_step
    assert commands([link])[0] == "kubectl -n kube-public get configmap cluster-info -o yaml"


@told
async def test_why_reports_a_counter_without_operation(api: MemoryApi) -> None:
    await machine(api, pxe=PXE, operations={"repaveCounter": 1})
    links = await ask(api, alive=[MACHINA])
    assert abouts(links) == ["machine/m1", "metalman/lab"]
    assert "spec.operations requests HostReplace m1-repave-1, which does not exist yet" in links[0].what
    await api.patch(MACHINES, "m1", {"spec": {"pxe": {"redfish": None}}})
    (link,) = await ask(api, alive=[MACHINA])
    assert link.what.endswith("which does not exist yet: counters need spec.pxe.redfish")
    assert commands([link]) == ["kubectl edit mach m1"]


@told
async def test_an_operation_waits_on_a_machine_that_is_ready(api: MemoryApi) -> None:
    await machine(api, pxe=PXE)
    spec = {"operationKind": "HostReboot", "machineRef": "m1", "startDeadlineSeconds": 3600}
    await api.create(MACHINE_OPERATIONS, {"metadata": {"name": "op"}, "spec": spec})
    links = await ask(api, alive=[MACHINA])
    assert abouts(links) == ["machine/m1", "operation/op", "metalman/lab"]


@told
async def test_open_operation_is_explained_before_an_old_condition(api: MemoryApi) -> None:
    await machine(api, said("NetbootServed", "False", "AddressInUse", "192.0.2.1 is in use"), pxe=PXE)
    (link,) = await ask(api)
    assert link.what == "Ready: The Machine needs no Node; 192.0.2.1 is in use"
    spec = {"operationKind": "HostReboot", "machineRef": "m1", "startDeadlineSeconds": 3600}
    await api.create(MACHINE_OPERATIONS, {"metadata": {"name": "op"}, "spec": spec})
    assert abouts(await ask(api, alive=[MACHINA])) == ["machine/m1", "operation/op", "metalman/lab"]


_C = ConditionType
_R = ConditionReason
FINE: Final = {  # nothing to explain
    _C.SSH_REACHABLE: {_R.PENDING, _R.REACHABLE},
    _C.PROVISIONING: {_R.NOT_RUN, _R.COMPLETED},
    _C.PROVISIONED: {_R.NOT_RUN, _R.PROVISIONED},
    _C.POWERED_OFF: {_R.POWERING_OFF},
    _C.BMC_EXCLUSIVE: {_R.RESOLVED},
    _C.HOST_EXCLUSIVE: {_R.RESOLVED},
    _C.BOOT_ORDER_CONFIG_SUPPORTED: {_R.SUPPORTED},
    _C.REPAVED: {_R.SUCCEEDED},
    _C.CLOUD_INIT_DONE: {_R.SUCCEEDED},
    _C.NETBOOT_IMAGE_READY: {_R.PULLED, _R.PULLED_SIGNED},
    _C.NETBOOT_SERVED: {_R.SERVED},
    _C.ATTESTED: {_R.SUCCEEDED},
    _C.NODE_UPDATED: {_R.IN_PROGRESS, _R.SUCCEEDED, _R.FAILED},
    _C.CONFIGURATION_PENDING: {_R.RESOLVED},
    _C.REPAVE_PENDING: {_R.APPLIED},
    _C.AGENT_BOOTSTRAPPED: {_R.SUCCEEDED},
    _C.GPUS_DESCRIBED: {_R.SUCCEEDED},
    _C.CLUSTER_ACCESS_CURRENT: {_R.APPLIED},
    _C.NODE_MODIFIED: {_R.UNCHANGED},
    _C.RELEASE_KEY_CURRENT: {_R.APPLIED},
    _C.HARDWARE_CHANGED: {_R.PARTS_ADDED, _R.UNCHANGED},
    _C.BOOT_CHANGED: {_R.RECORDED, _R.UNCHANGED, _R.ACCEPTED, _R.QUOTE_MISSING},
}
STEPS: Final = (  # of a host that is being set up, or switched; the Machine's phase has their words
    (_C.PROVISIONING, "True", _R.IN_PROGRESS),
    (_C.POWERED_OFF, "True", _R.POWERED_OFF),
    (_C.POWERED_OFF, "True", _R.POWERING_ON),
    (_C.REPAVED, "False", _R.PENDING),
    (_C.CLOUD_INIT_DONE, "False", _R.RUNNING),
    (_C.AGENT_BOOTSTRAPPED, "False", _R.RUNNING),
)
LEAVING: Final = (  # of a Machine that is being deleted
    (_C.HOST_RESET, "False", _R.IN_PROGRESS),
    *((_C.HOST_RESET, "False", reason) for reason in sorted(OF_RESET)),
)
ANSWERED: Final = (
    *STEPS,
    *LEAVING,
    *(
        (row.type, str(status), reason)
        for row in (*TABLE, *NOTICES)
        for status in sorted(row.statuses)
        for reason in sorted(row.reasons)
    ),
)


def test_every_condition_is_known() -> None:
    """One that is new has to be given an answer, or be called fine."""
    told = {(kind, reason) for kind, meaning in CONDITIONS.items() for reason in meaning.reasons}
    fine = {(kind, reason) for kind, reasons in FINE.items() for reason in reasons}
    assert CONDITIONS.keys() == set(ConditionType)
    assert told - fine == {(kind, reason) for kind, _, reason in ANSWERED} - {(_C.NODE_UPDATED, _R.FAILED)}


@pytest.mark.parametrize(("kind", "status", "reason"), ANSWERED)
def test_an_answer_has_what_the_condition_says(kind: str, status: str, reason: str) -> None:
    async def run() -> None:
        api = MemoryApi(now=virtual_now)
        over_ssh = kind in {_C.PROVISIONING, _C.PROVISIONED, _C.SSH_REACHABLE}
        reachable = (REACHABLE,) if over_ssh and kind != _C.SSH_REACHABLE else ()
        host = {"ssh": SSH} if over_ssh else {"pxe": PXE}
        await machine(api, *reachable, said(kind, status, reason, "in its own words"), kubernetes={}, **host)
        if kind in {row.type for row in NOTICES}:
            await node(api, ready=True)
        if (kind, status, reason) in LEAVING:
            await api.patch(MACHINES, "m1", {"metadata": {"finalizers": [FINALIZER_RESET]}})
            await api.delete(MACHINES, "m1")
        assert "in its own words" in (await ask(api))[0].what

    run_virtual(run())


def test_every_reason_with_a_remedy_is_one_that_an_operation_can_have() -> None:
    assert OPERATION.keys() <= reasons.MEANING.keys() | metal.MEANING.keys() | cloud.MEANING.keys()
    assert cloud.MEANING.keys() <= OPERATION.keys()


@told
async def test_nothing_holds_it_up(api: MemoryApi) -> None:
    await machine(api, REACHABLE, ssh=SSH, kubernetes={})
    await node(api, ready=True)
    (link,) = await ask(api)
    assert link.what == "Ready: Node m1 joined; nothing blocks it"
    assert (link.held_by, link.fixes) == ("", ())


@told
async def test_why_reports_the_failure_of_a_deleted_operation(api: MemoryApi) -> None:
    failed = {"name": "op", "uid": "u", "kind": "HostReplace", "phase": "Failed", "reason": "QuotaExceeded"}
    before = {"name": "on", "uid": "v", "kind": "HostPowerOn", "phase": "Complete"}
    status = {"recentOperations": [before, failed | {"message": "there is no VM m1; its model is in Secret s"}]}
    await machine(api, status=status, provider="AzureVM", providerID="azure:///x", kubernetes={})
    (link,) = await ask(api)
    words = "its last operation, HostReplace op, failed: QuotaExceeded: there is no VM m1; its model is in Secret s"
    assert words in link.what
    assert link.fixes[0].command == "kubectl unbounded machine replace m1"
    assert link.fixes[0].does == "lets its provider recreate it"
    await api.patch(MACHINES, "m1", {"status": {"recentOperations": [failed, before]}}, subresource="status")
    assert "has failed" not in (await ask(api))[0].what
    other = {"status": {"recentOperations": [failed | {"reason": "TargetChanged", "message": "it was vm"}]}}
    await api.patch(MACHINES, "m1", other, subresource="status")
    assert [fix.command for fix in (await ask(api))[0].fixes] == ["kubectl unbounded why operation/op"]
