"""Lexer: the text of a template to tokens, which are literal text or parts of actions."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Final

from unbounded.gotemplate.literals import quote


class T(Enum):
    """Kinds of tokens."""

    ERROR = "error"
    EOF = "EOF"
    TEXT = "text"
    LEFT = "left delimiter"
    RIGHT = "right delimiter"
    SPACE = "space"
    ASSIGN = "="
    DECLARE = ":="
    PIPE = "|"
    LEFT_PAREN = "("
    RIGHT_PAREN = ")"
    CHAR = "character"
    STRING = "string"
    NUMBER = "number"
    BOOL = "bool"
    FIELD = "field"
    VARIABLE = "variable"
    IDENTIFIER = "identifier"
    KEYWORD = "keyword"
    DOT = "dot"
    NIL = "nil"


KEYWORDS: Final = frozenset({"block", "break", "continue", "define", "else", "end", "if", "range", "template", "with"})
_SPACES: Final = " \t\r\n"
_TERMINATORS: Final = frozenset(_SPACES + ".,|:)(")
_NESTED: Final = frozenset({T.KEYWORD, T.DOT, T.NIL})
_MARKER: Final = 2  # a trim marker is a minus and a space


@dataclass(frozen=True, slots=True)
class TemplateToken:
    kind: T
    text: str
    place: int  # of its first character in the template
    line: int

    def is_keyword(self, *words: str) -> bool:
        return self.kind is T.KEYWORD and self.text in words

    def __str__(self) -> str:
        if self.kind is T.EOF:
            return "EOF"
        if self.kind is T.ERROR:
            return self.text
        if self.kind in _NESTED:
            return f"<{self.text}>"
        return quote(self.text) if len(self.text) <= 10 else quote(self.text[:10]) + "..."


def lex(text: str, left: str = "{{", right: str = "}}") -> list[TemplateToken]:
    """Return the tokens of a template; the last is EOF, or an ERROR if the rest is invalid."""
    lexer = _Lexer(text, left, right)
    with suppress(_Stop):
        lexer.run()
    return lexer.tokens


class _Stop(Exception):
    """An ERROR token has been emitted."""


def _is_word(letter: str) -> bool:
    return letter == "_" or letter.isalpha() or letter.isdecimal()


class _Lexer:
    def __init__(self, text: str, left: str, right: str) -> None:
        self.input = text
        self.left = left
        self.right = right
        self.tokens: list[TemplateToken] = []
        self.place = 0  # the next character
        self.start = 0  # first character of the current token
        self.line = 1  # of start
        self.parens = 0

    def emit(self, kind: T) -> None:
        text = self.input[self.start : self.place]
        self.tokens.append(TemplateToken(kind, text, self.start, self.line))
        self.ignore()

    def ignore(self) -> None:
        self.line += self.input.count("\n", self.start, self.place)
        self.start = self.place

    def stop(self, message: str) -> None:
        self.tokens.append(TemplateToken(T.ERROR, message, self.start, self.line))
        raise _Stop

    def peek(self) -> str:
        return self.input[self.place] if self.place < len(self.input) else ""

    def accept(self, letters: str) -> bool:
        if self.place < len(self.input) and self.input[self.place] in letters:
            self.place += 1
            return True
        return False

    def accept_run(self, letters: str) -> None:
        while self.accept(letters):
            pass

    def run(self) -> None:
        while (found := self.input.find(self.left, self.place)) >= 0:
            self.text_before(found)
            if self.comment():
                continue
            self.parens = 0
            while not self.at_end_of_action():
                self.inside()
            self.right_delimiter()
        self.place = len(self.input)
        if self.place > self.start:
            self.emit(T.TEXT)
        self.tokens.append(TemplateToken(T.EOF, "EOF", self.place, self.line))

    def text_before(self, found: int) -> None:
        """Emit the text up to a left delimiter, trimmed if the delimiter has a trim marker."""
        self.place = found
        if self.left_marker(found + len(self.left)):
            kept = len(self.input[self.start : found].rstrip(_SPACES))
            self.place = self.start + kept
        if self.place > self.start:
            self.emit(T.TEXT)
        self.place = found
        self.ignore()

    def left_marker(self, place: int) -> bool:
        following = self.input[place : place + _MARKER]
        return len(following) == _MARKER and following[0] == "-" and following[1] in _SPACES

    def right_marker(self, place: int) -> bool:
        following = self.input[place : place + _MARKER]
        return len(following) == _MARKER and following[1] == "-" and following[0] in _SPACES

    def comment(self) -> bool:
        """Skip a comment, or emit the left delimiter of an action (False)."""
        after = self.place + len(self.left)
        marker = _MARKER if self.left_marker(after) else 0
        if not self.input.startswith("/*", after + marker):
            self.place = after
            self.emit(T.LEFT)
            self.place += marker
            self.ignore()
            return False
        self.place = after + marker
        self.ignore()
        end = self.input.find("*/", self.place)
        if end < 0:
            self.stop("unclosed comment")
        self.place = end + 2
        if not self.at_right():
            self.stop("comment ends before closing delimiter")
        self.skip_right()
        return True

    def at_right(self) -> bool:
        marked = self.right_marker(self.place) and self.input.startswith(self.right, self.place + _MARKER)
        return marked or self.input.startswith(self.right, self.place)

    def skip_right(self, *, emit: bool = False) -> None:
        marked = self.right_marker(self.place)
        if marked:
            self.place += _MARKER
            self.ignore()
        self.place += len(self.right)
        if emit:
            self.emit(T.RIGHT)
        if marked:
            self.accept_run(_SPACES)
        self.ignore()

    def at_end_of_action(self) -> bool:
        if not self.at_right():
            return False
        if self.parens:
            self.stop("unclosed left paren")
        return True

    def right_delimiter(self) -> None:
        self.skip_right(emit=True)

    def inside(self) -> None:
        """Read one token between the delimiters."""
        letter = self.peek()
        if not letter:
            self.stop("unclosed action")
        elif letter in _SPACES:
            self.space()
        elif letter in _READERS:
            self.place += 1
            _READERS[letter](self)
        elif letter == "." and not self.input[self.place + 1 : self.place + 2].isdecimal():
            self.place += 1
            self.field_or_variable(T.FIELD)
        elif letter in "+-.0123456789":
            self.number()
        elif _is_word(letter):
            self.identifier()
        elif letter.isascii() and letter.isprintable():
            self.place += 1
            self.emit(T.CHAR)
        else:
            self.stop(f"unrecognized character in action: {_code_point(letter)}")

    def space(self) -> None:
        while self.peek() and self.peek() in _SPACES:
            if self.at_right():  # the last space belongs to a trim marker
                break
            self.place += 1
        if self.place > self.start:
            self.emit(T.SPACE)

    def declare(self) -> None:
        if not self.accept("="):
            self.stop("expected :=")
        self.emit(T.DECLARE)

    def open(self) -> None:
        self.emit(T.LEFT_PAREN)
        self.parens += 1

    def close(self) -> None:
        self.parens -= 1
        if self.parens < 0:
            self.stop("unexpected right paren")
        self.emit(T.RIGHT_PAREN)

    def quoted(self, mark: str, kind: T, what: str) -> None:
        while True:
            letter = self.peek()
            self.place += 1
            if letter == "\\" and self.peek() not in ("", "\n"):
                self.place += 1
            elif letter in ("", "\n", "\\"):
                self.place = min(self.place, len(self.input))
                self.stop(f"unterminated {what}")
            elif letter == mark:
                return self.emit(kind)

    def raw(self) -> None:
        end = self.input.find("`", self.place)
        if end < 0:
            self.stop("unterminated raw quoted string")
        self.place = end + 1
        self.emit(T.STRING)

    def at_terminator(self) -> bool:
        letter = self.peek()
        return not letter or letter in _TERMINATORS or self.input.startswith(self.right, self.place)

    def field_or_variable(self, kind: T) -> None:
        if self.at_terminator():
            return self.emit(T.VARIABLE if kind is T.VARIABLE else T.DOT)
        self.word()
        return self.emit(kind)

    def word(self) -> None:
        while self.peek() and _is_word(self.peek()):
            self.place += 1
        if not self.at_terminator():
            self.stop(f"bad character {_code_point(self.peek())}")

    def identifier(self) -> None:
        self.word()
        word = self.input[self.start : self.place]
        if word in KEYWORDS:
            self.emit(T.KEYWORD)
        elif word == "nil":
            self.emit(T.NIL)
        else:
            self.emit(T.BOOL if word in ("true", "false") else T.IDENTIFIER)

    def number(self) -> None:
        good = self.scan_number()
        if good and self.peek() and self.peek() in "+-":
            good = self.scan_number() and self.input[self.place - 1] == "i"
        if not good:
            self.stop(f"bad number syntax: {quote(self.input[self.start : self.place])}")
        self.emit(T.NUMBER)

    def scan_number(self) -> bool:
        """Read the characters of a number; False if a letter follows."""
        self.accept("+-")
        digits, exponent = "0123456789_", "eE"
        if self.accept("0"):
            if self.accept("xX"):
                digits, exponent = "0123456789abcdefABCDEF_", "pP"
            elif self.accept("oO"):
                digits, exponent = "01234567_", ""
            elif self.accept("bB"):
                digits, exponent = "01_", ""
        self.accept_run(digits)
        if self.accept("."):
            self.accept_run(digits)
        if exponent and self.accept(exponent):
            self.accept("+-")
            self.accept_run("0123456789_")
        self.accept("i")
        if self.peek() and _is_word(self.peek()):
            self.place += 1
            return False
        return True


def _code_point(letter: str) -> str:
    shown = f" '{letter}'" if letter.isprintable() else ""
    return f"U+{ord(letter):04X}{shown}"


_READERS: Final = {
    "=": lambda lexer: lexer.emit(T.ASSIGN),
    ":": _Lexer.declare,
    "|": lambda lexer: lexer.emit(T.PIPE),
    '"': lambda lexer: lexer.quoted('"', T.STRING, "quoted string"),
    "'": lambda lexer: lexer.quoted("'", T.NUMBER, "character constant"),
    "`": _Lexer.raw,
    "$": lambda lexer: lexer.field_or_variable(T.VARIABLE),
    "(": _Lexer.open,
    ")": _Lexer.close,
}
