"""The language and its libraries beyond the golden file: values, errors, limits, and laws that hold for all inputs."""

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unbounded_apiserver.cel import (
    CelError,
    CompileError,
    CostExceeded,
    EvalError,
    Meter,
    ProgramError,
    check_expression,
    declare,
)
from unbounded_apiserver.cel.declare import escape
from unbounded_apiserver.cel.functions.authorization import AUTHORIZER, Check, CheckDecision
from unbounded_apiserver.cel.types import DYN, STRING, Decl

VARIABLES = {"dyn": Decl(DYN), "text": Decl(STRING, 1000)}


def evaluate(expression: str, dyn: Any = None, text: str = "") -> Any:
    return check_expression(expression, VARIABLES).program().evaluate(dyn, text)


HOLDS = [
    # numbers
    "7 / -2 == -3 && 7 % -2 == 1 && -7 % 2 == -1",
    "1.0 / 0.0 > 1e308 && -1.0 / 0.0 < 0.0",
    "!(0.0 / 0.0 == 0.0 / 0.0)",
    "0x10 == 16 && 10u + 5u == 15u && 1e-3 == 0.001 && .5 == 0.5",
    "dyn(1) == dyn(1u) && dyn(1) == dyn(1.0) && dyn(1u) in [1, 2].map(x, dyn(x))",
    "uint(3.9) == 3u && int(-3.9) == -3 && double('1e3') == 1000.0",
    "string(1000000.0) == '1e+06' && string(0.1) == '0.1' && string(-1.5e-7) == '-1.5e-07'",
    "--5 == 5 && !!true",
    # text
    r"'\x41\101\u0041\U00000041' == 'AAAA' && '\n'.size() == 1 && r'\n'.size() == 2",
    "'''a'b\"c''' == 'a\\'b\"c' && b'\\xff'.size() == 1",
    "'añb'.indexOf('b') == 2 && 'añb'.substring(1, 2) == 'ñ' && 'añb'.charAt(3) == ''",
    "'abab'.lastIndexOf('ab', 1) == 0 && 'abab'.lastIndexOf('ab') == 2 && 'x'.indexOf('y') == -1",
    "'a-b-c'.split('-', 1) == ['a-b-c'] && 'a-b'.split('-', 0) == [] && 'abc'.split('') == ['a', 'b', 'c']",
    "'aaa'.replace('a', '') == '' && 'aaa'.replace('a', 'b', 0) == 'aaa'",
    "'ÀB'.lowerAscii() == 'Àb' && '\\u00a0x\\t'.trim() == 'x'",
    "strings.quote('a\"b\\n') == '\"a\\\\\"b\\\\n\"'",
    "'aéb1é2'.findAll('é[0-9]?') == ['é', 'é2'] && 'abc'.matches('^b') == false",
    "matches('abc', 'b') && 'ab'.find('x*') == ''",
    "'%s %d %.1f %x %X %o %b %%'.format(['a', 1, 2.25, 'hi', 255, 8, true]) == 'a 1 2.2 6869 FF 10 1 %'",
    "'%s'.format([{'b': [1.5, null], 'a': 'x'}]) == '{\"a\":\"x\", \"b\":[1.500000, null]}'",
    "'%.2f %f'.format([1234.5, 1.0]) == '1,234.50 1.000000' && '%s'.format([type(1)]) == 'int'",
    # lists and maps
    "[1, 2, 3].slice(1, 3) == [2, 3] && [[1], [2, 3]].flatten() == [1, 2, 3]",
    "[3, 1, 2].sort() == [1, 2, 3] && ['b', 'a'].sortBy(x, x) == ['a', 'b'] && [1, 2].reverse() == [2, 1]",
    "[1, 2, 1].distinct() == [1, 2] && lists.range(0) == [] && [2, 1].isSorted() == false",
    "[1.5, 2.5].sum() == 4.0 && [duration('1s'), duration('2s')].sum() == duration('3s') && [1u].max() == 1u",
    "{'a': 1, 'b': 2}.exists(k, k == 'b') && {'a': 1}.all(k, v, v == 1) && size({}) == 0",
    "[1, 2, 3].map(x, x > 1, x * 2) == [4, 6] && [1, 2].filter(x, false) == []",
    "{'a': 1}.transformList(k, v, k + string(v)) == ['a1'] && [4].transformMap(i, v, v > 3, i) == {0: 0}",
    "[1, 2].existsOne(i, v, i == 0) && ![1, 1].exists_one(x, x == 1)",
    "[[1, 2], [3]].map(x, x.map(y, y + 1)) == [[2, 3], [4]] && [1].all(x, [2].all(x, x == 2) && x == 1)",
    "sets.contains([1, 2], []) && !sets.intersects([1], [2]) && sets.equivalent([], [])",
    # optionals
    "optional.of(1).optMap(x, x + 1).value() == 2 && !optional.none().optMap(x, 1).hasValue()",
    "optional.of(1).optFlatMap(x, optional.none()).orValue(7) == 7",
    "optional.none().or(optional.of(3)).value() == 3 && optional.ofNonZeroValue('') == optional.none()",
    "[?optional.of(1), ?optional.none(), 2] == [1, 2] && {?'a': optional.of(1)} == {'a': 1}",
    "{'a': {'b': 1}}.?a.?b.orValue(0) == 1 && {'a': {'b': 1}}.?c.b.orValue(5) == 5",
    "dyn({'a': {'b': 1}}).?a.orValue(dyn({}))[?'b'].orValue(0) == 1",
    "[1, 2].first().value() == 1 && ![].last().hasValue() && [optional.of(1)].unwrapOpt() == [1]",
    # times
    "timestamp('2024-02-29T23:59:59.5Z').getMilliseconds() == 500",
    "timestamp('2024-02-29T00:00:00Z').getDayOfYear() == 59 && timestamp('2024-02-29T00:00:00Z').getDate() == 29",
    "timestamp('2024-03-10T12:00:00Z').getHours('America/New_York') == 8",
    "timestamp('2024-03-10T12:00:00Z').getHours('') == 12",
    "timestamp('2024-03-10T12:00:00Z').getHours('-1:30') == 10",
    "timestamp('2024-03-10T12:00:00Z').getMinutes('-00:30') == 30",
    "timestamp('2024-03-10T12:00:00Z').getHours('Local') >= 0",
    "string(timestamp('2024-01-01T01:00:00+01:00')) == '2024-01-01T00:00:00Z'",
    "timestamp('2024-01-02T00:00:00Z') - timestamp('2024-01-01T00:00:00Z') == duration('24h')",
    "string(duration('1h0.5s')) == '3600.5s' && duration('-90s').getMinutes() == -1",
    "duration('1500us').getMilliseconds() == 1 && duration('0') == duration('0s')",
    "int(timestamp(10)) == 10 && timestamp(0) < timestamp('1970-01-01T00:00:01Z')",
    # libraries of Kubernetes
    "url('https://u:p@[::1]:80/a%20b?x=1&x=2#f').getHostname() == '::1'",
    "url('https://h/a b?q=%41').getQuery() == {'q': ['A']} && url('/path').getScheme() == ''",
    "!isURL('') && !isURL('a/b') && !isURL('http://h:x/') && isURL('http://h:1/')",
    "quantity('1k') == quantity('1000') && quantity('0.1').add(quantity('100m')) == quantity('200m')",
    "sign(quantity('-1')) == -1 && quantity('1e3').asInteger() == 1000 && !isQuantity('1 Gi') && !isQuantity('1kk')",
    "quantity('5').sub(3) == quantity('2') && quantity('1.5Gi').isLessThan(quantity('2Gi'))",
    "!isIP('::ffff:1.2.3.4') && !isIP('fe80::1%eth0') && !isIP('01.2.3.4') && ip.isCanonical('::1')",
    "cidr('::/0').containsIP('fe80::1') && !cidr('10.0.0.0/8').containsIP('::1') && !isCIDR('10.0.0.0')",
    "type(ip('::1')) == net.IP && string(cidr('10.1.0.0/16').masked()) == '10.1.0.0/16'",
    "ip('fe80::1').isLinkLocalUnicast() && !ip('255.255.255.255').isGlobalUnicast() && ip('::').isUnspecified()",
    "semver('1.0.0-alpha.2').isLessThan(semver('1.0.0-alpha.10')) && semver('v01.2', true) == semver('1.2.0')",
    "!isSemver('1.2') && !isSemver('1.2.3-01') && isSemver('1.2.3+b') && semver('1.2.3').patch() == 3",
    "!format.uuid().validate('123e4567-e89b-12d3-a456-426614174000').hasValue()",
    "format.dns1123LabelPrefix().validate('a-') == optional.none() && format.byte().validate('%').hasValue()",
    # what absorbs errors
    "(1 / 0 > 0) || true",
    "!(false && (1 / 0 > 0)) && (true ? true : 1 / 0 == 0)",
    "[0, 1].exists(x, 1 / x == 1) && ![0, 2].all(x, 1 / x > 0)",
    "has({'a': 1}.a) && !has({'a': 1}.b)",
]


