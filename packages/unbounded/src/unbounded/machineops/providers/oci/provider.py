"""Provider `OCIInstance`, the object of the entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from unbounded.machineops.provider import (
    AuthMode,
    Budget,
    Instance,
    Login,
    OperationKind,
    Rate,
    Rates,
    ReplaceStep,
)
from unbounded.machineops.providers.oci import ids
from unbounded.machineops.providers.oci.calls import OciCalls, Wire
from unbounded.machineops.providers.oci.launch import METADATA_BYTES
from unbounded.machineops.providers.oci.logins import KEYS
from unbounded.machineops.providers.oci.replacement_plan import STEPS
from unbounded.machineops.providers.oci.session import OciSession

PARAMETERS: Final = MappingProxyType(
    {
        OperationKind.HOST_REBOOT: frozenset({"force"}),  # RESET cuts the power in any case
        OperationKind.HOST_POWER_OFF: frozenset({"force"}),
        OperationKind.HOST_REPLACE: frozenset({"keep", "accept", "imageID", "sshAuthorizedKeys", "assignPublicIP"}),
    }
)


@dataclass(frozen=True)
class OciProvider:
    """Provider of OCI instances.

    Args:
        calls: makes the calls of a login; raises ValueError as `connect` does.
    """

    calls: Callable[[Login], OciCalls] = lambda login: OciCalls(login, Wire())
    name: str = "OCIInstance"
    api_version: str = "v1"
    kinds: frozenset[OperationKind] = frozenset(kind for kind in OperationKind if kind.is_host)
    modes: frozenset[AuthMode] = frozenset(AuthMode)
    secret_keys: tuple[str, ...] = KEYS
    rates: Rates = Rates(reads=Rate(200, 100), writes=Rate(200, 10))  # noqa: RUF009  # frozen; Oracle names no figures
    call_limit_s: float = 45.0
    # the metadata has it in base64; `launch` subtracts the rest of the metadata
    most_user_data: int = METADATA_BYTES * 3 // 4
    restarts_once: bool = True
    parameters: Mapping[OperationKind, frozenset[str]] = field(default_factory=lambda: PARAMETERS)
    replacement: tuple[ReplaceStep, ...] = STEPS

    def instance(self, provider_id: str) -> Instance:
        return ids.instance(provider_id)

    def connect(self, login: Login, budget: Budget) -> OciSession:
        return OciSession(self.calls(login), budget)
