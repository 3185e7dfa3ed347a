"""From bytecode to the expressions it was made from, for code whose source can't be had.

Follows the instructions once, in order, with a stack of syntax trees in place of values. Jumps are not followed: what
is wanted is which quantities are compared with which constants, and that stands in a straight piece of code. An
instruction that isn't known takes and leaves what `dis.stack_effect` says, all of it unknown; so a new Python costs
clues, and nothing else.
"""

from __future__ import annotations

import ast
import dis
import sys
import warnings
from collections.abc import Callable
from types import CodeType
from typing import Any, Final

from gradproof_probe.gradients.reading.meanings import words

LONGEST: Final = 20_000  # instructions of one function
_UNKNOWN: Final = "?"  # no identifier: it resolves to nothing
_BINARY: Final[dict[str, Callable[[], ast.operator]]] = {
    "+": ast.Add,
    "-": ast.Sub,
    "*": ast.Mult,
    "/": ast.Div,
    "//": ast.FloorDiv,
    "%": ast.Mod,
    "**": ast.Pow,
    "@": ast.MatMult,
    "&": ast.BitAnd,
    "|": ast.BitOr,
    "^": ast.BitXor,
    "<<": ast.LShift,
    ">>": ast.RShift,
}
_COMPARE: Final[dict[str, Callable[[], ast.cmpop]]] = {
    "==": ast.Eq,
    "!=": ast.NotEq,
    "<": ast.Lt,
    "<=": ast.LtE,
    ">": ast.Gt,
    ">=": ast.GtE,
}
_UNARY: Final[dict[str, Callable[[], ast.unaryop]]] = {
    "UNARY_NEGATIVE": ast.USub,
    "UNARY_NOT": ast.Not,
    "UNARY_INVERT": ast.Invert,
}


def decompiled(code: CodeType) -> list[ast.stmt]:
    """What the code does, as a list of statements without nesting. Never raises."""
    reader = _Instructions(code)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader.read()
    except Exception:  # bytecode that was rewritten by a tool may be anything
        return reader.statements
    return reader.statements


