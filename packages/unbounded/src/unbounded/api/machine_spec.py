"""The desired state of a Machine: how each component reaches its host, and the node that the host is to become."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from unbounded.api.disruption import MaintenanceSpec
from unbounded.api.fields import (
    RELEASE_VERSION,
    SHA256,
    TAINT,
    ApiStruct,
    Count,
    DataKey,
    Field,
    HostKey,
    HttpUrl,
    ImageReference,
    Int32,
    IPv4Address,
    KubernetesVersion,
    LabelValue,
    MacAddress,
    NamespaceName,
    ObjectName,
    ProviderName,
)
from unbounded.api.meta import LocalObjectReference
from unbounded.api.names import PCRPolicy
from unbounded.api.network import NetworkSpec
from unbounded.api.operation import OperationsStatus

SSH_PRIVATE_KEY: Final = "ssh-privatekey"  # key of a Secret with an SSH key

NodeLabels = Annotated[
    dict[str, LabelValue],
    Field("Labels for the Node. If absent, the Node keeps its labels; an empty map removes them."),
]
UserName = Annotated[str, Field(min_length=1, max_length=128)]
SSHHost = Annotated[str, Field(pattern=r"^[^\s/@]+$", min_length=1, max_length=262)]


class SecretKeySelector(ApiStruct, frozen=True, kw_only=True):
    """One key of a Secret."""

    name: Annotated[ObjectName, Field("Name of the Secret.")]
    namespace: Annotated[NamespaceName, Field("Namespace of the Secret.")]
    key: Annotated[DataKey, Field("Key within the Secret's data.", defaulted=True)] = SSH_PRIVATE_KEY


class ConfigMapKeySelector(ApiStruct, frozen=True, kw_only=True):
    """One key of a ConfigMap."""

    name: Annotated[ObjectName, Field("Name of the ConfigMap.")]
    namespace: Annotated[NamespaceName, Field("Namespace of the ConfigMap.")]
    key: Annotated[DataKey, Field("Key within the ConfigMap's data.", defaulted=True)] = "user-data"


class NetworkConfigKeySelector(ConfigMapKeySelector, frozen=True, kw_only=True):
    """One key of a ConfigMap, with a network configuration."""

    key: Annotated[DataKey, Field("Key within the ConfigMap's data.", defaulted=True)] = "network-config"


class SecretReference(ApiStruct, frozen=True, kw_only=True):
    """A whole Secret."""

    name: Annotated[ObjectName, Field("Name of the Secret.")]
    namespace: Annotated[NamespaceName, Field("Namespace of the Secret.")]


_PassphraseKey = Annotated[
    DataKey | None,
    Field(
        "Key within the same Secret with the passphrase of the private key. If absent, key passphrase is "
        "used if it exists."
    ),
]
_CertificateKey = Annotated[
    DataKey | None,
    Field(
        "Key within the same Secret with an OpenSSH certificate of the private key. If absent, key "
        "ssh-certificate is used if it exists."
    ),
]


class BastionSSHSpec(ApiStruct, frozen=True, kw_only=True):
    """A jump host that the SSH connection goes through."""

    host: Annotated[SSHHost, Field("Host name or IP of the bastion, optionally with a port.")]
    username: Annotated[UserName, Field("SSH user on the bastion.", defaulted=True)] = "azureuser"
    private_key_ref: Annotated[
        SecretKeySelector | None,
        Field("Private key for the bastion, in namespace unbounded-kube. If absent, ssh.privateKeyRef is used."),
    ] = None
    passphrase_key: _PassphraseKey = None
    certificate_key: _CertificateKey = None
    host_keys: Annotated[
        tuple[HostKey, ...],
        Field(
            'Host keys of the bastion, as "ssh-ed25519 AAAA…". If absent, machina trusts the first key that '
            "the bastion presents.",
            max_items=16,
        ),
    ] = ()


class SSHSpec(ApiStruct, frozen=True, kw_only=True):
    """The SSH access to the host."""

    host: Annotated[
        SSHHost,
        Field("Host name or IP, optionally with a port (1.2.3.4:2222, [2001:db8::1]:22). Defaults to port 22."),
    ]
    username: Annotated[UserName, Field("SSH user.", defaulted=True)] = "azureuser"
    private_key_ref: Annotated[
        SecretKeySelector, Field("Secret with the SSH private key. It must be in namespace unbounded-kube.")
    ]
    passphrase_key: _PassphraseKey = None
    certificate_key: _CertificateKey = None
    bastion: Annotated[BastionSSHSpec | None, Field("Jump host for the SSH connection.")] = None
    host_keys: Annotated[
        tuple[HostKey, ...],
        Field(
            'Host keys of the host, as "ssh-ed25519 AAAA…". If absent, machina trusts the first key that the '
            "host presents.",
            max_items=16,
        ),
    ] = ()


class DHCPLease(ApiStruct, frozen=True, kw_only=True):
    """A static lease, offered while the machine boots from the network."""

    ipv4: Annotated[IPv4Address, Field("IPv4 address to assign.")]
    mac: Annotated[MacAddress, Field("MAC address of the NIC, matched without regard to case.")]
    subnet_mask: Annotated[IPv4Address, Field("Subnet mask, such as 255.255.255.0.")]
    gateway: Annotated[IPv4Address, Field("Default gateway.")]
    dns: Annotated[tuple[IPv4Address, ...], Field("Addresses of DNS servers.", max_items=8)] = ()


class RedfishSpec(ApiStruct, frozen=True, kw_only=True):
    """The Redfish access to the machine's BMC."""

    url: Annotated[
        HttpUrl, Field("Redfish endpoint, such as https://bmc-01.example.com. It holds no user or password.")
    ]
    username: Annotated[UserName, Field("Redfish user.")]
    password_ref: Annotated[SecretKeySelector, Field("Secret with the Redfish password.")]
    device_id: Annotated[
        str, Field("Id of the system below /redfish/v1/Systems.", min_length=1, max_length=253, defaulted=True)
    ] = "1"
    ca_bundle: Annotated[
        str | None,
        Field(
            "PEM certificates of authorities that sign the BMC's certificate. If absent, metalman pins the "
            "first certificate that it receives.",
            max_length=65536,
        ),
    ] = None


