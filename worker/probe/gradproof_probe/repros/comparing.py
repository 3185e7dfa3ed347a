"""The part of a script that makes the reference, compares, and prints the two numbers: `main()`.

The reference needs no trust in Gradproof. Where only the circumstance should not matter (memory layout, who requires
grad, switches) it is the same call in the ordinary circumstance, for a low precision the run in float64, otherwise
central differences of the forward; for second order, of the first-order gradient.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gradproof_probe.gradients.situations import ORDINARY
from gradproof_probe.repros.case import CIRCUMSTANCES, Case, comma

# What two gradients of one variable may differ by, as a share of its largest entry: rounding, not a fault.
ROUNDING: Final = {"float64": 1e-7, "float32": 3e-3, "float16": 2e-2, "bfloat16": 1e-1}
# Steps of the differences, as shares of the input's size, and what they may be off by beyond ten times their own error
# estimate. Large steps for what rounds inside, small ones near corners; in float32 small ones see rounding alone.
STEPS: Final = ("(1e-1, 1e-2, 1e-3, 1e-4, 1e-5)", "1e-9")
# A gradient that was rounded to float32 is off by 1e-8, along a random direction by less.
ROUNDED: Final = "1e-11"
SINGLE_STEPS: Final = ("(1e-1, 3e-2, 1e-2)", "1e-2")


def plain_text(case: Case) -> str:
    """`plain(vs)`: the same numbers in the ordinary circumstance."""
    situation = case.situation
    words = replace(
        situation,
        **{name: getattr(ORDINARY, name) for name in ("dtype", "autocast", "cotangent", "sequence", *CIRCUMSTANCES)},
    ).describe()
    dtype = "float64" if case.narrow else case.base
    as_made = not case.narrow and situation.input_layout == "contiguous"
    args = "inputs()" if as_made else f"[own(arg, torch.{dtype}) for arg in inputs()]"
    where = "in float64, contiguous, once" if case.narrow else "contiguous, once"
    twice = "2 * " if situation.sequence == "used_twice" else ""
    return f'''\
def plain(vs):
    """The same numbers{comma(words)}, but {where}, and every input requires grad."""
    call = target()
    args = leaves({args})
    outputs = forward(call, handed(args))
    pairs = zip(outputs, vs or incoming(outputs))
    vs = [None if v is None else {twice}v.to(o.dtype).contiguous() for o, v in pairs]
    reseed(SEED)
    return gradients(outputs, args, vs)
'''


def main_of_same_call(case: Case) -> str:
    situation = case.situation
    share = ROUNDING["bfloat16" if situation.autocast else situation.dtype if case.narrow else case.base]
    failed = f"share > {share:g}"
    if case.narrow and case.gap is not None:
        # The difference that was found was beyond rounding; a quarter of it tells it from rounding at any size.
        failed = f"not abs(got - expected) <= {0.25 * case.gap:.3g}"
    chosen = ""
    if situation.wanted is not None:
        chosen = f"\n    truth = [e if number in {situation.wanted!r} else None for number, e in enumerate(truth)]"
    return f"""\
def main():
    try:
        found, vs = special()
    except Exception as error:{_noticed(case, 8)}
        plain(None)
        report({case.say("backward")}, "no error", repr(error), failed=True)
    truth = plain(vs){chosen}
    share, number, index, expected, got = farthest(truth, found)
    what = f"the gradient for input {{number}} at {{index}}"
    report(what + {comma(situation.describe())!r}, expected, got, failed={failed})
