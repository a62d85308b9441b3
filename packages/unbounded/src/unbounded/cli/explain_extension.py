"""The API of explanations and plans on the port of the embedded API server."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from unbounded.cli.loop_thread import LoopThread
from unbounded.explain_api.releases import HEADER
from unbounded.explain_api.service import (
    CACHE_CONTROL,
    JSON,
    PREFIXES,
    ExplainService,
    ServedReply,
    ServedRequest,
    rejection,
)
from unbounded.explain_api.statuses import RequestRejected
from unbounded.kube.client import HttpApi
from unbounded.kube.config import ClientConfig
from unbounded.kube.credentials import AuthInfo, StaticCredentials
from unbounded.kube.metrics import ControllerMetrics
from unbounded.plan.changes import DryRunApi
from unbounded_apiserver.http.extensions import Extension, ExtensionCall
from unbounded_apiserver.http.reply import HttpReply

AGENT: Final = "unbounded-explain"


@dataclass
class ExplainExtension:
    """Answers with the delegated token of the request, in a thread: a plan of many Machines computes for long.

    Args:
        config: address and authority of the server, once it listens.
    """

    thread: LoopThread
    service: ExplainService = field(default_factory=ExplainService)
    config: ClientConfig | None = None
    metrics: ControllerMetrics = field(default_factory=ControllerMetrics)

    @property
    def extensions(self) -> Mapping[str, Extension]:
        return dict.fromkeys(PREFIXES, self.answer)

    async def answer(self, call: ExtensionCall) -> HttpReply:
        if self.config is None:
            return _reply(rejection(RequestRejected(503, "ServiceUnavailable", "the server is starting")))
        request = ServedRequest(
            call.method,
            call.path,
            call.query,
            call.headers.get(HEADER, ""),
            call.body,
            call.user.name,
            partial(self._open_api, self.config, call.token),
        )
        return _reply(await self.thread.run(self.service.respond(request)))

    def _open_api(self, config: ClientConfig, token: str) -> AbstractAsyncContextManager[DryRunApi]:
        login = StaticCredentials(AuthInfo(token))
        return HttpApi(replace(config, credentials=login), user_agent=AGENT, metrics=self.metrics)


def _reply(reply: ServedReply) -> HttpReply:
    return HttpReply(reply.body, JSON, reply.code, reply.all_headers, cache_control=CACHE_CONTROL)
