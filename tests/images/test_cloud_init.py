"""Configuration of an installed host on its disk, read by cloud-init itself."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.images.support import TOP, Host
from tests.images.test_templates import SERVE_URL, rendered
from tests.support.qemu.tools import built
from unbounded.join.agent_config import AgentConfig, Kubelet
from unbounded.join.agent_install import AgentOrigin, HostSetup, cloud_config

TREE = built("cloud-init/usr/lib/python3/dist-packages")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(TREE is None, reason="cloud-init is not there; scripts/cloud-init-tools gets it"),
]
READ = """
import json, pathlib, sys
from cloudinit import dmi, helpers, util
from cloudinit.sources import DataSourceNoCloud

root = pathlib.Path(sys.argv[1])
util.get_cmdline = lambda: ""  # of the machine that tests, as the next two
dmi.read_dmi_data = lambda key: None
util.find_devs_with = lambda *given, **named: []
source = DataSourceNoCloud.DataSourceNoCloud(
    {}, None, helpers.Paths({"cloud_dir": str(root / "var/lib/cloud"), "run_dir": str(root / "run")})
)
print(json.dumps({
    "found": source.get_data(),
    "seed": source.seed,
    "instance": source.get_instance_id(),
    "host": source.get_hostname().hostname,
    "user": source.get_userdata_raw().decode(),
    "vendor": source.get_vendordata_raw().decode(),
    "network": source.network_config,
}))
"""
NETWORK_CONFIG = "version: 2\nethernets:\n  eth0: {dhcp4: true}\n"
USER_DATA = "#cloud-config\nssh_authorized_keys: [ssh-ed25519 AAAA me]\n"


def cloud_init(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run with cloud-init's modules, and nothing of the project's."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(TREE)}
    return subprocess.run(
        [sys.executable, *arguments], env=env, capture_output=True, text=True, timeout=60, check=False
    )


def schema(folder: Path, text: str) -> str:
    path = folder / "data"
    path.write_text(text)
    ran = cloud_init("-m", "cloudinit.cmd.main", "schema", "--config-file", str(path))
    return ran.stdout + ran.stderr


HOST_IMAGE = TOP / "images" / "host-debian12" / "root"
SETTINGS = """
import json, sys
from cloudinit import util
print(json.dumps(util.read_conf_d(sys.argv[1])))
"""


@pytest.fixture
async def root(tmp_path: Path) -> Path:
    """A root file system of the host image where the installer has left what metalman renders."""
    host, made = Host(tmp_path / "host"), tmp_path / "root"
    shutil.copytree(HOST_IMAGE, made)
    seed = host.root / "tmp" / "seed"
    seed.mkdir()
    for name in ("meta-data", "vendor-data"):
        (seed / name).write_text(rendered(f"cloud-init/{name}"))
    (seed / "user-data").write_text(USER_DATA)
    (seed / "network-config").write_text(NETWORK_CONFIG)
    code, out = await host.parts(f"plant_in {made}")
    assert code == 0, out
    return made


async def test_cloud_init_finds_its_data_without_a_network(root: Path) -> None:
    ran = cloud_init("-c", READ, str(root))
    assert ran.returncode == 0, ran.stderr
    read = json.loads(ran.stdout)
    assert read.pop("vendor") == rendered("cloud-init/vendor-data")
    assert read == {
        "found": True,
        "seed": str(root / "var/lib/cloud/seed/nocloud"),
        "instance": "rack1-01",
        "host": "rack1-01",
        "user": USER_DATA,
        "network": {"version": 2, "ethernets": {"eth0": {"dhcp4": True}}},
    }


def test_vendor_data_is_valid_by_cloud_inits_own_schema(tmp_path: Path) -> None:
    assert "Valid cloud-config" in schema(tmp_path, rendered("cloud-init/vendor-data"))


def test_cloud_config_of_a_self_joining_host_is_valid(tmp_path: Path) -> None:
    config = AgentConfig(machine_name="m1", kubelet=Kubelet(labels={"a": "b"}))
    for origin in (AgentOrigin(), AgentOrigin(url="https://host/é", version="v1")):  # as text, and in base64
        assert "Valid cloud-config" in schema(tmp_path, cloud_config(HostSetup(config, origin)))


def test_the_schema_is_one_that_finds_mistakes(tmp_path: Path) -> None:
    wrong = rendered("cloud-init/vendor-data").replace("permissions:", "permission:")
    assert "Valid cloud-config" not in schema(tmp_path, wrong)


def settings(root: Path) -> Any:
    """Return what cloud-init merges from the files of its settings."""
    ran = cloud_init("-c", SETTINGS, str(root / "etc/cloud/cloud.cfg.d"))
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


async def test_the_image_leaves_the_network_to_a_network_config(root: Path, tmp_path: Path) -> None:
    """A line of the settings comes before the seed, and would switch it off."""
    assert settings(HOST_IMAGE)["network"] == {"config": "disabled"}
    merged = settings(root)
    assert "network" not in merged
    assert merged["apt"] == {"preserve_sources_list": True}
    assert list((root / "etc/systemd/network").iterdir()) == []


async def test_without_a_network_config_the_image_keeps_its_own(tmp_path: Path) -> None:
    host, made = Host(tmp_path / "host"), tmp_path / "root"
    shutil.copytree(HOST_IMAGE, made)
    (host.root / "tmp" / "seed").mkdir()
    code, out = await host.parts(f"plant_in {made}")
    assert code == 0, out
    assert settings(made)["network"] == {"config": "disabled"}
    assert [path.name for path in (made / "etc/systemd/network").iterdir()] == ["20-dhcp.network"]


async def test_nobody_but_root_reads_the_seed(root: Path) -> None:
    seed = root / "var/lib/cloud/seed/nocloud"
    assert {path.name for path in seed.iterdir()} == {"meta-data", "user-data", "vendor-data", "network-config"}
    assert seed.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in seed.iterdir())
    assert SERVE_URL in (seed / "vendor-data").read_text()
