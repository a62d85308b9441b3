"""The public key of releases on a host that has joined: taken over, kept, and reported."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.agent.test_settings import CONFIG
from tests.join.signing import ANOTHER, KEY, PUBLIC_KEY, pem_of, word_of
from tests.support.memory_api import MemoryApi
from tests.support.waiting import eventually
from unbounded.agent.daemon import cluster_sync
from unbounded.agent.daemon.cluster_sync import ReleaseKeySync
from unbounded.agent.lock import host_lock
from unbounded.agent.paths import HostPaths
from unbounded.agent.recreation.status import RecreationStatusWriter
from unbounded.agent.settings import require_stored_config, store_config, with_release_key, with_stored_key
from unbounded.api.core import CONFIG_MAPS
from unbounded.api.failures import Rejected, Transient
from unbounded.api.machine import MACHINES
from unbounded.api.names import NAMESPACE
from unbounded.join.release_key import fingerprint
from unbounded.kube.api import Forbidden
from unbounded.kube.clock import utc_now

OTHER = word_of(ANOTHER)


class Place:
    """A host that has joined, and its cluster."""

    def __init__(self, folder: Path, api: MemoryApi | None = None) -> None:
        self.paths = HostPaths(folder)
        self.api = api or MemoryApi()
        store_config(self.paths, CONFIG)
        status = RecreationStatusWriter(self.api, "m1", now=utc_now)
        self.reported = False
        self.key = ReleaseKeySync(
            self.api,
            self.paths,
            status,
            lock=lambda who: host_lock(self.paths, who, within_s=0.1),
            is_reported=lambda: self.reported,
        )

    async def publish(self, text: str | None) -> None:
        """Publish a text; None for no ConfigMap."""
        body = {"metadata": {"name": "unbounded-releases"}, "data": {"publicKey": text}}
        for one in (await self.api.list(CONFIG_MAPS, namespace=NAMESPACE)).items:
            await self.api.delete(CONFIG_MAPS, one.metadata.name, namespace=NAMESPACE)
        if text is not None:
            await self.api.create(CONFIG_MAPS, body, namespace=NAMESPACE)

    @property
    def kept(self) -> str:
        return require_stored_config(self.paths).upgrade.public_key

    async def condition(self) -> tuple[str, str, str]:
        (found,) = (await self.api.get(MACHINES, "m1")).status.conditions
        assert found.type == "ReleaseKeyCurrent"
        return found.status, found.reason, found.message


@pytest.fixture
async def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    await made.api.create(MACHINES, {"metadata": {"name": "m1"}, "spec": {}})
    return made


async def test_a_key_that_is_published_reaches_a_host_that_joined_without(place: Place) -> None:
    await place.key.poll()
    assert (await place.api.get(MACHINES, "m1")).status.conditions == ()
    await place.publish(pem_of(KEY))
    await place.key.poll()
    assert place.kept == await place.key.current() == PUBLIC_KEY
    assert require_stored_config(place.paths) == with_release_key(require_stored_config(place.paths), PUBLIC_KEY)
    words = f"releases of the agent must be signed with the key {fingerprint(PUBLIC_KEY)}"
    assert await place.condition() == ("True", "Applied", words)


async def test_another_key_follows_and_none_is_taken_away(place: Place) -> None:
    await place.publish(pem_of(KEY))
    await place.key.poll()
    await place.publish(pem_of(ANOTHER))
    assert await place.key.current() == place.kept == OTHER
    for gone in ("", None):
        await place.publish(gone)
        await place.key.poll()
        assert await place.key.current() == place.kept == OTHER
        status, _, words = await place.condition()
        assert (status, fingerprint(OTHER) in words) == ("True", True)
        assert words.endswith("the cluster publishes none, and the host keeps its own")


async def test_a_key_that_root_takes_away_is_reported_as_gone(place: Place) -> None:
    await place.publish(pem_of(KEY))
    await place.key.poll()
    place.reported = True
    await place.publish(None)
    store_config(place.paths, CONFIG)
    await place.key.poll()
    words = "any release may run: neither this host nor the cluster names a key"
    assert await place.condition() == ("True", "Applied", words)


@pytest.mark.parametrize("own", ["", PUBLIC_KEY])
async def test_what_is_no_key_is_named_and_holds_upgrades_up(place: Place, own: str) -> None:
    store_config(place.paths, with_release_key(CONFIG, own))
    await place.publish("-----BEGIN PUBLIC KEY-----\nx\n-----END PUBLIC KEY-----\n")
    for call in (place.key.poll, place.key.current):
        with pytest.raises(Rejected, match=r"^ConfigMap unbounded-kube/unbounded-releases, key publicKey: expected"):
            await call()
    assert place.kept == own
    status, reason, words = await place.condition()
    assert (status, reason) == ("False", "Pending")
    assert words.endswith("until it is corrected, no AgentUpgrade runs on this host")


async def test_a_key_that_may_not_be_read_holds_upgrades_up(tmp_path: Path) -> None:
    class Refusing(MemoryApi):
        async def get(self, kind: Any, *given: Any, **more: Any) -> Any:
            if kind.plural == CONFIG_MAPS.plural:
                raise Forbidden('configmaps "unbounded-releases" is forbidden')
            return await super().get(kind, *given, **more)

    place = Place(tmp_path, Refusing())
    with pytest.raises(Forbidden):
        await place.key.current()


async def test_a_host_that_is_held_keeps_its_configuration(place: Place) -> None:
    await place.publish(pem_of(KEY))
    async with host_lock(place.paths, "unbounded-agent start"):
        with pytest.raises(Transient, match=r"unbounded-agent start \(pid \d+\) holds the lock of this host"):
            await place.key.current()
    assert place.kept == ""
    assert await place.key.current() == PUBLIC_KEY


async def test_it_is_looked_at_again_and_trouble_does_not_end_that(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_sync, "KEY_POLL_S", 0.01)
    monkeypatch.setattr(cluster_sync, "RETRY_S", 0.01)
    await place.publish("wrong")

    async def refused() -> bool:
        return bool((await place.api.get(MACHINES, "m1")).status.conditions)

    running = asyncio.create_task(place.key.run())
    await eventually(refused)
    await place.publish(pem_of(KEY))

    async def kept() -> bool:
        return place.kept == PUBLIC_KEY

    await eventually(kept, within_s=20)
    running.cancel()


def test_a_start_takes_no_key_away_and_brings_another_one() -> None:
    assert with_stored_key(CONFIG, None) == CONFIG
    kept = with_release_key(CONFIG, PUBLIC_KEY)
    assert with_stored_key(CONFIG, kept) == kept
    assert with_stored_key(with_release_key(CONFIG, OTHER), kept).upgrade.public_key == OTHER
