"""Shared parts of all simulators' dials: conversion from and to JSON, and dials that count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

D = TypeVar("D", bound="DataclassInstance")

FOR_EVER: Final = -1
"""Value of a dial that counts: no limit."""


def changed(dials: D, settings: Mapping[str, Any]) -> D:
    """Return the dials with some of them replaced by values from JSON.

    Raises:
        ValueError: an unknown name or an invalid value; names it.
    """
    unknown = sorted(settings.keys() - {field.name for field in fields(dials)})
    if unknown:
        raise ValueError(f"unknown dial: {', '.join(unknown)}")
    try:
        return msgspec.convert({**as_json(dials), **settings}, type(dials))
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def as_json(dials: DataclassInstance) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(dials)
    return built


def turned(dials: DataclassInstance) -> dict[str, Any]:
    """Return only the dials that differ from a simulator without faults."""
    good = as_json(type(dials)())
    return {name: value for name, value in as_json(dials).items() if value != good[name]}


class Counts:
    """Remaining counts of the dials that count, from the moment they were set."""

    def __init__(self, dials: DataclassInstance, names: Iterable[str]) -> None:
        self._left: dict[str, int] = {name: getattr(dials, name) for name in names}

    def spend(self, name: str) -> bool:
        """Return whether a dial still has a count; each call uses one up."""
        left = self._left[name]
        if left > 0:
            self._left[name] = left - 1
        return left > 0 or left == FOR_EVER
