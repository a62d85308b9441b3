"""Every rule of the kube-apiserver's recording has the same answer here, in result and wording."""

import json
from typing import Any

import pytest

from tests.support.paths import GOLDENS
from unbounded_apiserver.cel import CompileError, EvalError, ProgramError, check_expression, declare

GOLDEN = json.loads((GOLDENS / "cel.json").read_text())
RULE_LIMIT = 10_000_000


def _answer(expression: str) -> tuple[Any, str]:
    """The result as the golden file has it, and the message that explains it."""
    decl = declare({"type": "object", "properties": GOLDEN["schema"]})
    assert decl is not None
    try:
        checked = check_expression(expression, {"self": decl, "oldSelf": decl})
        if str(checked.type) != "bool":
            return "refused", "cel expression must evaluate to a bool"
        program = checked.program()
        if checked.max_cost > RULE_LIMIT:
            return "refused", "estimated rule cost exceeds budget"
        return program.evaluate(GOLDEN["self"], GOLDEN["oldSelf"]), ""
    except CompileError as error:
        return "refused", f"compilation failed: {error}"
    except ProgramError as error:
        return "refused", f"program instantiation failed: {error}"
    except EvalError as error:
        return "error", f"{error} evaluating rule: {expression}"


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=lambda case: case["expression"])
def test_a_rule_is_answered_as_kube_apiserver_answers_it(case: dict[str, Any]) -> None:
    result, message = _answer(case["expression"])
    expected = case["causes"][0]["message"] if case["result"] == "refused" else case.get("message", "")
    assert (result, message in expected) == (case["result"], True), f"{message!r} is not in {expected!r}"
