"""An OpenID Connect provider that others wrote, django-oauth-toolkit, as a process of its own.

`python -m tests.console.openid_provider FOLDER PORT LIFE REDIRECT…` serves on a port until it is ended. FOLDER has its
database and key, so that it can be started again. LIFE is that of an ID token, in seconds. There are a public client,
and one with a secret. Users have the names of a file in FOLDER as their claim `preferred_username`, by number: user-0
is the first one. Their email is not verified.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

USER: Final = "alice"
PASSWORD: Final = "correct-horse-battery"
PUBLIC, CONFIDENTIAL, SECRET = "console", "console-with-secret", "the-secret-of-the-client"
START_S: Final = 60.0
NAMES: Final = "names.json"
_PAGE: Final = "<!doctype html><html lang=en><title>Provider</title>{% block content %}{% endblock %}</html>"
_LOGIN: Final = '<form method="post">{% csrf_token %}{{ form.as_p }}<button>Sign in</button></form>'


def issuer(port: int) -> str:
    return f"http://127.0.0.1:{port}/o"


class Provider:
    """A running provider."""

    def __init__(self, port: int, process: asyncio.subprocess.Process) -> None:
        self.issuer, self._process = issuer(port), process

    async def stop(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.communicate()


@asynccontextmanager
async def provider(
    folder: Path, port: int, *redirects: str, life_s: int = 600, names: Sequence[str] = ()
) -> AsyncIterator[Provider]:
    """Run the provider inside of the context.

    Args:
        names: of users beside `USER`.
    """
    (folder / NAMES).write_text(json.dumps(names))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.console.openid_provider", str(folder), str(port), str(life_s), *redirects),
        cwd=Path(__file__).parents[2],
        stdout=PIPE,
        stderr=STDOUT,
    )
    found = Provider(port, process)
    try:
        assert process.stdout is not None
        async with asyncio.timeout(START_S):
            line = await process.stdout.readline()
        assert line == b"ready\n", line + await process.stdout.read()
        yield found
    finally:
        await found.stop()


def serve(folder: Path, port: int, life_s: int, redirects: list[str]) -> None:
    import django
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
    from django.conf import settings

    key = folder / "key.pem"
    if not key.exists():
        private = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        key.write_bytes(private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    templates = {"oauth2_provider/base.html": _PAGE, "registration/login.html": _LOGIN}
    settings.configure(
        SECRET_KEY="only in tests",
        ALLOWED_HOSTS=["127.0.0.1"],
        ROOT_URLCONF=_urls(),
        USE_TZ=True,
        LOGIN_URL="/sign-in",
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": folder / "db.sqlite3"}},
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
        PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
        INSTALLED_APPS=[
            "django.contrib.auth",
            "django.contrib.contenttypes",
            "django.contrib.sessions",
            "oauth2_provider",
        ],
        MIDDLEWARE=[
            "django.contrib.sessions.middleware.SessionMiddleware",
            "django.middleware.csrf.CsrfViewMiddleware",
            "django.contrib.auth.middleware.AuthenticationMiddleware",
        ],
        TEMPLATES=[
            {
                "BACKEND": "django.template.backends.django.DjangoTemplates",
                "OPTIONS": {
                    "loaders": [
                        ("django.template.loaders.locmem.Loader", templates),
                        "django.template.loaders.app_directories.Loader",
                    ],
                    "context_processors": ["django.template.context_processors.request"],
                },
            }
        ],
        OAUTH2_PROVIDER={
            "OIDC_ENABLED": True,
            "OIDC_ISS_ENDPOINT": issuer(port),
            "OIDC_RSA_PRIVATE_KEY": key.read_text(),
            "SCOPES": {"openid": "OpenID Connect", "offline_access": "Stay logged in"},
            "ID_TOKEN_EXPIRE_SECONDS": life_s,
            "PKCE_REQUIRED": True,
            "COMPLIANT_BCP_RFC9700_PKCE_METHOD": True,
            "COMPLIANT_BCP_RFC9700_AUTHZ_RESPONSE_ISS": True,
            "REFRESH_TOKEN_REUSE_PROTECTION": True,
            "OAUTH2_VALIDATOR_CLASS": "tests.console.openid_claims.NamingValidator",
        },
    )
    django.setup()
    from django.core.management import call_command
    from django.core.servers.basehttp import run
    from django.core.wsgi import get_wsgi_application

    call_command("migrate", verbosity=0)
    _create(" ".join(redirects), json.loads((folder / NAMES).read_text()))
    logging.disable()
    run("127.0.0.1", port, get_wsgi_application(), threading=True, on_bind=lambda _port: print("ready", flush=True))


def _urls() -> Any:
    class Urls:
        @property
        def urlpatterns(self) -> list[Any]:
            from django.contrib.auth.views import LoginView
            from django.http import HttpResponse
            from django.urls import include, path
            from django.views.decorators.csrf import csrf_exempt
            from oauth2_provider.models import get_refresh_token_model

            def forget(_request: Any) -> HttpResponse:
                get_refresh_token_model().objects.all().delete()
                return HttpResponse(status=204)

            return [
                path("sign-in", LoginView.as_view()),
                path("forget-refresh-tokens", csrf_exempt(forget)),
                path("o/", include("oauth2_provider.urls", namespace="oauth2_provider")),
            ]

    return Urls()


def _create(redirects: str, names: list[str]) -> None:
    from django.contrib.auth import get_user_model
    from oauth2_provider.models import get_application_model

    users, applications = get_user_model().objects, get_application_model()
    if not users.filter(username=USER).exists():
        users.create_user(USER, password=PASSWORD)
    for number, name in enumerate(names):
        if not users.filter(username=f"user-{number}").exists():
            email = f"user-{number}@example.com"
            users.create_user(f"user-{number}", email=email, password=PASSWORD, first_name=name)
    for client, kind, secret in ((PUBLIC, "public", ""), (CONFIDENTIAL, "confidential", SECRET)):
        applications.objects.filter(client_id=client).delete()
        applications.objects.create(
            name=client,
            client_id=client,
            client_secret=secret,
            client_type=kind,
            authorization_grant_type="authorization-code",
            redirect_uris=redirects,
            algorithm="RS256",
        )


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
