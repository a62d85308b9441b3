"""Names that users script against: group, namespace, labels, annotations, finalizers."""

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
