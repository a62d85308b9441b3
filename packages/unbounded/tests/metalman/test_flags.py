"""Settings of `metalman serve-pxe` from its flags, its environment and its file."""

from __future__ import annotations

import argparse
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest

from unbounded.api.names import PCRPolicy
from unbounded.kube.options import SettingsError
from unbounded.kube.settings import Address, Election, ProcessSettings
from unbounded.metalman import flags
from unbounded.metalman.main import main
from unbounded.metalman.settings import DhcpMode, MediaSettings, MetalmanSettings, NetbootSettings


def serve_pxe(*arguments: str, **environ: str) -> tuple[MetalmanSettings, ProcessSettings]:
    parser = argparse.ArgumentParser()
    flags.add_arguments(parser, environ, netboot=True)
    return flags.parse_settings(parser.parse_args(arguments), environ, netboot=True)


def netboot(*arguments: str, **environ: str) -> NetbootSettings:
    found = serve_pxe(*arguments, **environ)[0].netboot
    assert found is not None
    return found


def test_without_a_word_it_is_as_the_reference_says() -> None:
    settings, process = serve_pxe()
    assert (settings.site, settings.concurrent, settings.attempts, settings.poll_s) == ("", 10, 3, 5.0)
    assert settings.election == Election(duration_s=15, renew_s=10, retry_s=2)
    assert settings.netboot == NetbootSettings()
    assert (process.health, process.leader_election) == ((Address("", 8081),), True)
    assert settings.netboot.cache_dir == Path.home() / ".unbounded/metalman/cache"
    ports = settings.netboot
    assert (ports.http_port, ports.tftp_port, ports.dhcp_port, ports.bind_address) == (8880, 69, 67, "0.0.0.0")


FIELDS = [
    ("cache-dir", "/c", "cache_dir", Path("/c")),
    ("docker-config", "/d.json", "docker_config", Path("/d.json")),
    ("bind-address", "10.0.0.1", "bind_address", "10.0.0.1"),
    ("http-port", "80", "http_port", 80),
    ("tftp-port", "6969", "tftp_port", 6969),
    ("dhcp-port", "6767", "dhcp_port", 6767),
    ("dhcp-interface", "eth1", "interface", "eth1"),
    ("dhcp-auto-interface", "true", "auto_interface", True),
    ("dhcp-relay", "10.1.0.1,10.2.0.0/24", "relays", (ip_network("10.1.0.1"), ip_network("10.2.0.0/24"))),
    ("serve-url", "http://boot.example:80/", "serve_url", "http://boot.example:80"),
    ("apiserver-url", "https://api:6443", "apiserver_url", "https://api:6443"),
    ("attest-require-challenge", "false", "challenge", False),
    ("pcr-policy", "Required", "pcr_policy", PCRPolicy.REQUIRED),
    ("cluster-dns", "10.96.0.10", "cluster_dns", "10.96.0.10"),
    ("artifact-mirror", "https://mirror/all", "artifact_mirror", "https://mirror/all"),
    ("default-netboot-image", "r/i:v1", "default_image", "r/i:v1"),
    ("default-netboot-pull-secret", "unbounded-kube/pull", "default_pull_secret", ("unbounded-kube", "pull")),
    (
        "trusted-proxy",
        "10.0.0.0/8,192.0.2.1",
        "trusted_proxies",
        (ip_network("10.0.0.0/8"), ip_network("192.0.2.1")),
    ),
]


@pytest.mark.parametrize("place", ["flag", "environment", "file"])
@pytest.mark.parametrize(("name", "text", "field", "wanted"), FIELDS)
def test_every_setting_may_stand_in_each_of_three_places(
    name: str, text: str, field: str, wanted: Any, place: str, tmp_path: Path
) -> None:
    option = next(one for one in flags.OPTIONS if one.name == name)
    file = tmp_path / "metalman.yaml"
    file.write_text(f"{option.key}: {text}\n")
    match place:
        case "flag":
            found = netboot(f"--{name}", text)
        case "environment":
            found = netboot(**{"METALMAN_" + name.replace("-", "_").upper(): text})
        case _:
            found = netboot("--config", str(file))
    assert getattr(found, field) == wanted


