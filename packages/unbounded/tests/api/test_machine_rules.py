"""Machines that the API refuses and accepts."""

import pytest

from tests.api.checking import SCHEMAS, Object, assert_refused, made, refusals
from unbounded.api.machine import MAX_MACHINE_NAME
from unbounded.api.network import MAX_BONDS, MAX_BRIDGES, MAX_ETHERNETS, MAX_VLANS

SSH = """
ssh: {host: 10.0.0.5, privateKeyRef: {name: k, namespace: unbounded-kube}}
"""
BASTION = """
ssh:
  host: 10.0.0.5
  privateKeyRef: {name: k, namespace: unbounded-kube}
  bastion: {host: b, privateKeyRef: {name: k, namespace: unbounded-kube}}
"""
PXE = """
pxe:
  image: i
  dhcpLeases:
  - {ipv4: 10.0.0.60, mac: "aa:bb:cc:dd:ee:ff", subnetMask: 255.255.255.0, gateway: 10.0.0.1, dns: [8.8.8.8]}
  redfish: {url: "https://bmc", username: admin, passwordRef: {name: p, namespace: other}}
"""

NETWORK = """
pxe: {image: i}
network:
  ethernets:
  - {name: one, mac: "52:54:00:00:00:0a"}
  - {name: two, mac: "52:54:00:00:00:0b"}
  - name: three
    mac: "52:54:00:00:00:0c"
    addresses: [192.0.2.10/24, "2001:db8::10/64"]
    routes: [{to: default, via: 192.0.2.1}, {to: "2001:db8:1::/48", via: "fe80::1"}]
    nameservers: {addresses: [192.0.2.53], search: [example.com]}
  bonds:
  - {name: bond0, interfaces: [one, two], parameters: {mode: 802.3ad}, dhcp4: true}
  vlans:
  - {name: vlan10, id: 10, link: bond0}
  bridges:
  - {name: br0, interfaces: [vlan10]}
"""
NIC = "network__ethernets__2"


