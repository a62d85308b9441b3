"""The project's kinds in an API group that is ours alone, for tests on a cluster where the real ones are in use."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from tests.support.embedded_server import CRDS, install_crds
from unbounded.api.meta import Kind
from unbounded.api.names import GROUP
from unbounded.kube.api import ObjectList, WatchEvent
from unbounded.kube.client import HttpApi
from unbounded.kube.config import ClientConfig, from_kubeconfig

T = TypeVar("T")


class OwnGroup(HttpApi):
    """An HttpApi that finds the project's kinds in another group."""

    def __init__(self, config: ClientConfig, group: str, **options: Any) -> None:
        super().__init__(config, **options)
        self._group = group

    def _there(self, kind: Kind[T]) -> Kind[T]:
        return replace(kind, group=self._group) if kind.group == GROUP else kind

    async def get(self, kind: Kind[T], name: str, *, namespace: str = "") -> T:
        return await super().get(self._there(kind), name, namespace=namespace)

    async def list(self, kind: Kind[T], **selection: str) -> ObjectList[T]:
        return await super().list(self._there(kind), **selection)

    def watch(self, kind: Kind[T], **options: Any) -> AsyncIterator[WatchEvent[T]]:
        return super().watch(self._there(kind), **options)

    async def create(self, kind: Kind[T], body: Mapping[str, Any], **options: Any) -> T:
        return await super().create(self._there(kind), body, **options)

    async def patch(self, kind: Kind[T], name: str, patch: Mapping[str, Any], **options: Any) -> T:
        return await super().patch(self._there(kind), name, patch, **options)

    async def delete(self, kind: Kind[T], name: str, **options: str) -> None:
        await super().delete(self._there(kind), name, **options)


@contextmanager
def own_group(kubeconfig: Path) -> Iterator[str]:
    """A group with the project's definitions, while entered."""
    group = f"test-{secrets.token_hex(4)}.{GROUP}"
    names = asyncio.run(install_crds(kubeconfig, group))
    try:
        yield group
    finally:
        asyncio.run(_remove(kubeconfig, names))


async def _remove(kubeconfig: Path, names: list[str]) -> None:
    async with HttpApi(from_kubeconfig(kubeconfig)) as api:
        for name in names:
            await api.delete(CRDS, name)
