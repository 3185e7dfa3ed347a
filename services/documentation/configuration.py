"""The page of what a repository can configure, from the models that read it. See the package docstring."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from services.configuration.model import ConfigurationTable, Gate, PathRules, Table, TargetTable
from services.documentation.pages import MADE, table

_TABLES: dict[str, tuple[str, type[Table]]] = {
    "per_path": ("Rules for some of the files: any number of tables", PathRules),
    "gate": ("What lets an analysis fail", Gate),
    "targets": ("How things are built and called: any number of tables", TargetTable),
}
EXAMPLE = """[tool.gradproof]
exclude = ["third_party/"]
ignore = ["GP9"]

[tool.gradproof.severities]
GP114 = "error"

[tool.gradproof.rules]
GP7 = "monitor"

[[tool.gradproof.per_path]]
paths = ["notebooks/", "*.ipynb"]
ignore = ["GP7", "hand-normalisation"]

[[tool.gradproof.targets]]
target = "pkg.losses:FocalLoss"
constructor = "FocalLoss(gamma=2.0)"
inputs = ["torch.randn(4, 5)", "torch.randint(0, 5, (4,))"]
"""


def configuration_page() -> str:
    """Every key with its default and meaning."""
    fields = ConfigurationTable.model_fields
    lines = [
        MADE,
        "",
        "# Configuration of a repository",
        "",
        "In `[tool.gradproof]` of `pyproject.toml`, or at the top of `gradproof.toml`; the nearest one upwards from "
        "what is checked counts, up to the top of the repository. Patterns follow the syntax of `.gitignore`, without "
        "negation. A rule is named by its id (`GP101`), its name, or the beginning of ids (`GP1`); `ALL` are all. A "
        "mistake is told with file, line and key, and nothing is analysed.",
        "",
        "```toml",
        EXAMPLE.rstrip(),
        "```",
        "",
        *table(("key", "default", "meaning"), _rows(fields, leave_out=_TABLES)),
        "",
        "The mode of a rule is `off` (it says nothing), `monitor` or `comment` (it is shown and fails no gate), or "
        "`block`. Modes and severities are looked up by id, then by name, then by the longest beginning of the id.",
        "",
    ]
    for key, (title, model) in _TABLES.items():
        brackets = "[{}]" if key == "gate" else "[[{}]]"
        heading = brackets.format(f"tool.gradproof.{key}")
        lines += [
            f"## `{heading}`",
            "",
            f"{title}.",
            "",
            *table(("key", "default", "meaning"), _rows(model.model_fields)),
            "",
        ]
    return "\n".join(lines)


def _rows(fields: dict[str, FieldInfo], leave_out: Iterable[str] = ()) -> list[tuple[str, str, str]]:
    return [
        (f"`{name}`", _default(field), field.description or "")
        for name, field in fields.items()
        if name not in leave_out
    ]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is PydanticUndefined or value in (None, ()):
        return ""
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{list(value)}`".replace("'", '"') if isinstance(value, tuple) else f"`{value}`"
