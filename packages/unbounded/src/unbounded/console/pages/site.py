"""The page of one site."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from unbounded.api.core import CONFIG_MAPS
from unbounded.api.machine import MACHINES
from unbounded.api.names import LABEL_SITE, NAMESPACE
from unbounded.console.live import LEADER_LEASES, LiveSource, LiveState
from unbounded.console.models.leaders import LeaderTimes, SiteProcesses
from unbounded.console.models.parts import NotRead, ViewData
from unbounded.console.models.site import DefaultTokens, SiteToken, lease_names, site_view
from unbounded.console.pages.live_page import LivePage
from unbounded.console.view import View
from unbounded.explain.facts import ExplainFacts
from unbounded.explain.facts_reader import leader_lease
from unbounded.join.bootstrap_tokens import expiration
from unbounded.join.token_finder import list_default_tokens
from unbounded.kube.api import Api, Forbidden, NotFound
from unbounded.kube.clock import utc_now
from unbounded.operations.component_record import COMPONENTS


def show(view: View, name: str) -> None:
    """Draw a site."""
    SitePage(view, name).begin()


class SitePage(LivePage):
    """The page of one browser."""

    def __init__(self, view: View, name: str) -> None:
        super().__init__(view, f"Site {name}", (MACHINES,), (LEADER_LEASES,))
        self._site = name
        self._leaders = LeaderTimes(lease_names(name))
        self.forget()

    def forget(self) -> None:
        self._is_embedded: bool | None = None  # until it is read
        self._tokens: DefaultTokens | None = None

    def data(self) -> ViewData | str:
        machines = self.view.live.of(MACHINES).cache
        if not machines.synced.is_set():
            return "Being read …"
        tokens = self._tokens or DefaultTokens(unread="Being read …")
        return site_view(self._site, machines.all(), self._processes(), tokens, utc_now())

    def is_shown(self) -> Mapping[LiveSource[Any], Callable[[Any, Any], bool]]:
        return {LEADER_LEASES: self._leaders.note}

    def has_aged(self) -> bool:
        if self.view.live.of(LEADER_LEASES).state is not LiveState.LIVE:
            self._leaders.interrupt()
            return False
        return self._leaders.has_aged()

    async def load(self) -> None:
        self._is_embedded = await self._has_controllers()
        self._tokens = await self._read_tokens()

    def _processes(self) -> SiteProcesses | NotRead:
        if self._is_embedded:
            return SiteProcesses(ExplainFacts(embedded=True))
        leases = self.found(LEADER_LEASES)
        if isinstance(leases, NotRead):
            return leases
        if self._is_embedded is None:  # a missing Lease would be no cause
            return NotRead("Being read …")
        found = {one.metadata.name: leader_lease(one) for one in leases}
        return SiteProcesses(ExplainFacts(leader_leases=found), self._leaders.late)

    async def _has_controllers(self) -> bool:
        """Return whether the API server itself runs the controllers, which have no Leases then."""
        try:
            await self.reads.get(CONFIG_MAPS, COMPONENTS, namespace=NAMESPACE)
        except (NotFound, Forbidden):
            return False
        return True

    async def _read_tokens(self) -> DefaultTokens:
        """Return the site's tokens, or why they are not known; their secrets were dropped at once."""
        try:
            found = await list_default_tokens(cast("Api", self.reads))
        except Forbidden:
            return DefaultTokens(unread="You may not read Secrets in kube-system.")
        own = [one for one in found if one.metadata.labels.get(LABEL_SITE, "") == self._site]
        return DefaultTokens(tuple(SiteToken(one.metadata.name, expiration(one)) for one in own))
