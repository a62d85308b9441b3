"""The agent's configuration: written for a Machine, read strictly, and never telling its secrets."""

from __future__ import annotations

import base64
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.authority import BASE64, PEM
from unbounded.agent.node_spec import HostFacts, goal_from_config
from unbounded.api.configuration import MachineConfigurationTemplate, NodeSettings, ProxySettings
from unbounded.api.failures import Rejected
from unbounded.api.machine import Machine
from unbounded.join.agent_config import AgentConfig, agent_config, agent_config_json, config_text
from unbounded.join.agent_config_file import faults, read_agent_config, unknown_keys
from unbounded.join.cluster_facts import ClusterFacts

BROKEN = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
FACTS = ClusterFacts("https://10.0.0.1:6443", PEM, "v1.34.0", "10.96.0.10")
TOKEN = "abcdef.0123456789abcdef"


def in_base64(pem: str, more: bytes = b"") -> str:
    return base64.b64encode(pem.encode() + more).decode()


def machine(**spec: object) -> Machine:
    metadata = {"name": "m1", "uid": "u-1", "labels": {"unbounded-cloud.io/site": "lab"}}
    return msgspec.convert({"metadata": metadata, "spec": spec}, Machine)


FULL = machine(
    kubernetes={
        "version": "v1.33.1",
        "nodeLabels": {"zone": "a"},
        "registerWithTaints": ["new=yes:NoSchedule"],
    },
    agent={
        "image": "ghcr.io/lab/root:v1",
        "downloads": {
            "containerd": {"version": "2.0.4", "baseURL": "https://mirror/c"},
            "runc": {"version": "1.1.12"},
            "cni": {"version": "1.5.1", "url": "https://mirror/cni.tgz"},
        },
    },
)


def test_version_and_image_are_those_of_the_bound_template() -> None:
    template: dict[str, Any] = {"kubernetes": {"version": "v1.35.0"}, "agent": {"image": "ghcr.io/lab/root:v2"}}
    config = agent_config(FULL, FACTS, settings=msgspec.convert(template, MachineConfigurationTemplate))
    assert (config.cluster.version, config.oci_image) == ("1.35.0", "ghcr.io/lab/root:v2")
    config = agent_config(FULL, FACTS, settings=MachineConfigurationTemplate())
    assert (config.cluster.version, config.oci_image) == ("1.33.1", "ghcr.io/lab/root:v1")


def test_everything_that_a_machine_says_stands_in_it() -> None:
    assert json.loads(agent_config_json(FULL, FACTS, "http://10.0.0.9:8880/boot/x/")) == {
        "MachineName": "m1",
        "NodeName": "m1",
        "Cluster": {
            "CaCertBase64": BASE64,
            "ClusterDNS": "10.96.0.10",
            "Version": "1.33.1",
        },
        "Kubelet": {
            "ApiServer": "https://10.0.0.1:6443",
            "Labels": {"unbounded-cloud.io/machine": "m1", "unbounded-cloud.io/site": "lab", "zone": "a"},
            "RegisterWithTaints": ["new=yes:NoSchedule"],
        },
        "CRI": {"Containerd": {"Version": "2.0.4"}, "Runc": {"Version": "1.1.12"}},
        "CNI": {"PluginVersion": "1.5.1"},
        "OCIImage": "ghcr.io/lab/root:v1",
        "Attest": {"URL": "http://10.0.0.9:8880/boot/x"},
        "Downloads": {
            "Containerd": {"BaseURL": "https://mirror/c", "Version": "2.0.4"},
            "Runc": {"Version": "1.1.12"},
            "CNI": {"URL": "https://mirror/cni.tgz", "Version": "1.5.1"},
        },
    }


def test_labels_that_kubelet_does_not_take_do_not_reach_it() -> None:
    labelled = machine(kubernetes={"nodeLabels": {"zone": "a", "node-role.kubernetes.io/worker": ""}})
    assert set(agent_config(labelled, FACTS).kubelet.labels) == {
        "zone",
        "unbounded-cloud.io/machine",
        "unbounded-cloud.io/site",
    }


