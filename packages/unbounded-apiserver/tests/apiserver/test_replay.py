"""Exchanges recorded from a kube-apiserver, sent to ours: the answers are equal, or a table has the reason."""

from __future__ import annotations

import asyncio
import base64
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.replay import AGENT, Replay
from tests.apiserver.support import GOLDENS, client_of, golden_definitions, running, signing_request
from tests.support.waiting import eventually
from unbounded_apiserver.controllers.nodes.lifecycle import NodeLifecycle

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

NO_PROTOBUF = "answers are never protobuf, and the message does not promise it"
NOT_OURS = "a request that cannot be read is the client's fault, and no 5xx here"
DIFFERENT: dict[str, str] = {
    "01-discovery/agg-bad-version": NO_PROTOBUF,
    "01-discovery/version": "our version is our own",
    "02-crud-errors/not-acceptable": NO_PROTOBUF,
    "02-crud-errors/rv-on-create": NOT_OURS,
    "02-crud-errors/fv-apply-strict": NOT_OURS,
    "02-crud-errors/fv-merge-patch-strict": "the message repeats the object, with its fields in another order",
    "02-crud-errors/update-rv-invalid": NOT_OURS,
    "04-watch/bad-version": NOT_OURS,
    "04-watch/bookmark-before-timeout": "one bookmark before the end, not two",
    "04-watch/not-acceptable": NO_PROTOBUF,
    "05-patch/apply-duplicate-set": NOT_OURS,
    "05-patch/apply-duplicate-key": NOT_OURS,
    "05-patch/apply-cm-unknown": NOT_OURS,
    "05-patch/apply-bad-yaml": "the YAML parser words its errors otherwise",
    "09-tables/table-roles": "no rows are an empty list, not null",
    "09-tables/table-bad-version": NO_PROTOBUF,
    "10-core/bad-bearer": "the list shows namespaces of the recorded cluster",
    "11-auth/ssrr-admin": "the rules of cluster-admin come first, and nobody reads /.well-known",
    "11-auth/ssrr-alice": "the recorded cluster lets everybody read /.well-known",
    "11-auth/ssrr-after": "the recorded cluster lets everybody read /.well-known",
    "11-auth/alice-discovery": "our version is our own",
    "12-expired/watch-cm-old": "the ConfigMaps that controllers of a cluster put into each namespace",
}


def reason(exchange: str) -> str | None:
    return DIFFERENT.get(exchange)


def exchanges(name: str) -> list[dict[str, Any]]:
    recorded: list[dict[str, Any]] = json.loads((GOLDENS / f"{name}.json").read_text())["exchanges"]
    return recorded


def old_token() -> str:
    """Return the hand-made token of file 12."""
    token = json.dumps({"v": "meta.k8s.io/v1", "rv": 2, "start": "e0\0"})
    return base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


def _end_node_lifecycle() -> None:
    """End the controller that taints Nodes by their conditions.

    In the recording it wrote nothing between two patches of taints; here it would, at a moment that differs.
    """
    (task,) = (one for one in asyncio.all_tasks() if one.get_name() == NodeLifecycle.__name__)
    task.cancel()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in GOLDENS.glob("*.json")))
async def test_answers_are_those_of_a_kube_apiserver(name: str, tmp_path: Path) -> None:
    different: dict[str, list[str]] = {}
    async with running(tmp_path) as (server, _), client_of(server, "admin", "system:masters") as client:
        if name == "05-patch":
            _end_node_lifecycle()
        if name != "00-setup":
            for definition in golden_definitions():
                await client.ask("POST", DEFINITIONS, definition, headers={"User-Agent": AGENT})
            await eventually(lambda: established(client))
        await server.core.store.wait_idle()
        server.core.store.compact(server.core.store.revision)
        known = {"$csr": base64.b64encode(signing_request("somebody")[0]).decode()}
        known |= {"$continue1": old_token()} if name == "12-expired" else {}
        replay = Replay(client, known, hopeless=reason)
        recorded = exchanges(name)
        async for exchange, differences in replay.all(recorded):
            if differences and reason(exchange["id"]) is None:
                different[exchange["id"]] = differences
            if not differences and exchange["id"] in DIFFERENT:
                different[exchange["id"]] = ["answers as recorded by now; take it out of the table"]
            if exchange["request"]["path"] == "/api/v1/namespaces" and exchange["response"]["status"] == 201:
                account = (
                    f"/api/v1/namespaces/{exchange['request']['body']['metadata']['name']}/serviceaccounts/default"
                )
                await eventually(partial(found, client, account))
            is_node = exchange["request"]["path"] == "/api/v1/nodes" and exchange["response"]["status"] == 201
            if is_node and name != "05-patch":
                node = f"/api/v1/nodes/{exchange['request']['body']['metadata']['name']}"
                await eventually(partial(without_taints, client, node))
    assert not different, json.dumps(different, indent=1)


async def found(client: Any, path: str) -> bool:
    return bool((await client.ask("GET", path)).status == 200)


async def without_taints(client: Any, node: str) -> bool:
    """Return whether the controller has taken the taint from a Node that has reported no condition, as recorded."""
    return "taints" not in (await client.get(node))["spec"]


async def established(client: Any) -> bool:
    items = (await client.get(DEFINITIONS))["items"]
    return all(c["status"] == "True" for i in items for c in i["status"]["conditions"] or [{"status": "False"}])
