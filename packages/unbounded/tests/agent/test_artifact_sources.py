from __future__ import annotations

import hashlib

import pytest

from tests.agent.goals import goal
from tests.docs.runner import DOCS
from unbounded.agent.artifact_cache import sha256_in
from unbounded.agent.artifact_sources import Artifact, artifacts
from unbounded.agent.node_spec import CNI, CONTAINERD, RUNC
from unbounded.api.failures import Rejected
from unbounded.join.agent_config import AgentConfig, ArtifactSource, Downloads, with_mirror
from unbounded.join.agent_install import install_script

GITHUB = "https://github.com"
DIGEST = hashlib.sha256(b"x").hexdigest()


def by_name(**downloads: ArtifactSource) -> dict[str, Artifact]:
    return {artifact.name: artifact for artifact in artifacts(goal(downloads=Downloads(**downloads)), "arm64")}


def test_without_configuration_everything_comes_from_its_project() -> None:
    assert {name: (artifact.url, artifact.checksum_url) for name, artifact in by_name().items()} == {
        **{
            name: (f"https://dl.k8s.io/v1.34.2/bin/linux/arm64/{name}",) * 1
            + (f"https://dl.k8s.io/v1.34.2/bin/linux/arm64/{name}.sha256",)
            for name in ("kubelet", "kubectl", "kube-proxy")
        },
        "containerd": (
            f"{GITHUB}/containerd/containerd/releases/download/v2.1.8/containerd-2.1.8-linux-arm64.tar.gz",
            f"{GITHUB}/containerd/containerd/releases/download/v2.1.8/containerd-2.1.8-linux-arm64.tar.gz.sha256sum",
        ),
        "runc": (
            f"{GITHUB}/opencontainers/runc/releases/download/v1.5.0/runc.arm64",
            f"{GITHUB}/opencontainers/runc/releases/download/v1.5.0/runc.sha256sum",
        ),
        "cni": (
            f"{GITHUB}/containernetworking/plugins/releases/download/v1.5.1/cni-plugins-linux-arm64-v1.5.1.tgz",
            f"{GITHUB}/containernetworking/plugins/releases/download/v1.5.1/cni-plugins-linux-arm64-v1.5.1.tgz.sha256",
        ),
        "crictl": (
            f"{GITHUB}/kubernetes-sigs/cri-tools/releases/download/v1.34.0/crictl-v1.34.0-linux-arm64.tar.gz",
            f"{GITHUB}/kubernetes-sigs/cri-tools/releases/download/v1.34.0/crictl-v1.34.0-linux-arm64.tar.gz.sha256",
        ),
    }


def test_the_guide_says_what_a_mirror_serves_and_what_else_is_needed() -> None:
    guide = (DOCS / "ssh.md").read_text()
    wanted = goal(
        kubernetes_version="1.34.0",
        containerd_version=CONTAINERD,
        runc_version=RUNC,
        cni_version=CNI,
        downloads=with_mirror(AgentConfig(), "http://m").downloads,
    )
    for artifact in artifacts(wanted, "amd64"):
        path = artifact.url.removeprefix("http://m")
        there = f"`{artifact.name}`" if artifact.name in ("kubectl", "kube-proxy") else f"`{path}`"
        beside = artifact.checksum_url.replace(artifact.url, "…").removeprefix("http://m")
        assert any(there in line and f"`{beside}`" in line for line in guide.splitlines()), artifact
    script = install_script()
    for part in ("/latest/download/", "/download/"):
        assert part in guide
        assert f"url=$base{part}" in script


def test_a_base_url_replaces_the_start_and_its_slash_does_not_matter() -> None:
    found = by_name(
        kubernetes=ArtifactSource(base_url="http://m/k8s/"),
        crictl=ArtifactSource(base_url="http://m/c", version="1.30.1"),
    )
    assert found["kubelet"].url == "http://m/k8s/v1.34.2/bin/linux/arm64/kubelet"
    assert found["crictl"].url == "http://m/c/v1.30.1/crictl-v1.30.1-linux-arm64.tar.gz"