class CloudInitSpec(ApiStruct, frozen=True, kw_only=True):
    """cloud-init customization of a machine that boots from the network."""

    user_data_config_map_ref: Annotated[
        ConfigMapKeySelector | None, Field("ConfigMap with custom cloud-init user-data.")
    ] = None
    network_config_config_map_ref: Annotated[
        NetworkConfigKeySelector | None,
        Field(
            "ConfigMap with the network configuration of the installed system, as cloud-init reads it. The "
            "installation waits until it exists."
        ),
    ] = None


class AttestationSpec(ApiStruct, frozen=True, kw_only=True):
    """The TPM by which the machine attests itself."""

    ek_public_key_sha256: Annotated[
        str | None,
        Field(
            "SHA-256 digest of the TPM's endorsement key (its SubjectPublicKeyInfo as DER), 64 hexadecimal "
            "digits. No other TPM receives a token. If absent, metalman trusts the first key that proves its "
            "identity.",
            pattern=SHA256,
            max_length=64,
        ),
    ] = None
    pcr_policy: Annotated[
        str | None,
        Field(
            "Consequence of a boot whose PCRs, as the TPM quotes them, deviate from status.tpm.reference. Required: "
            "the host receives no token, and its HostReplace fails. Recorded: the condition BootChanged reports it. "
            "Defaults to the site's policy (metalman's --pcr-policy).",
            enum=tuple(PCRPolicy),
        ),
    ] = None


Hint = Annotated[str, Field(min_length=1, max_length=256)]


class RootDeviceHints(ApiStruct, frozen=True, kw_only=True):
    """Properties of the disk that the image is written to. The disk must have all of them; case is ignored."""

    device_name: Annotated[
        str | None,
        Field(
            "Path of the disk, such as /dev/sda, or below /dev/disk/by-id or /dev/disk/by-path.",
            pattern=r"^/dev/(disk/by-(id|path)/)?[A-Za-z0-9#+.:=@_-]+$",
            max_length=253,
        ),
    ] = None
    hctl: Annotated[
        str | None,
        Field("SCSI address host:channel:target:lun.", pattern=r"^[0-9]+(:[0-9]+){3}$", max_length=64),
    ] = None
    model: Annotated[Hint | None, Field("Text that the disk's model contains.")] = None
    vendor: Annotated[Hint | None, Field("Text that the disk's vendor contains.")] = None
    serial_number: Annotated[Hint | None, Field("Serial number of the disk.")] = None
    min_size_gigabytes: Annotated[Int32 | None, Field("Smallest size, in GiB as Ironic counts.", minimum=1)] = None
    wwn: Annotated[Hint | None, Field("World Wide Name or EUI of the disk.")] = None
    rotational: Annotated[bool | None, Field("True for a hard disk, false for flash.")] = None


