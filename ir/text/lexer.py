"""Tokens of the IR's text form, with their place for error messages."""

from __future__ import annotations

import dataclasses
import enum
import re
from typing import Any

from tkcc.ir.attributes import (
    Dense,
    DType,
    KeyImplementation,
    PrimitiveName,
    RegionReference,
    dense_from_numbers,
    number,
    quote,
    record_classes,
)
from tkcc.ir.errors import IRError, ParseError, TkccError
from tkcc.ir.types import TensorType, dtype_names, is_key_dtype, jax_dtype

MAX_TEXT = 64 * 1024 * 1024  # characters; hostile input is refused, not read for ever
MAX_SIZE = 2**63 - 1  # of one dimension; what XLA can hold
MAX_DEPTH = 64  # nesting of regions and tuples

_TOKEN = re.compile(
    r"""(?P<space>[ \t\r\n]+|\#[^\n]*)
      |(?P<string>"(?:[^"\\\n]|\\.)*")
      |(?P<value>%(?:[A-Za-z0-9_.\-]+|"(?:[^"\\\n]|\\.)*")(?:'\d+)?)
      |(?P<number>-?(?:inf\b|nan\b|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?))
      |(?P<variable>\$[A-Za-z_][A-Za-z0-9_]*)
      |(?P<name>[A-Za-z_][A-Za-z0-9_.]*(?:-[A-Za-z0-9_.]+)*(?:<[a-z]+>)?)
      |(?P<dots>\.\.\.)
      |(?P<arrow>->)
      |(?P<symbol>[-+*/(){}\[\],:=@])
    """,
    re.VERBOSE | re.ASCII,
)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{6}|.)")


