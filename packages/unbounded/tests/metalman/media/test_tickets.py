"""Tickets in the URLs of virtual media: whom they permit, and when they end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbounded.metalman.media.tickets import MediaTicket, PresentedTicket, TicketKey, presented_ticket

KEY = TicketKey(b"k" * 32)
TICKET = MediaTicket("host-1.rack", "uid", "boot", "192.0.2.7", 1_800_000_000)
NOW = {"uid": "uid", "boot": "boot", "client": "192.0.2.7", "now": 1_799_999_999.0}


def presented(ticket: MediaTicket = TICKET, key: TicketKey = KEY) -> PresentedTicket:
    found = presented_ticket(key.path(ticket))
    assert found is not None
    return found


def permits(ticket: PresentedTicket, **changed: Any) -> bool:
    return KEY.permits(ticket, **{**NOW, **changed})


def test_its_own_bmc_may_read_until_the_ticket_expires() -> None:
    assert permits(presented())
    assert permits(presented(), client="::ffff:192.0.2.7")
    assert not permits(presented(), now=1_800_000_000.0)


@pytest.mark.parametrize(
    "changed", [{"client": "192.0.2.8"}, {"boot": "the next one"}, {"uid": "another machine"}], ids=str
)
def test_another_client_boot_or_machine_may_not(changed: dict[str, str]) -> None:
    assert not permits(presented(), **changed)


def test_a_later_time_or_another_name_in_the_url_is_no_ticket() -> None:
    assert not permits(replace(presented(), expires=1_900_000_000))
    assert not permits(replace(presented(), machine="host-2.rack"))


def test_another_key_makes_no_ticket_for_this_one() -> None:
    assert not permits(presented(key=TicketKey(b"K" * 32)))


def test_a_second_insertion_has_a_url_of_its_own() -> None:
    assert KEY.path(TICKET) != KEY.path(replace(TICKET, expires=TICKET.expires + 1))


def test_the_key_is_not_shown() -> None:
    assert "k" * 4 not in repr(KEY)


@pytest.mark.slow
@given(st.text(max_size=80))
def test_no_other_path_is_a_ticket(path: str) -> None:
    for text in (path, f"/media/{path}", f"{KEY.path(TICKET)}{path}x", f"/media/host/{path}/boot.iso"):
        assert presented_ticket(text) is None
