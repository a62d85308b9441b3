"""Errors of Azure Resource Manager, its Compute provider and the login endpoint, in their wire form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from unbounded_lab.http import LabReply

JSON: Final = "application/json; charset=utf-8"


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """One error.

    Args:
        code: where it differs from the name.
        again_for: the target of a detail that repeats the message; none if empty.
    """

    status: int
    message: str
    code: str = ""
    again_for: str = ""


OVERCONSTRAINED: Final = (
    "Allocation failed. VM(s) with the following constraints cannot be allocated, because the condition is too"
    " restrictive. Please remove some constraints and try again. Constraints applied are:\n"
)
ERRORS: Final[Mapping[str, ErrorRow]] = {
    # Errors of the client
    "InvalidRequestContent": ErrorRow(
        400, "The request content was invalid and could not be deserialized: '{detail}'."
    ),
    "InvalidParameter": ErrorRow(400, "{detail}"),
    "MissingApiVersionParameter": ErrorRow(
        400, "The api-version query parameter (?api-version=) is required for all requests."
    ),
    "InvalidApiVersionParameter": ErrorRow(
        400, "The api-version '{detail}' is invalid. The supported versions are '{known}'."
    ),
    "NoRegisteredProviderFound": ErrorRow(
        400,
        "No registered resource provider found for location '{location}' and API version '{detail}' for type '{type}'."
        " The supported api-versions are '{known}'. The supported locations are '{locations}'.",
    ),
    "LocationNotAvailableForResourceType": ErrorRow(400, "{detail}"),
    "InvalidAvailabilityZone": ErrorRow(400, "{detail}"),
    "MissingIdentityIds": ErrorRow(400, "{detail}"),
    "IdentityNotExpected": ErrorRow(400, "{detail}", "FailedIdentityOperation"),
    "InvalidTags": ErrorRow(400, "{detail}"),
    "InvalidTagName": ErrorRow(400, "{detail}"),
    "InvalidTagNameCharacters": ErrorRow(400, "{detail}"),
    "InvalidTagValueLength": ErrorRow(400, "{detail}"),
    "EvictionPolicyCanBeSetOnlyOnAzureSpotVirtualMachines": ErrorRow(400, "{detail}"),
    "AzureSpotVMNotSupportedInAvailabilitySet": ErrorRow(400, "{detail}"),
    "LocationRequired": ErrorRow(400, "The location property is required for this definition."),
    "BadRequest": ErrorRow(400, "{detail}"),
    "InvalidResourceReference": ErrorRow(
        400,
        "Resource {detail} referenced by resource {subject} was not found. Please make sure that the referenced"
        " resource exists, and that both resources are in the same region.",
    ),
    "FailedIdentityOperation": ErrorRow(
        400,
        "Identity operation for resource '{subject}' failed with error 'Failed to perform resource identity operation."
        " Status: 'BadRequest'. Response: 'The resource {detail} was not found.'.",
    ),
    "NicInUse": ErrorRow(
        400,
        "Network Interface {subject} is used by existing resource {detail}. In order to delete the network interface,"
        " it must be dissociated from the resource.",
    ),
    "NicReservedForAnotherVm": ErrorRow(
        400,
        "Nic(s) in request is reserved for another Virtual Machine for 180 seconds. Please provide another nic(s)"
        " or retry after 180 seconds. Reserved for: {detail}.",
    ),
    "VirtualMachineMustHaveOneNetworkInterfaceAsPrimary": ErrorRow(
        400, "Virtual machine {subject} must have one network interface set as the primary."
    ),
    "VMMarketplaceInvalidInput": ErrorRow(400, "{detail}"),
    "MarketplacePurchaseEligibilityFailed": ErrorRow(
        400,
        "Marketplace purchase eligibility check returned errors. See inner errors for details. You have not accepted"
        " the legal terms on this subscription for this plan: {detail}.",
    ),
    # Authentication and authorization
    "AuthenticationFailed": ErrorRow(401, "Authentication failed. The 'Authorization' header is missing."),
    "InvalidAuthenticationToken": ErrorRow(401, "The access token is invalid."),
    "ExpiredAuthenticationToken": ErrorRow(
        401, "The access token expiry UTC time '{detail}' is earlier than current UTC time."
    ),
    "InvalidAuthenticationTokenTenant": ErrorRow(
        401, "The access token is from the wrong issuer. It must match the tenant associated with this subscription."
    ),
    "AuthorizationFailed": ErrorRow(
        403,
        "The client '{client}' with object id '{object}' does not have authorization to perform action '{detail}' over"
        " scope '{subject}' or the scope is invalid. If access was recently granted, please refresh your credentials.",
    ),
    "RequestDisallowedByPolicy": ErrorRow(
        403,
        'Resource \'{name}\' was disallowed by policy. Policy identifiers: \'[{{"policyAssignment":{{"name":"No new'
        ' machines","id":"/providers/Microsoft.Management/managementGroups/root/providers/Microsoft.Authorization'
        "/policyAssignments/no-new-machines\"}}}}]'.",
    ),
    # Missing resources
    "ResourceNotFound": ErrorRow(
        404,
        "The Resource '{type}/{name}' under resource group '{group}' was not found. For more details please go to"
        " https://aka.ms/ARMResourceNotFoundFix",
    ),
    "ParentResourceNotFound": ErrorRow(  # Azure/aks-engine#609
        404, "Can not perform requested operation on nested resource. Parent resource '{name}' not found."
    ),
    "PlatformImageNotFound": ErrorRow(
        404,
        "The platform image '{detail}' is not available. Verify that all fields in the storage profile are correct. For"
        " more details about storage profile information, please refer to https://aka.ms/storageprofile",
    ),
    "ImageVersionDeprecated": ErrorRow(404, "The platform image '{detail}' is deprecated."),
    "ImageDeprecated": ErrorRow(
        404,
        "VM Image from publisher: {publisher} with - Offer: {offer}, Sku: {sku}, Version: {version} is deprecated.",
        "ImageVersionDeprecated",
    ),
    "GalleryImageNotFound": ErrorRow(
        404,
        '"The gallery image {detail} is not available in {location} region. Please contact image owner to replicate to'
        ' this region, or change your requested region."',
    ),
    "ResourceGroupNotFound": ErrorRow(404, "Resource group '{group}' could not be found."),
    "SubscriptionNotFound": ErrorRow(404, "The subscription '{detail}' could not be found."),
    "NotFound": ErrorRow(404, "{detail}"),
    "PathNotFound": ErrorRow(404, "No HTTP resource was found that matches the request URI '{detail}'.", "NotFound"),
    # Conflicts
    "Conflict": ErrorRow(
        409,
        "The request failed due to conflict with a concurrent request. To resolve it, please refer to"
        " https://aka.ms/activitylog to get more details on the conflicting requests.",
    ),
    "MarkedForDeletion": ErrorRow(
        409,
        "Operation '{detail}' is not allowed on VM '{name}' since the VM is marked for deletion. You can only retry"
        " the Delete operation (or wait for an ongoing one to complete).",
        "OperationNotAllowed",
    ),
    "OperationNotAllowed": ErrorRow(409, "{detail}"),
    "ScopeLocked": ErrorRow(
        409,
        "The scope '{subject}' cannot perform delete operation because following scope(s) are locked: '{subject}'."
        " Please remove the lock and try again.",
    ),
    "ReadOnlyDisabledSubscription": ErrorRow(
        409,
        "The subscription '{subscription}' is disabled and therefore marked as read only. You cannot perform any write"
        " actions on this subscription until it is re-enabled.",
    ),
    "MissingSubscriptionRegistration": ErrorRow(
        409,
        "The subscription is not registered to use namespace 'Microsoft.Compute'. See https://aka.ms/rps-not-found for"
        " how to register subscriptions.",
        again_for="Microsoft.Compute",
    ),
    "PropertyChangeNotAllowed": ErrorRow(409, "Changing property '{detail}' is not allowed."),
    "InvalidResourceLocation": ErrorRow(
        409,
        "The resource '{name}' already exists in location '{detail}' in resource group '{group}'. A resource with the"
        " same name cannot be created in another location. Please select a new resource name.",
    ),
    "DiskExists": ErrorRow(
        409,
        "Disk {detail} already exists in resource group {group}. Only CreateOption.Attach is supported.",
        "ConflictingUserInput",
    ),
    "DiskOwned": ErrorRow(
        409,
        "Disk '{detail}' cannot be attached as the disk is already owned by VM '{owner}'.",
        "ConflictingUserInput",
    ),
    "AttachDiskWhileBeingDetached": ErrorRow(
        409,
        "Cannot attach data disk '{detail}' to virtual machine '{name}' because the disk is currently being detached.",
    ),
    "QuotaExceeded": ErrorRow(
        409,
        "Operation could not be completed as it results in exceeding approved Total Regional Cores quota. Additional"
        " details - Deployment Model: Resource Manager, {detail}.",
        "OperationNotAllowed",
    ),
    "SkuNotAvailable": ErrorRow(
        409,
        "The requested VM size for resource 'Following SKUs have failed for Capacity Restrictions: {detail}' is"
        " currently not available. Please try another size or deploy to a different location or different zone.",
    ),
    "AllocationFailed": ErrorRow(
        409,
        "Allocation failed. We do not have sufficient capacity for the requested VM size in this region. Read more"
        " about improving likelihood of allocation success at http://aka.ms/allocation-guidance",
    ),
    "ZonalAllocationFailed": ErrorRow(
        409,
        "Allocation failed. We do not have sufficient capacity for the requested VM size in this zone. Read more about"
        " improving likelihood of allocation success at http://aka.ms/allocation-guidance",
    ),
    "OverconstrainedAllocationRequest": ErrorRow(409, f"{OVERCONSTRAINED}  - VM Size\n"),
    "OverconstrainedZonalAllocationRequest": ErrorRow(409, f"{OVERCONSTRAINED}  - Availability Zone\n  - VM Size\n"),
    "PreconditionFailed": ErrorRow(412, "The condition '{detail}' evaluated to false."),
    # Throttling, and errors of the cloud
    "TooManyRequests": ErrorRow(429, "The request is being throttled."),
    "SubscriptionRequestsThrottled": ErrorRow(
        429,
        "Number of '{detail}' requests for subscription '{subscription}' actor '{client}' exceeded. Please try again"
        " after '{seconds}' seconds after additional tokens are available. Refer to https://aka.ms/arm-throttling for"
        " additional information.",
    ),
    "ComputeThrottled": ErrorRow(
        429,
        "The server rejected the request because too many requests have been received for this subscription.",
        "OperationNotAllowed",
    ),
    "InternalServerError": ErrorRow(
        500,
        "Encountered internal server error. Diagnostic information: timestamp '', subscription id '', tracking id ''.",
    ),
    "InternalExecutionError": ErrorRow(500, "An internal execution error occurred. Please retry later."),
    "BadGatewayConnection": ErrorRow(
        502, "The network connectivity issue encountered for 'Microsoft.Compute'; cannot fulfill the request."
    ),
    "GatewayTimeout": ErrorRow(
        504, "The gateway did not receive a response from 'Microsoft.Compute' within the specified time period."
    ),
    "ServiceUnavailable": ErrorRow(503, "The service is unavailable now, please retry later."),
    "ServerTimeout": ErrorRow(503, "The request timed out."),
    # Errors of operations alone
    "OperationPreempted": ErrorRow(409, "Operation execution has been preempted by a more recent operation."),
    "OSProvisioningTimedOut": ErrorRow(
        409,
        "OS Provisioning for VM '{name}' did not finish in the allotted time. The VM may still finish provisioning"
        " successfully. Please check provisioning state later.",
    ),
    "VMExtensionProvisioningError": ErrorRow(
        409, "VM has reported a failure when processing extension '{detail}'. Error message: 'enable failed'."
    ),
}
"""By the name that faults use; the code that raises an error supplies the fields of its message."""

LOGIN_ERRORS: Final[Mapping[str, ErrorRow]] = {
    "invalid_request": ErrorRow(
        400, "AADSTS900144: The request body must contain the following parameter: '{detail}'."
    ),
    "unsupported_grant_type": ErrorRow(400, "AADSTS70003: The app requested an unsupported grant type '{detail}'."),
    "unknown_tenant": ErrorRow(400, "AADSTS90002: Tenant '{detail}' not found.", "invalid_request"),
    "unknown_client": ErrorRow(
        400,
        "AADSTS700016: Application with identifier '{detail}' was not found in the directory.",
        "unauthorized_client",
    ),
    "invalid_scope": ErrorRow(400, "AADSTS70011: The provided value for the input parameter 'scope' is not valid."),
    "invalid_client": ErrorRow(
        401,
        "AADSTS7000215: Invalid client secret provided. Ensure the secret being sent in the request is the client"
        " secret value, not the client secret ID, for a secret added to app '{detail}'.",
    ),
    "bad_assertion": ErrorRow(
        401,
        "AADSTS700027: The certificate with identifier used to sign the client assertion is not registered on"
        " application, or the assertion failed signature validation.",
        "invalid_client",
    ),
    "expired_assertion": ErrorRow(
        401, "AADSTS700024: Client assertion is not within its valid time range.", "invalid_client"
    ),
    "unknown_subject": ErrorRow(
        400,
        "AADSTS70021: No matching federated identity record found for presented assertion. {detail}",
        "invalid_client",
    ),
    "temporarily_unavailable": ErrorRow(503, "AADSTS90033: A transient error has occurred. Please try again."),
}


class _Unfilled(dict[str, str]):
    """Fields of a message, with a default for those without a value, as when a fault requires the error."""

    def __missing__(self, key: str) -> str:
        return "-"


class AzureProblem(Exception):
    """A request that is answered with an error, or an operation that ends with one; `name` is a key of ERRORS."""

    def __init__(
        self, name: str, /, *, target: str | None = None, retry_after_s: float | None = None, **fields: str
    ) -> None:
        super().__init__(name, fields)
        row = ERRORS[name]
        self.name = name
        self.status = row.status
        self.code = row.code or name
        self.message = row.message.format_map(_Unfilled(fields))
        self.target = target
        self.retry_after_s = retry_after_s
        self.details: list[dict[str, str]] = []
        if row.again_for:
            self.details.append({"code": self.code, "target": row.again_for, "message": self.message})

    def document(self) -> dict[str, Any]:
        return {
            "code": self.code,
            "message": self.message,
            **({} if self.target is None else {"target": self.target}),
            **({"details": self.details} if self.details else {}),
        }

    def reply(self) -> LabReply:
        return json_reply({"error": self.document()}, self.status, retry_after(self.retry_after_s))


class LoginProblem(Exception):
    """A rejected login; `name` is a key of LOGIN_ERRORS."""

    def __init__(self, name: str, detail: str = "") -> None:
        super().__init__(name, detail)
        row = LOGIN_ERRORS[name]
        self.status = row.status
        self.code = row.code or name
        self.message = row.message.format(detail=detail)

    def reply(self) -> LabReply:
        number = int(self.message.removeprefix("AADSTS").partition(":")[0])
        body = {"error": self.code, "error_description": self.message, "error_codes": [number]}
        return json_reply(body, self.status)


def json_reply(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> LabReply:
    return LabReply(status, msgspec.json.encode(body), {"content-type": JSON, **(headers or {})})


def retry_after(seconds: float | None) -> dict[str, str]:
    """Return the header, in whole seconds; none for None and for 0."""
    return {"retry-after": str(max(1, round(seconds)))} if seconds else {}
