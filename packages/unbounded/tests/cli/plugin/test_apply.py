"""Requests of the client beyond the port: server-side apply, dry runs, and impersonation."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from unbounded.api.core import CONFIG_MAPS
from unbounded.api.meta import Kind
from unbounded.kube.api import Conflict, NotFound
from unbounded.kube.client import HttpApi

RAW: Kind[dict[str, Any]] = CONFIG_MAPS.raw()
WHOLE: Kind[Any] = Kind("", "v1", "ConfigMap", "configmaps", msgspec.Raw, namespaced=True)  # as it came


def _manifest(name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "default"}, "data": data}


async def _managers(api: HttpApi, name: str) -> set[str]:
    whole = msgspec.json.decode(await api.get(WHOLE, name, namespace="default"))
    return {entry["manager"] for entry in whole["metadata"]["managedFields"]}


@pytest.mark.slow
async def test_apply_makes_it_so_and_takes_away_what_it_no_longer_says(api: HttpApi) -> None:
    made = await api.apply(RAW, _manifest("applied", a="1", b="2"), manager="me")
    assert made["data"] == {"a": "1", "b": "2"}
    again = await api.apply(RAW, _manifest("applied", a="1", b="2"), manager="me")
    assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    less = await api.apply(RAW, _manifest("applied", a="1"), manager="me")
    assert less["data"] == {"a": "1"}
    assert await _managers(api, "applied") == {"me"}


@pytest.mark.slow
async def test_what_another_owns_is_taken_by_force_only(api: HttpApi) -> None:
    await api.apply(RAW, _manifest("owned", a="1"), manager="other")
    with pytest.raises(Conflict, match="other"):
        await api.apply(RAW, _manifest("owned", a="2"), manager="me")
    taken = await api.apply(RAW, _manifest("owned", a="2"), manager="me", force=True)
    assert taken["data"] == {"a": "2"}


async def test_a_dry_run_answers_and_writes_nothing(api: HttpApi) -> None:
    assert (await api.apply(RAW, _manifest("dry", a="1"), manager="me", dry_run=True))["data"] == {"a": "1"}
    made = await api.create(RAW, _manifest("dry", a="1"), dry_run=True)
    assert made["metadata"]["uid"]
    with pytest.raises(NotFound):
        await api.get(RAW, "dry", namespace="default")
    await api.create(RAW, _manifest("dry", a="1"))
    await api.patch(RAW, "dry", {"data": {"a": "2"}}, namespace="default", dry_run=True)
    assert (await api.get(RAW, "dry", namespace="default"))["data"] == {"a": "1"}


async def test_writes_are_in_the_name_that_was_given(api: HttpApi) -> None:
    await api.create(RAW, _manifest("named", a="1"), manager="creator")
    await api.patch(RAW, "named", {"data": {"b": "2"}}, namespace="default", manager="patcher")
    assert await _managers(api, "named") == {"creator", "patcher"}
