"""All BMCs of one process: sharing of connections and sessions, and their release."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self
from weakref import WeakValueDictionary

from unbounded.api.failures import Transient
from unbounded.metalman.redfish import bmc_interface
from unbounded.metalman.redfish.bmc_channel import BmcAuth, BmcChannel
from unbounded.metalman.redfish.bmc_services import AccountClient, ManagerClient, UpdateClient
from unbounded.metalman.redfish.circuit_breaker import BmcGate
from unbounded.metalman.redfish.client import RedfishClient
from unbounded.metalman.redfish.endpoint import Tls, endpoint_of, tls_of
from unbounded.metalman.redfish.http import BmcConnections, Http
from unbounded.metalman.redfish.inventory_reader import Inventory
from unbounded.metalman.redfish.virtual_media import MediaDrive

# idle sessions that are deleted concurrently; one by one, those of a large site would exceed their limit
CONCURRENT_DELETIONS: Final = 16

Key = tuple[str, ...]


@dataclass(slots=True)
class PooledClient:
    """Client with the versions of the Secrets that were used with it until the BMC rejected the password."""

    client: RedfishClient
    secrets: dict[str, str] = field(default_factory=dict)

    def offer(self, access: bmc_interface.BmcAccount) -> bool:
        """Return whether the password may be offered; False if it was rejected and this Secret has a newer version.

        Raises:
            PasswordRejected: it was rejected, and the Secret is unchanged.
        """
        refused = self.client.channel.refused
        version = self.secrets.setdefault(access.secret, access.secret_version)
        if not refused:
            self.secrets[access.secret] = access.secret_version
            return True
        if version == access.secret_version:
            raise bmc_interface.PasswordRejected(refused)
        return False

    def unused_s(self, now: float) -> float:
        return self.client.channel.unused_s(now)


def _key(access: bmc_interface.BmcAccount) -> Key:
    """Return the key of a shared client: host and path, account, passwords and proof of identity."""
    endpoint = endpoint_of(access.url)
    trust = access.ca_bundle or access.cert_fingerprint or ""
    passwords = (access.password, access.next_password)
    return (endpoint.origin, endpoint.prefix, access.username, *passwords, trust if endpoint.encrypted else "")


class BmcPool:
    """Pool for use as `async with BmcPool() as pool:`; the exit deletes all sessions within `BmcLimits.close_s`."""

    def __init__(self, limits: bmc_interface.BmcLimits | None = None) -> None:
        self.limits = limits or bmc_interface.BmcLimits()
        self._entries: dict[Key, PooledClient] = {}
        self._keys: dict[str, set[Key]] = {}  # of the entries, by origin
        self._successors: dict[tuple[Key, str], Key] = {}  # by key and version of the Secret, see `supersede`
        self._gates: WeakValueDictionary[str, BmcGate] = WeakValueDictionary()
        self._connections: BmcConnections | None = None
        self._cleanup: asyncio.Task[None] | None = None
        self._used = asyncio.Event()
        self._releases: asyncio.Queue[tuple[float, BmcChannel]] = asyncio.Queue()

    async def __aenter__(self) -> Self:
        self._connections = BmcConnections()
        self._cleanup = asyncio.create_task(self._run_cleanup(), name="redfish sessions")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._cleanup is not None:
                self._cleanup.cancel()
                await asyncio.wait({self._cleanup})
            channels = [entry.client.channel for entry in self._entries.values()]
            await asyncio.gather(*(channel.delete_session() for channel in channels if channel.has_session))
        finally:
            self._entries.clear()
            self._keys.clear()
            if self._connections is not None:
                await self._connections.close()

    def bmc(self, access: bmc_interface.BmcAccount) -> PooledBmc:
        """Return one system without a request; errors in `access` are raised by the first call."""
        return PooledBmc(self, access)

    async def fingerprint(self, url: str) -> str:
        """Return the fingerprint of the BMC's present certificate, for trust on first use. Only a TLS handshake is
        made.

        Raises:
            Rejected: not an https URL.
            BmcUnreachable: no answer.
        """
        return await self._http(bmc_interface.BmcAccount(url, "", ""), tls=False).certificate()

    def client(self, access: bmc_interface.BmcAccount) -> RedfishClient:
        """Return the client of an account, which all systems behind it share.

        Another URL, user name, password, pin or bundle results in another client; all clients of one host share its
        gate.

        Raises:
            Rejected: PasswordRejected, CertificateUntrusted, or an invalid URL, pin or bundle.
        """
        key = self._current_key(access)
        entry = self._entries.get(key)
        if entry is None or not entry.offer(access):
            entry = PooledClient(self._connect(access))
            self._put(key, entry)
            entry.offer(access)
        self._used.set()
        return entry.client

    async def supersede(self, former: bmc_interface.BmcAccount, access: bmc_interface.BmcAccount) -> None:
        """Let the client of an account whose Secret has changed log in with the passwords of the new version.

        Callers that still have the former version use the same client, so that none offers a password that is over.
        """
        client, old, new = self.client(former), self._current_key(former), _key(access)
        if old != new:
            self._put(new, self._entries[old])
            self._drop(old)
            self._successors = {one: new if key == old else key for one, key in self._successors.items()}
            self._successors[_key(former), former.secret_version] = new
        self._entries[new].offer(access)
        client.channel.offer(access.password, access.next_password)
        await client.channel.delete_session()

    def _current_key(self, access: bmc_interface.BmcAccount) -> Key:
        """Return the key of an account's client; of the one that has superseded it, if the account is outdated."""
        key = _key(access)
        return self._successors.get((key, access.secret_version), key)

    def _put(self, key: Key, entry: PooledClient) -> None:
        self._entries[key] = entry
        self._keys.setdefault(key[0], set()).add(key)

    def _connect(self, access: bmc_interface.BmcAccount) -> RedfishClient:
        http = self._http(access, tls=tls_of(endpoint_of(access.url), access))
        gate = self._gates.get(http.endpoint.origin)
        if gate is None:
            gate = self._gates[http.endpoint.origin] = BmcGate(http.endpoint.origin)
        auth = BmcAuth(http, access.username, access.password, self.limits, next_password=access.next_password)
        return RedfishClient(BmcChannel(http, auth, gate, self.limits), self.limits)

    def _http(self, access: bmc_interface.BmcAccount, *, tls: Tls) -> Http:
        if self._connections is None:
            raise RuntimeError("the pool is used outside of `async with`")
        return Http(self._connections, endpoint_of(access.url), tls, self.limits)

    def is_paused(self, url: str) -> bool:
        """Return whether no call may be made to a BMC now, as its last ones got no answer."""
        gate = self._gates.get(endpoint_of(url).origin)
        return gate is not None and gate.is_paused

    async def delete_session(self, access: bmc_interface.BmcAccount) -> None:
        """Delete the session of that account, if there is one."""
        entry = self._entries.get(self._current_key(access))
        if entry is not None:
            await entry.client.channel.delete_session()

    def release_soon(self, url: str) -> None:
        """Delete the sessions of a BMC soon, unless they are used until then; called when a piece of work has ended.

        The deletion is soon enough to use the sessions' open connections, so that it needs no new one.
        """
        origin = endpoint_of(url).origin
        due = asyncio.get_running_loop().time() + self.limits.release_s
        for key in self._keys.get(origin, ()):
            channel = self._entries[key].client.channel
            if channel.has_session:
                self._releases.put_nowait((due, channel))

    async def _run_cleanup(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._delete_idle())
            tasks.create_task(self._delete_released())

    async def _delete_released(self) -> None:
        """Delete the sessions of ended work when they are due, in the order of the calls of `release_soon`."""
        places = asyncio.Semaphore(CONCURRENT_DELETIONS)

        async def one(channel: BmcChannel) -> None:
            async with places:
                await channel.delete_session(unused_s=self.limits.release_s, is_urgent=False)

        async with asyncio.TaskGroup() as tasks:
            while True:
                due, channel = await self._releases.get()
                await asyncio.sleep(due - asyncio.get_running_loop().time())
                tasks.create_task(one(channel))

    async def _delete_idle(self) -> None:
        """Delete idle sessions, and forget clients that were not used for long."""
        while True:
            await self._used.wait()
            await asyncio.sleep(self.limits.idle_s / 4)
            now = asyncio.get_running_loop().time()
            idle = [entry for entry in self._entries.values() if entry.unused_s(now) >= self.limits.idle_s]
            await self._delete_sessions(idle, unused_s=self.limits.idle_s)
            for key, entry in list(self._entries.items()):
                if entry.unused_s(now) >= self.limits.forget_s and not entry.client.channel.refused:
                    self._drop(key)
            if len(idle) == len(self._entries) and not any(entry.client.channel.has_session for entry in idle):
                self._used.clear()

    def _drop(self, key: Key) -> None:
        del self._entries[key]
        keys = self._keys[key[0]]
        keys.discard(key)
        if not keys:
            del self._keys[key[0]]

    async def _delete_sessions(self, entries: list[PooledClient], *, unused_s: float) -> None:
        """Delete the sessions that were not used for `unused_s`, a few at a time."""
        places = asyncio.Semaphore(CONCURRENT_DELETIONS)

        async def one(channel: BmcChannel) -> None:
            async with places:
                await channel.delete_session(unused_s=unused_s, is_urgent=False)

        await asyncio.gather(*(one(entry.client.channel) for entry in entries if entry.client.channel.has_session))


