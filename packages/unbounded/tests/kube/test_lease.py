"""Leadership in virtual time: never two at once, and never none for long."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

import pytest

from tests.support.memory_api import MemoryApi
from tests.support.virtual_time import run_virtual, virtual_now
from unbounded.api.core import LEASES
from unbounded.api.meta import Kind
from unbounded.kube.api import ReadFailed, ResponseLost, ServerUnreachable
from unbounded.kube.lease import LeaderElection
from unbounded.kube.process_epoch import ProcessEpoch

T = TypeVar("T")
NAMESPACE = "unbounded-kube"


class Link(MemoryApi):
    """One process's connection to a shared store, which can be cut, and which can lose answers."""

    def __init__(self, store: MemoryApi, rng: random.Random | None = None) -> None:
        super().__init__(namespaces=())
        self.store = store
        self.cut = False
        self.lost = 0.0  # share of answers that are lost
        self.calls = 0
        self.delays: tuple[float, ...] = (0.0, 0.01, 0.3)
        self.cut_delays: tuple[float, ...] = (0.0, 1.0, 40.0)
        self._rng = rng or random.Random(0)

    async def _through(self, call: Callable[[], Awaitable[T]], *, writing: bool) -> T:
        self.calls += 1
        if self.cut:
            await asyncio.sleep(self._rng.choice(self.cut_delays))
            raise ServerUnreachable("cut")
        await asyncio.sleep(self._rng.choice(self.delays))
        answer = await call()
        if self._rng.random() < self.lost:
            await asyncio.sleep(self._rng.choice((0.0, 40.0)))
            raise ResponseLost("lost") if writing else ReadFailed("lost")
        return answer

    async def get(self, kind: Kind[T], name: str, *, namespace: str = "") -> T:
        return await self._through(lambda: self.store.get(kind, name, namespace=namespace), writing=False)

    async def create(self, kind: Kind[T], body: Mapping[str, Any], *, namespace: str = "") -> T:
        return await self._through(lambda: self.store.create(kind, body, namespace=namespace), writing=True)

    async def patch(
        self, kind: Kind[T], name: str, patch: Mapping[str, Any], *, namespace: str = "", subresource: str = ""
    ) -> T:
        return await self._through(
            lambda: self.store.patch(kind, name, patch, namespace=namespace, subresource=subresource), writing=True
        )


class Process:
    """One candidate, and a record of when it led."""

    def __init__(self, store: MemoryApi, identity: str, leaders: list[str], rng: random.Random | None = None) -> None:
        self.link = Link(store, rng)
        self.identity = identity
        self.election = LeaderElection(self.link, name="l", namespace=NAMESPACE, identity=identity, now=virtual_now)
        self.terms: list[tuple[float, float]] = []
        self._leaders = leaders
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self.election.run(self._lead))

    async def stop(self) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.wait((self._task,))

    async def _lead(self, _epoch: ProcessEpoch) -> None:
        loop = asyncio.get_running_loop()
        began = loop.time()
        self._leaders.append(self.identity)
        assert self._leaders == [self.identity], "two lead at once"
        assert self.election.leading
        try:
            await asyncio.Event().wait()
        finally:
            self._leaders.remove(self.identity)
            self.terms.append((began, loop.time()))


def test_one_of_two_leads_and_the_other_follows_when_it_stops() -> None:
    async def main() -> None:
        store, leaders = MemoryApi(), list[str]()
        first, second = Process(store, "a", leaders), Process(store, "b", leaders)
        first.start()
        await asyncio.sleep(5)
        second.start()
        await asyncio.sleep(600)
        assert leaders == ["a"]
        await first.stop()
        stopped = asyncio.get_running_loop().time()
        assert (await store.get(LEASES, "l", namespace=NAMESPACE)).spec.holder_identity is None
        await asyncio.sleep(4)  # released: no need to wait for its end
        assert leaders == ["b"]
        lease = await store.get(LEASES, "l", namespace=NAMESPACE)
        assert (lease.spec.holder_identity, lease.spec.lease_transitions) == ("b", 1)
        assert lease.spec.renew_time is not None
        assert lease.spec.renew_time.startswith("2030-01-01T00:1")
        await second.stop()
        assert second.terms[0][0] - stopped < 4

    run_virtual(main())


def test_a_leader_that_is_cut_off_stops_before_another_begins() -> None:
    async def main() -> None:
        store, leaders = MemoryApi(), list[str]()
        first, second = Process(store, "a", leaders), Process(store, "b", leaders)
        first.start()
        await asyncio.sleep(5)
        second.start()
        await asyncio.sleep(60)
        first.link.cut = True
        cut = asyncio.get_running_loop().time()
        await asyncio.sleep(30)
        assert leaders == ["b"]
        assert first.terms[0][1] - cut <= 10
        assert not first.election.leading
        first.link.cut = False
        await asyncio.sleep(60)
        assert leaders == ["b"]
        await first.stop()
        await second.stop()

    run_virtual(main())


