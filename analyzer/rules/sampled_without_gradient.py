"""Samples that a network goes on computing with, drawn in a way that keeps no gradient."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from analyzer.context import FileContext
from analyzer.findings import Confidence, FixSafety, Severity
from analyzer.forward_code import forward_code
from analyzer.rules.base import Documentation, Hit, Invalid, Replacement, Rewrite, Rule
from analyzer.rules.explanations import shown
from analyzer.syntax import FunctionNode, is_self
from analyzer.values.domain import Kind
from analyzer.values.surroundings import Surroundings, surroundings

_HEAD = "import torch\nimport torch.nn as nn\nfrom torch.distributions import Categorical, Normal\n\n\n"
_REPARAMETERISED = frozenset(
    {
        *("Normal", "LogNormal", "Laplace", "MultivariateNormal", "LowRankMultivariateNormal", "Gumbel", "Cauchy"),
        *("StudentT", "Uniform", "Beta", "Gamma", "Dirichlet", "Exponential", "RelaxedBernoulli"),
        *("RelaxedOneHotCategorical", "LogisticNormal", "HalfNormal", "Weibull"),
    }
)
_WITHOUT_TRAINING = re.compile(r"sample|generate|infer|predict|act$|action|eval|explore|rollout|imagine|visuali[sz]e")
_REPARAMETERISES = re.compile(r"repar", re.IGNORECASE)


def _in_module(body: str) -> str:
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    return (
        f"{_HEAD}class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.mu = nn.Linear(4, 2)\n        self.sigma = nn.Linear(4, 2)\n"
        "        self.dec = nn.Linear(2, 4)\n\n"
        f"    def forward(self, x):\n{lines}"
    )


_FIRST = 14
_MADE = "q = Normal(self.mu(x), self.sigma(x).exp())\n"


class SampledWithoutGradient(Rule):
    """`sample()` of a distribution that a network predicts, where `rsample()` would carry the gradient."""

    id = "GP210"
    name = "sample-without-gradient"
    severity = Severity.WARNING
    confidence = Confidence.MEDIUM
    settled_by = ("finding_search",)
    torch_versions = "2.13"
    fix = FixSafety.SAFE
    triggers = (".sample(",)
    documentation = Documentation(
        what_it_does=(
            "Finds `q.sample()` in the forward code of a module, where `q` is a distribution with `rsample()` that was "
            "built from computed tensors, and the sample goes straight into a layer of the same module. Policies "
            "(which use `log_prob`), classes that use `rsample()` elsewhere, functions that generate or act, "
            "and code under `no_grad` are left alone."
        ),
        why_is_this_bad=(
            "`sample()` runs under `no_grad`: the layers that predict the distribution get no gradient through the "
            "sample. Nothing is raised as long as another term, such as a divergence, reaches them."
        ),
        faulty_example=_in_module(f"{_MADE}z = q.sample()\nreturn self.dec(z)"),
        right_example=_in_module(f"{_MADE}z = q.rsample()\nreturn self.dec(z)"),
        fix_safety="Safe: `rsample()` draws the same values from the same random state, and keeps the gradient.",
    )
    valid = (
        _in_module(f"{_MADE}z = q.rsample()\nreturn self.dec(z)"),
        _in_module(f"{_MADE}z = q.sample()\nreturn self.dec(z), q.log_prob(z)"),
        _in_module(f"{_MADE}z = q.rsample() if self.training else q.sample()\nreturn self.dec(z)"),
        _in_module(f"{_MADE}with torch.no_grad():\n    z = q.sample()\nreturn self.dec(z)"),
        _in_module("q = Normal(0.0, 1.0)\nz = q.sample(x.shape)\nreturn self.dec(z)"),
        _in_module("q = Normal(torch.zeros(2), torch.ones(2))\nz = q.sample()\nreturn self.dec(z)"),
        _in_module("q = Categorical(logits=self.mu(x))\nz = q.sample()\nreturn self.dec(z)"),
        _in_module(f"{_MADE}z = q.sample()\nreturn z"),
        _in_module(_MADE + "return self.dec(x)").replace(
            "return self.dec(x)", "z = q.sample()\n        return x + z.shape[0]"
        ),
        _in_module(f"{_MADE}z = q.sample()\nreturn self.dec(z)").replace("def forward", "def generate"),
    )
    invalid = (
        Invalid(_in_module(f"{_MADE}z = q.sample()\nreturn self.dec(z)"), (_FIRST + 1,)),
        Invalid(
            _in_module("z = Normal(self.mu(x), self.sigma(x).exp()).sample()\nreturn self.dec(z)"),
            (_FIRST,),
        ),
        Invalid(_in_module(f"{_MADE}return self.dec(q.sample())"), (_FIRST + 1,)),
        Invalid(
            _in_module(f"{_MADE}z = q.sample()\nreturn self.dec(torch.cat((z, x), dim=-1))"),
            (_FIRST + 1,),
        ),
        Invalid(
            _HEAD + "class Net(nn.Module):\n    def reparameterise(self, mu, log_var):\n"
            "        sigma = torch.exp(0.5 * log_var)\n        return Normal(mu, sigma).sample()\n",
            (9,),
        ),
    )

    def check(self, file: FileContext) -> Iterable[Hit]:
        """Every sample of a predicted distribution that a layer is given."""
        for call in file.calls("sample"):
            function, owner = file.enclosing_function(call), file.enclosing_class(call)
            if function is None or owner is None or not isinstance(call.func, ast.Attribute):
                continue
            made = _distribution(file, call.func.value)
            if made is None or file.grad_disabled(call) or _WITHOUT_TRAINING.search(function.name.lower()):
                continue
            source = file.source(owner)
            if "log_prob" in source or "rsample" in source or surroundings(file, call) is Surroundings.ASIDE:
                continue
            if not self._is_missed(file, function, call):
                continue
            yield Hit(
                call,
                f"`{shown(file, call)}` is drawn without a gradient: what predicts `{shown(file, made)}` learns "
                "nothing through it. `rsample()` draws the same values and keeps the gradient.",
                hypothesis={"operand": shown(file, made), "symbol": file.symbol(call), "line": call.lineno},
                related=((made, "the distribution is predicted here"),),
                fix=Rewrite(FixSafety.SAFE, (Replacement(call.func, f"{file.source(call.func.value)}.rsample"),)),
            )

    def _is_missed(self, file: FileContext, function: FunctionNode, call: ast.Call) -> bool:
        """Whether a layer of the module is given the sample, or the function says that it reparameterises."""
        if _REPARAMETERISES.search(function.name):
            return True
        if forward_code(file).module_of(function) is None:
            return False
        return any(
            isinstance(layer.func, ast.Attribute)
            and is_self(layer.func.value)
            and any(_contains_sample(file, argument, call) for argument in layer.args)
            for layer in file.nodes_in(function, ast.Call)
        )


def _contains_sample(file: FileContext, argument: ast.expr, call: ast.Call) -> bool:
    """Whether an argument is the sample, or made of it by one call."""
    for node in ast.walk(argument):
        if node is call:
            return True
        if isinstance(node, ast.Name) and file.values.single_definition(node) is call:
            parent = file.parent(node)
            return not isinstance(parent, ast.Attribute) or parent.attr not in {"shape", "detach"}
    return False


def _distribution(file: FileContext, expression: ast.expr) -> ast.Call | None:
    """The construction of a distribution from computed tensors."""
    made = file.values.single_definition(expression) if isinstance(expression, ast.Name) else expression
    if not isinstance(made, ast.Call):
        return None
    qualified = file.qualified_name(made.func) or ""
    if not qualified.startswith("torch.distributions.") or qualified.rpartition(".")[2] not in _REPARAMETERISED:
        return None
    given = [*made.args, *(keyword.value for keyword in made.keywords)]
    return made if any(_is_computed(file, argument) for argument in given) else None


def _is_computed(file: FileContext, argument: ast.expr) -> bool:
    """Whether an argument may have a gradient: no number, no constant tensor."""
    value = file.values.value(argument)
    if value.kind in (Kind.NUMBER, Kind.OTHER) or value.constant is not None:
        return False
    names = {node.attr for node in ast.walk(argument) if isinstance(node, ast.Attribute)}
    return not isinstance(argument, ast.Constant) and "detach" not in names and not names & {"zeros", "ones"}
