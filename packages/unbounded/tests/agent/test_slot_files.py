from __future__ import annotations

import base64
import json
import os
import shlex
import stat
from pathlib import Path

import pytest

from tests.agent.goals import CA, goal
from unbounded.agent.model import CertificateAccess, ExecAccess, KubeletAccess, Slot, TokenAccess
from unbounded.agent.node import containerd, gpus, kubelet
from unbounded.agent.node.devices import HostDevices, find_devices
from unbounded.agent.node.files import DnsResolution, HostNames, dns_resolution, machine_id, slot_files, slot_links
from unbounded.agent.node.nspawn import BindMount, override, settings
from unbounded.agent.node.rootfs import Distribution, distribution
from unbounded.agent.paths import HostPaths
from unbounded.kube.logs import SecretStr

TOKEN = TokenAccess(SecretStr("abcdef.0123456789abcdef"))
EXEC = ExecAccess("/opt/login", ("--audience", "k"), (("REGION", "r"),), "client.authentication.k8s.io/v1")
CERTIFICATE = CertificateAccess(SecretStr("PEM"))
PLAIN = DnsResolution(None, "", b"nameserver 10.0.0.1\n", "/etc/resolv.conf")


def written(access: KubeletAccess = TOKEN, *, nvidia: bool = False, resolve: DnsResolution = PLAIN) -> dict[str, bytes]:
    host = HostNames("host-1", "0" * 32)
    found = slot_files(goal(), access, host, resolve, slot="kube1", nvidia=nvidia)
    assert len({file.path for file in found}) == len(found)
    return {file.path: file.content for file in found}


def test_no_file_is_readable_by_others_that_holds_a_secret() -> None:
    host = HostNames("host-1", "0" * 32)
    for access, secret in ((TOKEN, b"0123456789abcdef"), (CERTIFICATE, b"PEM"), (EXEC, b"--audience")):
        for file in slot_files(goal(), access, host, PLAIN, slot="kube1", nvidia=False):
            assert file.mode == 0o600 or secret not in file.content, file.path


def test_kubelet_gets_its_identity_by_flags() -> None:
    wanted = goal(labels={"b": "2", "a": ""}, taints=("x=1:NoExecute", "g:NoSchedule"))
    assert kubelet.node_flags(wanted) == [
        "--config=/var/lib/kubelet/config.json",
        "--hostname-override=m1",
        "--node-labels=a=,b=2",
        "--register-with-taints=g:NoSchedule,x=1:NoExecute",
    ]
    drop_in = next(file for file in kubelet.unit_files(goal(labels={"a": "1%"}), TOKEN) if "20-node" in file.path)
    line = drop_in.content.decode().splitlines()[1]
    (word,) = shlex.split(line.removeprefix("Environment="))
    assert word.endswith("--hostname-override=m1 --node-labels=a=1%%")  # systemd reads %% as %


@pytest.mark.parametrize(
    ("access", "flags", "user"),
    [
        pytest.param(
            TOKEN,
            [f"--bootstrap-kubeconfig={kubelet.BOOTSTRAP}", f"--kubeconfig={kubelet.KUBECONFIG}"],
            {"token": "abcdef.0123456789abcdef"},
            id="token",
        ),
        pytest.param(
            EXEC,
            [f"--kubeconfig={kubelet.KUBECONFIG}"],
            {
                "exec": {
                    "apiVersion": "client.authentication.k8s.io/v1",
                    "command": "/opt/login",
                    "args": ["--audience", "k"],
                    "env": [{"name": "REGION", "value": "r"}],
                    "interactiveMode": "Never",
                    "provideClusterInfo": False,
                }
            },
            id="exec",
        ),
        pytest.param(
            CERTIFICATE,
            [f"--kubeconfig={kubelet.KUBECONFIG}"],
            {"client-certificate": kubelet.CERTIFICATE, "client-key": kubelet.CERTIFICATE},
            id="certificate",
        ),
    ],
)
def test_kubelet_has_its_credential_as_it_expects_it(
    access: KubeletAccess, flags: list[str], user: dict[str, object]
) -> None:
    assert kubelet.kubeconfig_flags(access) == [*flags, f"--cert-dir={kubelet.CERTIFICATES}"]
    path = kubelet.BOOTSTRAP if access is TOKEN else kubelet.KUBECONFIG
    found = json.loads(written(access)[path])
    assert found["users"] == [{"name": "kubelet", "user": user}]
    cluster = found["clusters"][0]["cluster"]
    assert cluster["server"] == "https://10.0.0.1:6443"
    assert base64.b64decode(cluster["certificate-authority-data"]).decode() == CA


