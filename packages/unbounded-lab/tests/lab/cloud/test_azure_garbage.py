"""Requests that make no sense are refused; they break neither the simulated Azure nor what is in it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lab.cloud.azure_support import model_faults
from unbounded_lab.cloud.azure.local import GROUP
from unbounded_lab.cloud.azure.login import RESOURCE, Application, LoginEndpoint
from unbounded_lab.cloud.azure.model import MACHINES, ResourceId
from unbounded_lab.cloud.azure.resource_manager import Azure
from unbounded_lab.cloud.azure.resources import AzureResources
from unbounded_lab.cloud.azure.seeding import VmShape, add_machine, model
from unbounded_lab.cloud.azure.service import ROUTES
from unbounded_lab.http import LabRequest

HERE = ResourceId("s", GROUP, MACHINES, "vm-1")
SHAPE = VmShape(data_disks=1, identities=("one",), system_identity=True)
JUNK = st.one_of(st.none(), st.booleans(), st.integers(), st.text(max_size=3), st.just([]), st.just({}), st.just([1]))


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths to everything in a JSON value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for name, each in items for place in _places(each, (*path, name)))]


PLACES = _places(model(HERE, SHAPE))[1:]


def _ask(azure: Azure, method: str, path: str, body: Any, token: str) -> int:
    content = msgspec.json.encode(body)
    request = LabRequest(method, path, {"authorization": f"Bearer {token}"}, content, "api-version=2026-04-01")
    call = azure.call(request)
    reply = azure.answer(request, call, 0.0)
    assert model_faults(call.name, reply) == []
    return reply.status


@pytest.mark.slow
@given(st.sampled_from(PLACES), JUNK, st.sampled_from(["PUT new", "PUT", "PATCH"]))
@settings(max_examples=100, deadline=None)
def test_a_body_with_something_odd_in_it_is_refused_or_taken(place: tuple[Any, ...], junk: Any, method: str) -> None:
    estate = AzureResources("tenant")
    add_machine(estate, HERE, SHAPE, 0.0)
    login = LoginEndpoint("tenant", b"secret")
    application = login.applications["app"] = Application("app", "secret")
    token = login.grant(application, f"{RESOURCE}/.default", 0.0, lifetime_s=60.0)["access_token"]
    azure = Azure(estate, login, ROUTES)

    body: Any = model(HERE, SHAPE)
    inner = body
    for name in place[:-1]:
        inner = inner[name]
    inner[place[-1]] = junk
    path = str(HERE) if method != "PUT new" else str(HERE.sibling(MACHINES, "vm-2"))
    assert _ask(azure, method.removesuffix(" new"), path, body, token) < 500
    azure.advance(100.0)
    assert _ask(azure, "GET", str(HERE), None, token) == 200
