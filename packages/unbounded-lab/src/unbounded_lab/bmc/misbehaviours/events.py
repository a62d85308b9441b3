"""Events: prompt ones, and their misbehaviours: late, twice, out of order, in other forms, never; streams that end."""

from __future__ import annotations

from dataclasses import replace

from unbounded_lab.bmc.dials import BmcDials


def sends_events(dials: BmcDials) -> BmcDials:
    """No fault: an EventService streams an event of each change of the power at once.

    openbmc/bmcweb#282 (the stream of OpenBMC, which requires its media type in Accept).
    """
    return replace(dials, event_service="works")


def events_late(dials: BmcDials) -> BmcDials:
    """Each event is sent 20 s after the change.

    No thread names this one; it is longer than a host needs to change its power twice.
    """
    return replace(dials, event_service="works", event_delay_s=20.0)


def events_twice(dials: BmcDials) -> BmcDials:
    """Each event is sent twice, with the same id.

    No thread names this one; DSP0266 promises no single delivery.
    """
    return replace(dials, event_service="works", event_copies=2)


def events_out_of_order(dials: BmcDials) -> BmcDials:
    """The events of 4 s are sent together, the newest first.

    No thread names this one; DSP0266 promises no order.
    """
    return replace(dials, event_service="works", event_reversed_s=4.0)


def events_never(dials: BmcDials) -> BmcDials:
    """The stream is accepted and stays empty.

    Dell's guide of iDRAC9 4.20: its stream has metric reports only, without a filter for others.
    """
    return replace(dials, event_service="mute")


def event_stream_ends(dials: BmcDials) -> BmcDials:
    """The BMC closes each stream of events after 3 s.

    Dell's guide of iDRAC9 4.20 tells clients how long to wait before they open a closed stream again.
    """
    return replace(dials, event_service="works", event_stream_s=3.0)


def event_streams_taken(dials: BmcDials) -> BmcDials:
    """All streams of events are taken by others: another one is answered with 503.

    Dell's guide of OpenManage Enterprise 3.9: at most eight subscribers and streams together.
    """
    return replace(dials, event_service="works", event_streams=0)


def events_without_links(dials: BmcDials) -> BmcDials:
    """OriginOfCondition is the path as text instead of a link.

    Dell's guide of OpenManage Enterprise 3.9.
    """
    return replace(dials, event_service="works", event_origin="text")


def events_without_origin(dials: BmcDials) -> BmcDials:
    """Events have no OriginOfCondition, which is optional.

    Lenovo's guide of XClarity Controller: the origin stands in its Oem object.
    """
    return replace(dials, event_service="works", event_origin="absent")


def events_in_many_lines(dials: BmcDials) -> BmcDials:
    """The data of an event has many lines.

    Lenovo's guide of XClarity Controller.
    """
    return replace(dials, event_service="works", event_lines="many")
