"""Components of `unbounded up`, each with its own service account and only the rights of that account; their epoch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import uuid4

from unbounded.api.names import NAMESPACE
from unbounded.kube.client import HttpApi
from unbounded.kube.credentials import AccountToken
from unbounded.kube.durable import write_durably
from unbounded.kube.epoch import Epoch, ProcessEpoch, parse_epoch
from unbounded.kube.events import EventRecorder
from unbounded.kube.metrics import ControllerMetrics
from unbounded.kube.process import HealthServers, Runtime


class EpochFile:
    """The last epoch, in a file of the data directory.

    Only the process with the lock on the directory uses it, so that a start begins after the one before has ended.
    """

    def __init__(self, data: Path) -> None:
        self._file = data / "epoch"

    def next(self) -> Epoch:
        """Return an epoch later than all before it. A file that cannot be read starts a new line of epochs."""
        try:
            last = parse_epoch(self._file.read_text().strip())
        except (OSError, ValueError):
            last = Epoch(uuid4().hex, 0)
        epoch = Epoch(last.line, last.number + 1)
        write_durably(self._file, f"{epoch}\n".encode())
        return epoch


@asynccontextmanager
async def component_runtime(
    component: str,
    admin: HttpApi,
    *,
    metrics: ControllerMetrics,
    health: HealthServers | None = None,
    elects: bool = False,
    epoch: Epoch | None = None,
) -> AsyncIterator[Runtime]:
    """Open the runtime of a component that shares its process with others. The caller runs the runtime's `events`.

    Args:
        admin: issues the component's tokens.
        health: gets the component's readiness checks.
        elects: whether the component elects a leader by Lease, as other instances may run.
        epoch: of the process, where the caller knows that all earlier ones have ended.
    """
    issue = partial(admin.token, component, namespace=NAMESPACE)
    config = replace(admin.config, credentials=AccountToken(f"service account {component}", issue))
    async with HttpApi(config, user_agent=component, metrics=metrics) as api:
        events = EventRecorder(api, component, metrics=metrics)
        runtime = Runtime(api, metrics, events, elects=elects, epoch=ProcessEpoch(epoch), now=api.now)
        yield runtime if health is None else replace(runtime, checks=health.check)
