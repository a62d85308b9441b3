"""Where everything of the agent lies on a host: the one place for paths."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

DAEMON_UNIT: Final = "unbounded-agent-daemon.service"
RECOVERY_UNIT: Final = "unbounded-agent-daemon-recovery.service"
RECOVERY_TIMER: Final = "unbounded-agent-daemon-recovery.timer"
BINARY: Final = "unbounded-agent"


@dataclass(frozen=True)
class Layout:
    """Paths below `root`, which is / on a host and a folder in tests."""

    root: Path = Path("/")

    def at(self, path: str) -> Path:
        """An absolute path of the host."""
        return self.root / path.lstrip("/")

    # Configuration and state

    @property
    def etc(self) -> Path:
        """Mode 0700."""
        return self.at("/etc/unbounded/agent")

    @property
    def pull_secrets(self) -> Path:
        """Logins for registries, as kubelet's credential provider prints them; 0600."""
        return self.etc / "pull-secrets.json"

    @property
    def config(self) -> Path:
        """The agent's configuration as `start` took it: AgentConfig, 0600, without the bootstrap token once a
        certificate is there."""
        return self.etc / "config.json"

    def applied(self, slot: str) -> Path:
        """What a slot was made from: model.Applied, 0600; its sha256 stands beside it in `.sha256`."""
        return self.etc / f"{slot}-applied-config.json"

    @property
    def changes(self) -> Path:
        """What `start` found on the host before it changed it: a file for each step."""
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
        """How long work on this host took, from which its limits follow."""
        return self.state / "durations.json"

    def slot_files(self, slot: str) -> Path:
        """The files of a slot as its first start left them."""
        return self.state / f"{slot}-files.json"

    @property
    def gpus(self) -> Path:
        """How the last description of GPUs to the container runtime went."""
        return self.state / "gpus.json"

    @property
    def cache(self) -> Path:
        """What can be had again."""
        return self.state / "cache"

    @property
    def artifacts(self) -> Path:
        """What nodes are made from, by digest: artifacts and layers of images; shared by the slots."""
        return self.cache / "node"

    @property
    def recreation(self) -> Path:
        """How far a recreation of the node is; there is none when the file is not there."""
        return self.etc / "recreation.json"

    @property
    def recreation_failed(self) -> Path:
        """The last recreation that led back to the old slot, as long as it is not made up for."""
        return self.etc / "recreation-failed.json"

    @property
    def published_access(self) -> Path:
        """Address, CA and DNS server that the cluster published when this host last followed them."""
        return self.etc / "published-access.json"

    @property
    def succession(self) -> Path:
        """The API server that this host is moving to; there is none when the file is not there."""
        return self.etc / "succession.json"

    def successor_identity(self, digest: str) -> Path:
        """Keys and certificates for the API server that this host may move to."""
        return self.state / f"successor-{digest}"

    @property
    def upgrade(self) -> Path:
        """The upgrade that is being tried."""
        return self.etc / "agent-upgrade.json"

    @property
    def upgrade_signal(self) -> Path:
        """What the recovery unit has to say to the daemon that it brought back."""
        return self.etc / "agent-upgrade-signal"

    @property
    def upgrade_notes(self) -> Path:
        """A folder of what is noted of a release on trial: how often it was started, how it ended, what troubles it."""
        return self.state / "upgrade"

    @property
    def failed_digests(self) -> Path:
        """Releases that failed on this host."""
        return self.etc / "failed-digests.json"

    @property
    def reset_state(self) -> Path:
        """There while a reset is under way: start and daemon keep their hands off."""
        return self.etc / "resetting"

    @property
    def run(self) -> Path:
        return self.at("/run/unbounded-agent")

    @property
    def machine_missing(self) -> Path:
        """There while the daemon runs and its Machine is deleted: what a person does about it."""
        return self.run / "machine-missing"

    @property
    def lock(self) -> Path:
        """Held by start, reset and every change of slots."""
        return self.run / "host.lock"

    @property
    def release_lock(self) -> Path:
        """Held for the moment in which a link to a release changes, by the recovery script too."""
        return self.run / "release.lock"

    # The binary

    @property
    def releases(self) -> Path:
        """Holds blue/ and green/, each a directory with the executable `unbounded-agent`."""
        return self.at("/usr/local/lib/unbounded-agent")

    def release(self, colour: str) -> Path:
        return self.releases / colour

    @property
    def bin(self) -> Path:
        return self.at("/usr/local/bin")

    @property
    def command(self) -> Path:
        """What people call: a link to `current`."""
        return self.bin / BINARY

    @property
    def current(self) -> Path:
        """A link to the executable of the slot in use."""
        return self.bin / f"{BINARY}-current"

    @property
    def last_good(self) -> Path:
        """A link to the executable that was proven last."""
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
