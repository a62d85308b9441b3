"""MachineOperationCredential: the authentication of host operations of one site and provider."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final

from unbounded.api.fields import ApiStruct, Field, LabelValue, ProviderName
from unbounded.api.machine_spec import SecretReference
from unbounded.api.meta import Kind, Object
from unbounded.api.names import GROUP, VERSION


class AuthMode(StrEnum):
    WORKLOAD_IDENTITY = "WorkloadIdentity"
    EXTERNAL_PLUGIN = "ExternalPlugin"


class CredentialAuth(ApiStruct, frozen=True, kw_only=True):
    """The authentication of a provider controller."""

    mode: Annotated[
        str,
        Field(
            "WorkloadIdentity: use the controller's own identity (OIDC). "
            "ExternalPlugin: use the credentials in secretRef.",
            enum=tuple(AuthMode),
        ),
    ]
    secret_ref: Annotated[
        SecretReference | None, Field("Secret with the provider's credentials. Required for ExternalPlugin.")
    ] = None


class MachineOperationCredentialSpec(ApiStruct, frozen=True, kw_only=True):
    """The Machines that the credential is for, and the authentication."""

    site_name: Annotated[LabelValue, Field("Value of the label unbounded-cloud.io/site of the Machines.", min_length=1)]
    provider: Annotated[ProviderName, Field("Provider of the Machines, such as AzureVM or OCIInstance.")]
    auth: Annotated[CredentialAuth, Field("Method of authentication.")]


class MachineOperationCredential(Object, frozen=True, kw_only=True):
    """The authentication of host operations on the Machines of one site and provider."""

    spec: Annotated[
        MachineOperationCredentialSpec, Field("Machines that the credential is for, and the method of authentication.")
    ]


MACHINE_OPERATION_CREDENTIALS: Final = Kind(
    GROUP, VERSION, "MachineOperationCredential", "machineoperationcredentials", MachineOperationCredential
)
