"""Source of the agent, and its path and that of the configuration to the script, for any content."""

from __future__ import annotations

import json
import subprocess

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.join.test_agent_install import CONFIG
from unbounded.api.machine_spec import AgentSpec
from unbounded.join.agent_config import AgentConfig, ArtifactSource, Downloads, config_text, with_mirror
from unbounded.join.agent_install import (
    NO_DIGEST,
    NO_RELEASE,
    AgentOrigin,
    HostSetup,
    cloud_config,
    exports,
    install_environment,
    install_script,
    origin_of,
    with_image,
)


@pytest.mark.parametrize(
    ("spec", "origin"),
    [
        (None, AgentOrigin("v1", "https://m", "https://u", "d")),
        ({"image": "x"}, AgentOrigin("v1", "https://m", "https://u", "d")),
        ({"url": "https://mine"}, AgentOrigin(url="https://mine")),
        ({"version": "v2"}, AgentOrigin("v2", "https://m")),
        ({"baseURL": "https://b"}, AgentOrigin("v1", "https://b")),
        ({"version": "v2", "url": "https://mine"}, AgentOrigin(url="https://mine")),
        ({"url": "http://mine", "sha256": "e"}, AgentOrigin(url="http://mine", sha256="e")),
        ({"version": "v2", "sha256": "e"}, AgentOrigin("v2", "https://m", sha256="e")),
        ({"sha256": "e"}, AgentOrigin("v1", "https://m", "https://u", "e")),
    ],
    ids=["nothing", "image alone", "url", "version", "base", "both", "url's digest", "version's digest", "digest"],
)
def test_a_machine_says_more_than_the_process(spec: dict[str, str] | None, origin: AgentOrigin) -> None:
    agent = msgspec.convert(spec, AgentSpec) if spec else None
    assert origin_of(agent, AgentOrigin("v1", "https://m", "https://u", "d")) == origin


@pytest.mark.parametrize(
    ("origin", "fault"),
    [
        (AgentOrigin(version="v1"), NO_RELEASE),
        (AgentOrigin(sha256="d"), NO_RELEASE),
        (AgentOrigin(base_url="http://m"), NO_DIGEST),
        (AgentOrigin(base_url="https://m", url="HTTP://u"), NO_DIGEST),
        (AgentOrigin(base_url="http://m", url="https://u"), ""),
        (AgentOrigin(url="http://u", sha256="d"), ""),
        (AgentOrigin(base_url="https://m"), ""),
    ],
)
def test_agent_origin_without_name_or_integrity_is_a_fault(origin: AgentOrigin, fault: str) -> None:
    assert origin.fault == fault


def test_install_environment_has_only_set_values() -> None:
    assert install_environment(AgentOrigin()) == {}
    assert install_environment(AgentOrigin("v1", "https://b", "https://u", "d")) == {
        "AGENT_VERSION": "v1",
        "AGENT_BASE_URL": "https://b",
        "AGENT_URL": "https://u",
        "AGENT_SHA256": "d",
    }


def test_a_mirror_stands_in_for_every_place_that_is_not_named() -> None:
    mine = ArtifactSource(url="https://mine/{version}", version="1")
    config = AgentConfig(
        downloads=Downloads(runc=mine, cni=ArtifactSource(version="1.5.1"), crictl=ArtifactSource(base_url="https://c"))
    )
    found = with_mirror(config, "https://mirror/").downloads
    assert (found.runc, found.crictl) == (mine, ArtifactSource(base_url="https://c"))
    assert found.cni == ArtifactSource(base_url="https://mirror", version="1.5.1")
    assert found.kubernetes == found.containerd == ArtifactSource(base_url="https://mirror")
    assert with_mirror(config, "") is config
    assert with_image(config, "registry.example.com/node:v1").oci_image == "registry.example.com/node:v1"
    assert with_image(AgentConfig(oci_image="own"), "registry.example.com/node:v1").oci_image == "own"


VALUES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=40)


@pytest.mark.slow
@given(
    st.dictionaries(st.from_regex(r"[A-Z_]{1,12}", fullmatch=True).map(lambda name: f"T_{name}"), VALUES, max_size=4)
)
def test_values_come_through_a_shell_as_they_are(environment: dict[str, str]) -> None:
    show = "".join(f'printf "%s\\0" "${name}"\n' for name in sorted(environment))
    ran = subprocess.run(
        ["bash"], input=(exports(environment) + show).encode(), capture_output=True, check=True, timeout=60
    )
    assert ran.stdout.decode().split("\0")[:-1] == [environment[name] for name in sorted(environment)]


def test_a_cloud_config_brings_the_same_files() -> None:
    origin = AgentOrigin(url="https://u/it's?a=\N{SNOWMAN}", version="v1")
    text = cloud_config(HostSetup(CONFIG, origin))
    assert text.startswith("#cloud-config\n")
    told = yaml.safe_load(text)
    files = {one["path"]: one for one in told["write_files"]}
    config, script, unit = files.values()
    assert json.loads(config["content"]) == json.loads(config_text(CONFIG))
    assert (config["permissions"], script["permissions"]) == ("0600", "0700")
    assert script["encoding"] == "b64"  # YAML of another time reads some letters as the ends of lines
    assert f"ExecStart=/bin/bash {script['path']}" in unit["content"]
    plain = yaml.safe_load(cloud_config(HostSetup(CONFIG, AgentOrigin(version="v1"))))["write_files"][1]["content"]
    assert "export AGENT_VERSION=v1\n" in plain
    assert f"export UNBOUNDED_AGENT_CONFIG_FILE={config['path']}\n" in plain
    head, _, rest = install_script().partition("\n")
    assert plain.startswith(head)
    assert plain.endswith(rest)
    assert told["runcmd"] == [
        ["systemctl", "daemon-reload"],
        ["systemctl", "enable", "--now", "--no-block", "unbounded-agent-install.service"],
    ]
