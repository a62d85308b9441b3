"""Parser: tokens to a tree, with the errors of Go's parser."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from unbounded.metalman.templates import literals
from unbounded.metalman.templates.lexer import T, TemplateToken, lex
from unbounded.metalman.templates.nodes import (
    ActionNode,
    Bool,
    Branch,
    ChainNode,
    CommandNode,
    Dot,
    Ending,
    FieldNode,
    Identifier,
    Include,
    Item,
    Jump,
    List,
    Nil,
    NumberNode,
    Operand,
    Pipe,
    TemplateLiteral,
    Text,
    Variable,
)
from unbounded.metalman.templates.types import CallFailed, ParseError

MAX_DEPTH: Final = 200  # of parentheses and of blocks; Go allows 10000 and any number
_OPERANDS: Final = frozenset(
    {T.BOOL, T.NUMBER, T.DOT, T.FIELD, T.IDENTIFIER, T.NIL, T.STRING, T.VARIABLE, T.LEFT_PAREN}
)
_CONSTANT: Final = (Bool, Dot, Nil, NumberNode, Text)


def parse(
    name: str, text: str, functions: Container[str], delimiters: tuple[str, str] = ("{{", "}}")
) -> dict[str, List]:
    """Parse the template of this name and the ones that it defines; return them by name.

    Raises:
        ParseError: the template is invalid; the message is Go's.
    """
    parser = _TemplateParser(name, lex(text, *delimiters), functions)
    try:
        parser.file()
    except CallFailed as failed:
        raise parser.error(str(failed)) from failed
    except RecursionError as error:
        raise parser.error("max expression depth exceeded") from error
    return parser.trees


class _TemplateParser:
    def __init__(self, name: str, tokens: list[TemplateToken], functions: Container[str]) -> None:
        self.name = name
        self.tokens = tokens
        self.functions = functions
        self.trees: dict[str, List] = {}
        self.at = 0
        self.seen = 0  # the furthest token that was read or peeked at: errors name its line
        self.variables = ["$"]
        self.depth = 0
        self.loops = 0

    # -- tokens

    def peek(self) -> TemplateToken:
        at = min(self.at, len(self.tokens) - 1)
        self.seen = max(self.seen, at)
        return self.tokens[at]

    def next(self) -> TemplateToken:
        token = self.peek()
        self.at += 1
        return token

    def peek_word(self) -> TemplateToken:
        while self.peek().kind is T.SPACE:
            self.at += 1
        return self.peek()

    def next_word(self) -> TemplateToken:
        token = self.peek_word()
        self.at += 1
        return token

    def error(self, message: str) -> ParseError:
        return ParseError(f"template: {self.name}:{self.tokens[self.seen].line}: {message}")

    def unexpected(self, token: TemplateToken, context: str) -> ParseError:
        return self.error(token.text if token.kind is T.ERROR else f"unexpected {token} in {context}")

    def expect(self, kind: T, context: str) -> TemplateToken:
        token = self.next_word()
        if token.kind is not kind:
            raise self.unexpected(token, context)
        return token

    def deeper(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error("max expression depth exceeded")

    # -- text, actions and blocks

    def file(self) -> None:
        root = List()
        while self.peek().kind is not T.EOF:
            if self.peek().kind is T.LEFT:
                start = self.at
                self.next()
                if self.next_word().is_keyword("define"):
                    self.definition()
                    continue
                self.at = start
            item = self.text_or_action()
            if isinstance(item, Ending):
                raise self.error(f"unexpected {item}")
            root.items.append(item)
        self.add(self.name, root)

    def add(self, name: str, tree: List) -> None:
        known = self.trees.get(name)
        if known is None or known.is_blank:
            self.trees[name] = tree
        elif not tree.is_blank:
            raise self.error(f"template: multiple definition of template {literals.quote(name)}")

    def definition(self) -> None:
        context = "define clause"
        name = literals.unquote(self.expect(T.STRING, context).text)
        self.expect(T.RIGHT, context)
        self.add(name, self.own_body(context))

    def own_body(self, context: str) -> List:
        """Parse the body of a template of its own, without the variables and loops outside of it."""
        variables, loops = self.variables, self.loops
        self.variables, self.loops = ["$"], 0
        body, end = self.item_list()
        if end.word != "end":
            raise self.error(f"unexpected {end} in {context}")
        self.variables, self.loops = variables, loops
        return body

    def item_list(self) -> tuple[List, Ending]:
        self.deeper()
        body = List()
        while self.peek_word().kind is not T.EOF:
            item = self.text_or_action()
            if isinstance(item, Ending):
                self.depth -= 1
                return body, item
            body.items.append(item)
        raise self.error("unexpected EOF")

    def text_or_action(self) -> Item | Ending:
        token = self.next_word()
        if token.kind is T.TEXT:
            return TemplateLiteral(token.text)
        if token.kind is T.LEFT:
            return self.action()
        raise self.unexpected(token, "input")

    def action(self) -> Item | Ending:
        token = self.next_word()
        if token.kind is T.KEYWORD:
            match token.text:
                case "if" | "with" | "range":
                    return self.branch(token)
                case "end":
                    self.expect(T.RIGHT, "end")
                    return Ending("end")
                case "else":
                    return self.otherwise()
                case "break" | "continue":
                    return self.jump(token)
                case "template":
                    return self.include()
                case "block":
                    return self.block()
        self.at -= 1
        return ActionNode(token.place, self.pipeline("command", T.RIGHT))

    def otherwise(self) -> Ending:
        if not self.peek_word().is_keyword("if", "with"):
            self.expect(T.RIGHT, "else")
        return Ending("else")

    def branch(self, token: TemplateToken) -> Branch:
        word, mark = token.text, len(self.variables)
        pipe = self.pipeline(word, T.RIGHT)
        self.loops += word == "range"
        body, end = self.item_list()
        self.loops -= word == "range"
        other: List | None = None
        if end.word == "else":
            following = self.peek()
            if word != "range" and following.is_keyword(word):
                self.next()
                self.deeper()
                other = List([self.branch(following)])  # one end closes both
                self.depth -= 1
            else:
                other, end = self.item_list()
                if end.word != "end":
                    raise self.error(f"expected end; found {end}")
        del self.variables[mark:]
        return Branch(pipe.place, word, pipe, body, other)

    def jump(self, token: TemplateToken) -> Jump:
        shown = f"{{{{{token.text}}}}}"
        following = self.next_word()
        if following.kind is not T.RIGHT:
            raise self.unexpected(following, shown)
        if not self.loops:
            raise self.error(f"{shown} outside {{{{range}}}}")
        return Jump(token.place, token.text)

    def include(self) -> Include:
        context = "template clause"
        token = self.expect(T.STRING, context)
        name = literals.unquote(token.text)
        if self.peek_word().kind is T.RIGHT:
            self.next()
            return Include(token.place, name, None)
        return Include(token.place, name, self.pipeline(context, T.RIGHT))

    def block(self) -> Include:
        context = "block clause"
        token = self.expect(T.STRING, context)
        name = literals.unquote(token.text)
        pipe = self.pipeline(context, T.RIGHT)
        self.add(name, self.own_body(context))
        return Include(token.place, name, pipe)

    # -- pipelines

    def pipeline(self, context: str, end: T) -> Pipe:
        place = self.peek_word().place
        variables, assigns = self.declarations(context)
        commands: list[CommandNode] = []
        while True:
            token = self.next_word()
            if token.kind is end:
                break
            if token.kind not in _OPERANDS:
                raise self.unexpected(token, context)
            self.at -= 1
            args: list[Operand] = []
            start = token.place
            while self.another_operand(args):
                args.append(self.operand())
            commands.append(CommandNode(start, tuple(args)))
        if not commands:
            raise self.error(f"missing value for {context}")
        for stage, command in enumerate(commands[1:], 2):
            if isinstance(command.args[0], _CONSTANT):
                raise self.error(f"non executable command in pipeline stage {stage}")
        return Pipe(place, tuple(commands), variables, assigns)

    def another_operand(self, args: list[Operand]) -> bool:
        """Return whether the command has another operand; a pipe character after the operands is consumed."""
        if args:
            token = self.next()
            if token.kind is T.ERROR:
                raise self.error(token.text)
            if token.kind in (T.RIGHT, T.RIGHT_PAREN):
                self.at -= 1
                return False
            if token.kind is T.PIPE:
                return False
            if token.kind is not T.SPACE:
                raise self.error(f"unexpected {token} in operand")
        token = self.peek_word()
        if token.kind in _OPERANDS:
            return True
        if token.kind is T.ERROR:
            raise self.error(token.text)
        return self.another_operand(args)

    def declarations(self, context: str) -> tuple[tuple[str, ...], bool]:
        """Parse `$a, $b :=` at the start of a pipeline, if it is there."""
        names: list[str] = []
        while (variable := self.peek_word()).kind is T.VARIABLE:
            start = self.at
            self.next()
            following = self.peek_word()
            if following.kind in (T.ASSIGN, T.DECLARE):
                self.next()
                names.append(variable.text)
                self.variables.append(variable.text)
                return tuple(names), following.kind is T.ASSIGN
            if not (following.kind is T.CHAR and following.text == ","):
                self.at = start
                break
            self.next()
            names.append(variable.text)
            self.variables.append(variable.text)
            if context != "range" or len(names) == 2:
                raise self.error(f"too many declarations in {context}")
            if self.peek_word().kind not in (T.VARIABLE, T.RIGHT, T.RIGHT_PAREN):
                raise self.error("range can only initialize variables")
        return tuple(names), False

    def operand(self) -> Operand:
        token = self.next()
        if token.kind is T.LEFT_PAREN:
            self.deeper()
            node: Operand = self.pipeline("parenthesized pipeline", T.RIGHT_PAREN)
            self.depth -= 1
        else:
            node = self.term(token)
        if self.peek().kind is not T.FIELD:
            return node
        place, names = self.peek().place, []
        while self.peek().kind is T.FIELD:
            names.append(self.next().text[1:])
        if isinstance(node, FieldNode):
            return FieldNode(place, (*node.names, *names))
        if isinstance(node, Variable):
            return Variable(place, (*node.names, *names))
        if isinstance(node, _CONSTANT):
            raise self.error(f"unexpected . after term {literals.quote(str(node))}")
        return ChainNode(place, node, tuple(names))

    def term(self, token: TemplateToken) -> Operand:
        place, text = token.place, token.text
        match token.kind:
            case T.IDENTIFIER:
                if text not in self.functions:
                    raise self.error(f"function {literals.quote(text)} not defined")
                return Identifier(place, text)
            case T.VARIABLE:
                if text not in self.variables:
                    raise self.error(f"undefined variable {literals.quote(text)}")
                return Variable(place, (text,))
            case T.FIELD:
                return FieldNode(place, (text[1:],))
            case T.DOT:
                return Dot(place)
            case T.NIL:
                return Nil(place)
            case T.BOOL:
                return Bool(place, text == "true")
            case T.NUMBER:
                return NumberNode(place, text, literals.number(text))
        return Text(place, text, literals.unquote(text))