def test_leader_stops_before_lease_expiry_despite_a_hanging_renewal() -> None:
    async def main() -> None:
        process = Process(MemoryApi(), "a", list[str]())
        process.link.delays, process.link.cut_delays = (0.0,), (0.0,)
        process.start()
        await asyncio.sleep(35.1)  # it has renewed at 35.0
        process.link.cut = True
        await asyncio.sleep(9.89)
        process.link.cut_delays = (40.0,)
        await asyncio.sleep(30)
        assert process.terms[0][1] == pytest.approx(45.0)
        await process.stop()

    run_virtual(main())


def test_lease_of_a_dead_process_is_honored_for_its_duration_locally() -> None:
    async def main() -> None:
        store, leaders = MemoryApi(), list[str]()
        past = {"holderIdentity": "dead", "leaseDurationSeconds": 15, "renewTime": "1999-01-01T00:00:00.000000Z"}
        await store.create(LEASES, {"metadata": {"name": "l"}, "spec": past}, namespace=NAMESPACE)
        process = Process(store, "a", leaders)
        process.start()
        await asyncio.sleep(14)
        assert leaders == []
        await asyncio.sleep(5)
        assert leaders == ["a"]
        await process.stop()

    run_virtual(main())


def test_leader_with_a_stolen_lease_stops_at_the_next_renewal() -> None:
    async def main() -> None:
        store, leaders = MemoryApi(), list[str]()
        process = Process(store, "a", leaders)
        process.start()
        await asyncio.sleep(30)
        await store.patch(LEASES, "l", {"spec": {"holderIdentity": "somebody"}}, namespace=NAMESPACE)
        await asyncio.sleep(9)
        assert leaders == []
        await process.stop()
        assert (await store.get(LEASES, "l", namespace=NAMESPACE)).spec.holder_identity == "somebody"

    run_virtual(main())


def test_what_the_leader_raises_is_raised_and_the_lease_given_back() -> None:
    async def main() -> str | None:
        store = MemoryApi()
        election = LeaderElection(store, name="l", namespace=NAMESPACE, identity="a")

        async def lead(_epoch: ProcessEpoch) -> None:
            await asyncio.sleep(60)
            raise LookupError("a bug")

        with pytest.raises(LookupError, match="a bug"):
            await election.run(lead)
        return (await store.get(LEASES, "l", namespace=NAMESPACE)).spec.holder_identity

    assert run_virtual(main()) is None


def test_a_leader_that_returns_ends_the_run() -> None:
    async def main() -> str | None:
        async def lead(_epoch: ProcessEpoch) -> None:
            await asyncio.sleep(60)

        store = MemoryApi()
        await LeaderElection(store, name="l", namespace=NAMESPACE, identity="a").run(lead)
        return (await store.get(LEASES, "l", namespace=NAMESPACE)).spec.holder_identity

    assert run_virtual(main()) is None


def test_leading_costs_one_write_in_five_seconds() -> None:
    async def main() -> int:
        store = MemoryApi()
        process = Process(store, "a", [])
        process.start()
        await asyncio.sleep(10)
        before = process.link.calls
        await asyncio.sleep(100)
        calls = process.link.calls - before
        await process.stop()
        return calls

    assert run_virtual(main()) in range(18, 22)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(40))
def test_bad_network_never_has_two_leaders_or_long_vacancies(seed: int) -> None:
    async def main() -> None:
        random.seed(seed)  # of the jitter
        rng = random.Random(seed)
        store, leaders = MemoryApi(), list[str]()
        processes = [Process(store, name, leaders, rng) for name in ("a", "b", "c")]
        for process in processes:
            process.start()
        for _ in range(60):
            await asyncio.sleep(rng.uniform(0, 20))
            victim = rng.choice(processes)
            match rng.randrange(4):
                case 0:
                    victim.link.cut = True
                case 1:
                    victim.link.lost = rng.choice((0.2, 0.7))
                case 2:
                    victim.link.cut, victim.link.lost = False, 0.0
                case 3:
                    await victim.stop()
                    victim.start()
        for process in processes:
            process.link.cut, process.link.lost = False, 0.0
        await asyncio.sleep(60)
        assert len(leaders) == 1
        for process in processes:
            await process.stop()
        terms = sorted(term for process in processes for term in process.terms)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(terms))

    run_virtual(main())


def test_limits_that_cannot_be_kept_are_refused() -> None:
    with pytest.raises(ValueError, match="retry_s < renew_s < duration_s"):
        LeaderElection(MemoryApi(), name="l", namespace=NAMESPACE, identity="a", duration_s=5, renew_s=10)
