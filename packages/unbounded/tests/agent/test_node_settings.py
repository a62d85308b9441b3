"""Settings of a MachineConfiguration in a slot: files, drift, and what of them no node could use."""

from __future__ import annotations

import base64
import ipaddress
import json
import tomllib
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml

from tests.agent.goals import CA, goal, mirrored
from tests.agent.scripted import ScriptedCommands, ScriptedUnits
from tests.agent.test_node_spec import BASE, machine_of, version_of
from tests.api.checking import made as made_object
from tests.api.checking import refusals
from tests.api.test_node_settings import WHOLE
from tests.fetch.test_proxies import proxy
from tests.support.paths import ROOT
from unbounded.agent.model import BuildRecord, NodeGoal, Slot, TokenAccess
from unbounded.agent.node import settings as files_of
from unbounded.agent.node.files import address_in
from unbounded.agent.node.kubelet import configuration
from unbounded.agent.node.nodes import HostNodes
from unbounded.agent.node.settings import environment, files, require_usable
from unbounded.agent.node.slot_files import write_build_record
from unbounded.agent.node_spec import desired_node, same_node
from unbounded.agent.paths import HostPaths
from unbounded.api.configuration import MachineConfigurationTemplate, NodeSettings, node_settings
from unbounded.api.failures import Rejected
from unbounded.kube.logs import SecretStr

PROXY: Final = {"http": "http://proxy:3128", "https": "http://proxy:3129", "noProxy": [".example.com"]}


def settings(**given: Any) -> NodeSettings:
    return msgspec.convert(given, NodeSettings)


def made(**given: Any) -> NodeGoal:
    return goal(settings=settings(**given))


def texts(wanted: NodeGoal, address: str = "") -> dict[str, str]:
    return {file.path: file.content.decode() for file in files(wanted, address, b"")}


def test_kubelet_gets_its_fields_and_the_address_as_a_flag() -> None:
    document = json.loads(configuration(made(kubelet=WHOLE["kubelet"]), "/etc/resolv.conf"))
    given = {key: value for key, value in WHOLE["kubelet"].items() if key != "nodeIP"}
    assert {key: document[key] for key in given} == given
    assert "nodeIP" not in document
    place = "/etc/systemd/system/kubelet.service.d/30-settings.conf"
    assert texts(made(), "10.0.0.5")[place] == '[Service]\nEnvironment="KUBELET_SETTINGS_ARGS=--node-ip=10.0.0.5"\n'


def test_both_units_have_the_proxy_and_reach_the_cluster_without_it() -> None:
    wanted = made(proxy=PROXY)
    assert environment(wanted) == {
        "HTTP_PROXY": "http://proxy:3128",
        "HTTPS_PROXY": "http://proxy:3129",
        "NO_PROXY": ".example.com,10.0.0.1,m1,localhost,127.0.0.0/8,::1,.svc,.cluster.local",
    }
    assert environment(made(proxy={"noProxy": ["a"]})) == environment(made()) == {}
    for unit in ("kubelet", "containerd"):
        found = texts(wanted)[f"/etc/systemd/system/{unit}.service.d/40-settings.conf"]
        assert 'Environment="HTTPS_PROXY=http://proxy:3129"\n' in found
    percent = made(proxy={"https": "http://proxy/%41"})
    assert "HTTPS_PROXY=http://proxy/%%41" in texts(percent)[files_of.drop_in("kubelet.service")]


def test_authorities_stand_beside_those_of_the_system() -> None:
    found = texts(made(caBundle=CA))
    assert found["/etc/unbounded/authorities/configured.crt"] == CA
    assert ":/etc/unbounded/authorities" in environment(made(caBundle=CA))["SSL_CERT_DIR"]


def test_a_registry_has_its_hosts_in_their_order() -> None:
    hosts = [{"url": "https://mirror.example.com"}, {"url": "https://h/v2/hub", "caBundle": CA}]
    found = texts(made(containerd={"registries": [{"name": "docker.io", "hosts": hosts}]}))
    folder = "/etc/containerd/certs.d/docker.io"
    assert found[f"{folder}/1.crt"] == CA
    read = tomllib.loads(found[f"{folder}/hosts.toml"])["host"]
    assert list(read) == ["https://mirror.example.com", "https://h/v2/hub"]
    assert read["https://mirror.example.com"] == {"capabilities": ["pull", "resolve"]}
    assert read["https://h/v2/hub"]["override_path"] is True
    assert read["https://h/v2/hub"]["ca"] == [f"{folder}/1.crt"]


def test_registry_mirror_gets_only_its_own_login() -> None:
    urls = ("https://mirror:5000", "https://harbor/v2/hub", "https://harbor/v2/hub2", "http://open")
    registries = [
        {"name": "docker.io", "hosts": [{"url": url} for url in urls]},
        {"name": "q", "hosts": [{"url": "https://open"}]},
    ]
    wanted = made(containerd={"registries": registries, "pullSecrets": [{"name": "logins"}]})
    auth = {key: {"username": "me", "password": key} for key in ("docker.io", "mirror:5000", "harbor/hub", "other")}
    found = {file.path: file for file in files(wanted, "", json.dumps({"auth": auth}).encode())}
    hosts = found["/etc/containerd/certs.d/docker.io/hosts.toml"]
    read = tomllib.loads(hosts.content.decode())["host"]
    shown = {url: read[url].get("header", {}).get("Authorization", "") for url in urls}
    assert shown == {
        urls[0]: "Basic " + base64.b64encode(b"me:mirror:5000").decode(),
        urls[1]: "Basic " + base64.b64encode(b"me:harbor/hub").decode(),
        urls[2]: "",
        urls[3]: "",
    }
    assert (hosts.mode, found["/etc/containerd/certs.d/q/hosts.toml"].mode) == (0o600, 0o644)


