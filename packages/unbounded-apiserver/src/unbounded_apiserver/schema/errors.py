"""Errors of objects and schemas, worded as by kube-apiserver."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class FieldError:
    """One cause of a rejection, as in `Status.details.causes`.

    Attributes:
        reason: FieldValueInvalid, FieldValueRequired, FieldValueNotSupported, FieldValueTypeInvalid, …
        field: the path, `spec.pxe.dhcpLeases[0].mac`; "<nil>" where Kubernetes has none.
        message: `Invalid value: "x": spec.mac in body should match '^…$'`.
    """

    reason: str
    field: str
    message: str


class SchemaError(Exception):
    """A definition's schema is rejected."""

    def __init__(self, causes: Sequence[FieldError]) -> None:
        self.causes = list(causes)
        super().__init__("; ".join(f"{cause.field}: {cause.message}" for cause in self.causes))
