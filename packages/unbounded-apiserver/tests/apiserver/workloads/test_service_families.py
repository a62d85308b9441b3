"""A Service has its address families, as in a cluster with IPv4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.support import running

SERVICES = "/api/v1/namespaces/default/services"
SPECS: list[tuple[dict[str, Any], list[str], str]] = [
    ({}, ["IPv4"], "SingleStack"),
    ({"clusterIP": "None"}, ["IPv4"], "SingleStack"),
    ({"clusterIP": "None", "selector": None}, ["IPv4", "IPv6"], "RequireDualStack"),
    ({"clusterIP": "fd00::7"}, ["IPv6"], "SingleStack"),
    ({"ipFamilies": ["IPv6"], "ipFamilyPolicy": "SingleStack"}, ["IPv6"], "SingleStack"),
]


@pytest.mark.slow
async def test_services_say_their_families(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, client):
        for number, (spec, families, policy) in enumerate(SPECS):
            given: dict[str, Any] = {key: one for key, one in {"selector": {"a": "b"}, **spec}.items() if one}
            service = {"metadata": {"name": f"s{number}"}, "spec": {"ports": [{"port": 80}], **given}}
            made = (await client.create(SERVICES, service))["spec"]
            assert (made["ipFamilies"], made["ipFamilyPolicy"]) == (families, policy)
            again = await client.ask("PUT", f"{SERVICES}/s{number}", service)
            assert again.json()["spec"]["ipFamilies"] == families
        named = {"metadata": {"name": "n"}, "spec": {"type": "ExternalName", "externalName": "example.com"}}
        assert not {"ipFamilies", "ipFamilyPolicy"} & (await client.create(SERVICES, named))["spec"].keys()
