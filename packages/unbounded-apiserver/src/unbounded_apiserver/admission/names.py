"""The group of admission policies, and the packages of its types."""

from __future__ import annotations

from typing import Final

GROUP: Final = "admissionregistration.k8s.io"
PACKAGE: Final = "io.k8s.api.admissionregistration.v1"
