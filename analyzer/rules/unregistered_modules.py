"""Layers and tensors that a module uses and does not know: kept in plain lists, dictionaries and attributes."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import partial

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.forward_code import forward_code
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.module_examples import in_module
from analyzer.syntax import FunctionNode, is_self, terminal_name

_HEAD = "import torch\nimport torch.nn as nn\n\n\n"
_in_module = partial(in_module, _HEAD)


_FIRST = 8
_RUN = "for layer in self.layers:\n    x = layer(x)\nreturn x"
_WEIGHTED = re.compile(
    r"^(Linear|Bilinear|LazyLinear|Conv|LazyConv|Embedding|RNN|LSTM|GRU|Multihead|Transformer|BatchNorm|LayerNorm|"
    r"GroupNorm|InstanceNorm|RMSNorm|SyncBatchNorm|PReLU)"
)
_LEARNED = frozenset(
    {"torch.randn", "torch.rand", "torch.zeros", "torch.ones", "torch.empty", "torch.full", "torch.tensor"}
)


class UnregisteredModules(Rule):
    """A plain list or dictionary of layers, or a plain tensor that requires a gradient, as an attribute of a module."""

    id = "GP205"
    name = "unregistered-parameters"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    settled_by = ("finding_search", "state_dict")
    torch_versions = "2.13"
    fix = FixSafety.UNSAFE
    triggers = ("Module",)
    documentation = Documentation(
        what_it_does=(
            "Finds lists, tuples and dictionaries of layers with weights (or of `nn.Parameter`s) that are assigned to "
            "an attribute of a module, and tensors made with `requires_grad=True` there. Lists that also go into an "
            "`nn.ModuleList`, `nn.Sequential` or `add_module`, lists of activations and other functions, and lists of "
            "modules that were passed in (a common way to hide a teacher) are left alone."
        ),
        why_is_this_bad=(
            "A module registers what is assigned to it directly, and does not look into lists. The optimizer never "
            "sees these weights, `.to()` does not move them, `state_dict()` does not save them, and nothing is raised "
            "(measured: no parameters, an empty state)."
        ),
        faulty_example=_in_module("self.layers = [nn.Linear(4, 4), nn.Linear(4, 4)]", _RUN),
        right_example=_in_module("self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])", _RUN),
        fix_safety="Unsafe: the list is wrapped in `nn.ModuleList` (or `ModuleDict`, …); states get new entries.",
    )
    valid = (
        _in_module("self.layers = nn.ModuleList([nn.Linear(4, 4)])", _RUN),
        _in_module("self.layers = [nn.ReLU(), nn.Tanh()]", _RUN),
        _in_module("layers = [nn.Linear(4, 4)]\nself.body = nn.Sequential(*layers)", "return self.body(x)"),
        _in_module("self.layers = [nn.Linear(4, 4)]\nself.body = nn.Sequential(*self.layers)", _RUN),
        _in_module(
            "self.layers = [nn.Linear(4, 4)]\nfor i, m in enumerate(self.layers):\n    self.add_module(str(i), m)", _RUN
        ),
        _in_module("layers = [nn.Linear(4, 4)]\nself.kept = nn.ModuleList(layers)\nself.layers = layers", _RUN),
        _in_module("self.names = ['a', 'b']\nself.a = nn.Linear(4, 4)", "return self.a(x)"),
        _HEAD + "class Net(nn.Module):\n    def __init__(self, teacher):\n        super().__init__()\n"
        "        self.hidden = [teacher]\n\n    def forward(self, x):\n        return self.hidden[0](x)\n",
        _HEAD + "class Pipeline:\n    def __init__(self):\n        self.layers = [nn.Linear(4, 4)]\n",
        _in_module("self.shift = torch.zeros(4)", "return x + self.shift"),
    )
    invalid = (
        Invalid(_in_module("self.layers = [nn.Linear(4, 4), nn.ReLU()]", _RUN), (_FIRST,)),
        Invalid(_in_module("self.layers = [nn.Linear(4, 4) for _ in range(3)]", _RUN), (_FIRST,)),
        Invalid(
            _in_module(
                "layers = []\nfor _ in range(3):\n    layers.append(nn.Linear(4, 4))\nself.layers = layers", _RUN
            ),
            (_FIRST + 3,),
        ),
        Invalid(
            _in_module("self.layers = []\nfor _ in range(3):\n    self.layers.append(nn.Linear(4, 4))", _RUN), (_FIRST,)
        ),
        Invalid(_in_module("self.heads = {'a': nn.Linear(4, 4)}", "return self.heads['a'](x)"), (_FIRST,)),
        Invalid(_in_module("self.scales = [nn.Parameter(torch.ones(4))]", "return x * self.scales[0]"), (_FIRST,)),
        Invalid(_in_module("self.scale = torch.ones(4, requires_grad=True)", "return x * self.scale"), (_FIRST,)),
        Invalid(
            _HEAD
            + "class Part(nn.Module):\n    pass\n\n\n"
            + _in_module("self.layers = [Part() for _ in range(3)]", _RUN).removeprefix(_HEAD),
            (_FIRST + 4,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every attribute of a module that holds weights that it does not register."""
        code = forward_code(file)
        own = frozenset(module.name for module in code.modules)
        for owner in code.modules:
            init = next((s for s in owner.body if isinstance(s, ast.FunctionDef) and s.name == "__init__"), None)
            if init is None:
                continue
            for assignment in file.nodes_in(init, ast.Assign):
                target = assignment.targets[0]
                if isinstance(target, ast.Attribute) and is_self(target.value) and len(assignment.targets) == 1:
                    yield from self._judged(file, init, assignment, target, own)

    def _judged(
        self, file: FileContext, init: FunctionNode, assignment: ast.Assign, target: ast.Attribute, own: frozenset[str]
    ) -> Iterator[Hit]:
        owner, value, attribute = file.enclosing_class(init), assignment.value, target.attr
        if _is_learned_tensor(file, value):
            wrapper, what = "torch.nn.Parameter", "a plain tensor"
        else:
            kind = _kind_of(file, init, value, attribute, own)
            if kind is None or owner is None or _registered(file, owner, value, attribute):
                return
            wrapper, what = kind
        code = forward_code(file)
        methods = code.reached(owner).values() if owner is not None else ()
        if not any(code.own_uses(method, attribute) for method in methods):
            return
        short = wrapper.removeprefix("torch.")
        yield Hit(
            assignment,
            f"`self.{attribute}` is {what}: the module does not know its weights, so the optimizer, `.to()` and "
            f"`state_dict()` miss them. Use `{short}`.",
            hypothesis={"attribute": attribute, "symbol": file.symbol(assignment), "line": assignment.lineno},
            fix=_wrapped(file, value, wrapper),
        )


