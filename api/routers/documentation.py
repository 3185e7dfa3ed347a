"""The documentation of rules and checks as data. It is public: it says nothing about anybody's code."""

from __future__ import annotations

from fastapi import APIRouter

from analyzer.registry import all_rules
from analyzer.registry import rule as find_rule
from api import examples
from api.documents import answers, problems
from api.errors import RouteNotFoundError
from api.presentation import rule_out
from api.schemas import CheckDocumentationOut, RuleOut
from services.checks.documentation import all_checks

router = APIRouter(tags=["documentation"])


@router.get("/rules", summary="All rules", responses=answers([examples.RULE]))
def list_rules() -> list[RuleOut]:
    """Every rule with its documentation, in the order of their ids."""
    return [rule_out(rule) for rule in all_rules()]


@router.get("/rules/{rule_id}", summary="One rule", responses=answers(examples.RULE) | problems(404))
def get_rule(rule_id: str) -> RuleOut:
    """A rule by its id or its name."""
    rule = find_rule(rule_id)
    if rule is None:
        raise RouteNotFoundError(f"there is no rule {rule_id[:100]!r}", rule=rule_id[:100])
    return rule_out(rule)


@router.get("/checks", summary="All runtime checks", responses=answers([examples.CHECK_DOCUMENTATION]))
def list_checks() -> list[CheckDocumentationOut]:
    """Every runtime check with its documentation."""
    return [
        CheckDocumentationOut(
            name=check.name,
            summary=check.summary,
            what_it_does=check.what_it_does,
            how_it_decides=check.how_it_decides,
        )
        for check in all_checks()
    ]
