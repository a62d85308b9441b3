"""The way of the install script to the release: proxies and authorities of the agent's configuration."""

from __future__ import annotations

import json
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec
import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from tests.join.releases import Releases, releases
from tests.join.signing import PUBLIC_KEY, signature
from tests.join.test_agent_install import CONFIG, NAME, Host
from tests.support.forward_proxy import ForwardProxy, forward_proxy
from unbounded.join.agent_config import AgentConfig, Proxy, UpgradeConfig, config_text
from unbounded.join.agent_install import install_script

pytestmark = pytest.mark.slow

PATH: Final = f"/latest/download/{NAME}"
TOOLS: Final = pytest.mark.parametrize("tool", ["curl", "wget"])


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """An authority that only a bundle has."""
    return trustme.CA()


@pytest.fixture(scope="module")
def secure(authority: trustme.CA) -> Iterator[Releases]:
    """A server of releases over https."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with releases(context) as served:
        yield served


@pytest.fixture(scope="module")
def plain() -> Iterator[Releases]:
    with releases() as served:
        yield served


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[ForwardProxy]:
    with forward_proxy(tmp_path / "proxy") as running:
        yield running


def host_of(served: Releases, folder: Path, **changed: Any) -> Host:
    """A host whose agent's configuration has these fields, for a server with one release."""
    folder.mkdir(exist_ok=True)
    made = Host(folder, served)
    served.asked.clear()
    served.files = {PATH: made.release()}
    made.config.write_text(config_text(msgspec.structs.replace(CONFIG, **changed)))
    return made


def bundle(authority: trustme.CA) -> str:
    return str(authority.cert_pem.bytes().decode())


@TOOLS
def test_a_server_that_the_bundle_alone_trusts_is_trusted(
    secure: Releases, authority: trustme.CA, tmp_path: Path, tool: str
) -> None:
    host = host_of(secure, tmp_path / "without")
    host.only(tool)
    refused = host.install(AGENT_SHA256="")
    assert refused.returncode == 1
    assert "certificate" in refused.stderr
    trusting = host_of(secure, tmp_path / "with", ca_bundle=bundle(authority))
    trusting.only(tool)
    ran = trusting.install(AGENT_SHA256="")
    assert ran.returncode == 0, ran.stderr
    assert trusting.left == []


@TOOLS
def test_a_bundle_adds_to_what_the_host_trusts(
    secure: Releases, authority: trustme.CA, tmp_path: Path, tool: str
) -> None:
    host = host_of(secure, tmp_path / "host", ca_bundle=bundle(trustme.CA()))
    host.only(tool)
    own = tmp_path / "own.pem"
    own.write_text(bundle(authority))
    ran = host.install(AGENT_SHA256="", SSL_CERT_FILE=str(own))
    assert ran.returncode == 0, ran.stderr


@TOOLS
@pytest.mark.parametrize("mirror", [False, True], ids=["release", "mirror"])
def test_what_comes_over_https_comes_through_the_proxy_with_its_signature(
    secure: Releases, authority: trustme.CA, proxy: ForwardProxy, tmp_path: Path, tool: str, mirror: bool
) -> None:
    way = Proxy(http="http://127.0.0.1:1", https=proxy.url, no_proxy=(".example.com",))
    upgrade = UpgradeConfig(public_key=PUBLIC_KEY)
    host = host_of(secure, tmp_path / "host", ca_bundle=bundle(authority), proxy=way, upgrade=upgrade)
    packed = secure.files[PATH]
    folder = "/mirror" if mirror else ""
    secure.files = {f"{folder}{PATH}": packed, f"{folder}{PATH}.sig": signature(packed)}
    host.only(tool, "openssl")
    ran = host.install(AGENT_SHA256="", AGENT_BASE_URL=f"{secure.base}{folder}/")
    assert ran.returncode == 0, ran.stderr
    assert proxy.asked == [f"CONNECT 127.0.0.1:{urlsplit(secure.base).port} HTTP/1.1"] * 2
    assert not [name for name in host.environment() if name.lower().endswith("_proxy")], "the agent has its own"


@TOOLS
def test_http_download_uses_the_proxy_except_for_no_proxy_hosts(
    plain: Releases, proxy: ForwardProxy, tmp_path: Path, tool: str
) -> None:
    host = host_of(plain, tmp_path / "proxied", proxy=Proxy(http=proxy.url))
    host.only(tool)
    assert host.install().returncode == 0
    assert proxy.asked == [f"GET {plain.base}{PATH} HTTP/1.1"]
    direct = host_of(plain, tmp_path / "direct", proxy=Proxy(http=proxy.url, no_proxy=("10.0.0.1", "127.0.0.1")))
    direct.only(tool)
    assert direct.install().returncode == 0
    assert len(proxy.asked) == 1
    assert len(plain.asked) == 1


@TOOLS
def test_a_proxy_of_the_host_counts_where_the_configuration_names_none(
    plain: Releases, proxy: ForwardProxy, tmp_path: Path, tool: str
) -> None:
    host = host_of(plain, tmp_path / "host")
    host.only(tool)
    assert host.install(http_proxy=proxy.url).returncode == 0
    assert len(proxy.asked) == 1


