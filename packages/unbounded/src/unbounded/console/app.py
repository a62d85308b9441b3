"""The application: NiceGUI behind the guard, its pages, and the routes without a page.

NiceGUI has one application in a process. `build` configures it once. Its page template gets the nonce of the
Content-Security-Policy while the template is compiled, so that no text of an object can ever carry the nonce.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import jinja2
from fastapi import FastAPI, Request
from fastapi.responses import RedirectResponse, Response
from fastapi.staticfiles import StaticFiles
from nicegui import client as nicegui_client
from nicegui import core, ui

from unbounded.console import urls
from unbounded.console.guard import SAFE_METHODS, AsgiApp, ConsoleOrigin, Guard, Scope, page_of, session_of
from unbounded.console.layout import THEME_COOKIE, frame
from unbounded.console.login import TITLE, SessionStart, plain_page
from unbounded.console.pages import PAGES, PageRoute
from unbounded.console.sessions import BrowserSessions
from unbounded.console.view import View, log_failure

STATIC: Final = Path(__file__).parent / "static"
RECONNECT_S: Final = 10.0  # a page that lost its websocket for longer is loaded again
HISTORY: Final = 300  # messages that are sent again after a reconnect
_TO_FLEET: Final = f'<p><a href="{urls.FLEET}">Fleet</a></p>'
_FROM_BROWSER: Final = ("handshake", "event", "javascript_response", "ack")  # messages that name a page
_NOT_TAKEN: Final = "log"  # text of a browser for the log of the server


class _NonceLoader(jinja2.BaseLoader):
    """Templates of NiceGUI whose scripts carry the nonce of the answer."""

    def __init__(self, loader: jinja2.BaseLoader) -> None:
        self._loader = loader

    def get_source(
        self, environment: jinja2.Environment, template: str
    ) -> tuple[str, str | None, Callable[[], bool] | None]:
        source, name, is_current = self._loader.get_source(environment, template)
        return source.replace("<script", '<script nonce="{{ request.state.csp_nonce }}"'), name, is_current


def build(
    *, sessions: BrowserSessions, own: ConsoleOrigin, login: SessionStart, allow_operations: bool = False
) -> AsgiApp:
    """Return the application. It can be built once in a process.

    Args:
        allow_operations: pages offer actions; without, the console only reads.
    """
    environment = nicegui_client.templates.env
    if environment.loader is None:
        raise TypeError("NiceGUI has no template loader")
    environment.loader = _NonceLoader(environment.loader)
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    _add_routes(app, sessions, own, login)
    for page in PAGES:
        _add_page(page, allow_operations=allow_operations)
    ui.run_with(
        app,
        title=TITLE,
        favicon=STATIC / "icon.svg",
        dark=None,
        language="en-US",
        binding_refresh_interval=None,
        reconnect_timeout=RECONNECT_S,
        message_history_length=HISTORY,
        gzip_middleware_factory=None,
        tailwind=False,
        show_welcome_message=False,
    )
    core.app.config.socket_io_js_transports = ["websocket"]
    core.app.config.quasar_config["loadingBar"]["skipHijack"] = True  # a bar without a name for screen readers
    _check_senders()
    core.app.add_exception_handler(404, _not_found)
    core.app.add_exception_handler(Exception, _failed)

    async def refuse(scope: Any, receive: Any, send: Any) -> None:
        await login.prompt(target=_target(scope))(scope, receive, send)

    return Guard(app, own=own, sessions=sessions, refuse=refuse)


def _target(scope: Scope) -> str:
    """Return the path and query of a request for a page."""
    if scope["method"] not in SAFE_METHODS:
        return urls.FLEET
    path: bytes = scope["raw_path"]
    query: bytes = scope["query_string"]
    return urls.own_target((path + b"?" + query if query else path).decode("latin-1"))


async def _not_found(_request: Request, _error: Exception) -> Response:
    return plain_page("No such page", _TO_FLEET, 404)


async def _failed(request: Request, _error: Exception) -> Response:
    id_ = log_failure("a page cannot be built", path=request.url.path)
    cause = f"<p>The console has logged the cause, as failure {id_}.</p>"
    return plain_page("This page has failed", cause + _TO_FLEET, 500)


def _check_senders() -> None:
    """Accept messages about a page from the websocket of that page alone, and no text for the log."""
    handlers = core.sio.handlers["/"]
    del handlers[_NOT_TAKEN]
    for name in _FROM_BROWSER:
        core.sio.on(name, _from_own_page(handlers[name]))


def _from_own_page(handler: Callable[..., Any]) -> Callable[..., Any]:
    async def checked(sid: str, message: dict[str, Any]) -> Any:
        environ = core.sio.get_environ(sid)
        if environ is None or message.get("client_id") != page_of(environ["asgi.scope"]):
            return None
        answer = handler(sid, message)
        return await answer if inspect.isawaitable(answer) else answer

    return checked


def _add_page(page: PageRoute, *, allow_operations: bool) -> None:
    module, _, function = page.show.partition(":")
    show = getattr(import_module(module), function)

    async def build_page(request: Request) -> None:
        session = session_of(request.scope)
        client = ui.context.client
        client.page = copy.copy(client.page)
        theme = request.cookies.get(THEME_COOKIE, "")
        client.page.dark = {"dark": True, "light": False}.get(theme)
        client.title = page.title_of(request.path_params)
        view = View(session, client, request.query_params, allow_operations=allow_operations)
        with frame(view, page, theme=theme if theme in ("dark", "light") else "auto"):
            shown = show(view, **request.path_params)
            if inspect.iscoroutine(shown):
                await view.draw(shown)
        client.on_exception(view.fail)
        view.end_unopened()

    ui.page(page.path)(build_page)


def _add_routes(app: FastAPI, sessions: BrowserSessions, own: ConsoleOrigin, login: SessionStart) -> None:
    app.mount("/static", StaticFiles(directory=STATIC), name="console-static")
    login.add_routes(app)

    @app.post(urls.END)
    async def end(request: Request) -> Response:
        sessions.end(session_of(request.scope), "you have logged out")
        answer = RedirectResponse(urls.LOGIN, 303)
        answer.delete_cookie(own.cookie, path="/", secure=own.secure)
        return answer

    @app.get(urls.LOGIN)
    async def prompt(request: Request) -> Response:
        return RedirectResponse(urls.FLEET, 303) if request.state.session is not None else login.prompt()
