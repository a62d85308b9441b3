"""Installation of the agent on a host: scripts that install and remove it, their variables, user data for cloud-init.

The scripts themselves are shell (`scripts/`), as a host has nothing else before the agent is installed.
"""

from __future__ import annotations

import base64
import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Final
from urllib.parse import urlsplit

from msgspec.structs import replace

from unbounded.api.configuration import NodeSettings
from unbounded.api.machine import Machine
from unbounded.api.machine_spec import AgentSpec
from unbounded.join.agent_config import AgentConfig, agent_config, config_text, with_mirror
from unbounded.join.cluster_facts import ClusterFacts

NO_RELEASE: Final = (
    "no release of the agent is configured: set spec.agent.url of the Machine, or --agent-url for all hosts"
)
NO_DIGEST: Final = (
    "the agent's URL uses plain http, and no digest is configured: set spec.agent.sha256 of the "
    "Machine, --agent-sha256 for all hosts, or a URL that begins with https://"
)
FILE_VARIABLE: Final = "UNBOUNDED_AGENT_CONFIG_FILE"

STANDALONE: Final = """\
#!/usr/bin/env bash
# Makes this host a node of the cluster: run it as root. There is a token in it: delete it afterwards.
set -uo pipefail
if [ "$(id -u)" != 0 ]; then
  echo "error: run this as root, such as with sudo" >&2
  exit 1
fi
umask 077
mkdir -p -m 0755 /var/lib/unbounded || exit 1
here=$(mktemp -d /var/lib/unbounded/bootstrap.XXXXXX) || exit 1
trap 'rm -rf "$here"' EXIT
trap 'exit 143' TERM
trap 'exit 130' INT
trap 'exit 129' HUP
cat >"$here/agent.json" <<'{end}' || exit 1
{config}
{end}
cat >"$here/install.sh" <<'{end}' || exit 1
{script}{end}
export {variable}="$here/agent.json"
{exports}bash "$here/install.sh"
"""
_END: Final = "END_OF_FILE_OF_UNBOUNDED"
# the agent's own path, too, where the token is removed after the join
CONFIG: Final = "/etc/unbounded/agent/config.json"
SCRIPT: Final = "/usr/local/bin/unbounded-agent-install.sh"
UNIT: Final = "unbounded-agent-install.service"
UNIT_FILE: Final = f"/etc/systemd/system/{UNIT}"
UNIT_TEXT: Final = f"""\
[Unit]
Description=Gets unbounded-agent, and makes this host a node
Wants=network-online.target
After=network-online.target
# Not after a reset; and no more once the daemon is enabled, which is the last that start does.
ConditionPathExists={CONFIG}
ConditionPathExists=!/etc/systemd/system/multi-user.target.wants/unbounded-agent-daemon.service

[Service]
Type=oneshot
ExecStart=/bin/bash {SCRIPT}
Restart=on-failure
RestartSec=30
StandardOutput=journal+console
StandardError=journal+console

[Install]
WantedBy=multi-user.target
"""


@dataclass(frozen=True)
class AgentOrigin:
    """Source of the agent's tarball.

    Args:
        version: tag of a release; empty for the latest.
        base_url: of releases.
        url: of the tarball itself; overrides both.
        sha256: digest of the tarball; required where it comes over plain http.
    """

    version: str = ""
    base_url: str = ""
    url: str = ""
    sha256: str = ""

    @property
    def fault(self) -> str:
        """Return why no host may run an agent from this source; empty where hosts may."""
        place = self.url or self.base_url
        if not place:
            return NO_RELEASE
        if urlsplit(place).scheme.lower() == "http" and not self.sha256:
            return NO_DIGEST
        return ""


def origin_of(agent: AgentSpec | None, defaults: AgentOrigin) -> AgentOrigin:
    """Return the source of a Machine's agent: its spec overrides the process's defaults.

    Any field in the spec also replaces the process's URL, together with its sha256, which belongs to that file alone.
    """
    own = (agent.sha256 if agent else None) or ""
    if agent is None or not (agent.url or agent.base_url or agent.version):
        return dataclasses.replace(defaults, sha256=own or defaults.sha256)
    if agent.url:
        return AgentOrigin(url=agent.url, sha256=own)
    version, base_url = agent.version or defaults.version, agent.base_url or defaults.base_url
    return AgentOrigin(version=version, base_url=base_url, sha256=own)


