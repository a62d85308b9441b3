"""The garbage collector around large lists."""

from __future__ import annotations

import contextlib
import gc

import pytest

from unbounded.kube.process_tuning import (
    FREEZE_THRESHOLD,
    YOUNG_THRESHOLD,
    freeze_imports,
    pause_gc,
    raise_gc_threshold,
)


def test_the_collector_is_off_inside_and_as_before_afterwards() -> None:
    assert gc.isenabled()
    with pause_gc():
        assert not gc.isenabled()
        with pause_gc():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pause_gc(first=False):
        assert gc.isenabled()


def test_what_is_imported_is_looked_at_neither_then_nor_later() -> None:
    before = gc.get_freeze_count()
    with contextlib.suppress(ImportError), freeze_imports():
        assert not gc.isenabled()
        raise ImportError
    assert gc.isenabled()
    assert gc.get_freeze_count() == before
    try:
        with freeze_imports():
            imported: list[list[int]] = [[] for _ in range(100)]
        assert gc.isenabled()
        assert gc.get_freeze_count() >= before + len(imported)
    finally:
        gc.unfreeze()


@pytest.mark.slow
def test_what_stays_is_set_aside_only_when_it_is_much() -> None:
    before = gc.get_freeze_count()
    with pause_gc():
        few: list[list[int]] = [[] for _ in range(100)]
    assert gc.get_freeze_count() == before
    with pause_gc():
        many: list[list[int]] = [[] for _ in range(2 * FREEZE_THRESHOLD)]
    try:
        assert gc.get_freeze_count() >= before + len(many)
    finally:
        gc.unfreeze()
    assert len(few) == 100


def test_a_process_of_many_requests_collects_seldom_but_does() -> None:
    before = gc.get_threshold()
    try:
        raise_gc_threshold()
        assert gc.get_threshold() == (YOUNG_THRESHOLD, *before[1:])
        collections = gc.get_stats()[0]["collections"]
        kept: list[list[int]] = [[] for _ in range(2 * YOUNG_THRESHOLD)]
        assert gc.get_stats()[0]["collections"] > collections
        assert len(kept) == 2 * YOUNG_THRESHOLD
    finally:
        gc.set_threshold(*before)
