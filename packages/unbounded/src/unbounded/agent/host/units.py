"""systemd through systemctl: the host's manager, or that of a running nspawn machine."""

from __future__ import annotations

from typing import Final

from unbounded.agent.ports import Commands, UnitFacts
from unbounded.api.failures import Transient

_PROPERTIES: Final = "Id,LoadState,ActiveState,SubState,UnitFileState,MainPID,NRestarts,Result"
_SHORT_S: Final = 120.0  # under emulation on a loaded host, one systemctl query took 40 s
_NOT_LOADED: Final = ("not loaded", "does not exist", "not found")


class Systemctl:
    """Units of one service manager.

    Args:
        machine: nspawn machine of the manager; empty for the host's own.
    """

    def __init__(self, commands: Commands, *, machine: str = "") -> None:
        self._commands = commands
        self._prefix = ("systemctl", f"--machine={machine}") if machine else ("systemctl",)

    async def _call(self, *arguments: str, timeout_s: float = _SHORT_S, check: bool = True) -> str:
        ran = await self._commands.run(*self._prefix, *arguments, timeout_s=timeout_s, check=check)
        return ran.stdout if ran.ok else ran.stderr

    async def observe(self, unit: str) -> UnitFacts:
        output = await self._call("show", f"--property={_PROPERTIES}", "--", unit)
        properties = dict(line.partition("=")[::2] for line in output.splitlines() if "=" in line)
        return UnitFacts(
            name=unit,
            load=properties.get("LoadState", "not-found"),
            active=properties.get("ActiveState", "inactive"),
            sub=properties.get("SubState", "dead"),
            enabled=properties.get("UnitFileState", ""),
            main_pid=int(properties.get("MainPID") or 0),
            restarts=int(properties.get("NRestarts") or 0),
            result=properties.get("Result", ""),
        )

    async def start(self, unit: str, *, timeout_s: float = 90.0) -> None:
        await self._call("start", "--", unit, timeout_s=timeout_s)

    async def stop(self, unit: str, *, timeout_s: float = 90.0) -> None:
        try:
            await self._call("stop", "--", unit, timeout_s=timeout_s)
        except Transient:
            if (await self.observe(unit)).load == "not-found":
                return
            raise

    async def restart(self, unit: str, *, block: bool = True, timeout_s: float = 90.0) -> None:
        await self._call("restart", *(() if block else ("--no-block",)), "--", unit, timeout_s=timeout_s)

    async def kill(self, unit: str, signal: str = "SIGKILL") -> None:
        await self._call("kill", f"--signal={signal}", "--", unit, check=False)

    async def enable(self, *units: str) -> None:
        await self._call("enable", "--quiet", "--", *units)

    async def disable(self, *units: str) -> None:
        for unit in units:  # a missing unit must not stop the others
            result = await self._commands.run(*self._prefix, "disable", "--quiet", "--", unit, check=False)
            if not result.ok and not any(words in result.stderr for words in _NOT_LOADED):
                raise Transient(f"systemctl disable {unit}: {result.stderr.strip()}")

    async def mask(self, *units: str) -> None:
        await self._call("mask", "--quiet", "--", *units)

    async def unmask(self, *units: str) -> None:
        await self._call("unmask", "--quiet", "--", *units)

    async def reset_failed(self, unit: str) -> None:
        await self._call("reset-failed", "--", unit, check=False)

    async def reload(self) -> None:
        await self._call("daemon-reload")