class BootMode(StrEnum):
    """Source from which the host boots the installer."""

    NETWORK = "Network"
    VIRTUAL_MEDIA = "VirtualMedia"
    UEFI_HTTP = "UEFIHTTP"


class PXESpec(ApiStruct, frozen=True, kw_only=True):
    """The machine's network boot, and its operating system."""

    image: Annotated[
        ImageReference | None,
        Field(
            "OCI image with the netboot files or the disk image. A host without it is in stock: a HostReplace of it "
            "fails, and it boots the installer only from a netboot image."
        ),
    ] = None
    dhcp_leases: Annotated[
        tuple[DHCPLease, ...],
        Field("Static leases for the network boot, and addresses of the installer.", max_items=32),
    ] = ()
    redfish: Annotated[RedfishSpec | None, Field("Access to the BMC over Redfish.")] = None
    cloud_init: Annotated[CloudInitSpec | None, Field("cloud-init customization.")] = None
    pull_secret_ref: Annotated[SecretReference | None, Field("Registry credentials for image.")] = None
    netboot_image: Annotated[
        ImageReference | None, Field("OCI image with the netboot files, when image holds only the disk image.")
    ] = None
    netboot_pull_secret_ref: Annotated[SecretReference | None, Field("Registry credentials for netbootImage.")] = None
    architecture: Annotated[str, Field("CPU architecture of the machine.", enum=("amd64", "arm64"), defaulted=True)] = (
        "amd64"
    )
    boot_protocol: Annotated[
        str, Field("How the firmware boots from the network in bootMode Network.", enum=("PXE", "HTTP"), defaulted=True)
    ] = "PXE"
    boot_mode: Annotated[
        str,
        Field(
            "Source from which the host boots the installer. Network: by bootProtocol, and by PXE where the BMC does "
            "not support UEFI HTTP. UEFIHTTP: by UEFI HTTP only. VirtualMedia: a CD image that the BMC fetches by "
            "HTTPS and shows its host, without DHCP; the installer uses the addresses of dhcpLeases, or else those "
            "of spec.network.",
            enum=tuple(BootMode),
            defaulted=True,
        ),
    ] = BootMode.NETWORK
    target_disk: Annotated[
        str | None,
        Field("Disk that the image is written to, such as /dev/disk/by-id/….", min_length=1, max_length=253),
    ] = None
    root_device_hints: Annotated[
        RootDeviceHints | None,
        Field("Disk that the image is written to, by its properties. It excludes targetDisk."),
    ] = None
    profile_ref: Annotated[
        LocalObjectReference | None,
        Field("MachineProfile with the layout of the disks. It excludes targetDisk and rootDeviceHints."),
    ] = None
    attestation: Annotated[AttestationSpec | None, Field("TPM that identifies the machine.")] = None


class KubernetesSpec(ApiStruct, frozen=True, kw_only=True):
    """The machine's cluster settings. Without them, the machine does not become a Node."""

    version: Annotated[
        KubernetesVersion | None,
        Field('Kubernetes version, such as "v1.34.0"; the v is optional. Defaults to the version of the cluster.'),
    ] = None
    node_ref: Annotated[LocalObjectReference | None, Field("Node of this Machine. Set by the controller.")] = None
    node_labels: NodeLabels | None = None
    register_with_taints: Annotated[
        tuple[Annotated[str, Field(pattern=TAINT, max_length=512)], ...] | None,
        Field(
            "Taints for the Node, as key=value:Effect. If absent, the Node keeps its taints; an empty list "
            "removes them."
        ),
    ] = None
    bootstrap_token_ref: Annotated[
        LocalObjectReference | None,
        Field("Bootstrap token Secret in kube-system. Optional where a default token exists."),
    ] = None


