"""Redaction: identities are replaced consistently, and the shape of documents stays."""

from __future__ import annotations

import json

import pytest

from unbounded.metalman.bmc_certification.redaction import Redactor

UUID = "4c4c4544-0033-3510-8052-b4c04f4e3332"
SYSTEM = {
    "@odata.id": f"/redfish/v1/Systems/{UUID}",
    "@odata.type": "#ComputerSystem.v1_22_2.ComputerSystem",
    "Name": "System",
    "SerialNumber": "CN7475167L00AB",
    "SKU": "3N5R2N2",
    "UUID": UUID.upper(),
    "HostName": "web-01",
    "BiosVersion": "2.10.0.2",
    "Description": "3N5R2N2 in rack 4",
    "Oem": {"Vendor": {"Chassis": "3N5R2N2"}},
    "Location": {"PostalAddress": {"City": "Nowhere"}},
    "Links": {"Chassis": [{"@odata.id": "/redfish/v1/Chassis/CN7475167L00AB"}]},
}
NIC = {
    "MACAddress": "b4:45:06:ec:3e:41",
    "PermanentMACAddress": "B4-45-06-EC-3E-41",
    "Id": "NIC-b44506ec3e41",
    "IPv4Addresses": [{"Address": "10.20.30.40", "SubnetMask": "255.255.255.0", "Gateway": "10.20.30.1"}],
    "IPv6Addresses": [{"Address": "fd00:1234::40"}],
    "Status": {"State": "Enabled"},
}
DRIVE = {"Identifiers": [{"DurableName": "500A075125E8B0F3", "DurableNameFormat": "NAA"}], "CapacityBytes": 480}


def redacted(*documents: object, **known: list[str]) -> list[object]:
    redactor = Redactor(**known)
    for document in documents:
        redactor.learn(document)
    return [redactor.replace(document) for document in documents]


def test_no_identity_remains() -> None:
    text = json.dumps(redacted(SYSTEM, NIC, DRIVE)).lower()
    secrets = (
        "cn7475167",
        "3n5r2n2",
        UUID,
        "web-01",
        "b4:45",
        "b4-45",
        "b44506",
        "10.20.30",
        "fd00",
        "500a07",
        "nowhere",
    )
    assert [secret for secret in secrets if secret in text] == []


def test_the_same_value_has_the_same_replacement_in_each_form() -> None:
    system, nic, _ = redacted(SYSTEM, NIC, DRIVE)
    assert isinstance(system, dict)
    assert isinstance(nic, dict)
    assert system["@odata.id"] == f"/redfish/v1/Systems/{system['UUID']}"
    assert system["Links"]["Chassis"][0]["@odata.id"].endswith(f"/{system['SerialNumber']}")
    assert system["Description"] == f"{system['SKU']} in rack 4"
    plain = nic["MACAddress"].replace(":", "")
    assert (nic["PermanentMACAddress"].replace("-", ""), nic["Id"]) == (plain, f"NIC-{plain}")


def test_other_values_stay() -> None:
    system, nic, drive = redacted(SYSTEM, NIC, DRIVE)
    assert isinstance(system, dict)
    assert isinstance(nic, dict)
    assert isinstance(drive, dict)
    assert {name for name in SYSTEM if name not in system} == {"Oem", "Location"}
    assert (system["@odata.type"], system["BiosVersion"]) == (SYSTEM["@odata.type"], "2.10.0.2")
    assert nic["IPv4Addresses"][0]["SubnetMask"] == "255.255.255.0"
    assert len(drive["Identifiers"][0]["DurableName"]) == 16
    assert drive["CapacityBytes"] == 480


@pytest.mark.parametrize("name", ["Chassis", "system", "BMC"])
def test_a_name_that_is_a_word_of_redfish_changes_no_path(name: str) -> None:
    (document,) = redacted({"HostName": name, "@odata.id": "/redfish/v1/Chassis/BMC/system"})
    assert document == {"HostName": "host-1", "@odata.id": "/redfish/v1/Chassis/BMC/system"}


def test_secrets_are_hidden_where_they_are_whole_words() -> None:
    document = {"Message": "admin failed", "RoleId": "Administrator", "Password": "x", "PasswordChangeRequired": False}
    (found,) = redacted(document, secrets=["admin"])
    assert found == {
        "Message": "*** failed",
        "RoleId": "Administrator",
        "Password": "***",
        "PasswordChangeRequired": False,
    }


def test_values_of_the_caller_are_known() -> None:
    document = {"UserName": "admin", "Message": "https://bmc7.example.net says no to root-7"}
    (found,) = redacted(document, hosts=["bmc7.example.net"], users=["root-7", "admin"])
    assert found == {"UserName": "user-2", "Message": "https://host-1 says no to user-1"}