def test_the_cluster_says_what_the_machine_does_not() -> None:
    bare = json.loads(agent_config_json(machine(), FACTS, token=TOKEN))
    assert bare["Cluster"]["Version"] == "1.34.0"
    assert bare["Kubelet"]["Auth"] == {"BootstrapToken": TOKEN}
    assert "Attest" not in bare
    assert "Downloads" not in bare
    joins = agent_config(machine(kubernetes={}), FACTS).kubelet
    ours = {"unbounded-cloud.io/machine": "m1", "unbounded-cloud.io/site": "lab"}
    assert (joins.labels, joins.register_with_taints) == (ours, ())


def test_it_stands_in_a_cloud_config_four_spaces_in() -> None:
    import yaml

    text = agent_config_json(FULL, FACTS, "http://10.0.0.9:8880")
    first, *rest = text.splitlines()
    assert first == "{"
    assert all(line.startswith("    ") for line in rest)
    document = yaml.safe_load(f"write_files:\n- path: /x\n  content: |\n    {text}\n  permissions: '0600'\n")
    assert json.loads(document["write_files"][0]["content"])["MachineName"] == "m1"


@pytest.mark.parametrize("given_", [{"attest_url": "http://10.0.0.9:8880"}, {"token": TOKEN}])
def test_what_is_written_is_read_again(given_: dict[str, Any]) -> None:
    text = agent_config_json(FULL, FACTS, **given_)
    assert read_agent_config(text.encode(), "config.json") == agent_config(FULL, FACTS, **given_)


def test_a_proxy_and_authorities_are_known_before_the_host_has_joined() -> None:
    proxy = ProxySettings(https="http://proxy:3128", no_proxy=(".example.com",))
    settings = NodeSettings(proxy=proxy, ca_bundle=PEM, sysctl={"vm.max_map_count": "1"})
    config = agent_config(machine(), FACTS, token=TOKEN, settings=settings)
    body = json.loads(config_text(config))
    assert body["Proxy"] == {"HTTPS": "http://proxy:3128", "NoProxy": [".example.com"]}
    assert body["CaBundle"] == PEM
    assert read_agent_config(config_text(config).encode(), "config.json") == config
    assert goal_from_config(config, HostFacts()).settings == NodeSettings(proxy=proxy, ca_bundle=PEM)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        (
            "Proxy",
            {"HTTP": "proxy:3128"},
            "Proxy.HTTP: must be a URL that begins with http:// or https://, without a user",
        ),
        ("Proxy", {"HTTPS": "http://user:hush@proxy"}, "Proxy.HTTPS: must be a URL that begins with"),
        ("Proxy", {"NoProxy": ["a,b"]}, "Proxy.NoProxy 'a,b': each entry must be one host, domain, address or network"),
        ("CaBundle", "no PEM", "CaBundle: must contain at least one PEM certificate"),
    ],
)
def test_a_wrong_proxy_or_bundle_is_named(key: str, value: object, words: str) -> None:
    body = json.loads(agent_config_json(machine(), FACTS, token=TOKEN)) | {key: value}
    with pytest.raises(Rejected) as refused:
        read_agent_config(json.dumps(body).encode(), "config.json")
    assert words in str(refused.value)
    assert "hush" not in str(refused.value)


