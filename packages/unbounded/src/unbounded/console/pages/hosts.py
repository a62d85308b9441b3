"""The pages of Container Cloud: all hosts and Clusters, one host, and one Cluster.

Users may have rights in some namespaces alone, as its projects are namespaces.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final, NamedTuple

from unbounded.api.container_cloud.cluster import CLUSTERS, MACHINE_POOLS, Cluster, MachinePool
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS, BareMetalHost
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES, ContainerCloudMachine
from unbounded.api.core import NAMESPACES
from unbounded.api.failures import Failure
from unbounded.api.fields import DNS_LABEL
from unbounded.console import urls
from unbounded.console.live import LiveState, Selection
from unbounded.console.models.hosts import ContainerCloud, cluster_view, host_view, hosts_view
from unbounded.console.models.parts import MAX_ROWS, ViewData
from unbounded.console.pages.drawing import ViewDrawing
from unbounded.console.pages.live_page import LivePage
from unbounded.console.view import View
from unbounded.console.widgets import InputField, TextElement, box, set_class
from unbounded.explain.chain import SubjectNotFound, explain
from unbounded.explain.facts_reader import FactsReader
from unbounded.explain.links import Topic
from unbounded.explain.results import Explanation
from unbounded.explain.tree import ObjectTree, tree_of
from unbounded.kube.api import ApiError, Forbidden, NotFound, is_kind_missing
from unbounded.kube.clock import utc_now

TITLE: Final = "Hosts and clusters"
ANY: Final = "any"  # the name of an object that need not exist
LONGEST_NAME: Final = 63  # of a namespace
_NAMESPACE: Final = re.compile(DNS_LABEL)


async def show_all(view: View) -> None:
    """Draw all hosts and Clusters, or those in the namespace of the query."""
    namespace = view.query.get("namespace", "")
    if namespace and not _is_namespace(namespace):
        ViewDrawing().say(TITLE, f"No namespace can have the name {namespace}.")
    elif await _is_served(view):
        HostsPage(view, namespace).begin()


async def show_host(view: View, namespace: str, name: str) -> None:
    """Draw one host."""
    if await _is_served(view):
        HostPage(view, namespace, name, await _readable(view, namespace)).begin()


async def show_cluster(view: View, namespace: str, name: str) -> None:
    """Draw one Cluster."""
    if await _is_served(view):
        ClusterPage(view, namespace, name, await _readable(view, namespace)).begin()


def _is_namespace(text: str) -> bool:
    return len(text) <= LONGEST_NAME and _NAMESPACE.fullmatch(text) is not None


async def _is_served(view: View) -> bool:
    """Return whether the server serves Container Cloud, and draw a note where it does not."""
    try:
        await view.api.get(CLUSTERS, ANY, namespace=ANY)
    except NotFound as error:
        if is_kind_missing(error):
            at = f"{utc_now():%H:%M:%S} UTC"  # a kind that is not served cannot be watched
            note = f"The server does not serve the kinds of Container Cloud: they were not installed at {at}."
            ViewDrawing().say(TITLE, note)
            return False
    except Failure:  # the page reports the state of what it follows
        pass
    return True


class CloudSources(NamedTuple):
    """The objects of Container Cloud that a page follows."""

    hosts: Selection[BareMetalHost]
    clusters: Selection[Cluster]
    pools: Selection[MachinePool]
    machines: Selection[ContainerCloudMachine]

    def found(self, page: LivePage) -> ContainerCloud:
        """Return the objects that the user may read."""
        return ContainerCloud(
            page.found(self.hosts), page.found(self.clusters), page.found(self.pools), page.found(self.machines)
        )


def cloud_sources(namespace: str = "") -> CloudSources:
    """Return the objects in a namespace, or in all."""
    return CloudSources(
        Selection(BARE_METAL_HOSTS, namespace),
        Selection(CLUSTERS, namespace),
        Selection(MACHINE_POOLS, namespace),
        Selection(CONTAINER_CLOUD_MACHINES, namespace),
    )


async def _readable(view: View, namespace: str) -> CloudSources:
    """Return the objects in all namespaces; in this one alone, of kinds that the user may not read everywhere."""
    everywhere = cloud_sources()
    live = [view.live.of(one) for one in everywhere]
    await asyncio.gather(*(one.settled() for one in live))
    if not _is_namespace(namespace):
        return everywhere
    here = cloud_sources(namespace)
    return CloudSources._make(
        part if one.state is LiveState.DENIED else one.selection for one, part in zip(live, here, strict=True)
    )


class HostsPage(LivePage):
    """The page of one browser. It shows the kinds that its user may read.

    Where the user may not read one in all namespaces, a form asks for a namespace.
    """

    def __init__(self, view: View, namespace: str) -> None:
        self._sources = cloud_sources(namespace)
        super().__init__(view, TITLE, (), self._sources)
        self._namespace = namespace
        with self._drawing.actions, box("form", "line") as form:
            form.props.update(method="get", action=urls.HOSTS)
            # its value is sent with the form alone
            self._field = InputField("Namespace", namespace, lambda _value: None, name="namespace")
            TextElement("button", "Show").props["type"] = "submit"
        self.forget()

    def forget(self) -> None:
        self._namespaces: tuple[str, ...] = ()

    def data(self) -> ViewData | str:
        return hosts_view(self._sources.found(self), self._namespace)

    def refresh(self) -> None:
        super().refresh()
        set_class(self._drawing.actions, "hidden", on=not self._needs_namespace())
        names = sorted({*self._namespaces, *filter(None, [self._namespace])})
        self._field.offer([("", "all"), *((one, one) for one in names)] if self._namespaces else None)

    def _needs_namespace(self) -> bool:
        return bool(self._namespace) or any(map(self.is_denied, self._kinds))

    async def load(self) -> None:
        if not self._needs_namespace():
            return
        try:
            found = (await self.reads.list(NAMESPACES)).items
        except Forbidden:
            self.forget()
        else:
            self._namespaces = tuple(one.metadata.name for one in found) if len(found) <= MAX_ROWS else ()


class HostPage(LivePage):
    """The page of one browser."""

    def __init__(self, view: View, namespace: str, name: str, sources: CloudSources) -> None:
        super().__init__(view, f"Host {namespace}/{name}", (sources.hosts,))
        self._namespace, self._name = namespace, name
        self._hosts = sources.hosts
        self.forget()

    def forget(self) -> None:
        self._tree: ObjectTree | None = None
        self._explanation: Explanation | None = None

    def _host(self) -> BareMetalHost | None:
        return self.view.live.of(self._hosts).cache.get(self._name, self._namespace)

    def data(self) -> ViewData | str:
        host = self._host()
        if host is None:
            is_known = self.view.live.of(self._hosts).cache.synced.is_set()
            return "This BareMetalHost does not exist." if is_known else "Being read …"
        return host_view(host, self._tree, self._explanation)

    async def load(self) -> None:
        reads, where = self.reads, self._namespace
        try:
            host = await reads.get(BARE_METAL_HOSTS, self._name, namespace=where)
            tree = tree_of(host, await FactsReader(reads, utc_now, ApiError).related(host))
            found = await explain(reads, Topic.HOST, self._name, namespace=where, is_late=reads.is_late)
        except (NotFound, SubjectNotFound):
            self.forget()
        else:
            self._tree, self._explanation = tree, found


class ClusterPage(LivePage):
    """The page of one browser."""

    def __init__(self, view: View, namespace: str, name: str, sources: CloudSources) -> None:
        super().__init__(view, f"Cluster {namespace}/{name}", (sources.clusters,), (sources.machines, sources.pools))
        self._namespace, self._name = namespace, name
        self._sources = sources
        self.forget()

    def forget(self) -> None:
        self._explanation: Explanation | None = None

    def data(self) -> ViewData | str:
        clusters = self.view.live.of(self._sources.clusters).cache
        cluster = clusters.get(self._name, self._namespace)
        if cluster is None:
            return "This Cluster does not exist." if clusters.synced.is_set() else "Being read …"
        return cluster_view(cluster, self._sources.found(self), self._explanation)

    async def load(self) -> None:
        reads = self.reads
        try:
            self._explanation = await explain(
                reads, Topic.CLUSTER, self._name, namespace=self._namespace, is_late=reads.is_late
            )
        except (NotFound, SubjectNotFound):
            self.forget()