@pytest.mark.parametrize("expression", HOLDS)
def test_it_holds(expression: str) -> None:
    assert evaluate(expression) is True


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("1 % int(text.size()) == 0", "modulus by zero"),
        ("9223372036854775807 + text.size() + 1 == 0", "integer overflow"),
        ("-(-9223372036854775807 - 1) == 0", "integer overflow"),
        ("[1][1 + text.size()] == 1", "index out of bounds: 1"),
        ("{1: 2}[text.size()] == 1", "no such key: 0"),
        ("int(text + 'x') == 1", "type conversion error from 'string' to 'int'"),
        ("text.substring(2, 1) == ''", "invalid substring range. start: 2, end: 1"),
        ("text.matches(text + '(')", "error parsing regexp: missing closing ): `(`"),
        ("optional.none().value() == 1", "optional.none() dereference"),
        ("[1].filter(x, x > 1).max() == 1", "max called on empty list"),
        ("{'a': 1, 'a' + text: 2}.size() == 2", "Failed with repeated key: a"),
        ("timestamp('9999-12-31T23:59:59Z') + duration('2s') > timestamp(0)", "timestamp overflow"),
        ("timestamp(0).getHours(text + 'Nowhere/At_All') == 0", "unknown time zone Nowhere/At_All"),
        ("timestamp(0).getHours('-25:00') == 0", "timezone offset hours out of range [-23, 23]: -25:00"),
        ("timestamp(0).getHours('01:60') == 0", "timezone offset minutes out of range [0, 59]: 01:60"),
        ("timestamp(0).getHours('a:00') == 0", 'strconv.Atoi: parsing "a": invalid syntax'),
        (
            "'%d'.format([dyn]) == ''",
            "error during formatting: decimal clause can only be used on integers, was given null_type",
        ),
        (
            "quantity(text + 'x') == quantity('1')",
            "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'",
        ),
    ],
)
def test_it_fails_with_a_reason(expression: str, message: str) -> None:
    with pytest.raises(EvalError) as failed:
        evaluate(expression)
    assert str(failed.value) == message