@pytest.mark.parametrize(
    ("url", "filled"),
    [
        pytest.param("http://m/{version}/c-{arch}.tgz", "http://m/2.1.8/c-arm64.tgz", id="words"),
        pytest.param("http://m/%[1]s/c-%[2]s.tgz", "http://m/2.1.8/c-arm64.tgz", id="numbered"),
        pytest.param("http://m/%[2]s/c-%[1]s-%[1]s", "http://m/arm64/c-2.1.8-2.1.8", id="numbered-in-any-order"),
        pytest.param("http://m/v%s/c-%s-linux-%s", "http://m/v2.1.8/c-2.1.8-linux-arm64", id="as-the-project-has-it"),
        pytest.param("http://m/v%s/c-%s", "http://m/v2.1.8/c-arm64", id="version-then-arch"),
        pytest.param("http://m/c%20d.tgz", "http://m/c%20d.tgz", id="an-escape-is-no-place"),
    ],
)
def test_places_of_a_url_are_filled(url: str, filled: str) -> None:
    found = by_name(containerd=ArtifactSource(url=url, base_url="http://not-this"))["containerd"]
    assert found.url == filled
    assert found.checksum_url == f"{filled}.sha256sum"
    assert found.fixed == ("2.1.8" in filled)


def test_a_url_keeps_its_query_on_the_checksum() -> None:
    found = by_name(runc=ArtifactSource(url="https://m/runc-{version}?sig=s"))["runc"]
    assert (found.url, found.checksum_url) == ("https://m/runc-1.5.0?sig=s", "https://m/runc.sha256sum?sig=s")
    assert found.file_name == "runc-1.5.0"


@pytest.mark.parametrize(
    ("sources", "said"),
    [
        pytest.param(
            {"runc": ArtifactSource(url="https://m/{flavour}?sig=hidden")}, "Downloads.Runc.URL", id="unknown-word"
        ),
        pytest.param({"cni": ArtifactSource(url="https://m/%[7]s")}, "Downloads.CNI.URL", id="unknown-number"),
        pytest.param(
            {"kubernetes": ArtifactSource(url="https://m/%s/%s?sig=hidden")}, "kube-proxy", id="no-place-for-names"
        ),
    ],
)
def test_invalid_sources_are_rejected_by_key_and_without_the_query(
    sources: dict[str, ArtifactSource], said: str
) -> None:
    with pytest.raises(Rejected, match=said) as caught:
        by_name(**sources)
    assert "hidden" not in str(caught.value)


@pytest.mark.parametrize("version", ["latest", "1", "1.34.0/../../evil", "1.34.0?a=b", "1.34.0#x", "", "1.34.0 "])
@pytest.mark.parametrize("field", ["kubernetes_version", "containerd_version", "runc_version", "cni_version"])
def test_what_is_no_version_comes_into_no_url(field: str, version: str) -> None:
    """Machines may have been written before their versions were checked."""
    with pytest.raises(Rejected, match=r"Downloads\.\w+\.Version '.*': must be a version such as"):
        artifacts(goal(**{field: version}), "amd64")


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(DIGEST, id="alone"),
        pytest.param(f"{DIGEST.upper()}\n", id="upper-case"),
        pytest.param(f"{'0' * 64}  runc.arm64\n{DIGEST} *runc.amd64\n", id="list"),
        pytest.param(f"{DIGEST}  ./out/runc.amd64\n", id="with-a-path"),
        pytest.param(f"{DIGEST}  runc\n", id="one-line-of-a-renamed-file"),
        pytest.param(f"-----BEGIN PGP\nHash: SHA256\n\n{DIGEST}  runc.amd64\n-----END\n", id="signed"),
    ],
)
def test_a_published_checksum_is_read(text: str) -> None:
    assert sha256_in(text, "runc.amd64", "m") == DIGEST


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("<html>404</html>", id="a-page"),
        pytest.param(f"{DIGEST}  runc.arm64\n{DIGEST}  runc.386\n", id="others"),
        pytest.param(f"{DIGEST}  runc.amd64\n{'0' * 64}  runc.amd64\n", id="two-answers"),
        pytest.param(DIGEST[:-1], id="short"),
    ],
)
def test_what_holds_no_single_checksum_is_refused(text: str) -> None:
    with pytest.raises(Rejected, match=r"does not contain exactly one sha256 of runc\.amd64"):
        sha256_in(text, "runc.amd64", "http://m/runc.sha256sum")