class PooledBmc:
    """One system behind the pool. It owns no connection. Calls raise the failures of `bmc_interface`.

    `leave_by` is a time of the event loop's clock: a changing request is sent before it, or not at all (Transient). The
    default is `BmcLimits.start_s` after the call.
    """

    def __init__(self, pool: BmcPool, access: bmc_interface.BmcAccount) -> None:
        self._pool = pool
        self._access = access

    async def system(self) -> bmc_interface.SystemState:
        """Read the system now; the result is never cached."""
        return await self._pool.client(self._access).system(self._access.device_id)

    async def reset(
        self, desired: bmc_interface.ResetType, *, leave_by: float | None = None
    ) -> bmc_interface.ResetAcceptance:
        """Send one reset, and return when the BMC has accepted it (a 202 task is followed to its end or limit).

        Raises:
            Unsupported: the BMC offers no equivalent; the message lists its ResetTypes.
            Transient: not done: busy, unreachable, or the task failed, with the task's message.
            Uncertain: sent, and the answer or the task's end was lost.
        """
        return await self._pool.client(self._access).reset(self._access.device_id, desired, leave_by)

    async def set_boot_override(
        self, desired: bmc_interface.BootOverride, *, leave_by: float | None = None
    ) -> bmc_interface.BootOverride:
        """Write the boot override and return the value read back, which may differ: some BMCs accept and ignore it.

        Raises:
            Unsupported: this BMC lacks the boot override or the value.
        """
        return await self._pool.client(self._access).set_boot_override(self._access.device_id, desired, leave_by)

    async def disable_boot_override(self, *, leave_by: float | None = None) -> bmc_interface.BootOverride:
        """Let the machine boot from its disk: Disabled, or Hdd/Continuous if that is rejected or has no effect.

        Returns:
            the value read back, as above.
        """
        return await self._pool.client(self._access).disable_boot_override(self._access.device_id, leave_by)

    async def media_drive(self) -> MediaDrive:
        """Read the CD drive that the BMC offers the system."""
        return await self._pool.client(self._access).media_drive(self._access.device_id)

    async def insert_media(self, url: str, *, leave_by: float | None = None) -> MediaDrive:
        """Let the BMC fetch an image and show it to its host as a CD; return the drive as it is read afterwards."""
        return await self._pool.client(self._access).insert_media(self._access.device_id, url, leave_by)

    async def eject_media(self, *, leave_by: float | None = None) -> MediaDrive:
        """Eject the image, if there is one; return the drive as it is read afterwards."""
        return await self._pool.client(self._access).eject_media(self._access.device_id, leave_by)

    async def inventory(self, may_continue: Callable[[], bool]) -> Inventory:
        """Read the hardware that the BMC knows: many requests one after the other, between which others have turns.

        Args:
            may_continue: asked before each request.
        Raises:
            InventoryInterrupted: it may not.
            Failure: the system itself cannot be read.
        """
        return await self._pool.client(self._access).inventory(self._access.device_id, may_continue)

    async def manager(self) -> bmc_interface.ManagerState:
        """Read the manager of the system: the BMC itself.

        Raises:
            Failure: it cannot be read; the system need not be readable.
        """
        return await ManagerClient(self._pool.client(self._access), self._access.device_id).read()

    async def reset_manager(self, *, leave_by: float) -> str:
        """Restart the BMC itself; return the ResetType that it accepted.

        Raises:
            Unsupported: the BMC offers no restart.
            Uncertain: sent, and the answer was lost, as a BMC that restarts at once loses it.
        """
        return await ManagerClient(self._pool.client(self._access), self._access.device_id).reset(leave_by)

    async def firmware(self) -> tuple[bmc_interface.InstalledFirmware, ...]:
        """Read the installed versions; the components of all systems of this BMC are among them."""
        return await UpdateClient(self._pool.client(self._access)).versions()

    async def update_firmware(self, image_uri: str, targets: Sequence[str], *, leave_by: float) -> str:
        """Send one SimpleUpdate; return its handle: the paths of its task, as far as the BMC names it.

        Raises:
            Unsupported: the BMC has no SimpleUpdate, does not load by this protocol, or lists no such target.
            Uncertain: sent, and the answer was lost.
        """
        return await UpdateClient(self._pool.client(self._access)).start(image_uri, targets, leave_by)

    async def update_progress(self, handle: str) -> bmc_interface.UpdateProgress:
        """Read the task of an update."""
        return await UpdateClient(self._pool.client(self._access)).progress(handle)

    async def running_update(self) -> str | None:
        """Return the path of a task that carries out an update now; None if the BMC shows none."""
        return await UpdateClient(self._pool.client(self._access)).running_task()

    async def events(self) -> AsyncGenerator[tuple[str | None, ...], None]:
        """Yield the origins of the events of each part of the BMC's stream; nothing, once it is open.

        Raises:
            Unsupported: the BMC has no events.
            Failure: the stream cannot be opened, or broke.
        """
        async with aclosing(self._pool.client(self._access).events()) as events:
            async for origins in events:
                yield origins

    @asynccontextmanager
    async def console(
        self, pin: str | None, trust: bmc_interface.TrustHostKey, offers: bmc_interface.ConsoleOffers | None = None
    ) -> AsyncIterator[bmc_interface.SerialConsole]:
        """Open the serial console of the system, and close it at the end of the context.

        Args:
            pin: fingerprint of the SSH host key that the BMC must present; None for its first one.
            trust: stores that first one, before a password is sent.
            offers: the consoles to try; None reads the system for them.
        Raises:
            Unsupported: the BMC offers none over a web socket or SSH.
            Failure: it cannot be opened.
        """
        from unbounded.metalman.redfish.console import ConsoleClient  # noqa: PLC0415  # asyncssh: few processes need it

        client = ConsoleClient(self._pool.client(self._access), self._access, self._pool.limits)
        async with client.open(pin, trust, offers) as console:
            yield console

    async def user(self) -> bmc_interface.BmcUser:
        """Log in anew, and find the account of this user name.

        Raises:
            Unsupported: the BMC has no AccountService.
            Rejected: it lists no such account.
            PasswordRejected: no password opens it.
        """
        client = self._pool.client(self._access)
        await client.channel.log_in_again()
        return await AccountClient(client).find(self._access.username, self._access.next_password)

    async def set_password(self, *, leave_by: float) -> None:
        """Set the next password once. From an accepted request on, it is offered first.

        Raises:
            Unsupported, Rejected: the BMC refused it, and the former one is in use.
            Uncertain: sent, and the answer was lost.
        """
        access, client = self._access, self._pool.client(self._access)
        if not access.next_password:
            raise Transient(f"Secret {access.secret} has no next password; nothing was sent")
        account = AccountClient(client)
        try:
            is_complete = await account.set_password(access.username, access.password, access.next_password, leave_by)
            if is_complete:
                await asyncio.sleep(self._pool.limits.change_s)
                client.channel.offer(access.next_password, access.password)
        finally:  # the session of the former password
            await client.channel.delete_session()

    async def close(self) -> None:
        """Delete the session now; other users of the BMC log in again when they need it."""
        await self._pool.delete_session(self._access)
