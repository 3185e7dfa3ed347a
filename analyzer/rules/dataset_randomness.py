"""Random numbers of a dataset that come out the same in every worker, or for every sample.

This module must not know how a loader is built elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from analyzer.context import FileContext
from analyzer.findings import Confidence, Severity
from analyzer.objects import self_assignments
from analyzer.rules.base import Documentation, Hit, Invalid, Rule
from analyzer.syntax import FunctionNode, terminal_name

_HEAD = "import random\nimport numpy as np\nimport torch\nfrom torch.utils.data import Dataset, IterableDataset\n\n\n"
_INIT = "class Noisy(Dataset):\n    def __init__(self, data, seed=0):\n        self.data = data\n"
_ITEM = "\n    def __getitem__(self, i):\n"
_GENERATORS = frozenset(
    {
        *("numpy.random.default_rng", "numpy.random.RandomState", "numpy.random.Generator", "random.Random"),
        "torch.Generator",
    }
)
_SEEDS = frozenset({"numpy.random.seed", "random.seed", "torch.manual_seed", "torch.random.manual_seed"})
_DATASETS = frozenset({"Dataset", "IterableDataset", "MapDataset"})


class DatasetRandomness(Rule):
    """A generator made once for all workers, or a constant seed in `__getitem__`."""

    id = "GP716"
    name = "dataset-randomness"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ()
    triggers = ("__getitem__", "__iter__")
    documentation = Documentation(
        what_it_does=(
            "Finds datasets that make a random generator in `__init__` and draw from it in `__getitem__` or "
            "`__iter__`, and a constant seed that is set in `__getitem__`."
        ),
        why_is_this_bad=(
            "Each worker of a `DataLoader` gets a copy of the dataset with the generator in the same state, so all "
            "workers draw the same augmentations, and with workers that are started anew the same ones in every "
            "epoch. torch seeds `random`, `numpy.random` and its own generator for each worker, but knows nothing of "
            "a generator of yours. A constant seed in `__getitem__` makes every sample draw the same numbers, and "
            "resets the generator for everybody else."
        ),
        faulty_example=_HEAD
        + _INIT
        + "        self.rng = np.random.default_rng(seed)\n"
        + _ITEM
        + "        return self.data[i] + self.rng.normal()\n",
        right_example=_HEAD + _INIT + _ITEM + "        return self.data[i] + np.random.normal()\n",
        fix_safety="No automatic fix: seed the generator with `torch.initial_seed()` in a `worker_init_fn`.",
    )
    valid = (
        documentation.right_example,
        # used only while the dataset is made
        _HEAD
        + _INIT
        + "        rng = np.random.default_rng(seed)\n        self.order = rng.permutation(len(data))\n"
        + _ITEM
        + "        return self.data[self.order[i]]\n",
        _HEAD
        + _INIT
        + "        self.rng = np.random.default_rng(seed)\n        self.order = self.rng.permutation(9)\n"
        + _ITEM
        + "        return self.data[self.order[i]]\n",
        # made anew in each worker
        _HEAD + _INIT + "        self.rng = None\n" + _ITEM + "        if self.rng is None:\n"
        "            self.rng = np.random.default_rng(torch.initial_seed())\n"
        "        return self.data[i] + self.rng.normal()\n",
        # the worker is asked for
        _HEAD
        + _INIT
        + "        self.rng = np.random.default_rng(seed)\n"
        + _ITEM
        + "        info = torch.utils.data.get_worker_info()\n"
        "        return self.data[i] + self.rng.normal() + info.id\n",
        # a seed of its own for every sample
        _HEAD + _INIT + _ITEM + "        rng = np.random.default_rng(i)\n        return self.data[i] + rng.normal()\n",
        _HEAD + _INIT + _ITEM + "        random.seed(i)\n        return self.data[i] + random.random()\n",
        # no dataset
        _HEAD
        + "class Table:\n    def __init__(self):\n        self.rng = np.random.default_rng(0)\n"
        + _ITEM
        + "        return self.rng.normal()\n",
    )
    invalid = (
        Invalid(documentation.faulty_example, (10,)),
        Invalid(
            _HEAD
            + _INIT
            + "        self.random = random.Random(0)\n"
            + _ITEM
            + "        return self.augment(self.data[i])\n\n    def augment(self, x):\n"
            "        return x * self.random.uniform(0, 1)\n",
            (10,),
        ),
        Invalid(
            _HEAD
            + _INIT
            + "        self.g = torch.Generator().manual_seed(seed)\n"
            + _ITEM
            + "        return self.data[i] + torch.randn(3, generator=self.g)\n",
            (10,),
        ),
        Invalid(
            _HEAD + _INIT + _ITEM + "        np.random.seed(0)\n        return self.data[i] + np.random.normal()\n",
            (12,),
        ),
        Invalid(
            _HEAD + "class Stream(IterableDataset):\n    def __init__(self):\n"
            "        self.rng = np.random.RandomState(1)\n\n    def __iter__(self):\n        while True:\n"
            "            yield self.rng.rand(3)\n",
            (9,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        for node in file.nodes(ast.ClassDef):
            if not any(terminal_name(base) in _DATASETS for base in node.bases):
                continue
            methods = [item for item in node.body if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef))]
            reads = [method for method in methods if method.name in ("__getitem__", "__iter__", "__getitems__")]
            if reads and "get_worker_info" not in file.source(node) and "worker_init" not in file.source(node):
                yield from _shared_generators(file, node, methods)
                yield from _constant_seeds(file, reads)


def _shared_generators(file: FileContext, node: ast.ClassDef, methods: list[FunctionNode]) -> Iterator[Hit]:
    init = next((method for method in methods if method.name == "__init__"), None)
    for name, values in self_assignments(file, node).items():
        value = values[0]
        if init is None or len(values) != 1 or value is None or init not in file.ancestors(value):
            continue
        if not _is_generator(file, value):
            continue
        use = next((read for read in file.nodes_in(node, ast.Attribute) if _is_read(file, read, name, init)), None)
        if use is not None:
            yield Hit(
                value,
                f"Every worker of a DataLoader gets a copy of `self.{name}` in the same state, so all of them draw the "
                f"same numbers. Make it in each worker, from `torch.initial_seed()`.",
                related=((use, "drawn from here, in every worker"),),
            )


def _is_generator(file: FileContext, value: ast.expr) -> bool:
    """Whether an expression makes a random generator, also one that is seeded at once."""
    if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute) and value.func.attr == "manual_seed":
        value = value.func.value
    return isinstance(value, ast.Call) and file.qualified_name(value.func) in _GENERATORS


def _is_read(file: FileContext, read: ast.Attribute, name: str, init: FunctionNode) -> bool:
    is_self = isinstance(read.value, ast.Name) and read.value.id == "self"
    return read.attr == name and is_self and isinstance(read.ctx, ast.Load) and init not in file.ancestors(read)


def _constant_seeds(file: FileContext, reads: list[FunctionNode]) -> Iterator[Hit]:
    for method in reads:
        if method.name == "__iter__":
            continue  # one seed for one pass is a choice
        for call in file.nodes_in(method, ast.Call):
            if file.qualified_name(call.func) in _SEEDS and call.args and _is_constant(call.args[0]):
                yield Hit(
                    call,
                    "This sets the same seed for every sample, so all samples draw the same numbers, and so does "
                    "everything that runs after them in the process. Seed once, or with the index.",
                )


def _is_constant(seed: ast.expr) -> bool:
    if isinstance(seed, ast.Constant):
        return True
    return isinstance(seed, ast.Attribute) and isinstance(seed.value, ast.Name) and seed.value.id == "self"
