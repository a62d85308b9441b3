from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fetch.registries import docker_config
from unbounded.fetch.archive import link_of, names_of
from unbounded.fetch.failures import Denied, UnusableContent
from unbounded.fetch.logins import RegistryLogins
from unbounded.fetch.reference import Digest, Platform, Reference
from unbounded.fetch.registry import AuthChallenge, challenges

HEX = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "whole", "host"),
    [
        ("debian", "docker.io/library/debian:latest", "registry-1.docker.io"),
        ("debian:12", "docker.io/library/debian:12", "registry-1.docker.io"),
        ("index.docker.io/debian", "docker.io/library/debian:latest", "registry-1.docker.io"),
        ("project/tool", "docker.io/project/tool:latest", "registry-1.docker.io"),
        ("localhost/a", "localhost/a:latest", "localhost"),
        ("localhost:5000/a/b:v1", "localhost:5000/a/b:v1", "localhost:5000"),
        ("ghcr.io/a/b.c_d__e-f:V1.2-x", "ghcr.io/a/b.c_d__e-f:V1.2-x", "ghcr.io"),
        ("[::1]:5000/a", "[::1]:5000/a:latest", "[::1]:5000"),
        (f"r.io/a@sha256:{HEX}", f"r.io/a@sha256:{HEX}", "r.io"),
        (f"r.io/a:v1@sha256:{HEX}", f"r.io/a:v1@sha256:{HEX}", "r.io"),
    ],
)
def test_references_have_dockers_defaults(text: str, whole: str, host: str) -> None:
    reference = Reference.parse(text)
    assert (str(reference), reference.host) == (whole, host)
    assert Reference.parse(str(reference)) == reference
    assert reference.tag_or_digest == (f"sha256:{HEX}" if "@" in text else reference.tag)


REFUSED = ("", "/", "A", "r.io/", "r.io/A", "a:", "a:-x", "a//b", "../a", "r.io/a/../b", "a@sha256:00", "a@", "a?x=y",
           f"a@md5:{HEX}", "r.io:port/a", "ü.io/a", "a b", "http://r.io/a", "r.io/a:" + "t" * 129, "a" * 256,
           f"a@sha256:{HEX.upper()}")  # fmt: skip


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(UnusableContent):
        Reference.parse(text)


@pytest.mark.slow
@given(st.text(alphabet="aA0.:/@-_[]é \0", max_size=30))
def test_a_reference_is_refused_or_stands_for_itself(text: str) -> None:
    try:
        reference = Reference.parse(text)
    except UnusableContent:
        return
    assert Reference.parse(str(reference)) == reference
    assert ".." not in reference.repository.split("/")


def test_platforms_fit_by_variant() -> None:
    arm = Platform.parse("linux/aarch64")
    assert arm == Platform("linux", "arm64")
    assert arm.fits(Platform("linux", "arm64", "v8")) > arm.fits(Platform("linux", "arm64", "v9")) > 0
    assert Platform("linux", "arm", "v7").fits(Platform("linux", "arm", "v6")) == 0
    assert not arm.fits(Platform("windows", "arm64"))
    for text in ("linux", "a/b/c/d", "linux/", "/amd64"):
        with pytest.raises(UnusableContent):
            Platform.parse(text)


@pytest.mark.parametrize(
    ("header", "wanted"),
    [
        ('Basic realm="a, b"', [("basic", {"realm": "a, b"})]),
        (
            'Bearer realm="https://x/t",service="s",scope="repository:a/b:pull,push"',
            [("bearer", {"realm": "https://x/t", "service": "s", "scope": "repository:a/b:pull,push"})],
        ),
        ('Negotiate, Basic realm=x, Bearer Realm = "q\\"uote"', [("negotiate", {}), ("basic", {"realm": "x"}),
            ("bearer", {"realm": 'q"uote'})]),
        ("", []),
        ('="', []),
    ],
)  # fmt: skip
def test_challenges_are_read(header: str, wanted: list[tuple[str, dict[str, str]]]) -> None:
    assert challenges([header]) == [AuthChallenge(scheme, parameters) for scheme, parameters in wanted]


@pytest.mark.slow
@given(st.text(alphabet='aB=", \\/;é', max_size=40))
def test_any_challenge_header_can_be_read(header: str) -> None:
    assert challenges([header, header]) == 2 * challenges([header])


def test_the_login_for_the_longest_path_comes_first() -> None:
    names = ("r.io", "https://r.io/team/", "r.io/team/tool", "*.example.com", "https://index.docker.io/v1/", "other.io")
    logins = RegistryLogins.from_secret(docker_config({name: {"username": name, "password": "p"} for name in names}))

    def users(text: str) -> list[str]:
        return [login.user for login in logins.find(Reference.parse(text))]

    assert users("r.io/team/tool") == ["r.io/team/tool", "https://r.io/team/", "r.io"]
    assert users("r.io/teams/tool") == ["r.io"]
    assert users("a.example.com/x") == ["*.example.com"]
    assert users("a.b.example.com/x") == users("nowhere.io/x") == []
    assert users("debian") == ["https://index.docker.io/v1/"]


def test_logins_that_cannot_be_read_are_named_without_what_they_hold(tmp_path: Path) -> None:
    for data in (
        b"{",
        b"[]",
        b'{"auths": {"r.io": {"auth": "c2VjcmV0"}}}',
        b'{"auths": {"r.io": {"auth": "\xc3\xa9"}}}',
    ):
        with pytest.raises(Denied, match="pull secret") as caught:
            RegistryLogins.from_secret(data)
        assert "secret" not in str(caught.value).replace("pull secret", "")
    assert RegistryLogins.from_file(tmp_path / "none") == RegistryLogins()
    assert "p4ssw0rd" not in repr(
        RegistryLogins.from_secret(docker_config({"r.io": {"username": "me", "password": "p4ssw0rd"}}))
    )


@pytest.mark.parametrize(
    "text", ["", "sha256", "sha256:", f"sha256:{HEX}0", f"SHA256:{HEX}", f"sha512:{HEX}", f"sha256:{HEX[:-2]}/."]
)
def test_what_is_no_digest_is_refused(text: str) -> None:
    with pytest.raises(UnusableContent):
        Digest.parse(text)


@pytest.mark.slow
@given(st.text(max_size=40) | st.lists(st.sampled_from(["..", ".", "", "a", "/"]), max_size=8).map("/".join))
def test_names_never_lead_out_of_their_root(path: str) -> None:
    try:
        names = names_of(path)
    except UnusableContent:
        return
    place = os.path.normpath(os.path.join("/root", *names))
    assert place == "/root" or place.startswith("/root/")
    assert not set(names) & {"", ".", ".."}


@pytest.mark.slow
@given(st.lists(st.sampled_from(["..", ".", "", "a", "b"]), max_size=8).map("/".join), st.integers(1, 4))
def test_links_never_lead_out_of_their_root(target: str, depth: int) -> None:
    try:
        held = link_of(target, ("d",) * depth)
    except UnusableContent:
        return
    assert not held.startswith("/")
    folder = "/root" + "/d" * (depth - 1)
    assert os.path.normpath(os.path.join(folder, held)).startswith("/root")
