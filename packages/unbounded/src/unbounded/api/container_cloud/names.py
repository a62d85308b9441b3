"""Groups, labels, annotations and finalizers of Container Cloud's kinds."""

import hashlib
from collections.abc import Mapping
from typing import Final

from unbounded.api.names import GROUP

V1ALPHA1: Final = "v1alpha1"
GROUP_CLUSTER: Final = "cluster.k8s.io"
GROUP_HOST: Final = "metal3.io"
GROUP_KAAS: Final = "kaas.mirantis.com"
GROUP_IPAM: Final = "ipam.mirantis.com"
GROUPS: Final = (GROUP_CLUSTER, GROUP_HOST, GROUP_KAAS, GROUP_IPAM)
PROVIDER_API_VERSION: Final = "baremetal.k8s.io/v1alpha1"  # of spec.providerSpec.value and status.providerStatus
BAREMETAL: Final = "baremetal"  # the only provider
LEASE_CONTAINER_CLOUD: Final = "unbounded-container-cloud"

LABEL_PROVIDER: Final = "kaas.mirantis.com/provider"
LABEL_REGION: Final = "kaas.mirantis.com/region"
LABEL_CLUSTER: Final = "cluster.sigs.k8s.io/cluster-name"
LABEL_CONTROL_PLANE: Final = "cluster.sigs.k8s.io/control-plane"
LABEL_MACHINE_POOL: Final = "kaas.mirantis.com/machinepool-name"
LABEL_HOST_ID: Final = "kaas.mirantis.com/baremetalhost-id"
LABEL_HOST_SECRET: Final = "environment.metal3.io"  # noqa: S105 - the key of a label
HOST_SECRET: Final = "baremetal"  # noqa: S105 - its value
LABEL_DEFAULT_PROFILE: Final = "kaas.mirantis.com/defaultBMHProfile"
LABEL_DEFAULT_TEMPLATE: Final = "ipam/DefaultForCluster"
LABEL_LCM_SUBNET: Final = "ipam/SVC-k8s-lcm"
LABEL_LEASE_SUBNET: Final = "ipam/SVC-dhcp-range"
LABEL_LOAD_BALANCER: Final = "ipam/SVC-LBhost"
LABEL_NETWORK_CONFIG: Final = f"{GROUP}/network-config"
LABEL_CLAIM_CLUSTER: Final = f"{GROUP}/cluster"
LABEL_CLAIM_ROLE: Final = f"{GROUP}/role"
LABEL_UPGRADE_INDEX: Final = f"{GROUP}/upgrade-index"
ROLE_MANAGER: Final = "control-plane"
ROLE_WORKER: Final = "worker"

ANNOTATION_HOST: Final = "metal3.io/BareMetalHost"
ANNOTATION_CONSUMER_UID: Final = f"{GROUP}/consumer-uid"
ANNOTATION_ADOPT: Final = f"{GROUP}/machine"
ANNOTATION_BOOTSTRAP_TOKEN: Final = f"{GROUP}/bootstrap-token"
ANNOTATION_MACHINE_HOST: Final = f"{GROUP}/bare-metal-host"
ANNOTATION_BEFORE_CLAIM: Final = f"{GROUP}/before-claim"
ANNOTATION_FOR_UID: Final = f"{GROUP}/for-uid"
ANNOTATION_RETRY: Final = f"{GROUP}/retry"
ANNOTATION_CREDENTIAL: Final = "kaas.mirantis.com/baremetalhost-credentials-name"
ANNOTATION_HOST_PAUSED: Final = "baremetalhost.metal3.io/paused"
ANNOTATION_HOST_DETACHED: Final = "baremetalhost.metal3.io/detached"
ANNOTATION_HOST_UNHEALTHY: Final = "capi.metal3.io/unhealthy"

FINALIZER_ADDRESSES: Final = f"{GROUP}/addresses"
FINALIZER_MACHINE: Final = "machine.cluster.sigs.k8s.io"
ANNOTATION_NETWORK_OF: Final = f"{GROUP}/network-of"
ANNOTATION_IPAM_HOST: Final = f"{GROUP}/ipam-host"
ANNOTATION_INSTALLED: Final = f"{GROUP}/installed-network"
ANNOTATION_HOST_PROFILE: Final = f"{GROUP}/host-profile"

FINALIZER_HOST: Final = "baremetalhost.metal3.io"
FINALIZER_CLUSTER: Final = "cluster.cluster.k8s.io"
MAX_SCOPED_NAME: Final = 63  # of a label value, and of a Machine of unbounded-cloud.io
_DIGEST_CHARACTERS: Final = 8


def scoped_name(namespace: str, name: str) -> str:
    """Return the name of a cluster-scoped object for a namespaced one: `NAME.NAMESPACE`, which no other one has.

    A name that is too long for a label is cut, and ends with a digest.
    """
    whole = f"{name}.{namespace}"
    if len(whole) <= MAX_SCOPED_NAME:
        return whole
    digest = hashlib.sha256(f"{namespace}/{name}".encode()).hexdigest()[:_DIGEST_CHARACTERS]
    return f"{whole[: MAX_SCOPED_NAME - _DIGEST_CHARACTERS - 1].rstrip('.-')}-{digest}"