class _Instructions:
    def __init__(self, code: CodeType) -> None:
        self._code = code
        self._stack: list[ast.expr] = []
        self._keywords: tuple[str, ...] = ()
        self._line = code.co_firstlineno
        self.statements: list[ast.stmt] = []

    def read(self) -> None:
        for number, item in enumerate(dis.get_instructions(self._code)):
            if number > LONGEST:
                return
            self._line = _line(item) or self._line
            name = item.opname
            act = _ACTS.get(name)
            if act is not None:
                act(self, item)
            elif name.startswith(("POP_JUMP", "JUMP_IF")):
                self._branch(item)
            elif name not in _NOTHING:
                self._skip(item)

    # The stack

    def push(self, node: ast.expr) -> None:
        self._stack.append(self.at(node))

    def at(self, node: Any) -> Any:
        node.lineno = node.end_lineno = self._line
        node.col_offset = node.end_col_offset = 0
        return node

    def pop(self) -> ast.expr:
        return self._stack.pop() if self._stack else self.at(ast.Name(id=_UNKNOWN, ctx=ast.Load()))

    def popped(self, count: int) -> list[ast.expr]:
        return [self.pop() for _ in range(count)][::-1]

    def say(self, statement: ast.stmt) -> None:
        self.statements.append(self.at(statement))

    def _skip(self, item: dis.Instruction) -> None:
        try:
            effect = dis.stack_effect(item.opcode, item.arg, jump=False)
        except ValueError:
            effect = 0
        if effect < 0:
            for _ in range(-effect):
                self.discard()
        for _ in range(effect):
            self.unknown()

    def unknown(self) -> None:
        self.push(ast.Name(id=_UNKNOWN, ctx=ast.Load()))

    def discard(self) -> None:
        """An expression that is computed and dropped may still compare something."""
        if self._stack:
            node = self._stack.pop()
            if isinstance(node, ast.Compare | ast.Call):
                self.say(ast.Expr(value=node))

    def _branch(self, item: dis.Instruction) -> None:
        kept = "OR_POP" in item.opname
        test = self.pop()
        if item.opname.endswith("NONE"):
            test = self.at(ast.Compare(left=test, ops=[ast.Is()], comparators=[self.at(ast.Constant(value=None))]))
        self.say(ast.If(test=test, body=[], orelse=[]))
        if kept:
            self.unknown()

    # Instructions

    def constant(self, value: Any) -> None:
        self.push(_literal(value))

    def name(self, item: dis.Instruction) -> None:
        if item.opname == "LOAD_GLOBAL" and item.argrepr.startswith("NULL + "):
            self.null()
        names = item.argval if isinstance(item.argval, tuple) else (item.argval,)
        for name in names:
            self.push(ast.Name(id=str(name), ctx=ast.Load()))
        if item.opname == "LOAD_GLOBAL" and item.argrepr.endswith(" + NULL"):
            self.null()

    def null(self) -> None:
        """The empty place that calls of functions leave for a `self`."""
        self.push(ast.Name(id="", ctx=ast.Load()))

    def store(self, item: dis.Instruction) -> None:
        names = item.argval if isinstance(item.argval, tuple) else (item.argval,)
        if item.opname == "STORE_FAST_LOAD_FAST":
            self._assign(ast.Name(id=str(names[0]), ctx=ast.Store()))
            self.push(ast.Name(id=str(names[1]), ctx=ast.Load()))
            return
        for name in names:
            if item.opname == "STORE_GLOBAL":
                self.say(ast.Global(names=[str(name)]))
            self._assign(ast.Name(id=str(name), ctx=ast.Store()))

    def _assign(self, target: ast.expr) -> None:
        self.say(ast.Assign(targets=[self.at(target)], value=self.pop()))

    def store_attribute(self, item: dis.Instruction) -> None:
        owner = self.pop()
        self._assign(ast.Attribute(value=owner, attr=str(item.argval), ctx=ast.Store()))

    def store_item(self, _: dis.Instruction) -> None:
        key = self.pop()
        owner = self.pop()
        self._assign(ast.Subscript(value=owner, slice=key, ctx=ast.Store()))

    def unpack(self, item: dis.Instruction) -> None:
        whole = self.pop()
        count = int(item.arg or 0) & 0xFF
        for index in reversed(range(count)):
            key = self.at(ast.Constant(value=index))
            self.push(ast.Subscript(value=whole, slice=key, ctx=ast.Load()))

    def attribute(self, item: dis.Instruction) -> None:
        owner = self.pop()
        method = item.opname == "LOAD_METHOD" or item.argrepr.endswith(("+ NULL|self", "+ NULL"))
        method = method or item.argrepr.startswith("NULL|self + ")
        self.push(ast.Attribute(value=owner, attr=str(item.argval), ctx=ast.Load()))
        if method:
            self.null()

    def call(self, item: dis.Instruction) -> None:
        names = self._keywords
        self._keywords = ()
        if item.opname == "CALL_KW":
            given = self.pop()
            names = tuple(given.value) if isinstance(given, ast.Constant) and isinstance(given.value, tuple) else ()
        values = self.popped(int(item.arg or 0))
        function = self.pop()
        if isinstance(function, ast.Name) and function.id == "":
            function = self.pop()
        elif self._stack and isinstance(self._stack[-1], ast.Name) and self._stack[-1].id == "":
            self._stack.pop()
        split = len(values) - len(names)
        keywords = [ast.keyword(arg=name, value=value) for name, value in zip(names, values[split:], strict=False)]
        self.push(ast.Call(func=function, args=values[:split], keywords=keywords))

    def call_spread(self, item: dis.Instruction) -> None:
        if int(item.arg or 0) & 1:
            self.pop()
        given = self.pop()
        function = self.pop()
        if isinstance(function, ast.Name) and function.id == "":
            function = self.pop()
        elif self._stack and isinstance(self._stack[-1], ast.Name) and self._stack[-1].id == "":
            self._stack.pop()
        spread = self.at(ast.Starred(value=given, ctx=ast.Load()))
        self.push(ast.Call(func=function, args=[spread], keywords=[]))

    def keywords(self, item: dis.Instruction) -> None:
        value = item.argval if isinstance(item.argval, tuple) else self._code.co_consts[int(item.arg or 0)]
        self._keywords = tuple(value)

    def compare(self, item: dis.Instruction) -> None:
        right, left = self.pop(), self.pop()
        sign = str(item.argval)
        operator: ast.cmpop
        if item.opname == "IS_OP":
            operator = ast.IsNot() if item.arg else ast.Is()
        elif item.opname == "CONTAINS_OP":
            operator = ast.NotIn() if item.arg else ast.In()
        else:
            operator = _COMPARE.get(sign, ast.Eq)()
        self.push(ast.Compare(left=left, ops=[operator], comparators=[right]))

    def binary(self, item: dis.Instruction) -> None:
        right, left = self.pop(), self.pop()
        sign = item.argrepr
        if sign == "[]":
            self.push(ast.Subscript(value=left, slice=right, ctx=ast.Load()))
            return
        operator = _BINARY.get(sign.rstrip("="))
        if operator is None:
            self.unknown()
        else:
            self.push(ast.BinOp(left=left, op=operator(), right=right))

    def unary(self, item: dis.Instruction) -> None:
        self.push(ast.UnaryOp(op=_UNARY[item.opname](), operand=self.pop()))

    def subscript(self, _: dis.Instruction) -> None:
        key = self.pop()
        owner = self.pop()
        self.push(ast.Subscript(value=owner, slice=key, ctx=ast.Load()))

    def slice(self, item: dis.Instruction) -> None:
        parts = self.popped(3 if item.opname == "BUILD_SLICE" and item.arg == 3 else 2)
        found = [None if isinstance(part, ast.Constant) and part.value is None else part for part in parts]
        node = ast.Slice(lower=found[0], upper=found[1], step=found[2] if len(found) > 2 else None)
        if item.opname == "BINARY_SLICE":
            owner = self.pop()
            self.push(ast.Subscript(value=owner, slice=self.at(node), ctx=ast.Load()))
        else:
            self.push(node)

    def sequence(self, item: dis.Instruction) -> None:
        kind: Any = {"BUILD_TUPLE": ast.Tuple, "BUILD_LIST": ast.List, "BUILD_SET": ast.Set}[item.opname]
        elements = self.popped(int(item.arg or 0))
        self.push(ast.Set(elts=elements) if kind is ast.Set else kind(elts=elements, ctx=ast.Load()))

    def extend(self, item: dis.Instruction) -> None:
        """`[*a]`, `[1, 2, 3]` and `{1, 2, 3}` from a constant."""
        more = self.pop()
        if item.arg == 1 and self._stack and isinstance(self._stack[-1], ast.List | ast.Set):
            target = self._stack[-1]
            if isinstance(more, ast.Tuple):
                target.elts = [*target.elts, *more.elts]
            else:
                target.elts = [*target.elts, self.at(ast.Starred(value=more, ctx=ast.Load()))]

    def dictionary(self, item: dis.Instruction) -> None:
        flat = self.popped(2 * int(item.arg or 0))
        self.push(ast.Dict(keys=list(flat[::2]), values=flat[1::2]))

    def copy(self, item: dis.Instruction) -> None:
        depth = int(item.arg or 1)
        if 0 < depth <= len(self._stack):
            self._stack.append(self._stack[-depth])
        else:
            self.unknown()

    def swap(self, item: dis.Instruction) -> None:
        depth = int(item.arg or 2)
        if 1 < depth <= len(self._stack):
            self._stack[-1], self._stack[-depth] = self._stack[-depth], self._stack[-1]

    def returned(self, item: dis.Instruction) -> None:
        value = self.at(_literal(item.argval)) if item.opname == "RETURN_CONST" else self.pop()
        self.say(ast.Return(value=value))

    def iterate(self, _: dis.Instruction) -> None:
        """The loop's variable is what the next instruction stores: an element of what is iterated over."""
        over = self._stack[-1] if self._stack else self.at(ast.Name(id=_UNKNOWN, ctx=ast.Load()))
        key = self.at(ast.Name(id=_UNKNOWN, ctx=ast.Load()))
        self.push(ast.Subscript(value=over, slice=key, ctx=ast.Load()))

    def ended(self, _: dis.Instruction) -> None:
        """From 3.13 on, an instruction of its own drops the iterator."""
        if sys.version_info < (3, 13):
            self.pop()

    def function(self, item: dis.Instruction) -> None:
        """Nested functions and generator expressions: what they do is told where they are made."""
        made = self.pop()
        if isinstance(made, ast.Constant) and isinstance(made.value, CodeType):
            for statement in decompiled(made.value):
                inner = statement
                if isinstance(statement, ast.Return) and statement.value is not None:
                    inner = ast.Expr(value=statement.value, lineno=statement.lineno, col_offset=0)
                self.statements.append(inner)
        for _ in range(int(item.arg or 0).bit_count()):
            self.pop()
        self.unknown()


