"""Makes an example small enough to be run, by changing its text: sizes, devices, loops, downloads.

Sizes are divided by one number, everywhere alike, so that what must divide still divides (image and patch, width and
heads) and equal sizes stay equal. `strength` says by how much; 0 leaves sizes as they are. An example that no longer
runs is run again with less: windows and strides are written into models, so that sizes of the inputs are the first
that are given up, and widths shrink without them.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import Any, Final

# Strengths in the order to try, and whether sizes of the inputs shrink as well.
STEPS: Final = ((16, True), (4, True), (16, False), (2, False), (0, False))
WITHOUT_DEPTHS: Final = 4  # from this strength down, layers stay as many as they are: lists of their indices go by it
SMALLEST: Final = 16  # sizes below stay: they are counts (heads, layers, channels of an image)
LARGEST: Final = 2**31
ITERATIONS: Final = 2
FEW: Final = 8  # repetitions up to which a loop is run whole: it builds layers, it doesn't train
DEPTHS: Final = frozenset(
    {"depth", "depths", "num_layers", "n_layers", "layers", "num_blocks", "n_blocks", "num_hidden_layers", "epochs"}
)
PRETRAINED: Final = frozenset({"pretrained", "download", "verbose", "use_flash", "flash"})
KEPT_CALLS: Final = frozenset({"manual_seed", "seed", "manual_seed_all", "sleep"})
FEW_NAME: Final = "_gradproof_few"
MORE_NAME: Final = "_gradproof_more"


def sizes_of(*trees: ast.AST) -> set[int]:
    """The integers that look like sizes."""
    return {
        node.value
        for tree in trees
        for node in _constants(tree)
        if type(node.value) is int and SMALLEST <= node.value < LARGEST
    }


def input_sizes_of(*trees: ast.AST) -> set[int]:
    """Those of them that tensors are made with: `torch.randn(1, 3, 224, 224)`."""
    calls = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call))
    return sizes_of(*(argument for call in calls if _is_from_torch(call.func) for argument in call.args))


def _is_from_torch(function: ast.AST) -> bool:
    return isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name) and function.value.id == "torch"


def _constants(tree: ast.AST) -> Iterator[Any]:
    if isinstance(tree, ast.Call) and _last_name(tree.func) in KEPT_CALLS:
        return
    if isinstance(tree, ast.Constant):
        yield tree
    for child in ast.iter_child_nodes(tree):
        yield from _constants(child)


def size_map(sizes: set[int], strength: int, *, kept: Collection[int] = ()) -> dict[int, int]:
    """Every size divided by the same power of two; the least becomes 2 or more, different ones stay different.

    Those that are `kept` stay as they are.
    """
    sizes = sizes.difference(kept)
    if not sizes or strength <= 1:
        return {}
    divisor = 1
    while divisor * 2 <= strength and min(sizes) // (divisor * 2) >= 2:
        divisor *= 2
    taken: set[int] = set(kept)
    found: dict[int, int] = {}
    # Those that divide evenly first: the others (1000 classes) have nothing to go with, and make way.
    for size in sorted(sizes, key=lambda n: (n % divisor != 0, n)):
        small = max(2, size // divisor)
        while small in taken:
            small += 1
        taken.add(small)
        found[size] = small
    return found


def has_fewer_layers(strength: int) -> bool:
    return strength > WITHOUT_DEPTHS


def shrink(source: str, mapping: dict[int, int], *, strength: int) -> ast.Module:
    """The code, smaller; positions stay. Raises what parsing raises."""
    tree = ast.parse(source)
    changed = _Shrinker(mapping, depths=has_fewer_layers(strength)).visit(tree)
    return ast.fix_missing_locations(changed)


def few(values: Any) -> Iterator[Any]:
    """What a loop of an example goes over: all of it if it is short, else its first two."""
    try:
        whole = len(values) <= FEW
    except Exception:
        whole = False
    for number, value in enumerate(values):
        if not whole and number >= ITERATIONS:
            return
        yield value


class More:
    """Ends `while` loops after their second round."""

    def __init__(self) -> None:
        self._rounds: dict[int, int] = {}

    def __call__(self, loop: int) -> bool:
        self._rounds[loop] = self._rounds.get(loop, 0) + 1
        return self._rounds[loop] <= ITERATIONS


class _Shrinker(ast.NodeTransformer):
    def __init__(self, mapping: dict[int, int], *, depths: bool) -> None:
        self._mapping = mapping
        self._depths = depths
        self._loops = 0

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        value = node.value
        if type(value) is int and value in self._mapping:
            return ast.copy_location(ast.Constant(self._mapping[value]), node)
        if isinstance(value, str) and (value in ("cuda", "gpu", "mps") or value.startswith("cuda:")):
            return ast.copy_location(ast.Constant("cpu"), node)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        name = _last_name(node.func)
        if name in KEPT_CALLS:
            return node
        if name == "cuda" and isinstance(node.func, ast.Attribute) and _last_name(node.func.value) != "torch":
            return self.visit(node.func.value)
        return self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        value = node.value
        if isinstance(value, ast.Constant):
            if node.arg in PRETRAINED and value.value is True:
                node.value = ast.copy_location(ast.Constant(False), value)  # noqa: FBT003
                return node
            if isinstance(value.value, str) and node.arg and ("weights" in node.arg or "pretrained" in node.arg):
                node.value = ast.copy_location(ast.Constant(None), value)  # `weights="imagenet"` is a download too
                return node
            if node.arg == "num_workers":
                node.value = ast.copy_location(ast.Constant(0), value)
                return node
            if self._depths and node.arg in DEPTHS and type(value.value) is int and value.value > ITERATIONS:
                node.value = ast.copy_location(ast.Constant(ITERATIONS), value)
                return node
        return self.generic_visit(node)

    def visit_For(self, node: ast.For) -> ast.AST:
        self.generic_visit(node)
        node.iter = ast.copy_location(ast.Call(ast.Name(FEW_NAME, ast.Load()), [node.iter], []), node.iter)
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        self.generic_visit(node)
        self._loops += 1
        more = ast.Call(ast.Name(MORE_NAME, ast.Load()), [ast.Constant(self._loops)], [])
        node.test = ast.copy_location(ast.BoolOp(ast.And(), [node.test, more]), node.test)
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        """What is asserted is computed, but may be wrong: numbers of a smaller example differ."""
        self.generic_visit(node)
        return ast.copy_location(ast.Expr(node.test), node)


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
