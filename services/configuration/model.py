"""What can be configured, and its defaults. Values only: this module must not read files.

Paths are relative to the top of the snapshot; patterns follow `.gitignore`'s syntax, without negation.
"""

from __future__ import annotations

import ast
import math
import re
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from services.configuration.errors import ConfigurationError, Mistake
from services.gates.policy import GatePolicy, RuleMode
from services.snapshots.patterns import Coverage, parse_pattern, parse_patterns

_MAX_EXPRESSION: Final = 4_000
_MAX_PATTERNS: Final = 200
MAX_TARGETS: Final = 1_000
_MAX_NAME: Final = 200
_MAX_RULES: Final = 500
_MAX_PATH_RULES: Final = 100
_MATCHING_SECONDS: Final = 10
_IDENTIFIERS: Final = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_TARGET: Final = re.compile(rf"{_IDENTIFIERS}:{_IDENTIFIERS}")
_RULE: Final = re.compile(r"[A-Z]{1,8}[0-9]{0,4}|[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
_CHECK: Final = re.compile(r"[a-z][a-z0-9]*(?:_[a-z0-9]+)*")
_TOLERANCE: Final = re.compile(r"[a-z][a-z0-9_]*_[ar]tol")


def _pattern(pattern: str) -> str:
    if not pattern.strip() or pattern.startswith("#"):
        raise ValueError("a pattern must not be empty or a comment")
    if pattern.startswith("!"):
        raise ValueError("a pattern can't be negated: use include and exclude")
    if ".." in pattern.split("/") or "\\" in pattern or len(pattern) > 500:
        raise ValueError("a pattern must stay inside the repository, without '..' and backslashes")
    parse_pattern(pattern)
    return pattern


def _expression(text: str) -> str:
    """Check the grammar only: what the expression does is the sandbox's affair."""
    if len(text) > _MAX_EXPRESSION:
        raise ValueError(f"an expression may have {_MAX_EXPRESSION:,} characters")
    try:
        ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "it is nested too deeply or holds a NUL character"
        raise ValueError(f"not a Python expression: {reason}") from error
    return text.strip()


def _argument(text: str) -> str:
    """An argument as it stands in a call: an expression, `name=expression` or `*expression`."""
    if len(text) > _MAX_EXPRESSION:
        raise ValueError(f"an expression may have {_MAX_EXPRESSION:,} characters")
    try:
        call = ast.parse(f"_({text}\n)", mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return _expression(text)
    is_one = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and len(call.args) + len(call.keywords) == 1
    return text.strip() if is_one else _expression(text)


def _target_name(name: str) -> str:
    if len(name) > _MAX_NAME or not _TARGET.fullmatch(name):
        raise ValueError("a target is written module:name, as in pkg.losses:FocalLoss")
    return name


def _check_name(name: str) -> str:
    if len(name) > _MAX_NAME or not _CHECK.fullmatch(name):
        raise ValueError("not the name of a check, such as gradcheck")
    return name


def _rule_name(name: str) -> str:
    if len(name) > _MAX_NAME or not _RULE.fullmatch(name):
        raise ValueError("not a rule: give its id (GP101), its name, or the beginning of ids (GP1)")
    return name


def _tolerance_name(name: str) -> str:
    if len(name) > _MAX_NAME or not _TOLERANCE.fullmatch(name):
        raise ValueError("a tolerance is named after its check, as in gradcheck_rtol or gradcheck_atol")
    return name


def _tolerance(value: float) -> float:
    if not math.isfinite(value) or not 0 <= value <= 1:
        raise ValueError("a tolerance lies between 0 and 1")
    return value


def _each_once(values: tuple[str, ...]) -> tuple[str, ...]:
    twice = [value for value, count in Counter(values).items() if count > 1]
    if twice:
        raise ValueError(f"{twice[0]} comes twice")
    return values


Patterns = Annotated[tuple[Annotated[str, AfterValidator(_pattern)], ...], Field(max_length=_MAX_PATTERNS)]
Expression = Annotated[str, AfterValidator(_expression)]
Argument = Annotated[str, AfterValidator(_argument)]
CheckName = Annotated[str, AfterValidator(_check_name)]
RuleName = Annotated[str, AfterValidator(_rule_name)]
RuleNames = Annotated[tuple[RuleName, ...], Field(max_length=_MAX_RULES)]
ToleranceName = Annotated[str, AfterValidator(_tolerance_name)]
Tolerance = Annotated[float, Field(strict=True), AfterValidator(_tolerance)]


class Table(BaseModel):
    """One table of the file: unknown keys are refused, since they are usually slips of the pen."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class PathRules(Table):
    """Rules for some of the files. Several tables that cover a file count together."""

    paths: Annotated[Patterns, Field(min_length=1, description="patterns of the files that are meant")]
    select: RuleNames = Field(default=(), description="only these rules speak there")
    ignore: RuleNames = Field(default=(), description="these rules do not")

    @model_validator(mode="after")
    def _says_something(self) -> PathRules:
        if not self.select and not self.ignore:
            raise ValueError("needs rules to select, to ignore, or both")
        return self


class Gate(Table):
    """What lets an analysis fail. Notes never do, nor does a finding that was executed and held."""

    fail_on: Annotated[tuple[Literal["error", "warning"], ...], AfterValidator(_each_once)] = Field(
        default=("error", "warning"), description="severities of new findings"
    )
    fail_on_failing_check: Annotated[bool, Field(strict=True)] = Field(
        default=True, description="a runtime check that fails"
    )
    fail_on_incomplete: Annotated[bool, Field(strict=True)] = Field(
        default=True, description="an analysis that could not be finished"
    )


class TargetTable(Table):
    """How a target is built and called; a missing part is looked for as if nothing had been declared."""

    target: Annotated[str, AfterValidator(_target_name)] = Field(description="`module:name`")
    constructor: Expression | None = Field(default=None, description="expression that builds it")
    inputs: Annotated[tuple[Argument, ...], Field(max_length=64)] = Field(
        default=(), description="expressions that it is called with; `name=expression` gives one by its name"
    )

    @model_validator(mode="after")
    def _says_something(self) -> TargetTable:
        if self.constructor is None and not self.inputs:
            raise ValueError("a target needs a constructor, inputs, or both")
        return self


class DeclaredTarget(TargetTable):
    """A declared target with the place where it is declared, as `file:line`."""

    provenance: str


class ConfigurationTable(Table):
    """The whole of `[tool.gradproof]`, or of `gradproof.toml`."""

    include: Patterns = Field(default=(), description="files that are analysed; none: every Python file and notebook")
    exclude: Patterns = Field(default=(), description="files that are not, even if included")
    select: RuleNames = Field(default=(), description="rules that speak; none: all")
    ignore: RuleNames = Field(default=(), description="rules that do not, even if selected")
    per_path: Annotated[tuple[PathRules, ...], Field(max_length=_MAX_PATH_RULES)] = Field(
        default=(), description="rules to select or ignore for some of the files"
    )
    severities: Mapping[RuleName, Literal["error", "warning", "note"]] = Field(
        default_factory=dict, description="severity by rule id, rule name, or beginning of rule ids"
    )
    checks: Annotated[tuple[CheckName, ...], AfterValidator(_each_once)] | None = Field(
        default=None, description="runtime checks to run; absent: all"
    )
    rules: Mapping[RuleName, RuleMode] = Field(
        default_factory=dict, description="mode by rule id, rule name, or beginning of rule ids"
    )
    tolerances: Mapping[ToleranceName, Tolerance] = Field(
        default_factory=dict, description="by check: gradcheck_rtol = 1e-3"
    )
    gate: Gate = Gate()
    targets: Annotated[tuple[TargetTable, ...], Field(max_length=MAX_TARGETS)] = ()


class Configuration(ConfigurationTable):
    """A valid configuration. `file` is the name of the file that it was read from, None for the defaults."""

    targets: tuple[DeclaredTarget, ...] = ()
    file: str | None = None

    def files(self, paths: Iterable[str]) -> tuple[str, ...]:
        """Those of the relative POSIX paths that are analysed; the others can still be imported.

        Raises `ConfigurationError` when the patterns are made so that matching them takes longer than 10 seconds.
        """
        included = Coverage(parse_patterns(self.include))
        excluded = Coverage(parse_patterns(self.exclude))
        end = time.monotonic() + _MATCHING_SECONDS
        selected = []
        for path in paths:
            if time.monotonic() > end:
                message = f"the patterns take longer than {_MATCHING_SECONDS} seconds to match"
                raise ConfigurationError(
                    self.file or "", [Mistake(1, "exclude" if self.exclude else "include", message)]
                )
            if (not self.include or included.covers(path)) and not excluded.covers(path):
                selected.append(path)
        return tuple(selected)

    @property
    def gate_policy(self) -> GatePolicy:
        """The same, as the gate reads it."""
        return GatePolicy(
            no_failing_check=self.gate.fail_on_failing_check,
            no_new_error="error" in self.gate.fail_on,
            no_new_warning="warning" in self.gate.fail_on,
            complete=self.gate.fail_on_incomplete,
            modes=dict(self.rules),
        )
