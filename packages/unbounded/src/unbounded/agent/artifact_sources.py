"""Sources of a node's artifacts: a table, and the placeholders for version and architecture in a URL. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from unbounded.agent.model import NodeGoal
from unbounded.api.failures import Rejected
from unbounded.api.fields import RELEASE_VERSION
from unbounded.join.agent_config import ArtifactSource

KUBERNETES: Final = ("kubelet", "kubectl", "kube-proxy")
SANDBOX: Final = "1.0.0"  # version of images/sandbox
_PLACE: Final = re.compile(r"%(?:\[([0-9]+)\])?([sv])|\{(\w+)\}")


@dataclass(frozen=True)
class _Published:
    """Layout of the URLs of one project's releases.

    Args:
        base: of its URLs; BaseURL replaces it.
        path: below the base.
        checksum: of the file with the sha256; `*` is the artifact's own URL.
        order: meaning of the plain %s in a URL that has as many of them, from left to right.
    """

    base: str
    path: str
    checksum: str
    order: tuple[str, ...]


_GITHUB: Final = "https://github.com/{}/releases/download"
PUBLISHED: Final[Mapping[str, _Published]] = {
    "kubernetes": _Published(
        "https://dl.k8s.io",
        "v{version}/bin/linux/{arch}/{name}",
        "*.sha256",
        ("version", "arch", "name"),
    ),
    "containerd": _Published(
        _GITHUB.format("containerd/containerd"),
        "v{version}/containerd-{version}-linux-{arch}.tar.gz",
        "*.sha256sum",
        ("version", "version", "arch"),
    ),
    "runc": _Published(
        _GITHUB.format("opencontainers/runc"),
        "v{version}/runc.{arch}",
        "runc.sha256sum",
        ("version", "arch"),
    ),
    "cni": _Published(
        _GITHUB.format("containernetworking/plugins"),
        "v{version}/cni-plugins-linux-{arch}-v{version}.tgz",
        "*.sha256",
        ("version", "arch", "version"),
    ),
    "crictl": _Published(
        _GITHUB.format("kubernetes-sigs/cri-tools"),
        "v{version}/crictl-v{version}-linux-{arch}.tar.gz",
        "*.sha256",
        ("version", "version", "arch"),
    ),
    "sandbox": _Published("", "sandbox/v{version}/sandbox-{arch}.tar", "*.sha256", ("version", "arch")),
}


@dataclass(frozen=True)
class Artifact:
    """One file of a release.

    Args:
        name: kubelet, kubectl, kube-proxy, containerd, runc, cni, crictl or sandbox.
        checksum_url: URL of its sha256, if the project publishes one.
        fixed: the URL names the version, so its content does not change.
        sha256: required digest, which overrides a published one; empty where the configuration names none.
    """

    name: str
    version: str
    url: str
    checksum_url: str
    fixed: bool = True
    sha256: str = ""

    @property
    def file_name(self) -> str:
        """Name of the file in lists of checksums."""
        return self.shown.rpartition("/")[2]

    @property
    def shown(self) -> str:
        """URL for messages."""
        return redacted_url(self.url)


def redacted_url(url: str) -> str:
    """Return a URL for messages: without its query, which may hold a credential."""
    return url.partition("?")[0]


def artifacts(spec: NodeGoal, arch: str) -> tuple[Artifact, ...]:
    """Return the artifacts that every node needs. The sandbox image is not among them, as some node images contain it
    (`sandbox_artifact`).

    Args:
        arch: amd64, arm64.
    Raises:
        Rejected: a URL has an unknown placeholder, or a version is invalid; the message names its key.
    """
    downloads = spec.downloads
    version = _checked("Kubernetes", spec.kubernetes_version)
    return (
        *(_artifact("kubernetes", name, version, arch, downloads.kubernetes) for name in KUBERNETES),
        _artifact("containerd", "containerd", spec.containerd_version, arch, downloads.containerd),
        _artifact("runc", "runc", spec.runc_version, arch, downloads.runc),
        _artifact("cni", "cni", spec.cni_version, arch, downloads.cni),
        _artifact("crictl", "crictl", downloads.crictl.version or crictl_version(version), arch, downloads.crictl),
    )


def sandbox_artifact(spec: NodeGoal, arch: str) -> Artifact | None:
    """Return the archive of the sandbox image; None where no mirror is named: then the node image has to contain it.

    Raises:
        Rejected: as artifacts does.
    """
    source = spec.downloads.sandbox
    if not source.url and not source.base_url:
        return None
    return _artifact("sandbox", "sandbox", source.version or SANDBOX, arch, source)


def crictl_version(kubernetes: str) -> str:
    """Return crictl's version: one release for each minor version of Kubernetes. Raises Rejected as artifacts does."""
    major, minor = _checked("Kubernetes", kubernetes).split(".")[:2]
    return f"{major.removeprefix('v')}.{minor}.0"


def _checked(key: str, version: str) -> str:
    """Return a version that is safe in a URL; Machines and slots may be older than the validation of their versions."""
    if not re.fullmatch(RELEASE_VERSION, version):
        raise Rejected(f"Downloads.{key}.Version {version!r}: must be a version such as 1.34.0")
    return version


def _artifact(project: str, name: str, version: str, arch: str, source: ArtifactSource) -> Artifact:
    published = PUBLISHED[project]
    values = {"version": _checked(_KEYS[project], version), "arch": arch, "name": name}
    if source.url:
        url = _filled(source.url, values, published.order, f"Downloads.{_KEYS[project]}.URL")
        fixed = url != _filled(source.url, {**values, "version": "0"}, published.order, "")
        if project == "kubernetes" and url == _filled(source.url, {**values, "name": "-"}, published.order, ""):
            where = f"Downloads.Kubernetes.URL {redacted_url(source.url)!r}"
            raise Rejected(f"{where}: needs {{name}} or %[3]s, for {', '.join(KUBERNETES)}")
    else:
        url, fixed = f"{(source.base_url or published.base).rstrip('/')}/{published.path.format(**values)}", True
    return Artifact(name, version, url, _beside(url, published.checksum), fixed, source.sha256)


_KEYS: Final = {
    "kubernetes": "Kubernetes",
    "containerd": "Containerd",
    "runc": "Runc",
    "cni": "CNI",
    "crictl": "Crictl",
    "sandbox": "Sandbox",
}


def _beside(url: str, checksum: str) -> str:
    """Return the URL of a checksum, with the query of the artifact's URL."""
    path, mark, query = url.partition("?")
    path = checksum.replace("*", path) if "*" in checksum else f"{path.rpartition('/')[0]}/{checksum}"
    return f"{path}{mark}{query}"


def _filled(url: str, values: Mapping[str, str], order: tuple[str, ...], key: str) -> str:
    """Return a URL with its placeholders filled: {version}, {arch} and {name}; %[1]s, %[2]s and %[3]s with the same
    meaning; or %s in the order of the project's own URLs.
    """
    plain = [match for match in _PLACE.finditer(url) if match.group(2) and not match.group(1)]
    turns = iter(order if len(plain) == len(order) else ("version", "arch", "name"))

    def value(match: re.Match[str]) -> str:
        number, _, word = match.groups()
        numbered = ("version", "arch", "name")
        try:
            name = word or (numbered[int(number) - 1] if number and number != "0" else next(turns))
            return values[name]
        except (KeyError, IndexError, StopIteration):
            places = "{version} or %[1]s, {arch} or %[2]s, {name} or %[3]s"
            raise Rejected(
                f"{key} {redacted_url(url)!r}: unknown placeholder {match.group()}; supported: {places}"
            ) from None

    return _PLACE.sub(value, url)