@dataclass(frozen=True)
class HostDefaults:
    """Defaults of a process for all hosts.

    Args:
        origin: of the agent, for Machines that name none.
        mirror: source of artifacts whose source the Machine does not name; empty for the projects' own sources.
        image: root file system of nodes whose Machine names none.
    """

    origin: AgentOrigin = AgentOrigin()
    mirror: str = ""
    image: str = ""


@dataclass(frozen=True)
class HostSetup:
    """The agent's first configuration on a host, and the agent's source."""

    config: AgentConfig
    origin: AgentOrigin


def host_setup(
    machine: Machine,
    facts: ClusterFacts,
    defaults: HostDefaults,
    *,
    token: str,
    settings: NodeSettings | None = None,
) -> HostSetup:
    """Return the setup with which a Machine's host becomes a node, by any way of provisioning.

    Args:
        token: a bootstrap token, `id.secret`.
        settings: of the Machine's configuration.
    """
    origin = origin_of(machine.spec.agent, defaults.origin)
    config = with_mirror(agent_config(machine, facts, token=token, settings=settings), defaults.mirror)
    return HostSetup(with_image(config, defaults.image), origin)


def with_image(config: AgentConfig, image: str) -> AgentConfig:
    """Return the configuration with this root file system of the node, if it names none; empty for none."""
    return config if config.oci_image else replace(config, oci_image=image)


def install_environment(origin: AgentOrigin) -> dict[str, str]:
    """Return the install script's variables about the agent."""
    environment = {
        "AGENT_VERSION": origin.version,
        "AGENT_BASE_URL": origin.base_url,
        "AGENT_URL": origin.url,
        "AGENT_SHA256": origin.sha256,
    }
    return {name: value for name, value in environment.items() if value}


def install_script() -> str:
    """Return the bash script that downloads the agent and runs its `start`; its head documents the variables. It exits
    with the agent's status.
    """
    return _script("install.sh")


def uninstall_script() -> str:
    """Return the bash script that removes the files of an agent that cannot do so itself; it may be run again."""
    return _script("uninstall.sh")


def _script(name: str) -> str:
    return (files(__package__) / "scripts" / name).read_text()


def exports(environment: Mapping[str, str]) -> str:
    """Return lines of shell that set these variables, with any values."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(environment.items()))


def standalone_script(setup: HostSetup) -> str:
    """Return a bash script with which root makes its host a node; it contains the configuration, with its token."""
    return STANDALONE.format(
        end=_END,
        config=config_text(setup.config),
        script=install_script(),
        variable=FILE_VARIABLE,
        exports=exports(install_environment(setup.origin)),
    )


def cloud_config(setup: HostSetup) -> str:
    """Return a `#cloud-config` with the configuration and its token, the install script, and a unit that runs the
    script at each boot until it has succeeded.
    """
    body = "".join(
        (
            _file(CONFIG, "0600", config_text(setup.config) + "\n"),
            _file(SCRIPT, "0700", _origin_text(setup.origin)),
            _file(UNIT_FILE, "0644", UNIT_TEXT),
        )
    )
    return (
        "#cloud-config\n"
        "# Makes this host a node of the cluster. There is a token in it.\n"
        f"write_files:\n{body}"
        "runcmd:\n"
        "- [systemctl, daemon-reload]\n"
        f"- [systemctl, enable, --now, --no-block, {UNIT}]\n"
    )


def _origin_text(origin: AgentOrigin) -> str:
    """Return the script, with its variables set before it."""
    head, _, rest = install_script().partition("\n")
    return f"{head}\n{exports({FILE_VARIABLE: CONFIG, **install_environment(origin)})}{rest}"


def _file(path: str, mode: str, text: str) -> str:
    return (
        f"- path: {path}\n"
        "  owner: root:root\n"
        f'  permissions: "{mode}"\n'
        f"{_content(text)}"
    )  # fmt: skip


def _content(text: str) -> str:
    """Return a readable YAML block; in base64 where YAML would change a part of the text."""
    plain = text.isascii() and text.replace("\n", "").isprintable()
    if plain and not text.startswith((" ", "\n")):
        lines = "".join(f"    {line}\n" if line else "\n" for line in text.splitlines())
        return f"  content: |\n{lines}"
    packed = base64.b64encode(text.encode()).decode()
    return f"  encoding: b64\n  content: {packed}\n"