def _wrapped(file: FileContext, value: ast.expr, wrapper: str) -> Rewrite | None:
    spelled = file.spelling(wrapper)
    if spelled is None or (isinstance(value, ast.Dict) and not all(map(_is_text, value.keys))):
        return None
    source = file.source(value)
    if isinstance(value, (ast.Tuple, ast.GeneratorExp)) and not source.startswith("("):
        source = f"({source})"
    return Rewrite(FixSafety.UNSAFE, (Replacement(value, f"{spelled}({source})"),))


def _is_text(key: ast.expr | None) -> bool:
    return isinstance(key, ast.Constant) and isinstance(key.value, str)


def _is_learned_tensor(file: FileContext, value: ast.expr) -> bool:
    if not isinstance(value, ast.Call):
        return False
    if isinstance(value.func, ast.Attribute) and value.func.attr == "requires_grad_" and not value.args:
        inner = value.func.value
        return isinstance(inner, ast.Call) and file.qualified_name(inner.func) in _LEARNED
    if file.qualified_name(value.func) not in _LEARNED:
        return False
    return any(
        k.arg == "requires_grad" and isinstance(k.value, ast.Constant) and k.value.value is True for k in value.keywords
    )


def _kind_of(
    file: FileContext, init: FunctionNode, value: ast.expr, attribute: str, own: frozenset[str]
) -> tuple[str, str] | None:
    """(what to wrap it in, what it is), for a container of layers or parameters that are built here."""
    wrapper, what = "torch.nn.ModuleList", "a plain list of layers"
    elements = list(_elements(value))
    if isinstance(value, (ast.Dict, ast.DictComp)):
        wrapper, what = "torch.nn.ModuleDict", "a plain dictionary of layers"
    elif isinstance(value, ast.Name):
        definition = file.values.single_definition(value)
        if definition is None or not isinstance(definition, (ast.List, ast.ListComp)):
            return None
        elements = [*_elements(definition), *_appended(file, init, value.id)]
    elif isinstance(value, ast.List) and not value.elts:
        elements = list(_appended(file, init, f"self.{attribute}"))
    elif not isinstance(value, (ast.List, ast.ListComp, ast.Tuple)):
        return None
    if any(_is_parameter(file, element) for element in elements):
        return wrapper.replace("Module", "Parameter"), what.replace("layers", "parameters")
    return (wrapper, what) if any(_has_weights(file, element, own) for element in elements) else None


