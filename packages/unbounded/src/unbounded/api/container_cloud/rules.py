"""The CEL rules of Container Cloud's kinds. Policies have the rules about labels, which a schema does not see."""

from __future__ import annotations

from typing import Final

from unbounded.api.container_cloud import cluster, host, machine, network
from unbounded.api.rules import RuleTable, ValidationRule

_VALUE: Final = "spec.providerSpec.value"
_STARTED: Final = (
    "has(oldSelf.status) && has(oldSelf.status.providerStatus) && has(oldSelf.status.providerStatus.delete)"
    " && oldSelf.status.providerStatus.delete"
)
_CLAIMED: Final = "has(oldSelf.status) && has(oldSelf.status.execution) && has(oldSelf.status.execution.host)"
_IN_USE: Final = [str(host.ProvisioningState[name]) for name in ("PROVISIONING", "PROVISIONED", "DEPROVISIONING")]
_WRITTEN: Final = (
    "has(oldSelf.status) && has(oldSelf.status.provisioning) && has(oldSelf.status.provisioning.state)"
    f" && oldSelf.status.provisioning.state in {_IN_USE}"
)


def _kept(of: str) -> str:
    """Return CEL that holds for a host that others have installed."""
    return f"(has({of}.spec.externallyProvisioned) && {of}.spec.externallyProvisioned)"


_POLICY: Final = f"{_VALUE}.deletionPolicy"
_FOLLOWED: Final = (
    f"(has(oldSelf.{_POLICY}) ? oldSelf.{_POLICY} : has(oldSelf.status.execution)"
    " && has(oldSelf.status.execution.policy) ? oldSelf.status.execution.policy : 'unsafe')"
)
"""The policy that a deletion follows: the controller records its default, which a rule cannot know."""


def _same(path: str) -> str:
    """Return CEL that holds when an optional field below the root is unchanged."""
    return f"has(self.{path}) == has(oldSelf.{path}) && (!has(self.{path}) || self.{path} == oldSelf.{path})"


