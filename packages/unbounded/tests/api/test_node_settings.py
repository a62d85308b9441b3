"""Settings of nodes that the API refuses and accepts. The messages are those of kube-apiserver, too."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.api.checking import causes, made, refusals

Raw = dict[str, Any]

PEM: Final = "-----BEGIN CERTIFICATE-----\nMIIB+w==\n-----END CERTIFICATE-----\n"
WHOLE: Final[Raw] = {
    "kubelet": {
        "systemReserved": {"cpu": "100m", "memory": "1.5Gi", "ephemeral-storage": "1e9", "pid": "1000"},
        "kubeReserved": {"memory": "256Mi"},
        "maxPods": 250,
        "evictionHard": {"memory.available": "5%", "nodefs.inodesFree": "0", "imagefs.available": "12.5%"},
        "evictionSoft": {"nodefs.available": "100%", "pid.available": "500"},
        "evictionSoftGracePeriod": {"nodefs.available": "1m30s", "pid.available": "0"},
        "nodeIP": "10.0.0.0/16",
        "featureGates": {"NodeSwap": True, "KubeletInUserNamespace": False},
        "serverTLSBootstrap": True,
        "imageGCHighThresholdPercent": 70,
        "imageGCLowThresholdPercent": 60,
        "imageMinimumGCAge": "2m",
        "containerLogMaxSize": "10Mi",
        "containerLogMaxFiles": 3,
    },
    "containerd": {
        "registries": [
            {"name": "docker.io", "hosts": [{"url": "https://mirror.example.com/v2/hub", "caBundle": PEM}]},
            {"name": "10.0.0.5:5000", "hosts": [{"url": "http://10.0.0.5:5000"}]},
            {"name": "_default", "hosts": [{"url": "https://mirror.example.com"}]},
        ],
        "pullSecrets": [{"name": "registry.example.com"}],
    },
    "proxy": {"http": "http://proxy:3128", "https": "http://proxy:3128", "noProxy": [".example.com", "10.0.0.0/8"]},
    "caBundle": f"An authority\n{PEM}{PEM}",
    "sysctl": {"vm.max_map_count": "262144", "net.ipv4.ip_local_port_range": "1024 65000", "net/core/somaxconn": "1"},
}
QUANTITY: Final = "should match"
SIGNALS: Final = "knows memory.available, nodefs.available, "
WRONG: Final = [
    ("kubelet", {"systemReserved": {"memory": "1Q"}}, "kubelet.systemReserved.memory", QUANTITY),
    ("kubelet", {"systemReserved": {"memory": "-1Gi"}}, "kubelet.systemReserved.memory", QUANTITY),
    ("kubelet", {"kubeReserved": {"gpu": "1"}}, "kubelet.kubeReserved", "knows cpu, memory, ephemeral-storage, pid"),
    ("kubelet", {"maxPods": 0}, "kubelet.maxPods", "greater than or equal to 1"),
    ("kubelet", {"evictionHard": {"memory.available": "101%"}}, "kubelet.evictionHard.memory.available", "match"),
    ("kubelet", {"evictionHard": {"memory.available": "-5%"}}, "kubelet.evictionHard.memory.available", "match"),
    ("kubelet", {"evictionHard": {"memory.free": "5%"}}, "kubelet.evictionHard", SIGNALS),
    (
        "kubelet",
        {"evictionSoft": {"memory.available": "5%"}},
        "kubelet.evictionSoftGracePeriod",
        "each threshold of evictionSoft needs a grace period in evictionSoftGracePeriod, such as 1m30s",
    ),
    (
        "kubelet",
        {"evictionSoftGracePeriod": {"memory.available": "90"}},
        "kubelet.evictionSoftGracePeriod.memory.available",
        "match",
    ),
    *(
        ("kubelet", {"nodeIP": wrong}, "kubelet.nodeIP", "an address of the host such as 10.0.0.5")
        for wrong in ("", "node-1", "10.0.0", "10.0.0.0/33", "127.0.0.1", "169.254.0.1", "224.0.0.1", "fe80::1")
    ),
    ("kubelet", {"featureGates": {"node-swap": True}}, "kubelet.featureGates", "a name such as NodeSwap"),
    ("kubelet", {"featureGates": {"NodeSwap": "yes"}}, "kubelet.featureGates.NodeSwap", "must be of type boolean"),
    ("kubelet", {"imageGCHighThresholdPercent": 101}, "kubelet.imageGCHighThresholdPercent", "less than or equal"),
    (
        "kubelet",
        {"imageGCHighThresholdPercent": 80},
        "kubelet.imageGCLowThresholdPercent",
        "imageGCLowThresholdPercent (default 80) must be less than imageGCHighThresholdPercent",
    ),
    ("kubelet", {"imageMinimumGCAge": "-2m"}, "kubelet.imageMinimumGCAge", "match"),
    ("kubelet", {"containerLogMaxSize": "10MB"}, "kubelet.containerLogMaxSize", "match"),
    ("kubelet", {"containerLogMaxFiles": 1}, "kubelet.containerLogMaxFiles", "greater than or equal to 2"),
    ("containerd", {"registries": [{"name": "docker.io", "hosts": []}]}, "containerd.registries[0].hosts", "1 items"),
    (
        "containerd",
        {"registries": [{"name": "docker.io/library", "hosts": [{"url": "https://m"}]}]},
        "containerd.registries[0].name",
        "match",
    ),
    (
        "containerd",
        {"registries": [{"name": "docker.io", "hosts": [{"url": "https://user:hush@m"}]}]},
        "containerd.registries[0].hosts[0].url",
        "match",
    ),
    (
        "containerd",
        {"registries": [{"name": "docker.io", "hosts": [{"url": "https://m", "caBundle": "PEM"}]}]},
        "containerd.registries[0].hosts[0].caBundle",
        "BEGIN CERTIFICATE",
    ),
    ("containerd", {"pullSecrets": [{"name": "a/b"}]}, "containerd.pullSecrets[0].name", "match"),
    ("proxy", {"https": "proxy:3128"}, "proxy.https", "match"),
    ("proxy", {"http": "http://user:hush@proxy:3128"}, "proxy.http", "match"),
    ("proxy", {"noProxy": ["a,b"]}, "proxy.noProxy[0]", "match"),
    ("caBundle", "-----BEGIN PRIVATE KEY-----", "caBundle", "BEGIN CERTIFICATE"),
    ("sysctl", {"max_map_count": "1"}, "sysctl", "a kernel parameter must have a name such as vm.max_map_count"),
    ("sysctl", {"../../etc/passwd": "1"}, "sysctl", "a kernel parameter must have a name such as vm.max_map_count"),
    ("sysctl", {"vm.max_map_count": "1\nvm.x = 2"}, "sysctl.vm.max_map_count", "match"),
]


def configuration(**settings: Any) -> Raw:
    return made("MachineConfiguration", "template: {agent: {image: i}}", template={"agent": {"image": "i"}, **settings})


def test_all_settings_together_are_accepted() -> None:
    assert refusals("MachineConfiguration", configuration(**WHOLE)) == []
    for address in ("10.0.0.5", "10.0.0.5/16", "2001:db8::5", "2001:db8::/64", "0.0.0.0", "::"):
        assert refusals("MachineConfiguration", configuration(kubelet={"nodeIP": address})) == []
    version = made("MachineConfigurationVersion", "{version: 1, template: {}}", template=WHOLE)
    assert refusals("MachineConfigurationVersion", version) == []


@pytest.mark.parametrize(("part", "value", "field", "words"), WRONG, ids=[row[2] for row in WRONG])
def test_unusable_node_setting_is_rejected_with_its_field(part: str, value: Any, field: str, words: str) -> None:
    found = causes("MachineConfiguration", configuration(**{part: value}))
    assert [cause.field for cause in found] == [f"spec.template.{field}"], found
    assert words in found[0].message
