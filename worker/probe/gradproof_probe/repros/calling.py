"""The part of a script that builds target and inputs, and makes the call in question.

`target()`, `inputs()`, `forward(call, args)`, `incoming(outputs)` and `special()`: only what the situation needs is
written, with the functions of `pieces` and of the engine's `making`. Seeds are those of the harness and of the engine.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gradproof_probe.gradients.situations import ORDINARY, Situation
from gradproof_probe.repros.case import Case, comma, indented, literal

REPEATS: Final = 4  # calls before the one that is looked at
# Sequences that show what a Function keeps from other calls.
STATE: Final = ("interleaved", "after_another", "after_update", "repeated")
FLAGS: Final = {
    "deterministic": ("torch.use_deterministic_algorithms(True)", "torch.use_deterministic_algorithms(False)"),
    "anomaly": ("torch.autograd.set_detect_anomaly(True, check_nan=False)", "torch.autograd.set_detect_anomaly(False)"),
    "default_float32": ("torch.set_default_dtype(torch.float32)", "torch.set_default_dtype(torch.float64)"),
    "float32_precision_high": (
        'torch.set_float32_matmul_precision("high")',
        'torch.set_float32_matmul_precision("highest")',
    ),
}


def target_text(case: Case) -> str:
    """`target()`: what is called; `whole()` before it, if that is a Function inside the harness's target."""
    target = case.target
    if case.inside is not None:
        module, name = case.inside
        found = f"importlib.import_module({module!r})"
        reached = "".join(f", {part!r}" for part in name.split("."))
        return f"""\
{_whole(case, "whole", "promoted")}

def function():
    found = {found}
    for name in ({reached.removeprefix(", ")},):
        found = getattr(found, name)
    return found


def target():
    return function().apply
"""
    if target.kind == "autograd_function":
        return f"def target():\n    return eval({target.qualname + '.apply'!r}, names())\n"
    return _whole(case, "target", "own")


def _whole(case: Case, name: str, made_by: str) -> str:
    """A function or a module as the harness built it, with its keyword arguments."""
    target = case.target
    if target.kind == "function":
        what, made = "The function", f"eval({target.qualname!r}, names())"
    else:
        constructor = case.recipe.constructor or f"{target.qualname}()"
        what, made = "The module, made anew", f"eval({constructor!r}, names()).to(torch.{case.base})"
    return f'''\
def {name}():
    """{what}, with the keyword arguments that the harness gave it."""
    reseed(SEED + 1)
    _, kwargs = eval({_arguments(case)!r}, names())
    kwargs = {{name: {made_by}(value, torch.{case.base}) for name, value in kwargs.items()}}
    reseed(SEED)
    made = {made}
    return lambda *args: made(*args, **kwargs)
'''


def _arguments(case: Case) -> str:
    # A comment at the end of the last expression must not swallow the bracket.
    return f"arguments({', '.join(case.recipe.inputs)}\n)"


def inputs_text(case: Case) -> str:
    """`inputs()`: the arguments in the situation's values, sizes, dtype and memory."""
    situation = case.situation
    evaluated = f"args, _ = eval({_arguments(case)!r}, names())"
    lines = ["reseed(SEED + 1)", evaluated]
    if case.single:
        # The harness draws in float64, whatever the target can run in.
        lines = ["torch.set_default_dtype(torch.float64)", *lines, "torch.set_default_dtype(torch.float32)"]
    if case.inside is not None:
        lines += ["call = whole()", "reseed(SEED)"]
        lines.append(f"args = recorded(function(), lambda: call(*handed(promoted(args, torch.{case.base}))))")
    if case.marked:
        lines.append("marked = [isinstance(arg, torch.Tensor) and arg.requires_grad for arg in args]")
    lines.append(f"args = [own(arg, torch.{case.base}) for arg in args]")
    lines += [f"args[{index}] = {literal(value)}" for index, value in situation.arguments]
    if situation.values.kind != "ordinary":
        lines.append("given = list(args)")
    lines += _of_every_tensor(case)
    if case.marked:
        lines += [
            "if any(marked):",
            "    args = [Constant(arg) if is_variable(arg) and not m else arg for arg, m in zip(args, marked)]",
        ]
    lines += _of_every_variable(case)
    if situation.alias:
        lines.append("args = shared(args)")
    words = replace(
        situation, cotangent=ORDINARY.cotangent, wanted=None, autocast="", sequence="once", flags=()
    ).describe()
    made = "that the harness made" if case.inside is None else f"that {case.inside[1]} is given in the target"
    head = ["def inputs():", f'    """The arguments {made}{comma(words)}."""']
    return "\n".join([*head, *indented([*lines, "return args"])]) + "\n"


