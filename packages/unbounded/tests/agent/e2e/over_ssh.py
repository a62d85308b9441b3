"""A host becomes a node as users make it one: by `kubectl unbounded machine register`, and over SSH."""

from __future__ import annotations

import shutil
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from scripts.agent_release import NAME, pack

from tests.docs.runner import Shell
from tests.support.agent_release import AgentRelease
from tests.support.hosts.agent import AgentHost
from tests.support.hosts.mirror import ARCH, CNI, CONTAINERD, RUNC
from tests.support.hosts.ssh import USER, make_key, open_ssh
from unbounded.api.machine import MACHINES

SITE: Final = "dc1"
LENIENT: Final = f"""\
#!/bin/sh
# Hosts of tests have no resource controllers where the system keeps those in version 1
case " $* " in *" start "* | *" preflight "*) set -- "$@" --ignore-preflight-errors cgroups ;; esac
exec "$(dirname "$(readlink -f "$0")")/whole/{NAME}/{NAME}" "$@"
"""
LATEST: Final = f"/latest/download/{NAME}-linux-{ARCH}.tar.gz"
READY_S: Final = 240.0


def lenient(release: AgentRelease, into: Path) -> Path:
    """The release's tarball, for hosts of tests: its start minds no missing controllers."""
    folder = into / "outer" / NAME
    shutil.copytree(release.folder, folder / "whole" / NAME, symlinks=True)
    (folder / NAME).write_text(LENIENT)
    (folder / NAME).chmod(0o755)
    (archive, *_) = (path for path in pack(folder, into, level=1) if path.name.endswith(".tar.gz"))
    return archive


def register(agent: AgentHost, key: Path, *more: str) -> str:
    """Return the command line for a host of tests: only the control plane has the sources of artifacts."""
    versions = {"containerd": CONTAINERD, "runc": RUNC, "cni": CNI}
    flags = [f"--{name}-version {version}" for name, version in versions.items()]
    name = agent.machine.removeprefix(f"{SITE}-")
    where = f"--site {SITE} --name {name} --host {agent.host.address} --ssh-username {USER} --ssh-private-key {key}"
    what = f"--kubernetes-version v{agent.version} --node-label tier=edge --oci-image {agent.node_image}"
    return " ".join(("kubectl unbounded machine register", where, what, *flags, *more))


async def begun(agent: AgentHost, release: AgentRelease, folder: Path, *more: str) -> Shell:
    """Register the host at its site; a user's shell.

    Args:
        more: further flags.
    """
    folder.mkdir(exist_ok=True)
    key = make_key(folder / "ssh" / "id_ed25519")
    await open_ssh(agent.host, key)
    shell = Shell(folder, agent.plane.kubeconfig, {})
    archive = lenient(release, folder / "lenient")
    agent.mirror.add(LATEST, archive)
    await shell.run(f"kubectl unbounded site init --name {SITE}")
    digest = sha256(archive.read_bytes()).hexdigest()  # a test
    await shell.run(register(agent, key.file, "--agent-sha256", digest, *more))
    return shell


async def joined(agent: AgentHost, release: AgentRelease, folder: Path, *more: str) -> tuple[Shell, dict[str, Any]]:
    """As `begun`, and wait for its Node, which is given too."""
    shell = await begun(agent, release, folder, *more)
    return shell, await settled(agent, within_s=READY_S)


async def settled(agent: AgentHost, *, within_s: float) -> dict[str, Any]:
    """Wait until the Node is Ready, machina has observed that, and the agent has reported; return the Node."""
    node = await agent.plane.ready(agent.machine, within_s=within_s)

    def so(seen: dict[str, Any]) -> bool:
        status = seen.get("status", {})
        return status.get("phase") == "Ready" and bool(status.get("agent", {}).get("hostBootID"))

    await agent.plane.wait(MACHINES, agent.machine, so, within_s=180)
    return node