def _elements(value: ast.expr) -> Iterator[ast.expr]:
    if isinstance(value, (ast.List, ast.Tuple)):
        yield from value.elts
    elif isinstance(value, ast.ListComp):
        yield value.elt
    elif isinstance(value, ast.Dict):
        yield from value.values
    elif isinstance(value, ast.DictComp):
        yield value.value


def _appended(file: FileContext, init: FunctionNode, name: str) -> Iterator[ast.expr]:
    for call in file.nodes_in(init, ast.Call):
        function = call.func
        adds = isinstance(function, ast.Attribute) and function.attr in {"append", "insert"} and call.args
        if adds and isinstance(function, ast.Attribute) and ast.unparse(function.value) == name:
            yield call.args[-1]
    for augmented in file.nodes_in(init, ast.AugAssign):
        if ast.unparse(augmented.target) == name:
            yield from _elements(augmented.value)


def _has_weights(file: FileContext, element: ast.expr, own: frozenset[str]) -> bool:
    """Whether an element builds a layer with weights: of torch, or a module of this file."""
    if isinstance(element, ast.Name):
        element = file.values.single_definition(element) or element
    if not isinstance(element, ast.Call):
        return False
    qualified = file.qualified_name(element.func)
    if qualified == "torch.nn.Sequential":
        return any(_has_weights(file, argument, own) for argument in element.args)
    if qualified is not None:
        return qualified.startswith("torch.nn.") and bool(_WEIGHTED.match(qualified.rpartition(".")[2]))
    return isinstance(element.func, ast.Name) and element.func.id in own


def _is_parameter(file: FileContext, element: ast.expr) -> bool:
    return isinstance(element, ast.Call) and (file.qualified_name(element.func) or "").endswith("nn.Parameter")


def _registered(file: FileContext, owner: ast.ClassDef, value: ast.expr, attribute: str) -> bool:
    """Whether the same list is registered in another way somewhere in the class."""
    names = {f"self.{attribute}"}
    if isinstance(value, ast.Name):
        names.add(value.id)
    source = file.source(owner)
    if re.search(r"\b(add_module|register_module|register_parameter|setattr|_modules|__setattr__)\b", source):
        return True
    for call in file.nodes_in(owner, ast.Call):
        if terminal_name(call.func) in {
            "ModuleList",
            "ModuleDict",
            "Sequential",
            "ParameterList",
            "ParameterDict",
            "extend",
        }:
            for argument in call.args:
                inner = argument.value if isinstance(argument, ast.Starred) else argument
                if any(isinstance(n, (ast.Name, ast.Attribute)) and ast.unparse(n) in names for n in ast.walk(inner)):
                    return True
    return False


# --- freezing --------------------------------------------------------------------------------------------------------

_TYPOS = frozenset({"require_grad", "requires_grads", "require_grads", "requires_gradient", "require_gradient"})
_LAYER_NAMES = re.compile(
    r"^(model|net|network|backbone|encoder|decoder|classifier|head|fc|features|feature_extractor|generator|"
    r"discriminator|teacher|student|body|trunk|stem|layer\d*|conv\d*|bn\d*|norm\d*|block\d*|encoder_?\w*|resnet\w*|"
    r"vgg\w*|"
    r"bert|unet|vae|clip|text_encoder|vision_model|text_model|embeddings)$"
)
_MODULE_METHODS = frozenset({"parameters", "named_parameters", "modules", "children", "train", "eval", "state_dict"})
_ITERATING = frozenset({"children", "modules", "named_children", "named_modules"})


