"""Rights of a node, compared with a kube-apiserver's answers to the same requests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.apiserver.support import client_of, running
from tests.support.paths import GOLDENS

GOLDEN = GOLDENS / "node-rights.json"


def filled(value: Any, uids: dict[str, str]) -> Any:
    text = json.dumps(value)
    for what, uid in uids.items():
        text = text.replace(f"{{uid {what}}}", uid)
    return json.loads(text)


@pytest.mark.slow
async def test_a_node_is_answered_as_recorded(tmp_path: Path) -> None:
    golden: dict[str, Any] = json.loads(GOLDEN.read_text())
    uids, wrong = dict[str, str](), []
    async with running(tmp_path) as (server, admin), client_of(server, "system:node:n1", "system:nodes") as node:
        for path, body in golden["setup"]:
            made = await admin.create(path, filled(body, uids))
            uids[f"{path.rpartition('/')[2]}/{made['metadata']['name']}"] = made["metadata"]["uid"]
        for request in golden["requests"]:
            method, path = request["method"], request["path"]
            headers = {"Content-Type": f"application/{'merge-patch+' if method == 'PATCH' else ''}json"}
            body = json.dumps(filled(request["body"], uids)).encode() if "body" in request else None
            answer = await node.ask(method, path, data=body, headers=headers)
            said = json.loads(answer.text) if answer.text.startswith("{") else {}
            message = said.get("message", "") if said.get("kind") == "Status" else ""
            expected = request["code"], filled(request.get("message", ""), uids)
            if (answer.status, message) != expected:
                wrong.append((method, path, request.get("body"), (answer.status, message), expected))
    assert len(golden["requests"]) > 100
    assert wrong == [], "\n".join(map(str, wrong))