CONTAINER_CLOUD_RULES: Final[RuleTable] = {
    machine.ContainerCloudMachine: (
        ValidationRule(
            f"!({_STARTED}) || ({_same(_POLICY)}) || {_FOLLOWED} == 'graceful' || (has(self.{_POLICY})"
            f" && (self.{_POLICY} == {_FOLLOWED} || ({_FOLLOWED} == 'unsafe' && self.{_POLICY} == 'forced')))",
            "deletionPolicy can only be loosened (graceful, unsafe, forced) once the deletion has started, from the one"
            " in status.execution.policy; unsafe and forced cannot be removed, as the default may be tighter",
            f".{_POLICY}",
        ),
        ValidationRule(
            f"!({_CLAIMED}) || {_same(f'{_VALUE}.hostSelector')}",
            "hostSelector is immutable once a host is claimed: delete the Machine to release the host",
            f".{_VALUE}.hostSelector",
        ),
    ),
    machine.HostSelectorRequirement: (
        ValidationRule(
            "self.operator.lowerAscii() in ['exists', 'doesnotexist', '!']"
            " ? !has(self.values) || size(self.values) == 0 : has(self.values) && size(self.values) > 0"
            " && (self.operator.lowerAscii() in ['in', 'notin'] || size(self.values) == 1)",
            "In and NotIn need at least one value; =, ==, !=, Gt and Lt one; Exists, DoesNotExist and ! take none",
            ".values",
        ),
        ValidationRule(
            "!(self.operator.lowerAscii() in ['gt', 'lt']) || !has(self.values)"
            " || self.values.all(value, value.matches('^-?[0-9]{1,18}$'))",
            "Gt and Lt compare integers",
            ".values",
        ),
    ),
    cluster.ClusterReleaseSpec: (
        ValidationRule(
            "self.allowedDistributions.filter(each, has(each.default) && each.default).size() == 1",
            "exactly one of allowedDistributions must be the default",
            ".allowedDistributions",
        ),
        ValidationRule(
            "self.version == oldSelf.version && self.kubernetes == oldSelf.kubernetes && has(self.agent) =="
            " has(oldSelf.agent) && (!has(self.agent) || self.agent == oldSelf.agent)",
            "a release is immutable: create another one, and change spec.providerSpec.value.release of the Cluster",
        ),
        ValidationRule(
            "self.allowedDistributions.size() == oldSelf.allowedDistributions.size()"
            " && self.allowedDistributions.all(each, oldSelf.allowedDistributions.exists(old, old.id == each.id))",
            "allowedDistributions of a release are immutable: create another release",
            ".allowedDistributions",
        ),
        ValidationRule(
            "has(self.allowedNodeLabels) == has(oldSelf.allowedNodeLabels) && (!has(self.allowedNodeLabels)"
            " || self.allowedNodeLabels.map(each, each.key + (has(each.value) ? '=' + each.value : ''))"
            " == oldSelf.allowedNodeLabels.map(each, each.key + (has(each.value) ? '=' + each.value : '')))",
            "allowedNodeLabels of a release are immutable, but for displayName: create another release",
            ".allowedNodeLabels",
        ),
    ),
    cluster.ReleaseDistribution: (
        ValidationRule(
            "self.image == oldSelf.image && has(self.version) == has(oldSelf.version)"
            " && (!has(self.version) || self.version == oldSelf.version)"
            " && (has(self.default) && self.default) == (has(oldSelf.default) && oldSelf.default)",
            "a distribution of a release is immutable, but for its description: create another release",
        ),
    ),
    host.BareMetalHostSpec: (
        ValidationRule(
            "!has(oldSelf.bootMACAddress) || has(self.bootMACAddress)"
            " && self.bootMACAddress.lowerAscii() == oldSelf.bootMACAddress.lowerAscii()",
            "bootMACAddress is immutable once it is set: another interface is another host",
            ".bootMACAddress",
        ),
    ),
    host.BareMetalHost: (
        ValidationRule(
            f"!({_WRITTEN}) || has(self.spec.bmc) == has(oldSelf.spec.bmc)"
            " && (!has(self.spec.bmc) || self.spec.bmc.address == oldSelf.spec.bmc.address)",
            "bmc.address cannot be changed while the host is in use: release the host first",
            ".spec.bmc",
        ),
        ValidationRule(
            f"{_kept('self')} == {_kept('oldSelf')} || !has(oldSelf.spec.consumerRef) && !({_WRITTEN})",
            "externallyProvisioned cannot be changed while a Machine uses the host: delete that Machine first",
            ".spec.externallyProvisioned",
        ),
    ),
    host.CredentialPassword: (
        ValidationRule(
            "has(self.value) || has(self.name)",
            "set value: the password, or name: the Secret that has it",
        ),
    ),
    network.L2TemplateSpec: (
        ValidationRule(
            "has(self.ifMapping) != has(self.autoIfMappingPrio)",
            "exactly one of ifMapping and autoIfMappingPrio must be set",
            ".ifMapping",
        ),
    ),
    network.SubnetSpec: (
        ValidationRule("isCIDR(self.cidr)", "cidr must be a network such as 10.0.0.0/24", ".cidr"),
        ValidationRule(
            "!has(self.gateway) || isIP(self.gateway) && isCIDR(self.cidr) && cidr(self.cidr).containsIP(self.gateway)",
            "gateway must be an address of cidr",
            ".gateway",
        ),
        ValidationRule(
            "!has(self.nameservers) || self.nameservers.all(each, isIP(each))",
            "nameservers must be addresses",
            ".nameservers",
        ),
        ValidationRule(
            "!has(self.includeRanges) || self.includeRanges.all(each, each.split('-').all(address, isIP(address)"
            " && isCIDR(self.cidr) && cidr(self.cidr).containsIP(address)))",
            "includeRanges must be addresses of cidr, such as 10.0.0.10-10.0.0.20",
            ".includeRanges",
        ),
        ValidationRule(
            "!has(self.excludeRanges) || self.excludeRanges.all(each, each.split('-').all(address, isIP(address)))",
            "excludeRanges must be addresses, such as 10.0.0.10-10.0.0.20",
            ".excludeRanges",
        ),
    ),
}
