"""The embedded API server: a data directory, served over TLS."""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import yaml

from unbounded_apiserver.access.default_roles import GrantedResources
from unbounded_apiserver.access.reviews import Reviews
from unbounded_apiserver.access.tokens import AccountTokens, BootstrapTokens, DelegatedTokens, TokenKey
from unbounded_apiserver.auth import AuthChain, ClientCertificates
from unbounded_apiserver.controllers.nodes import DEFAULT_TIMES, NodeTimes
from unbounded_apiserver.http.app import NO_EXTENSIONS, ApiHandler
from unbounded_apiserver.http.audit import AuditLog
from unbounded_apiserver.http.extensions import Extension
from unbounded_apiserver.http.kubelet_client import KubeletClient
from unbounded_apiserver.http.listener import CONNECTIONS, CountingServer, LimitedListener
from unbounded_apiserver.http.log_limiter import connection_log
from unbounded_apiserver.http.metrics import ConnectionCounts
from unbounded_apiserver.pki import CertificateAuthority, server_context, write_kubeconfig
from unbounded_apiserver.server_core import ServerCore

KUBERNETES: Final = ("1", "32")
LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
ANY_ADDRESS: Final = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - compared with, not bound to
SHUTDOWN_S: Final = 0.5
KEEPALIVE_S: Final = 120.0


def version_info() -> dict[str, str]:
    """Return the content of /version: the Kubernetes version that the server follows, marked as ours."""
    major, minor = KUBERNETES
    return {
        "major": major,
        "minor": minor,
        "gitVersion": f"v{major}.{minor}.0+unbounded-{metadata.version('unbounded')}",
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "",
        "goVersion": "",
        "compiler": f"python{platform.python_version()}",
        "platform": f"{platform.system().lower()}/{platform.machine()}",
    }


