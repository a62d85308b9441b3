"""Parsing of tokens to a syntax tree (the CEL grammar), macros included.

Errors that users are likely to see are worded as by cel-go's ANTLR parser.
"""

from __future__ import annotations

from typing import Final

from unbounded_apiserver.cel.ast import CallNode, Ident, ListLiteral, LiteralNode, MapEntry, MapLiteral, Node, Select
from unbounded_apiserver.cel.lexer import RESERVED, CelToken, TokenKind, tokenize
from unbounded_apiserver.cel.macros import MacroError, expand_call
from unbounded_apiserver.cel.values import INT_MAX, CompileError, Issue

MAX_NESTING: Final = 60  # nesting of brackets and the like; a deeper tree would exhaust Python's stack
MAX_DEPTH: Final = 150  # operators in a chain count one level each, except && and ||, whose trees are balanced
MAX_SOURCE: Final = 100_000

_PRIMARY: Final = (
    "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}"
)
_RELATIONS: Final = frozenset({"<", "<=", ">=", ">", "==", "!=", "in"})
_OPERATORS: Final = {"in": "@in"}


class _SyntaxError(Exception):
    def __init__(self, offset: int, message: str) -> None:
        super().__init__(message)
        self.issue = Issue(offset, message)


def parse(source: str) -> Node:
    """Return the tree of an expression.

    Raises:
        CompileError: the source is not an expression.
    """
    if len(source) > MAX_SOURCE:
        raise CompileError("", [Issue(0, f"expression code point size exceeds limit: {MAX_SOURCE}")])
    tokens, issues = tokenize(source)
    parser = _Parser(tokens, issues)
    try:
        tree = parser.whole()
    except _SyntaxError as error:
        raise CompileError(source, [*issues, error.issue]) from None
    if issues:
        raise CompileError(source, issues)
    return tree


