"""Sessions, accounts and ETags that keep others out."""

from __future__ import annotations

import pytest

from tests.lab.misbehaviours.checks import Checks, patched
from tests.lab.wire import ROOT, SESSIONS, SYSTEM, Wire
from unbounded_lab.bmc import HostPower

CHECKS = Checks()


# Sessions and accounts


@CHECKS.shows
async def few_sessions(talk: Wire) -> None:
    logins = [await talk.login() for _ in range(8)]
    assert {answer.status for answer in logins} == {201}
    refused = await talk.login()
    assert (refused.status, refused.message_id) == (503, "Base.1.18.SessionLimitExceeded")
    first = logins[0].headers
    assert (await talk.ask("DELETE", first["location"], token=first["x-auth-token"])).status == 204
    assert (await talk.login()).status == 201


@CHECKS.shows
async def leaked_sessions(talk: Wire) -> None:
    assert (await talk.login()).status == 503
    assert (await talk.get()).status == 200


@CHECKS.shows
async def no_session_service(talk: Wire) -> None:
    root = (await talk.get(ROOT)).json
    assert "SessionService" not in root
    assert (await talk.login()).status == (await talk.get(SESSIONS)).status == 404
    assert (await talk.get()).status == 200


@CHECKS.shows
async def session_service_refuses(talk: Wire) -> None:
    assert (await talk.get(f"{ROOT}/SessionService")).json["ServiceEnabled"] is False
    assert (await talk.login()).status == 401
    assert (await talk.get()).status == 200


@CHECKS.shows
async def session_ends_midway(talk: Wire) -> None:
    token = (await talk.login()).headers["x-auth-token"]
    assert [(await talk.ask("GET", SYSTEM, token=token)).status for _ in range(6)] == [200] * 5 + [401]
    assert (await talk.login()).status == 201


@CHECKS.shows
async def locks_out(talk: Wire) -> None:
    for _ in range(3):
        assert (await talk.login("wrong")).status == 401
    assert (await talk.login()).status == (await talk.get()).status == 401
    talk.clock.move(300.0)
    assert (await talk.login()).status == 201


@CHECKS.shows
async def password_expired(talk: Wire) -> None:
    login = await talk.login()
    assert login.status == 201
    token = login.headers["x-auth-token"]
    refused = await talk.ask("GET", SYSTEM, token=token)
    assert (refused.status, refused.message_id) == (403, "Base.1.18.PasswordChangeRequired")
    another = (await talk.login()).headers
    assert (await talk.ask("DELETE", another["location"], token=another["x-auth-token"])).status == 204
    account = f"{ROOT}/AccountService/Accounts/1"
    assert (await talk.ask("PATCH", account, {"Password": "a new one"}, token=token)).status == 200
    assert (await talk.ask("GET", SYSTEM, token=token)).status == (await talk.get()).status == 200


# ETags


@CHECKS.shows
async def if_match_required(talk: Wire) -> None:
    assert (await patched(talk)).status == 428
    etag = (await talk.get()).headers["etag"]
    assert (await patched(talk, if_match=etag)).status == 200


@CHECKS.shows
async def if_match_refused(talk: Wire) -> None:
    etag = (await talk.get()).headers["etag"]
    assert (await patched(talk, if_match=etag)).status == 412
    assert (await patched(talk)).status == 200


@CHECKS.shows
async def if_match_refused_on_actions(talk: Wire) -> None:
    etag = (await talk.get()).headers["etag"]
    assert (await talk.reset("ForceOff", if_match=etag)).status == 412
    assert talk.bmc.power() is HostPower.ON
    assert (await talk.reset("ForceOff")).status == 204


@CHECKS.shows
async def weak_etags(talk: Wire) -> None:
    etag = (await talk.get()).headers["etag"]
    assert etag.startswith('W/"')
    assert (await patched(talk, if_match=etag.removeprefix("W/"))).status == 412
    assert (await patched(talk, if_match=etag)).status == 200


@CHECKS.shows
async def double_quoted_etags(talk: Wire) -> None:
    answer = await talk.get()
    in_header, in_body = answer.headers["etag"], answer.json["@odata.etag"]
    assert in_header == f'"{in_body}"'
    assert (await patched(talk, if_match=in_header)).status == 412
    assert (await patched(talk, if_match=in_body)).status == 200


@CHECKS.shows
async def no_etags(talk: Wire) -> None:
    answer = await talk.get()
    assert "etag" not in answer.headers
    assert "@odata.etag" not in answer.json
    assert (await patched(talk, if_match='"anything"')).status == 200


@pytest.mark.parametrize("name", CHECKS)
async def test_it_does_what_it_says(name: str) -> None:
    await CHECKS.show(name)
