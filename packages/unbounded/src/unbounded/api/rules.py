"""The CEL rules of all kinds: constraints across fields, and immutable fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from unbounded.api.configuration import (
    MAX_CONFIGURATION_NAME,
    RESERVED,
    SIGNALS,
    KubeletSettings,
    MachineConfiguration,
    MachineConfigurationTemplate,
    MachineConfigurationVersion,
    NodeSettings,
    UpdateStrategy,
    UpdateStrategyType,
)
from unbounded.api.credential import AuthMode, CredentialAuth
from unbounded.api.disruption import MachineDisruptionBudgetSpec
from unbounded.api.fields import ApiStruct, api_name
from unbounded.api.machine import MAX_MACHINE_NAME, Machine
from unbounded.api.machine_spec import (
    BastionSSHSpec,
    BootMode,
    DHCPLease,
    MachineSpec,
    PXESpec,
    RootDeviceHints,
    SSHSpec,
)
from unbounded.api.machine_status import RESCUE_KEY_FORM, RESCUE_KEYS, RESCUE_KEYS_MAX
from unbounded.api.meta import LabelSelectorRequirement
from unbounded.api.names import NAMESPACE
from unbounded.api.network import (
    BondInterface,
    BridgeInterface,
    EthernetInterface,
    Nameservers,
    NetworkRoute,
    NetworkSpec,
    VLANInterface,
)
from unbounded.api.operation import (
    ALL,
    MAX_STAGES,
    TERMINAL_PHASES,
    FailurePolicy,
    MachineOperation,
    MachineOperationSpec,
    OperationKind,
    OperationStrategy,
    RolloutStage,
    StageStart,
)
from unbounded.api.profile import (
    DeviceSelector,
    EraseDevice,
    FileSystem,
    FileSystemType,
    KernelParameters,
    MachineProfileSpec,
    PhysicalVolume,
    ProfileDevice,
)


@dataclass(frozen=True)
class ValidationRule:
    """One entry of x-kubernetes-validations; `path` is the field that a refusal names, below the type's own.

    A field whose name is a reserved word of CEL is written `__namespace__` in the rule, and plainly in the path.
    """

    rule: str
    message: str
    path: str | None = None


def unchanged(field: str) -> str:
    """Return CEL that holds when an optional field is unchanged: absent before and after, or equal."""
    return (
        f"has(self.{field}) == has(oldSelf.{field})"
        f" && (!has(self.{field}) || self.{field} == oldSelf.{field})"
    )  # fmt: skip


def immutable(field: str) -> ValidationRule:
    """Return the rule of an immutable field: a request of an operation never changes."""
    return ValidationRule(unchanged(field), f"{field} is immutable: create another MachineOperation", f".{field}")


_MASK_OCTET: Final = "(254|252|248|240|224|192|128|0)"
_MASK: Final = (
    rf"^((255\\.){{3}}(255|{_MASK_OCTET})|(255\\.){{2}}{_MASK_OCTET}\\.0"
    rf"|255\\.{_MASK_OCTET}\\.0\\.0|{_MASK_OCTET}\\.0\\.0\\.0)$"
)


def one_of(*fields: str) -> str:
    """Return CEL that holds when exactly one of some optional fields is set."""
    return f"[{', '.join(f'has(self.{field})' for field in fields)}].filter(is_set, is_set).size() == 1"


def _named(partition: str) -> str:
    """Return CEL that holds when a device has a partition of this name. kube-apiserver's cost limits bound its use."""
    return f"self.devices.exists(d, has(d.partitions) && d.partitions.exists(p, p.name == {partition}))"


def _among(name: str, entries: str) -> str:
    return f"has(self.{entries}) && self.{entries}.exists(e, e.name == {name})"


_TERMINAL: Final = ", ".join(f"'{phase}'" for phase in sorted(TERMINAL_PHASES))

_SYSCTL: Final = (
    ValidationRule(
        "!has(self.sysctl) || self.sysctl.all(name,"
        r" name.matches('^[a-z0-9][-_a-z0-9]{0,63}([./][A-Za-z0-9][-_A-Za-z0-9]{0,63}){1,15}$'))",
        "a kernel parameter must have a name such as vm.max_map_count",
        ".sysctl",
    ),
)


def _has_interface(lists: tuple[str, ...], name: str) -> str:
    """Return CEL that holds when one of these lists of spec.network has an element of this name."""
    return " || ".join(f"has(self.{each}) && self.{each}.exists(one, one.name == {name})" for each in lists)