# Labels, annotations and finalizers: the objects that carry them, and their meaning.
CONTAINER_CLOUD_MARKS: Final[Mapping[str, tuple[str, str]]] = {
    LABEL_PROVIDER: ("Machine, Cluster", "Provider. It must be `baremetal`."),
    LABEL_REGION: ("Machine, Cluster", "Ignored."),
    LABEL_CLUSTER: (
        "Machine, MachinePool, BareMetalHost, L2Template",
        "Cluster of the object, in its namespace; on a BareMetalHost, that of the Machine that claimed it.",
    ),
    LABEL_CONTROL_PLANE: ("Machine", "With any value: the Machine is a manager. Without the label, it is a worker."),
    LABEL_MACHINE_POOL: ("Machine", "MachinePool that the Machine is a member of."),
    LABEL_HOST_ID: ("BareMetalHost", "Identity of the host, for hostSelector. Any label does."),
    LABEL_HOST_SECRET: (
        "Secret",
        "Value `baremetal`: login of a BMC. container-cloud sets it, and watches such Secrets.",
    ),
    LABEL_DEFAULT_PROFILE: ("BareMetalHostProfile", "Profile of the namespace for Machines that name none."),
    LABEL_DEFAULT_TEMPLATE: ("L2Template", "Template of the Cluster for Machines that select none."),
    LABEL_LCM_SUBNET: ("Subnet", "The address from this subnet is the InternalIP of the Node. A host has exactly one."),
    LABEL_CLAIM_CLUSTER: (
        "Machine of unbounded-cloud.io",
        "Cluster that the host belongs to, as NAME.NAMESPACE: its MachineConfiguration selects it.",
    ),
    LABEL_CLAIM_ROLE: ("Machine of unbounded-cloud.io", "Role of the host in the Cluster: control-plane or worker."),
    LABEL_UPGRADE_INDEX: (
        "Machine of unbounded-cloud.io",
        "Order of the update of the host. One that is externallyProvisioned has none, and is not updated.",
    ),
    ANNOTATION_HOST: (
        "Machine",
        "NAMESPACE/NAME of the host. Before the claim it pins the Machine to that host; the claim writes it, too.",
    ),
    ANNOTATION_CONSUMER_UID: ("BareMetalHost", "UID of the Machine in spec.consumerRef."),
    ANNOTATION_ADOPT: (
        "BareMetalHost",
        "Name of an existing Machine of unbounded-cloud.io that becomes the Machine of the host. It needs the right to "
        "update that Machine.",
    ),
    ANNOTATION_BOOTSTRAP_TOKEN: (
        "BareMetalHost",
        "Bootstrap token, a Secret of kube-system, with which a host without a TPM 2.0 joins. It needs the right to "
        "get that Secret.",
    ),
    ANNOTATION_MACHINE_HOST: ("Machine of unbounded-cloud.io, Secret", "NAMESPACE/NAME of its BareMetalHost."),
    ANNOTATION_BEFORE_CLAIM: (
        "Machine of unbounded-cloud.io",
        "The claim of a host that is externallyProvisioned, and the fields as they were before: its release puts them "
        "back.",
    ),
    ANNOTATION_FOR_UID: (
        "MachineOperation, MachineConfiguration, MachineDisruptionBudget",
        "UID of the Machine of cluster.k8s.io, or of the Cluster, that the object was created for.",
    ),
    ANNOTATION_RETRY: ("Machine", "A new value starts an install anew whose attempts are exhausted."),
    ANNOTATION_CREDENTIAL: ("BareMetalHost", "BareMetalHostCredential of the host, in its namespace."),
    ANNOTATION_HOST_PAUSED: ("BareMetalHost", "While this annotation exists, no claim takes the host."),
    ANNOTATION_HOST_DETACHED: ("BareMetalHost", "While this annotation exists, no claim takes the host."),
    ANNOTATION_HOST_UNHEALTHY: ("BareMetalHost", "While this annotation exists, no claim takes the host."),
    FINALIZER_MACHINE: ("Machine", "The deletion of a Machine follows its deletionPolicy first."),
    FINALIZER_CLUSTER: ("Cluster", "The deletion of a Cluster deletes its Machines first."),
    LABEL_LEASE_SUBNET: (
        "Subnet",
        "Installers of hosts get their addresses from this subnet. Without one, they get those of ipam/SVC-k8s-lcm.",
    ),
    LABEL_LOAD_BALANCER: ("Subnet", "The first address of this subnet is that of the Cluster's load balancer."),
    LABEL_NETWORK_CONFIG: ("ConfigMap", "Network configuration of a host, made from its L2Template."),
    ANNOTATION_NETWORK_OF: ("IpamHost", "Machine of unbounded-cloud.io that has the network."),
    ANNOTATION_INSTALLED: (
        "IpamHost",
        "Boot of the last install, and the digest of the network configuration that it had.",
    ),
    ANNOTATION_IPAM_HOST: ("ConfigMap", "NAMESPACE/NAME of the IpamHost of the network configuration."),
    ANNOTATION_HOST_PROFILE: ("MachineProfile", "NAMESPACE/NAME of the BareMetalHostProfile that it was made from."),
    FINALIZER_ADDRESSES: (
        "IpamHost, Subnet",
        "The deletion of an IpamHost gives its addresses back first; that of a Subnet waits for all of them.",
    ),
    FINALIZER_HOST: ("BareMetalHost", "The deletion of a host waits until no Machine uses it."),
}
