"""How the agent comes onto a host: the scripts that bring and remove it, and what they are told.

The scripts themselves are shell (`scripts/`), as a host has nothing else before the agent is there.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Final
from urllib.parse import urlsplit

from msgspec.structs import replace

from unbounded.api.machine import AgentSpec, Machine
from unbounded.api.node_settings import NodeSettings
from unbounded.join.agent_config import AgentConfig, Downloads, Source, agent_config, config_text
from unbounded.join.facts import ClusterFacts

NO_RELEASE: Final = "no release of the agent is named: set spec.agent.url of the Machine, or --agent-url for all hosts"
NO_DIGEST: Final = (
    "the agent would come over plain http without a digest: set spec.agent.sha256 of the Machine,"
    " --agent-sha256 for all hosts, or a URL that begins with https://"
)
FILE_VARIABLE: Final = "UNBOUNDED_AGENT_CONFIG_FILE"
_PROJECTS: Final = ("kubernetes", "containerd", "runc", "cni", "crictl", "sandbox")

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


@dataclass(frozen=True)
class AgentOrigin:
    """Where the agent's tarball comes from.

    Args:
        version: tag of a release; empty for the latest.
        base_url: where releases are.
        url: of the tarball itself; counts before both.
        sha256: digest of the tarball; needed where it comes over plain http.
    """

    version: str = ""
    base_url: str = ""
    url: str = ""
    sha256: str = ""

    @property
    def fault(self) -> str:
        """Return why no host may run what comes from here; empty where hosts may."""
        place = self.url or self.base_url
        if not place:
            return NO_RELEASE
        if urlsplit(place).scheme.lower() == "http" and not self.sha256:
            return NO_DIGEST
        return ""


def origin_of(agent: AgentSpec | None, defaults: AgentOrigin) -> AgentOrigin:
    """Where a Machine's agent comes from: what its spec says, over what the process says for all.

    A URL of the process gives way to anything that the spec says, and so does its sha256, which is of that file alone.
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
    """What a process says for all hosts.

    Args:
        origin: of the agent, for Machines that name none.
        mirror: where hosts download what their Machine gives no place for; empty for the projects' own places.
        image: root file system of nodes whose Machine names none.
    """

    origin: AgentOrigin = AgentOrigin()
    mirror: str = ""
    image: str = ""


@dataclass(frozen=True)
class HostSetup:
    """The agent's first file on a host, and where the agent comes from."""

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
    """Return what makes the host of a Machine a node, whichever way it gets there.

    Args:
        token: a bootstrap token, `id.secret`.
        settings: of the Machine's configuration.
    """
    origin = origin_of(machine.spec.agent, defaults.origin)
    config = with_mirror(agent_config(machine, facts, token=token, settings=settings), defaults.mirror)
    return HostSetup(with_image(config, defaults.image), origin)


def with_mirror(config: AgentConfig, mirror: str) -> AgentConfig:
    """The configuration with everything that it names no other place for coming from a mirror, below which the paths
    are those of the projects: `v1.34.0/bin/linux/amd64/kubelet`, `v2.1.8/containerd-2.1.8-linux-amd64.tar.gz`, …

    Args:
        mirror: a base URL; empty for none.
    """
    if not mirror:
        return config
    sources = {name: _from(getattr(config.downloads, name), mirror.rstrip("/")) for name in _PROJECTS}
    return replace(config, downloads=Downloads(**sources))


def with_image(config: AgentConfig, image: str) -> AgentConfig:
    """The configuration with this root file system of the node, if it names none; empty for none."""
    return config if config.oci_image else replace(config, oci_image=image)


def _from(source: Source, mirror: str) -> Source:
    return source if source.url or source.base_url else replace(source, base_url=mirror)


def install_environment(origin: AgentOrigin) -> dict[str, str]:
    """What the install script is told about the agent, by variables."""
    told = {
        "AGENT_VERSION": origin.version,
        "AGENT_BASE_URL": origin.base_url,
        "AGENT_URL": origin.url,
        "AGENT_SHA256": origin.sha256,
    }
    return {name: value for name, value in told.items() if value}


def install_script() -> str:
    """bash: gets the agent and runs its `start`; its head says which variables it reads. It exits as the agent does."""
    return _script("install.sh")


def uninstall_script() -> str:
    """bash: takes away what an agent brought that cannot do it itself any more; it may be run again."""
    return _script("uninstall.sh")


def _script(name: str) -> str:
    return (files(__package__) / "scripts" / name).read_text()


def exports(environment: Mapping[str, str]) -> str:
    """Lines of shell that set these variables, whatever stands in them."""
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in sorted(environment.items()))


def standalone_script(setup: HostSetup) -> str:
    """bash that makes the host on which root runs it a node; it holds the configuration, with its token."""
    return STANDALONE.format(
        end=_END,
        config=config_text(setup.config),
        script=install_script(),
        variable=FILE_VARIABLE,
        exports=exports(install_environment(setup.origin)),
    )
