"""The same check with the other values of a mode argument: what all of them together say. Pure.

A target whose usual way is right may be wrong with `reduction='sum'`. The gravest verdict is the target's, and the
result says with which value it came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

# Checks that judge what is computed. The others compare two ways of running the same, which the usual one shows.
VARIED: Final = ("gradcheck", "gradgradcheck", "nan_gradient")
MOST_VARIANTS: Final = 12
_GRAVITY: Final = {"pass": 0, "inconclusive": 1, "fail": 2}

Wire = dict[str, Any]


def variant_recipes(recipe: Mapping[str, Any]) -> list[tuple[str, Wire]]:
    """(option, recipe) for each variant of a recipe, all in wire form."""
    return [
        (
            item["option"],
            {
                **recipe,
                "constructor": item["constructor"],
                "inputs": item["inputs"],
                "provenance": f"{recipe['provenance']}; with {item['option']}",
                "variants": [],
                "code": "",
            },
        )
        for item in recipe.get("variants", [])[:MOST_VARIANTS]
    ]


def gravest(usual: Wire, varied: Sequence[tuple[str, Wire]]) -> Wire:
    """One result out of that of the usual recipe and those of its variants; one that could not be built counts not."""
    counted = [(option, result) for option, result in varied if result.get("verdict") in _GRAVITY]
    if not counted:
        return usual
    options = {option: result["verdict"] for option, result in counted}
    duration = sum(result.get("duration_s", 0.0) for result in (usual, *(result for _, result in varied)))
    option, worst = max(counted, key=lambda item: _GRAVITY[item[1]["verdict"]])
    if _GRAVITY[worst["verdict"]] <= _GRAVITY[usual["verdict"]]:
        return {**usual, "evidence": {**usual["evidence"], "options": options}, "duration_s": round(duration, 4)}
    return {
        **worst,
        "summary": f"with {option}: {worst['summary']}",
        "evidence": {**worst["evidence"], "option": option, "options": options},
        "duration_s": round(duration, 4),
    }