@pytest.mark.parametrize(
    "expression",
    [
        "dyn + 1 == 2",
        "dyn.a == 1",
        "dyn[0] == 1",
        "size(dyn) == 1",
        "dyn && true",
        "dyn.all(x, true)",
        "!dyn",
        "dyn < 'a'",
    ],
)
@pytest.mark.parametrize("value", [None, 1.5])
def test_what_dyn_turns_out_not_to_fit_is_no_such_overload(expression: str, value: Any) -> None:
    with pytest.raises(EvalError, match="no such overload"):
        evaluate(expression, value)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("1 +\n  'a'", "<input>:1:3: found no matching overload for '_+_' applied to '(int, string)'\n | 1 +\n | ..^"),
        ("true &&\n nope", "ERROR: <input>:2:2: undeclared reference to 'nope' (in container '')\n |  nope\n | .^"),
        ("'é' + 1 == 'x'", "applied to '(string, int)'\n | 'é' + 1 == 'x'\n | .．..^"),
        ("[1].all(1, true)", "argument must be a simple name"),
        ("[1].all(x, 1)", "expected type 'bool' but found 'int'"),
        ("1.all(x, true)", "expression of type 'int' cannot be range of a comprehension"),
        ("'%q'.format([1])", 'unrecognized formatting clause "q"'),
        ("'%s %s'.format([1])", "index 1 out of range"),
        ("'a'.format([1])", "too many arguments supplied to string.format (expected 0, got 1)"),
        ("{'a': 1, 'b': 'c'}", "expected type 'int' but found 'string'"),
        ("package", "reserved identifier: package"),
        ("18446744073709551616", "invalid int literal"),
        ("'\\q'", "unable to unescape sequence: \\q"),
        ("1 # 2", "token recognition error at: '#'"),
        ("(1", "mismatched input '<EOF>' expecting ')'"),
        ("1 2", "extraneous input '2' expecting <EOF>"),
    ],
)
def test_a_wrong_expression_is_explained_at_its_place(expression: str, message: str) -> None:
    with pytest.raises(CompileError) as refused:
        check_expression(expression, VARIABLES)
    assert message in str(refused.value)


def test_constants_that_cannot_be_converted_are_found_before_anything_runs() -> None:
    with pytest.raises(ProgramError, match="type conversion error from 'string' to 'int'"):
        check_expression("int('x') == 1", VARIABLES).program()


@pytest.mark.parametrize("expression", ["(" * 500 + "1" + ")" * 500, "+".join(["1"] * 5000), "[" * 400])
def test_depth_is_bounded_without_exhausting_the_stack(expression: str) -> None:
    with pytest.raises(CompileError, match="recursion limit"):
        check_expression(expression, VARIABLES)


@pytest.mark.slow
def test_signs_in_a_row_do_not_add_to_the_depth() -> None:
    assert evaluate("!" * 10_000 + "true && " + "-" * 9_999 + "text.size() == 0") is True


@pytest.mark.slow
def test_long_chains_of_conditions_are_fine() -> None:
    expression = " && ".join(["text != 'x'"] * 2000)
    assert evaluate(expression) is True


