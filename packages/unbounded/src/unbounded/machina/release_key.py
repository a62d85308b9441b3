"""Publication of the public key of the agent's releases, for hosts that join and for hosts that have joined before.

Without a key in its settings machina publishes nothing and leaves the published key: only an administrator removes it.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final, NoReturn

from unbounded.api.core import CONFIG_MAPS
from unbounded.api.failures import Failure
from unbounded.api.names import CONFIGMAP_RELEASES, NAMESPACE
from unbounded.join.release_key import PUBLISHED, fingerprint, pem_of, published_key
from unbounded.kube.errors import AlreadyExists, NotFound
from unbounded.kube.logs import Log
from unbounded.kube.port import Api

EVERY_S: Final = 300.0
RETRY_S: Final = 30.0

log = Log("machina")


async def publish_release_key(api: Api, key: str) -> NoReturn:
    """Keep the key published in the ConfigMap until cancelled; replaces another key."""
    while True:
        wait_s = EVERY_S
        try:
            await publish_once(api, key)
        except Failure as error:
            log.warning("the public key of releases is not published", error=error)
            wait_s = RETRY_S
        await asyncio.sleep(wait_s)


async def publish_once(api: Api, key: str) -> None:
    """Publish the key if the ConfigMap has another one or none."""
    change = {"data": {PUBLISHED: pem_of(key)}}
    try:
        there = await api.get(CONFIG_MAPS, CONFIGMAP_RELEASES, namespace=NAMESPACE)
        with suppress(ValueError):
            if published_key(there) == key:
                return
        await api.patch(CONFIG_MAPS, CONFIGMAP_RELEASES, change, namespace=NAMESPACE)
    except NotFound:
        body = {"metadata": {"name": CONFIGMAP_RELEASES, "namespace": NAMESPACE}, **change}
        with suppress(AlreadyExists):  # the next round reads it
            await api.create(CONFIG_MAPS, body, namespace=NAMESPACE)
    log.info("public key of releases published", key=fingerprint(key))
