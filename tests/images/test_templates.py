"""The templates of host-debian12, rendered as metalman renders them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import msgspec
import pytest
import yaml

from tests.images.support import TOP
from unbounded.agent.paths import DAEMON_UNIT, HostPaths
from unbounded.api.machine import Machine
from unbounded.gotemplate import Template
from unbounded.metalman.netboot.template_context import TemplateContext, template_data

NETBOOT = TOP / "images" / "host-debian12" / "netboot"
SERVE_URL = "http://10.0.0.1:8880/boot/k3jq2v7x5m4n6p8r9s1t3u5w7y"
CONFIG = {"MachineName": "rack1-01", "Cluster": {"CaCertBase64": "QUJD"}, "Attest": {"URL": SERVE_URL}}
AROUND = TemplateContext(
    apiserver_url="https://10.0.0.1:6443",
    serve_url=SERVE_URL,
    kubernetes_version="v1.34.0",
    cluster_dns="10.96.0.10",
    agent_config_json=json.dumps(CONFIG, indent=2).replace("\n", "\n    "),
)
PXE = {
    "image": "registry.example.com/host:v1",
    "targetDisk": "/dev/disk/by-id/ata-DISK_A1",
    "dhcpLeases": [
        {"mac": "aa:bb:cc:00:00:01", "ipv4": "10.0.0.5", "subnetMask": "255.255.255.0", "gateway": "10.0.0.1",
         "dns": ["10.0.0.2", "10.0.0.3"]},
        {"mac": "AA:BB:CC:00:00:02", "ipv4": "10.0.1.5", "subnetMask": "255.255.255.0", "gateway": "10.0.1.1"},
    ],
}  # fmt: skip
EXPECTED = [
    f"unbounded.serve_url={SERVE_URL}",
    "unbounded.machine=rack1-01",
    "unbounded.machine_uid=0b5e5a10-1111-4222-8333-944495559666",
    "unbounded.lease=aa:bb:cc:00:00:01,10.0.0.5,255.255.255.0,10.0.0.1",
    "unbounded.dns=10.0.0.2",
    "unbounded.dns=10.0.0.3",
    "unbounded.lease=AA:BB:CC:00:00:02,10.0.1.5,255.255.255.0,10.0.1.1",
]


def rendered(name: str, *, recorded: str | None = None, kubernetes: object = None, **pxe: object) -> str:
    machine = msgspec.convert(
        {
            "apiVersion": "unbounded-cloud.io/v1alpha3",
            "kind": "Machine",
            "metadata": {"name": "rack1-01", "uid": "0b5e5a10-1111-4222-8333-944495559666"},
            "spec": {"pxe": {**PXE, **pxe}, "kubernetes": kubernetes},
            "status": {"targetDisk": recorded},
        },
        Machine,
    )
    path = NETBOOT / f"{name}.tmpl"
    return Template(path.name, path.read_text()).render(template_data(machine, AROUND))


@pytest.mark.parametrize(("name", "verb"), [("grub/grub.cfg", "linux"), ("boot.ipxe", "kernel")])
def test_the_kernel_is_told_all_that_the_installer_needs(name: str, verb: str) -> None:
    (line,) = re.findall(rf"^ *{verb} .*$", rendered(name), re.MULTILINE)
    words = [word.strip("'") for word in line.split()]
    assert [word for word in words if word.startswith("unbounded.")] == EXPECTED
    assert "console=ttyS0,115200n8" in words


@pytest.mark.parametrize("name", ["grub/grub.cfg", "boot.ipxe"])
def test_no_disk_is_named_to_an_installer_that_does_not_choose(name: str) -> None:
    text = rendered(name, recorded="/dev/disk/by-id/wwn-0x5000c500a1b2c3d4")
    assert "disk" not in text.lower()


@pytest.mark.parametrize("name", ["grub/grub.cfg", "boot.ipxe"])
def test_a_tpm_is_required_of_hosts_that_attest_to_become_nodes(name: str) -> None:
    assert " unbounded.tpm=required " in rendered(name, kubernetes={})
    token = {"bootstrapTokenRef": {"name": "bootstrap-token-abcdef"}}
    for kubernetes in (None, token):
        assert "unbounded.tpm" not in rendered(name, kubernetes=kubernetes)


def test_what_is_served_by_address_alone_has_no_configuration_in_it() -> None:
    for name in ("grub/grub.cfg", "boot.ipxe"):
        assert "QUJD" not in rendered(name)


def test_vendor_data_has_the_agents_configuration_for_root_alone() -> None:
    text = rendered("cloud-init/vendor-data")
    assert text.startswith("#cloud-config\n")
    data = yaml.safe_load(text)
    file, _unit = data["write_files"]
    assert file["path"] == "/etc/unbounded/agent/config.json"
    assert file["permissions"] == "0600"
    assert json.loads(file["content"]) == CONFIG
    assert data["reporting"]["metalman"] == {
        "type": "webhook",
        "endpoint": f"{SERVE_URL}/cloudinit/log",
        "timeout": 5,
        "retries": 2,
    }


def test_vendor_data_starts_the_agent_until_its_daemon_is_enabled() -> None:
    data = yaml.safe_load(rendered("cloud-init/vendor-data"))
    config, unit = data["write_files"]
    said = dict(line.partition("=")[::2] for line in unit["content"].splitlines() if "=" in line)
    assert said["ExecStart"] == f"/usr/local/bin/unbounded-agent start --config {config['path']}"
    conditions = [line for line in unit["content"].splitlines() if line.startswith("Condition")]
    wanted = HostPaths().units / "multi-user.target.wants" / DAEMON_UNIT
    assert conditions == [
        f"ConditionPathExists={path}" for path in (HostPaths().command, HostPaths().config, f"!{wanted}")
    ]
    assert str(HostPaths().config) == config["path"]
    name = Path(unit["path"]).name
    assert data["runcmd"][-1] == ["systemctl", "enable", "--now", "--no-block", name]


def test_meta_data_names_the_machine() -> None:
    assert yaml.safe_load(rendered("cloud-init/meta-data")) == {
        "instance-id": "rack1-01",
        "local-hostname": "rack1-01",
    }


def test_all_templates_are_rendered_here() -> None:
    names = {str(path.relative_to(NETBOOT)) for path in Path(NETBOOT).rglob("*.tmpl")}
    assert names == {f"{name}.tmpl" for name in ("grub/grub.cfg", "boot.ipxe", "cloud-init/meta-data",
                                                 "cloud-init/vendor-data")}  # fmt: skip