"""


def main_of_differences(case: Case) -> str:
    """One coordinate, or, where none is known, all along one random direction."""
    situation = case.situation
    steps, tolerance = SINGLE_STEPS if case.single else STEPS
    if case.cause == "rounded" and not case.single:
        tolerance = ROUNDED
    both = ""
    if case.place is None:
        moved, got, size = _along(case)
        what = "the gradient along one random direction of all inputs"
    else:
        ordinal, index = case.place
        what = f"the gradient for input {ordinal} at {index}"
        moved = f"variables(args)[{ordinal}][{index}] += step"
        got = f"got = 0.0 if found[{ordinal}] is None else found[{ordinal}][{index}].item()"
        size = f"root_mean_square(variables(inputs())[{ordinal}])"
        both = f"""
    if isinstance(got, complex):
        imaginary, more = derivative(lambda h: change(h * 1j), {size}, {steps}, rounding)
        expected, error = complex(expected, imaginary), error + more"""
    args = (
        "inputs()" if situation.input_layout == "contiguous" else f"[own(arg, torch.{case.base}) for arg in inputs()]"
    )
    special = "found, vs = special()"
    if _noticed(case, 8):
        special = f"try:\n        {special}\n    except RuntimeError as error:{_noticed(case, 8)}\n        raise"
    return f'''\
def outputs_at(step):
    """The outputs with {"all inputs" if case.place is None else "one coordinate"} moved."""
    args = {args}
    with torch.no_grad():
        {moved}
    return forward(target(), handed(leaves(args)))


def main():
    {special}
    {got}

    def change(h):
        return {"2 * " if situation.sequence == "used_twice" else ""}weighted_change(vs, outputs_at(h), outputs_at(-h))

    rounding = rounding_of(vs, outputs_at(0.0))
    expected, error = derivative(change, {size}, {steps}, rounding){both}
    print("central differences of the forward are good to", error)
    report({case.say(what)}, expected, got,
           failed=not abs(got - expected) <= 10 * error + {tolerance} * abs(expected))
'''


def _along(case: Case) -> tuple[str, str, str]:
    """Statements: move all inputs, what autograd says of it; and the size of the inputs."""
    wanted = case.situation.wanted
    of = "distinct({0})" if wanted is None else f"[number for number in distinct({{0}}) if number in {wanted!r}]"
    moved = f"""for number in {of.format("args")}:
            variables(args)[number].add_(step * random_normal(variables(args)[number], number))"""
    got = f"""pairs = [(found[number], number) for number in {of.format("inputs()")} if found[number] is not None]
    got = sum(float((g.conj() * random_normal(g, number)).sum().real) for g, number in pairs)"""
    return moved, got, "root_mean_square(variables(inputs())[0])"


def _noticed(case: Case, by: int) -> str:
    """A backward that raises because what it needs was written to is right."""
    if case.situation.sequence not in ("output_written", "input_written"):
        return ""
    lines = (
        'if "modified by an inplace operation" in str(error):',
        '    report("backward after the write", "the right gradient or an error", "an error", failed=False)',
    )
    return "".join(f"\n{' ' * by}{line}" for line in lines)


def main_of_second_order(case: Case) -> str:
    """First-order gradients are functions of the inputs and of the incoming gradients: both are moved."""
    wanted = "" if case.situation.wanted is None else f", wanted={case.situation.wanted!r}"
    steps, tolerance = SINGLE_STEPS if case.single else (STEPS[0], "1e-8")
    if case.place is None:
        what = "the second-order gradient along one random direction of all inputs and incoming gradients"
        moved = """for number, moved in enumerate([*variables(args), *vs]):
            moved.add_(step * random_normal(moved, number))"""
        got = "sum(float((g.conj() * random_normal(g, n)).sum().real) for n, g in enumerate(second) if g is not None)"
        size = "root_mean_square(moved[0])"
    else:
        ordinal, index = case.place
        of_incoming = case.worst is not None and case.worst.get("kind") in ("cotangent", "grad_output")
        what = f"the second-order gradient for {'incoming gradient' if of_incoming else 'input'} {ordinal} at {index}"
        moved = f"{'vs' if of_incoming else 'variables(args)'}[{ordinal}][{index}] += step"
        number = f"{ordinal} - len(found)" if of_incoming else f"{ordinal}"
        got = f"0.0 if second[{number}] is None else second[{number}][{index}].item()"
        size = f"root_mean_square(moved[{number}])"
    return f'''\
def first_order(step=0.0):
    """The first-order gradients at moved inputs and incoming gradients, and what they are functions of."""
    call = target()
    args = inputs()
    with torch.no_grad():
        vs = incoming(forward(call, handed(args)))
        {moved}
    args = leaves(args{wanted})
    vs = [v.requires_grad_() for v in vs]
    return gradients(forward(call, handed(args)), args, vs, create_graph=True), [*variables(args), *vs]


def main():
    found, moved = first_order()
    ws = [None if g is None else random_normal(g, SEED + 11 * i + 307) for i, g in enumerate(found)]
    products = [(w.conj() * g).sum().real for w, g in zip(ws, found) if g is not None and g.requires_grad]
    second = [None for _ in moved]  # None: autograd says that the first-order gradients don't depend on it
    try:
        if products:
            sum(products).backward(retain_graph=True)  # raises where backward says that it can't be differentiated
            second = torch.autograd.grad(sum(products), moved, allow_unused=True)
    except RuntimeError as error:
        if "once_differentiable" not in str(error):
            raise
        report("differentiating the backward", "the right gradient or an error", "an error", failed=False)
    got = {got}

    def change(h):
        return weighted_change(ws, first_order(h)[0], first_order(-h)[0])

    expected, error = derivative(change, {size}, {steps}, rounding_of(ws, found))
    print("central differences of the first-order gradient are good to", error)
    report({case.say(what)}, expected, got,
           failed=not abs(got - expected) <= 10 * error + {tolerance} * abs(expected))
'''


def main_of_raising(case: Case) -> str:
    return f"""\
