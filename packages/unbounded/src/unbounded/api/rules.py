"""The CEL rules of Machines and their configurations: constraints across fields, and immutable fields.

`operation_rules` and `profile_rules` have those of the other kinds; `crd` joins the three.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from unbounded.api import configuration, disruption, machine_spec, network
from unbounded.api.credential import AuthMode, CredentialAuth
from unbounded.api.fields import ApiStruct, api_name
from unbounded.api.machine import MAX_MACHINE_NAME, Machine
from unbounded.api.meta import LabelSelectorRequirement
from unbounded.api.names import NAMESPACE


@dataclass(frozen=True)
class ValidationRule:
    """One entry of x-kubernetes-validations; `path` is the field that a refusal names, below the type's own.

    A field whose name is a reserved word of CEL is written `__namespace__` in the rule, and plainly in the path.
    """

    rule: str
    message: str
    path: str | None = None


RuleTable = Mapping[type[ApiStruct], tuple[ValidationRule, ...]]


def unchanged(field: str) -> str:
    """Return CEL that holds when an optional field is unchanged: absent before and after, or equal."""
    return (
        f"has(self.{field}) == has(oldSelf.{field})"
        f" && (!has(self.{field}) || self.{field} == oldSelf.{field})"
    )  # fmt: skip


_MASK_OCTET: Final = "(254|252|248|240|224|192|128|0)"
_MASK: Final = (
    rf"^((255\\.){{3}}(255|{_MASK_OCTET})|(255\\.){{2}}{_MASK_OCTET}\\.0"
    rf"|255\\.{_MASK_OCTET}\\.0\\.0|{_MASK_OCTET}\\.0\\.0\\.0)$"
)


def one_of(*fields: str) -> str:
    """Return CEL that holds when exactly one of some optional fields is set."""
    return f"[{', '.join(f'has(self.{field})' for field in fields)}].filter(is_set, is_set).size() == 1"


SYSCTL: Final = (
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


MACHINE_RULES: Final[RuleTable] = {
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
    machine_spec.MachineSpec: (
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
            f"!has(self.pxe) || self.pxe.bootMode != '{machine_spec.BootMode.VIRTUAL_MEDIA}' || has(self.network)"
            " || has(self.pxe.dhcpLeases) && size(self.pxe.dhcpLeases) > 0",
            "bootMode VirtualMedia needs the address of the installer: set pxe.dhcpLeases, or network with a static"
            " IPv4 address",
            ".pxe.bootMode",
        ),
    ),
    disruption.MaintenanceSpec: (
        ValidationRule(
            "!has(self.reason) || has(self.enabled)",
            "maintenance.reason needs maintenance.enabled: true begins the maintenance, false ends it",
            ".enabled",
        ),
    ),
    network.NetworkSpec: _NETWORK,
    network.EthernetInterface: _INTERFACE,
    network.BondInterface: _INTERFACE,
    network.VLANInterface: _INTERFACE,
    network.BridgeInterface: _INTERFACE,
    network.NetworkRoute: (
        ValidationRule(
            "self.to == 'default' || isCIDR(self.to)",
            "to must be default, or a network such as 198.51.100.0/24",
            ".to",
        ),
        ValidationRule("isIP(self.via)", "via must be an IPv4 or IPv6 address", ".via"),
    ),
    network.Nameservers: (
        ValidationRule(
            "!has(self.addresses) || self.addresses.all(each, isIP(each))",
            "addresses must be IPv4 or IPv6 addresses",
            ".addresses",
        ),
    ),
    machine_spec.SSHSpec: (
        ValidationRule(
            f"self.privateKeyRef.__namespace__ == '{NAMESPACE}'",
            f"the Secret with the SSH key must be in namespace {NAMESPACE}",
            ".privateKeyRef.namespace",
        ),
    ),
    machine_spec.BastionSSHSpec: (
        ValidationRule(
            f"!has(self.privateKeyRef) || self.privateKeyRef.__namespace__ == '{NAMESPACE}'",
            f"the Secret with the SSH key of the bastion must be in namespace {NAMESPACE}",
            ".privateKeyRef.namespace",
        ),
    ),
    machine_spec.PXESpec: (
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
            f"self.bootMode == '{machine_spec.BootMode.NETWORK}' || has(self.redfish)",
            "a bootMode other than Network needs a BMC: set redfish",
            ".bootMode",
        ),
    ),
    machine_spec.RootDeviceHints: (
        ValidationRule(
            " || ".join(f"has(self.{api_name(field)})" for field in machine_spec.RootDeviceHints.__struct_fields__),
            "rootDeviceHints must have at least one hint",
        ),
    ),
    machine_spec.DHCPLease: (
        ValidationRule(
            f"self.subnetMask.matches('{_MASK}')",
            "subnetMask must be ones followed by zeros, such as 255.255.255.0",
            ".subnetMask",
        ),
    ),
    CredentialAuth: (
        ValidationRule(
            f"self.mode != '{AuthMode.EXTERNAL_PLUGIN}' || has(self.secretRef)",
            "mode ExternalPlugin needs secretRef: name the Secret with the provider's credentials",
        ),
    ),
    configuration.MachineConfiguration: (
        ValidationRule(
            f"size(self.metadata.name) <= {configuration.MAX_CONFIGURATION_NAME}",
            "the name of a MachineConfiguration becomes a label of its versions"
            f" and has at most {configuration.MAX_CONFIGURATION_NAME} characters",
        ),
    ),
    configuration.KubeletSettings: (
        *(
            ValidationRule(
                f"!has(self.{field}) || self.{field}.all(name, name in {list(known)})",
                f"{field} knows {', '.join(known)}",
                f".{field}",
            )
            for field, known in (
                ("systemReserved", configuration.RESERVED),
                ("kubeReserved", configuration.RESERVED),
                ("evictionHard", configuration.SIGNALS),
                ("evictionSoft", configuration.SIGNALS),
                ("evictionSoftGracePeriod", configuration.SIGNALS),
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
    configuration.NodeSettings: SYSCTL,
    configuration.MachineConfigurationTemplate: SYSCTL,
    configuration.UpdateStrategy: (
        ValidationRule(
            f"!has(self.rollingUpdate) || self.type == '{configuration.UpdateStrategyType.ROLLING_UPDATE}'",
            f"rollingUpdate needs type {configuration.UpdateStrategyType.ROLLING_UPDATE}",
            ".rollingUpdate",
        ),
    ),
    configuration.MachineConfigurationVersion: (
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
