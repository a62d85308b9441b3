"""The record of a run: the part of its state that survives a crash."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from msgspec import Struct
from msgspec.structs import replace

from unbounded.api.fields import MAX_EVIDENCE, Cause, Evidence
from unbounded.workflow.call_state import NO_ANSWER, Answer, Intent, LateCall


class PendingFailure(Struct, frozen=True):
    """The failure with which a run ends after its cleanup stage."""

    reason: str
    text: str
    cause: Cause | None = None


class RunRecord(Struct, frozen=True, kw_only=True):
    """The stage of a run, its last call, and the calling process.

    Attributes:
        epoch: the process that has written the record.
        answer: the stored answer to the last call; NO_ANSWER where there is none.
        late: calls of ended processes that may still arrive, as of the last write.
        spent_s, stage_s: duration of the run and of its stage at the last write.
        recorded_at: the time of that write, RFC 3339.
        standing: detail of the last observation.
        fact: its fact, in the procedure's terms.
    """

    epoch: str
    stage: str
    action: str | None = None
    attempt: int = 0
    boot_id: str | None = None
    handle: str | None = None
    answer: Answer = NO_ANSWER
    late: tuple[LateCall, ...] = ()
    spent_s: int = 0
    stage_s: int = 0
    recorded_at: str | None = None
    evidence: tuple[Evidence, ...] = ()
    failing: PendingFailure | None = None
    standing: str = ""
    fact: str = ""
    read_at: str | None = None

    @property
    def intent(self) -> Intent:
        """The identity of a call, by which two observers compare it."""
        return (self.stage, self.action, self.attempt, self.epoch)

    def with_findings(self, findings: Iterable[str], *, at: str, where: str) -> Self:
        """Return the record with evidence that it does not have yet."""
        known = {evidence.what for evidence in self.evidence}
        new = tuple(Evidence(what=what, at=at, where=where) for what in findings if what not in known)
        return replace(self, evidence=(*self.evidence, *new)[-MAX_EVIDENCE:]) if new else self

    def with_evidence(self, what: str | None, *, at: str, where: str) -> tuple[Evidence, ...]:
        """Return the evidence with one more entry, which replaces an older one of the same words."""
        if what is None:
            return self.evidence
        others = [evidence for evidence in self.evidence if evidence.what != what]
        return (*others, Evidence(what=what, at=at, where=where))[-MAX_EVIDENCE:]
