"""Where a replacement puts down what it could not go on without: a Secret that goes with its operation."""

from __future__ import annotations

import base64
from typing import Any, Final

from unbounded.api.core import SECRETS
from unbounded.api.names import NAMESPACE
from unbounded.api.operation import MACHINE_OPERATIONS, MachineOperation
from unbounded.kube.errors import AlreadyExists, NotFound
from unbounded.kube.port import Api

KEY: Final = "model"
MAX_BYTES: Final = 900_000  # of a Secret's 1 MiB, less what base64 does not add to the stored size


class SecretKeep:
    """What is kept for one operation."""

    def __init__(self, api: Api, operation: MachineOperation) -> None:
        self._api = api
        self._operation = operation
        self.name = f"machineoperation-{operation.metadata.uid}"

    async def load(self) -> bytes | None:
        """What was stored last; None where nothing was."""
        try:
            secret = await self._api.get(SECRETS, self.name, namespace=NAMESPACE)
        except NotFound:
            return None
        return secret.value(KEY)

    async def store(self, content: bytes) -> None:
        """Returns once it is safe.

        Raises:
            ValueError: it is too much for a Secret.
        """
        if len(content) > MAX_BYTES:
            raise ValueError(f"{len(content)} bytes are more than the {MAX_BYTES} that a Secret holds")
        body = self._body(content)
        try:
            await self._api.create(SECRETS, body, namespace=NAMESPACE)
        except AlreadyExists:
            await self._api.patch(SECRETS, self.name, {"data": body["data"]}, namespace=NAMESPACE)

    async def drop(self) -> None:
        """Keep nothing any more."""
        try:
            await self._api.delete(SECRETS, self.name, namespace=NAMESPACE)
        except NotFound:
            return

    def _body(self, content: bytes) -> dict[str, Any]:
        operation = self._operation
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": self.name,
                "namespace": NAMESPACE,
                "ownerReferences": [
                    {
                        "apiVersion": MACHINE_OPERATIONS.api_version,
                        "kind": "MachineOperation",
                        "name": operation.name,
                        "uid": operation.metadata.uid,
                    }
                ],
            },
            "type": "unbounded-cloud.io/replacement",
            "data": {KEY: base64.b64encode(content).decode()},
        }
