"""BareMetalHost: a host in stock or in use; its credential, and the profile of its disks."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

import msgspec

from unbounded.api.container_cloud.machine import NoEffect
from unbounded.api.container_cloud.names import (
    ANNOTATION_ADOPT,
    ANNOTATION_BOOTSTRAP_TOKEN,
    GROUP_HOST,
    GROUP_KAAS,
    V1ALPHA1,
)
from unbounded.api.fields import ApiStruct, Count, Field, MacAddress, Message, NamespaceName, ObjectName, Time
from unbounded.api.machine_spec import RootDeviceHints
from unbounded.api.meta import Condition, Kind, Object
from unbounded.api.profile import MachineProfileSpec

Text = Annotated[str, Field(max_length=256)]
MAX_PLANNED: Final = 1000


class ProvisioningState(StrEnum):
    """The words of `status.provisioning.state`."""

    UNMANAGED = "unmanaged"
    REGISTERING = "registering"
    INSPECTING = "inspecting"
    AVAILABLE = "available"
    PROVISIONING = "provisioning"
    PROVISIONED = "provisioned"
    DEPROVISIONING = "deprovisioning"
    EXTERNALLY_PROVISIONED = "externally provisioned"
    DELETING = "deleting"


class OperationalStatus(StrEnum):
    """The words of `status.operationalStatus`."""

    OK = "OK"
    ERROR = "error"
    DETACHED = "detached"


class HostErrorType(StrEnum):
    """The words of `status.errorType`."""

    REGISTRATION = "registration error"
    INSPECTION = "inspection error"
    PREPARATION = "preparation error"
    PROVISIONING = "provisioning error"
    POWER_MANAGEMENT = "power management error"


class HostBMC(ApiStruct, frozen=True, kw_only=True):
    """Access to the BMC."""

    address: Annotated[
        str,
        Field(
            "Address, such as redfish+https://192.0.2.10/redfish/v1/Systems/1. Schemes: redfish, idrac-redfish and "
            "ilo5-redfish, which boot from the network; redfish-virtualmedia, idrac-virtualmedia and "
            "ilo5-virtualmedia; redfish-uefihttp; each also with +http or +https.",
            min_length=1,
            max_length=1024,
        ),
    ]
    credentials_name: Annotated[
        str | None, Field("Secret in the host's namespace, with the keys username and password.", max_length=253)
    ] = None
    disable_certificate_verification: Annotated[
        bool, Field("Kept. It has no effect: the certificate of the BMC is pinned at the first contact.")
    ] = False


class ConsumerReference(ApiStruct, frozen=True, kw_only=True):
    """The object that uses the host."""

    api_version: Annotated[str | None, Field("API version of the object.", max_length=128)] = None
    kind: Annotated[str | None, Field("Kind of the object.", max_length=63)] = None
    namespace: Annotated[NamespaceName | None, Field("Namespace of the object.")] = None
    name: Annotated[ObjectName | None, Field("Name of the object.")] = None
    uid: Annotated[str | None, Field("Kept. It has no effect.", max_length=128)] = None
    field_path: Annotated[str | None, Field("Kept. It has no effect.", max_length=256)] = None
    resource_version: Annotated[str | None, Field("Kept. It has no effect.", max_length=128)] = None


class BareMetalHostSpec(ApiStruct, frozen=True, kw_only=True):
    """Desired state of a host, and access to it."""

    bmc: Annotated[HostBMC | None, Field("Access to the BMC. A host without one is unmanaged.")] = None
    boot_mac_address: Annotated[
        MacAddress | None, Field("MAC address of the interface that boots. It is immutable once it is set.")
    ] = msgspec.field(default=None, name="bootMACAddress")
    boot_mode: Annotated[
        str,
        Field(
            "Firmware mode. UEFISecureBoot counts as UEFI, as the firmware decides on Secure Boot. "
            "legacy is rejected by the controller.",
            enum=("UEFI", "UEFISecureBoot", "legacy"),
            defaulted=True,
        ),
    ] = "UEFI"
    architecture: Annotated[str | None, Field("CPU architecture. Defaults to x86_64.", enum=("x86_64", "aarch64"))] = (
        None
    )
    online: Annotated[bool, Field("Desired power of the host while no operation acts on it.", defaulted=True)] = True
    consumer_ref: Annotated[ConsumerReference | None, Field("Object that uses the host: the claim.")] = None
    externally_provisioned: Annotated[
        bool,
        Field("The host was installed by others: it is never written, and only a Machine that pins it may use it."),
    ] = False
    automated_cleaning_mode: Annotated[
        str,
        Field(
            "metadata: a host that is released loses its network addresses and its place in the cluster. disabled has "
            "no effect.",
            enum=("metadata", "disabled"),
            defaulted=True,
        ),
    ] = "metadata"
    root_device_hints: Annotated[
        RootDeviceHints | None, Field("Disk that the image is written to, without a profile.")
    ] = None
    description: Annotated[str | None, Field("Description, for users.", max_length=1024)] = None
    image: NoEffect = None
    user_data: NoEffect = None
    network_data: NoEffect = None
    meta_data: NoEffect = None
    raid: NoEffect = None
    firmware: NoEffect = None
    taints: NoEffect = None
    hardware_profile: NoEffect = None
    preprovisioning_network_data_name: NoEffect = None
    custom_deploy: NoEffect = None


class HostProvisioningImage(ApiStruct, frozen=True, kw_only=True):
    """The image on the host."""

    url: Annotated[str | None, Field("Reference of the image.", max_length=1024)] = None
    checksum: Annotated[str | None, Field("Digest of the image.", max_length=256)] = None


class HostProvisioning(ApiStruct, frozen=True, kw_only=True):
    """The place of the host between stock and use."""

    state: Annotated[
        str,
        Field(
            "registering: the BMC is read. inspecting: the hardware is read. available: a Machine may claim it. "
            "provisioning: the image is written. provisioned: in use. deprovisioning: it returns to stock.",
            enum=("", *ProvisioningState),
        ),
    ] = ""
    id: Annotated[str | None, Field("Machine of unbounded-cloud.io of the host.", max_length=253)] = msgspec.field(
        default=None, name="ID"
    )
    image: Annotated[HostProvisioningImage | None, Field("Image on the host.")] = None
    boot: Annotated[
        str | None,
        Field("Boot that wrote the disk last before this state, as in status.image of the Machine.", max_length=128),
    ] = None


class HostPowerRequest(ApiStruct, frozen=True, kw_only=True):
    """The last change of the host's power that container-cloud requested. It is written before its operation."""

    online: Annotated[bool, Field("spec.online that was carried out last; true before the first change.")] = True
    operation: Annotated[ObjectName | None, Field("Name of the MachineOperation.")] = None
    requests: Annotated[Count, Field("Number of operations that were requested.")] = 0
    attempt: Annotated[Count, Field("Number of this attempt, of those in a row.")] = 0
    at: Annotated[Time | None, Field("Time of the request.")] = None


