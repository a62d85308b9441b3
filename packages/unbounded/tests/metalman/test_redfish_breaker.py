from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbounded.metalman.redfish.circuit_breaker import FIRST_PAUSE_S, LONGEST_PAUSE_S, SILENCES, CircuitBreaker

STEPS = st.lists(
    st.tuples(st.sampled_from(["silent", "answered", "abandoned"]), st.floats(0, 40), st.floats(0, 1)), max_size=60
)


@pytest.mark.slow
@given(STEPS)
def test_a_pause_is_bounded_needs_silences_and_always_ends_in_one_probe(steps: list[tuple[str, float, float]]) -> None:
    breaker, now, in_a_row = CircuitBreaker(), 0.0, 0
    for outcome, passes_s, jitter in steps:
        now += passes_s
        pause = breaker.pause(now)
        if pause is not None:
            assert in_a_row >= SILENCES
            assert pause.since <= now <= pause.until <= now + LONGEST_PAUSE_S
            now = pause.until
        assert breaker.pause(now) is None
        breaker.call_started()
        if in_a_row >= SILENCES:
            assert breaker.pause(now) is not None, "a second caller must not probe as well"
        match outcome:
            case "silent":
                in_a_row += 1
                breaker.call_unanswered(now, "no answer", jitter)
            case "answered":
                in_a_row = 0
                breaker.call_answered()
            case _:
                breaker.call_abandoned()


def test_pauses_grow_up_to_a_limit() -> None:
    breaker, pauses = CircuitBreaker(), []
    for _ in range(SILENCES + 8):
        breaker.call_unanswered(0.0, "no answer", jitter=0.0)
        pauses.append(breaker.retry_at)
    opened = pauses[SILENCES - 1 :]
    assert opened[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert opened[-1] == LONGEST_PAUSE_S
