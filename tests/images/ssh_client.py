"""An SSH client of a rescue system."""

from __future__ import annotations

import asyncio
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Client:
    """OpenSSH's client, which trusts only this host key."""

    port: int  # of 127.0.0.1
    host_key: str

    async def run(self, key: Path, *command: str) -> tuple[int, str]:
        """Return exit code and output of a command there."""
        known = f"KnownHostsCommand=/bin/echo [127.0.0.1]:{self.port} {self.host_key}"
        options = (known, "UserKnownHostsFile=none", "StrictHostKeyChecking=yes", "IdentitiesOnly=yes")
        process = await asyncio.create_subprocess_exec(
            *("ssh", "-F", "none", "-i", str(key), "-p", str(self.port)),
            *(word for option in (*options, "BatchMode=yes") for word in ("-o", option)),
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(30):
            out, _ = await process.communicate()
        return process.returncode or 0, out.decode()


def client_key(path: Path) -> str:
    """Make a key pair in a file, and return the line of its public half."""
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "me@here", "-f", str(path)]
    subprocess.run(command, check=True, timeout=10)
    return path.with_suffix(".pub").read_text().strip()
