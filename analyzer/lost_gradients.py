"""Which functions of a file lose a gradient that somebody will miss, and where.

Three kinds of evidence, each of which was right on real code where the cut alone was not: a parameter (or layer) of a
module that reaches the result only through cuts, a loss none of whose arguments reaches its result, and a backward
from a value that has no history. This module must not know rules.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from analyzer.context import FileContext
from analyzer.forward_code import forward_code
from analyzer.gradient_flow import Cut, Ending, GradientFlow, Origin, Result
from analyzer.layers import Content
from analyzer.syntax import FunctionNode, terminal_name
from analyzer.values.domain import Kind
from analyzer.values.surroundings import Surroundings, surroundings


class Evidence(Enum):
    """Why somebody will miss the gradient."""

    NEVER_TRAINED = "never trained"
    LOSS_WITHOUT_GRADIENT = "loss without gradient"
    BACKWARD_WITHOUT_GRADIENT = "backward without gradient"
    COPIED = "copied"


@dataclass(frozen=True, slots=True)
class Lost:
    """The gradient of `cut.source` ends at `cut.node`, on its way out of `function`."""

    cut: Cut
    evidence: Evidence
    function: FunctionNode


_LOSS = re.compile(
    r"loss|penalty|criterion|objective|regulari[sz]|xent|cross_?entropy|info_?nce|(^|_)nll(_|$)|(^|_)bce(_|$)",
    re.IGNORECASE,
)
# Losses that are only looked at.
_ASSESSED = re.compile(r"(^|_)(val|valid|validation|test|compute_metrics|current|running)(_|$)", re.IGNORECASE)
_NO_LOSS = re.compile(r"metric|accuracy|score|eval|lossless|log_|meter|weights?(_|$)", re.IGNORECASE)
# Networks that are not to be trained, by name.
_KEPT_FIXED = re.compile(
    r"target|teacher|ema|momentum|frozen|fixed|pretrain|vgg|lpips|percept|clip|shadow|ref(erence)?_|(^|_)old|prior|"
    r"sampler|tokeni[sz]er|vocab|detector|discriminator|reward|oracle",
    re.IGNORECASE,
)
_CUTTING = (
    *("item", "tolist", "numpy", "float", "int", "round", "bool", "argmax", "argmin", "long", "tensor", "Parameter"),
    *("sign", "floor", "ceil", "detach", "as_tensor", "Tensor", "FloatTensor", "trunc", "heaviside", "one_hot"),
    *("argsort", "topk", "no_grad", "histc", "bincount", "histogram", "bucketize", "searchsorted"),
)
_NUMERICAL = ("exp", "log", "sqrt", "sin", "cos", "tanh", "pow", "log2", "floor", "ceil", "clip", "array")
# Behind a name: `.requires_grad`, `.copy_(`, `.data[0] =`, `.data += …`.
_WRITTEN = r"(\.requires_grad|\.[a-z_]+_\(|(?<=\.data)(\[[^\]]*\])?\s*[-+*/]?=[^=])"
_FREEZES = re.compile(r"requires_grad_\(\s*False|requires_grad\s*=\s*False|freeze|\.eval\(\)")
_WITHOUT_TRAINING = frozenset({"__init__", "extra_repr", "__repr__", "reset_parameters", "_reset_parameters"})


def lost_gradients(file: FileContext) -> tuple[Lost, ...]:
    """Everything that is lost in a file; worked out once for all rules."""
    return file.once(_lost)


def _lost(file: FileContext) -> tuple[Lost, ...]:
    return tuple(_find(file))


def _find(file: FileContext) -> Iterator[Lost]:
    for function in _candidates(file):
        if file.grad_disabled(function.body[0]) or surroundings(file, function.args) is Surroundings.ASIDE:
            continue
        file.check_deadline()
        result = GradientFlow(file, function).result()
        if not result.flow.cut:
            continue
        yield from _copied(file, result)
        if result.backward:
            yield from _backward_without_gradient(result)
        elif _is_forward(file, function):
            found = list(_once_each((*_never_trained(file, result), *_rounded_with_parameter(result))))
            yield from found or _loss_without_gradient(file, result)
        else:
            yield from _loss_without_gradient(file, result)


# --- which functions -------------------------------------------------------------------------------------------------


def _candidates(file: FileContext) -> list[FunctionNode]:
    """Forwards, losses and training steps that cut something, themselves or in a helper that they call."""
    cutting: set[FunctionNode | None] = set()
    for call in file.calls(*_CUTTING):
        function = file.enclosing_function(call)
        name = terminal_name(call.func)
        if isinstance(call.func, ast.Name) or name not in {"float", "bool"}:
            cutting.add(function)
    for call in file.calls(*_NUMERICAL):
        if (file.qualified_name(call.func) or "").startswith(("math.", "numpy.")):
            cutting.add(file.enclosing_function(call))
    if ".data" in file.text:
        cutting |= {
            function for function in file.functions if function.name == "forward" and _reads_data(file, function)
        }
    for call in file.calls("float", "to", "type_as"):
        if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Compare):
            cutting.add(file.enclosing_function(call))
    for call in file.calls("where"):
        if len(call.args) == 3 and isinstance(call.args[0], ast.Compare):
            cutting.add(file.enclosing_function(call))
    cutting |= set(_comparing_parameters(file)) | set(_calling_without_gradients(file))
    chosen = [function for function in file.functions if function in cutting and _is_result(file, function)]
    seen = set(chosen)
    for helper in cutting - seen - {None}:
        for call in file.calls(helper.name if helper is not None else ""):
            function = file.enclosing_function(call)
            if function is not None and function not in seen and _is_result(file, function):
                seen.add(function)
                chosen.append(function)
    return sorted(chosen, key=lambda function: function.lineno)


def _reads_data(file: FileContext, function: FunctionNode) -> bool:
    return re.search(r"\.data\b(?!\[|\.\w+_\(|\s*[-+*/]?=)", file.source(function)) is not None


def _comparing_parameters(file: FileContext) -> Iterator[FunctionNode]:
    if "Parameter" not in file.text:
        return
    for comparison in file.nodes(ast.Compare):
        for side in (comparison.left, *comparison.comparators):
            if isinstance(side, ast.Attribute) and terminal_name(side.value) == "self":
                function = file.enclosing_function(comparison)
                if function is not None:
                    yield function


def _calling_without_gradients(file: FileContext) -> Iterator[FunctionNode]:
    """Functions that call a method of the same file that is decorated with `no_grad`."""
    if "no_grad" not in file.text and "inference_mode" not in file.text:
        return
    for helper in file.functions:
        if helper.decorator_list and file.grad_disabled(helper.body[0]):
            for call in file.calls(helper.name):
                function = file.enclosing_function(call)
                if function is not None:
                    yield function


def _is_forward(file: FileContext, function: FunctionNode) -> bool:
    return function.name == "forward" and forward_code(file).module_of(function) is not None


def _is_result(file: FileContext, function: FunctionNode) -> bool:
    return _is_forward(file, function) or is_loss(file, function) or _starts_backward(file, function)


def is_loss(file: FileContext, function: FunctionNode) -> bool:
    """Whether a function, or the class whose forward it is, calls itself a loss."""
    names = [function.name]
    owner = file.parent(function)
    if isinstance(owner, ast.ClassDef) and function.name in {"forward", "__call__"}:
        names = [owner.name]
    return any(_LOSS.search(name) and not _NO_LOSS.search(name) for name in names)


def _starts_backward(file: FileContext, function: FunctionNode) -> bool:
    return any(file.enclosing_function(call) is function for call in file.calls("backward"))


# --- evidence --------------------------------------------------------------------------------------------------------


def _never_trained(file: FileContext, result: Result) -> Iterator[Lost]:
    """Parameters and layers of a module whose only way out of its forward is cut."""
    code = forward_code(file)
    owner = code.module_of(result.function)
    if owner is None:
        return
    for cuts in _by_source(result.flow.cut).values():
        source = cuts[0].source
        if source in result.flow.live or source.origin in {Origin.ARGUMENT, Origin.CALLED}:
            continue
        attribute = source.name.removeprefix("self.")
        if (
            _KEPT_FIXED.search(attribute)
            or "index" in f"{owner.name}{attribute}".lower()
            or _used_elsewhere(file, owner, result.function, attribute, cuts)
        ):
            continue
        cut = _first(cuts)
        if source.origin is Origin.PARAMETER:
            if _updated_by_hand(file, attribute):
                continue
            yield Lost(cut, Evidence.NEVER_TRAINED, result.function)
        elif _layer_counts(file, owner, result, attribute, cut):
            yield Lost(cut, Evidence.NEVER_TRAINED, result.function)


def _rounded_with_parameter(result: Result) -> Iterator[Lost]:
    """`round(x / self.step) * self.step`: a learned step, behind which nothing of `x` has a gradient."""
    for cut in sorted(result.flow.cut, key=_place):
        is_rounding = isinstance(cut.node, ast.Call) and terminal_name(cut.node.func) in {"round", "floor", "round_"}
        if cut.source.origin is not Origin.ARGUMENT or cut.source in result.flow.live or not is_rounding:
            continue
        together = {other.source for other in result.flow.cut if other.node is cut.node}
        if any(source.origin is Origin.PARAMETER and source in result.flow.live for source in together):
            yield Lost(cut, Evidence.NEVER_TRAINED, result.function)


def _once_each(found: Iterable[Lost]) -> Iterator[Lost]:
    """One for each place: where several gradients end together, the first says enough."""
    seen: set[ast.expr] = set()
    for lost in found:
        if lost.cut.node not in seen:
            seen.add(lost.cut.node)
            yield lost


def _layer_counts(file: FileContext, owner: ast.ClassDef, result: Result, attribute: str, cut: Cut) -> bool:
    """Whether a layer that reaches the result only through a cut was meant to train."""
    known = forward_code(file).attributes(owner).get(attribute)
    # Of ten layers of the packages' own making not one was a fault: matchers, and predictors with a loss of their own.
    if known is None or known.content not in {Content.LAYER, Content.CHAIN}:
        return False
    if known.content is Content.LAYER and not _has_weights(known.name):
        return False
    frozen = cut.ending is Ending.DETACHED and _FREEZES.search(file.source(owner)) is not None
    if frozen or cut.ending is Ending.UNRECORDED or result.flow.discrete:
        return False
    live = [source for source in result.flow.live if source.origin is not Origin.CALLED]
    if cut.ending is Ending.COMPARISON:
        together = {other.source for other in result.flow.cut if other.node is cut.node}
        return len([source for source in together if source.origin is Origin.LAYER]) == 1 and bool(live)
    if not live:
        # Nothing else is trained: it may be a wrapper for inference. Only a value to compute with says otherwise.
        return cut.ending is Ending.DISCRETE and _computed_with(file, cut)
    return True


def _has_weights(layer: str) -> bool:
    return bool(re.search(r"Linear|Conv|Embedding|RNN|LSTM|GRU|Attention|Transformer|Norm|PReLU", layer))


def _computed_with(file: FileContext, cut: Cut) -> bool:
    """Whether an index is turned into a number: `index.float()`."""
    function = file.enclosing_function(cut.node)
    return function is not None and any(
        file.enclosing_function(call) is function and isinstance(call.func, ast.Attribute)
        for call in file.calls("float", "to", "type_as")
    )


def _used_elsewhere(
    file: FileContext, owner: ast.ClassDef, function: FunctionNode, attribute: str, cuts: list[Cut]
) -> bool:
    """Whether other methods (of which nothing is known) use the attribute as well."""
    code = forward_code(file)
    within = {file.enclosing_function(cut.node) for cut in cuts} | {function}
    for method in owner.body:
        if not isinstance(method, ast.FunctionDef) or method in within or method.name in _WITHOUT_TRAINING:
            continue
        if code.own_uses(method, attribute):
            return True
    return False


def _updated_by_hand(file: FileContext, attribute: str) -> bool:
    """Whether a parameter is written, or frozen, somewhere: then it may be a moving average, or fixed."""
    return re.search(rf"\b{re.escape(attribute)}(\.data)?{_WRITTEN}", file.text) is not None


def _loss_without_gradient(file: FileContext, result: Result) -> Iterator[Lost]:
    """A loss none of whose arguments reaches its result with a gradient."""
    if result.flow.live or result.flow.discrete or not is_loss(file, result.function):
        return
    cuts = [
        cut
        for cut in result.flow.cut
        if cut.ending not in {Ending.COMPARISON, Ending.DETACHED} and not _is_block(file, cut.node)
    ]
    if any(cut.ending is Ending.UNRECORDED for cut in cuts) and _ASSESSED.search(result.function.name):
        return
    if cuts:
        yield Lost(_first(cuts), Evidence.LOSS_WITHOUT_GRADIENT, result.function)


def _is_block(file: FileContext, node: ast.expr) -> bool:
    """Whether a gradient ends at a `with torch.no_grad()`."""
    return isinstance(file.parent(node), ast.withitem)


def _backward_without_gradient(result: Result) -> Iterator[Lost]:
    cuts = [cut for cut in result.flow.cut if cut.ending is not Ending.COMPARISON]
    if cuts and not result.flow.live:
        yield Lost(_first(cuts), Evidence.BACKWARD_WITHOUT_GRADIENT, result.function)


def _copied(file: FileContext, result: Result) -> Iterator[Lost]:
    """`torch.tensor(…)` and `nn.Parameter(…)` of something that was computed with a gradient."""
    seen: set[ast.expr] = set()
    for cut in sorted(result.flow.cut, key=_place):
        if cut.ending is not Ending.COPY or cut.node in seen or cut.source.origin is Origin.CALLED:
            continue
        seen.add(cut.node)
        if cut.source.origin is not Origin.ARGUMENT or _is_computed(file, cut.node):
            yield Lost(cut, Evidence.COPIED, result.function)


def _is_computed(file: FileContext, node: ast.expr) -> bool:
    """Whether what is copied is a tensor for certain: the result of an operation, not an argument as it came."""
    if not isinstance(node, ast.Call) or not node.args:
        return False
    given = node.args[0]
    if isinstance(given, ast.Name):
        given = file.values.single_definition(given) or given
    if isinstance(given, (ast.List, ast.Tuple)):
        parts = given.elts
    else:
        parts = [given.elt if isinstance(given, (ast.ListComp, ast.GeneratorExp)) else given]
    return any(file.values.value(part).kind is Kind.TENSOR for part in parts)


def _by_source(cuts: Iterable[Cut]) -> dict[str, list[Cut]]:
    table: dict[str, list[Cut]] = {}
    for cut in sorted(cuts, key=_place):
        table.setdefault(cut.source.name, []).append(cut)
    return table


def _first(cuts: Iterable[Cut]) -> Cut:
    return min(cuts, key=_place)


def _place(cut: Cut) -> tuple[int, int, str]:
    return cut.node.lineno, cut.node.col_offset, cut.source.name
