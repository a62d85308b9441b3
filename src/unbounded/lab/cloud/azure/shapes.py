"""What a request for a virtual machine or an extension may hold: names and types, level by level. All else is refused,
as the real one does. A test holds this against the models of the official SDK.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from unbounded.lab.cloud.azure.errors import Problem

Shape = type | list[Any] | Mapping[str, Any]
"""A type of JSON; `[shape]` is a list of such; a mapping is an object with these names, or with any if it has `*`."""

VIRTUAL_MACHINE: Final[Mapping[str, Shape]] = {
    "id": str,
    "name": str,
    "type": str,
    "systemData": dict,
    "tags": {"*": str},
    "location": str,
    "properties": {
        "hardwareProfile": {"vmSize": str, "vmSizeProperties": dict, "processorMode": str},
        "flexProfile": dict,
        "scheduledEventsPolicy": dict,
        "storageProfile": {
            "imageReference": {
                "id": str,
                "publisher": str,
                "offer": str,
                "sku": str,
                "version": str,
                "exactVersion": str,
                "sharedGalleryImageId": str,
                "communityGalleryImageId": str,
            },
            "osDisk": {
                "osType": str,
                "encryptionSettings": dict,
                "name": str,
                "vhd": dict,
                "image": dict,
                "caching": str,
                "writeAcceleratorEnabled": bool,
                "diffDiskSettings": {"option": str, "placement": str, "enableFullCaching": bool},
                "createOption": str,
                "diskSizeGB": int,
                "storageFaultDomainAlignment": str,
                "managedDisk": {
                    "id": str,
                    "storageAccountType": str,
                    "diskEncryptionSet": dict,
                    "securityProfile": dict,
                    "additionalDiskProperties": dict,
                },
                "deleteOption": str,
            },
            "dataDisks": [
                {
                    "lun": int,
                    "name": str,
                    "vhd": dict,
                    "image": dict,
                    "caching": str,
                    "writeAcceleratorEnabled": bool,
                    "createOption": str,
                    "diskSizeGB": int,
                    "storageFaultDomainAlignment": str,
                    "managedDisk": {
                        "id": str,
                        "storageAccountType": str,
                        "diskEncryptionSet": dict,
                        "securityProfile": dict,
                        "additionalDiskProperties": dict,
                    },
                    "sourceResource": dict,
                    "toBeDetached": bool,
                    "diskIOPSReadWrite": int,
                    "diskMBpsReadWrite": int,
                    "detachOption": str,
                    "deleteOption": str,
                }
            ],
            "diskControllerType": str,
            "alignRegionalDisksToVMZone": bool,
            "diskApiVersion": str,
        },
        "additionalCapabilities": dict,
        "osProfile": {
            "computerName": str,
            "adminUsername": str,
            "adminPassword": str,
            "customData": str,
            "windowsConfiguration": {
                "provisionVMAgent": bool,
                "enableAutomaticUpdates": bool,
                "timeZone": str,
                "additionalUnattendContent": [dict],
                "patchSettings": dict,
                "winRM": dict,
                "enableVMAgentPlatformUpdates": bool,
            },
            "linuxConfiguration": {
                "disablePasswordAuthentication": bool,
                "ssh": {
                    "publicKeys": [{"path": str, "keyData": str}],
                },
                "provisionVMAgent": bool,
                "patchSettings": dict,
                "enableVMAgentPlatformUpdates": bool,
            },
            "secrets": [dict],
            "allowExtensionOperations": bool,
            "requireGuestProvisionSignal": bool,
        },
        "networkProfile": {
            "networkInterfaces": [{"id": str, "properties": {"primary": bool, "deleteOption": str}}],
            "networkApiVersion": str,
            "networkInterfaceConfigurations": [dict],
            "interconnectGroupProfile": dict,
        },
        "securityProfile": {
            "uefiSettings": {"secureBootEnabled": bool, "vTpmEnabled": bool},
            "encryptionAtHost": bool,
            "securityType": str,
            "encryptionIdentity": dict,
            "proxyAgentSettings": dict,
        },
        "diagnosticsProfile": {"bootDiagnostics": {"enabled": bool, "storageUri": str}},
        "availabilitySet": {"id": str},
        "virtualMachineScaleSet": dict,
        "proximityPlacementGroup": dict,
        "priority": str,
        "evictionPolicy": str,
        "billingProfile": dict,
        "host": dict,
        "hostGroup": dict,
        "provisioningState": str,
        "instanceView": dict,
        "licenseType": str,
        "vmId": str,
        "extensionsTimeBudget": str,
        "platformFaultDomain": int,
        "scheduledEventsProfile": dict,
        "userData": str,
        "capacityReservation": dict,
        "interconnectBlockProfile": dict,
        "applicationProfile": dict,
        "timeCreated": str,
        "resiliencyProfile": dict,
    },
    "plan": {"name": str, "publisher": str, "product": str, "promotionCode": str},
    "resources": [dict],
    "identity": {
        "principalId": str,
        "tenantId": str,
        "type": str,
        "userAssignedIdentities": {"*": {"principalId": str, "clientId": str}},
    },
    "zones": [str],
    "extendedLocation": dict,
    "managedBy": str,
    "etag": str,
    "placement": dict,
}
EXTENSION: Final[Mapping[str, Shape]] = {
    "id": str,
    "name": str,
    "type": str,
    "systemData": dict,
    "tags": {"*": str},
    "location": str,
    "properties": {
        "forceUpdateTag": str,
        "publisher": str,
        "type": str,
        "typeHandlerVersion": str,
        "autoUpgradeMinorVersion": bool,
        "enableAutomaticUpgrade": bool,
        "settings": object,
        "protectedSettings": object,
        "provisioningState": str,
        "instanceView": dict,
        "suppressFailures": bool,
        "protectedSettingsFromKeyVault": dict,
        "provisionAfterExtensions": [str],
    },
}


def checked(value: Any, shape: Shape, path: str = "") -> Any:
    """A part of a request without what is null in it.

    Raises:
        Problem: a name that is not known, or a value of another type; says where.
    """
    if isinstance(shape, list):
        return [checked(each, shape[0], f"{path}[{index}]") for index, each in enumerate(_a(list, value, path))]
    if isinstance(shape, Mapping):
        members = {name: each for name, each in _a(dict, value, path).items() if each is not None}
        return {name: checked(each, _member(shape, name, path), f"{path}.{name}") for name, each in members.items()}
    return _a(shape, value, path)


def _member(shape: Mapping[str, Any], name: str, path: str) -> Shape:
    found: Shape | None = shape.get(name, shape.get("*"))
    if found is None:
        detail = f"Could not find member '{name}' on object of type 'ResourceDefinition'. Path '{path}.{name}'"
        raise Problem("InvalidRequestContent", detail=detail)
    return found


def _a(wanted: type, value: Any, path: str) -> Any:
    fits = isinstance(value, int | float if wanted is float else wanted)
    if not fits or (isinstance(value, bool) and wanted in (int, float)):
        detail = f"Error converting value {value!r} to type '{wanted.__name__}'. Path '{path}'"
        raise Problem("InvalidRequestContent", detail=detail)
    return value