def test_a_certificate_that_is_carried_over_lies_where_kubelet_renews_it() -> None:
    target = slot_links(CERTIFICATE, PLAIN)[kubelet.CERTIFICATE]
    assert written(CERTIFICATE)[f"{kubelet.CERTIFICATES}/{target}"] == b"PEM"
    assert kubelet.CERTIFICATE not in slot_links(TOKEN, PLAIN)


def test_kubelets_configuration() -> None:
    found = json.loads(kubelet.configuration(goal(), "/etc/resolv.conf"))
    assert found["contentType"] == "application/json"
    assert found["clusterDNS"] == ["10.96.0.10"]
    assert found["authentication"]["anonymous"] == {"enabled": False}
    assert found["authentication"]["x509"] == {"clientCAFile": kubelet.CA}
    assert found["cgroupDriver"] == "systemd"
    assert found["protectKernelDefaults"] is True
    assert "clusterDNS" not in json.loads(kubelet.configuration(goal(cluster_dns=""), "/etc/resolv.conf"))


def test_the_nvidia_runtime_is_configured_only_where_it_is_wanted() -> None:
    assert containerd.NVIDIA not in written()
    assert b'default_runtime_name = "nvidia"' in written(nvidia=True)[containerd.NVIDIA]
    assert b"SystemdCgroup = true" in written()[containerd.CONFIG]


def test_a_slot_has_the_hosts_name_and_an_id_of_its_own() -> None:
    found = written()
    assert found["/etc/hostname"] == b"host-1\n"
    first, second = machine_id("0" * 32, "kube1"), machine_id("0" * 32 + "\n", "kube2")
    assert found["/etc/machine-id"].decode().strip() == first != second
    assert machine_id("1" * 32, "kube1") != first


def test_node_services_are_enabled_and_network_services_masked() -> None:
    links = slot_links(TOKEN, PLAIN)
    assert links["/etc/systemd/system/systemd-resolved.service"] == "/dev/null"
    assert links["/etc/systemd/system/systemd-networkd.service"] == "/dev/null"
    assert "/etc/systemd/system/multi-user.target.wants/kubelet.service" in links
    assert "/etc/systemd/system/multi-user.target.wants/containerd.service" in links


def test_resolver_file_below_run_is_bound_and_pods_bypass_the_stub() -> None:
    names = frozenset({"stub-resolv.conf", "resolv.conf"})
    found = dns_resolution("/run/systemd/resolve/stub-resolv.conf", names, b"nameserver 127.0.0.53\n")
    assert found.bind == BindMount("/run/systemd/resolve", "/run/host-resolve")
    assert found.link == "/run/host-resolve/stub-resolv.conf"
    assert found.pods == "/run/host-resolve/resolv.conf"
    assert slot_links(TOKEN, found)["/etc/resolv.conf"] == found.link
    assert "/etc/resolv.conf" not in written(resolve=found)


def test_resolver_file_in_etc_is_copied_into_the_machine() -> None:
    found = dns_resolution("/etc/resolv.conf", frozenset({"shadow", "resolv.conf"}), b"nameserver 10.0.0.1\n")
    assert found == PLAIN
    assert written(resolve=found)["/etc/resolv.conf"] == b"nameserver 10.0.0.1\n"
    assert "/etc/resolv.conf" not in slot_links(TOKEN, found)


# Devices: on a made-up /dev and /sys


