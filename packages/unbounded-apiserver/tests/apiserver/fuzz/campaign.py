"""A number of inputs against one server, grouped on connections; what went wrong, with what would show it again."""

from __future__ import annotations

import random
import ssl
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from tests.apiserver.fuzz import bodies, corpus, judge, lines, schemas
from tests.apiserver.fuzz.corpus import Ask
from tests.apiserver.fuzz.framing import framed_wrongly
from tests.apiserver.fuzz.inputs import Input, encoded
from tests.apiserver.fuzz.line import Gone, Line

LIMIT_S: Final = 20.0  # for an answer, on a machine that others use too
PER_CONNECTION: Final = 200
SETTLE: Final = 1000  # inputs after which what they may have deleted is there again
CONTROL: Final = encoded(Ask("GET", "/api/v1/namespaces/kube-system"))
SHOWN: Final = 1500
SLOWEST: Final = 20


@dataclass
class Findings:
    """The results of a campaign. `faults` is empty if there are none."""

    sent: int = 0
    answered: Counter[int] = field(default_factory=Counter)
    families: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slow: list[tuple[float, Input]] = field(default_factory=list)  # the slowest few, the slowest first

    def took(self, seconds: float, sent: Input) -> None:
        self.slow = sorted([*self.slow, (seconds, sent)], key=lambda item: -item[0])[:SLOWEST]


class Campaign:
    """Sends the inputs of a seed. `contexts` are ways to connect: as the administrator, and without credentials."""

    def __init__(self, url: str, admin: ssl.SSLContext, nobody: ssl.SSLContext, seed: int) -> None:
        self.found = Findings()
        self._url = url
        self._admin = admin
        self._nobody = nobody
        self._rng = random.Random(seed)
        self._before = Input("", b"")
        self._asks = [*corpus.recorded(), *corpus.own_kinds(), *corpus.built_in(self._rng)]
        self._with_body = [ask for ask in self._asks if ask.body is not None]
        self._definitions = [ask for ask in self._asks if ask.path == corpus.DEFINITIONS and isinstance(ask.body, dict)]
        self._definitions = [ask for ask in self._definitions if _is_definition(ask.body)]

    def run(self, count: int) -> Findings:
        """Send `count` inputs."""
        while self.found.sent < count:
            if self.found.sent % SETTLE < PER_CONNECTION:
                self._settle()
            self._connection(min(PER_CONNECTION, count - self.found.sent))
        return self.found

    def _settle(self) -> None:
        """Make what the requests are about, as far as it is not there."""
        line = self._line(self._admin)
        namespaces = [Ask("POST", "/api/v1/namespaces", {}, {"metadata": {"name": name}}) for name in corpus.NAMESPACES]
        for ask in [*namespaces, *corpus.definitions(), *self._asks[:4]]:
            line.send(encoded(ask))
            line.answer()
        line.close()

    def _line(self, context: ssl.SSLContext) -> Line:
        return Line(self._url, context, limit_s=LIMIT_S)

    def _connection(self, count: int) -> None:
        """Inputs on one connection, a new one wherever the server closes it; then a request that must be answered."""
        line = self._line(self._admin if self._rng.random() < 0.9 else self._nobody)
        for _ in range(count):
            sent = self._next()
            self.found.sent += 1
            self.found.families[sent.family] += 1
            begun = time.monotonic()
            if not sent.framed:
                self._alone(sent)
            elif not self._asked(line, sent):
                line.close()
                line = self._line(self._admin)
            self.found.took(time.monotonic() - begun, sent)
        line.close()
        self._control()

    def _asked(self, line: Line, sent: Input) -> bool:
        """Return whether the connection is usable again."""
        before, self._before = self._before, sent
        try:
            line.send(sent.data)
            answer = line.answer(head=sent.head)
        except Gone as gone:
            self._fault(sent, f"no answer: {gone}; before it, {before.data[:SHOWN]!r}")
            return False
        except TimeoutError:
            self._fault(sent, f"no answer within {LIMIT_S:g} s")
            return False
        self.found.answered[answer.code] += 1
        if wrong := judge.fault(sent, answer):
            self._fault(sent, wrong)
        return answer.body is not None and answer.headers.get("connection", "") != "close" and answer.code != 101

    def _alone(self, sent: Input) -> None:
        line = self._line(self._admin)
        try:
            line.send(sent.data)
            line.send(CONTROL)  # so that a server that waits for more has something to be wrong about
            answer = line.answer()
        except (Gone, TimeoutError):
            return  # it may wait for a body that will not come
        finally:
            line.close()
        self.found.answered[answer.code] += 1
        if answer.code >= 500 and answer.code not in {501, 505}:
            self._fault(sent, f"{answer.code}: {answer.body!r}")

    def _control(self) -> None:
        """The server still answers others."""
        line = self._line(self._admin)
        line.send(CONTROL)
        answer = line.answer()
        line.close()
        if answer.code != 200:
            self.found.faults.append(f"the control request got {answer.code}: {answer.body!r}")

    def _fault(self, sent: Input, what: str) -> None:
        self.found.faults.append(f"input {self.found.sent}, {sent.family}: {what}\n    sent: {sent.data[:SHOWN]!r}")

    def _next(self) -> Input:
        rng = self._rng
        kind = rng.random()
        if kind < 0.02:
            return framed_wrongly(rng)
        if kind < 0.06:
            return _input("definition", schemas.definition(rng.choice(self._definitions), rng))
        family: str
        if kind < 0.7:
            family = rng.choices(tuple(bodies.OF_BODIES), bodies.WEIGHTS)[0]
            return _input(family, bodies.OF_BODIES[family](rng.choice(self._with_body), rng))
        family = rng.choice(tuple(lines.OF_ALL))
        return _input(family, lines.OF_ALL[family](rng.choice(self._asks), rng))


def _is_definition(body: object) -> bool:
    try:
        return bool(body["spec"]["versions"][0]["schema"])  # type: ignore[index]  # what is not so is left out
    except (KeyError, TypeError, IndexError):
        return False


def _input(family: str, ask: Ask) -> Input:
    return Input(family, encoded(ask), ask.path, head=ask.method == "HEAD")
