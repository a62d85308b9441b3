"""The pages of Container Cloud: all hosts and Clusters, one host, and one Cluster."""

from __future__ import annotations

from typing import Final

from unbounded.api.container_cloud.cluster import CLUSTERS, MACHINE_POOLS
from unbounded.api.container_cloud.host import BARE_METAL_HOSTS, BareMetalHost
from unbounded.api.container_cloud.machine import CONTAINER_CLOUD_MACHINES
from unbounded.api.failures import Failure
from unbounded.console.models.hosts import ContainerCloud, cluster_view, host_view, hosts_view
from unbounded.console.models.parts import ViewData
from unbounded.console.pages.drawing import ViewDrawing
from unbounded.console.pages.live_page import LivePage
from unbounded.console.view import View
from unbounded.explain.chain import SubjectNotFound, explain
from unbounded.explain.facts_reader import FactsReader
from unbounded.explain.links import Topic
from unbounded.explain.results import Explanation
from unbounded.explain.tree import ObjectTree, tree_of
from unbounded.kube.api import ApiError, NotFound, is_kind_missing
from unbounded.kube.clock import utc_now

TITLE: Final = "Hosts and clusters"
ANY: Final = "any"  # the name of an object that need not exist
KINDS: Final = (BARE_METAL_HOSTS, CLUSTERS, MACHINE_POOLS, CONTAINER_CLOUD_MACHINES)


async def show_all(view: View) -> None:
    """Draw all hosts and Clusters."""
    if await _is_served(view):
        HostsPage(view, TITLE, (), KINDS).begin()


async def show_host(view: View, namespace: str, name: str) -> None:
    """Draw one host."""
    if await _is_served(view):
        HostPage(view, namespace, name).begin()


async def show_cluster(view: View, namespace: str, name: str) -> None:
    """Draw one Cluster."""
    if await _is_served(view):
        ClusterPage(view, namespace, name).begin()


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


def _found(page: LivePage) -> ContainerCloud:
    return ContainerCloud(
        page.found(BARE_METAL_HOSTS),
        page.found(CLUSTERS),
        page.found(MACHINE_POOLS),
        page.found(CONTAINER_CLOUD_MACHINES),
    )


class HostsPage(LivePage):
    """The page of one browser. It shows the kinds that its user may read."""

    def data(self) -> ViewData | str:
        return hosts_view(_found(self))


class HostPage(LivePage):
    """The page of one browser."""

    def __init__(self, view: View, namespace: str, name: str) -> None:
        super().__init__(view, f"Host {namespace}/{name}", (BARE_METAL_HOSTS,))
        self._namespace, self._name = namespace, name
        self.forget()

    def forget(self) -> None:
        self._tree: ObjectTree | None = None
        self._explanation: Explanation | None = None

    def _host(self) -> BareMetalHost | None:
        return self.view.live.of(BARE_METAL_HOSTS).cache.get(self._name, self._namespace)

    def data(self) -> ViewData | str:
        host = self._host()
        if host is None:
            is_known = self.view.live.of(BARE_METAL_HOSTS).cache.synced.is_set()
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

    def __init__(self, view: View, namespace: str, name: str) -> None:
        super().__init__(view, f"Cluster {namespace}/{name}", (CLUSTERS,), (CONTAINER_CLOUD_MACHINES, MACHINE_POOLS))
        self._namespace, self._name = namespace, name
        self.forget()

    def forget(self) -> None:
        self._explanation: Explanation | None = None

    def data(self) -> ViewData | str:
        clusters = self.view.live.of(CLUSTERS).cache
        cluster = clusters.get(self._name, self._namespace)
        if cluster is None:
            return "This Cluster does not exist." if clusters.synced.is_set() else "Being read …"
        return cluster_view(cluster, _found(self), self._explanation)

    async def load(self) -> None:
        reads = self.reads
        try:
            self._explanation = await explain(
                reads, Topic.CLUSTER, self._name, namespace=self._namespace, is_late=reads.is_late
            )
        except (NotFound, SubjectNotFound):
            self.forget()
