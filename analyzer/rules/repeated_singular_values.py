"""Rotations and matrix functions that are put together from singular or eigen vectors (GP142).

This module must not analyse values itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.fingerprints import normalised_source
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.rules.explanations import shown
from analyzer.syntax import FunctionNode
from analyzer.values.domain import Gradient
from analyzer.values.guards import guarded
from analyzer.values.surroundings import Surroundings, surroundings


@dataclass(frozen=True, slots=True)
class _Vectors:
    """The matrices of vectors that a decomposition gave names to; those of `eigh` occur twice in a product."""

    call: ast.Call
    operand: ast.expr
    names: tuple[str, str]


class RepeatedSingularValues(Rule):
    id = "GP142"
    name = "gradient-of-repeated-singular-values"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("nan_gradient",)
    fix = FixSafety.NONE
    triggers = ("svd", "eigh", "symeig")
    documentation = Documentation(
        what_it_does=(
            "Finds matrices that are put together again from the vectors of a differentiated decomposition: the "
            "nearest rotation `U @ Vh` of an SVD, the function `V @ diag(f(e)) @ V.T` of an `eigh`."
        ),
        why_is_this_bad=(
            "The vectors of equal singular values are not unique, and their gradient divides by the difference of the "
            "values: it is inf or NaN. The identity has three equal ones, so the nearest rotation to a rotation is "
            "just where it fails; collinear points have two zeros. The value of the product is fine (measured on "
            "torch 2.13: NaN for the identity, for a matrix of ones, and for `diag(1, 1, 0)`)."
        ),
        faulty_example=(
            "import torch\n\n\ndef nearest_rotation(m):\n    u, _, vh = torch.linalg.svd(m)\n    return u @ vh\n"
        ),
        right_example=(
            "import torch\n\n\ndef nearest_rotation(m):\n    with torch.no_grad():\n"
            "        u, _, vh = torch.linalg.svd(m)\n    return u @ vh\n"
        ),
        fix_safety=(
            "Nothing is rewritten: a detached rotation, a few steps of Newton's iteration, a perturbed matrix or a "
            "gradient written by hand are all right somewhere."
        ),
    )
    valid = (
        "import torch\ndef f(m):\n    with torch.no_grad():\n        u, s, vh = torch.linalg.svd(m)\n"
        "    return u @ vh\n",
        "import torch\ndef f(m):\n    u, s, vh = torch.linalg.svd(m.detach())\n    return u @ vh\n",
        # the values have a gradient of their own
        "import torch\ndef f(m):\n    u, s, vh = torch.linalg.svd(m)\n    return s.sum()\n",
        "import torch\ndef f(m):\n    return torch.linalg.svdvals(m).sum()\n",
        "import torch\ndef f(m):\n    u, s, vh = torch.linalg.svd(m)\n    return u.mT @ m\n",
        # one vector, unique as a rule
        "import torch\ndef f(c):\n    e, v = torch.linalg.eigh(c)\n    return v[..., 0]\n",
        "import torch\nclass Kabsch(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, m):\n"
        "        u, s, vh = torch.linalg.svd(m)\n        return u @ vh\n    @staticmethod\n"
        "    def backward(ctx, g):\n        return g\n",
        "import numpy as np\nimport torch\ndef f(m):\n    u, s, vh = np.linalg.svd(m)\n"
        "    return torch.tensor(u @ vh)\n",
        "import torch\nclass WhiteningTransform:\n    def fit(self, m):\n        e, v = torch.linalg.eigh(m)\n"
        "        return v @ torch.diag(e) @ v.T\n",
    )
    invalid = (
        Invalid("import torch\ndef f(m):\n    u, s, vh = torch.linalg.svd(m)\n    return u @ vh\n", (3,)),
        Invalid(
            "import torch\ndef f(a, b):\n    u, _, v = torch.svd(a.transpose(-1, -2) @ b)\n"
            "    return torch.matmul(u, v.transpose(-1, -2))\n",
            (3,),
        ),
        Invalid(
            "import torch\ndef f(m):\n    u, _, vh = torch.linalg.svd(m)\n    d = torch.det(u @ vh).sign()\n"
            "    return u @ torch.diag(d) @ vh\n",
            (3,),
        ),
        Invalid(
            "import torch\ndef f(c):\n    e, v = torch.linalg.eigh(c)\n    return v @ torch.diag(e.rsqrt()) @ v.T\n",
            (3,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for vectors in _decompositions(file):
            if surroundings(file, vectors.call) is not Surroundings.DIFFERENTIATED:
                continue
            value = file.values.value(vectors.operand)
            if value.gradient is Gradient.NO or value.is_number or guarded(file, vectors.call, vectors.operand):
                continue
            function = file.enclosing_function(vectors.call)
            product = _product(file, function, vectors) if function is not None else None
            if product is None:
                continue
            yield Hit(
                node=vectors.call,
                message=(
                    f"Where `{shown(file, vectors.operand)}` has two equal singular values or eigenvalues (the "
                    "identity, collinear points), the vectors are not unique and their gradient is NaN."
                ),
                hypothesis={
                    "operand": normalised_source(vectors.operand, file.text),
                    "singular_set": "repeated singular values",
                    "operation": "decomposition",
                    "symbol": file.symbol(vectors.call),
                    "line": vectors.operand.lineno,
                },
                related=((product, "the vectors are put together here, and differentiated"),),
            )


def _decompositions(file: FileContext) -> Iterator[_Vectors]:
    for call in file.calls("svd", "eigh", "symeig"):
        operation = file.values.operation(call)
        statement = file.parent(call)
        if operation is None or operation.operand is None or not isinstance(statement, ast.Assign):
            continue
        target = statement.targets[0]
        names = [getattr(item, "id", "_") for item in target.elts] if isinstance(target, ast.Tuple) else []
        if operation.name == "svd" and len(names) == 3:
            yield _Vectors(call, operation.operand, (names[0], names[2]))
        elif operation.name != "svd" and len(names) == 2:
            yield _Vectors(call, operation.operand, (names[1], names[1]))


def _product(file: FileContext, function: FunctionNode, vectors: _Vectors) -> ast.expr | None:
    """A matrix product of the function in which both matrices of vectors occur, other than to look at its sign."""
    for node in (*file.nodes_in(function, ast.BinOp), *file.nodes_in(function, ast.Call)):
        if node.lineno <= vectors.call.lineno:
            continue
        if isinstance(node, ast.BinOp):
            is_product = isinstance(node.op, ast.MatMult)
        else:
            operation = file.values.operation(node) if isinstance(node, ast.Call) else None
            is_product = operation is not None and operation.name in ("matmul", "bmm", "mm", "einsum")
        if is_product and _names_both(node, vectors.names) and not _is_determinant(file, node):
            return node
    return None


def _names_both(node: ast.expr, names: tuple[str, str]) -> bool:
    found = [inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)]
    first, second = names
    return found.count(first) >= 2 if first == second else first in found and second in found


def _is_determinant(file: FileContext, node: ast.expr) -> bool:
    """Whether a product is only taken to see its determinant, whose sign carries no gradient."""
    outer = file.parent(node)
    return isinstance(outer, ast.Call) and getattr(outer.func, "attr", getattr(outer.func, "id", "")) == "det"