class HostSystemVendor(ApiStruct, frozen=True, kw_only=True):
    """The maker of the host."""

    manufacturer: Annotated[Text | None, Field("Manufacturer.")] = None
    product_name: Annotated[Text | None, Field("Product name.")] = None
    serial_number: Annotated[Text | None, Field("Serial number.")] = None


class HostCPU(ApiStruct, frozen=True, kw_only=True):
    """The processors of the host."""

    arch: Annotated[Text | None, Field("Architecture, such as x86_64.")] = None
    model: Annotated[Text | None, Field("Model name.")] = None
    count: Annotated[Count | None, Field("Number of CPUs.")] = None


class HostNIC(ApiStruct, frozen=True, kw_only=True):
    """A network interface of the host."""

    name: Annotated[Text | None, Field("Name of the interface.")] = None
    mac: Annotated[Text | None, Field("Hardware address.")] = None
    ip: Annotated[Text | None, Field("Address.")] = None
    speed_gbps: Annotated[Count | None, Field("Speed in Gbit/s.")] = None


class HostStorage(ApiStruct, frozen=True, kw_only=True):
    """A disk of the host."""

    name: Annotated[Text | None, Field("Name of the disk.")] = None
    size_bytes: Annotated[Count | None, Field("Size in bytes.")] = None
    type: Annotated[Text | None, Field("HDD, SSD or NVME.")] = None
    wwn: Annotated[Text | None, Field("World Wide Name.")] = None
    model: Annotated[Text | None, Field("Model.")] = None
    vendor: Annotated[Text | None, Field("Vendor.")] = None
    serial_number: Annotated[Text | None, Field("Serial number.")] = None
    by_id: Annotated[Text | None, Field("Name below /dev/disk/by-id.")] = msgspec.field(default=None, name="by_id")
    by_path: Annotated[Text | None, Field("Name below /dev/disk/by-path.")] = msgspec.field(
        default=None, name="by_path"
    )


class HostHardware(ApiStruct, frozen=True, kw_only=True):
    """The hardware of the host, as its BMC or an installer reports it."""

    system_vendor: Annotated[HostSystemVendor | None, Field("Maker.")] = None
    cpu: Annotated[HostCPU | None, Field("Processors.")] = None
    ram_mebibytes: Annotated[Count | None, Field("Memory in MiB.")] = None
    nics: Annotated[tuple[HostNIC, ...], Field("Network interfaces.")] = ()
    storage: Annotated[tuple[HostStorage, ...], Field("Disks.", max_items=128)] = ()


class HostCredentialVersion(ApiStruct, frozen=True, kw_only=True):
    """A Secret at one moment."""

    name: Annotated[str | None, Field("Name of the Secret.", max_length=253)] = None
    namespace: Annotated[str | None, Field("Namespace of the Secret.", max_length=63)] = None


class HostGoodCredentials(ApiStruct, frozen=True, kw_only=True):
    """The credential with which the BMC was last read."""

    credentials: Annotated[HostCredentialVersion | None, Field("Secret.")] = None
    credentials_version: Annotated[str | None, Field("resourceVersion of the Secret.", max_length=128)] = None


