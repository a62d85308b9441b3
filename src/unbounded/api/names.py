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
ANNOTATION_PAUSED: Final = f"{GROUP}/paused"

FINALIZER_OPERATION: Final = f"{GROUP}/operation"

CONFIGMAP_OPERATIONS: Final = "unbounded-operations"
LEASE_STEWARD: Final = "unbounded-operations"

# What stands on which object, and what it says.
MARKS: Final[Mapping[str, tuple[str, str]]] = {
    LABEL_SITE: ("Machine, Secret", "The site: which metalman and which credential a Machine belongs to."),
    LABEL_MACHINE: ("Node", "Name of the Machine that became this Node."),
    LABEL_PARENT: ("MachineOperation", "The selector operation that this one was made for."),
    LABEL_CONFIGURATION: ("MachineConfigurationVersion", "The MachineConfiguration that it is a version of."),
    LABEL_CONFIGURATION_VERSION: ("MachineConfigurationVersion", "Number of the version."),
    LABEL_DEFAULT_BOOTSTRAP_TOKEN: ("Secret", "Value true: the bootstrap token of Machines that name none."),
    ANNOTATION_PROVIDER: ("Machine", "Provider of a Machine that has no spec.provider."),
    ANNOTATION_PAUSED: ("Machine", "No operation starts on the Machine as long as the annotation is there."),
    FINALIZER_OPERATION: ("MachineOperation", "Deleting a running operation cancels it first."),
}