class FlagOnModule(Rule):
    """`module.requires_grad = False`, which sets an attribute that nobody reads."""

    id = "GP206"
    name = "requires-grad-on-module"
    severity = Severity.ERROR
    confidence = Confidence.HIGH
    settled_by = ("finding_search",)
    torch_versions = "2.13"
    fix = FixSafety.UNSAFE
    triggers = tuple(sorted({"requires_grad", *_TYPOS}))
    documentation = Documentation(
        what_it_does=(
            "Finds `requires_grad = …` assigned to a module (a layer of the class, something built from `torch.nn` or "
            "`torchvision.models`, the items of `model.children()`), and misspelled flags such as `require_grad`. "
            "Parameters and tensors, `requires_grad_()` and loops over `parameters()` are left alone."
        ),
        why_is_this_bad=(
            "A module has no such flag: Python adds an attribute that nothing reads, and the parameters keep training "
            "(measured: all of them still require a gradient)."
        ),
        faulty_example=f"{_HEAD}def freeze(net):\n    for m in net.children():\n        m.requires_grad = False\n",
        right_example=f"{_HEAD}def freeze(net):\n    for m in net.children():\n        m.requires_grad_(False)\n",
        fix_safety="Unsafe: it becomes `requires_grad_(False)`, and from then on the weights really are frozen.",
    )
    valid = (
        f"{_HEAD}def freeze(net):\n    for p in net.parameters():\n        p.requires_grad = False\n",
        f"{_HEAD}def freeze(net):\n    net.weight.requires_grad = False\n    net.requires_grad_(False)\n",
        f"{_HEAD}def leaf(x):\n    x = torch.ones(3)\n    x.requires_grad = True\n    return x\n",
        _in_module("self.up = nn.Linear(4, 4)\nself.up.weight.requires_grad = False", "return self.up(x)"),
        _in_module("self.gain = nn.Parameter(torch.ones(4))\nself.gain.requires_grad = False", "return x * self.gain"),
        f"{_HEAD}def freeze(embedding):\n    embedding.requires_grad = False\n",
        f"{_HEAD}class Plan:\n    def __init__(self):\n        self.requires_grad = False\n",
        f"{_HEAD}class Net(nn.Module):\n    def __init__(self, table):\n        super().__init__()\n"
        "        self.table = table\n        self.table.requires_grad = False\n\n"
        "    def forward(self, i):\n        return self.table[i]\n",
    )
    invalid = (
        Invalid(
            f"{_HEAD}def freeze():\n    net = nn.Linear(4, 4)\n    net.requires_grad = False\n    return net\n", (7,)
        ),
        Invalid(
            _in_module("self.up = nn.Linear(4, 4)\nself.up.requires_grad = False", "return self.up(x)"), (_FIRST + 1,)
        ),
        Invalid(
            f"{_HEAD}def freeze(net):\n    for child in net.children():\n        child.requires_grad = False\n", (7,)
        ),
        Invalid(f"{_HEAD}def freeze(model):\n    model.requires_grad = False\n    return model.eval()\n", (6,)),
        Invalid(f"{_HEAD}def freeze(model):\n    model.encoder.requires_grad = False\n    return model.eval()\n", (6,)),
        Invalid(f"{_HEAD}def freeze(net):\n    for p in net.parameters():\n        p.require_grad = False\n", (7,)),
        Invalid(f"{_HEAD}def adapt(base, x):\n    base.requires_grad = False\n    return base(x)\n", (6,)),
        Invalid(
            f"{_HEAD}class Net(nn.Module):\n    def __init__(self, trunk):\n        super().__init__()\n"
            "        self.trunk = trunk\n        self.trunk.requires_grad = False\n\n"
            "    def forward(self, x):\n        return self.trunk(x)\n",
            (9,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every flag that is set on a module, or misspelled."""
        for assignment in file.nodes(ast.Assign):
            target = assignment.targets[0]
            if not isinstance(target, ast.Attribute) or target.attr not in {"requires_grad", *_TYPOS}:
                continue
            misspelled = target.attr in _TYPOS
            if not misspelled and not _is_module(file, target.value):
                continue
            shown = ast.unparse(target.value)
            message = (
                f"`{target.attr}` is no flag of anything: it is spelled `requires_grad`, and `{shown}` keeps training."
                if misspelled
                else f"`{shown}` is a module, and has no flag `requires_grad`: its parameters keep training. Call "
                f"`{shown}.requires_grad_(…)`."
            )
            yield Hit(
                assignment,
                message,
                severity=Severity.NOTE if _is_never_run(file, target.value) else None,
                hypothesis={"operand": shown, "symbol": file.symbol(assignment), "line": assignment.lineno},
                fix=self._fix(file, assignment, target, misspelled=misspelled),
            )

    def _fix(
        self, file: FileContext, assignment: ast.Assign, target: ast.Attribute, *, misspelled: bool
    ) -> Rewrite | None:
        if len(assignment.targets) != 1:
            return None
        owner, value = file.source(target.value), file.source(assignment.value)
        if misspelled:
            return Rewrite(FixSafety.UNSAFE, (Replacement(target, f"{owner}.requires_grad"),))
        return Rewrite(FixSafety.UNSAFE, (Replacement(assignment, f"{owner}.requires_grad_({value})"),))


def _is_never_run(file: FileContext, expression: ast.expr) -> bool:
    """Whether no method but the one around it uses `self.part`, in a class with a forward: it trains nothing anyway."""
    owner, function = file.enclosing_class(expression), file.enclosing_function(expression)
    if owner is None or not (isinstance(expression, ast.Attribute) and is_self(expression.value)):
        return False
    if not any(isinstance(method, ast.FunctionDef) and method.name == "forward" for method in owner.body):
        return False
    uses = [node for node in file.nodes_in(owner, ast.Attribute) if node.attr == expression.attr]
    return all(file.enclosing_function(use) is function for use in uses)


def _is_module(file: FileContext, expression: ast.expr) -> bool:
    """Whether something is a module for certain: built here, handed out by a module, or used like one."""
    if isinstance(expression, ast.Attribute) and is_self(expression.value):
        return _is_own_module(file, expression)
    if isinstance(expression, ast.Attribute) and isinstance(expression.value, ast.Name):
        return bool(_LAYER_NAMES.match(expression.attr)) and _is_module(file, expression.value)
    return isinstance(expression, ast.Name) and _is_named_module(file, expression)


def _is_own_module(file: FileContext, attribute: ast.Attribute) -> bool:
    owner = forward_code(file).module_of(attribute)
    known = forward_code(file).attributes(owner).get(attribute.attr) if owner is not None else None
    if known is None:
        return owner is not None and _is_called(file, owner, attribute)
    return known.content.value in {"layer", "chain", "module"}


def _is_named_module(file: FileContext, name: ast.Name) -> bool:
    for binding in file.values.definitions(name):
        if isinstance(binding.statement, (ast.For, ast.AsyncFor)):
            iterated = binding.statement.iter
            return isinstance(iterated, ast.Call) and terminal_name(iterated.func) in _ITERATING
        if isinstance(binding.value, ast.Call):
            return _builds_module(file, binding.value)
    function = file.enclosing_function(name)
    if function is not None and _is_called(file, function, name):
        return True
    return bool(_LAYER_NAMES.match(name.id)) and _used_like_a_module(file, name)


def _is_called(file: FileContext, scope: ast.AST, expression: ast.Name | ast.Attribute) -> bool:
    """Whether something is called like a function: no tensor and no parameter can be."""
    wanted = ast.unparse(expression)
    calls = file.calls(expression.id if isinstance(expression, ast.Name) else expression.attr)
    return any(
        isinstance(call.func, type(expression)) and scope in file.ancestors(call) and ast.unparse(call.func) == wanted
        for call in calls
    )


def _builds_module(file: FileContext, call: ast.Call) -> bool:
    qualified = file.qualified_name(call.func) or ""
    short = qualified.rpartition(".")[2]
    if qualified.startswith("torchvision.models."):
        return True
    return qualified.startswith("torch.nn.") and short[:1].isupper() and short not in {"Parameter", "Buffer"}


def _used_like_a_module(file: FileContext, name: ast.Name) -> bool:
    function = file.enclosing_function(name)
    return any(
        file.enclosing_function(call) is function
        and isinstance(call.func, ast.Attribute)
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == name.id
        for call in file.calls(*_MODULE_METHODS)
    )