def _of_every_tensor(case: Case) -> list[str]:
    changed = case.changed
    first, changes = [], []
    if "resize" in changed:
        changes.append(f"arg = resized(arg, {changed['resize']!r}, SEED + position)")
    if "broadcast" in changed:
        counted = "is_variable(arg) and (marked[p] or not any(marked))" if case.marked else "is_variable(arg)"
        first += [
            f"positions = [p for p, arg in enumerate(args) if {counted}]",
            f"shaped = {{positions[n]: what for n, what in {changed['broadcast']!r} if n < len(positions)}}",
            "largest = max((args[p] for p in positions), key=torch.numel)",
        ]
        changes += ["if position in shaped:", "    arg = broadcastable(shaped[position], arg, largest)"]
    if "others" in changed:
        changes += ["if not is_variable(arg):", f"    arg = other_entries({changed['others']!r}, arg)"]
    if "rank" in changed:
        first.append("highest = max(arg.dim() for arg in args if isinstance(arg, torch.Tensor))")
        tests = {"highest": "arg.dim() == highest", "all": "True", "first": "position == 0"}
        test = tests[changed.get("rank_of", "highest")]
        changes += [f"if {test}:", f"    arg = changed_rank(arg, {changed['rank']})"]
    if not changes:
        return []
    return [
        *first,
        "for position, arg in enumerate(args):",
        "    if isinstance(arg, torch.Tensor) and arg.layout == torch.strided:",
        *indented([*changes, "args[position] = arg"], 8),
    ]


def _of_every_variable(case: Case) -> list[str]:
    situation = case.situation
    values = situation.values
    changes = []
    if values.kind != "ordinary":
        made = f"arg = within_domain({values_text(values.kind, values.number)}, given[position])"
        changes += [made] if values.only is None else [f"if number == {values.only}:", f"    {made}"]
    if case.narrow and situation.dtype != "float64":
        made = f"arg = own(arg, torch.{situation.dtype})"
        only = case.changed.get("dtype_of")
        changes += [made] if only is None else [f"if number == {only}:", f"    {made}"]
    elif situation.dtype != "float64":
        changes.append("arg = arg if arg.is_complex() else made_complex(arg)")
    if situation.input_layout != "contiguous":
        changes.append(f"arg = {situation.input_layout}(arg.contiguous())")
    if not changes:
        return []
    last = "arg.contiguous()" if situation.input_layout == "contiguous" else "arg"
    return [
        "positions = [position for position, arg in enumerate(args) if is_variable(arg)]",
        "for number, position in enumerate(positions):",
        *indented(["arg = args[position]", *changes, f"args[position] = {last}"]),
    ]


def values_text(kind: str, number: float) -> str:
    """An expression for what `make_values` makes of `arg`; where it is one operation, that."""
    written = literal(number)
    short = {
        "scaled": f"arg * {written}",
        "around": f"around({written}, arg)",
    }
    return short.get(kind, f"make_values({kind!r}, {written}, arg)")


def cotangent_text(kind: str, number: float) -> str:
    """An expression for what `make_cotangent` makes for output `o` with number `i`; where it is simple, that."""
    drawn = "random_normal(o, SEED + 11 * i + 7)"
    short = {
        "random": drawn,
        "scaled": f"{drawn} * {literal(number)}",
        "ones": "torch.ones(o.shape, dtype=o.dtype)",
        "zeros": "torch.zeros(o.shape, dtype=o.dtype)",
        "around": f"around({literal(number)}, o)",
    }
    return short.get(kind, f"make_cotangent({kind!r}, {literal(number)}, o.detach(), SEED + 11 * i + 7)")


def incoming_text(case: Case) -> str:
    cotangent = case.situation.cotangent
    made = cotangent_text(cotangent.kind, cotangent.number)
    if cotangent.layout != "contiguous":
        made = f"{cotangent.layout}({made})"
    if cotangent.outputs is not None:
        made = f"{made} if i in {cotangent.outputs!r} else None"
    constant = """\
class Constant:
    \"\"\"A floating argument that no gradient is asked for.\"\"\"

    def __init__(self, tensor):
        self.tensor = tensor


"""
    args = "*[arg.tensor if isinstance(arg, Constant) else arg for arg in args]" if case.marked else "*args"
    return f'''\
{constant if case.marked else ""}def forward(call, args):
    reseed(SEED)
    return tensors(call({args}))


def incoming(outputs):
    """The gradient that is pulled back, for each output."""
    return [{made} for i, o in enumerate(outputs)]
'''


