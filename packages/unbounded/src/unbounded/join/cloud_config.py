"""User data for cloud-init with which a host joins as a node at its first boot."""

from __future__ import annotations

import base64
from typing import Final

from unbounded.join.agent_config import config_text
from unbounded.join.install import FILE_VARIABLE, AgentOrigin, HostSetup, exports, install_environment, install_script

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


def cloud_config(setup: HostSetup) -> str:
    """Return a `#cloud-config` with the configuration and its token, the install script, and a unit that runs the
    script at each boot until it has succeeded.
    """
    body = "".join(
        (
            _file(CONFIG, "0600", config_text(setup.config) + "\n"),
            _file(SCRIPT, "0700", _told(setup.origin)),
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


def _told(origin: AgentOrigin) -> str:
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