def test_a_flag_counts_before_a_variable_and_that_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "metalman.yaml"
    file.write_text("httpPort: 1\ntftpPort: 2\ndhcpPort: 3\nsite: rack1\n")
    environ = {"METALMAN_HTTP_PORT": "10", "METALMAN_TFTP_PORT": "20", "METALMAN_CONFIG": str(file)}
    found = netboot("--http-port", "100", **environ)
    assert (found.http_port, found.tftp_port, found.dhcp_port) == (100, 20, 3)
    assert serve_pxe(**environ)[0].site == "rack1"


@pytest.mark.slow
def test_lists_may_be_given_again_or_as_a_list_in_the_file(tmp_path: Path) -> None:
    file = tmp_path / "metalman.yaml"
    file.write_text("trustedProxy: [10.0.0.1, 10.0.0.2]\n")
    wanted = (ip_network("10.0.0.1"), ip_network("10.0.0.2"))
    assert netboot("--config", str(file)).trusted_proxies == wanted
    assert netboot("--trusted-proxy", "10.0.0.1", "--trusted-proxy", "10.0.0.2").trusted_proxies == wanted


def test_a_truth_needs_no_word_behind_its_flag() -> None:
    assert netboot("--dhcp-auto-interface", "--site", "rack1").auto_interface is True
    assert netboot("--dhcp-auto-interface=false").auto_interface is False


def test_leadership_takes_the_durations_of_kubernetes() -> None:
    given = ("--leader-elect-lease-duration", "1m30s", "--leader-elect-renew-deadline", "1m")
    settings, _ = serve_pxe(*given, "--leader-elect-retry-period", "500ms")
    assert settings.election == Election(duration_s=90, renew_s=60, retry_s=0.5)


def test_virtual_media_needs_a_certificate_and_its_key(tmp_path: Path) -> None:
    pem = tmp_path / "site.pem"
    pem.write_text("-")
    assert netboot().media is None
    given = ("--media-certificate", str(pem), "--media-key", str(pem))
    assert netboot(*given).media == MediaSettings(certificate=pem, key=pem)
    more = ("--media-url", "https://m:1/", "--media-port", "2", "--media-ticket-lifetime", "2h")
    expected = MediaSettings(certificate=pem, key=pem, url="https://m:1", port=2, lifetime_s=7200.0)
    assert netboot(*given, *more).media == expected


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("cache-dir: /c", r"unknown option 'cache-dir'; did you mean cacheDir\?"),
        ("CACHE_DIR: /c", r"unknown option 'CACHE_DIR'; did you mean cacheDir\?"),
        ("dhcpInterfaces: eth0", r"unknown option 'dhcpInterfaces'; did you mean dhcpInterface\?"),
        ("colour: green", "unknown option 'colour'; known options: .*, cacheDir, .*, trustedProxy"),
        ("httpPort: 65536", r"httpPort in .*metalman.yaml: '65536' is not a port: 0 to 65535"),
        ("httpPort: [1]", "httpPort: must be a string, a number, true or false, not a list"),
        ("httpPort: {a: 1}", "httpPort: must be a string, a number, true or false, not keys and values"),
        ("trustedProxy: {a: 1}", "trustedProxy: must be a string or a list of strings, not keys and values"),
        ("serveUrl: https://boot", "serveUrl in .*: boot loaders use plain http"),
        ("- httpPort", "must be a mapping, not a list"),
        ("just words", "must be a mapping, not a str"),
        ("{", "not YAML"),
        ("dhcpInterface: eth0\ndhcpAutoInterface: true", "dhcpInterface in .* and dhcpAutoInterface in .* exclude"),
    ],
)
def test_a_file_that_cannot_be_meant_is_refused_by_its_key(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "metalman.yaml"
    file.write_text(content)
    with pytest.raises(SettingsError, match=words):
        serve_pxe("--config", str(file))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=f"--config {tmp_path}/none: No such file or directory"):
        serve_pxe("--config", str(tmp_path / "none"))