def test_versions_and_addresses_are_read_as_people_write_them() -> None:
    body = json.loads(agent_config_json(machine(), FACTS, token=TOKEN))
    body["Cluster"]["Version"], body["Kubelet"]["ApiServer"] = "v1.34.0", "api.example.com:6443"
    body["SomethingNew"] = {"a": 1}
    config = read_agent_config(json.dumps(body).encode(), "config.json")
    assert (config.cluster.version, config.kubelet.api_server) == ("1.34.0", "https://api.example.com:6443")


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("MachineName", "", "MachineName '': must be the name of a Machine"),
        ("MachineName", "M_1", "MachineName 'M_1'"),
        ("Cluster.Version", "latest", "Cluster.Version 'latest': must be a version such as 1.34.0"),
        ("NodeName", "other", "NodeName 'other': must be absent or equal to MachineName"),
        ("Cluster.CaCertBase64", "eA==", "Cluster.CaCertBase64: must be base64 of at least one PEM certificate"),
        (
            "Cluster.CaCertBase64",
            in_base64(PEM[:80]),
            "Cluster.CaCertBase64: must be base64 of at least one PEM certificate",
        ),
        (
            "Cluster.CaCertBase64",
            in_base64(BROKEN),
            "Cluster.CaCertBase64: must be base64 of at least one PEM certificate",
        ),
        (
            "Cluster.CaCertBase64",
            in_base64(PEM, b"\xff"),
            "Cluster.CaCertBase64: must be base64 of at least one PEM certificate",
        ),
        ("Cluster.ClusterDNS", "10.96.0", "Cluster.ClusterDNS '10.96.0': must be one address, such as 10.96.0.10"),
        ("Kubelet.ApiServer", "", "Kubelet.ApiServer: must be a URL that begins with https://"),
        ("Kubelet.ApiServer", "http://x", "Kubelet.ApiServer: must be a URL that begins with https://"),
        ("Kubelet.Auth", {}, "Kubelet.Auth: needs BootstrapToken or ExecCredential, or Attest.URL"),
        ("Kubelet.Auth.BootstrapToken", "hunter2", "Kubelet.Auth.BootstrapToken: must be six lower-case letters"),
        ("Kubelet.Auth.ExecCredential", {"command": "x"}, "BootstrapToken and ExecCredential exclude each other"),
        ("Kubelet.Auth", {"ExecCredential": {}}, "Kubelet.Auth.ExecCredential.command: must name the program"),
        ("Kubelet.Labels", {"-a": "b"}, "Kubelet.Labels '-a'='b'"),
        ("Kubelet.Labels", {"node-role.kubernetes.io/worker": ""}, "Kubelet.Labels 'node-role.kubernetes.io/worker': "),
        ("Kubelet.Labels", {"node-restriction.kubernetes.io/a": "b"}, "kubelet may not set such a label"),
        ("Kubelet.Labels", {"k8s.io/a": "b"}, "kubelet may not set such a label"),
        ("Kubelet.RegisterWithTaints", ["x"], "Kubelet.RegisterWithTaints 'x': must be key=value:NoSchedule"),
        ("Attest.URL", "ftp://x", "Attest.URL: must be a URL that begins with http:// or https://"),
        ("Downloads.CNI.URL", "https://user:pw@x/", "Downloads.CNI.URL: must be a URL"),
        (
            "Downloads.Kubernetes.Version",
            "latest",
            "Downloads.Kubernetes.Version 'latest': must be a version such as 1.34.0",
        ),
        (
            "Downloads.Containerd.Version",
            "../../evil x",
            "Downloads.Containerd.Version '../../evil x': must be a version",
        ),
        ("Downloads.Runc.Version", "1.1?a=b#x", "Downloads.Runc.Version '1.1?a=b#x': must be a version"),
        ("Downloads.Crictl.Version", "1", "Downloads.Crictl.Version '1': must be a version"),
        ("CRI.Containerd.Version", "2.1.8/x", "CRI.Containerd.Version '2.1.8/x': must be a version"),
        ("CRI.Runc.Version", "main", "CRI.Runc.Version 'main': must be a version"),
        ("CNI.PluginVersion", "v", "CNI.PluginVersion 'v': must be a version"),
        (
            "Downloads.Runc",
            {"SHA256": "0" * 63, "Version": "1.5.0"},
            "Downloads.Runc.SHA256: must be 64 hexadecimal digits",
        ),
        ("Downloads.Runc.SHA256", "0" * 64, "Downloads.Runc.SHA256: needs Downloads.Runc.Version"),
        (
            "Downloads.Kubernetes",
            {"SHA256": "0" * 64},
            "Downloads.Kubernetes.SHA256: not allowed, as it consists of three files",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and "." in value and len(value) < 30 else "",
)
def test_what_cannot_be_used_is_named(path: str, value: object, said: str) -> None:
    body = json.loads(agent_config_json(machine(), FACTS, token=TOKEN))
    *above, last = path.split(".")
    at = body
    for name in above:
        at = at.setdefault(name, {})
    at[last] = value
    with pytest.raises(Rejected) as caught:
        read_agent_config(json.dumps(body).encode(), "config.json")
    assert said in str(caught.value)
    assert str(caught.value).startswith("config.json: ")
    assert "hunter2" not in str(caught.value)
    assert "pw" not in str(caught.value)


