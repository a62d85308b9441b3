"""Parser: tokens to a tree, with the errors of Go's parser."""

from __future__ import annotations

from collections.abc import Container
from typing import Final

from unbounded.gotemplate import literals, nodes
from unbounded.gotemplate.lexer import T, TemplateToken, lex
from unbounded.gotemplate.types import CallFailed, ParseError

MAX_DEPTH: Final = 200  # of parentheses and of blocks; Go allows 10000 and any number
_OPERANDS: Final = frozenset(
    {T.BOOL, T.NUMBER, T.DOT, T.FIELD, T.IDENTIFIER, T.NIL, T.STRING, T.VARIABLE, T.LEFT_PAREN}
)
_CONSTANT: Final = (nodes.Bool, nodes.Dot, nodes.Nil, nodes.NumberNode, nodes.Text)


def parse(
    name: str, text: str, functions: Container[str], delimiters: tuple[str, str] = ("{{", "}}")
) -> dict[str, nodes.List]:
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
        self.trees: dict[str, nodes.List] = {}
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
        root = nodes.List()
        while self.peek().kind is not T.EOF:
            if self.peek().kind is T.LEFT:
                start = self.at
                self.next()
                if self.next_word().is_keyword("define"):
                    self.definition()
                    continue
                self.at = start
            item = self.text_or_action()
            if isinstance(item, nodes.Ending):
                raise self.error(f"unexpected {item}")
            root.items.append(item)
        self.add(self.name, root)

    def add(self, name: str, tree: nodes.List) -> None:
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

    def own_body(self, context: str) -> nodes.List:
        """Parse the body of a template of its own, without the variables and loops outside of it."""
        variables, loops = self.variables, self.loops
        self.variables, self.loops = ["$"], 0
        body, end = self.item_list()
        if end.word != "end":
            raise self.error(f"unexpected {end} in {context}")
        self.variables, self.loops = variables, loops
        return body

    def item_list(self) -> tuple[nodes.List, nodes.Ending]:
        self.deeper()
        body = nodes.List()
        while self.peek_word().kind is not T.EOF:
            item = self.text_or_action()
            if isinstance(item, nodes.Ending):
                self.depth -= 1
                return body, item
            body.items.append(item)
        raise self.error("unexpected EOF")

    def text_or_action(self) -> nodes.Item | nodes.Ending:
        token = self.next_word()
        if token.kind is T.TEXT:
            return nodes.TemplateLiteral(token.text)
        if token.kind is T.LEFT:
            return self.action()
        raise self.unexpected(token, "input")

    def action(self) -> nodes.Item | nodes.Ending:
        token = self.next_word()
        if token.kind is T.KEYWORD:
            match token.text:
                case "if" | "with" | "range":
                    return self.branch(token)
                case "end":
                    self.expect(T.RIGHT, "end")
                    return nodes.Ending("end")
                case "else":
                    return self.otherwise()
                case "break" | "continue":
                    return self.jump(token)
                case "template":
                    return self.include()
                case "block":
                    return self.block()
        self.at -= 1
        return nodes.ActionNode(token.place, self.pipeline("command", T.RIGHT))

    def otherwise(self) -> nodes.Ending:
        if not self.peek_word().is_keyword("if", "with"):
            self.expect(T.RIGHT, "else")
        return nodes.Ending("else")

    def branch(self, token: TemplateToken) -> nodes.Branch:
        word, mark = token.text, len(self.variables)
        pipe = self.pipeline(word, T.RIGHT)
        self.loops += word == "range"
        body, end = self.item_list()
        self.loops -= word == "range"
        other: nodes.List | None = None
        if end.word == "else":
            following = self.peek()
            if word != "range" and following.is_keyword(word):
                self.next()
                self.deeper()
                other = nodes.List([self.branch(following)])  # one end closes both
                self.depth -= 1
            else:
                other, end = self.item_list()
                if end.word != "end":
                    raise self.error(f"expected end; found {end}")
        del self.variables[mark:]
        return nodes.Branch(pipe.place, word, pipe, body, other)

    def jump(self, token: TemplateToken) -> nodes.Jump:
        shown = f"{{{{{token.text}}}}}"
        following = self.next_word()
        if following.kind is not T.RIGHT:
            raise self.unexpected(following, shown)
        if not self.loops:
            raise self.error(f"{shown} outside {{{{range}}}}")
        return nodes.Jump(token.place, token.text)

    def include(self) -> nodes.Include:
        context = "template clause"
        token = self.expect(T.STRING, context)
        name = literals.unquote(token.text)
        if self.peek_word().kind is T.RIGHT:
            self.next()
            return nodes.Include(token.place, name, None)
        return nodes.Include(token.place, name, self.pipeline(context, T.RIGHT))

    def block(self) -> nodes.Include:
        context = "block clause"
        token = self.expect(T.STRING, context)
        name = literals.unquote(token.text)
        pipe = self.pipeline(context, T.RIGHT)
        self.add(name, self.own_body(context))
        return nodes.Include(token.place, name, pipe)

    # -- pipelines

    def pipeline(self, context: str, end: T) -> nodes.Pipe:
        place = self.peek_word().place
        variables, assigns = self.declarations(context)
        commands: list[nodes.CommandNode] = []
        while True:
            token = self.next_word()
            if token.kind is end:
                break
            if token.kind not in _OPERANDS:
                raise self.unexpected(token, context)
            self.at -= 1
            args: list[nodes.Operand] = []
            start = token.place
            while self.another_operand(args):
                args.append(self.operand())
            commands.append(nodes.CommandNode(start, tuple(args)))
        if not commands:
            raise self.error(f"missing value for {context}")
        for stage, command in enumerate(commands[1:], 2):
            if isinstance(command.args[0], _CONSTANT):
                raise self.error(f"non executable command in pipeline stage {stage}")
        return nodes.Pipe(place, tuple(commands), variables, assigns)

    def another_operand(self, args: list[nodes.Operand]) -> bool:
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

    def operand(self) -> nodes.Operand:
        token = self.next()
        if token.kind is T.LEFT_PAREN:
            self.deeper()
            node: nodes.Operand = self.pipeline("parenthesized pipeline", T.RIGHT_PAREN)
            self.depth -= 1
        else:
            node = self.term(token)
        if self.peek().kind is not T.FIELD:
            return node
        place, names = self.peek().place, []
        while self.peek().kind is T.FIELD:
            names.append(self.next().text[1:])
        if isinstance(node, nodes.FieldNode):
            return nodes.FieldNode(place, (*node.names, *names))
        if isinstance(node, nodes.Variable):
            return nodes.Variable(place, (*node.names, *names))
        if isinstance(node, _CONSTANT):
            raise self.error(f"unexpected . after term {literals.quote(str(node))}")
        return nodes.ChainNode(place, node, tuple(names))

    def term(self, token: TemplateToken) -> nodes.Operand:
        place, text = token.place, token.text
        match token.kind:
            case T.IDENTIFIER:
                if text not in self.functions:
                    raise self.error(f"function {literals.quote(text)} not defined")
                return nodes.Identifier(place, text)
            case T.VARIABLE:
                if text not in self.variables:
                    raise self.error(f"undefined variable {literals.quote(text)}")
                return nodes.Variable(place, (text,))
            case T.FIELD:
                return nodes.FieldNode(place, (text[1:],))
            case T.DOT:
                return nodes.Dot(place)
            case T.NIL:
                return nodes.Nil(place)
            case T.BOOL:
                return nodes.Bool(place, text == "true")
            case T.NUMBER:
                return nodes.NumberNode(place, text, literals.number(text))
        return nodes.Text(place, text, literals.unquote(text))
