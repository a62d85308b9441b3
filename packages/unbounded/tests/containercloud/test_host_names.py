"""Names and addresses of hosts."""

from __future__ import annotations

import re

import pytest

from unbounded.api.container_cloud.names import scoped_name
from unbounded.api.fields import LABEL_VALUE
from unbounded.containercloud.hosts.model import parse_bmc_address


@pytest.mark.parametrize(
    ("text", "url", "system", "mode"),
    [
        ("redfish://192.0.2.1/redfish/v1/Systems/1", "https://192.0.2.1", "1", "Network"),
        ("redfish+http://192.0.2.1:8000/redfish/v1/Systems/1/", "http://192.0.2.1:8000", "1", "Network"),
        ("redfish+https://bmc.example/redfish/v1/Systems/a", "https://bmc.example", "a", "Network"),
        ("redfish://[2001:db8::1]:8443/redfish/v1/Systems/1", "https://[2001:db8::1]:8443", "1", "Network"),
        ("redfish://192.0.2.1/base/redfish/v1/Systems/1", "https://192.0.2.1/base", "1", "Network"),
        ("IDRAC-redfish://b/redfish/v1/Systems/System.Embedded.1", "https://b", "System.Embedded.1", "Network"),
        ("ilo5-redfish://b/redfish/v1/Systems/1", "https://b", "1", "Network"),
        ("redfish-virtualmedia+http://b/redfish/v1/Systems/1", "http://b", "1", "VirtualMedia"),
        ("redfish-uefihttp://b/redfish/v1/Systems/1", "https://b", "1", "UEFIHTTP"),
    ],
)
def test_addresses_of_metal3(text: str, url: str, system: str, mode: str) -> None:
    found = parse_bmc_address(text)
    assert (found.url, found.device_id, found.boot_mode) == (url, system, mode)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ipmi://192.0.2.1",
        "192.0.2.1",
        "libvirt://192.0.2.1/redfish/v1/Systems/1",
        "redfish+ftp://b/redfish/v1/Systems/1",
        "redfish://u:p@b/redfish/v1/Systems/1",
        "redfish://b:x/redfish/v1/Systems/1",
        "redfish://b/redfish/v1/Systems/1?x=1",
        "redfish://b/redfish/v1/Systems/",
        "redfish://b/redfish/v1/Systems/1/Bios",
        "redfish:///redfish/v1/Systems/1",
    ],
)
def test_other_addresses_are_refused_by_the_field(text: str) -> None:
    with pytest.raises(ValueError, match=r"^bmc\.address: "):
        parse_bmc_address(text)


@pytest.mark.parametrize(
    ("namespace", "name", "expected"),
    [
        ("default", "master-0", "master-0.default"),
        ("n" * 31, "h" * 31, f"{'h' * 31}.{'n' * 31}"),
        ("default", "h" * 60, f"{'h' * 54}-"),
    ],
)
def test_the_machine_is_named_after_host_and_namespace(namespace: str, name: str, expected: str) -> None:
    made = scoped_name(namespace, name)
    assert made.startswith(expected)
    assert len(made) <= 63
    assert re.fullmatch(LABEL_VALUE, made)


def test_long_names_with_one_beginning_stay_different() -> None:
    made = {scoped_name(namespace, "h" * 70 + end) for namespace in ("a", "b") for end in ("", "1", "2")}
    assert len(made) == 6
