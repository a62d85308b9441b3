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
class Column:
    """One column of `kubectl get`; a wide one is shown with `-o wide` only."""

    name: str
    path: str
    type: str = "string"
    wide: bool = False

    def entry(self) -> dict[str, Any]:
        column: dict[str, Any] = {"name": self.name, "type": self.type, "jsonPath": self.path}
        return column | ({"priority": 1} if self.wide else {})


@dataclass(frozen=True)
class Definition:
    """What a CustomResourceDefinition says of a kind besides its schema."""

    kind: Kind[Any]
    short: str
    columns: tuple[Column, ...]
    selectable: tuple[str, ...] = ()
    has_status: bool = True

    @property
    def name(self) -> str:
        return f"{self.kind.plural}.{self.kind.group}"


def label_path(label: str) -> str:
    """The JSONPath of a label, whose dots are part of its name."""
    return ".metadata.labels." + label.replace(".", r"\.")


AGE: Final = Column("Age", ".metadata.creationTimestamp", "date")

DEFINITIONS: Final = (
    Definition(
        MACHINES,
        "mach",
        (
            Column("Host", ".spec.ssh.host"),
            Column("Site", label_path(LABEL_SITE)),
            Column("Phase", ".status.phase"),
            Column("Reason", ".status.reason"),
            Column("K8s Version", ".spec.kubernetes.version"),
            AGE,
            Column("Provider", ".spec.provider", wide=True),
            Column("BMC", ".spec.pxe.redfish.url", wide=True),
            Column("Operation", ".status.activeOperation.name", wide=True),
            Column("Cluster CA", ".status.agent.clusterCA", wide=True),
            Column("Message", ".status.message", wide=True),
        ),
    ),
    Definition(
        MACHINE_OPERATIONS,
        "mop",
        (
            Column("Kind", ".spec.operationKind"),
            Column("Machine", ".spec.machineRef"),
            Column("Phase", ".status.phase"),
            AGE,
            Column("Reason", ".status.reason", wide=True),
            Column("Executor", ".status.execution.executor", wide=True),
            Column("Stage", ".status.targets[0].stage", wide=True),
            Column("Message", ".status.message", wide=True),
        ),
        selectable=(".spec.machineRef", ".status.phase"),
    ),
    Definition(
        MACHINE_OPERATION_CREDENTIALS,
        "mocred",
        (
            Column("Site", ".spec.siteName"),
            Column("Provider", ".spec.provider"),
            Column("Auth Mode", ".spec.auth.mode"),
            AGE,
        ),
        has_status=False,
    ),
    Definition(
        MACHINE_CONFIGURATIONS,
        "mc",
        (
            Column("Latest Version", ".status.latestVersion", "integer"),
            Column("Update Strategy", ".spec.updateStrategy.type"),
            AGE,
        ),
    ),
    Definition(
        MACHINE_CONFIGURATION_VERSIONS,
        "mcv",
        (
            Column("Configuration", label_path(LABEL_CONFIGURATION)),
            Column("Version", ".spec.version", "integer"),
            Column("Deployed", ".status.deployed", "boolean"),
            Column("Machines", ".status.deployedMachines", "integer"),
            AGE,
        ),
    ),
)


def custom_resource_definition(definition: Definition) -> dict[str, Any]:
    """The CustomResourceDefinition as it is applied."""
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
    """All of them, ready to be applied to any cluster."""
    return tuple(custom_resource_definition(definition) for definition in DEFINITIONS)


def _version(definition: Definition) -> dict[str, Any]:
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