_CONSTANT_WORDS = {
    "none": None,
    "true": True,
    "false": False,
    "inf": float("inf"),
    "nan": float("nan"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Token:
    kind: str
    text: str
    at: int


def unquote(text: str) -> str:
    """The inverse of `tkcc.ir.attributes.quote`. Raises ValueError for an unknown escape."""

    def one(match: re.Match[str]) -> str:
        code = match.group(1)
        if code == "n":
            return "\n"
        if len(code) == 7:
            return chr(int(code[1:], 16))
        if code not in '"\\':
            raise ValueError(f"unknown escape \\{code}")
        return code

    return _ESCAPE.sub(one, text[1:-1])


class Reader:
    """A cursor over tokens. Every `expect` failure is a ParseError with line, column and caret."""

    def __init__(self, text: str, name: str = "<text>") -> None:
        if len(text) > MAX_TEXT:
            raise ParseError(f"{name} has {len(text)} characters", remedy=f"at most {MAX_TEXT}")
        self.text, self.name = text, name
        self.tokens = self._tokenize()
        self.position = 0
        self.depth = 0

    def _tokenize(self) -> list[Token]:
        tokens, at = [], 0
        while at < len(self.text):
            match = _TOKEN.match(self.text, at)
            if match is None:
                raise self.error(f"unexpected character {self.text[at]!r}", at)
            if match.lastgroup != "space":
                assert match.lastgroup is not None
                tokens.append(Token(match.lastgroup, match.group(), at))
            at = match.end()
        tokens.append(Token("end", "end of text", at))
        return tokens

    def error(self, what: str, at: int | None = None, remedy: str = "") -> ParseError:
        at = self.tokens[self.position].at if at is None else at
        line = self.text.count("\n", 0, at) + 1
        start = self.text.rfind("\n", 0, at) + 1
        end = self.text.find("\n", at)
        shown = self.text[start : end if end >= 0 else len(self.text)]
        column = at - start
        cut = max(0, column - 100)
        where = (
            f"{self.name}:{line}:{column + 1}\n{shown[cut : cut + 160]}\n{' ' * (column - cut)}^"
        )
        return ParseError(what, where=where, remedy=remedy)

    @property
    def token(self) -> Token:
        return self.tokens[self.position]

    def peek(self, text: str, ahead: int = 0) -> bool:
        index = min(self.position + ahead, len(self.tokens) - 1)
        return self.tokens[index].text == text and self.tokens[index].kind != "string"

    def accept(self, text: str) -> bool:
        if self.peek(text):
            self.position += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        if not self.peek(text):
            raise self.error(f"expected {text!r}, found {self.token.text!r}")
        return self.next()

    def kind(self, kind: str) -> Token:
        if self.token.kind != kind:
            raise self.error(f"expected a {kind}, found {self.token.text!r}")
        return self.next()

    def next(self) -> Token:
        token = self.tokens[self.position]
        self.position = min(self.position + 1, len(self.tokens) - 1)
        return token

    def enter(self) -> None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.error(f"nested deeper than {MAX_DEPTH}")

    def leave(self) -> None:
        self.depth -= 1

    # --- pieces shared by functions and rules -------------------------------------------------

    def string(self) -> str:
        token = self.kind("string")
        return self._unquoted(token.text, token.at)

    def _unquoted(self, text: str, at: int) -> str:
        try:
            return unquote(text)
        except (ValueError, OverflowError) as error:
            remedy = 'escapes are \\\\, \\", \\n and \\u with six hex digits'
            raise self.error(f"wrong string: {error}", at, remedy) from None

    def word(self) -> str:
        """A plain name or a quoted one."""
        return self.string() if self.token.kind == "string" else self.kind("name").text

    def value_name(self) -> str:
        """The text of a `%value` token, quotes (written one way only) and tick suffix kept."""
        token = self.kind("value")
        text = token.text[1:]
        if not text.startswith('"'):
            return text
        body, _, suffix = text.rpartition('"')
        return quote(self._unquoted(body + '"', token.at)) + suffix

    def integer(self) -> int:
        token = self.kind("number")
        value = self._number(token)
        if not isinstance(value, int):
            raise self.error(f"expected an integer, found {token.text!r}", token.at)
        return value

    def _number(self, token: Token) -> Any:
        try:
            return number(token.text)
        except ValueError as error:
            raise self.error(f"wrong number: {error}", token.at) from None

    def type(self) -> TensorType:
        token = self.kind("name")
        try:
            jax_dtype(token.text)
        except TkccError as error:
            raise self.error(error.what, token.at, error.remedy) from None
        shape = self._shape()
        at = self.token.at
        try:
            return TensorType(token.text, shape, self._sharding())
        except IRError as error:
            raise self.error(error.what, at, error.remedy) from None

    def _shape(self) -> tuple[int, ...]:
        self.expect("[")
        sizes = []
        while not self.accept("]"):
            at = self.token.at
            sizes.append(self.integer())
            if not 0 <= sizes[-1] <= MAX_SIZE:
                raise self.error(f"a dimension of {sizes[-1]}", at, f"sizes are 0 to {MAX_SIZE}")
            if not self.peek("]"):
                self.expect(",")
        return tuple(sizes)

    def _sharding(self) -> tuple[str | tuple[str, ...] | None, ...]:
        if not (self.peek("@") and self.peek("(", 1)):
            return ()
        self.expect("@")
        self.expect("(")
        out: list[str | tuple[str, ...] | None] = []
        while not self.accept(")"):
            out.append(self._axis())
            if not self.peek(")"):
                self.expect(",")
        return tuple(out)

    def _axis(self) -> str | tuple[str, ...] | None:
        if self.accept("-"):
            return None
        axes = [self.kind("name").text]
        while self.accept("+"):
            axes.append(self.kind("name").text)
        return axes[0] if len(axes) == 1 else tuple(axes)

    def attribute(self) -> Any:
        """One attribute value."""
        self.enter()
        try:
            return self._attribute()
        finally:
            self.leave()

    def _attribute(self) -> Any:
        token = self.token
        if token.kind == "string":
            return self.string()
        if token.kind == "number":
            return self._number(self.next())
        if token.text == "(":
            self.next()
            return self.items(")")
        if token.text == "@":
            return self._region_reference()
        if token.kind == "name":
            return self._named_attribute()
        raise self.error(f"expected an attribute value, found {token.text!r}")

    def items(self, close: str) -> tuple[Any, ...]:
        out = []
        while not self.accept(close):
            out.append(self.attribute())
            if not self.peek(close):
                self.expect(",")
        return tuple(out)

    def _region_reference(self) -> RegionReference:
        """`@0`, or `@0:open` for a jaxpr without constants of its own."""
        self.expect("@")
        index = self.integer()
        if not self.accept(":"):
            return RegionReference(index)
        self.expect("open")
        return RegionReference(index, closed=False)

    def _named_attribute(self) -> Any:
        token = self.next()
        text = token.text
        if text in ("none", "true", "false", "inf", "nan"):
            return _CONSTANT_WORDS[text]
        if text == "complex":
            return self._complex()
        if text in dtype_names() or is_key_dtype(text):
            return self._dense(text) if self.peek("[") else self._dtype(token)
        return self._record(token)

    def _complex(self) -> complex:
        at = self.expect("(").at
        parts = self.items(")")
        if len(parts) != 2 or not all(isinstance(part, (int, float)) for part in parts):
            raise self.error("complex takes two numbers", at)
        return complex(float(parts[0]), float(parts[1]))

    def _dtype(self, token: Token) -> DType:
        try:
            jax_dtype(token.text)
        except IRError as error:
            raise self.error(error.what, token.at, error.remedy) from None
        return DType(token.text)

    def _dense(self, dtype: str) -> Any:
        at = self.token.at
        shape = self._shape()
        self.expect("(")
        try:
            if not self.accept("hex"):
                return dense_from_numbers(dtype, shape, list(self.items(")")))
            dense = Dense(dtype, shape, bytes.fromhex(self.string()))
        except ParseError:
            raise
        except (IRError, ValueError, OverflowError) as error:
            raise self.error(str(error).splitlines()[0], at) from None
        self.expect(")")
        return dense

    def _record(self, token: Token) -> Any:
        """`Name.MEMBER` of a known enum, or `Name(field=value, ...)` of a known record."""
        name, dot, member = token.text.partition(".")
        known: dict[str, Any] = {
            **record_classes(),
            "KeyImplementation": KeyImplementation,
            "PrimitiveName": PrimitiveName,
        }
        if name not in known:
            raise self.error(
                f"unknown word {token.text!r}",
                token.at,
                f"an attribute value is a number, string, dtype, tuple or one of {sorted(known)}",
            )
        try:
            if dot:
                if not issubclass(known[name], enum.Enum):
                    raise TypeError(f"{name} is a record: write {name}(field=value)")
                return known[name][member]
            self.expect("(")
            return known[name](**self._fields())
        except (KeyError, TypeError, ValueError) as error:
            raise self.error(f"{token.text}: {error}", token.at) from None

    def _fields(self) -> dict[str, Any]:
        fields = {}
        while not self.accept(")"):
            key = self.kind("name").text
            self.expect("=")
            fields[key] = self.attribute()
            if not self.peek(")"):
                self.expect(",")
        return fields
