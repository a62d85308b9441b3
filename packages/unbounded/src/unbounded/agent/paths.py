"""Paths of all files of the agent on a host; no other module spells them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

DAEMON_UNIT: Final = "unbounded-agent-daemon.service"
RECOVERY_UNIT: Final = "unbounded-agent-daemon-recovery.service"
RECOVERY_TIMER: Final = "unbounded-agent-daemon-recovery.timer"
BINARY: Final = "unbounded-agent"


@dataclass(frozen=True)
class HostPaths:
    """Paths below `root`, which is / on a host and a temporary folder in tests."""

    root: Path = Path("/")

    def at(self, path: str) -> Path:
        """Return the location of an absolute path of the host."""
        return self.root / path.lstrip("/")

    # Configuration and state

    @property
    def etc(self) -> Path:
        """Mode 0700."""
        return self.at("/etc/unbounded/agent")

    @property
    def pull_secrets(self) -> Path:
        """Registry logins in the output format of kubelet's credential provider; 0600."""
        return self.etc / "pull-secrets.json"

    @property
    def config(self) -> Path:
        """The agent's configuration as `start` stored it: AgentConfig, 0600. The bootstrap token is removed once the
        agent has a certificate.
        """
        return self.etc / "config.json"

    def applied(self, slot: str) -> Path:
        """Record of a slot's build: model.BuildRecord, 0600; its sha256 is in a second file, `….sha256`."""
        return self.etc / f"{slot}-applied-config.json"

    @property
    def changes(self) -> Path:
        """State of the host before `start` changed it: a file for each step."""
        return self.etc / "before"

    @property
    def state(self) -> Path:
        """Mode 0700."""
        return self.at("/var/lib/unbounded/agent")

    @property
    def identity(self) -> Path:
        """The agent's key and certificates."""
        return self.state / "identity"

    @property
    def durations(self) -> Path:
        """Durations of work on this host, from which its limits follow."""
        return self.state / "durations.json"

    def slot_files(self, slot: str) -> Path:
        """Files of a slot as its first start left them."""
        return self.state / f"{slot}-files.json"

    @property
    def gpus(self) -> Path:
        """Result of the last CDI generation for GPUs."""
        return self.state / "gpus.json"

    @property
    def cache(self) -> Path:
        """Files that can be downloaded again."""
        return self.state / "cache"

    @property
    def artifacts(self) -> Path:
        """Artifacts and image layers of nodes, by digest; shared by the slots."""
        return self.cache / "node"

    @property
    def recreation(self) -> Path:
        """Progress of a node recreation; absent while none is under way."""
        return self.etc / "recreation.json"

    @property
    def recreation_failed(self) -> Path:
        """Record of the last recreation that ended in the old slot; absent once a later one has succeeded."""
        return self.etc / "recreation-failed.json"

    @property
    def published_access(self) -> Path:
        """Address, CA and DNS server as published when this host last followed them."""
        return self.etc / "published-access.json"

    @property
    def succession(self) -> Path:
        """The API server that this host is moving to; absent while it is not moving."""
        return self.etc / "succession.json"

    def successor_identity(self, digest: str) -> Path:
        """Keys and certificates for the API server that this host may move to."""
        return self.state / f"successor-{digest}"

    @property
    def upgrade(self) -> Path:
        """The upgrade on trial."""
        return self.etc / "agent-upgrade.json"

    @property
    def upgrade_signal(self) -> Path:
        """Message of the recovery unit to the daemon of the release that it restored."""
        return self.etc / "agent-upgrade-signal"

    @property
    def upgrade_notes(self) -> Path:
        """Folder of records about a release on trial: number of starts, how it ended, its health problem."""
        return self.state / "upgrade"

    @property
    def failed_digests(self) -> Path:
        """Releases that failed on this host."""
        return self.etc / "failed-digests.json"

    @property
    def reset_state(self) -> Path:
        """Exists while a reset is under way; start and daemon then change nothing."""
        return self.etc / "resetting"

    @property
    def run(self) -> Path:
        return self.at("/run/unbounded-agent")

    @property
    def machine_missing(self) -> Path:
        """Exists while the daemon runs and its Machine is deleted; holds the remedy for the user."""
        return self.run / "machine-missing"

    @property
    def lock(self) -> Path:
        """Locked by start, reset and every change of slots."""
        return self.run / "host.lock"

    @property
    def release_lock(self) -> Path:
        """Locked while a link to a release changes, by the recovery script too."""
        return self.run / "release.lock"

    # The binary

    @property
    def releases(self) -> Path:
        """Folder of blue/ and green/, each a directory with the executable `unbounded-agent`."""
        return self.at("/usr/local/lib/unbounded-agent")

    def release(self, colour: str) -> Path:
        return self.releases / colour

    @property
    def bin(self) -> Path:
        return self.at("/usr/local/bin")

    @property
    def command(self) -> Path:
        """Command for users: a link to `current`."""
        return self.bin / BINARY

    @property
    def current(self) -> Path:
        """A link to the executable of the slot in use."""
        return self.bin / f"{BINARY}-current"

    @property
    def last_good(self) -> Path:
        """A link to the last executable that passed its trial."""
        return self.bin / f"{BINARY}-last-good"

    @property
    def recovery_script(self) -> Path:
        return self.bin / f"{BINARY}-daemon-recovery.sh"

    # The node

    @property
    def machines(self) -> Path:
        return self.at("/var/lib/machines")

    def rootfs(self, slot: str) -> Path:
        return self.machines / slot

    def nspawn(self, slot: str) -> Path:
        return self.at(f"/etc/systemd/nspawn/{slot}.nspawn")

    def override(self, slot: str) -> Path:
        return self.units / f"systemd-nspawn@{slot}.service.d" / "override.conf"

    @property
    def units(self) -> Path:
        return self.at("/etc/systemd/system")