class ApiServer:
    """A server of one data directory. The kubeconfig of its administrator is `DATA/kubeconfig`."""

    def __init__(
        self,
        data_dir: Path,
        *,
        bind: str = "127.0.0.1",
        port: int = 0,
        advertise: str = "",
        hosts: Iterable[str] = (),
        connections: int = CONNECTIONS,
        address_connections: int = 0,
        verify_kubelets: bool = False,
        node_times: NodeTimes = DEFAULT_TIMES,
        namespaces: Sequence[str] = (),
        granted: Sequence[GrantedResources] = (),
        first_groups: Sequence[str] = (),
        extensions: Mapping[str, Extension] = NO_EXTENSIONS,
    ) -> None:
        """Configure a server.

        Args:
            bind: the address to listen on.
            port: 0 takes a free port, and the same one on the next start if it is still free.
            advertise: the host name or address for other machines, in the kubeconfig.
            hosts: more names for the serving certificate.
            connections: limit of open connections; lower when the system allows fewer open files.
            address_connections: limit of open connections of one address; 0 for three quarters of all.
            verify_kubelets: require kubelets to have a serving certificate that is signed here and names their address.
            node_times: limits on the silence of Nodes, and its consequences.
            namespaces: those that each start creates, beside Kubernetes' own.
            granted: custom resources that the default roles cover.
            first_groups: the groups that discovery lists after the built-in ones and before all others.
            extensions: what is served beside the Kubernetes API, by the first segments of the paths.
        """
        self.data_dir = data_dir
        self.core = ServerCore(node_times=node_times, namespaces=namespaces, granted=granted, first_groups=first_groups)
        self._bind = bind
        self._port = port
        self._advertise = advertise or ("127.0.0.1" if bind in ANY_ADDRESS else bind)
        self._hosts = (*LOOPBACK, *({bind} - ANY_ADDRESS), self._advertise, *hosts)
        self._api: ApiHandler | None = None
        self._audit: AuditLog | None = None
        self._connections = connections
        self._address_connections = address_connections
        self._verify_kubelets = verify_kubelets
        self._extensions = extensions
        self._kubelets: KubeletClient | None = None
        self._listener: LimitedListener | None = None
        self._web: CountingServer | None = None

    @property
    def url(self) -> str:
        host = f"[{self._advertise}]" if ":" in self._advertise else self._advertise
        return f"https://{host}:{self._port}"

    @property
    def kubeconfig_path(self) -> Path:
        return self.data_dir / "kubeconfig"

    async def start(self) -> None:
        """Load the data, listen, and write the kubeconfig. On return, the server answers requests.

        Raises:
            DataInUse, DataUnusable (of data_dir)
            StatusError: one of the server's own objects cannot be stored.
            OSError: the server cannot listen on the address.
        """
        await self.core.open(self.data_dir)
        try:
            await self._listen()
        except BaseException:
            await self.stop()
            raise

    async def _listen(self) -> None:
        authority = CertificateAuthority(self.data_dir)
        context = server_context(authority, self._hosts)
        roles = self.core.roles
        store, now = self.core.store, self.core.now
        self._audit = AuditLog(self.data_dir / "audit.log", now)
        tokens = AccountTokens(store, TokenKey(authority.directory), now)
        delegated = DelegatedTokens()
        authenticators = (ClientCertificates(now), delegated, tokens, BootstrapTokens(store, now))
        guard = AuthChain(authenticators, self.core.authorizers)
        reviews = Reviews(roles, guard, tokens, now)
        self._kubelets = KubeletClient(authority, now, verify=self._verify_kubelets)
        self._api = ApiHandler(
            self.core,
            guard,
            version_info(),
            lambda: self.url.removeprefix("https://"),
            answers=reviews.answers,
            note=self._audit.append,
            kubelets=self._kubelets,
            connections=self._connection_counts,
            certificates={"ca": authority.expires, "server": authority.issue_server(self._hosts).expires},
            extensions=self._extensions,
            delegated=delegated,
        )
        self._web = CountingServer(
            self._api.handle,
            access_log=None,
            keepalive_timeout=KEEPALIVE_S,
            handler_cancellation=True,
            auto_decompress=False,  # as in Kubernetes; a body of 16 KiB can expand to 16 MiB
            logger=connection_log(),
        )
        self._listener = LimitedListener(
            self._web, context, limit=self._connections, address_limit=self._address_connections
        )
        try:
            await self._listener.open(self._bind, self._port or _last_port(self.kubeconfig_path))
        except OSError:
            if self._port:
                raise
            await self._listener.open(self._bind, 0)
        self._port = self._listener.port
        write_kubeconfig(self.kubeconfig_path, self.url, authority)

    def _connection_counts(self) -> ConnectionCounts:
        if self._listener is None or self._web is None:
            return ConnectionCounts()
        limits = self._listener.limits
        return ConnectionCounts(self._web.count, limits.refused, limits.dropped, self._web.head_deadlines.expired)

    async def stop(self) -> None:
        """End the watches, answer the running requests, and release the data directory."""
        if self._api is not None:
            self._api.stop()
        if self._listener is not None:
            await self._listener.close()
            self._listener = None
        if self._web is not None:
            await asyncio.sleep(0)  # connections that were just accepted start
            self._web.pre_shutdown()
            await self._web.shutdown(SHUTDOWN_S)
            self._web = None
        if self._kubelets is not None:
            await self._kubelets.close()
            self._kubelets = None
        if self._audit is not None:
            self._audit.close()
            self._audit = None
        await self.core.close()


def _last_port(kubeconfig: Path) -> int:
    """Return the port of the last start, so that issued kubeconfigs stay valid; else 0."""
    try:
        config = yaml.load(kubeconfig.read_bytes(), Loader=yaml.CSafeLoader)
        return urlsplit(config["clusters"][0]["cluster"]["server"]).port or 0
    except (OSError, yaml.YAMLError, KeyError, IndexError, TypeError, ValueError):
        return 0