def main():
    try:
        special()
    except Exception as error:
        report({case.say("the call and its backward")}, "no error", repr(error), failed=True)
    report({case.say("the call and its backward")}, "no error", "no error", failed=False)
"""


def main_of_mutated_input(case: Case) -> str:
    return f"""\
def main():
    given = handed(leaves(inputs()))
    before = [arg.detach().clone() for arg in variables(given)]
    forward(target(), given)
    share, number, index, expected, got = farthest(before, variables(given))
    what = f"input {{number}} at {{index}}, before and after forward"
    report(what + {comma(case.situation.describe())!r}, expected, got, failed=share > 0)
"""


def main_of_forward_mode(case: Case) -> str:
    return f'''\
def main():
    """The same number twice: incoming gradient . jvp(direction), and backward(incoming gradient) . direction."""
    from torch.autograd import forward_ad

    found, vs = special()
    args = inputs()
    directions = [root_mean_square(arg) * random_normal(arg, SEED + n) for n, arg in enumerate(variables(args))]
    terms = [(g.conj() * u).real for g, u in zip(found, directions) if g is not None]
    expected = sum(float(term.sum()) for term in terms)
    live = iter([None if g is None else u for g, u in zip(found, directions)])
    what = {case.say("incoming gradient . jvp(direction)")}
    try:
        with forward_ad.dual_level():
            us = [next(live) if is_variable(arg) else None for arg in args]
            given = [arg if u is None else forward_ad.make_dual(arg, u) for arg, u in zip(args, us)]
            tangents = [forward_ad.unpack_dual(output).tangent for output in forward(target(), given)]
    except Exception as error:
        report(what, expected, repr(error), failed=True)
    got = sum(float((v.conj() * t).real.sum()) for v, t in zip(vs, tangents) if v is not None and t is not None)
    report(what, expected, got, failed=not abs(got - expected) <= 1e-7 * sum(float(term.abs().sum()) for term in terms))
'''


def main_of_batched(case: Case) -> str:
    return f'''\
def main():
    """A sum over the outputs and its gradients: for three sets of inputs at once, and for one after another."""
    args = inputs()
    others = variables(other_values(args))
    stacks = [torch.stack([arg, other, 0.5 * other]) for arg, other in zip(variables(args), others)]

    def call(*variables):
        given = iter(variables)
        outputs = forward(target(), [next(given) if is_variable(arg) else arg for arg in args])
        # No random numbers under vmap: a fixed pattern weighs every element differently.
        counts = [torch.arange(o.numel(), dtype=torch.float64).reshape(o.shape) + i for i, o in enumerate(outputs)]
        return sum((torch.cos(count) * o).real.sum() for count, o in zip(counts, outputs))

    def both(made, leaves):
        return [made.detach(), *torch.autograd.grad(made.sum(), leaves, allow_unused=True)]

    leaves = [stack.clone().requires_grad_() for stack in stacks]
    expected = both(torch.stack([call(*(leaf[index] for leaf in leaves)) for index in range(3)]), leaves)
    leaves = [stack.clone().requires_grad_() for stack in stacks]
    got = both(torch.func.vmap(call)(*leaves), leaves)
    share, number, index, expected, got = farthest(expected, got)
    what = f"value at {{index}}" if number == 0 else f"the gradient for input {{number - 1}} at {{index}}"
    report(what + {comma(case.situation.describe())!r} + ", under torch.vmap", expected, got, failed=share > 1e-7)
'''


def main_of_writing(case: Case) -> str:
    return f'''\
def main():
    """What forward and backward were given has to be the same afterwards, and so has a second pass."""
    found, watched, outputs, args = special()
    for name, now, before in watched:
        share, _, index, expected, got = farthest([before], [now])
        if share > 0:
            report(f"{{name}}, at {{index}}, before and after backward", expected, got, failed=True)
    try:
        second = gradients(outputs, args, [before for name, _, before in watched if name == "incoming gradient"])
    except RuntimeError as error:
        written = "modified by an inplace operation" in str(error)
        report("a second backward over the same graph", "no error", repr(error), failed=written)
    share, number, index, expected, got = farthest(found, second)
    what = f"the gradient for input {{number}} at {{index}}, by a first and by a second backward"
    report(what + {comma(case.situation.describe())!r}, expected, got, failed=share > {ROUNDING[case.base]:g})
'''
