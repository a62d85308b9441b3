"""Models of the answers of Azure that the SDK for Compute has none for, as far as the simulated one shows them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, Required, TypedDict, get_origin, get_type_hints, is_typeddict

from scripts import azure_requests

from tests.lab.cloud.strict import Fields

# Microsoft.Network/networkInterfaces 2024-05-01: networkInterface.json and network.json of azure-rest-api-specs,
# specification/network/resource-manager/Microsoft.Network/stable/2024-05-01

Provisioned = Literal["Succeeded", "Updating", "Deleting", "Failed"]


class SubResource(TypedDict):
    id: str


class IPConfigurationProperties(TypedDict, total=False):
    privateIPAddress: str
    privateIPAddressPrefixLength: int
    privateIPAllocationMethod: Literal["Static", "Dynamic"]
    privateIPAddressVersion: Literal["IPv4", "IPv6"]
    subnet: SubResource
    primary: bool
    publicIPAddress: SubResource
    provisioningState: Provisioned


class IPConfiguration(TypedDict, total=False):
    id: str
    name: str
    etag: str
    type: str
    properties: IPConfigurationProperties


class NetworkInterfaceProperties(TypedDict, total=False):
    virtualMachine: SubResource
    networkSecurityGroup: SubResource
    ipConfigurations: list[IPConfiguration]
    macAddress: str
    primary: bool
    vnetEncryptionSupported: bool
    enableAcceleratedNetworking: bool
    disableTcpStateTracking: bool
    enableIPForwarding: bool
    hostedWorkloads: list[str]
    resourceGuid: str
    provisioningState: Provisioned
    nicType: Literal["Standard", "Elastic"]
    auxiliaryMode: Literal["None", "MaxConnections", "Floating", "AcceleratedConnections"]
    auxiliarySku: Literal["None", "A1", "A2", "A4", "A8"]


class NetworkInterface(TypedDict, total=False):
    id: str
    name: str
    type: str
    location: str
    tags: dict[str, str]
    etag: str
    properties: NetworkInterfaceProperties


# learn.microsoft.com/azure/azure-resource-manager/management/async-operations, and what Compute shows of its own


class OperationError(TypedDict, total=False):
    code: Required[str]
    message: Required[str]
    target: str
    details: list[dict[str, str]]


class Operation(TypedDict, total=False):
    name: Required[str]
    status: Required[Literal["InProgress", "Succeeded", "Failed", "Canceled"]]
    startTime: Required[datetime]
    endTime: datetime
    error: OperationError


# learn.microsoft.com/rest/api/resources/resource-groups/get


class ResourceGroupProperties(TypedDict, total=False):
    provisioningState: str


class ResourceGroup(TypedDict, total=False):
    id: str
    name: str
    type: str
    location: Required[str]
    managedBy: str
    tags: dict[str, str]
    properties: ResourceGroupProperties


# learn.microsoft.com/entra/identity-platform/v2-oauth2-client-creds-grant-flow, v2-protocols-oidc


class Token(TypedDict):
    token_type: Literal["Bearer"]
    expires_in: int
    ext_expires_in: int
    access_token: str


class LoginError(TypedDict):
    error: str
    error_description: str
    error_codes: list[int]


class Discovery(TypedDict, total=False):
    issuer: Required[str]
    token_endpoint: Required[str]
    authorization_endpoint: Required[str]
    device_authorization_endpoint: str
    jwks_uri: Required[str]
    response_types_supported: Required[list[str]]
    subject_types_supported: Required[list[str]]
    id_token_signing_alg_values_supported: Required[list[str]]
    token_endpoint_auth_methods_supported: list[str]


def fields_of(kind: Any) -> Fields | None:
    """The fields of one of these models, or of one of the SDK's."""
    if not is_typeddict(kind):
        return azure_requests.fields_of(kind)
    extras = get_type_hints(kind, include_extras=True)
    return {
        name: (hint, kind.__total__ or get_origin(extras[name]) is Required)
        for name, hint in get_type_hints(kind).items()
    }
