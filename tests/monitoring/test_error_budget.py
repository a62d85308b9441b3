"""The alert on the API's error budget, over metrics of a client whose API server has a full disk, and then ends."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Final

import pytest

from tests.apiserver.test_failing_disk import small_disk
from tests.monitoring.promtool import needs_promtool
from tests.monitoring.recording import Key, Recording, input_series
from tests.monitoring.test_rules import LEASE, Firing, case, check_names, run_rules
from tests.support.embedded_server import embedded_server
from unbounded.api.core import CONFIG_MAPS
from unbounded.kube.api import ApiError
from unbounded.kube.client import HttpApi
from unbounded.kube.config import from_kubeconfig
from unbounded.kube.metrics import ControllerMetrics

pytestmark = [pytest.mark.slow, pytest.mark.root, needs_promtool]
REQUESTS: Final = "unbounded_api_requests_total"
READS, REFUSED, UNANSWERED = 60, 5, 3
WITHIN: Final = 0.0005  # of the requests may fail, with half of the budget
BODY: Final = {"data": {"filling": "x" * 50_000}}
Growth = dict[Key, float]


class _Run:
    """Requests of a process that leads, and their metrics."""

    def __init__(self) -> None:
        self.metrics = ControllerMetrics()
        self.metrics.leading.labels(LEASE).set(1)
        self._created = 0

    def scraped(self) -> Recording:
        return Recording.of(self.metrics.text().decode())

    async def read(self, api: HttpApi) -> None:
        for _ in range(READS):
            await api.list(CONFIG_MAPS, namespace="default")

    async def create(self, api: HttpApi) -> bool:
        """Return whether the server has stored a ConfigMap."""
        self._created += 1
        try:
            await api.create(CONFIG_MAPS, {"metadata": {"name": f"c-{self._created}"}, **BODY}, namespace="default")
        except ApiError:
            return False
        return True


def growth(before: Recording, after: Recording) -> Growth:
    """Return by how much each count of requests has grown between two scrapes."""
    return {key: value - before.samples.get(key, 0.0) for key, value in after.samples.items() if key[0] == REQUESTS}


def failed(grown: Growth) -> float:
    """Return the share of the requests that had no answer, or an error of the server."""
    counted = {key: count for key, count in grown.items() if dict(key[1])["verb"] != "watch"}
    errors = [count for key, count in counted.items() if re.fullmatch("0|5..", dict(key[1])["code"])]
    return sum(errors) / sum(counted.values())


def of_growth(name: str, recording: Recording, grown: Growth) -> dict[str, object]:
    """Return the test in which a run goes on as it was recorded, in each step."""
    share = failed(grown)
    firing = Firing("UnboundedApiErrorBudgetBurn", f"{100 * share:.4g}% of the requests to the API fail")
    return case(name, input_series(recording, grown), "6h30m", (firing,) if share > WITHIN else ())


async def test_the_alert_fires_while_the_disk_is_full_or_the_server_is_down(tmp_path: Path) -> None:
    run = _Run()
    scrapes = [run.scraped()]
    async with small_disk(tmp_path / "disk") as disk:
        with embedded_server(disk / "data") as kubeconfig:
            async with HttpApi(from_kubeconfig(kubeconfig), metrics=run.metrics) as api:
                await run.read(api)
                await run.create(api)
                scrapes.append(run.scraped())
                while await run.create(api):
                    pass
                scrapes.append(run.scraped())
                await run.read(api)
                assert [await run.create(api) for _ in range(REFUSED)] == [False] * REFUSED
                scrapes.append(run.scraped())
                config = api.config
        async with HttpApi(config, metrics=run.metrics) as api:
            assert [await run.create(api) for _ in range(UNANSWERED)] == [False] * UNANSWERED
            scrapes.append(run.scraped())
    healthy, full, down = (growth(*scrapes[at : at + 2]) for at in (0, 2, 3))
    assert (failed(healthy), failed(down)) == (0.0, 1.0)
    assert failed(full) == REFUSED / (READS + REFUSED)
    codes = {dict(labels)["code"] for _, labels in scrapes[-1].samples if "code" in dict(labels)}
    assert codes == {"0", "200", "201", "500"}
    for one in scrapes:
        check_names(one)
    times = READS / WITHIN / READS  # so many healthy requests for one that fails
    seldom = {key: count * times * REFUSED for key, count in healthy.items()}
    within = {key: full.get(key, 0.0) * (key not in healthy) + seldom.get(key, 0.0) for key in full}
    assert 0 < failed(within) <= WITHIN
    cases = [
        of_growth("healthy", scrapes[1], healthy),
        of_growth("within the budget", scrapes[-1], within),
        of_growth("full disk", scrapes[-1], full),
        of_growth("down", scrapes[-1], down),
    ]
    await asyncio.to_thread(run_rules, tmp_path, cases)