def test_the_estimate_bounds_what_running_costs() -> None:
    schema = {"type": "array", "maxItems": 50, "items": {"type": "string", "maxLength": 20}}
    decl = declare(schema)
    assert decl is not None
    checked = check_expression("self.all(x, self.exists(y, x.contains(y)))", {"self": decl})
    budget = Meter(10**9)
    checked.program().evaluate(["x" * 20] * 50, budget=budget)
    assert 0 < 10**9 - budget.left <= checked.max_cost


@pytest.mark.slow
def test_running_over_the_limit_is_not_absorbed() -> None:
    checked = check_expression("lists.range(900000).all(x, [1, 2, 3].all(y, y + x > 0)) || true", VARIABLES)
    with pytest.raises(CostExceeded):
        checked.program().evaluate(None, "")


def test_an_authorizer_is_asked_what_the_steps_have_put_together() -> None:
    asked: list[Check] = []

    def decide(check: Check) -> CheckDecision:
        asked.append(check)
        return CheckDecision(allowed=check.verb == "get", reason="because")

    expression = "authorizer.group('apps').resource('pods').namespace('x').name('n').check('get').allowed()"
    program = check_expression(expression, {"authorizer": Decl(AUTHORIZER)}).program()
    assert program.evaluate(Check(decide)) is True
    assert [(one.group, one.resource, one.namespace, one.name, one.verb) for one in asked] == [
        ("apps", "pods", "x", "n", "get")
    ]


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ("a", "a"),
        ("in", "__in__"),
        ("a.b/c-d", "a__dot__b__slash__c__dash__d"),
        ("a__b", "a__underscores__b"),
        ("9", None),
        ("a b", None),
    ],
)
def test_properties_are_escaped_for_expressions(name: str, escaped: str | None) -> None:
    assert escape(name) == escaped


WORDS = (
    "1|1u|1.5|'a'|b'a'|true|null|dyn|text|x|?.|[?|!|==|!=|<=|&&|in|has(|size(|.all(x,|.map(x,|.matches(|.format(|int(|"
    "string(|duration(|timestamp(|optional.of(|'%s'|`a`|//|r'|9"
)
PIECES = st.sampled_from([*WORDS.split("|"), "||", *"[](){}.,:?-+*/%<'\"\n\\"])


@pytest.mark.slow
@given(st.lists(PIECES, max_size=12).map(" ".join) | st.text(max_size=30))
def test_garbage_never_ends_in_anything_but_a_cel_error(source: str) -> None:
    for value in (None, 1, "a", [1, "b"], {"a": [None]}):
        with suppress(CelError):
            evaluate(source, value, "a")


@pytest.mark.slow
@given(st.text(max_size=20))
def test_any_text_survives_being_written_as_a_literal(text: str) -> None:
    quoted = "'" + "".join(f"\\U{ord(char):08x}" for char in text) + "'"
    assert evaluate(f"{quoted} == text", text=text) is True
    assert evaluate("text.split('').join('') == text && text.size() == text.split('').size()", text=text) is True


LEAVES = st.sampled_from(["true", "false", "1 / 0 == 0", "dyn", "text == 'x'"])
BOOLEANS = st.recursive(
    LEAVES,
    lambda inner: st.tuples(inner, st.sampled_from(["&&", "||"]), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
    max_leaves=8,
)


def _outcome(expression: str) -> Any:
    try:
        return evaluate(expression, True)
    except EvalError:
        return "error"


@pytest.mark.slow
@given(BOOLEANS, BOOLEANS)
def test_and_and_or_do_not_care_for_the_order_of_their_sides(one: str, other: str) -> None:
    for operator in ("&&", "||"):
        assert _outcome(f"{one} {operator} {other}") == _outcome(f"{other} {operator} {one}")
    assert _outcome(f"!({one} && {other})") == _outcome(f"!({one}) || !({other})")


@pytest.mark.slow
@given(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1))
def test_division_and_remainder_agree(one: int, other: int) -> None:
    found = _outcome(f"({one}) / ({other}) * ({other}) + ({one}) % ({other}) == ({one})")
    assert found is True or (found == "error" and (other == 0 or (one == -(2**63) and other == -1)))


@pytest.mark.slow
@given(st.lists(st.integers(-5, 5), max_size=6))
def test_list_functions_agree_with_each_other(values: list[int]) -> None:
    assert evaluate("dyn.map(x, x).size() == dyn.size() && dyn.filter(x, true) == dyn", values) is True
    assert evaluate("dyn.exists(x, x > 0) == !dyn.all(x, !(x > 0))", values) is True
    literal = f"{values}.filter(x, true)"
    assert evaluate(f"{literal}.sort().isSorted() && sets.equivalent({literal}.distinct(), {literal})") is True
