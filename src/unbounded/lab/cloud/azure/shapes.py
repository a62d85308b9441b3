"""The names that a request for a virtual machine may hold, level by level; others are refused, as the real one does.

`*` is any name; a level that is None takes anything. A test holds them against the models of the official SDK.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from unbounded.lab.cloud.azure.errors import Problem

Shape = Mapping[str, Any]

VIRTUAL_MACHINE: Final[Shape] = {
    "id": None,
    "name": None,
    "type": None,
    "systemData": None,
    "tags": None,
    "location": None,
    "properties": {
        "hardwareProfile": {"vmSize": None, "vmSizeProperties": None, "processorMode": None},
        "flexProfile": None,
        "scheduledEventsPolicy": None,
        "storageProfile": {
            "imageReference": {
                "id": None,
                "publisher": None,
                "offer": None,
                "sku": None,
                "version": None,
                "exactVersion": None,
                "sharedGalleryImageId": None,
                "communityGalleryImageId": None,
            },
            "osDisk": {
                "osType": None,
                "encryptionSettings": None,
                "name": None,
                "vhd": None,
                "image": None,
                "caching": None,
                "writeAcceleratorEnabled": None,
                "diffDiskSettings": {"option": None, "placement": None, "enableFullCaching": None},
                "createOption": None,
                "diskSizeGB": None,
                "storageFaultDomainAlignment": None,
                "managedDisk": {
                    "id": None,
                    "storageAccountType": None,
                    "diskEncryptionSet": None,
                    "securityProfile": None,
                    "additionalDiskProperties": None,
                },
                "deleteOption": None,
            },
            "dataDisks": {
                "lun": None,
                "name": None,
                "vhd": None,
                "image": None,
                "caching": None,
                "writeAcceleratorEnabled": None,
                "createOption": None,
                "diskSizeGB": None,
                "storageFaultDomainAlignment": None,
                "managedDisk": {
                    "id": None,
                    "storageAccountType": None,
                    "diskEncryptionSet": None,
                    "securityProfile": None,
                    "additionalDiskProperties": None,
                },
                "sourceResource": None,
                "toBeDetached": None,
                "diskIOPSReadWrite": None,
                "diskMBpsReadWrite": None,
                "detachOption": None,
                "deleteOption": None,
            },
            "diskControllerType": None,
            "alignRegionalDisksToVMZone": None,
            "diskApiVersion": None,
        },
        "additionalCapabilities": None,
        "osProfile": {
            "computerName": None,
            "adminUsername": None,
            "adminPassword": None,
            "customData": None,
            "windowsConfiguration": {
                "provisionVMAgent": None,
                "enableAutomaticUpdates": None,
                "timeZone": None,
                "additionalUnattendContent": None,
                "patchSettings": None,
                "winRM": None,
                "enableVMAgentPlatformUpdates": None,
            },
            "linuxConfiguration": {
                "disablePasswordAuthentication": None,
                "ssh": {"publicKeys": {"path": None, "keyData": None}},
                "provisionVMAgent": None,
                "patchSettings": None,
                "enableVMAgentPlatformUpdates": None,
            },
            "secrets": None,
            "allowExtensionOperations": None,
            "requireGuestProvisionSignal": None,
        },
        "networkProfile": {
            "networkInterfaces": {"id": None, "properties": {"primary": None, "deleteOption": None}},
            "networkApiVersion": None,
            "networkInterfaceConfigurations": None,
            "interconnectGroupProfile": None,
        },
        "securityProfile": {
            "uefiSettings": {"secureBootEnabled": None, "vTpmEnabled": None},
            "encryptionAtHost": None,
            "securityType": None,
            "encryptionIdentity": None,
            "proxyAgentSettings": None,
        },
        "diagnosticsProfile": {"bootDiagnostics": {"enabled": None, "storageUri": None}},
        "availabilitySet": {"id": None},
        "virtualMachineScaleSet": None,
        "proximityPlacementGroup": None,
        "priority": None,
        "evictionPolicy": None,
        "billingProfile": None,
        "host": None,
        "hostGroup": None,
        "provisioningState": None,
        "instanceView": None,
        "licenseType": None,
        "vmId": None,
        "extensionsTimeBudget": None,
        "platformFaultDomain": None,
        "scheduledEventsProfile": None,
        "userData": None,
        "capacityReservation": None,
        "interconnectBlockProfile": None,
        "applicationProfile": None,
        "timeCreated": None,
        "resiliencyProfile": None,
    },
    "plan": {"name": None, "publisher": None, "product": None, "promotionCode": None},
    "resources": None,
    "identity": {
        "principalId": None,
        "tenantId": None,
        "type": None,
        "userAssignedIdentities": {"*": {"principalId": None, "clientId": None}},
    },
    "zones": None,
    "extendedLocation": None,
    "managedBy": None,
    "etag": None,
    "placement": None,
}


def check(body: Any, shape: Shape | None = VIRTUAL_MACHINE, path: str = "") -> None:
    """Hold a request against what may stand in it.

    Raises:
        Problem: a name that is not known; says where.
    """
    if shape is None or body is None:
        return
    for each in body if isinstance(body, list) else [body]:
        if not isinstance(each, dict):
            raise Problem("InvalidRequestContent", detail=f"Error converting value at path '{path}'", target=path)
        for name, value in each.items():
            if name not in shape and "*" not in shape:
                detail = f"Could not find member '{name}' on object of type 'ResourceDefinition'. Path '{path}{name}'"
                raise Problem("InvalidRequestContent", detail=detail)
            check(value, shape.get(name, shape.get("*")), f"{path}{name}.")