class _Parser:
    """Recursive descent over the tokens; `issues` collects errors that do not stop the parser."""

    def __init__(self, tokens: list[CelToken], issues: list[Issue]) -> None:
        self.tokens = tokens
        self.issues = issues
        self.at = 0
        self.nesting = 0

    # tokens

    @property
    def token(self) -> CelToken:
        return self.tokens[self.at]

    def next(self) -> CelToken:
        token = self.tokens[self.at]
        self.at += 1
        return token

    def sees(self, *texts: str) -> bool:
        return self.token.kind in (TokenKind.SYMBOL, TokenKind.KEYWORD) and self.token.text in texts

    def accept(self, text: str) -> bool:
        if self.sees(text):
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> CelToken:
        if not self.sees(text):
            raise self.mismatched(f"'{text}'")
        return self.next()

    def mismatched(self, expected: str) -> _SyntaxError:
        shown = _shown(self.token)
        return _SyntaxError(self.token.offset, f"Syntax error: mismatched input '{shown}' expecting {expected}")

    # grammar, from the loosest to the tightest

    def whole(self) -> Node:
        tree = self.expression()
        if self.token.kind is not TokenKind.END:
            shown = _shown(self.token)
            raise _SyntaxError(self.token.offset, f"Syntax error: extraneous input '{shown}' expecting <EOF>")
        return tree

    def expression(self) -> Node:
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            raise _SyntaxError(self.token.offset, f"expression recursion limit exceeded: {MAX_NESTING}")
        condition = self.logical("||")
        if self.sees("?"):
            offset = self.next().offset
            chosen = self.logical("||")
            self.expect(":")
            otherwise = self.expression()
            condition = self.call("_?_:_", [condition, chosen, otherwise], offset)
        self.nesting -= 1
        return condition

    def logical(self, symbol: str) -> Node:
        """Parse a chain of || or && to a balanced tree, whose depth is the logarithm of its length."""
        terms: list[Node] = []
        offsets: list[int] = []
        while True:
            terms.append(self.logical("&&") if symbol == "||" else self.relation())
            if not self.sees(symbol):
                return self._balance(f"_{symbol}_", terms, offsets)
            offsets.append(self.next().offset)

    def _balance(self, function: str, terms: list[Node], offsets: list[int]) -> Node:
        if len(terms) == 1:
            return terms[0]
        middle = (len(terms) + 1) // 2
        left = self._balance(function, terms[:middle], offsets[: middle - 1])
        right = self._balance(function, terms[middle:], offsets[middle:])
        return self.call(function, [left, right], offsets[middle - 1])

    def relation(self) -> Node:
        left = self.sum()
        while self.token.text in _RELATIONS and self.sees(self.token.text):
            token = self.next()
            function = _OPERATORS.get(token.text, f"_{token.text}_")
            left = self.call(function, [left, self.sum()], token.offset)
        return left

    def sum(self) -> Node:
        left = self.product()
        while self.sees("+", "-"):
            token = self.next()
            left = self.call(f"_{token.text}_", [left, self.product()], token.offset)
        return left

    def product(self) -> Node:
        left = self.unary()
        while self.sees("*", "/", "%"):
            token = self.next()
            left = self.call(f"_{token.text}_", [left, self.unary()], token.offset)
        return left

    def unary(self) -> Node:
        """Parse `!` and `-`, which cancel in pairs; a minus before a number belongs to the number."""
        if not self.sees("!", "-"):
            return self.member()
        first = self.token
        count = 0
        while self.sees(first.text):
            self.at += 1
            count += 1
        if first.text == "-" and count == 1 and self.token.kind in (TokenKind.INT, TokenKind.FLOAT):
            number = self.next()
            return self.postfix(self._number(number, first.offset, -number.value))
        operand = self.member()
        if count % 2 == 0:
            return operand
        return self.call("!_" if first.text == "!" else "-_", [operand], first.offset)

    def member(self) -> Node:
        return self.postfix(self.primary())

    def postfix(self, node: Node) -> Node:
        while True:
            if self.sees("."):
                node = self._dot(node, self.next().offset)
            elif self.sees("["):
                offset = self.next().offset
                function = "_[?_]" if self.accept("?") else "_[_]"
                index = self.expression()
                self.expect("]")
                node = self.call(function, [node, index], offset)
            else:
                return node

    def _dot(self, node: Node, offset: int) -> Node:
        optional = self.accept("?")
        token = self.token
        if token.kind is TokenKind.QUOTED_IDENT:
            self.issues.append(Issue(token.offset, "unsupported syntax: '`'"))
        elif token.kind is not TokenKind.IDENT:
            raise self.mismatched("IDENTIFIER") if token.kind is TokenKind.END else _no_viable(token)
        self.at += 1
        if self.sees("(") and not optional and token.kind is TokenKind.IDENT:
            opening = self.next().offset
            return self.call(token.text, self.arguments(), opening, target=node)
        return self._deepened(Select(node, token.text, optional=optional, offset=offset), node)

    def primary(self) -> Node:
        token = self.token
        match token.kind:
            case TokenKind.INT | TokenKind.FLOAT:
                return self._number(self.next(), token.offset, token.value)
            case TokenKind.UINT | TokenKind.STRING | TokenKind.BYTES:
                return LiteralNode(self.next().value, offset=token.offset)
            case TokenKind.IDENT:
                return self._identifier(self.next())
            case TokenKind.QUOTED_IDENT | TokenKind.END:
                raise self.mismatched(_PRIMARY)
            case _:
                return self._bracketed(token)

    def _number(self, token: CelToken, offset: int, value: int | float) -> Node:
        if token.kind is TokenKind.INT and value > INT_MAX:
            self.issues.append(Issue(token.offset, "invalid int literal"))
        return LiteralNode(value, offset=offset)

    def _identifier(self, token: CelToken) -> Node:
        if token.text in RESERVED:
            self.issues.append(Issue(token.offset, f"reserved identifier: {token.text}"))
        if self.sees("("):
            opening = self.next().offset
            return self.call(token.text, self.arguments(), opening)
        return Ident(token.text, offset=token.offset)

    def _bracketed(self, token: CelToken) -> Node:
        match token.text:
            case "true" | "false" | "null":
                self.at += 1
                return LiteralNode({"true": True, "false": False, "null": None}[token.text], offset=token.offset)
            case "(":
                self.at += 1
                inner = self.expression()
                self.expect(")")
                return inner
            case "[":
                self.at += 1
                return self._list(token.offset)
            case "{":
                self.at += 1
                return self._map(token.offset)
            case "." if self.tokens[self.at + 1].kind is TokenKind.IDENT:
                self.at += 1
                return self._identifier(self.next())
            case _:
                shown = _shown(token)
                raise _SyntaxError(token.offset, f"Syntax error: mismatched input '{shown}' expecting {_PRIMARY}")

    def arguments(self) -> list[Node]:
        """Parse the arguments up to the closing parenthesis; the opening one was read."""
        found: list[Node] = []
        if self.accept(")"):
            return found
        while True:
            found.append(self.expression())
            if not self.accept(","):
                self.expect(")")
                return found

    def _list(self, offset: int) -> Node:
        elements: list[Node] = []
        optional: set[int] = set()
        while not self.accept("]"):
            if self.accept("?"):
                optional.add(len(elements))
            elements.append(self.expression())
            if not self.accept(","):
                self.expect("]")
                break
        return self._deepened(ListLiteral(elements, frozenset(optional), offset=offset), *elements)

    def _map(self, offset: int) -> Node:
        entries: list[MapEntry] = []
        while not self.accept("}"):
            optional = self.accept("?")
            key = self.expression()
            colon = self.expect(":").offset
            entries.append(MapEntry(key, self.expression(), optional, colon))
            if not self.accept(","):
                self.expect("}")
                break
        parts = [part for entry in entries for part in (entry.key, entry.value)]
        return self._deepened(MapLiteral(entries, offset=offset), *parts)

    # nodes

    def call(self, function: str, args: list[Node], offset: int, target: Node | None = None) -> Node:
        try:
            expanded = expand_call(function, target, args, offset)
        except MacroError as error:
            self.issues.append(error.issue)
            expanded = None
        node = expanded if expanded is not None else CallNode(function, args, target, offset=offset)
        return self._deepened(node, *(args if target is None else [target, *args]))

    def _deepened(self, node: Node, *parts: Node) -> Node:
        node.depth = 1 + max((part.depth for part in parts), default=0)
        if node.depth > MAX_DEPTH:
            raise _SyntaxError(node.offset, f"expression recursion limit exceeded: {MAX_DEPTH}")
        return node


def _shown(token: CelToken) -> str:
    return f"`{token.text}`" if token.kind is TokenKind.QUOTED_IDENT else token.text


def _no_viable(token: CelToken) -> _SyntaxError:
    return _SyntaxError(token.offset, f"Syntax error: no viable alternative at input '.{_shown(token)}'")
