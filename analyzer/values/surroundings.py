"""What kind of code a place stands in: does a gradient flow there, and would anybody miss it?

This module must not know rules.
"""

from __future__ import annotations

import ast
import re
from enum import Enum
from functools import lru_cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from analyzer.syntax import FunctionNode, terminal_name
from analyzer.values.domain import Precision

if TYPE_CHECKING:
    from analyzer.context import FileContext


class Surroundings(Enum):
    """DIFFERENTIATED: ordinary model code. UNRECORDED: it runs, but without gradient (`no_grad`, the body of a custom
    Function). ASIDE: metrics, schedulers, optimizers, data preparation, initialisation: numbers to look at.
    """

    DIFFERENTIATED = "differentiated"
    UNRECORDED = "unrecorded"
    ASIDE = "aside"


# Directories and files of real packages that hold no differentiated code (diffusers' schedulers, monai's metrics and
# transforms, transformers' image processors, PyG's transforms): every finding there, of 14 read, was wrong.
_ASIDE_PARTS = re.compile(
    r"(^|_)(schedulers?|metrics?|transforms?|datasets?|dataloaders?|data|optims?|optimizers?|tests?|testing|"
    r"pipelines?|processors?|processing|tokenization|conversion|convert|scripts?|benchmarks?|tools?|eval|evaluation|"
    r"augmentations?|inits?|initiali[sz]ers?|exporters?|ransac|degensac|magsac|solvers?|guiders?|guidance|visuali[sz]ation|logging|quantizers?|generation|preprocessing|callbacks?|handlers?|explain|inferers?)"
    r"($|_)"
)
_ASIDE_CLASSES = re.compile(
    r"(Scheduler|Metrics?|Processor|ProcessorFast|FeatureExtractor|Optimizer|Transform|Dataset|Pipeline|Tokenizer|Sampler|"
    r"Callback|Collator|Augmentation|Evaluator|Tester|Visualizer|Stopping|Logger|Meter|Quantizer|Observer|Explainer)$"
)
_ASIDE_FUNCTIONS = re.compile(
    r"^_*(init|reset|solve_|eval|evaluate|validate|validation|test|preprocess|pre_process|postprocess|post_process|plot|"
    r"visuali[sz]e|convert|compute_metrics?|generate|sample_|predict|decode_|setup|load|save|export|log_(metrics?|images?|stats|step|dict|hyper|to_|results?|params?|scalars?|hist|epoch|train|valid|grad)|"
    r"detect|suppress|nms|samples_needed|extra_repr|calibrate|quantize|get_lr|main|parse|print|summary|trunc_normal|rescale_|initiali[sz]e)|"
    r"(^|_)(anchors?|suppression|candidates?|refine|lm|ransac)(_|$)|_generate_"
)
_ASIDE_BASES = frozenset(
    {"Optimizer", "Dataset", "LRScheduler", "_LRScheduler", "Metric", "BaseTransform", "IterableDataset"}
)


# What these are given comes out without a gradient, or as something to look at.
_ENDS_OF_GRADIENTS = frozenset(
    {
        *("detach", "item", "tolist", "numpy", "argmax", "argmin", "argsort", "long", "int", "bool", "round", "floor"),
        *("ceil", "sign", "float", "print", "bucketize", "searchsorted", "bincount", "histc", "isfinite", "isnan"),
    }
)


def _read_off(file: FileContext, node: ast.AST) -> bool:
    """Whether the result is used only where no gradient goes on: `f(x).detach()`, `int(f(x))`.

    Looks at its own statement, and at all uses of the one variable it may be assigned to there. `x.float()` is a
    conversion that keeps the gradient, `float(x)` is not.
    """
    statement = file.statement(node)
    if _ends_in_expression(file, node):
        return True
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return False
    target, function = statement.targets[0], file.enclosing_function(node)
    if not isinstance(target, ast.Name) or function is None:
        return False
    known = file.once(_read_off_names)
    key = (function, target.id)
    if key not in known:
        uses = file.loads_by_function.get(key, ())
        known[key] = bool(uses) and all(_ends_in_expression(file, use) for use in uses)
    return known[key]