@TOOLS
def test_a_proxy_that_refuses_or_is_away_is_named(plain: Releases, tmp_path: Path, tool: str) -> None:
    with forward_proxy(tmp_path / "proxy", "Allow 192.0.2.1") as refusing:
        for name, url in (("refusing", refusing.url), ("away", "http://127.0.0.1:1")):
            host = host_of(plain, tmp_path / name, proxy=Proxy(http=url, https=url))
            host.only(tool)
            for base in (plain.base, "https://release.invalid"):
                ran = host.install(AGENT_BASE_URL=base)
                assert ran.returncode == 1
                assert "cannot be had (the agent's configuration names a proxy)" in ran.stderr
    assert plain.asked == []


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"proxy": Proxy(http="proxy:3128")}, "Proxy.HTTP of {file}: a URL that begins with http:// or https://"),
        ({"proxy": Proxy(https="http://u:hush@proxy")}, "Proxy.HTTPS of {file}: a URL without a user"),
        ({"proxy": Proxy(https="http://a b")}, "Proxy.HTTPS of {file}: a URL without a user, spaces and escapes"),
    ],
)
def test_a_wrong_proxy_is_named_by_its_key(
    plain: Releases, tmp_path: Path, changed: dict[str, Any], words: str
) -> None:
    host = host_of(plain, tmp_path / "host", **changed)
    ran = host.install()
    assert (ran.returncode, plain.asked) == (1, [])
    assert words.format(file=host.config) in ran.stderr
    assert "hush" not in ran.stderr


def test_a_bundle_with_a_broken_certificate_is_named_by_its_key(secure: Releases, tmp_path: Path) -> None:
    broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
    host = host_of(secure, tmp_path / "host", ca_bundle=broken)
    host.only("curl")
    ran = host.install(AGENT_SHA256="", CURL_CA_BUNDLE=str(tmp_path / "none"))
    assert ran.returncode == 1
    assert f"CaBundle of {host.config}" in ran.stderr


def test_wget_without_tls_checks_gets_no_unverified_release(plain: Releases, tmp_path: Path) -> None:
    host = host_of(plain, tmp_path / "host")
    host.only()
    wget = Path(host.path) / "wget"
    wget.write_text("#!/bin/sh\nexit 1\n")  # that of busybox does not mention GNU
    wget.chmod(0o755)
    ran = host.install(AGENT_BASE_URL="https://release.invalid", AGENT_SHA256="")
    assert ran.returncode == 1
    assert "may not check who answers for https://release.invalid" in ran.stderr


READ: Final = '\nprintf "%s\\n" ${proxies[@]+"${proxies[@]}"} "ca:$authorities"\nexit\n'


def read_by_script(content: str, folder: Path) -> str:
    """Return what the script reads of a configuration."""
    head, _, _ = install_script().partition("machine=$(uname -m)")
    (folder / "c.json").write_text(content)
    (folder / "read.sh").write_text(head + READ)
    ran = subprocess.run(
        ["bash", folder / "read.sh"],
        env={"PATH": "/usr/bin:/bin", "UNBOUNDED_AGENT_CONFIG_FILE": str(folder / "c.json")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return ran.stdout


HOSTS: Final = st.from_regex(r"[a-z0-9.\[\]{}:-]{1,20}", fullmatch=True)
LABELS: Final = st.dictionaries(
    st.sampled_from(["Proxy", "HTTP", "HTTPS", "NoProxy", "CaBundle", "Upgrade"]),
    st.sampled_from(["x", '"HTTP": "http://wrong"', '{"HTTP": "http://wrong"}', "-----BEGIN", "\\", '\\"']),
)


@given(
    http=st.booleans(),
    https=st.booleans(),
    direct=st.lists(HOSTS, max_size=3),
    labels=LABELS,
    comment=st.sampled_from(["", '# Label: "Root {1}" \\ /\n', "é\n"]),
    indent=st.sampled_from([None, 0, 2, 5]),
)
def test_the_script_reads_what_the_agent_reads(
    tmp_path_factory: pytest.TempPathFactory,
    authority: trustme.CA,
    http: bool,
    https: bool,
    direct: list[str],
    labels: dict[str, str],
    comment: str,
    indent: int | None,
) -> None:
    way = Proxy(http="http://[::1]:3128" if http else "", https="http://p/" if https else "", no_proxy=tuple(direct))
    pem = comment + bundle(authority)
    config = msgspec.structs.replace(
        CONFIG, kubelet=msgspec.structs.replace(CONFIG.kubelet, labels=labels), proxy=way, ca_bundle=pem
    )
    text = config_text(config) if indent is None else json.dumps(json.loads(config_text(config)), indent=indent)
    assert msgspec.json.decode(text, type=AgentConfig) == config
    found = read_by_script(text, tmp_path_factory.mktemp("read"))
    proxies, _, authorities = found.partition("ca:")
    expected = [f"http_proxy={way.http}"] * http + [f"https_proxy={way.https}"] * https
    assert proxies.split() == expected + [f"no_proxy={','.join(direct)}"] * bool(direct)
    assert authorities.endswith(f"\n{bundle(authority)}" if comment else bundle(authority))