def _line(item: dis.Instruction) -> int | None:
    positions = item.positions
    return positions.lineno if positions is not None else None


def _literal(value: Any) -> ast.expr:
    if isinstance(value, tuple | frozenset):
        return ast.Tuple(elts=[_placed(_literal(part)) for part in value], ctx=ast.Load())
    return ast.Constant(value=value)


def _placed(node: ast.expr) -> ast.expr:
    node.lineno = node.end_lineno = 1
    node.col_offset = node.end_col_offset = 0
    return node


_NOTHING: Final = frozenset(
    words(
        "RESUME CACHE NOP PRECALL MAKE_CELL COPY_FREE_VARS EXTENDED_ARG GET_ITER JUMP_FORWARD JUMP_BACKWARD "
        "JUMP_BACKWARD_NO_INTERRUPT TO_BOOL NOT_TAKEN SETUP_ANNOTATIONS LIST_TO_TUPLE DELETE_FAST END_SEND"
    )
)
_ACTS: Final[dict[str, Callable[[_Instructions, dis.Instruction], None]]] = {
    "LOAD_CONST": lambda r, i: r.constant(i.argval),
    "LOAD_CONST_IMMORTAL": lambda r, i: r.constant(i.argval),
    "LOAD_CONST_MORTAL": lambda r, i: r.constant(i.argval),
    "LOAD_SMALL_INT": lambda r, i: r.constant(i.argval),
    **dict.fromkeys(
        (
            "LOAD_FAST",
            "LOAD_FAST_CHECK",
            "LOAD_FAST_BORROW",
            "LOAD_FAST_AND_CLEAR",
            "LOAD_FAST_LOAD_FAST",
            "LOAD_FAST_BORROW_LOAD_FAST_BORROW",
            "LOAD_GLOBAL",
            "LOAD_NAME",
            "LOAD_DEREF",
            "LOAD_CLOSURE",
            "LOAD_CLASSDEREF",
        ),
        _Instructions.name,
    ),
    "PUSH_NULL": lambda r, _: r.null(),
    **dict.fromkeys(
        ("STORE_FAST", "STORE_NAME", "STORE_GLOBAL", "STORE_DEREF", "STORE_FAST_STORE_FAST", "STORE_FAST_LOAD_FAST"),
        _Instructions.store,
    ),
    "STORE_ATTR": _Instructions.store_attribute,
    "STORE_SUBSCR": _Instructions.store_item,
    "UNPACK_SEQUENCE": _Instructions.unpack,
    "UNPACK_EX": _Instructions.unpack,
    "LOAD_ATTR": _Instructions.attribute,
    "LOAD_METHOD": _Instructions.attribute,
    "CALL": _Instructions.call,
    "CALL_KW": _Instructions.call,
    "CALL_FUNCTION_EX": _Instructions.call_spread,
    "KW_NAMES": _Instructions.keywords,
    "COMPARE_OP": _Instructions.compare,
    "IS_OP": _Instructions.compare,
    "CONTAINS_OP": _Instructions.compare,
    "BINARY_OP": _Instructions.binary,
    **dict.fromkeys(_UNARY, _Instructions.unary),
    "BINARY_SUBSCR": _Instructions.subscript,
    "BINARY_SLICE": _Instructions.slice,
    "BUILD_SLICE": _Instructions.slice,
    **dict.fromkeys(("BUILD_TUPLE", "BUILD_LIST", "BUILD_SET"), _Instructions.sequence),
    **dict.fromkeys(("LIST_EXTEND", "SET_UPDATE"), _Instructions.extend),
    "BUILD_MAP": _Instructions.dictionary,
    "COPY": _Instructions.copy,
    "SWAP": _Instructions.swap,
    "POP_TOP": lambda r, _: r.discard(),
    "RETURN_VALUE": _Instructions.returned,
    "RETURN_CONST": _Instructions.returned,
    "FOR_ITER": _Instructions.iterate,
    "END_FOR": _Instructions.ended,
    "MAKE_FUNCTION": _Instructions.function,
}