def _refers(field: str, reference: str, lists: tuple[str, ...]) -> ValidationRule:
    """Return the rule that names in a list of spec.network resolve; `field` is a list of names, or one name."""
    each = f"each.{reference}"
    found = (
        f"{each}.all(name, {_has_interface(lists, 'name')})"
        if reference == "interfaces"
        else _has_interface(lists, each)
    )
    given = f"!has({each}) || {found}" if reference == "interfaces" else found
    return ValidationRule(
        f"!has(self.{field}) || self.{field}.all(each, {given})",
        f"{reference} of {field} must be names of {' or '.join(lists)}",
        f".{field}",
    )


def _distinct(field: str, others: tuple[str, ...]) -> ValidationRule:
    return ValidationRule(
        f"!has(self.{field}) || self.{field}.all(each, !({_has_interface(others, 'each.name')}))",
        f"names of {field} must differ from those of {' and '.join(others)}",
        f".{field}",
    )


_INTERFACE: Final = (
    ValidationRule(
        "!has(self.addresses) || self.addresses.all(each, isCIDR(each))",
        "addresses must have a prefix, such as 192.0.2.10/24 or 2001:db8::10/64",
        ".addresses",
    ),
)
_NETWORK: Final = (
    _distinct("ethernets", ("bonds", "vlans", "bridges")),
    _distinct("bonds", ("vlans", "bridges")),
    _distinct("vlans", ("bridges",)),
    ValidationRule(
        "self.ethernets.all(each, self.ethernets.exists_one(one, one.mac.lowerAscii() == each.mac.lowerAscii()))",
        "each mac must be that of one of the ethernets only",
        ".ethernets",
    ),
    _refers("bonds", "interfaces", ("ethernets",)),
    _refers("vlans", "link", ("ethernets", "bonds", "bridges")),
    _refers("bridges", "interfaces", ("ethernets", "bonds", "vlans")),
)


def _share(field: str) -> ValidationRule:
    """Return the rule of a number of Machines or a percentage of them."""
    return ValidationRule(
        f"!has(self.{field}) || (type(self.{field}) == int ? self.{field} >= 1"
        f" : self.{field}.matches('^([1-9][0-9]?|100)%$'))",
        f"{field} must be a number from 1, or a percentage from 1% to 100%",
        f".{field}",
    )


_SELECTS: Final = (
    "!has(self.machineSelector)"
    " || (has(self.machineSelector.matchLabels) && size(self.machineSelector.matchLabels) > 0)"
    " || (has(self.machineSelector.matchExpressions) && size(self.machineSelector.matchExpressions) > 0)"
)
_STAGES: Final = str(list(range(MAX_STAGES)))  # their indexes: CEL has no other way to an order


def _cron_field(number: str) -> str:
    """Return the regular expression of one field of a cron expression."""
    one = rf"(\*|({number})(-({number}))?)(/[1-9][0-9]?)?"
    return rf"{one}(,{one})*"


_CRON: Final = (
    "^"
    + " ".join(map(_cron_field, ("[1-5]?[0-9]", "1?[0-9]|2[0-3]", "[1-9]|[12][0-9]|3[01]", "[1-9]|1[0-2]", "[0-7]")))
    + "$"
)
# Days that no month of a list has, with any day of the week: a day of the week comes beside them.
_NEVER: Final = r"^[^ ]+ [^ ]+ ((30|31)(-31)?(,(30|31)(-31)?)* 2(,2)*|31(,31)* (2|4|6|9|11)(,(2|4|6|9|11))*) \*$"

