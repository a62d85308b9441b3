"""Machine: a host that is, or is to become, a Kubernetes node, and how each component reaches it."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from unbounded.api.base import ApiStruct
from unbounded.api.kinds import Kind
from unbounded.api.meta import Condition, LocalObjectReference, Object
from unbounded.api.names import ANNOTATION_PROVIDER, GROUP, LABEL_SITE, VERSION
from unbounded.api.operation import Evidence, OperationsStatus


class MachinePhase(StrEnum):
    PENDING = "Pending"
    PROVISIONING = "Provisioning"
    JOINING = "Joining"
    READY = "Ready"
    FAILED = "Failed"
    REBOOTING = "Rebooting"


class SecretKeySelector(ApiStruct, frozen=True, kw_only=True):
    name: str
    namespace: str
    key: str = "ssh-privatekey"


class ConfigMapKeySelector(ApiStruct, frozen=True, kw_only=True):
    name: str
    namespace: str
    key: str = "user-data"


class SecretReference(ApiStruct, frozen=True, kw_only=True):
    name: str
    namespace: str


class BastionSSHSpec(ApiStruct, frozen=True, kw_only=True):
    host: str
    username: str = "azureuser"
    private_key_ref: SecretKeySelector | None = None
    host_keys: tuple[str, ...] = ()


class SSHSpec(ApiStruct, frozen=True, kw_only=True):
    host: str
    username: str = "azureuser"
    private_key_ref: SecretKeySelector
    bastion: BastionSSHSpec | None = None
    host_keys: tuple[str, ...] = ()


class DHCPLease(ApiStruct, frozen=True, kw_only=True):
    """A static lease, offered while the machine boots from the network."""

    ipv4: str
    mac: str
    subnet_mask: str
    gateway: str
    dns: tuple[str, ...] = ()


class RedfishSpec(ApiStruct, frozen=True, kw_only=True):
    url: str
    username: str
    password_ref: SecretKeySelector
    device_id: str = "1"
    ca_bundle: str | None = None


class CloudInitSpec(ApiStruct, frozen=True, kw_only=True):
    user_data_config_map_ref: ConfigMapKeySelector | None = None


class PXESpec(ApiStruct, frozen=True, kw_only=True):
    image: str
    dhcp_leases: tuple[DHCPLease, ...] = ()
    redfish: RedfishSpec | None = None
    cloud_init: CloudInitSpec | None = None
    pull_secret_ref: SecretReference | None = None
    netboot_image: str | None = None
    netboot_pull_secret_ref: SecretReference | None = None
    architecture: str = "amd64"
    boot_protocol: str = "PXE"
    target_disk: str | None = None


class KubernetesSpec(ApiStruct, frozen=True, kw_only=True):
    version: str | None = None
    node_ref: LocalObjectReference | None = None
    node_labels: dict[str, str] = {}
    register_with_taints: tuple[str, ...] = ()
    bootstrap_token_ref: LocalObjectReference | None = None


class DownloadSource(ApiStruct, frozen=True, kw_only=True):
    base_url: str | None = None
    url: str | None = None
    version: str | None = None


class AgentDownloads(ApiStruct, frozen=True, kw_only=True):
    kubernetes: DownloadSource | None = None
    containerd: DownloadSource | None = None
    runc: DownloadSource | None = None
    cni: DownloadSource | None = None
    crictl: DownloadSource | None = None


class AgentSpec(ApiStruct, frozen=True, kw_only=True):
    image: str | None = None
    version: str | None = None
    base_url: str | None = None
    url: str | None = None
    downloads: AgentDownloads | None = None


class ConfigurationRef(ApiStruct, frozen=True, kw_only=True):
    name: str
    version: int | None = None


class MachineSpec(ApiStruct, frozen=True, kw_only=True):
    ssh: SSHSpec | None = None
    pxe: PXESpec | None = None
    kubernetes: KubernetesSpec | None = None
    agent: AgentSpec | None = None
    operations: OperationsStatus | None = None
    provider: str | None = None
    provider_id: str | None = None
    configuration_ref: ConfigurationRef | None = None


class SSHStatus(ApiStruct, frozen=True, kw_only=True):
    fingerprint: str | None = None
    bastion_fingerprint: str | None = None


class RedfishStatus(ApiStruct, frozen=True, kw_only=True):
    cert_fingerprint: str | None = None
    refused_secret_version: str | None = None  # resourceVersion of the Secret whose password the BMC refused


class TPMStatus(ApiStruct, frozen=True, kw_only=True):
    ek_public_key: str | None = None


class AgentStatus(ApiStruct, frozen=True, kw_only=True):
    image: str | None = None
    version: str | None = None
    host_boot_id: str | None = None


class ConfigurationStatus(ApiStruct, frozen=True, kw_only=True):
    name: str | None = None
    version: int | None = None
    version_name: str | None = None


class ActiveOperation(ApiStruct, frozen=True, kw_only=True):
    """The slot: the one operation that may act on this Machine now."""

    uid: str
    name: str
    kind: str
    executor: str
    since: str
    lost: bool = False  # its executor went silent: the next one looks at the machine afresh before it takes the slot


class RecentOperation(ApiStruct, frozen=True, kw_only=True):
    """What is left of an operation when its object is gone."""

    name: str
    uid: str
    kind: str
    phase: str
    reason: str | None = None
    message: str | None = None
    started_at: str | None = None
    completed_at: str | None = None
    evidence: tuple[Evidence, ...] = ()


class MachineStatus(ApiStruct, frozen=True, kw_only=True):
    phase: str | None = None
    message: str | None = None
    ssh: SSHStatus | None = None
    redfish: RedfishStatus | None = None
    tpm: TPMStatus | None = None
    agent: AgentStatus | None = None
    operations: OperationsStatus | None = None
    configuration: ConfigurationStatus | None = None
    active_operation: ActiveOperation | None = None
    recent_operations: tuple[RecentOperation, ...] = ()
    conditions: tuple[Condition, ...] = ()


class Machine(Object, frozen=True, kw_only=True):
    spec: MachineSpec = MachineSpec()
    status: MachineStatus = MachineStatus()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def site(self) -> str:
        """The site label, or the empty string for a Machine of no site."""
        return self.metadata.labels.get(LABEL_SITE, "")

    @property
    def provider(self) -> str | None:
        """`spec.provider`, else the annotation; None for a Machine that no cloud provider controls."""
        return self.spec.provider or self.metadata.annotations.get(ANNOTATION_PROVIDER) or None


MACHINES: Final = Kind(GROUP, VERSION, "Machine", "machines", Machine)
