"""The CustomResourceDefinitions of all kinds: names, printer columns, selectable fields, subresources, schema."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from unbounded.api.configuration import MACHINE_CONFIGURATION_VERSIONS, MACHINE_CONFIGURATIONS
from unbounded.api.credential import MACHINE_OPERATION_CREDENTIALS
from unbounded.api.kinds import Kind
from unbounded.api.machine import MACHINES
from unbounded.api.names import LABEL_CONFIGURATION, LABEL_SITE
from unbounded.api.operation import MACHINE_OPERATIONS
from unbounded.api.schema import kind_schema


@dataclass(frozen=True)
class PrinterColumn:
    """One column of `kubectl get`; a wide one is shown with `-o wide` only."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False

    def entry(self) -> dict[str, Any]:
        column: dict[str, Any] = {"name": self.name, "type": self.type, "jsonPath": self.path}
        return column | ({"priority": 1} if self.wide else {})


@dataclass(frozen=True)
class KindDefinition:
    """The parts of a kind's CustomResourceDefinition besides its schema."""

    kind: Kind[Any]
    short: str
    columns: tuple[PrinterColumn, ...]
    selectable: tuple[str, ...] = ()
    has_status: bool = True

    @property
    def name(self) -> str:
        return f"{self.kind.plural}.{self.kind.group}"


def label_path(label: str) -> str:
    """Return the JSONPath of a label, whose dots are part of its name."""
    return ".metadata.labels." + label.replace(".", r"\.")


AGE: Final = PrinterColumn("Age", ".metadata.creationTimestamp", "date")

DEFINITIONS: Final = (
    KindDefinition(
        MACHINES,
        "mach",
        (
            PrinterColumn("Host", ".spec.ssh.host"),
            PrinterColumn("Site", label_path(LABEL_SITE)),
            PrinterColumn("Phase", ".status.phase"),
            PrinterColumn("Reason", ".status.reason"),
            PrinterColumn("K8s Version", ".spec.kubernetes.version"),
            AGE,
            PrinterColumn("Provider", ".spec.provider", wide=True),
            PrinterColumn("BMC", ".spec.pxe.redfish.url", wide=True),
            PrinterColumn("Operation", ".status.activeOperation.name", wide=True),
            PrinterColumn("Cluster CA", ".status.agent.clusterCA", wide=True),
            PrinterColumn("Message", ".status.message", wide=True),
        ),
    ),
    KindDefinition(
        MACHINE_OPERATIONS,
        "mop",
        (
            PrinterColumn("Kind", ".spec.operationKind"),
            PrinterColumn("Machine", ".spec.machineRef"),
            PrinterColumn("Phase", ".status.phase"),
            AGE,
            PrinterColumn("Reason", ".status.reason", wide=True),
            PrinterColumn("Executor", ".status.execution.executor", wide=True),
            PrinterColumn("Stage", ".status.targets[0].stage", wide=True),
            PrinterColumn("Message", ".status.message", wide=True),
        ),
        selectable=(".spec.machineRef", ".status.phase"),
    ),
    KindDefinition(
        MACHINE_OPERATION_CREDENTIALS,
        "mocred",
        (
            PrinterColumn("Site", ".spec.siteName"),
            PrinterColumn("Provider", ".spec.provider"),
            PrinterColumn("Auth Mode", ".spec.auth.mode"),
            AGE,
        ),
        has_status=False,
    ),
    KindDefinition(
        MACHINE_CONFIGURATIONS,
        "mc",
        (
            PrinterColumn("Latest Version", ".status.latestVersion", "integer"),
            PrinterColumn("Update Strategy", ".spec.updateStrategy.type"),
            AGE,
        ),
    ),
    KindDefinition(
        MACHINE_CONFIGURATION_VERSIONS,
        "mcv",
        (
            PrinterColumn("Configuration", label_path(LABEL_CONFIGURATION)),
            PrinterColumn("Version", ".spec.version", "integer"),
            PrinterColumn("Deployed", ".status.deployed", "boolean"),
            PrinterColumn("Machines", ".status.deployedMachines", "integer"),
            AGE,
        ),
    ),
)


def custom_resource_definition(definition: KindDefinition) -> dict[str, Any]:
    """Return the CustomResourceDefinition as it is applied."""
    kind = definition.kind
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": definition.name},
        "spec": {
            "group": kind.group,
            "names": {
                "kind": kind.kind,
                "listKind": f"{kind.kind}List",
                "plural": kind.plural,
                "singular": kind.kind.lower(),
                "shortNames": [definition.short],
            },
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "versions": [_version(definition)],
        },
    }


def custom_resource_definitions() -> tuple[dict[str, Any], ...]:
    """Return all CustomResourceDefinitions, ready to be applied to any cluster."""
    return tuple(custom_resource_definition(definition) for definition in DEFINITIONS)


def _version(definition: KindDefinition) -> dict[str, Any]:
    version: dict[str, Any] = {
        "name": definition.kind.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": kind_schema(definition.kind.type)},
        "additionalPrinterColumns": [column.entry() for column in definition.columns],
    }
    if definition.has_status:
        version["subresources"] = {"status": {}}
    if definition.selectable:
        version["selectableFields"] = [{"jsonPath": path} for path in definition.selectable]
    return version
