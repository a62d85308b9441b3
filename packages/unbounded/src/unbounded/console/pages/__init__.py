"""The pages of the console, each with its URL. A page is a function of a `View` that draws into the frame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class PageRoute:
    """A page.

    Args:
        path: of its URL, with parameters in braces.
        title: in the navigation and the browser's tab.
        show: "module:function"; it takes the view and the parameters of the path.
        in_navigation: whether the navigation lists it.
    """

    path: str
    title: str
    show: str
    in_navigation: bool = False

    def title_of(self, parameters: Mapping[str, str]) -> str:
        """Return the title of the browser's tab."""
        return " · ".join((*parameters.values(), self.title, "Unbounded"))


PAGES: Final = (
    PageRoute("/", "Fleet", "unbounded.console.pages.fleet:show", in_navigation=True),
    PageRoute("/machine/{name}", "Machine", "unbounded.console.pages.machine:show"),
    PageRoute("/operation/{name}", "Operation", "unbounded.console.pages.operation:show"),
    PageRoute("/rollouts", "Rollouts", "unbounded.console.pages.rollouts:show", in_navigation=True),
    PageRoute("/site/{name}", "Site", "unbounded.console.pages.site:show"),
    PageRoute("/hosts", "Hosts", "unbounded.console.pages.hosts:show_all", in_navigation=True),
    PageRoute("/host/{namespace}/{name}", "Host", "unbounded.console.pages.hosts:show_host"),
    PageRoute("/cluster/{namespace}/{name}", "Cluster", "unbounded.console.pages.hosts:show_cluster"),
)