@pytest.mark.parametrize(
    ("spec", "changes", "field", "words"),
    [
        (PXE, {"network": {"ethernets": []}}, "spec.network.ethernets", "at least 1 item"),
        (NETWORK, {f"{NIC}__mac": "52:54:00:00:00"}, "spec.network.ethernets[2].mac", "should match"),
        (NETWORK, {f"{NIC}__mac": "52:54:00:00:00:0B"}, "spec.network.ethernets", "of one of the ethernets only"),
        (NETWORK, {f"{NIC}__name": "two"}, "spec.network.ethernets[2]", "Duplicate value"),
        (NETWORK, {f"{NIC}__name": "br0"}, "spec.network.ethernets", "must differ from those of bonds and vlans"),
        (NETWORK, {f"{NIC}__name": "three/../../x"}, "spec.network.ethernets[2].name", "should match"),
        (NETWORK, {f"{NIC}__name": "a" * 16}, "spec.network.ethernets[2].name", "15"),
        (NETWORK, {f"{NIC}__addresses": ["192.0.2.10"]}, "spec.network.ethernets[2].addresses", "have a prefix"),
        (NETWORK, {f"{NIC}__addresses": ["192.0.2.10/33"]}, "spec.network.ethernets[2].addresses", "have a prefix"),
        (NETWORK, {f"{NIC}__routes__0__to": "defaults"}, "spec.network.ethernets[2].routes[0].to", "must be default"),
        (NETWORK, {f"{NIC}__routes__0__via": "gateway"}, "spec.network.ethernets[2].routes[0].via", "IPv4 or IPv6"),
        (
            NETWORK,
            {f"{NIC}__nameservers__addresses": ["dns"]},
            "spec.network.ethernets[2].nameservers.addresses",
            "IPv4 or IPv6",
        ),
        (NETWORK, {f"{NIC}__mtu": 67}, "spec.network.ethernets[2].mtu", "68"),
        (NETWORK, {"network__bonds__0__interfaces": ["one", "br0"]}, "spec.network.bonds", "names of ethernets"),
        (NETWORK, {"network__bonds__0__interfaces": []}, "spec.network.bonds[0].interfaces", "at least 1 item"),
        (
            NETWORK,
            {"network__bonds__0__name": "vlan10", "network__vlans__0__link": "three"},
            "spec.network.bonds",
            "must differ from those of vlans",
        ),
        (NETWORK, {"network__bonds__0__parameters__mode": "lacp"}, "spec.network.bonds[0].parameters.mode", "802.3ad"),
        (NETWORK, {"network__vlans__0__link": "vlan10"}, "spec.network.vlans", "ethernets or bonds or bridges"),
        (NETWORK, {"network__vlans__0__id": 4095}, "spec.network.vlans[0].id", "4094"),
        (
            NETWORK,
            {"network__vlans__0__name": "br0", "network__bridges__0__interfaces": ["three"]},
            "spec.network.vlans",
            "must differ from those of bridges",
        ),
        (NETWORK, {"network__bridges__0__interfaces": ["x"]}, "spec.network.bridges", "ethernets or bonds or vlans"),
        (
            NETWORK,
            {"pxe__cloudInit": {"networkConfigConfigMapRef": {"name": "n", "namespace": "default"}}},
            "spec.network",
            "exclude each other",
        ),
        (SSH, {"ssh__privateKeyRef__namespace": "default"}, "spec.ssh.privateKeyRef.namespace", "unbounded-kube"),
        (
            BASTION,
            {"ssh__bastion__privateKeyRef__namespace": "default"},
            "spec.ssh.bastion.privateKeyRef.namespace",
            "unbounded-kube",
        ),
        (SSH, {"ssh__host": "user@host"}, "spec.ssh.host", "should match"),
        (SSH, {"ssh__hostKeys": ["not a key"]}, "spec.ssh.hostKeys[0]", "should match"),
        (PXE, {"pxe__dhcpLeases__0__mac": "aa:bb:cc:dd:ee"}, "spec.pxe.dhcpLeases[0].mac", "should match"),
        (PXE, {"pxe__dhcpLeases__0__mac": "gg:bb:cc:dd:ee:ff"}, "spec.pxe.dhcpLeases[0].mac", "should match"),
        (PXE, {"pxe__dhcpLeases__0__ipv4": "10.0.0.256"}, "spec.pxe.dhcpLeases[0].ipv4", "should match"),
        (PXE, {"pxe__dhcpLeases__0__gateway": "fe80::1"}, "spec.pxe.dhcpLeases[0].gateway", "should match"),
        (PXE, {"pxe__dhcpLeases__0__dns": ["dns.example"]}, "spec.pxe.dhcpLeases[0].dns[0]", "should match"),
        (
            PXE,
            {"pxe__dhcpLeases__0__subnetMask": "255.0.255.0"},
            "spec.pxe.dhcpLeases[0].subnetMask",
            "such as 255.255.255.0",
        ),
        (PXE, {"pxe__redfish__url": "ftp://bmc"}, "spec.pxe.redfish.url", "should match"),
        (PXE, {"pxe__redfish__url": "https://admin:secret@bmc"}, "spec.pxe.redfish.url", "should match"),
        (PXE, {"pxe__redfish__passwordRef__name": "Not_A_Name"}, "spec.pxe.redfish.passwordRef.name", "should match"),
        (PXE, {"pxe__architecture": "riscv64"}, "spec.pxe.architecture", '"amd64", "arm64"'),
        *(
            (
                PXE,
                {"pxe__targetDisk": wrong},
                "spec.pxe.targetDisk",
                "a whole disk below /dev, such as /dev/disk/by-id/",
            )
            for wrong in (
                "sda",
                "/etc/passwd",
                "/dev",
                "/dev/",
                "/dev/../etc/passwd",
                "/dev/disk/by-id/ata-DISK_A1-part1",
                "/dev/sda unbounded.image=other",
                "/dev/sda'",
                "/dev/sda\n",
            )
        ),
        (PXE, {"pxe__targetDisk": "/dev/" + "a" * 300}, "spec.pxe.targetDisk", "253"),
        (
            PXE,
            {"pxe__targetDisk": "/dev/sda", "pxe__rootDeviceHints": {"model": "INTEL"}},
            "spec.pxe.rootDeviceHints",
            "targetDisk and rootDeviceHints exclude each other",
        ),
        *(
            (PXE, {"pxe__profileRef": {"name": "p"}, **disk}, "spec.pxe.profileRef", "profileRef excludes targetDisk")
            for disk in ({"pxe__targetDisk": "/dev/sda"}, {"pxe__rootDeviceHints": {"model": "INTEL"}})
        ),
        (PXE, {"pxe__bootMode": "CD"}, "spec.pxe.bootMode", '"Network", "VirtualMedia", "UEFIHTTP"'),
        *(
            (PXE, {"pxe__bootMode": mode, "pxe__redfish": None}, "spec.pxe.bootMode", "needs a BMC: set redfish")
            for mode in ("VirtualMedia", "UEFIHTTP")
        ),
        (PXE, {"pxe__bootMode": "VirtualMedia", "pxe__dhcpLeases": []}, "spec.pxe.bootMode", "set pxe.dhcpLeases, or"),
        (PXE, {"pxe__profileRef": {}}, "spec.pxe.profileRef.name", "Required"),
        (PXE, {"pxe__rootDeviceHints": {}}, "spec.pxe.rootDeviceHints", "at least one hint"),
        (PXE, {"pxe__rootDeviceHints": {"modell": "INTEL"}}, "spec.pxe.rootDeviceHints", "at least one hint"),
        (PXE, {"pxe__rootDeviceHints": {"model": ""}}, "spec.pxe.rootDeviceHints.model", "at least 1 char"),
        (PXE, {"pxe__rootDeviceHints": {"hctl": "0:0:0"}}, "spec.pxe.rootDeviceHints.hctl", "should match"),
        (PXE, {"pxe__rootDeviceHints": {"deviceName": "sda"}}, "spec.pxe.rootDeviceHints.deviceName", "should match"),
        (
            PXE,
            {"pxe__rootDeviceHints": {"deviceName": "/dev/../sda"}},
            "spec.pxe.rootDeviceHints.deviceName",
            "should match",
        ),
        (PXE, {"pxe__rootDeviceHints": {"minSizeGigabytes": 0}}, "spec.pxe.rootDeviceHints.minSizeGigabytes", "1"),
        (PXE, {"pxe__image": ""}, "spec.pxe.image", "at least 1 char"),
        ("{}", {"maintenance": {"reason": "new memory"}}, "spec.maintenance.enabled", "true begins the maintenance"),
        ("{}", {"provider": ""}, "spec.provider", "at least 1 char"),
        ("{}", {"provider": "az/AzureVM"}, "spec.provider", "should match"),
        ("{}", {"provider": "AzureVM\n"}, "spec.provider", "should match"),
        ("{}", {"provider": "Azure\x1b[1mVM"}, "spec.provider", "should match"),
        ("{}", {"provider": "a" * 64}, "spec.provider", "63"),
        ("{}", {"operations__rebootCounter": -1}, "spec.operations.rebootCounter", "greater than or equal to 0"),
        ("{}", {"configurationRef__name": "c", "configurationRef__version": 0}, "spec.configurationRef.version", "1"),
        ("{}", {"kubernetes__version": "latest"}, "spec.kubernetes.version", "should match"),
        (
            "{}",
            {"agent__downloads__runc__version": "1.1?a=b#x"},
            "spec.agent.downloads.runc.version",
            "should match",
        ),
        (
            "{}",
            {"kubernetes__registerWithTaints": ["a=b"]},
            "spec.kubernetes.registerWithTaints[0]",
            "should match",
        ),
        ("{}", {"kubernetes__nodeLabels": {"a": "not valid"}}, "spec.kubernetes.nodeLabels.a", "should match"),
    ],
)
def test_a_machine_is_refused(spec: str, changes: Object, field: str, words: str) -> None:
    assert refusals("Machine", made("Machine", spec)) == []
    assert_refused("Machine", made("Machine", spec, **changes), None, field, words)


