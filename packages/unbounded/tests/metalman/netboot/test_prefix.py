"""The key of prefixes: made once for all replicas, and never shown."""

from __future__ import annotations

import asyncio
import base64
import logging
from pathlib import Path

import pytest

from tests.support.embedded_server import embedded_server
from tests.support.memory_api import MemoryApi
from unbounded.api.core import SECRETS
from unbounded.api.failures import Rejected
from unbounded.api.names import NAMESPACE
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded.metalman.netboot.prefix import DATA_KEY, KEY_BYTES, KEY_SECRET, is_same_prefix, prefix_key


async def test_replicas_that_start_together_agree_on_one_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    api = MemoryApi()
    keys = await asyncio.gather(*(prefix_key(api) for _ in range(5)))
    assert len({key.prefix("uid", "boot") for key in keys}) == 1
    secret = await api.get(SECRETS, KEY_SECRET, namespace=NAMESPACE)
    content = secret.value(DATA_KEY)
    assert content is not None
    assert len(content) == KEY_BYTES
    shown = caplog.text + repr(keys) + str(keys[0]) + f"{keys[0]!s}"
    for secret_text in (content.hex(), base64.b64encode(content).decode(), repr(content)):
        assert secret_text not in shown


@pytest.mark.parametrize(
    "data", [{}, {DATA_KEY: ""}, {DATA_KEY: "c2hvcnQ="}, {DATA_KEY: "no base64!"}, {"other": "eA=="}]
)
async def test_a_secret_that_holds_no_key_says_what_to_do(data: dict[str, str]) -> None:
    api = MemoryApi()
    await api.create(SECRETS, {"metadata": {"name": KEY_SECRET}, "data": data}, namespace=NAMESPACE)
    with pytest.raises(
        Rejected, match=rf"Secret {NAMESPACE}/{KEY_SECRET}: data\.{DATA_KEY} .*delete the Secret"
    ) as error:
        await prefix_key(api)
    assert "short" not in str(error.value)


@pytest.mark.slow
def test_the_embedded_server_keeps_it(tmp_path: Path) -> None:
    async def main(kubeconfig: Path) -> None:
        async with HttpApi(from_kubeconfig(kubeconfig)) as one, HttpApi(from_kubeconfig(kubeconfig)) as other:
            first, second = await asyncio.gather(prefix_key(one), prefix_key(other))
            third = await prefix_key(one)
            assert len({key.prefix("uid", "boot") for key in (first, second, third)}) == 1

    with embedded_server(tmp_path / "data") as kubeconfig:
        asyncio.run(main(kubeconfig))


def test_prefixes_are_compared_whole() -> None:
    assert is_same_prefix("abc", "abc")
    for other in ("", "ab", "abcd", "abd", "ABC", "é"):
        assert not is_same_prefix(other, "abc")
