"""Redfish's forms: requests, replies, messages and error documents, and the common properties of resources.

Versions of schemas are those of the bundle DSP8010 2025.4.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from unbounded_lab import http
from unbounded_lab.http import OK, LabReply

JSON: Final = "application/json; charset=utf-8"

EXTENDED_INFO: Final = "@Message.ExtendedInfo"
MESSAGE_TYPE: Final = "#Message.v1_3_0.Message"

PROBLEMS: Final[Mapping[str, tuple[int, str]]] = {
    "Success": (200, "The request completed successfully."),
    "MalformedJSON": (400, "The request body submitted was malformed JSON and could not be parsed."),
    "PropertyUnknown": (400, "The property {} is not in the list of valid properties for the resource."),
    "PropertyNotWritable": (400, "The property {} is a read-only property and cannot be assigned a value."),
    "PropertyMissing": (400, "The property {} is a required property and must be included in the request."),
    "PropertyValueNotInList": (400, "The value '{}' for the property {} is not in the list of acceptable values."),
    "PropertyValueTypeError": (400, "The value '{}' for the property {} is not a type that the property can accept."),
    "PropertyValueFormatError": (
        400,
        "The value '{}' for the property {} is not a format that the property can accept.",
    ),
    "ActionNotSupported": (400, "The action {} is not supported by the resource."),
    "ActionParameterMissing": (400, "The action {} requires that the parameter {} be present in the request body."),
    "ActionParameterNotSupported": (400, "The parameter {} for the action {} is not supported on the target resource."),
    "ActionParameterValueNotInList": (
        400,
        "The value '{}' for the parameter {} in the action {} is not in the list of acceptable values.",
    ),
    "NoValidSession": (401, "There is no valid session established with the implementation."),
    "InsufficientPrivilege": (
        403,
        "There are insufficient privileges for the account or credentials associated with the current session to "
        "perform the requested operation.",
    ),
    "PasswordChangeRequired": (
        403,
        "The password provided for this account must be changed before access is granted. PATCH the Password property "
        "for this account located at the target URI '{}' to complete this process.",
    ),
    "ResourceMissingAtURI": (404, "The resource at the URI '{}' was not found."),
    "OperationNotAllowed": (405, "The HTTP method is not allowed on this resource."),
    "ResourceInStandby": (409, "The request could not be performed because the resource is in standby."),
    "IDRAC.2.1.PSU501": (409, "Server is already powered {}."),
    "iLO.2.18.InvalidOperationForSystemState": (
        400,
        "The operation was not successful due to the current power state (for example, attempting to turn the power "
        "off when it is already off).",
    ),
    "Update.1.2.VerificationFailed": (400, "Verification of image '{}' at '{}' failed."),
    "PreconditionFailed": (412, "The ETag supplied did not match the ETag required to change this resource."),
    "PreconditionRequired": (428, "A precondition header or annotation is required to change this resource."),
    "EventSubscriptionLimitExceeded": (
        503,
        "The event subscription failed due to the number of simultaneous subscriptions exceeding the limit of the "
        "implementation.",
    ),
    "InternalError": (500, "The request failed due to an internal service error.  The service is still operational."),
    "ServiceTemporarilyUnavailable": (503, "The service is temporarily unavailable.  Retry in {} seconds."),
    "SessionLimitExceeded": (
        503,
        "The session establishment failed due to the number of simultaneous sessions exceeding the limit of the "
        "implementation.",
    ),
}
"""The messages that this service sends: status and text, by their name in Redfish's Base registry (DSP8011), or by
their whole identifier for those of vendors."""


@dataclass(frozen=True, slots=True)
class BmcRequest(http.LabRequest):
    """A request to a BMC."""

    def json(self) -> dict[str, Any]:
        """Return the body as an object; an empty body is an empty object.

        Raises:
            RedfishProblem: the body is not a JSON object.
        """
        if not self.body:
            return {}
        try:
            return msgspec.json.decode(self.body, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise RedfishProblem("MalformedJSON") from error

    def basic_credentials(self) -> tuple[str, str] | None:
        """Return user name and password of a Basic authorization; None without a readable one."""
        scheme, _, encoded = self.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return None
        try:
            user, _, password = b64decode(encoded, validate=True).decode().partition(":")
        except ValueError:
            return None
        return user, password


class RedfishProblem(Exception):
    """A request that is answered with a Redfish error; `message` is a key of PROBLEMS."""

    def __init__(
        self, message: str, *args: str, status: int | None = None, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(message, *args)
        self.message = message
        self.arguments = args
        self.status = status or PROBLEMS[message][0]
        self.headers = headers or {}

    def reply(self) -> LabReply:
        return json_reply(error_body(self.message, *self.arguments), status=self.status, headers=self.headers)


def json_reply(body: Mapping[str, Any], *, status: int = OK, headers: Mapping[str, str] | None = None) -> LabReply:
    return LabReply(status, msgspec.json.encode(body), {"content-type": JSON, **(headers or {})})


def error_body(message: str, *args: str) -> dict[str, Any]:
    """Return the error document of Redfish (DSP0266, error responses)."""
    return {
        "error": {
            "code": "Base.1.18.GeneralError",
            "message": "A general error has occurred. See ExtendedInfo for more information.",
            EXTENDED_INFO: [message_body(message, *args)],
        }
    }


def message_body(message: str, *args: str) -> dict[str, Any]:
    status, text = PROBLEMS[message]
    return {
        "@odata.type": MESSAGE_TYPE,
        "MessageId": message if "." in message else f"Base.1.18.{message}",
        "Message": text.format(*args),
        "MessageArgs": list(args),
        "MessageSeverity": "OK" if status == OK else "Critical",
        "Resolution": "None." if status == OK else "See the message and submit the request again.",
    }


Body = dict[str, Any]

ROOT: Final = "/redfish/v1"

SCHEMAS: Final[Mapping[str, str]] = {
    "AccountService": "v1_15_1",
    "ActionInfo": "v1_4_2",
    "Chassis": "v1_25_2",
    "ComputerSystem": "v1_26_0",
    "Drive": "v1_22_0",
    "EventDestination": "v1_16_0",
    "EventService": "v1_12_0",
    "EthernetInterface": "v1_12_2",
    "Manager": "v1_19_2",
    "ManagerAccount": "v1_12_1",
    "Memory": "v1_23_0",
    "Message": "v1_3_0",
    "PCIeDevice": "v1_21_0",
    "PCIeFunction": "v1_7_0",
    "PowerSubsystem": "v1_1_3",
    "PowerSupply": "v1_6_0",
    "Processor": "v1_22_0",
    "Role": "v1_3_3",
    "SecureBoot": "v1_1_2",
    "ServiceRoot": "v1_17_0",
    "Session": "v1_7_2",
    "SessionService": "v1_1_9",
    "SoftwareInventory": "v1_13_0",
    "Storage": "v1_21_0",
    "Task": "v1_7_4",
    "TaskService": "v1_2_1",
    "UpdateService": "v1_17_0",
    "VirtualMedia": "v1_6_5",
}
COLLECTIONS: Final = (
    "ChassisCollection",
    "ComputerSystemCollection",
    "EthernetInterfaceCollection",
    "EventDestinationCollection",
    "ManagerAccountCollection",
    "ManagerCollection",
    "MemoryCollection",
    "PCIeFunctionCollection",
    "PowerSupplyCollection",
    "ProcessorCollection",
    "RoleCollection",
    "SessionCollection",
    "SoftwareInventoryCollection",
    "StorageCollection",
    "TaskCollection",
    "VirtualMediaCollection",
)

ENABLED: Final = {"State": "Enabled", "Health": "OK"}


def schema(name: str) -> str:
    return f"#{name}.{SCHEMAS[name]}.{name}"


def link(path: str) -> dict[str, str]:
    return {"@odata.id": path}


def system_path(system: str) -> str:
    return f"{ROOT}/Systems/{system}"


def resource(kind: str, path: str, name: str, **more: Any) -> Body:
    return {
        "@odata.type": schema(kind),
        "@odata.id": path,
        "Id": path.rpartition("/")[2],
        "Name": name,
        "Description": name,
        **more,
    }


def collection(kind: str, path: str, name: str, members: Sequence[str]) -> Body:
    return {
        "@odata.type": f"#{kind}Collection.{kind}Collection",
        "@odata.id": path,
        "Name": name,
        "Members": [link(f"{path}/{member}") for member in members],
        "Members@odata.count": len(members),
    }
