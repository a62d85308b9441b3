"""Extensions: paths of the product on the server's port, and the token with which they act as their caller."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.apiserver.support import client_of, client_with, running
from unbounded.kube.tls import client_context
from unbounded_apiserver.http.extensions import ExtensionCall
from unbounded_apiserver.http.reply import HttpReply
from unbounded_apiserver.pki import CertificateAuthority
from unbounded_apiserver.server import ApiServer

pytestmark = pytest.mark.slow

NAMES = "/api/v1/namespaces"


async def test_extension_acts_as_its_caller_until_the_answer(tmp_path: Path) -> None:
    tokens: list[str] = []
    servers: list[ApiServer] = []

    async def extension(call: ExtensionCall) -> HttpReply:
        tokens.append(call.token)
        trusted = client_context(ca=CertificateAuthority(tmp_path).certificate)
        async with client_with(servers[0], trusted, Authorization=f"Bearer {call.token}") as client:
            read = await client.ask("GET", NAMES)
        found = {"user": call.user.name, "path": call.path, "body": call.body.decode(), "code": read.status}
        return HttpReply(json.dumps(found).encode(), "application/json")

    def make(directory: Path, **options: object) -> ApiServer:
        servers.append(ApiServer(directory, extensions={"extra": extension}, **options))  # type: ignore[arg-type]
        return servers[0]

    async with running(tmp_path, make=make) as (server, admin), client_of(server, "carol") as carol:
        assert (await admin.ask("POST", "/extra/a%2Fb", {"n": 1})).json() == {
            "user": "unbounded-admin",
            "path": "/extra/a%2Fb",
            "body": '{"n":1}',
            "code": 200,
        }
        assert (await carol.ask("GET", "/extra")).json() == {"user": "carol", "path": "/extra", "body": "", "code": 403}
        assert (await carol.ask("GET", "/extras")).status == 403, "not a path of the extension"
        acting = {"Impersonate-User": "carol"}
        assert (await admin.ask("GET", "/extra", headers=acting)).json()["user"] == "carol"
        assert len(set(tokens)) == len(tokens) == 3
        trusted = client_context(ca=CertificateAuthority(tmp_path).certificate)
        for token in tokens:
            async with client_with(server, trusted, Authorization=f"Bearer {token}") as late:
                assert (await late.ask("GET", NAMES)).status == 401
        async with client_with(server, trusted) as anonymous:
            assert (await anonymous.ask("GET", "/extra")).status == 401
        assert len(tokens) == 3
