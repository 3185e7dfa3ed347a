"""Turns the rewrite that a rule proposes into edits of the text: exact regions, parentheses, indentation.

Only the text of the replaced nodes changes, so that formatting and comments around them stay. A rewrite that can't be
carried out here (a node inside an f-string, a text that does not parse) yields no fix, never a wrong one. This module
must not know rules or apply anything.
"""

from __future__ import annotations

import ast
import textwrap
from typing import TYPE_CHECKING

from analyzer.findings import Edit, Fix, Region
from analyzer.rules.base import Replacement, Rewrite

if TYPE_CHECKING:
    from analyzer.context import FileContext

# Binding strength of operators, loosest first, after the table in the language reference.
_LAMBDA, _CONDITIONAL, _OR, _AND, _NOT, _COMPARISON, _BIT_OR, _BIT_XOR, _BIT_AND, _SHIFT = range(1, 11)
_SUM, _PRODUCT, _SIGN, _POWER, _AWAIT, _ATOM = range(11, 17)
_TUPLE = 0
_BINARY: dict[type[ast.operator], int] = {
    ast.BitOr: _BIT_OR,
    ast.BitXor: _BIT_XOR,
    ast.BitAnd: _BIT_AND,
    ast.LShift: _SHIFT,
    ast.RShift: _SHIFT,
    ast.Add: _SUM,
    ast.Sub: _SUM,
    ast.Mult: _PRODUCT,
    ast.Div: _PRODUCT,
    ast.FloorDiv: _PRODUCT,
    ast.Mod: _PRODUCT,
    ast.MatMult: _PRODUCT,
    ast.Pow: _POWER,
}


def fix_of(file: FileContext, rewrite: Rewrite) -> Fix:
    """The edits that carry out a rewrite; no edits, and no safety, where that can't be done."""
    edits: list[Edit] = []
    for replacement in rewrite.replacements:
        edit = _edit(file, replacement)
        if edit is None:
            return Fix()
        edits.append(edit)
    return Fix(rewrite.safety, tuple(sorted(edits, key=lambda edit: edit.region)))


def _edit(file: FileContext, replacement: Replacement) -> Edit | None:
    node = replacement.node
    if any(isinstance(outer, ast.JoinedStr) for outer in file.ancestors(node)):
        return None
    if isinstance(node, ast.stmt):
        return _statements(file, node, replacement.text)
    text = expression_text(file, node, replacement.text)
    return Edit(file.span(node), text) if text is not None else None


def _statements(file: FileContext, node: ast.stmt, text: str) -> Edit | None:
    """Statements in the place of one; with none, its lines go, or `pass` takes them in an otherwise empty block."""
    region = file.span(node)
    indentation = file.line(region.start_line)[: region.start_column - 1]
    rest = file.line(region.end_line)[region.end_column - 1 :].strip()
    alone = not indentation.strip() and (not rest or rest.startswith("#"))
    try:
        count = len(ast.parse(text).body)
    except SyntaxError:
        return None
    if count == 0:
        if alone and _has_siblings(file, node):
            return Edit(Region(region.path, region.start_line, 1, region.end_line + 1, 1), "")
        text = "pass"
    if count > 1 and not alone:
        return None
    indented = textwrap.indent(text.strip("\n"), indentation if alone else "")
    return Edit(region, indented.lstrip() if alone else indented)


def _has_siblings(file: FileContext, node: ast.stmt) -> bool:
    parent = file.parent(node)
    blocks = [getattr(parent, field, None) for field in ("body", "orelse", "finalbody")]
    return any(isinstance(block, list) and node in block and len(block) > 1 for block in blocks)


def expression_text(file: FileContext, node: ast.expr, text: str) -> str | None:
    """`text` with the parentheses that it needs in the place of `node`; None when it is no expression."""
    try:
        parsed = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        try:
            parsed = ast.parse(f"({text})", mode="eval").body
        except SyntaxError:
            return None
    if _is_enclosed(text.strip()):
        return text.strip()
    spread = "\n" in text and strength(parsed) < _ATOM
    if strength(parsed) < _required(file, node) or spread:
        return f"({text.strip()})"
    return text.strip()


def _is_enclosed(text: str) -> bool:
    """Whether one pair of parentheses holds the whole text."""
    if not (text.startswith("(") and text.endswith(")")):
        return False
    try:
        return ast.dump(ast.parse(text[1:-1].strip(), mode="eval")) == ast.dump(ast.parse(text, mode="eval"))
    except SyntaxError:
        return False  # (a), (b), or a text that spans lines inside


def strength(node: ast.expr) -> int:
    """How tightly the outermost operator of an expression binds."""
    if isinstance(node, ast.BinOp):
        return _BINARY[type(node.op)]
    if isinstance(node, ast.BoolOp):
        return _OR if isinstance(node.op, ast.Or) else _AND
    if isinstance(node, ast.UnaryOp):
        return _NOT if isinstance(node.op, ast.Not) else _SIGN
    if isinstance(node, (ast.Tuple, ast.Yield, ast.YieldFrom, ast.NamedExpr, ast.Starred)):
        return _TUPLE
    table: dict[type[ast.expr], int] = {
        ast.Lambda: _LAMBDA,
        ast.IfExp: _CONDITIONAL,
        ast.Compare: _COMPARISON,
        ast.Await: _AWAIT,
    }
    return table.get(type(node), _ATOM)


def _required(file: FileContext, node: ast.expr) -> int:
    """How tightly an expression in the place of `node` must bind to stand there without parentheses."""
    parent = file.parent(node)
    if isinstance(parent, (ast.Return, ast.Assign, ast.Expr)):
        return _TUPLE
    if not isinstance(parent, ast.expr) or file.is_parenthesised(node):
        return _TUPLE + 1
    if isinstance(parent, ast.BinOp):
        return _required_operand(parent, node)
    if isinstance(parent, (ast.UnaryOp, ast.Await)):
        return strength(parent)
    if isinstance(parent, (ast.BoolOp, ast.Compare, ast.IfExp)):
        return strength(parent) + 1
    return _ATOM if _is_head(parent, node) else _TUPLE + 1


def _required_operand(parent: ast.BinOp, node: ast.expr) -> int:
    own = strength(parent)
    if isinstance(parent.op, ast.Pow):
        return own + 1 if node is parent.left else _SIGN
    return own if node is parent.left else own + 1


def _is_head(parent: ast.expr, node: ast.expr) -> bool:
    """Whether the node is what `.attribute`, a call's parentheses or an index is applied to."""
    if isinstance(parent, ast.Call):
        return parent.func is node
    return isinstance(parent, (ast.Attribute, ast.Subscript)) and parent.value is node
