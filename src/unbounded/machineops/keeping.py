"""Where a replacement puts down what it could not go on without: a Secret of the instance that it began with.

The Secret belongs to the operation and goes with it. Once it is all that is left of the instance, it belongs to the
Machine too (`hold`): then it outlives an operation that failed, and the next replacement of the instance takes it over.
"""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from unbounded.api.core import SECRETS, Secret
from unbounded.api.failures import Failure, Rejected
from unbounded.api.kinds import Kind
from unbounded.api.machine import MACHINES, Machine
from unbounded.api.meta import Object
from unbounded.api.names import NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation, OperationPhase
from unbounded.kube.errors import AlreadyExists, ApiError, Conflict, NotFound
from unbounded.kube.port import Api
from unbounded.machineops import reasons
from unbounded.machineops.provider import NotDone, Transient

KEY: Final = "model"
OPERATION: Final = "operation"  # the name of the operation that keeps it, and its UID: collected owners are taken off
UID: Final = "operationUID"
MAX_BYTES: Final = 900_000  # of a Secret's 1 MiB, less what base64 does not add to the stored size
_TRIES: Final = 10  # of a write that somebody else's write comes before, each time


class SecretKeep:
    """What is kept for one operation. What the API server does not allow is NotDone, as rights can be granted.

    Args:
        binding: of the Machine when the operation began.
    """

    def __init__(self, api: Api, operation: MachineOperation, machine: Machine, binding: str) -> None:
        self._api = api
        self._operation = operation
        self._machine = machine
        self.name = f"replacement-{binding.rpartition(':')[2]}"

    @property
    def place(self) -> str:
        return f"Secret {self.secret}"

    @property
    def secret(self) -> str:
        """NAMESPACE/NAME."""
        return f"{NAMESPACE}/{self.name}"

    async def load(self) -> bytes | None:
        """What this operation has stored last; None where it has stored nothing."""
        with self._told("read"):
            secret = await self._read()
        return secret.value(KEY) if secret is not None and self._is_mine(secret) else None

    async def former(self) -> bytes | None:
        """What an earlier replacement of the instance has left, which did not come to its end; None where none has.

        Raises:
            Transient: it is still at work, for a Machine that is bound to the same instance.
        """
        with self._told("read"):
            secret = await self._read()
            if secret is None or self._is_mine(secret):
                return None
            keeper = await self._ended_keeper(secret)
        is_done = keeper is not None and keeper.status.phase == OperationPhase.COMPLETE
        return None if is_done else secret.value(KEY)

    async def store(self, content: bytes) -> None:
        """Returns once it is safe.

        Raises:
            ValueError: it is too much for a Secret.
            Transient: another operation keeps something for the same instance, and is at work.
        """
        if len(content) > MAX_BYTES:
            raise ValueError(f"{len(content)} bytes are more than the {MAX_BYTES} that a Secret holds")
        with self._told("written"):
            try:
                await self._api.create(SECRETS, self._body(content), namespace=NAMESPACE)
            except AlreadyExists:
                await _unhindered(lambda: self._store_anew(content))

    async def _store_anew(self, content: bytes) -> None:
        there = await self._api.get(SECRETS, self.name, namespace=NAMESPACE)
        if not self._is_mine(there):
            await self._ended_keeper(there)
        await self._patch(there, {"data": self._data(content)}, held=_is_held(there))

    async def hold(self) -> None:
        """From now on it outlives the operation, for as long as the Machine is there.

        Raises:
            Transient: nothing is kept for this operation.
        """
        with self._told("written"):
            await _unhindered(self._hold)

    async def _hold(self) -> None:
        there = await self._read()
        if there is None or not self._is_mine(there):
            raise Transient(f"{self.place} is not there, or another operation's")
        if not _is_held(there):
            await self._patch(there, {}, held=True)

    async def drop(self) -> None:
        """Keep nothing any more."""
        with self._told("removed", ApiError):
            await _unhindered(self._drop)

    async def _drop(self) -> None:
        secret = await self._read()
        if secret is None or not self._is_mine(secret):
            return
        version = secret.metadata.resource_version
        try:
            await self._api.delete(SECRETS, self.name, namespace=NAMESPACE, resource_version=version)
        except NotFound:
            return

    @contextmanager
    def _told(self, what: str, trouble: type[Failure] = Rejected) -> Iterator[None]:
        try:
            yield
        except trouble as error:
            raise NotDone(reasons.KEEPING_FAILED, f"{self.place} cannot be {what}: {error}") from error

    async def _read(self) -> Secret | None:
        try:
            return await self._api.get(SECRETS, self.name, namespace=NAMESPACE)
        except NotFound:
            return None

    def _is_mine(self, secret: Secret) -> bool:
        return secret.value(UID) == self._operation.metadata.uid.encode()

    async def _ended_keeper(self, secret: Secret) -> MachineOperation | None:
        """The operation that keeps it, which has ended; None where it is gone."""
        name = (secret.value(OPERATION) or b"").decode()
        try:
            keeper = await self._api.get(MACHINE_OPERATIONS, name)
        except NotFound:
            return None
        if (secret.value(UID) or b"").decode() != keeper.metadata.uid:
            return None
        if not keeper.terminal:
            raise Transient(f"HostReplace {name} of Machine {keeper.spec.machine_ref} is at work on the same instance")
        return keeper

    async def _patch(self, secret: Secret, change: dict[str, Any], *, held: bool) -> None:
        meta = {"resourceVersion": secret.metadata.resource_version, "ownerReferences": self._owners(held=held)}
        await self._api.patch(SECRETS, self.name, {"metadata": meta, **change}, namespace=NAMESPACE)

    def _body(self, content: bytes) -> dict[str, Any]:
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": self.name, "namespace": NAMESPACE, "ownerReferences": self._owners(held=False)},
            "type": "unbounded-cloud.io/replacement",
            "data": self._data(content),
        }

    def _data(self, content: bytes) -> dict[str, str]:
        uid = self._operation.metadata.uid
        values = {KEY: content, OPERATION: self._operation.name.encode(), UID: uid.encode()}
        return {key: base64.b64encode(value).decode() for key, value in values.items()}

    def _owners(self, *, held: bool) -> list[dict[str, str]]:
        owners = [_reference(MACHINE_OPERATIONS, self._operation)]
        return [*owners, _reference(MACHINES, self._machine)] if held else owners


async def _unhindered(write: Callable[[], Awaitable[None]]) -> None:
    """Write over what was read just before, again where another came between, as the garbage collector does."""
    for _ in range(_TRIES - 1):
        with suppress(Conflict):
            return await write()
    return await write()


def _reference(kind: Kind[Any], owner: Object) -> dict[str, str]:
    named = {"name": owner.metadata.name, "uid": owner.metadata.uid}
    return {"apiVersion": kind.api_version, "kind": kind.kind, **named}


def _is_held(secret: Secret) -> bool:
    return any(owner.kind == MACHINES.kind for owner in secret.metadata.owner_references)