@pytest.mark.parametrize(
    "key", ["topology.kubernetes.io/zone", "node.kubernetes.io/rack", "a.kubelet.kubernetes.io/b", "x/y"]
)
def test_labels_that_kubelet_takes_are_taken(key: str) -> None:
    body = json.loads(agent_config_json(machine(), FACTS, token=TOKEN))
    body["Kubelet"]["Labels"] = {key: "a"}
    assert read_agent_config(json.dumps(body).encode(), "config.json").kubelet.labels == {key: "a"}


def test_keys_that_mean_nothing_are_named_with_what_was_meant() -> None:
    body = json.loads(agent_config_json(machine(), FACTS, token=TOKEN))
    body["Upgrade"] = {"AllowHttp": True}
    body["Kubelet"]["Auth"]["ExecCredential"] = {"command": "x", "env": [{"name": "a", "val": "b"}]}
    body["Kubelet"]["Labels"] = {"AnyKey": "is a label"}
    body |= {"HostPrefix": "/x", "SomethingNew": {"a": 1}}
    assert sorted(unknown_keys(json.dumps(body).encode())) == [
        "HostPrefix is not supported by this agent",
        "unknown key Kubelet.Auth.ExecCredential.env.val (value?)",
        "unknown key SomethingNew",
        "unknown key Upgrade.AllowHttp (AllowHTTP?)",
    ]


def test_missing_key_error_suggests_the_misspelled_key() -> None:
    body = json.loads(agent_config_json(machine(), FACTS, token=TOKEN))
    body["Cluster"]["CACertBase64"] = body["Cluster"].pop("CaCertBase64")
    with pytest.raises(
        Rejected,
        match=r"Cluster\.CaCertBase64: must be base64 .*; unknown key Cluster\.CACertBase64 \(CaCertBase64\?\)",
    ):
        read_agent_config(json.dumps(body).encode(), "config.json")


def test_secrets_stay_out_of_what_is_printed() -> None:
    config = agent_config(machine(), FACTS, token=TOKEN)
    assert TOKEN not in repr(config)
    with pytest.raises(Rejected) as caught:
        read_agent_config(b'{"Kubelet": {"Auth": {"BootstrapToken": 12345}}}', "config.json")
    assert "12345" not in str(caught.value)


@pytest.mark.slow
@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.text() | st.integers(),
        lambda s: (
            st.lists(s)
            | st.dictionaries(
                st.sampled_from(["MachineName", "Kubelet", "Auth", "Labels", "Attest", "URL"]) | st.text(), s
            )
        ),
    ).map(lambda v: json.dumps(v).encode())
)
def test_garbage_is_refused_and_nothing_else_happens(content: bytes) -> None:
    with pytest.raises(Rejected, match=r"^config\.json: "):
        read_agent_config(content, "config.json")


def test_an_empty_configuration_lacks_everything_that_is_needed() -> None:
    assert [text.partition(" ")[0].rstrip(":") for text in faults(AgentConfig())] == [
        "MachineName",
        "Cluster.Version",
        "Cluster.CaCertBase64",
        "Kubelet.ApiServer",
        "Kubelet.Auth",
    ]


@pytest.mark.parametrize(("key", "seconds"), [("VerifySeconds", -1), ("VerifySeconds", 3601), ("RetrySeconds", 86_401)])
def test_limits_of_recreations_out_of_reach_are_refused_by_their_name(key: str, seconds: int) -> None:
    content = json.dumps({"MachineName": "m1", "Recreation": {key: seconds}}).encode()
    with pytest.raises(Rejected, match=f"Recreation.{key} {seconds}: must be from 1 to"):
        read_agent_config(content, "config.json")
