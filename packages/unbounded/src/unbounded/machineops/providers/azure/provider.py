"""Provider `AzureVM`: its description, and its login."""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from azure.core import AzureClouds
from azure.core.pipeline.transport import AioHttpTransport
from azure.core.settings import settings
from azure.identity.aio import ClientSecretCredential, DefaultAzureCredential
from azure.mgmt.core.tools import get_arm_endpoints

from unbounded.kube.tls import client_context
from unbounded.machineops.provider import AuthMode, Budget, Instance, Login, OperationKind, Rate, Rates, SecretStr
from unbounded.machineops.providers.azure import replacement_plan, vm_properties
from unbounded.machineops.providers.azure.sdk_client import AzureClient, AzureCredential
from unbounded.machineops.providers.azure.session import AzureSession

_GUID: Final = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DEVELOPERS: Final = {
    f"exclude_{name}_credential": True
    for name in ("cli", "developer_cli", "powershell", "shared_token_cache", "visual_studio_code")
}
"""Credentials of a user's developer tools; a controller does not start their programs."""


class AzureVM:
    """Provider of Azure virtual machines.

    Args:
        endpoint: of Resource Manager; empty for that of the cloud that the SDK is configured for.
        authority: issuer of tokens; empty for AZURE_AUTHORITY_HOST, else the public one.
        context: TLS context with the trusted authorities.
    """

    name = "AzureVM"
    api_version = "v1"
    kinds = frozenset(kind for kind in OperationKind if kind.is_host)
    modes = frozenset({AuthMode.WORKLOAD_IDENTITY, AuthMode.EXTERNAL_PLUGIN})
    secret_keys = ("tenantID", "clientID", "clientSecret")
    # learn.microsoft.com/azure/azure-resource-manager/management/request-limits-and-throttling: of each subscription
    # and principal
    rates = Rates(reads=Rate(250, 25), writes=Rate(200, 10))
    call_limit_s = 120.0  # a token, if none is cached, and two or three requests
    restarts_once = False
    most_user_data = 65_535  # of customData, before base64
    parameters: Final = MappingProxyType(
        {
            OperationKind.HOST_POWER_OFF: frozenset({"deallocate", "force"}),
            OperationKind.HOST_REPLACE: frozenset({"keep", "accept"}),
        }
    )
    replacement = replacement_plan.STEPS

    def __init__(
        self, *, endpoint: str = "", authority: str = "", context: Callable[[], ssl.SSLContext] = client_context
    ) -> None:
        self._endpoint = endpoint or _public_endpoint()
        self._authority = authority
        self._context = context

    def instance(self, provider_id: str) -> Instance:
        return vm_properties.instance(provider_id)

    def connect(self, login: Login, budget: Budget) -> AzureSession:
        if login.mode is AuthMode.EXTERNAL_PLUGIN:
            check(login.secret)

        def log_in(transport: AioHttpTransport) -> AzureCredential:
            return self.credential(login, transport)

        return AzureSession(AzureClient(login.name, log_in, budget, endpoint=self._endpoint, context=self._context))

    def credential(self, login: Login, transport: AioHttpTransport) -> AzureCredential:
        """Return the SDK's credential."""
        options: dict[str, Any] = {"transport": transport, "retry_total": 0, "disable_instance_discovery": True}
        if self._authority:
            options["authority"] = self._authority
        if login.mode is AuthMode.WORKLOAD_IDENTITY:
            return DefaultAzureCredential(**_DEVELOPERS, **options)
        tenant, client, secret = (login.secret[key].reveal().strip() for key in self.secret_keys)
        return ClientSecretCredential(tenant, client, secret, **options)


def _public_endpoint() -> str:
    cloud: AzureClouds = settings.azure_cloud()
    return str(get_arm_endpoints(cloud)["resource_manager"])


def check(secret: Mapping[str, SecretStr]) -> None:
    """Check the content of a credential's Secret.

    Raises:
        ValueError: a value is invalid.
    """
    for key in ("tenantID", "clientID"):
        if not _GUID.fullmatch(secret[key].reveal().strip()):
            raise ValueError(f"{key} of the Secret is not a GUID, such as 00000000-0000-0000-0000-000000000000")
    if not secret["clientSecret"].reveal().strip().isprintable():
        raise ValueError("clientSecret of the Secret contains characters that Azure does not use in secrets")