def special_text(case: Case, *, watched: bool = False) -> str:
    """`special()`: gradients and what was pulled back; `watched`: also what backward may not write to."""
    situation = case.situation
    sequence = situation.sequence
    wanted = "" if situation.wanted is None else f", wanted={situation.wanted!r}"
    others = "other_values(made)" if sequence in ("interleaved", "after_another") else "made"
    again = f"leaves({others}{wanted})"
    body = ["call = target()", f"args = leaves(made{wanted})", *_before(situation, again)]
    body.append(f"given = {_handed(situation)}")
    if sequence == "interleaved":
        body.append(f"forward(call, {again})  # other inputs")
    body += _under_autocast(["outputs = forward(call, given)"], enabled=situation.autocast != "")
    body += [*_between(case, again), "vs = incoming(outputs)", *(_WATCHING if watched else [])]
    body += _under_autocast(_backward(sequence, watched=watched), enabled=situation.autocast == "throughout")
    body.append("return found, watched, outputs, args" if watched else "return found, vs")
    if situation.flags:
        body = ["try:", *indented(body), "finally:", *indented([FLAGS[name][1] for name in situation.flags])]
    body = ["made = inputs()", *[FLAGS[name][0] for name in situation.flags], *body]
    head = ["def special():", f'    """The call in question{comma(situation.describe())}."""']
    return "\n".join([*head, *indented(body)]) + "\n"


def _handed(situation: Situation) -> str:
    # The clone of an expanded tensor has memory of its own, and state may hang on the very tensors.
    if situation.input_layout == "expanded" or situation.sequence in STATE:
        return "args"
    return "handed(args)" if situation.input_layout == "contiguous" else f"handed(args, {situation.input_layout})"


def _before(situation: Situation, again: str) -> list[str]:
    sequence = situation.sequence
    if sequence == "inference_first":
        return ["with torch.no_grad():", "    forward(call, handed(leaves(made, wanted=())))"]
    if sequence == "after_update":
        return _updated(situation)
    if sequence not in ("after_another", "repeated"):
        return []
    lines = [
        f"earlier = {again}",
        "outputs = forward(call, earlier)",
        f"vs = [{cotangent_text('random', 0.0)} for i, o in enumerate(outputs)]",
        "gradients(outputs, earlier, vs)",
    ]
    return lines if sequence == "after_another" else [f"for _ in range({REPEATS}):", *indented(lines)]


def _updated(situation: Situation) -> list[str]:
    """The same leaves held other values in a call before, as under an optimiser."""
    others = "[arg.clone() if is_variable(arg) else arg for arg in other_values(made)]"
    wanted = "" if situation.wanted is None else f", wanted={situation.wanted!r}"
    return [
        f"args = leaves({f'shared({others})' if situation.alias else others}{wanted})",
        "outputs = forward(call, args)",
        f"gradients(outputs, args, [{cotangent_text('random', 0.0)} for i, o in enumerate(outputs)])",
        "with torch.no_grad():",
        "    for arg, value in zip(variables(args), variables(made)):",
        "        arg.copy_(value)",
    ]


def _between(case: Case, again: str) -> list[str]:
    sequence, written = case.situation.sequence, case.changed.get("written")
    if sequence == "interleaved":
        # Two more are under way, and the last of them goes back first.
        return [
            f"forward(call, {again.replace('other_values(made)', 'other_values(other_values(made))')})",
            f"last = {again}",
            "results = forward(call, last)",
            f"gradients(results, last, [{cotangent_text('random', 0.0)} for i, o in enumerate(results)])",
        ]
    if sequence == "input_written" and written is not None:
        return [
            f"t = given[{written}]",
            "with torch.no_grad():",
            "    t.mul_(0.5).add_(1) if is_variable(t) else t.copy_(t.flip(tuple(range(t.dim()))))",
        ]
    if sequence in ("output_written", "input_written"):
        what = "outputs" if sequence == "output_written" else "variables(given)"
        lines = [f"    for t in {what}:", "        if t.requires_grad:", "            t.mul_(0.5).add_(1)"]
        return ["with torch.no_grad():", *lines]
    if sequence == "used_twice":
        return ["outputs = [a + b for a, b in zip(outputs, forward(call, given))]"]
    return []


def _backward(sequence: str, *, watched: bool) -> list[str]:
    lines = []
    if sequence == "second_backward":
        lines += [
            "firsts = [random_normal(o, SEED + 99) for o in outputs]",
            "gradients(outputs, args, firsts, retain_graph=True)  # the first of two over this graph",
        ]
    lines.append("reseed(SEED + 1)  # elsewhere than in forward" if sequence == "other_seed" else "reseed(SEED)")
    option = ", create_graph=True" if sequence == "create_graph" else ", retain_graph=True" if watched else ""
    pull = f"gradients(outputs, args, vs{option})"
    return [*lines, f"found = in_another_thread(lambda: {pull})" if sequence == "other_thread" else f"found = {pull}"]


def _under_autocast(lines: list[str], *, enabled: bool) -> list[str]:
    if not enabled:
        return lines
    return ['with torch.autocast("cpu", dtype=torch.bfloat16):', *indented(lines)]


_WATCHING: Final = [
    'watched = [("incoming gradient", v, v.clone()) for v in vs if v is not None]',
    'watched += [("input", t, t.detach().clone()) for t in variables(given)]',
    'watched += [("output", t, t.detach().clone()) for t in outputs]',
]
