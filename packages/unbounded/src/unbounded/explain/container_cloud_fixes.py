"""Commands that help a Machine, a host, a Cluster or a pool of Container Cloud, by the reason for which it waits.

A command has fields of its object in braces. One that is not known becomes a capital word, which the user replaces.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from unbounded.api.container_cloud.names import (
    ANNOTATION_ADOPT,
    ANNOTATION_HOST,
    ANNOTATION_HOST_DETACHED,
    ANNOTATION_HOST_PAUSED,
    ANNOTATION_HOST_UNHEALTHY,
    ANNOTATION_RETRY,
    LABEL_CLUSTER,
    LABEL_CONTROL_PLANE,
    LABEL_DEFAULT_PROFILE,
    LABEL_DEFAULT_TEMPLATE,
    LABEL_LEASE_SUBNET,
    LABEL_MACHINE_POOL,
)
from unbounded.api.names import NAMESPACE
from unbounded.containercloud.claims import ClaimReason
from unbounded.containercloud.cluster_plan import ClusterReason
from unbounded.containercloud.hosts.model import HostReason
from unbounded.containercloud.machines.model import MachineReason
from unbounded.containercloud.network.rendering import NetworkReason
from unbounded.containercloud.network.waits import NETWORK_ENDS
from unbounded.containercloud.pools import PoolReason
from unbounded.containercloud.profiles.plan import PROFILE_ENDS, ProfileReason
from unbounded.explain.links import PLUGIN, Fix, Topic

Command = tuple[str, str]  # the command, and its effect


@dataclass(frozen=True)
class ReasonRow:
    """The answer to a reason.

    Attributes:
        next_step: what happens without intervention.
        commands: those that help, with fields in braces.
        follow: kind of the next subject; None for a first cause.
    """

    next_step: str
    commands: tuple[Command, ...]
    follow: Topic | None = None

    def fixes(self, fields: Mapping[str, str]) -> tuple[Fix, ...]:
        """Return the commands with the fields of an object."""
        known = _Fields({key: value for key, value in fields.items() if value})
        return tuple(Fix(command.format_map(known), does) for command, does in self.commands)


class _Fields(dict[str, str]):
    def __missing__(self, key: str) -> str:
        return key.upper()


def _patch(what: str, change: Mapping[str, Any]) -> str:
    """Return a `kubectl patch` in which `what` may have fields, and the change has none."""
    body = shlex.quote(json.dumps(change)).replace("{", "{{").replace("}", "}}")
    return f"kubectl patch {what} --type=merge -p {body}"


def _machine(value: Mapping[str, Any]) -> str:
    return _patch("ma {name} -n {namespace}", {"spec": {"providerSpec": {"value": value}}})


def _cluster(name: str, value: Mapping[str, Any]) -> str:
    return _patch(f"clusters.cluster.k8s.io {name} -n {{namespace}}", {"spec": {"providerSpec": {"value": value}}})


def _host(spec: Mapping[str, Any]) -> str:
    return _patch("bmh {name} -n {namespace}", {"spec": spec})


def _why(what: str, name: str, namespace: str) -> Command:
    return f"{PLUGIN} why {what}/{{{name}}} -n {{{namespace}}}", "shows what it waits for"


_EDIT: Final = ("kubectl edit ma {name} -n {namespace}", "corrects the field that the message names")
_PIN: Final = f"kubectl annotate ma {{name}} -n {{namespace}} --overwrite {ANNOTATION_HOST}=NAMESPACE/HOST"
_PIN_OTHER: Final = (_PIN, "pins the Machine to another host")
_UNPIN: Final = (
    f"kubectl annotate ma {{name}} -n {{namespace}} {ANNOTATION_HOST}-",
    "lets hostSelector choose a host of the Machine's namespace",
)
_HOSTS: Final = (f"{PLUGIN} host list -A", "shows all hosts, and what keeps each from a claim")
_OTHER_HOST: Final = (_HOSTS, _PIN_OTHER, _UNPIN)
_RETRY: Final = (
    f"kubectl annotate ma {{name}} -n {{namespace}} --overwrite {ANNOTATION_RETRY}={{now}}",
    "installs the host again, once the cause is corrected",
)
_SERIAL: Final = (f"{PLUGIN} machine serial {{target}}", "shows the console of the host, if its BMC offers one")
_NODE: Final = ("kubectl describe node {target}", "shows its conditions")
_ABORT: Final = (_machine({"delete": False}), "aborts the deletion, unless kubectl delete requested it")
_UNSAFE: Final = (_machine({"deletionPolicy": "unsafe"}), "goes on without a drain and a reset")
_FORCED: Final = (
    _machine({"deletionPolicy": "forced"}),
    "tries each further step once, and never waits: what stays on the host is recorded",
)
_POLICIES: Final = (
    "kubectl get validatingadmissionpolicies",
    "shows the policies; the message names a webhook that refuses",
)
_DELETE: Final = ("kubectl delete ma {name} -n {namespace} --wait=false", "deletes the Machine by its deletionPolicy")
_CLUSTERS: Final = ("kubectl get clusters.cluster.k8s.io -n {namespace}", "shows the Clusters of the namespace")
_RELEASES: Final = ("kubectl get clusterreleases", "shows the existing ClusterReleases")
_OPERATIONS: Final = (
    "kubectl get mop --field-selector spec.machineRef={target}",
    "shows the operations on the host's Machine",
)
_IPAM: Final = ("kubectl describe ipamhost {name} -n {namespace}", "shows the addresses and the cause")
_TEMPLATES: Final = ("kubectl get l2t -n {namespace} --show-labels", "shows the templates of the namespace")
_SUBNETS: Final = ("kubectl get subnets.ipam.mirantis.com -A", "shows the Subnets, and their free addresses")
_PROFILE: Final = ("kubectl edit bmhp {profile} -n {profile_namespace}", "corrects the entry that the message names")
_CHANGES: Final = ("kubectl events -n {namespace} --for ma/{name}", "shows its Events")
_PREPARED: Final = ("kubectl describe mach {target}", "shows the fields that the claim sets")
_RETURN: Final = (f"{PLUGIN} why machine/{{target}}", "shows what the return of the Node waits for")
_DRAIN: Final = (f"{PLUGIN} why machine/{{target}}", "shows the pod or the budget that prevents the drain")


def _goes_on(until: str) -> str:
    return f"it goes on as soon as {until}"


_REFUSED_WRITE: Final = ReasonRow(
    "container-cloud tries it again, at most 5 min apart, and goes on", (_POLICIES,), Topic.CONTAINER_CLOUD
)
_M, _C, _P, _N = MachineReason, ClaimReason, ProfileReason, NetworkReason

MACHINE: Final[Mapping[str, ReasonRow]] = {
    # the claim
    _C.CLUSTER_MISSING: ReasonRow(
        "it claims a host as soon as the Cluster exists",
        (_CLUSTERS, ("kubectl apply -f CLUSTER.yaml", "creates the Cluster"), _DELETE),
    ),
    _C.RELEASE_MISSING: ReasonRow(
        "it goes on as soon as the Cluster has a usable ClusterRelease",
        (_RELEASES, (_cluster("{cluster}", {"release": "RELEASE"}), "names another ClusterRelease")),
        Topic.CLUSTER,
    ),
    _C.INVALID_CONFIGURATION: ReasonRow("nothing, until the field is corrected", (_EDIT, _DELETE)),
    _C.HOST_MISSING: ReasonRow("it claims the host as soon as it exists; no other one takes its place", _OTHER_HOST),
    _C.HOST_TAKEN: ReasonRow(
        "it claims the host as soon as that is free; no other one takes its place", _OTHER_HOST, Topic.HOST
    ),
    _C.HOST_NOT_AVAILABLE: ReasonRow("it claims the host as soon as that is available", _OTHER_HOST, Topic.HOST),
    _C.HOST_NOT_SHARED: ReasonRow(
        "nothing, until it pins a host of its namespace or of a shared one",
        (
            _PIN_OTHER,
            _UNPIN,
            (
                "unbounded up --container-cloud --shared-host-namespaces default,NAMESPACE",
                "lets Machines of all namespaces pin hosts of these, where controllers run in `unbounded up`",
            ),
        ),
    ),
    _C.INSUFFICIENT_RESOURCES: ReasonRow(
        "it claims a host as soon as one is available and has the labels",
        (
            (f"{PLUGIN} host list -n {{namespace}}", "shows the hosts, and what keeps each from a claim"),
            ("kubectl label bmh HOST -n {namespace} KEY=VALUE", "gives a host a label that hostSelector requires"),
            _PIN_OTHER,
        ),
    ),
    _C.DELETING: ReasonRow("it is deleted without a host", (_ABORT,)),
    # the install
    _M.HOST_NOT_PREPARED: ReasonRow(
        "container-cloud writes the host's state and its Machine within seconds", (_PREPARED,), Topic.HOST
    ),
    _M.INSTALLING: ReasonRow(
        "the host boots the installer, which writes the image", (_OPERATIONS, _SERIAL), Topic.HOST
    ),
    _M.INSTALL_FAILED: ReasonRow("it is installed again then", (_RETRY, _SERIAL, _OPERATIONS), Topic.OPERATION),
    _M.ATTEMPTS_EXHAUSTED: ReasonRow(
        "nothing, until the image, the profile, the network or the annotation changes",
        (_RETRY, _OPERATIONS, _SERIAL),
        Topic.OPERATION,
    ),
    _M.CANCELLED: ReasonRow("nothing, until the annotation changes", (_RETRY,)),
    _P.INVALID: ReasonRow(_goes_on(PROFILE_ENDS[_P.INVALID]), (_PROFILE,)),
    _P.NAME_TAKEN: ReasonRow(
        _goes_on(PROFILE_ENDS[_P.NAME_TAKEN]),
        (
            ("kubectl get mprof", "shows the MachineProfiles"),
            ("kubectl delete mprof MACHINEPROFILE", "deletes the one that the message names"),
        ),
    ),
    _P.MISSING: ReasonRow(
        _goes_on(PROFILE_ENDS[_P.MISSING]),
        (("kubectl get bmhp -A", "shows the existing profiles"), _EDIT),
    ),
    _P.AMBIGUOUS: ReasonRow(
        _goes_on(PROFILE_ENDS[_P.AMBIGUOUS]),
        (
            (
                f"kubectl label bmhp PROFILE -n {{namespace}} {LABEL_DEFAULT_PROFILE}-",
                "takes the label from all but one",
            ),
            (_machine({"bareMetalHostProfile": {"name": "PROFILE"}}), "names the profile of this Machine"),
        ),
    ),
    _P.PENDING: ReasonRow(
        "container-cloud names the layout in the host's Machine within seconds, or after an install that runs",
        (_PREPARED,),
        Topic.MACHINE,
    ),
    _M.NETWORK_PENDING: ReasonRow("container-cloud plans the network within seconds", (_IPAM,)),
    _N.NO_TEMPLATE: ReasonRow(
        _goes_on(NETWORK_ENDS[_N.NO_TEMPLATE]),
        (
            _TEMPLATES,
            ("kubectl edit ipamhost {name} -n {namespace}", "corrects spec.l2TemplateSelector, which counts there"),
            (
                f"kubectl label l2t TEMPLATE -n {{namespace}} {LABEL_DEFAULT_TEMPLATE}=1",
                "makes a template the default one of its Cluster",
            ),
        ),
    ),
    _N.TEMPLATE_AMBIGUOUS: ReasonRow(
        _goes_on(NETWORK_ENDS[_N.TEMPLATE_AMBIGUOUS]),
        (
            _TEMPLATES,
            (
                _patch("ipamhost {name} -n {namespace}", {"spec": {"l2TemplateSelector": {"name": "TEMPLATE"}}}),
                "names the template",
            ),
        ),
    ),
    _N.TEMPLATE_INVALID: ReasonRow(
        _goes_on(NETWORK_ENDS[_N.TEMPLATE_INVALID]),
        (("kubectl edit l2t TEMPLATE -n {namespace}", "corrects the line that the message names"), _IPAM),
    ),
    _N.SUBNET_MISSING: ReasonRow(_goes_on(NETWORK_ENDS[_N.SUBNET_MISSING]), (_SUBNETS, _TEMPLATES)),
    _N.SUBNET_INVALID: ReasonRow(
        _goes_on(NETWORK_ENDS[_N.SUBNET_INVALID]),
        (
            ("kubectl edit subnets.ipam.mirantis.com SUBNET -n {namespace}", "corrects the Subnet of the message"),
            _SUBNETS,
        ),
    ),
    _N.SUBNET_FULL: ReasonRow(
        _goes_on(NETWORK_ENDS[_N.SUBNET_FULL]),
        (
            ("kubectl edit subnets.ipam.mirantis.com SUBNET -n {namespace}", "adds addresses (spec.includeRanges)"),
            _SUBNETS,
        ),
    ),
    _N.CARD_MISSING: ReasonRow(
        _goes_on(NETWORK_ENDS[_N.CARD_MISSING]),
        (
            (
                "kubectl get ipamhost {name} -n {namespace} -o jsonpath='{{.spec.nicMACmap}}'",
                "shows the cards that the host has reported",
            ),
            (
                _patch("ipamhost {name} -n {namespace}", {"spec": {"ifMappingOverride": ["NIC"]}}),
                "names the cards of this host, in the order that macros count by",
            ),
        ),
    ),
    _N.NO_LEASE: ReasonRow(
        _goes_on(NETWORK_ENDS[_N.NO_LEASE]),
        (
            (
                f"kubectl label subnets.ipam.mirantis.com SUBNET -n {{namespace}} {LABEL_LEASE_SUBNET}=1",
                "gives installers addresses of this Subnet",
            ),
            ("kubectl edit mach {target}", "sets spec.pxe.dhcpLeases of the host's Machine instead"),
        ),
    ),
    _N.MACHINE_HAS_NETWORK: ReasonRow(
        _goes_on(NETWORK_ENDS[_N.MACHINE_HAS_NETWORK]),
        ((_patch("mach {target}", {"spec": {"network": None}}), "removes the network of the host's Machine"),),
    ),
    _N.NOT_CLAIMED: ReasonRow("container-cloud plans the network after the claim", (_HOSTS,)),
    _N.HOST_DIRTY: ReasonRow(
        _goes_on(NETWORK_ENDS[_N.HOST_DIRTY]),
        ((f"{PLUGIN} machine power-off {{target}}", "switches the host off"),),
        Topic.HOST,
    ),
    # from the written image to the Node
    _M.AWAITING_REPORT: ReasonRow("it goes on as soon as the installed system reports", (_SERIAL,), Topic.HOST),
    _M.CONFIGURATION_MISSING: ReasonRow(
        "machina binds the host's Machine to the MachineConfiguration of the Cluster",
        (("kubectl get mc", "shows the MachineConfigurations"), _CLUSTERS),
        Topic.CLUSTER,
    ),
    _M.AWAITING_AGENT: ReasonRow("it goes on as soon as the agent reports", (_SERIAL,), Topic.HOST),
    _M.PREPARING_NODE: ReasonRow("it goes on as soon as the agent starts the node", (_SERIAL,), Topic.HOST),
    _M.AWAITING_NODE: ReasonRow("it goes on as soon as the Node registers", (_SERIAL, _OPERATIONS), Topic.HOST),
    _M.NODE_NOT_READY: ReasonRow("it goes on as soon as the Node is Ready", (_NODE,), Topic.HOST),
    _M.MARKING_NODE: ReasonRow(
        "machina gives the Node its labels and taints",
        (("kubectl get node {target} --show-labels", "shows the labels of the Node"),),
        Topic.MACHINA,
    ),
    # the Node that is kept current
    _M.UPDATING: ReasonRow("the rolling update of the Cluster goes on", (_NODE,), Topic.MACHINE),
    _M.UPDATE_FAILED: ReasonRow(
        "the update of the Cluster halts",
        ((f"{PLUGIN} why cluster.cluster.k8s.io/{{cluster}} -n {{namespace}}", "shows the update"),),
        Topic.MACHINE,
    ),
    _M.ENTERING_MAINTENANCE: ReasonRow(
        "it is in maintenance as soon as the Node is drained",
        (_DRAIN, (_machine({"maintenance": False}), "ends the maintenance, and uncordons the Node")),
        Topic.MACHINE,
    ),
    _M.RETURNING_NODE: ReasonRow("it is Ready again as soon as its Node is uncordoned", (_RETURN,), Topic.MACHINE),
    # the deletion
    _M.DRAINING: ReasonRow("it goes on as soon as the Node is drained", (_DRAIN, _UNSAFE, _ABORT), Topic.MACHINE),
    _M.MANAGERS_MISSING: ReasonRow(
        "it is deleted as soon as enough other managers are ready",
        (
            (
                f"kubectl get ma -n {{namespace}} -l {LABEL_CLUSTER}={{cluster}},{LABEL_CONTROL_PLANE}",
                "shows the managers of the Cluster",
            ),
            _ABORT,
            _FORCED,
            (
                "unbounded up --container-cloud --min-other-managers=0",
                "lets the last manager go, where controllers run in `unbounded up`",
            ),
        ),
    ),
    _M.MANAGER_DELETION: ReasonRow(
        "it is deleted after the other manager",
        ((f"{PLUGIN} why ma/{{holder}} -n {{namespace}}", "shows what the other one waits for"), _ABORT),
    ),
    _M.CLUSTER_MAINTENANCE: ReasonRow(
        "it is deleted after the maintenance",
        ((_cluster("{cluster}", {"maintenance": False}), "ends the maintenance of the Cluster"), _ABORT),
    ),
    _M.OPERATION_RUNNING: ReasonRow("it goes on when the operation has ended", (_OPERATIONS, _FORCED), Topic.MACHINE),
    _M.DRAIN_TIMED_OUT: ReasonRow(
        "the drain goes on while the deletion is requested", (_DRAIN, _UNSAFE, _ABORT), Topic.MACHINE
    ),
    _M.RESET_FAILED: ReasonRow("the reset is requested again then", (_UNSAFE, _OPERATIONS), Topic.OPERATION),
    _M.POWER_OFF_FAILED: ReasonRow("it is requested again then", (_FORCED, _OPERATIONS), Topic.OPERATION),
    _M.ABORTING: ReasonRow("the Node returns to service", (_NODE,), Topic.MACHINE),
    _M.REMOVING_NODE: ReasonRow(
        "container-cloud deletes the Node",
        (
            (
                "kubectl get node {target} -o jsonpath='{{.metadata.finalizers}}'",
                "shows the finalizers of the Node; their owners remove them",
            ),
        ),
        Topic.CONTAINER_CLOUD,
    ),
    _M.RELEASING_HOST: ReasonRow(
        "the host returns to stock, and the Machine is deleted",
        (_why("bmh", "host_name", "host_namespace"),),
        Topic.HOST,
    ),
    _M.FINALIZERS_REMAINING: ReasonRow(
        "the object is deleted as soon as the owners of its finalizers have removed them",
        (
            (
                "kubectl get ma {name} -n {namespace} -o jsonpath='{{.metadata.finalizers}}'",
                "shows the finalizers, whose names tell their owners",
            ),
        ),
    ),
    _M.WRITE_REFUSED: _REFUSED_WRITE,
}
"""Rows of the Machines of cluster.k8s.io: of claims, profiles, networks, the life and the deletion."""

DELETION: Final[Mapping[str, ReasonRow]] = {
    _M.WRITE_REFUSED: ReasonRow("the deletion tries it again then, and goes on", (_POLICIES, _FORCED)),
}
"""Rows of the Machines that are being deleted, where they differ."""

LOST_HOST: Final[Mapping[str, ReasonRow]] = {
    _C.HOST_MISSING: ReasonRow("nothing: the Machine gets no other host", (_DELETE, _FORCED)),
    _C.HOST_CHANGED: ReasonRow("nothing: the Machine gets no other host", (_DELETE, _FORCED)),
    _C.HOST_TAKEN: ReasonRow(
        "nothing: the Machine gets no other host",
        ((_why("bmh", "host_name", "host_namespace")[0], "shows the user of the host"), _DELETE),
    ),
}
"""Rows of the Machines whose claimed host is gone."""

_H = HostReason
_CONSUMER: Final = _why("ma", "consumer_name", "consumer_namespace")
_MACHINE_OF_HOST: Final = ("kubectl describe mach {machine}", "shows the conditions of the host's Machine")
_POWER_OFF: Final = (f"{PLUGIN} machine power-off {{machine}}", "switches the host off")
_ADOPT: Final = f"kubectl annotate bmh {{name}} -n {{namespace}} --overwrite {ANNOTATION_ADOPT}=MACHINE"
_LOGIN: Final = (
    "kubectl create secret generic {secret} -n {namespace} --from-literal=username=USER "
    "--from-literal=password=PASSWORD --dry-run=client -o yaml | kubectl apply -f -",
    "stores the login of the BMC",
)
_PASSWORD: Final = (
    _patch("bmhc {credential} -n {namespace}", {"spec": {"password": {"value": "PASSWORD"}}}),
    "gives the BareMetalHostCredential another password, if the host has one",
)


def _unmark(annotation: str) -> tuple[Command, ...]:
    return ((f"kubectl annotate bmh {{name}} -n {{namespace}} {annotation}-", "removes the annotation"),)


HOST: Final[Mapping[str, ReasonRow]] = {
    _H.NO_BMC: ReasonRow(
        "nothing, until it has a BMC",
        (
            (_host({"bmc": {"address": "ADDRESS", "credentialsName": "SECRET"}}), "names its BMC"),
            (_ADOPT, "adopts an existing Machine, with its BMC"),
        ),
    ),
    _H.REGISTERING: ReasonRow("metalman of the site reads its BMC", (_MACHINE_OF_HOST,), Topic.EXECUTOR),
    _H.INSPECTING: ReasonRow(
        "metalman reads the inventory of its hardware",
        (_MACHINE_OF_HOST, (f"{PLUGIN} machine inspect {{machine}}", "lets the installer report the hardware instead")),
        Topic.EXECUTOR,
    ),
    _H.IN_USE: ReasonRow("it returns to stock when that Machine is deleted", (_CONSUMER,), Topic.MACHINE),
    _H.CONSUMER_MISSING: ReasonRow(
        "nothing, until the claim is removed",
        (
            (
                _host({"consumerRef": None}),
                "returns the host to stock: it is switched off, unless it is externallyProvisioned",
            ),
        ),
    ),
    _H.RETURNING: ReasonRow("it is available once it was seen Off", (_POWER_OFF,), Topic.MACHINE),
    _H.RESTORING: ReasonRow(
        "another Machine may adopt it once no drain of its Node is left", (_MACHINE_OF_HOST,), Topic.MACHINE
    ),
    _H.EXTERNALLY_PROVISIONED: ReasonRow(
        "a Machine that pins it may adopt it",
        (
            (
                f"kubectl annotate ma MACHINE -n NAMESPACE {ANNOTATION_HOST}={{namespace}}/{{name}}",
                "pins a Machine to it; its disks are not written",
            ),
        ),
    ),
    _H.DELETING: ReasonRow(
        "it is deleted when no Machine uses it, and it is off", (_CONSUMER, _POWER_OFF), Topic.MACHINE
    ),
    _H.PAUSED: ReasonRow("nothing is done with it until the annotation is removed", _unmark(ANNOTATION_HOST_PAUSED)),
    _H.DETACHED: ReasonRow("no claim takes it until the annotation is removed", _unmark(ANNOTATION_HOST_DETACHED)),
    _H.UNHEALTHY: ReasonRow("no claim takes it until the annotation is removed", _unmark(ANNOTATION_HOST_UNHEALTHY)),
    _H.ADDRESS_INVALID: ReasonRow(
        "nothing, until the address is corrected", ((_host({"bmc": {"address": "ADDRESS"}}), "corrects the address"),)
    ),
    _H.BOOT_MODE_NOT_SERVED: ReasonRow(
        "nothing, until the mode is another one", ((_host({"bootMode": "UEFI"}), "boots the host by UEFI"),)
    ),
    _H.CREDENTIALS_MISSING: ReasonRow("it is registered as soon as the Secret exists", (_LOGIN,)),
    _H.CREDENTIALS_REFUSED: ReasonRow(
        "metalman asks the BMC again as soon as the password changes", (_PASSWORD, _LOGIN)
    ),
    _H.DUPLICATE_HOST: ReasonRow(
        "none of these hosts is used until one of them is left",
        (
            (
                "kubectl get bmh -A -o custom-columns=NAMESPACE:.metadata.namespace,NAME:.metadata.name,"
                "BMC:.spec.bmc.address,MAC:.spec.bootMACAddress",
                "shows the BMC and the MAC address of all hosts",
            ),
            ("kubectl delete bmh {name} -n {namespace}", "deletes this one, if it is the wrong one"),
        ),
    ),
    _H.MACHINE_MISSING: ReasonRow(
        "it is registered as soon as the Machine exists",
        (("kubectl get mach", "shows the existing Machines"), (_ADOPT, "adopts another Machine")),
    ),
    _H.MACHINE_UNSUITABLE: ReasonRow(
        "nothing, until the host or that Machine is changed",
        (
            (_ADOPT, "adopts another Machine"),
            (_host({"externallyProvisioned": True}), "adopts the Machine as it is, and never writes its disks"),
        ),
    ),
    _H.NAME_TAKEN: ReasonRow(
        "nothing, until the name is free, or the host adopts that Machine",
        ((_ADOPT.replace("=MACHINE", "={machine}"), "adopts that Machine"), _MACHINE_OF_HOST),
    ),
    _H.BMC_SILENT: ReasonRow("metalman goes on asking the BMC", (_MACHINE_OF_HOST,), Topic.EXECUTOR),
    _H.POWER_FAILED: ReasonRow(
        "it is tried again after 1, 2, 4, … 60 min",
        (("kubectl get mop --field-selector spec.machineRef={machine}", "shows the operations on its Machine"),),
        Topic.MACHINE,
    ),
    _H.INSTALL_FAILED: ReasonRow("its Machine installs it again, at most 5 times", (_CONSUMER,), Topic.MACHINE),
    _H.WRITE_REFUSED: _REFUSED_WRITE,
    _H.NOT_RELEASED: ReasonRow(
        "container-cloud tries again, up to 5 min apart",
        ((_host({"consumerRef": None}), "removes the claim: the host returns to stock"),),
    ),
    _H.NOT_SEEN_OFF: ReasonRow("it is available once it was seen Off", (_POWER_OFF,), Topic.MACHINE),
}
"""Rows of BareMetalHosts: the reasons of condition Available, and of condition Dirty."""

_R = ClusterReason
_NEW_RELEASE: Final = (
    _cluster("{name}", {"release": "RELEASE"}),
    "names another ClusterRelease: the spec of one that exists cannot be changed",
)
_MACHINES: Final = (f"kubectl get ma -n {{namespace}} -l {LABEL_CLUSTER}={{name}}", "shows its Machines")

CLUSTER: Final[Mapping[str, ReasonRow]] = {
    _R.RELEASE_MISSING: ReasonRow(
        "its Machines claim no host until the ClusterRelease exists", (_RELEASES, _NEW_RELEASE)
    ),
    _R.RELEASE_UNUSABLE: ReasonRow(
        "its Machines are not installed until the ClusterRelease is usable",
        (("kubectl describe clusterrelease {release}", "shows its condition Usable"), _NEW_RELEASE),
    ),
    _R.UNSUPPORTED_IMAGE: ReasonRow("Clusters cannot use the ClusterRelease", (_NEW_RELEASE,)),
    _R.NAME_TAKEN: ReasonRow(
        "it goes on as soon as the name is free",
        (
            ("kubectl get mc,mdb", "shows the objects that others made"),
            ("kubectl delete KIND NAME", "deletes the one that the message names"),
        ),
    ),
    _R.NODES_NOT_READY: ReasonRow("it is ready when all its Machines are", (_MACHINES,), Topic.CLAIM),
    _R.UPDATING: ReasonRow("the rolling update goes on", (_MACHINES,), Topic.CONFIGURATION),
    _R.PAUSED: ReasonRow(
        "no update of a Machine starts until its maintenance ends",
        ((_cluster("{name}", {"maintenance": False}), "ends the maintenance of the Cluster"),),
    ),
    _R.HALTED: ReasonRow(
        "nothing starts until the failed Machines are tried again, or a new release exists",
        (
            (_cluster("{name}", {"maintenance": True}), "pauses the update"),
            (_cluster("{name}", {"maintenance": False}), "tries the failed Machines again, after the pause"),
            (f"{PLUGIN} why configuration/{{configuration}}", "shows the failed Machines"),
        ),
    ),
    _R.WRITE_REFUSED: _REFUSED_WRITE,
    _R.DELETING: ReasonRow("it is deleted after its Machines", (_MACHINES,), Topic.CLAIM),
}
"""Rows of Clusters: the reasons of their conditions."""

_POOL: Final = "machinepools.kaas.mirantis.com {name} -n {namespace}"
_MEMBERS: Final = (
    f"kubectl get ma -n {{namespace}} -l {LABEL_MACHINE_POOL}={{name}}",
    "shows the Machines of the pool",
)
_K: Final = PoolReason
POOL: Final[Mapping[str, ReasonRow]] = {
    _K.CREATING: ReasonRow("they are created within seconds", (_MEMBERS,)),
    _K.CLUSTER_MISSING: ReasonRow(
        "it goes on as soon as the Cluster exists",
        (_CLUSTERS, ("kubectl apply -f CLUSTER.yaml", "creates the Cluster")),
    ),
    _K.CLUSTER_DELETING: ReasonRow(
        "it creates no Machine in a Cluster that is being deleted",
        ((f"kubectl delete {_POOL}", "deletes the pool; its Machines are deleted with their Cluster"),),
        Topic.CLUSTER,
    ),
    _K.MORE_THAN_REPLICAS: ReasonRow(
        "a pool deletes no Machine",
        (
            _MEMBERS,
            ("kubectl delete ma MACHINE -n {namespace} --wait=false", "deletes a Machine by its deletionPolicy"),
        ),
    ),
    _K.HOST_SELECTOR_FIXED: ReasonRow(
        "the Machine keeps its host; a new Machine of the pool gets the selector of the template",
        (
            _MEMBERS,
            ("kubectl delete ma MACHINE -n {namespace} --wait=false", "deletes it, and the pool creates another"),
        ),
    ),
    _K.MEMBER_REJECTED: ReasonRow(
        "it is tried again, and goes on once the template or the Cluster is corrected",
        ((f"kubectl edit {_POOL}", "corrects the field that the message names"),),
    ),
    _K.DELETING: ReasonRow("its Machines stay, as those that were created alone", (_MEMBERS,)),
}
"""Rows of MachinePools: the reasons of condition Complete."""

CONTAINER_CLOUD_FIXES: Final = (
    Fix(f"kubectl -n {NAMESPACE} rollout restart deployment/container-cloud-controller", "starts it again"),
    Fix(f"kubectl -n {NAMESPACE} logs deployment/container-cloud-controller --tail=50", "shows why it stopped"),
    Fix(f"{PLUGIN} install --container-cloud", "deploys it, if it is not deployed"),
)