class DownloadSource(ApiStruct, frozen=True, kw_only=True):
    """The source of one artifact, and its version."""

    base_url: Annotated[HttpUrl | None, Field("Replaces the start of the default URL.")] = None
    url: Annotated[
        HttpUrl | None, Field("Complete URL, with placeholders for version and architecture. Overrides baseURL.")
    ] = None
    version: Annotated[
        str | None, Field('Version to download, such as "2.1.8".', pattern=RELEASE_VERSION, max_length=128)
    ] = None


class AgentDownloads(ApiStruct, frozen=True, kw_only=True):
    """The sources from which the agent downloads the artifacts of a node."""

    kubernetes: Annotated[DownloadSource | None, Field("kubelet, kubectl and kube-proxy.")] = None
    containerd: Annotated[DownloadSource | None, Field("containerd.")] = None
    runc: Annotated[DownloadSource | None, Field("runc.")] = None
    cni: Annotated[DownloadSource | None, Field("CNI plugins.")] = None
    crictl: Annotated[DownloadSource | None, Field("crictl.")] = None
    sandbox: Annotated[
        DownloadSource | None, Field("Archive of the sandbox image, for node images that do not contain it.")
    ] = None


class AgentSpec(ApiStruct, frozen=True, kw_only=True):
    """The agent on the host, and the root file system that it starts the node from."""

    image: Annotated[ImageReference | None, Field("OCI image of the node's root file system.")] = None
    version: Annotated[str | None, Field("Version of the agent to install.", max_length=128)] = None
    base_url: Annotated[HttpUrl | None, Field("URL of the releases of the agent; the agent appends the version.")] = (
        None
    )
    url: Annotated[HttpUrl | None, Field("Complete URL of the agent's tarball. Overrides baseURL and version.")] = None
    sha256: Annotated[
        str | None,
        Field(
            "SHA-256 digest of the agent's tarball, 64 hexadecimal digits. Required for a URL with plain http.",
            pattern=SHA256,
            max_length=64,
        ),
    ] = None
    downloads: Annotated[AgentDownloads | None, Field("Sources from which the agent builds a node.")] = None


class ConfigurationRef(ApiStruct, frozen=True, kw_only=True):
    """A MachineConfiguration, and one of its versions."""

    name: Annotated[ObjectName, Field("Name of the MachineConfiguration.")]
    version: Annotated[
        Int32 | None, Field("Version of the MachineConfiguration. Defaults to the newest.", minimum=1)
    ] = None


class MachineSpec(ApiStruct, frozen=True, kw_only=True):
    """The desired state of the machine, and its access. Each component reads its own part."""

    ssh: Annotated[SSHSpec | None, Field("SSH access. Without it, machina does not provision the Machine.")] = None
    pxe: Annotated[PXESpec | None, Field("Network boot and BMC access, for metalman.")] = None
    network: Annotated[
        NetworkSpec | None,
        Field(
            "Network of the installed system, for metalman. It excludes pxe.cloudInit.networkConfigConfigMapRef. "
            "If absent, the image configures the network, usually by DHCP."
        ),
    ] = None
    kubernetes: Annotated[KubernetesSpec | None, Field("How the machine joins the cluster.")] = None
    agent: Annotated[AgentSpec | None, Field("The agent on the host.")] = None
    operations: Annotated[OperationsStatus | None, Field("Desired counts of reboots and repaves.")] = None
    provider: Annotated[
        ProviderName | None,
        Field(
            "Provider that controls the host from outside, such as AzureVM or OCIInstance. Immutable once "
            "set. Defaults to annotation unbounded-cloud.io/provider."
        ),
    ] = None
    provider_id: Annotated[
        str | None, Field("The provider's ID of the host, such as azure:///subscriptions/….", min_length=1)
    ] = None
    configuration_ref: Annotated[
        ConfigurationRef | None, Field("MachineConfiguration that the Machine is bound to.")
    ] = None
    join_counter: Annotated[
        Count,
        Field(
            "Increase it to let the machine join once more: its agent and its kubelet each receive one new certificate."
        ),
    ] = 0
    reset_on_delete: Annotated[
        bool,
        Field(
            "Reset the host before the Machine is deleted: remove the agent and the node. If absent or "
            "false, the deletion leaves the host as it is."
        ),
    ] = False
    maintenance: Annotated[MaintenanceSpec | None, Field("Maintenance by people.")] = None