def test_the_settings_of_the_guide_are_accepted_and_usable() -> None:
    guide = (ROOT / "docs/node-settings.md").read_text()
    written = yaml.load(guide.partition("```yaml\n")[2].partition("```")[0], Loader=yaml.CSafeLoader)
    assert refusals("MachineConfiguration", made_object("MachineConfiguration", yaml.dump(written["spec"]))) == []
    template = written["spec"]["template"]
    require_usable(node_settings(msgspec.convert(template, MachineConfigurationTemplate)))
    assert all(f"`{field}`" in guide for field in WHOLE["kubelet"].keys() - {"nodeIP"})


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kubelet": {"nodeIP": "10.0.0.256"}}, "kubelet.nodeIP '10.0.0.256': an address such as 10.0.0.5"),
        ({"kubelet": {"nodeIP": "10.0.0.0/33"}}, "or a network such as 10.0.0.0/16"),
        ({"caBundle": "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----"}, "caBundle: at least one"),
        (
            {"containerd": {"registries": [{"name": "r:5000", "hosts": [{"url": "https://h", "caBundle": "x"}]}]}},
            "containerd.registries[r:5000].hosts[0].caBundle: at least one certificate in PEM",
        ),
        ({"sysctl": {"kernel/panic": "0"}}, "sysctl kernel/panic: omit it, as the agent sets it to 10"),
    ],
)
def test_setting_beyond_the_schema_is_rejected_with_its_field(given: Any, words: str) -> None:
    with pytest.raises(Rejected) as refused:
        require_usable(settings(**given))
    assert words in str(refused.value)
    require_usable(settings())


def test_the_address_of_a_network_is_the_hosts_own() -> None:
    assert address_in("127.0.0.0/8") == "127.0.0.1"
    assert address_in("::1/128") == "::1"
    with pytest.raises(Rejected, match=r"kubelet\.nodeIP 203\.0\.113\.0/24: this host has no address in this network"):
        address_in("203.0.113.0/24")
    assert ipaddress.ip_address(address_in("127.0.0.1/32")).is_loopback


async def test_downloads_go_through_the_proxy_and_say_that_it_refuses(tmp_path: Path) -> None:
    nodes = HostNodes(HostPaths(tmp_path), ScriptedCommands(), ScriptedUnits(), arch="amd64")
    asked: list[str] = []
    async with proxy("403 Forbidden", asked) as url:
        given = settings(proxy={"http": url, "https": url})
        wanted = goal(downloads=mirrored("http://mirror.invalid"), image="registry.invalid/node:v1", settings=given)
        with pytest.raises(Rejected, match=f"the proxy {url}/?.* 403 Forbidden"):
            await nodes.build(Slot.KUBE1, wanted, TokenAccess(SecretStr("t")), lambda _words: None)
    assert "CONNECT registry.invalid:443 HTTP/1.1" in asked


def test_other_settings_are_another_node_and_are_named_as_drift() -> None:
    wanted = desired_node(machine_of(kubernetes={}), version_of(kubelet={"maxPods": 50}, proxy=PROXY), BASE)
    assert wanted.drift == ("kubelet", "proxy")
    assert not same_node(wanted.goal, BASE)
    again = desired_node(machine_of(kubernetes={}), version_of(kubelet={"maxPods": 50}), wanted.goal)
    assert again.same, "a proxy that is left out stays, as the host may reach nothing without it"
    gone = desired_node(machine_of(kubernetes={}), version_of(proxy={}), wanted.goal)
    assert gone.drift == ("kubelet", "proxy")
    assert environment(gone.goal) == {}
    assert desired_node(machine_of(kubernetes={}), None, wanted.goal).drift == ("kubelet",)


async def test_new_settings_of_a_slot_delete_files_of_former_settings(tmp_path: Path) -> None:
    paths = HostPaths(tmp_path)
    nodes = HostNodes(paths, ScriptedCommands(), ScriptedUnits(), arch="amd64")
    root = paths.rootfs(Slot.KUBE1)
    (root / "etc").mkdir(parents=True)
    write_build_record(paths, Slot.KUBE1, BuildRecord(goal=goal(), node_uid="n"))
    registries = [{"name": "docker.io", "hosts": [{"url": "https://m", "caBundle": CA}]}]
    first = settings(
        kubelet={"maxPods": 50, "nodeIP": "127.0.0.0/8"}, caBundle=CA, containerd={"registries": registries}
    )
    await nodes.configure(Slot.KUBE1, first)
    assert json.loads((root / "var/lib/kubelet/config.json").read_bytes())["maxPods"] == 50
    assert "--node-ip=127.0.0.1" in (root / "etc/systemd/system/kubelet.service.d/30-settings.conf").read_text()
    assert (root / "etc/containerd/certs.d/docker.io/hosts.toml").exists()
    assert (found := nodes.applied(Slot.KUBE1)) is not None
    assert (found.goal.settings, found.node_uid) == (first, "n")
    await nodes.configure(Slot.KUBE1, settings())
    assert "maxPods" not in json.loads((root / "var/lib/kubelet/config.json").read_bytes())
    assert [path for path in root.rglob("*") if path.suffix in (".toml", ".crt")] == []
    with pytest.raises(Rejected, match="caBundle: at least one certificate"):
        await nodes.configure(Slot.KUBE1, settings(caBundle="x"))
    assert (found := nodes.applied(Slot.KUBE1)) is not None
    assert found.goal == goal()