@pytest.mark.parametrize(
    ("spec", "changes"),
    [
        (PXE, {"pxe__redfish__passwordRef__namespace": "any-other"}),
        (PXE, {"pxe__redfish__url": "http://10.0.0.9:8000/redfish/v1"}),
        (PXE, {"pxe__bootMode": "VirtualMedia", "pxe__architecture": "arm64"}),
        (PXE, {"pxe__dhcpLeases__0__mac": "AA:bb:CC:dd:EE:ff"}),
        (PXE, {"pxe__dhcpLeases__0__subnetMask": "255.255.255.255"}),
        (PXE, {"pxe__dhcpLeases__0__subnetMask": "255.255.252.0"}),
        (PXE, {"pxe__dhcpLeases__0__subnetMask": "254.0.0.0"}),
        (SSH, {"ssh__host": "[2001:db8::1]:2222"}),
        (SSH, {"ssh__hostKeys": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHVubm91bmRlZA== comment"]}),
        (BASTION, {"ssh__bastion__privateKeyRef": None}),
        ("{}", {"provider": "example.com_own-1", "providerID": "own://1"}),
        ("{}", {"providerID": "own://1"}),  # an annotation may name the provider
        ("{}", {"provider": "AzureVM"}),
        ("{}", {"kubernetes__version": "1.34.0"}),
        ("{}", {"agent__downloads__runc__version": "v1.5.0-rc.1"}),
        ("{}", {"kubernetes__version": "v1.34.0-rc.1+k3s1"}),
        ("{}", {"kubernetes__registerWithTaints": ["gpu=yes:NoSchedule", "spot:NoExecute"]}),
    ],
)
def test_a_machine_is_accepted(spec: str, changes: Object) -> None:
    assert refusals("Machine", made("Machine", spec, **changes)) == []


def test_the_name_of_a_machine_fits_its_node() -> None:
    assert refusals("Machine", made("Machine", "{}", name="w" * MAX_MACHINE_NAME)) == []
    (refusal,) = refusals("Machine", made("Machine", "{}", name="w" * (MAX_MACHINE_NAME + 1)))
    assert "at most 63 characters" in refusal


@pytest.mark.parametrize("new", ["{provider: OCIInstance}", "{}", '{kubernetes: {version: "1.34"}}'])
def test_a_provider_stays_what_it_is(new: str) -> None:
    old = made("Machine", "{provider: AzureVM}")
    assert_refused("Machine", made("Machine", new), old, "spec.provider", "cannot be changed or removed")


def test_a_provider_is_not_removed_with_the_whole_spec() -> None:
    without: Object = {"metadata": {"name": "w"}}
    SCHEMAS["Machine"].default(without)
    old = made("Machine", "{provider: AzureVM}")
    assert_refused("Machine", without, old, "spec.provider", "cannot be changed or removed")


def test_a_provider_can_be_set_later_and_its_id_can_change() -> None:
    bare, azure = made("Machine", "{}"), made("Machine", "{provider: AzureVM, providerID: 'azure:///1'}")
    assert refusals("Machine", azure, bare) == []
    assert refusals("Machine", made("Machine", "{provider: AzureVM, providerID: 'azure:///2'}"), azure) == []


@pytest.mark.parametrize(
    "disk",
    [
        "/dev/sda",
        "/dev/nvme0n1",
        "/dev/disk/by-id/ata-DISK_A1",
        "/dev/disk/by-id/nvme-eui.0025385b71b0c1d2",
        "/dev/disk/by-path/pci-0000:00:1f.2-ata-1.0",
        "/dev/disk/by-id/scsi-3600508b1001c5e0b",
    ],
)
def test_a_disk_may_be_named_as_udev_and_the_kernel_do(disk: str) -> None:
    assert refusals("Machine", made("Machine", PXE, pxe__targetDisk=disk)) == []


@pytest.mark.parametrize(
    "hints",
    [
        {"rotational": False},
        {"deviceName": "/dev/disk/by-path/pci-0000:00:1f.2-ata-1.0"},
        {"hctl": "0:2:15:0", "minSizeGigabytes": 400, "serialNumber": "S1"},
        {"model": "SAMSUNG MZ7LH480", "vendor": "ATA", "wwn": "eui.0025385b71b0c1d2"},
    ],
)
def test_a_disk_may_be_described_by_root_device_hints(hints: Object) -> None:
    assert refusals("Machine", made("Machine", PXE, pxe__rootDeviceHints=hints)) == []


def test_the_largest_network_is_within_the_costs_of_rules() -> None:
    def names(kind: str, count: int) -> list[str]:
        return [f"{kind}{'n' * 10}{number:02}"[:15] for number in range(count)]

    cards, vlans = names("eth", MAX_ETHERNETS), names("vla", MAX_VLANS)
    addresses = [f"2001:db8:aaaa:bbbb:cccc:dddd:eeee:{number:04}/64" for number in range(16)]
    routes = [{"to": address, "via": address.removesuffix("/64"), "onLink": True} for address in addresses * 2]
    bond = {"interfaces": cards, "parameters": {"mode": "802.3ad"}, "addresses": addresses}
    network: Object = {
        "ethernets": [
            {"name": name, "mac": f"52:54:00:00:00:{at:02X}", "addresses": addresses, "routes": routes}
            for at, name in enumerate(cards)
        ],
        "bonds": [{"name": name, **bond} for name in names("bon", MAX_BONDS)],
        "vlans": [{"name": name, "id": 7, "link": names("bri", MAX_BRIDGES)[-1]} for name in vlans],
        "bridges": [{"name": name, "interfaces": vlans[-MAX_ETHERNETS:]} for name in names("bri", MAX_BRIDGES)],
    }
    assert refusals("Machine", made("Machine", "{}", network=network)) == []