def test_an_empty_file_says_nothing(tmp_path: Path) -> None:
    file = tmp_path / "metalman.yaml"
    file.write_text("# nothing yet\n")
    assert netboot("--config", str(file)) == NetbootSettings()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--dhcp-interface", "eth0", "--dhcp-auto-interface"], "--dhcp-interface and --dhcp-auto-interface exclude"),
        (["--dhcp-mode", "proxy"], "--dhcp-mode proxy needs --dhcp-interface NAME or --dhcp-auto-interface"),
        (["--dhcp-mode", "relay", "--dhcp-interface", "eth0"], "--dhcp-mode relay excludes --dhcp-interface"),
        (["--dhcp-mode", "both"], "'both' is not a mode: choose from auto, interface, relay, proxy, none"),
        (["--dhcp-interface", "a-name-that-is-too-long"], "is not a valid interface name"),
        (["--bind-address", "::1"], "'::1' is not an IPv4 address"),
        (["--serve-url", "boot:8880"], "'boot:8880' is not a URL like http://192.0.2.1:8880"),
        (["--serve-url", "http://u:p@boot"], "is not a URL like"),
        (["--dhcp-relay", "2001:db8::1"], "2001:db8::1/128 is not an IPv4 network"),
        (["--cluster-dns", "dns"], "'dns' is not an IPv4 address"),
        (["--default-netboot-image", "UPPER/case"], "'UPPER/case' is not an image"),
        (["--default-netboot-pull-secret", "pull"], "'pull' is not a Secret: write NAMESPACE/NAME"),
        (["--ek-ca", "/no/such/file"], "'/no/such/file' is not a file"),
        (["--media-key", "/no/such/file"], "'/no/such/file' is not a file"),
        (["--media-certificate", __file__], "--media-certificate needs --media-key FILE"),
        (["--media-key", __file__], "--media-key needs --media-certificate FILE"),
        (["--media-url", "https://m"], "--media-url needs --media-certificate FILE and --media-key FILE"),
        (["--media-port", "1"], "--media-port needs --media-certificate FILE and --media-key FILE"),
        (["--media-ticket-lifetime", "2h"], "--media-ticket-lifetime needs --media-certificate FILE and --media-key"),
        (["--media-url", "http://m"], "'http://m': BMCs fetch boot images by https; write https://…"),
        (["--media-ticket-lifetime", "9m"], "'9m' is not from 10m to 24h"),
        (["--pcr-policy", "required"], "'required' is not a policy: choose from Required, Recorded"),
        (["--trusted-proxy", "10.0.0.1/8"], "is not an address or network, such as 10.0.0.0/8"),
        (["--operation-max-attempts", "0"], "'0' is not a number from 1"),
        (["--operation-poll-interval", "5"], "'5' is not a duration: write 15s, 1m30s or 500ms"),
        (["--operation-poll-interval", "0s"], "'0s' is not a duration"),
        (
            ["--leader-elect-renew-deadline", "20s"],
            "--leader-elect-retry-period must be below --leader-elect-renew-deadline",
        ),
        (["--http-ports", "1"], "unrecognized arguments: --http-ports"),
        (["controller-too"], "unrecognized arguments"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_flag(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["serve-pxe", *arguments])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_a_variable_that_cannot_be_meant_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("METALMAN_HTTP_PORT", "http")
    with pytest.raises(SystemExit):
        main(["serve-pxe"])
    assert "$METALMAN_HTTP_PORT: 'http' is not a port: 0 to 65535" in capsys.readouterr().err


def test_the_controllers_alone_are_told_nothing_of_servers(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["controller", "--tftp-port", "69"])
    assert "unrecognized arguments: --tftp-port" in capsys.readouterr().err


def test_they_may_share_the_file_of_the_servers(tmp_path: Path) -> None:
    file = tmp_path / "metalman.yaml"
    file.write_text("site: rack1\ntftpPort: 6969\n")
    parser = argparse.ArgumentParser()
    flags.add_arguments(parser, {}, netboot=False)
    settings, _ = flags.parse_settings(parser.parse_args(["--config", str(file)]), {}, netboot=False)
    assert settings == MetalmanSettings(site="rack1", netboots=False)


def test_every_option_has_another_name_in_the_file_and_in_the_environment() -> None:
    for names in ([one.key for one in flags.OPTIONS], [one.variable("METALMAN") for one in flags.OPTIONS]):
        assert len(set(names)) == len(flags.OPTIONS)
    assert DhcpMode("auto") is NetbootSettings().dhcp_mode
