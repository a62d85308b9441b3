"""The agent's configuration as `start` stored it for the daemon: Layout.config."""

from __future__ import annotations

from typing import Final

import msgspec

from unbounded.agent.layout import Layout
from unbounded.agent.steps.original_state import make_folders
from unbounded.api.failures import Rejected
from unbounded.join.agent_config import AgentConfig
from unbounded.join.config_file import read_agent_config
from unbounded.kube.durable import write_durably

_MODE: Final = 0o600


def without_token(config: AgentConfig) -> AgentConfig:
    """Return the configuration without the bootstrap token, which a host with a certificate no longer needs."""
    auth = msgspec.structs.replace(config.kubelet.auth, bootstrap_token="")
    return msgspec.structs.replace(config, kubelet=msgspec.structs.replace(config.kubelet, auth=auth))


def with_release_key(config: AgentConfig, public_key: str) -> AgentConfig:
    """Return the configuration with this public key of releases."""
    return msgspec.structs.replace(config, upgrade=msgspec.structs.replace(config.upgrade, public_key=public_key))


def with_stored_key(config: AgentConfig, stored: AgentConfig | None) -> AgentConfig:
    """Return the configuration with the stored public key where it has none: a start removes no key."""
    key = "" if stored is None else stored.upgrade.public_key
    return with_release_key(config, key) if key and not config.upgrade.public_key else config


def store_config(layout: Layout, config: AgentConfig) -> None:
    """Write the configuration without its token."""
    make_folders(layout.etc, mode=0o700)
    text = msgspec.json.format(msgspec.json.encode(without_token(config)), indent=2)
    write_durably(layout.config, text + b"\n", mode=_MODE)


def read_stored_config(layout: Layout) -> AgentConfig | None:
    """Return the configuration that a start stored; None where no start has stored one.

    Raises:
        Rejected: the file is invalid; the message names the keys.
    """
    try:
        content = layout.config.read_bytes()
    except FileNotFoundError:
        return None
    return read_agent_config(content, str(layout.config), joined=True)


def require_stored_config(layout: Layout) -> AgentConfig:
    """Return the stored configuration.

    Raises:
        Rejected: no start has stored one, or the file is invalid.
    """
    config = read_stored_config(layout)
    if config is None:
        raise Rejected(f"{layout.config} does not exist: run `unbounded-agent start` first")
    return config
