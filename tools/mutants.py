"""`make mutants`: breaks the conditions of every rule, one at a time, and sees whether its examples notice.

    python -m tools.mutants [--survivors] [RULE…]

A mutant is the rule's own module with one condition turned around: an `if` negated, `and` made `or`, a comparison
reversed, a truth value flipped. It is caught when a VALID example is no longer silent, an INVALID one is no longer
found in its place, or the rule fails. Mutants of a module are tried on the examples of every rule in it.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import sys
import types
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from analyzer import file_analysis
from analyzer.engine import AnalyzerOptions
from analyzer.modules import ModuleLayout
from analyzer.registry import all_rules
from analyzer.rules.base import Rule
from analyzer.rules.engine_notes import EngineNote, UnreadableFileNote

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
_REVERSED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A module of which one condition can be broken; `line` is where, `change` what is done."""

    line: int
    change: str
    _tree: ast.Module
    _place: ast.AST

    def code(self, filename: str) -> types.CodeType:
        """The broken module, compiled; the tree, which all mutants share, is whole again afterwards."""
        name, changed = _broken(self._place)
        whole = getattr(self._place, name)
        setattr(self._place, name, changed)
        try:
            return compile(ast.fix_missing_locations(self._tree), filename, "exec")
        finally:
            setattr(self._place, name, whole)


@dataclass(slots=True)
class Score:
    """How the mutants of one rule fared."""

    caught: int = 0
    survivors: list[str] = field(default_factory=list)


def mutants_of(source: str) -> list[Mutant]:
    """Every mutant of a module, in the order of its lines."""
    tree = ast.parse(source)
    found = [(node, change) for node in ast.walk(tree) if (change := _change(node)) is not None]
    found.sort(key=lambda item: (item[0].lineno, item[0].col_offset))  # type: ignore[attr-defined]
    return [Mutant(node.lineno, change, tree, node) for node, change in found]  # type: ignore[attr-defined]


def _change(node: ast.AST) -> str | None:
    """What can be broken at a node, in words; None when nothing can."""
    if isinstance(node, (ast.If, ast.IfExp)):
        # What a type checker alone reads is never run.
        return None if ast.unparse(node.test) == "TYPE_CHECKING" else "the condition is negated"
    if isinstance(node, ast.BoolOp):
        return "`and` and `or` are exchanged"
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return "the comparison is reversed"
    if isinstance(node, ast.Return) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, bool):
        return "the truth value is flipped"
    return None


def _broken(node: ast.AST) -> tuple[str, object]:
    """The field of a node that a mutant sets, and to what."""
    if isinstance(node, (ast.If, ast.IfExp)):
        return "test", ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
    if isinstance(node, ast.BoolOp):
        return "op", ast.Or() if isinstance(node.op, ast.And) else ast.And()
    if isinstance(node, ast.Compare):
        return "ops", [_REVERSED[type(node.ops[0])]()]
    assert isinstance(node, ast.Return)
    assert isinstance(node.value, ast.Constant)
    return "value", ast.copy_location(ast.Constant(not node.value.value), node.value)


def mutated_rules(mutant: Mutant, module: types.ModuleType) -> dict[str, Rule]:
    """The rules that a mutant module defines, by id."""
    namespace = types.ModuleType(module.__name__)
    namespace.__file__ = module.__file__
    exec(mutant.code(str(module.__file__)), namespace.__dict__)
    return {
        value.id: value()
        for value in vars(namespace).values()
        if inspect.isclass(value) and issubclass(value, Rule) and not inspect.isabstract(value) and hasattr(value, "id")
        and value.__module__ == namespace.__name__
    }  # fmt: skip


def notices(rule: Rule, original: Rule) -> bool:
    """Whether the examples of the original tell the mutant from it: also when nothing can be made of its hits."""
    try:
        return _differs(rule, original)
    except Exception:  # noqa: BLE001  a hit at no node, a fix without text: no user would miss it
        return True


def _differs(rule: Rule, original: Rule) -> bool:
    options = AnalyzerOptions(rules=frozenset({rule.id, UnreadableFileNote.id}))
    alone = file_analysis.Surroundings(ModuleLayout(["package/layers.py"]))

    def lines(source: str | bytes) -> tuple[int, ...]:
        found = file_analysis.analyze_text(source, "package/layers.py", alone, options).findings
        return tuple(finding.region.start_line for finding in found)

    with patch.object(file_analysis, "all_rules", lambda: (rule,)):
        return any(lines(example.source) != example.lines for example in original.invalid) or any(
            lines(source) != () for source in (*original.valid, original.documentation.right_example)
        )


def score(name: str) -> dict[str, Score]:
    """Scores of the rules of one module of `analyzer.rules`."""
    module = sys.modules[name]
    own = {rule.id: rule for rule in all_rules() if type(rule).__module__ == name}
    scores = {identifier: Score() for identifier in own}
    for mutant in mutants_of(inspect.getsource(module)):
        try:
            broken = mutated_rules(mutant, module)
        except Exception:  # noqa: BLE001  a module that can't even be loaded is noticed by everybody
            broken = {}
        where = f"{Path(str(module.__file__)).name}:{mutant.line} {mutant.change}"
        caught = [key for key, rule in own.items() if key not in broken or notices(broken[key], rule)]
        for key in caught:
            scores[key].caught += 1
        if not caught:
            for key in own:
                scores[key].survivors.append(where)
    return scores


def rule_modules() -> list[str]:
    """The modules of all rules, without those of the engine's own notes, which the engine decides about."""
    return sorted({type(rule).__module__ for rule in all_rules() if not isinstance(rule, EngineNote)})


def main(arguments: list[str]) -> int:
    """Break, count and print; 1 when some rule has no mutant that is caught."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rules", nargs="*", help="only the modules of these rules")
    parser.add_argument("--survivors", action="store_true", help="list the mutants that nobody noticed")
    asked = parser.parse_args(arguments)
    wanted = {type(rule).__module__ for rule in all_rules() if rule.id in asked.rules}
    names = [name for name in rule_modules() if not asked.rules or name in wanted]
    with ProcessPoolExecutor() as pool:
        scores = {key: value for part in pool.map(score, names) for key, value in part.items()}
    survivors = {line for value in scores.values() for line in value.survivors}
    for key, value in sorted(scores.items()):
        print(f"{key}: {value.caught} mutants caught")
    print(
        f"{sum(value.caught for value in scores.values())} caught, {len(survivors)} noticed by no rule of their module"
    )
    if asked.survivors:
        print("\n".join(sorted(survivors)))
    RESULTS.mkdir(parents=True, exist_ok=True)
    document = {key: {"caught": value.caught, "survivors": value.survivors} for key, value in scores.items()}
    (RESULTS / "mutants.json").write_text(json.dumps(document, indent=1))
    return 1 if any(not value.caught for value in scores.values()) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
