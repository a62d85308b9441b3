"""Names that users script against: group, namespace, labels, annotations, finalizers."""

from collections.abc import Mapping
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
ANNOTATION_BOUND: Final = f"{GROUP}/bound-configuration"
ANNOTATION_ABOUT_TO_CHANGE: Final = f"{GROUP}/about-to-change"

ANNOTATION_MACHINE_UID: Final = f"{GROUP}/machine-uid"
ANNOTATION_MIGRATED_FROM: Final = f"{GROUP}/migrated-from"
ANNOTATION_SUCCESSOR: Final = f"{GROUP}/successor"
ANNOTATION_NODE_APPLIED: Final = f"{GROUP}/applied"

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

# Labels, annotations and finalizers: the objects that carry them, and their meaning.
MARKS: Final[Mapping[str, tuple[str, str]]] = {
    LABEL_SITE: ("Machine, Secret", "The site: which metalman and which credential a Machine belongs to."),
    LABEL_MACHINE: (
        "Node, Secret",
        "Name of the Machine that became this Node, or that this bootstrap token was made for.",
    ),
    LABEL_PARENT: ("MachineOperation", "The selector operation that this one was made for."),
    LABEL_CONFIGURATION: ("MachineConfigurationVersion", "The MachineConfiguration that it is a version of."),
    LABEL_CONFIGURATION_VERSION: ("MachineConfigurationVersion", "Number of the version."),
    LABEL_DEFAULT_BOOTSTRAP_TOKEN: ("Secret", "Value true: the bootstrap token of Machines that name none."),
    ANNOTATION_PROVIDER: ("Machine", "Provider of a Machine that has no spec.provider."),
    ANNOTATION_PAUSED: ("Machine", "No operation starts on the Machine as long as the annotation is there."),
    ANNOTATION_BOUND: (
        "Machine",
        "The MachineConfiguration that a selector led to. Where spec.configurationRef names it without a version, the"
        " binding follows selectors and priorities; without this annotation it stays as it is.",
    ),
    ANNOTATION_ABOUT_TO_CHANGE: (
        "MachineConfigurationVersion",
        "machina is about to edit or to delete the version: for that moment no node is begun from it.",
    ),
    ANNOTATION_MACHINE_UID: (
        "Secret, MachineOperation",
        "UID of the Machine that this bootstrap token was made for, or whose deletion asked for this AgentReset.",
    ),
    ANNOTATION_MIGRATED_FROM: (
        "any object that `unbounded migrate` copied",
        "The migration, a slash, and the UID that the object had on the server before.",
    ),
    ANNOTATION_SUCCESSOR: (
        "Machine",
        "JSON with the API server that the agent follows to, as `unbounded migrate` wrote it on the server before.",
    ),
    ANNOTATION_NODE_APPLIED: (
        "Node",
        "JSON with the labels and taints of the Machine that machina set, which it may take away again.",
    ),
    FINALIZER_RESET: ("Machine", "Deleting a Machine with resetOnDelete resets its host first."),
    FINALIZER_HOST_OPERATION: ("Machine", "Deleting a Machine waits for the end of the host operation that has it."),
    FINALIZER_OPERATION: ("MachineOperation", "Deleting a running operation cancels it first."),
}
