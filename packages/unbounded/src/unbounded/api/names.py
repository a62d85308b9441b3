"""Names that users script against: group, namespace, labels, annotations, finalizers."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

GROUP: Final = "unbounded-cloud.io"
VERSION: Final = "v1alpha3"
API_VERSION: Final = f"{GROUP}/{VERSION}"
NAMESPACE: Final = "unbounded-kube"

LABEL_SITE: Final = f"{GROUP}/site"
LABEL_MACHINE: Final = f"{GROUP}/machine"
LABEL_PARENT: Final = f"{GROUP}/parent"
LABEL_CONFIGURATION: Final = f"{GROUP}/machine-configuration"
LABEL_CONFIGURATION_VERSION: Final = f"{GROUP}/machine-configuration-version"
LABEL_DEFAULT_BOOTSTRAP_TOKEN: Final = f"{GROUP}/default-bootstrap-token"

ANNOTATION_PROVIDER: Final = f"{GROUP}/provider"
BUILT_IN_PROVIDERS: Final = ("AzureVM", "OCIInstance")
ANNOTATION_PAUSED: Final = f"{GROUP}/paused"
ANNOTATION_REQUESTED_BY: Final = f"{GROUP}/requested-by"
ANNOTATION_BOUND: Final = f"{GROUP}/bound-configuration"
ANNOTATION_ABOUT_TO_CHANGE: Final = f"{GROUP}/about-to-change"

ANNOTATION_MACHINE_UID: Final = f"{GROUP}/machine-uid"
ANNOTATION_MIGRATED_FROM: Final = f"{GROUP}/migrated-from"
ANNOTATION_SUCCESSOR: Final = f"{GROUP}/successor"
ANNOTATION_NODE_APPLIED: Final = f"{GROUP}/applied"
ANNOTATION_CORDONED_BY: Final = f"{GROUP}/cordoned-by"
ANNOTATION_FOR_BOOT: Final = f"{GROUP}/for-boot"

GROUP_BOOTSTRAP: Final = "system:bootstrappers:unbounded-agent-daemons"  # of every agent's bootstrap token
GROUP_AGENTS: Final = "unbounded-agent-daemons"  # of agents' own certificates
GROUP_NODES: Final = "system:nodes"  # of kubelets' certificates
NODE_USER: Final = "system:node:"  # begins the user name in both, before the Machine's name
SIGNER_AGENT: Final = "kubernetes.io/kube-apiserver-client"
SIGNER_KUBELET: Final = "kubernetes.io/kube-apiserver-client-kubelet"
SIGNER_SUCCESSOR_AGENT: Final = f"{GROUP}/successor-agent"
SIGNER_SUCCESSOR_KUBELET: Final = f"{GROUP}/successor-kubelet"
SIGNER_SERVING: Final = "kubernetes.io/kubelet-serving"

FINALIZER_OPERATION: Final = f"{GROUP}/operation"
FINALIZER_RESET: Final = f"{GROUP}/reset"
FINALIZER_HOST_OPERATION: Final = f"{GROUP}/host-operation"

CONFIGMAP_OPERATIONS: Final = "unbounded-operations"
CONFIGMAP_RELEASES: Final = "unbounded-releases"
CONFIGMAP_MIGRATION: Final = "unbounded-migration"
LEASE_SUPERVISOR: Final = "unbounded-operations"
LEASE_DISRUPTION: Final = "unbounded-disruption"

# Labels, annotations and finalizers: the objects that carry them, and their meaning.
MARKS: Final[Mapping[str, tuple[str, str]]] = {
    LABEL_SITE: ("Machine, Secret", "Site of the Machine. It selects the metalman and the credential."),
    LABEL_MACHINE: (
        "Node, Secret",
        "Name of the Machine that became this Node, or that this bootstrap token was created for.",
    ),
    LABEL_PARENT: ("MachineOperation", "Selector operation that created this operation."),
    LABEL_CONFIGURATION: ("MachineConfigurationVersion", "MachineConfiguration that this is a version of."),
    LABEL_CONFIGURATION_VERSION: ("MachineConfigurationVersion", "Number of the version."),
    LABEL_DEFAULT_BOOTSTRAP_TOKEN: ("Secret", "Value true: bootstrap token for Machines that name none."),
    ANNOTATION_PROVIDER: ("Machine", "Provider of a Machine that has no spec.provider."),
    ANNOTATION_PAUSED: ("Machine", "While this annotation exists, no operation starts on the Machine."),
    ANNOTATION_REQUESTED_BY: (
        "MachineOperation",
        "Name of the user who created the operation. A policy compares it with the user of the request; "
        "parameters.eraseDisks and parameters.acceptPCRs need it.",
    ),
    ANNOTATION_BOUND: (
        "Machine",
        "MachineConfiguration that a selector matched. If spec.configurationRef names it without a "
        "version, the binding follows selectors and priorities. Without this annotation, the binding "
        "does not change.",
    ),
    ANNOTATION_ABOUT_TO_CHANGE: (
        "MachineConfigurationVersion",
        "machina is about to edit or delete the version. Until then, machina creates no node from it.",
    ),
    ANNOTATION_MACHINE_UID: (
        "Secret, MachineOperation",
        "UID of the Machine that this bootstrap token was created for, or that this operation is meant for: it does "
        "not run on a later Machine of the same name. Without it, the operation is for the Machine that has the name.",
    ),
    ANNOTATION_MIGRATED_FROM: (
        "any object that `unbounded migrate` copied",
        "Migration, a slash, and the UID of the object on the old server.",
    ),
    ANNOTATION_SUCCESSOR: (
        "Machine",
        "JSON with the API server that the agent moves to. `unbounded migrate` writes it on the old server.",
    ),
    ANNOTATION_NODE_APPLIED: (
        "Node",
        "JSON with the Machine's labels and taints that machina has set on the Node, and may remove.",
    ),
    ANNOTATION_CORDONED_BY: (
        "Node",
        "UID of the operation, or of the Machine in maintenance, that the Node is cordoned for. Only such a cordon is "
        "removed at the end.",
    ),
    ANNOTATION_FOR_BOOT: (
        "ConfigMap",
        "Boot whose hardware report a network configuration was made from, as in status.hardware.boot. metalman serves "
        "it to that boot only, and others wait.",
    ),
    FINALIZER_RESET: ("Machine", "The deletion of a Machine with resetOnDelete resets its host first."),
    FINALIZER_HOST_OPERATION: (
        "Machine",
        "The deletion of a Machine waits for the end of the host operation that holds its lock.",
    ),
    FINALIZER_OPERATION: ("MachineOperation", "The deletion of a running operation cancels it first."),
}


class PCRPolicy(StrEnum):
    """The consequence of a boot whose PCRs deviate from the reference."""

    REQUIRED = "Required"  # no token
    RECORDED = "Recorded"  # a condition
