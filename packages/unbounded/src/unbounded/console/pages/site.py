"""The page of one site."""

from __future__ import annotations

from unbounded.api.core import CONFIG_MAPS, LEASES
from unbounded.api.machine import MACHINES
from unbounded.api.names import LABEL_SITE, NAMESPACE
from unbounded.console.models.parts import ViewData
from unbounded.console.models.site import DefaultTokens, SiteToken, site_view
from unbounded.console.pages.live_page import LivePage
from unbounded.console.view import View
from unbounded.explain.facts import ExplainFacts
from unbounded.explain.facts_reader import leader_lease
from unbounded.join.bootstrap_tokens import expiration
from unbounded.join.token_finder import list_default_tokens
from unbounded.kube.api import Forbidden, NotFound
from unbounded.kube.clock import utc_now
from unbounded.operations.component_record import COMPONENTS


def show(view: View, name: str) -> None:
    """Draw a site."""
    SitePage(view, name).begin()


class SitePage(LivePage):
    """The page of one browser. Leases are heartbeats: they are read again and again, and not watched."""

    def __init__(self, view: View, name: str) -> None:
        super().__init__(view, f"Site {name}", (MACHINES,))
        self._site = name
        self.forget()

    def forget(self) -> None:
        self._processes = ExplainFacts(leader_leases=None)
        self._tokens = DefaultTokens(unread="Being read …")

    def data(self) -> ViewData | str:
        machines = self.view.live.of(MACHINES).cache
        if not machines.synced.is_set():
            return "Being read …"
        return site_view(self._site, machines.all(), self._processes, self._tokens, utc_now())

    def key(self) -> object:
        return self._site

    def is_settled(self) -> bool:
        return False

    async def load(self) -> None:
        self._processes = await self._read_processes()
        self._tokens = await self._read_tokens()

    async def _read_processes(self) -> ExplainFacts:
        api = self.view.api
        try:
            await api.get(CONFIG_MAPS, COMPONENTS, namespace=NAMESPACE)
            return ExplainFacts(embedded=True)
        except (NotFound, Forbidden):
            pass
        try:
            leases = await api.list(LEASES, namespace=NAMESPACE)
        except Forbidden:
            return ExplainFacts(leader_leases=None)
        return ExplainFacts(leader_leases={one.metadata.name: leader_lease(one) for one in leases.items})

    async def _read_tokens(self) -> DefaultTokens:
        """Return the site's tokens, or why they are not known; their secrets are dropped at once."""
        try:
            found = await list_default_tokens(self.view.api)
        except Forbidden:
            return DefaultTokens(unread="You may not read Secrets in kube-system.")
        own = [one for one in found if one.metadata.labels.get(LABEL_SITE, "") == self._site]
        return DefaultTokens(tuple(SiteToken(one.metadata.name, expiration(one)) for one in own))
