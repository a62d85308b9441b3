"""Whatever a BMC answers is read or refused; it never crashes us and never leads elsewhere."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from multidict import CIMultiDict

from unbounded.api.failures import Failure, Rejected, Uncertain
from unbounded.metalman.redfish import documents
from unbounded.metalman.redfish.bmc_interface import MESSAGE_CHARS, BmcPowerState, Garbled, ResetType, clean, error_text
from unbounded.metalman.redfish.endpoint import BmcEndpoint, endpoint_of
from unbounded.metalman.redfish.http import BmcResponse
from unbounded.metalman.redfish.quirks import RESET_CHOICES, choices

KEYS = st.sampled_from(
    [
        "Id",
        "PowerState",
        "Boot",
        "Actions",
        "#ComputerSystem.Reset",
        "target",
        "ResetType@Redfish.AllowableValues",
        "@Redfish.Settings",
        "SettingsObject",
        "@odata.id",
        "Members",
        "Parameters",
        "Name",
        "AllowableValues",
        "error",
        "@Message.ExtendedInfo",
        "Messages",
        "MessageId",
        "Message",
        "TaskState",
        "BootSourceOverrideMode",
    ]
)
LEAVES = st.none() | st.booleans() | st.integers() | st.text() | st.sampled_from(["On", "ResetType", "Running"])
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=5))
DOCUMENTS = st.dictionaries(KEYS, JSON, max_size=8)
STATUSES = st.sampled_from([200, 201, 202, 204, 400, 401, 403, 404, 409, 410, 412, 428, 429, 500, 501, 502, 503])


@pytest.mark.slow
@given(DOCUMENTS, STATUSES, st.binary(max_size=40) | st.none(), st.text(max_size=20))
def test_any_answer_is_read_or_refused(document: dict[str, Any], status: int, junk: bytes | None, header: str) -> None:
    body = msgspec.json.encode(document) if junk is None else junk
    answer = BmcResponse(status, CIMultiDict({"Location": header, "Retry-After": header, "ETag": header}), body)
    view = documents.task(answer, where="bmc")
    assert view.running in (True, False)
    assert all(documents.monitors_of(answer))
    for changes in (True, False):
        refused = documents.failure_of(answer, what="reset", where="bmc", changes=changes)
        assert isinstance(refused, Failure)
        assert changes or not isinstance(refused, Uncertain), "a reading leaves nothing in doubt"
    hints = dict(answer.hints())
    documents.action_values(hints)
    documents.members(hints)
    try:
        system = documents.system(answer.document(), path="/redfish/v1/Systems/1", device_id="1", etag=None)
    except Failure:
        return
    assert system.state.power in BmcPowerState


@pytest.mark.slow
@given(st.text())
def test_no_reference_leads_to_another_host(reference: str) -> None:
    here = BmcEndpoint("https", "bmc.example", 443, "/blade")
    try:
        url = here.url(reference)
    except Rejected:
        return
    assert (url.scheme, url.host, url.port) == ("https", "bmc.example", 443)
    assert not set(str(url)) & set(" \r\n\t")
    assert str(url).isascii()


@pytest.mark.slow
@given(st.sampled_from(["https://", "//", "", "http://[", "https://bmc.example"]), st.text())
def test_a_redirect_stays_here_or_is_not_followed(start: str, rest: str) -> None:
    here = BmcEndpoint("https", "bmc.example", 443)
    if here.leads_here(start + rest):
        assert here.url(start + rest).host == "bmc.example"


@given(st.sampled_from(["", "https://", "http://[", "https://bmc:"]), st.text())
def test_any_url_is_parsed_or_rejected(start: str, rest: str) -> None:
    with suppress(Rejected):
        assert endpoint_of(start + rest).scheme in ("http", "https")


@pytest.mark.slow
@given(st.text(), st.text(min_size=4))
def test_what_is_shown_is_one_printable_line_without_the_secret(text: str, secret: str) -> None:
    shown = clean(f"{text}{secret}{text}", hide=(secret,))
    assert len(shown) <= MESSAGE_CHARS
    assert shown.isprintable()
    assert secret not in shown.replace("***", "") or secret in text or secret in "***"


@pytest.mark.slow
@given(
    st.none() | st.lists(st.sampled_from(["On", "ForceOn", "ForceOff", "GracefulShutdown", "PushPowerButton", "Nmi"]))
)
def test_only_what_is_listed_is_chosen_and_a_toggle_never_switches_on(listed: list[str] | None) -> None:
    allowable = None if listed is None else tuple(listed)
    for wanted in ResetType:
        chosen = choices(wanted, allowable)
        assert set(chosen) <= set(RESET_CHOICES[wanted])
        assert all(not allowable or choice.value in allowable for choice in chosen)
        assert all(choice.only_when_on for choice in chosen if choice.value == "PushPowerButton")
        assert wanted is not ResetType.ON or "PushPowerButton" not in {choice.value for choice in chosen}


def test_json_nested_without_end_is_garbled() -> None:
    with pytest.raises(Garbled):
        BmcResponse(200, CIMultiDict(), b"[" * 100_000).document()


def test_error_texts_are_taken_from_where_bmcs_put_them() -> None:
    info = [{"MessageId": "Base.1.0.A", "Message": "a"}, {"MessageId": "Base.1.0.B"}, "plain", 7]
    assert error_text({"error": {"@Message.ExtendedInfo": info}}) == "Base.1.0.A: a; Base.1.0.B; plain"
    assert error_text({"@Message.ExtendedInfo": info[0]}) == "Base.1.0.A: a"
    assert error_text({"error": {"code": "Base.1.0.C", "message": "c"}}) == "Base.1.0.C: c"
    assert error_text({"error": "odd"}) == ""