def _read_off_names(file: FileContext) -> dict[tuple[ast.AST, str], bool]:  # noqa: ARG001 - one table a file
    """Whether every use of a name of a function ends the gradient, for the names that somebody asked for."""
    return {}


def _ends_in_expression(file: FileContext, node: ast.AST) -> bool:
    for outer in file.ancestors(node):
        if isinstance(outer, ast.stmt):
            return False
        if isinstance(outer, (ast.Compare, ast.FormattedValue)):
            return True
        if isinstance(outer, ast.Call):
            name = terminal_name(outer.func)
            is_method = isinstance(outer.func, ast.Attribute) and file.qualified_name(outer.func) is None
            if name in _ENDS_OF_GRADIENTS and not (name in ("float", "print") and is_method):
                return True
    return False


def surroundings(file: FileContext, node: ast.AST) -> Surroundings:
    """The kind of code that a node stands in."""
    if file.grad_disabled(node):
        return Surroundings.UNRECORDED
    if _read_off(file, node):
        return Surroundings.UNRECORDED
    if _is_file_aside(file.path) or any(map(_is_definition_aside, file.definitions_around(node))):
        return Surroundings.ASIDE
    return Surroundings.DIFFERENTIATED


@lru_cache(maxsize=64)
def _is_file_aside(path: str) -> bool:
    return any(map(_ASIDE_PARTS.search, PurePosixPath(path).with_suffix("").parts))


def _is_definition_aside(definition: ast.ClassDef | FunctionNode) -> bool:
    if isinstance(definition, ast.ClassDef):
        named_so = _is_name_aside(_ASIDE_CLASSES, definition.name)
        return named_so or any(terminal_name(base) in _ASIDE_BASES for base in definition.bases)
    return _is_name_aside(_ASIDE_FUNCTIONS, definition.name)


@lru_cache(maxsize=4096)
def _is_name_aside(pattern: re.Pattern[str], name: str) -> bool:
    return pattern.search(name) is not None


_AUTOCASTS = frozenset({"torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast", "torch.cpu.amp.autocast"})


def autocast(file: FileContext, node: ast.AST) -> Precision | None:
    """The low precision that products run in at this place; None outside of an autocast region.

    Only what the file itself shows: a `with` statement or a decorator around the node.
    """
    if not file.calls("autocast"):
        return None
    for outer in file.ancestors(node):
        contexts: list[ast.expr] = []
        if isinstance(outer, (ast.With, ast.AsyncWith)):
            contexts = [item.context_expr for item in outer.items]
        elif isinstance(outer, (ast.FunctionDef, ast.AsyncFunctionDef)):
            contexts = outer.decorator_list
        for context in contexts:
            if isinstance(context, ast.Call):
                qualified = file.qualified_name(context.func)
                if qualified in _AUTOCASTS:
                    return _precision_of_autocast(file, context, qualified)
    return None


def _precision_of_autocast(file: FileContext, call: ast.Call, qualified: str) -> Precision | None:
    """float16 on CUDA and bfloat16 on a CPU unless told otherwise (measured); None when it is switched off."""
    keywords = {keyword.arg: keyword.value for keyword in call.keywords}
    enabled = keywords.get("enabled")
    if isinstance(enabled, ast.Constant) and enabled.value is False:
        return None
    if "dtype" in keywords:
        return file.values.precision(keywords["dtype"])
    device = keywords.get("device_type", call.args[0] if call.args else None)
    on_cpu = qualified.startswith("torch.cpu") or (isinstance(device, ast.Constant) and device.value == "cpu")
    return Precision.BFLOAT16 if on_cpu else Precision.HALF
