"""Shared parts of all simulators' faults: conversion from and to JSON, and faults that count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

D = TypeVar("D", bound="DataclassInstance")

FOR_EVER: Final = -1
"""Value of a fault that counts: no limit."""


def changed(faults: D, settings: Mapping[str, Any]) -> D:
    """Return the faults with some of them replaced by values from JSON.

    Raises:
        ValueError: an unknown name or an invalid value; names it.
    """
    unknown = sorted(settings.keys() - {field.name for field in fields(faults)})
    if unknown:
        raise ValueError(f"unknown fault: {', '.join(unknown)}")
    try:
        return msgspec.convert({**as_json(faults), **settings}, type(faults))
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error


def as_json(faults: DataclassInstance) -> dict[str, Any]:
    built: dict[str, Any] = msgspec.to_builtins(faults)
    return built


def non_default(faults: DataclassInstance) -> dict[str, Any]:
    """Return only the faults that differ from a simulator without faults."""
    good = as_json(type(faults)())
    return {name: value for name, value in as_json(faults).items() if value != good[name]}


class Counts:
    """Remaining counts of the faults that count, from the moment they were set."""

    def __init__(self, faults: DataclassInstance, names: Iterable[str]) -> None:
        self._left: dict[str, int] = {name: getattr(faults, name) for name in names}

    def spend(self, name: str) -> bool:
        """Return whether a fault still has a count; each call uses one up."""
        left = self._left[name]
        if left > 0:
            self._left[name] = left - 1
        return left > 0 or left == FOR_EVER