def node(path: Path, kind: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, kind | 0o600, os.makedev(1, 3))


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")
def test_devices_that_are_there_are_found(tmp_path: Path) -> None:
    names = ["nvidia0", "nvidiactl", "nvidia-uvm", "nvidia-caps/nvidia-cap1", "kfd", "dri/card0", "dri/renderD128"]
    for name in [*names, "kvm", "infiniband/uverbs0", "tty0", "null"]:
        node(tmp_path / "dev" / name, stat.S_IFCHR)
    node(tmp_path / "dev/sda", stat.S_IFBLK)
    (tmp_path / "dev/nvidia-old").write_bytes(b"")  # no device
    (tmp_path / "dev/dri/by-path").mkdir()
    found = find_devices(HostPaths(tmp_path))
    assert found.character == tuple(sorted(f"/dev/{name}" for name in [*names, "kvm", "infiniband/uverbs0"]))
    assert found.nvidia


def test_a_host_without_devices_has_none(tmp_path: Path) -> None:
    found = find_devices(HostPaths(tmp_path))
    assert found == HostDevices()
    assert not found.nvidia
    assert not HostDevices(("/dev/nvidiactl", "/dev/nvidia-uvm")).nvidia  # a driver without a card


def test_devices_are_bound_and_allowed() -> None:
    devices = HostDevices(("/dev/kvm", "/dev/dri/odd:name"))
    nspawn = settings(devices, [BindMount("/lib/modules", "/lib/modules")]).splitlines()
    assert nspawn[-3:] == [
        "BindReadOnly=/lib/modules:/lib/modules",
        "Bind=/dev/kvm",
        "Bind=/dev/dri/odd\\:name",
    ]
    for line in ("PrivateUsers=no", "Capability=all", "VirtualEthernet=no", "SystemCallFilter=@keyring bpf"):
        assert line in nspawn
    unit = override(Slot.KUBE2)
    assert "DeviceAllow=block-* rwm\nDeviceAllow=char-* rwm\n" in unit
    assert "[Unit]\nConflicts=systemd-nspawn@kube1.service\n" in unit
    assert "nft" not in unit  # the unit does not change the host's firewall


LDCONFIG = """4 libs found in cache `/etc/ld.so.cache'
\tlibnvidia-ml.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1
\tlibnvidia-ml.so.1 (libc6) => /usr/lib/i386-linux-gnu/libnvidia-ml.so.1
\tlibcuda.so.1 (libc6,x86-64) => /opt/nvidia/lib/libcuda.so.1
\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/x86_64-linux-gnu/libcuda.so.1
\tlibc.so.6 (libc6,x86-64, OS ABI: Linux 3.2.0) => /lib/x86_64-linux-gnu/libc.so.6
"""


def test_the_drivers_libraries_are_those_that_the_loader_would_take() -> None:
    found = gpus.libraries(LDCONFIG, "amd64")
    assert found.binds == (
        BindMount("/opt/nvidia/lib", "/run/host-nvidia/0"),
        BindMount("/usr/lib/x86_64-linux-gnu", "/run/host-nvidia/1"),
    )
    assert found.links == {
        "/usr/local/lib/libcuda.so.1": "/run/host-nvidia/0/libcuda.so.1",
        "/usr/local/lib/libnvidia-ml.so.1": "/run/host-nvidia/1/libnvidia-ml.so.1",
    }
    assert gpus.libraries(LDCONFIG, "arm64") == gpus.DriverLibraries()


@pytest.mark.parametrize(
    ("os_release", "arch", "made"),
    [
        pytest.param('ID=debian\nVERSION_CODENAME="trixie"\n', "amd64", Distribution("trixie"), id="debian"),
        pytest.param("ID=ubuntu\nVERSION_CODENAME=jammy\n", "amd64", "http://archive.ubuntu.com/ubuntu", id="ubuntu"),
        pytest.param("", "arm64", "http://ports.ubuntu.com/ubuntu-ports", id="anything-on-arm"),
    ],
)
def test_what_debootstrap_makes(os_release: str, arch: str, made: Distribution | str) -> None:
    wanted = Distribution("noble", made) if isinstance(made, str) else made
    assert distribution(os_release, arch) == wanted
