"""Reads of the Secrets of BMCs: few for idle machines, fresh ones for operations."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from typing import Any

import msgspec
import pytest

from tests.metalman.support.swift_time import run_swiftly, swift_now
from tests.support.memory_api import MemoryApi
from unbounded.api.core import SECRETS
from unbounded.api.machine import Machine
from unbounded.api.names import NAMESPACE
from unbounded.metalman.bmc_access import BmcAccess
from unbounded.metalman.redfish.pool import BmcPool
from unbounded.operations.executor_protocol import Refusal

HOSTS = 200
ROUND_S = 100.0
HOUR_S = 3600.0


class CountingApi(MemoryApi):
    """An API that counts its reads of Secrets."""

    reads = 0

    async def get(self, kind: Any, name: str, *, namespace: str = "") -> Any:
        self.reads += kind is SECRETS
        return await super().get(kind, name, namespace=namespace)


def host(number: int) -> Machine:
    redfish = {
        "url": f"https://192.0.2.{number}",
        "username": "admin",
        "passwordRef": {"name": f"host-{number}", "namespace": NAMESPACE, "key": "password"},
    }
    status = {"redfish": {"certFingerprint": "AA:BB"}}
    body = {
        "metadata": {"name": f"host-{number}"},
        "spec": {"pxe": {"image": "r.example/i:v1", "redfish": redfish}},
        "status": status,
    }
    return msgspec.convert(body, Machine)


async def set_password(api: CountingApi, number: int, password: str) -> None:
    data = {"password": b64encode(password.encode()).decode()}
    body = {"metadata": {"name": f"host-{number}"}, "data": data}
    await api.create(SECRETS, body, namespace=NAMESPACE)


async def readings(access: BmcAccess, seconds: float) -> list[str | None]:
    """Read all idle hosts every 100 s; return the last passwords, None for one without."""
    found: list[str | None] = []
    for _ in range(int(seconds / ROUND_S)):
        found = []
        for number in range(HOSTS):
            try:
                found.append((await access.of(host(number), idle=True)).password)
            except Refusal:
                found.append(None)
        await asyncio.sleep(ROUND_S)
    return found


def access_of(api: CountingApi) -> BmcAccess:
    return BmcAccess(api, BmcPool())


@pytest.mark.parametrize("exist", [True, False])
def test_idle_hosts_cost_a_read_of_a_secret_in_four_seconds(exist: bool) -> None:
    async def scene() -> None:
        api = CountingApi(now=swift_now)
        if exist:
            for number in range(HOSTS):
                await set_password(api, number, "secret")
        access = access_of(api)
        await readings(access, ROUND_S)
        assert api.reads == HOSTS
        assert await readings(access, HOUR_S) == ["secret" if exist else None] * HOSTS
        assert HOSTS < api.reads - HOSTS <= HOUR_S / 4

    run_swiftly(scene(), limit_s=2 * HOUR_S)


def test_a_secret_that_appears_is_found_for_idle_hosts() -> None:
    async def scene() -> None:
        api = CountingApi(now=swift_now)
        access = access_of(api)
        await readings(access, HOUR_S)
        await set_password(api, 7, "secret")
        found = await readings(access, HOSTS * 4 + 2 * ROUND_S)
        assert [number for number, password in enumerate(found) if password] == [7]

    run_swiftly(scene(), limit_s=2 * HOUR_S)


def test_an_operation_does_not_use_what_an_idle_host_was_told() -> None:
    async def scene() -> None:
        api = CountingApi(now=swift_now)
        access = access_of(api)
        with pytest.raises(Refusal, match="does not exist"):
            await access.of(host(1), idle=True)
        await set_password(api, 1, "secret")
        with pytest.raises(Refusal, match="does not exist"):
            await access.of(host(1), idle=True)
        assert (await access.of(host(1))).password == "secret"
        assert (await access.of(host(1), idle=True)).password == "secret"

    run_swiftly(scene(), limit_s=60.0)