class BareMetalHostStatus(ApiStruct, frozen=True, kw_only=True):
    """Observed state of a host."""

    provisioning: Annotated[HostProvisioning, Field("Place of the host between stock and use.")] = HostProvisioning()
    powered_on: Annotated[bool | None, Field("Power of the host. Absent if it is unknown.")] = None
    power: Annotated[HostPowerRequest | None, Field("Last change of the power by container-cloud.")] = None
    operational_status: Annotated[str | None, Field("OK, error or detached.", enum=("", *OperationalStatus))] = None
    error_type: Annotated[str | None, Field("Step that failed.", enum=("", *HostErrorType))] = None
    error_message: Annotated[Message | None, Field("Cause of the error, for users.")] = None
    error_count: Annotated[Count, Field("Number of failures in a row.")] = 0
    hardware: Annotated[HostHardware | None, Field("Hardware.")] = None
    good_credentials: Annotated[HostGoodCredentials | None, Field("Credential with which the BMC was last read.")] = (
        None
    )
    last_updated: Annotated[Time | None, Field("Time of the last change of the status.")] = None
    conditions: Annotated[
        tuple[Condition, ...], Field("Conditions of the host.", map_keys=("type",), max_items=16)
    ] = ()


class BareMetalHost(Object, frozen=True, kw_only=True):
    """A host with a BMC, which Machines claim."""

    spec: Annotated[BareMetalHostSpec, Field("Desired state of the host, and access to it.", defaulted=True)] = (
        BareMetalHostSpec()
    )
    status: Annotated[BareMetalHostStatus, Field("Observed state of the host.")] = BareMetalHostStatus()

    @property
    def state(self) -> str:
        return self.status.provisioning.state

    @property
    def adopts(self) -> str:
        """Name of the Machine of unbounded-cloud.io that the host adopts, or empty."""
        return self.metadata.annotations.get(ANNOTATION_ADOPT, "")

    @property
    def bootstrap_token(self) -> str:
        """Name of the bootstrap token with which the host joins without attestation, or empty."""
        return self.metadata.annotations.get(ANNOTATION_BOOTSTRAP_TOKEN, "")


class CredentialPassword(ApiStruct, frozen=True, kw_only=True):
    """The password of a credential: a value, which moves to a Secret and is then erased, or the Secret's name."""

    value: Annotated[
        str | None, Field("Password. It moves to the Secret, and is then erased here.", max_length=1024)
    ] = None
    name: Annotated[str | None, Field("Name of the Secret with the password.", max_length=253)] = None

    def __repr__(self) -> str:
        return f"CredentialPassword(name={self.name!r})"


class BareMetalHostCredentialSpec(ApiStruct, frozen=True, kw_only=True):
    """The user and the password of a BMC."""

    username: Annotated[str, Field("User of the BMC.", min_length=1, max_length=256)]
    password: Annotated[CredentialPassword | None, Field("Password. A new value replaces it.")] = None


class BareMetalHostCredentialStatus(ApiStruct, frozen=True, kw_only=True):
    """Observed state of a credential."""

    conditions: Annotated[
        tuple[Condition, ...], Field("Conditions of the credential.", map_keys=("type",), max_items=8)
    ] = ()


class BareMetalHostCredential(Object, frozen=True, kw_only=True):
    """The login of a BMC."""

    spec: Annotated[BareMetalHostCredentialSpec, Field("User and password.")]
    status: Annotated[BareMetalHostCredentialStatus, Field("Observed state of the credential.")] = (
        BareMetalHostCredentialStatus()
    )


class BareMetalHostProfileStatus(ApiStruct, frozen=True, kw_only=True):
    """Observed state of a profile."""

    planned: Annotated[
        dict[str, Annotated[str, Field(max_length=128)]],
        Field("Digest of the layout that each host got, by NAMESPACE/NAME.", max_properties=MAX_PLANNED),
    ] = {}
    conditions: Annotated[
        tuple[Condition, ...], Field("Conditions of the profile.", map_keys=("type",), max_items=8)
    ] = ()


class BareMetalHostProfile(Object, frozen=True, kw_only=True):
    """A layout of disks for hosts."""

    spec: Annotated[MachineProfileSpec, Field("Layout of the host's disks.")]
    status: Annotated[BareMetalHostProfileStatus, Field("Observed state of the profile.")] = (
        BareMetalHostProfileStatus()
    )


BARE_METAL_HOSTS: Final = Kind(GROUP_HOST, V1ALPHA1, "BareMetalHost", "baremetalhosts", BareMetalHost, namespaced=True)
BARE_METAL_HOST_PROFILES: Final = Kind(
    GROUP_HOST, V1ALPHA1, "BareMetalHostProfile", "baremetalhostprofiles", BareMetalHostProfile, namespaced=True
)
BARE_METAL_HOST_CREDENTIALS: Final = Kind(
    GROUP_KAAS,
    V1ALPHA1,
    "BareMetalHostCredential",
    "baremetalhostcredentials",
    BareMetalHostCredential,
    namespaced=True,
)
