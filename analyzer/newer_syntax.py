"""Reads syntax that is newer than the interpreter: Python 3.12 to 3.14 on 3.11.

`ast.parse` is fifty times faster than any parser that we could bring along, but knows its own version only. So where it
fails, and only there, the newer constructs are written in older words that leave every line, and every column of what
rules look at, where it was: type parameters and `type` become blanks, `except A, B` gets its parentheses, and an
f-string (or t-string) whose fields an older tokenizer can't read becomes a tuple of its fields, which turns into an
f-string again in the tree. This module must not decide what is an error: the parser judges the older text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_TOKEN = re.compile(
    r"""(?P<blank>[ \t\f]+|\\\n)
    |(?P<comment>\#[^\n]*)
    |(?P<newline>\n)
    |(?P<string>(?:[bBuUrR]|[bB][rR]|[rR][bB]|[fFtT][rR]?|[rR][fFtT])?(?:'''|\"\"\"|'|"))
    |(?P<name>[^\W\d]\w*)
    |(?P<number>\.?\d[\w.]*)
    |(?P<operator>:=|[=!<>]=|.)""",
    re.VERBOSE,
)
_PLAIN_STRINGS = {
    "'": re.compile(r"(?:[^'\\\n]+|\\.)*+'", re.DOTALL),
    '"': re.compile(r'(?:[^"\\\n]+|\\.)*+"', re.DOTALL),
    "'''": re.compile(r"(?:[^'\\]+|\\.|'(?!''))*+'''", re.DOTALL),
    '"""': re.compile(r'(?:[^"\\]+|\\.|"(?!""))*+"""', re.DOTALL),
}
_LITERAL_PART = re.compile(r"[^'\"{}\\\n]+")
_NAMED_CHARACTER = re.compile(r"\\N\{[^}\n]*\}")
_DEBUG_EQUALS = re.compile(r"=[ \t\n]*(?=[}!:])")
_CONVERSION = re.compile(r"!\s*\w*\s*")
# An f-string in an f-string in an f-string … : the language sets no limit, people stop at three.
_MAX_DEPTH = 30
_PAIRS = {")": "(", "]": "[", "}": "{"}
_NOT_A_NAME = frozenset({"is", "in", "and", "or", "if", "not", "for", "else", "as", "import"})
# What the parser says of Python 2, what stands where it says so, and what that is.
_PYTHON_2 = (
    (re.compile(r"Missing parentheses in call to 'print'"), re.compile(r""), "a `print` statement"),
    (re.compile(r"Missing parentheses in call to 'exec'"), re.compile(r""), "an `exec` statement"),
    (re.compile(r"leading zeros in decimal"), re.compile(r""), "an octal number without `o`"),
    (re.compile(r"invalid \w+ literal"), re.compile(r"\w[lL]\b"), "a number with `L`"),
    (re.compile(r"Function parameters cannot be parenthesized"), re.compile(r""), "a tuple as a parameter"),
    (re.compile(r"invalid syntax"), re.compile(r"<>"), "the operator `<>`"),
    (re.compile(r"invalid syntax"), re.compile(r"`"), "back-ticks"),
)
# The same where the place says nothing, but what stands before it does.
_PYTHON_2_BEFORE = (
    (re.compile(r"\braise\s+[\w.]+\s*$"), re.compile(r","), "`raise` with a comma"),
    (re.compile(r"(?i)\bur$"), re.compile(r"['\"]"), "a `ur` string"),
)


# Set on an f-string whose fields are where their nodes say; Python 3.11 misplaces those that it parses itself.
EXACT = "has_exact_fields"

_Place = tuple[int, int, int, int]


class _UnclearError(Exception):
    """The text ends inside a string, or is nested beyond reason."""


@dataclass(slots=True)
class _Field:
    """A replacement field: `start` is its brace, `expression_end` what follows its expression, `end` is behind it."""

    start: int
    expression_end: int
    end: int
    tokens: list[_Token]
    nested: list[_Field]


@dataclass(slots=True)
class _Token:
    kind: str
    start: int
    end: int
    text: str
    quote: str = ""
    fields: list[_Field] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Comment:
    """A comment: `line` from 1, `column` in characters from 0."""

    line: int
    column: int
    text: str


def parse_newer(text: str) -> ast.Module | None:
    """The tree of a text that `ast.parse` refused; None when there is nothing in it that newer versions brought.

    Raises what `ast.parse` raises when the text is wrong beside that; the places in the error are those of `text`.
    """
    rewriter = _Rewriter(text)
    try:
        rewriter.rewrite(_Scanner(text).tokens())
    except _UnclearError:
        return None
    if not rewriter.changed:
        return None
    tree = ast.parse(rewriter.result())
    places = frozenset(rewriter.format_strings())
    if places:
        _restore_format_strings(tree, places)
    return tree


def comments(text: str) -> list[Comment]:
    """Every comment of a valid source text, those inside the fields of f-strings included."""
    try:
        found = list(_comment_tokens(_Scanner(text).tokens()))
    except _UnclearError:
        return []
    result: list[Comment] = []
    line, line_start = 1, 0
    for token in found:
        line += text.count("\n", line_start, token.start)
        line_start = text.rfind("\n", 0, token.start) + 1
        result.append(Comment(line, token.start - line_start, token.text))
    return result


def logical_line_end(text: str, start: int) -> int:
    """Behind the line end of the logical line that begins at `start`; the end of the text if it is never complete."""
    try:
        return _Scanner(text).line_end(start)
    except _UnclearError:
        return len(text)


def python_2_reason(message: str, line: str, column: int) -> str | None:
    """What of Python 2 the parser stumbled over, if that is what it did: its message, the line, the column from 1."""
    before, behind = line[: column - 1], line[column - 1 :]
    for said, stands, what in _PYTHON_2:
        if said.match(message) and stands.match(behind):
            return what
    for stood, stands, what in _PYTHON_2_BEFORE:
        if message == "invalid syntax" and stood.search(before) and stands.match(behind):
            return what
    return None


def _comment_tokens(tokens: Sequence[_Token]) -> Iterator[_Token]:
    for token in tokens:
        if token.kind == "comment":
            yield token
        for part in token.fields:
            yield from _comment_tokens(part.tokens)


def _restore_format_strings(tree: ast.Module, places: frozenset[_Place]) -> None:
    """Makes the tuples that stand for f-strings into f-strings whose fields have exact places."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Tuple):
            continue
        if (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset) not in places:
            continue
        values = [ast.copy_location(ast.FormattedValue(_plain(value), -1, None), value) for value in node.elts]
        # In place: whatever holds the tuple holds the f-string from now on.
        node.__class__ = ast.JoinedStr  # type: ignore[assignment]
        node.__dict__ = {
            "values": values,
            EXACT: True,
            **{name: getattr(node, name) for name in ("lineno", "col_offset", "end_lineno", "end_col_offset")},
        }


def _plain(value: ast.expr) -> ast.expr:
    """The expression of a field: `*a` alone is a tuple there."""
    return ast.copy_location(ast.Tuple([value], ast.Load()), value) if isinstance(value, ast.Starred) else value


class _Scanner:
    """Cuts a text into tokens by the grammar of Python 3.14, strings with fields into those."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._depth = 0

    def tokens(self) -> list[_Token]:
        tokens, _ = self._code(0, in_field=False)
        return tokens

    def line_end(self, start: int) -> int:
        _, end = self._code(start, in_field=False, one_line=True)
        return end

    def _code(self, at: int, *, in_field: bool, one_line: bool = False) -> tuple[list[_Token], int]:
        """Tokens up to the end of the text or of the logical line or, in a field, up to what ends its expression."""
        text = self._text
        found: list[_Token] = []
        brackets = 0
        while at < len(text):
            match = _TOKEN.match(text, at)
            assert match is not None  # the last alternative takes anything
            kind, word = match.lastgroup or "", match[0]
            if kind == "blank":
                at = match.end()
                continue
            if kind == "string":
                token = self._string(at, match.end(), word)
                found.append(token)
                at = token.end
                continue
            if kind == "operator":
                if in_field and not brackets and self._ends_field(word, at):
                    return found, at
                brackets += (word in "([{") - (word in ")]}")
            if kind != "newline" or not (brackets > 0 or in_field):
                if one_line and kind == "newline":
                    return found, match.end()
                found.append(_Token(kind, at, match.end(), word))
            at = match.end()
        if in_field:
            raise _UnclearError
        return found, at

    def _ends_field(self, operator: str, at: int) -> bool:
        if operator == "=":
            return _DEBUG_EQUALS.match(self._text, at) is not None
        return operator in ("}", ":", ":=", "!")

    def _string(self, start: int, body: int, opening: str) -> _Token:
        prefix = opening.rstrip("'\"")
        quote = opening[len(prefix) :]
        if not set(prefix.lower()) & {"f", "t"}:
            match = _PLAIN_STRINGS[quote].match(self._text, body)
            if match is None:
                raise _UnclearError
            return _Token("string", start, match.end(), self._text[start : match.end()], quote)
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _UnclearError
        fields, end = self._format_string(body, quote, raw="r" in prefix.lower())
        self._depth -= 1
        return _Token("string", start, end, "", quote, fields)

    def _format_string(self, at: int, quote: str, *, raw: bool) -> tuple[list[_Field], int]:
        """The fields of a string whose text begins at `at`, and where the string ends."""
        text = self._text
        fields: list[_Field] = []
        while at < len(text):
            character = text[at]
            if text.startswith(quote, at):
                return fields, at + len(quote)
            if character == "\n" and len(quote) == 1:
                break
            if character == "\\":
                named = None if raw else _NAMED_CHARACTER.match(text, at)
                at = named.end() if named else at + (1 if text[at + 1 : at + 2] in ("{", "}") else 2)
            elif character == "{" and not text.startswith("{{", at):
                fields.append(self._field(at, quote))
                at = fields[-1].end
            elif character in "{}":
                at += 2 if text.startswith(character * 2, at) else 1
            else:
                literal = _LITERAL_PART.match(text, at)
                at = literal.end() if literal else at + 1
        raise _UnclearError

    def _field(self, start: int, quote: str) -> _Field:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _UnclearError
        text = self._text
        tokens, end = self._code(start + 1, in_field=True)
        at = end
        for pattern in (_DEBUG_EQUALS, _CONVERSION):
            match = pattern.match(text, at)
            at = match.end() if match else at
        nested: list[_Field] = []
        if text.startswith(":", at):
            at += 1
            while at < len(text) and text[at] != "}":
                if text[at] == "{":
                    nested.append(self._field(at, quote))
                    at = nested[-1].end
                elif text.startswith(quote, at):
                    raise _UnclearError
                else:
                    at += 1
        if not text.startswith("}", at):
            raise _UnclearError
        self._depth -= 1
        return _Field(start, end, at + 1, tokens, nested)


class _Rewriter:
    """Puts older words in the place of newer ones, character by character, so that places stay."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._changes: dict[int, str] = {}
        self._runs: list[tuple[int, int]] = []
        self._closing: dict[int, int] = {}

    @property
    def changed(self) -> bool:
        return bool(self._changes)

    def result(self) -> str:
        pieces: list[str] = []
        done = 0
        for at in sorted(self._changes):
            pieces.append(self._text[done:at])
            pieces.append(self._changes[at])
            done = at + 1
        pieces.append(self._text[done:])
        return "".join(pieces)

    def format_strings(self) -> Iterator[_Place]:
        """The places that rewritten f-strings have in the tree."""
        places: dict[int, tuple[int, int]] = {}
        line, column, done = 1, 0, 0
        # In one walk: a line can have four megabytes, and a hundred thousand f-strings.
        for at in sorted({at for run in self._runs for at in run}):
            piece = self._text[done:at]
            if "\n" in piece:
                line, column = line + piece.count("\n"), 0
                piece = piece[piece.rfind("\n") + 1 :]
            column += len(piece.encode("utf-8", "surrogatepass"))
            done = at
            places[at] = (line, column)
        for start, end in self._runs:
            yield (*places[start], *places[end])

    def rewrite(self, tokens: list[_Token]) -> None:
        self._strings(tokens)
        tokens = [token for token in tokens if token.kind != "comment"]
        self._closing = _matched(tokens)
        for position, token in enumerate(tokens):
            if token.kind != "name":
                continue
            if token.text in ("def", "class") and _is_name(tokens, position + 1):
                self._type_parameters(tokens, position + 2)
            elif token.text == "type" and _is_name(tokens, position + 1):
                self._type_alias(tokens, position)
            elif token.text == "except":
                self._except(tokens, position)

    # --- PEP 695 and 696 ---------------------------------------------------------------------------------------

    def _type_parameters(self, tokens: list[_Token], position: int) -> None:
        """Blanks `[T: bound = default]`."""
        if position < len(tokens) and tokens[position].text == "[" and position in self._closing:
            self._blank_across_lines(tokens[position].start, tokens[self._closing[position]].end)

    def _type_alias(self, tokens: list[_Token], position: int) -> None:
        name, following = tokens[position + 1], position + 2
        is_generic = following in self._closing and tokens[following].text == "["
        equals = self._closing[following] + 1 if is_generic else following
        if equals >= len(tokens) or tokens[equals].text != "=":
            return
        start = tokens[position].start
        excess = len(name.text.encode()) - 1
        if "\n" in self._text[start : start + 1 + excess]:
            return  # in broken code: what follows on the next line is no name of an alias
        # The name moves to the front: blanks there would be indentation. Its value stays where it is.
        self._blank_across_lines(start, name.end)
        self._changes[start] = name.text
        for at in range(start + 1, start + 1 + excess):
            self._changes[at] = self._changes[at][1:]
        if is_generic:
            self._blank_across_lines(tokens[following].start, tokens[equals - 1].end)

    # --- PEP 758 -----------------------------------------------------------------------------------------------

    def _except(self, tokens: list[_Token], position: int) -> None:
        first = position + 1
        if first < len(tokens) and tokens[first].text == "*":
            first += 1
        has_comma = False
        last = first
        while last < len(tokens) and tokens[last].text != ":":
            token = tokens[last]
            if token.kind == "newline" or token.text in ("as", "except"):
                return
            has_comma |= token.text == ","
            last = self._closing.get(last, last) + 1
        if last >= len(tokens):
            return
        if not has_comma or last == first:
            return
        before, colon = tokens[first].start - 1, tokens[last].start
        if self._text[before] == " ":
            self._changes[before] = "("
        else:
            self._changes[before] = self._text[before] + "("
        # What follows the colon on its line keeps its column when a blank after the colon can be given up.
        self._changes[colon] = "):"
        if self._text[colon + 1 : colon + 2] == " ":
            self._changes[colon + 1] = ""

    # --- PEP 701 and 750 ---------------------------------------------------------------------------------------

    def _strings(self, tokens: list[_Token]) -> None:
        """Rewrites each run of adjacent strings of which one is newer than Python 3.11."""
        run: list[_Token] = []
        for token in tokens:
            if token.kind == "string":
                run.append(token)
            elif token.kind != "comment":
                self._run(run)
                run = []
        self._run(run)

    def _run(self, run: list[_Token]) -> None:
        for token in run:
            for part in token.fields:
                self._inside(part)
        if not any(self._is_newer(token) for token in run):
            return
        start, end = run[0].start, run[-1].end
        kept = [part for token in run for part in _flat(token.fields)]
        at = start + 1
        for part in kept:
            self._blank(at, part.start + 1)
            self._changes[part.expression_end] = ","
            at = part.expression_end + 1
        self._blank(at, end - 1)
        self._changes[start] = "("
        self._changes[end - 1] = ")"
        self._runs.append((start, end))

    def _inside(self, part: _Field) -> None:
        self._strings(part.tokens)
        for nested in part.nested:
            self._inside(nested)

    def _is_newer(self, token: _Token) -> bool:
        opening = self._text[token.start : self._text.index(token.quote, token.start)]
        if "t" in opening.lower():
            return True
        for part in token.fields:
            inside = self._text[part.start : part.end]
            if token.quote in inside or "\\" in inside or ("\n" in inside and len(token.quote) == 1):
                return True
            if any(True for _ in _comment_tokens(part.tokens)) or any(nested.nested for nested in part.nested):
                return True
        return False

    # --- characters --------------------------------------------------------------------------------------------

    def _blank(self, start: int, end: int) -> None:
        """Blanks of as many bytes: `ast` counts columns in UTF-8."""
        for at in range(start, end):
            character = self._text[at]
            if character != "\n":
                self._changes[at] = (
                    " " if character.isascii() else " " * len(character.encode("utf-8", "surrogatepass"))
                )

    def _blank_across_lines(self, start: int, end: int) -> None:
        """The same where no bracket is left to hold the lines together: a backslash does."""
        self._blank(start, end)
        for at in range(start, end):
            if self._text[at] != "\n":
                continue
            if self._text[at - 1] == "\n":
                self._changes[at] = "\\\n"
            else:
                self._changes[at - 1] = "\\"


def _flat(fields: list[_Field]) -> Iterator[_Field]:
    for part in fields:
        yield part
        yield from _flat(part.nested)


def _is_name(tokens: list[_Token], position: int) -> bool:
    return position < len(tokens) and tokens[position].kind == "name" and tokens[position].text not in _NOT_A_NAME


def _matched(tokens: list[_Token]) -> dict[int, int]:
    """Where each bracket closes, for those that do: the parser will say what is wrong with the others."""
    closing: dict[int, int] = {}
    open_brackets: list[int] = []
    for position, token in enumerate(tokens):
        if token.kind != "operator":
            continue
        if token.text in "([{":
            open_brackets.append(position)
        elif token.text in _PAIRS and open_brackets and tokens[open_brackets[-1]].text == _PAIRS[token.text]:
            closing[open_brackets.pop()] = position
    return closing