RULES: Final[Mapping[type[ApiStruct], tuple[ValidationRule, ...]]] = {
    LabelSelectorRequirement: (
        ValidationRule(
            "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0"
            " : !has(self.values) || size(self.values) == 0",
            "In and NotIn need at least one value; Exists and DoesNotExist take none",
            ".values",
        ),
    ),
    Machine: (
        ValidationRule(
            f"size(self.metadata.name) <= {MAX_MACHINE_NAME}",
            f"the name of a Machine becomes the name of its Node and must have at most {MAX_MACHINE_NAME} characters",
        ),
    ),
    MachineSpec: (
        ValidationRule(
            "!has(oldSelf.provider) || (has(self.provider) && self.provider == oldSelf.provider)",
            "provider cannot be changed or removed once it is set: create another Machine",
            ".provider",
        ),
        ValidationRule(
            "!has(self.network) || !has(self.pxe) || !has(self.pxe.cloudInit)"
            " || !has(self.pxe.cloudInit.networkConfigConfigMapRef)",
            "network and pxe.cloudInit.networkConfigConfigMapRef exclude each other: remove one of them",
            ".network",
        ),
        ValidationRule(
            f"!has(self.pxe) || self.pxe.bootMode != '{BootMode.VIRTUAL_MEDIA}' || has(self.network)"
            " || has(self.pxe.dhcpLeases) && size(self.pxe.dhcpLeases) > 0",
            "bootMode VirtualMedia needs the address of the installer: set pxe.dhcpLeases, or network with a static"
            " IPv4 address",
            ".pxe.bootMode",
        ),
    ),
    NetworkSpec: _NETWORK,
    EthernetInterface: _INTERFACE,
    BondInterface: _INTERFACE,
    VLANInterface: _INTERFACE,
    BridgeInterface: _INTERFACE,
    NetworkRoute: (
        ValidationRule(
            "self.to == 'default' || isCIDR(self.to)",
            "to must be default, or a network such as 198.51.100.0/24",
            ".to",
        ),
        ValidationRule("isIP(self.via)", "via must be an IPv4 or IPv6 address", ".via"),
    ),
    Nameservers: (
        ValidationRule(
            "!has(self.addresses) || self.addresses.all(each, isIP(each))",
            "addresses must be IPv4 or IPv6 addresses",
            ".addresses",
        ),
    ),
    SSHSpec: (
        ValidationRule(
            f"self.privateKeyRef.__namespace__ == '{NAMESPACE}'",
            f"the Secret with the SSH key must be in namespace {NAMESPACE}",
            ".privateKeyRef.namespace",
        ),
    ),
    BastionSSHSpec: (
        ValidationRule(
            f"!has(self.privateKeyRef) || self.privateKeyRef.__namespace__ == '{NAMESPACE}'",
            f"the Secret with the SSH key of the bastion must be in namespace {NAMESPACE}",
            ".privateKeyRef.namespace",
        ),
    ),
    PXESpec: (
        ValidationRule(
            "!has(self.targetDisk) || (self.targetDisk.matches('^/dev(/[A-Za-z0-9#+.:=@_-]+)+$')"
            r" && !self.targetDisk.matches('/[.]+(/|$)|-part[0-9]+$'))",
            "targetDisk must be a whole disk below /dev, such as /dev/disk/by-id/wwn-0x5000c500a1b2c3d4",
            ".targetDisk",
        ),
        ValidationRule(
            "!has(self.targetDisk) || !has(self.rootDeviceHints)",
            "targetDisk and rootDeviceHints exclude each other: remove one of them",
            ".rootDeviceHints",
        ),
        ValidationRule(
            "!has(self.profileRef) || !has(self.targetDisk) && !has(self.rootDeviceHints)",
            "profileRef excludes targetDisk and rootDeviceHints: the MachineProfile says which disks are written",
            ".profileRef",
        ),
        ValidationRule(
            f"self.bootMode == '{BootMode.NETWORK}' || has(self.redfish)",
            "a bootMode other than Network needs a BMC: set redfish",
            ".bootMode",
        ),
        ValidationRule(
            f"self.bootMode != '{BootMode.VIRTUAL_MEDIA}' || self.architecture == 'amd64'",
            "bootMode VirtualMedia supports architecture amd64 only",
            ".bootMode",
        ),
    ),
    DeviceSelector: (
        ValidationRule(
            "!has(self.minSize) || !has(self.maxSize)"
            " || quantity(string(self.minSize)).compareTo(quantity(string(self.maxSize))) <= 0",
            "maxSize must not be less than minSize",
            ".maxSize",
        ),
    ),
    EraseDevice: (
        ValidationRule(
            "(!has(self.blkdiscard) || !has(self.blkdiscard.enabled) || !self.blkdiscard.enabled)"
            " && (!has(self.secureErase) || !has(self.secureErase.enabled) || !self.secureErase.enabled)",
            "eraseDevice is not implemented: erase the disk by other means, or use eraseMetadata",
        ),
    ),
    ProfileDevice: (
        ValidationRule(
            "!has(self.partitions) || self.partitions.filter(p, p.size == 0 || p.size == '0').size() == 0"
            " || self.partitions.filter(p, p.size == 0 || p.size == '0').size() == 1"
            " && self.partitions[size(self.partitions) - 1].size in [dyn(0), dyn('0')]",
            "size 0 is the rest of the disk: only the last partition may have it",
            ".partitions",
        ),
    ),
    PhysicalVolume: (
        ValidationRule(
            one_of("device", "partition", "softRaidDevice"),
            "exactly one of device, partition and softRaidDevice must be set",
        ),
    ),
    FileSystem: (
        ValidationRule(
            one_of("partition", "logicalVolume", "softRaidDevice"),
            "exactly one of partition, logicalVolume and softRaidDevice must be set",
        ),
        ValidationRule(
            f"self.fileSystem != '{FileSystemType.SWAP}' || !has(self.mountPoint)",
            "swap has no mountPoint",
            ".mountPoint",
        ),
    ),
    KernelParameters: _SYSCTL,
    MachineProfileSpec: (
        ValidationRule(
            "self.devices.all(d, !has(d.partitions) || d.partitions.all(p,"
            " self.devices.filter(e, has(e.partitions) && e.partitions.exists(q, q.name == p.name)).size() == 1))",
            "the name of a partition must be unique within the profile",
            ".devices",
        ),
        ValidationRule(
            "self.devices.all(d, !has(d.device.byName)"
            " || self.devices.filter(e, has(e.device.byName) && e.device.byName == d.device.byName).size() == 1)",
            "byName of a device must be unique within the profile: each disk is taken once",
            ".devices",
        ),
        ValidationRule(
            f"!has(self.softRaidDevices) || self.softRaidDevices.all(r, r.devices.all(m, {_named('m.partition')}))",
            "softRaidDevices must refer to partitions of the profile",
            ".softRaidDevices",
        ),
        ValidationRule(
            "!has(self.volumeGroups) || self.volumeGroups.all(g, g.devices.all(m,"
            f" (!has(m.partition) || {_named('m.partition')})"
            f" && (!has(m.softRaidDevice) || {_among('m.softRaidDevice', 'softRaidDevices')})"
            " && (!has(m.device)"
            " || self.devices.exists(d, has(d.device.byName) && d.device.byName == m.device && !has(d.partitions)))))",
            "volumeGroups must refer to partitions, softRaidDevices, and to devices without partitions by byName",
            ".volumeGroups",
        ),
        ValidationRule(
            f"!has(self.logicalVolumes) || self.logicalVolumes.all(v, {_among('v.vg', 'volumeGroups')})",
            "logicalVolumes must refer to volumeGroups of the profile",
            ".logicalVolumes",
        ),
        ValidationRule(
            "self.fileSystems.all(f,"
            f" (!has(f.partition) || {_named('f.partition')})"
            f" && (!has(f.logicalVolume) || {_among('f.logicalVolume', 'logicalVolumes')})"
            f" && (!has(f.softRaidDevice) || {_among('f.softRaidDevice', 'softRaidDevices')}))",
            "fileSystems must refer to partitions, logicalVolumes or softRaidDevices of the profile",
            ".fileSystems",
        ),
        ValidationRule(
            "!has(self.volumeGroups) || !self.volumeGroups.exists(g, g.devices.exists(m, has(m.softRaidDevice)"
            " && self.fileSystems.exists(f, has(f.softRaidDevice) && f.softRaidDevice == m.softRaidDevice)))",
            "a soft RAID is a physical volume or has a file system, not both",
            ".fileSystems",
        ),
        ValidationRule(
            "self.fileSystems.filter(f, has(f.mountPoint) && f.mountPoint == '/').size() == 1",
            "exactly one file system must have mountPoint /",
            ".fileSystems",
        ),
        ValidationRule(
            "self.fileSystems.all(f, !has(f.mountPoint)"
            " || self.fileSystems.filter(e, has(e.mountPoint) && e.mountPoint == f.mountPoint).size() == 1)",
            "a mountPoint must be unique within the profile",
            ".fileSystems",
        ),
    ),
    RootDeviceHints: (
        ValidationRule(
            " || ".join(f"has(self.{api_name(field)})" for field in RootDeviceHints.__struct_fields__),
            "rootDeviceHints must have at least one hint",
        ),
    ),
    DHCPLease: (
        ValidationRule(
            f"self.subnetMask.matches('{_MASK}')",
            "subnetMask must be ones followed by zeros, such as 255.255.255.0",
            ".subnetMask",
        ),
    ),
    MachineDisruptionBudgetSpec: (
        ValidationRule(
            "(has(self.machineSelector.matchLabels) && size(self.machineSelector.matchLabels) > 0)"
            " || (has(self.machineSelector.matchExpressions) && size(self.machineSelector.matchExpressions) > 0)",
            "machineSelector must not be empty: name at least one label",
            ".machineSelector",
        ),
        ValidationRule(
            "has(self.schedule) == has(self.durationSeconds)",
            "schedule and durationSeconds need each other",
            ".schedule",
        ),
        ValidationRule(
            "has(self.schedule) || !has(self.timeZone)",
            "timeZone needs a schedule",
            ".timeZone",
        ),
        ValidationRule(
            "!has(self.timeZone) || timestamp('2030-01-01T00:00:00Z').getHours(self.timeZone) >= 0",
            "timeZone must be a name of the IANA database, such as Europe/Berlin",
            ".timeZone",
        ),
        ValidationRule(
            f"!has(self.schedule) || self.schedule.matches(r'{_CRON}')",
            "schedule must have five fields: minute (0-59), hour (0-23), day (1-31), month (1-12), weekday (0-7),"
            " each *, a number, a range, a list, or one of them with a step such as */15",
            ".schedule",
        ),
        ValidationRule(
            f"!has(self.schedule) || !self.schedule.matches(r'{_NEVER}')",
            "schedule never comes: its months have no such day",
            ".schedule",
        ),
    ),
    MachineOperationSpec: (
        ValidationRule(
            "has(self.machineRef) != has(self.machineSelector)",
            "exactly one of machineRef and machineSelector must be set",
        ),
        ValidationRule(_SELECTS, "machineSelector must not be empty: name at least one label", ".machineSelector"),
        ValidationRule(
            "!has(self.strategy) || has(self.machineSelector)",
            "strategy needs machineSelector: an operation with machineRef has one target",
            ".strategy",
        ),
        ValidationRule(
            "!has(self.strategy) || !has(self.strategy.stages)"
            " || self.strategy.stages.all(s, !has(s.maxConcurrent) || type(s.maxConcurrent) != int"
            " || s.maxConcurrent <= self.maxConcurrent)",
            "maxConcurrent of a stage must not exceed spec.maxConcurrent, the limit of all stages together",
            ".strategy.stages",
        ),
        ValidationRule(
            "!has(self.paused) || !self.paused || has(self.machineSelector)",
            "paused needs machineSelector: `machine pause` pauses the operations on one Machine",
            ".paused",
        ),
        ValidationRule(
            "!has(self.retryFailed) || self.retryFailed == 0"
            " || has(self.strategy) && has(self.strategy.onFailure)"
            f" && self.strategy.onFailure == '{FailurePolicy.HALT}'",
            "retryFailed needs strategy.onFailure Halt: otherwise create another operation",
            ".retryFailed",
        ),
        ValidationRule(
            "(has(self.retryFailed) ? self.retryFailed : 0) >= (has(oldSelf.retryFailed) ? oldSelf.retryFailed : 0)",
            "retryFailed can only be raised",
            ".retryFailed",
        ),
        ValidationRule(
            f"self.operationKind != '{OperationKind.HOST_RESCUE}' || (has(self.parameters)"
            f" && 'authorizedKeys' in self.parameters && self.parameters['authorizedKeys'].matches(r'{RESCUE_KEYS}'))",
            f"HostRescue needs parameters.authorizedKeys: 1 to {RESCUE_KEYS_MAX} lines, each an OpenSSH public key"
            f" without options, {RESCUE_KEY_FORM}",
            ".parameters",
        ),
        *map(
            immutable,
            (
                "operationKind",
                "machineRef",
                "machineSelector",
                "parameters",
                "drain",
                "override",
                "startDeadlineSeconds",
                "maxConcurrent",
                "maxFailures",
                "strategy",
            ),
        ),
        ValidationRule(
            "self.cancel || !oldSelf.cancel",
            "cancel can change from false to true only",
            ".cancel",
        ),
        ValidationRule(
            "!has(oldSelf.abandon) || !oldSelf.abandon || (has(self.abandon) && self.abandon)",
            "abandon can change from false to true only",
            ".abandon",
        ),
    ),
    OperationStrategy: (
        ValidationRule(
            f"!has(self.stages) || {_STAGES}.all(i, i >= size(self.stages) || !has(self.stages[i].startAfter)"
            f" || {_STAGES}.exists(j, j < i && self.stages[j].name == self.stages[i].startAfter.stage))",
            "startAfter must name an earlier stage of this strategy",
            ".stages",
        ),
    ),
    RolloutStage: (
        ValidationRule(one_of("size", "machineSelector"), "exactly one of size and machineSelector must be set"),
        ValidationRule(_SELECTS, "machineSelector must not be empty: name at least one label", ".machineSelector"),
        _share("size"),
        _share("maxConcurrent"),
    ),
    StageStart: (
        ValidationRule(
            f"!has(self.targets) || (type(self.targets) == int ? self.targets >= 1 : self.targets == '{ALL}')",
            f"targets must be a number from 1, or {ALL}",
            ".targets",
        ),
    ),
    MachineOperation: (
        ValidationRule(
            f"!has(oldSelf.status) || !has(oldSelf.status.phase) || !(oldSelf.status.phase in [{_TERMINAL}])"
            " || (has(self.status)"
            f" && {unchanged('status.phase')} && {unchanged('status.reason')} && {unchanged('status.completedAt')})",
            "Complete and Failed are final: phase, reason and completedAt are immutable",
            ".status.phase",
        ),
    ),
    CredentialAuth: (
        ValidationRule(
            f"self.mode != '{AuthMode.EXTERNAL_PLUGIN}' || has(self.secretRef)",
            "mode ExternalPlugin needs secretRef: name the Secret with the provider's credentials",
        ),
    ),
    MachineConfiguration: (
        ValidationRule(
            f"size(self.metadata.name) <= {MAX_CONFIGURATION_NAME}",
            "the name of a MachineConfiguration becomes a label of its versions"
            f" and has at most {MAX_CONFIGURATION_NAME} characters",
        ),
    ),
    KubeletSettings: (
        *(
            ValidationRule(
                f"!has(self.{field}) || self.{field}.all(name, name in {list(known)})",
                f"{field} knows {', '.join(known)}",
                f".{field}",
            )
            for field, known in (
                ("systemReserved", RESERVED),
                ("kubeReserved", RESERVED),
                ("evictionHard", SIGNALS),
                ("evictionSoft", SIGNALS),
                ("evictionSoftGracePeriod", SIGNALS),
            )
        ),
        ValidationRule(
            "!has(self.evictionSoft) || self.evictionSoft.all(signal, has(self.evictionSoftGracePeriod)"
            " && signal in self.evictionSoftGracePeriod)",
            "each threshold of evictionSoft needs a grace period in evictionSoftGracePeriod, such as 1m30s",
            ".evictionSoftGracePeriod",
        ),
        ValidationRule(
            "(has(self.imageGCLowThresholdPercent) ? self.imageGCLowThresholdPercent : 80)"
            " < (has(self.imageGCHighThresholdPercent) ? self.imageGCHighThresholdPercent : 85)",
            "imageGCLowThresholdPercent (default 80) must be less than imageGCHighThresholdPercent (default 85)",
            ".imageGCLowThresholdPercent",
        ),
        ValidationRule(
            "!has(self.nodeIP) || isCIDR(self.nodeIP)"
            " || isIP(self.nodeIP) && (ip(self.nodeIP).isGlobalUnicast() || ip(self.nodeIP).isUnspecified())",
            "nodeIP must be an address of the host such as 10.0.0.5, not loopback, link-local or multicast; "
            "or a network such as 10.0.0.0/16",
            ".nodeIP",
        ),
        ValidationRule(
            "!has(self.featureGates) || self.featureGates.all(gate, gate.matches('^[A-Z][A-Za-z0-9]{0,127}$'))",
            "a feature gate must have a name such as NodeSwap",
            ".featureGates",
        ),
    ),
    NodeSettings: _SYSCTL,
    MachineConfigurationTemplate: _SYSCTL,
    UpdateStrategy: (
        ValidationRule(
            f"self.type != '{UpdateStrategyType.ROLLING_UPDATE}'",
            "RollingUpdate is not implemented: use OnDelete, which recreates a node when its Node is deleted",
            ".type",
        ),
    ),
    MachineConfigurationVersion: (
        ValidationRule(
            "self.spec.version == oldSelf.spec.version",
            "version is immutable: it is the number that Machines refer to",
            ".spec.version",
        ),
        ValidationRule(
            "!has(oldSelf.status) || !has(oldSelf.status.deployed) || !oldSelf.status.deployed"
            " || self.spec == oldSelf.spec",
            "a deployed version is immutable: change the MachineConfiguration, which creates a new version",
            ".spec",
        ),
        ValidationRule(
            "!has(oldSelf.status) || !has(oldSelf.status.deployed) || !oldSelf.status.deployed"
            " || (has(self.status) && has(self.status.deployed) && self.status.deployed)",
            "deployed can change from false to true only: a node was created from this version",
            ".status.deployed",
        ),
    ),
}
