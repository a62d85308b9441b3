"""Flags of network boot of `unbounded up`: their effect, and their errors."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from unbounded.api.names import PCRPolicy
from unbounded.cli import pxe
from unbounded.cli.main import main
from unbounded.cli.settings import UpSettings, add_up_arguments, up_settings_of
from unbounded.metalman.settings import DhcpMode, MediaSettings, NetbootSettings


def up(*arguments: str) -> UpSettings:
    parser = argparse.ArgumentParser()
    add_up_arguments(parser, {})
    return up_settings_of(parser.parse_args(arguments))


def test_nothing_is_served_to_booting_machines_unless_an_interface_is_named() -> None:
    assert up().netboot is None


def test_images_are_kept_with_everything_else() -> None:
    found = up("--data", "/d", "--pxe-interface", "br0").netboot
    assert found == NetbootSettings(
        cache_dir=Path("/d/metalman/cache"), interface="br0", dhcp_mode=DhcpMode.INTERFACE, flags=pxe.FLAGS
    )


def test_every_flag_reaches_its_setting(tmp_path: Path) -> None:
    roots = tmp_path / "roots.pem"
    roots.write_text("-")
    found = up(
        *("--pxe-interface", "br0", "--pxe-serve-url", "http://boot", "--pxe-dhcp-mode", "proxy"),
        *("--pxe-http-port", "1", "--pxe-tftp-port", "2", "--pxe-dhcp-port", "3"),
        *("--pxe-cluster-dns", "10.96.0.10", "--pxe-ek-ca", str(roots)),
        *("--pxe-media-certificate", str(roots), "--pxe-media-key", str(roots)),
        *("--pxe-media-url", "https://boot/", "--pxe-media-port", "4"),
        *("--pxe-pcr-policy", "Required", "--artifact-mirror", "https://mirror"),
        "--allow-profile-scripts",
    ).netboot
    assert found is not None
    assert (found.serve_url, found.dhcp_mode, found.cluster_dns) == ("http://boot", DhcpMode.PROXY, "10.96.0.10")
    assert (found.http_port, found.tftp_port, found.dhcp_port, found.ek_ca) == (1, 2, 3, roots)
    assert (found.pcr_policy, found.artifact_mirror) == (PCRPolicy.REQUIRED, "https://mirror")
    assert found.allow_profile_scripts
    assert found.media == MediaSettings(certificate=roots, key=roots, url="https://boot", port=4)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--pxe-http-port", "80"], "--pxe-http-port needs --pxe-interface NAME"),
        (["--allow-profile-scripts"], "--allow-profile-scripts needs --pxe-interface NAME"),
        (["--pxe-interface", "br0", "--pxe-http-port", "http"], "--pxe-http-port: 'http' is not a port: 0 to 65535"),
        (["--pxe-interface", "a/b"], "--pxe-interface: 'a/b' is not a valid interface name"),
        (["--pxe-interface", "br0", "--pxe-serve-url", "https://b"], "--pxe-serve-url: 'https://b': boot loaders use"),
        (["--pxe-interface", "br0", "--pxe-dhcp-mode", "relay"], "invalid choice: 'relay'"),
        (["--pxe-interface", "b", "--pxe-media-key", __file__], "--pxe-media-key needs --pxe-media-certificate FILE"),
        (["--pxe-interface", "b", "--pxe-media-port", "1"], "--pxe-media-port needs --pxe-media-certificate FILE"),
        (["--pxe-interface", "b", "--pxe-media-url", "http://m"], "BMCs fetch boot images by https"),
    ],
)
def test_what_cannot_be_meant_is_refused_by_its_flag(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["up", *arguments])
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_an_interface_that_is_not_there_is_refused_before_anything_is_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", "--data", str(tmp_path / "data"), "--pxe-interface", "no-such-if"]) == 1
    assert "error: --pxe-interface: interface no-such-if does not exist; available: " in capsys.readouterr().err
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("url", "warned"),
    [
        ("https://127.0.0.1:6443", True),
        ("https://[::1]:6443", True),
        ("https://localhost:6443", True),
        ("https://api.localhost:6443", True),
        ("https://0.0.0.0:6443", True),
        ("https://10.0.0.1:6443", False),
        ("https://api.example:6443", False),
    ],
)
def test_api_server_unreachable_from_booted_machines_is_warned_with_remedy(url: str, warned: bool) -> None:
    said = pxe.unreachable_warning(url, "10.66.0.1")
    assert bool(said) is warned
    assert not warned or "use --bind 0.0.0.0 --advertise-address 10.66.0.1" in said


def test_the_screen_says_where_machines_boot_from() -> None:
    wanted = NetbootSettings(interface="br0")
    assert (
        pxe.screen_line(wanted, "http://10.66.0.1:8880") == "  netboot     http://10.66.0.1:8880, TFTP and DHCP on br0"
    )
    beside = pxe.screen_line(NetbootSettings(interface="br0", dhcp_mode=DhcpMode.PROXY), "http://10.66.0.1:8880")
    assert beside.endswith("on br0, beside another DHCP server")
