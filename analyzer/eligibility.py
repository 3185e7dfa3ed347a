"""Why something that looks like a target has no gradient to look at: the stable words, and what is told from names.

In doubt a thing is eligible, and the probe finds out. This module must not know how a snapshot is put together.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

ABSTRACT: Final = "abstract"
DATA_CODE: Final = "data code"
FACTORY: Final = "factory"
NO_FORWARD: Final = "no forward"
INITIALISER: Final = "initialiser"
METRIC: Final = "metric"
NEEDS_FILES: Final = "needs files"
NO_GRADIENT: Final = "no gradient by design"
NO_TENSOR: Final = "no tensor result"
OPTIMIZER: Final = "optimizer"
# Never told from the source: the probe says so of what trains, and can't be called with a small model and a batch.
TRAINING: Final = "training code"

# How such a verdict came about, where a report says of the others what was tried.
TOLD_FROM_SOURCE: Final = "told from its source"
# All of them, in the order in which a person would read them.
REASONS: Final = (
    *(ABSTRACT, DATA_CODE, FACTORY, INITIALISER, METRIC, NEEDS_FILES, NO_FORWARD, NO_GRADIENT, NO_TENSOR, OPTIMIZER),
    TRAINING,
)

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")
_OF_METRICS: Final = frozenset({"accuracy", "auroc", "auc", "fscore", "fbeta", "f1", "recall", "confusion"})
_OF_DATA: Final = frozenset(
    {"dataset", "dataloader", "datamodule", "tokenizer", "tokenize", "collate", "collator", "collation", "vocab"}
)
_NAMED_METRICS: Final = frozenset({"metric", "metrics"})
_OF_PICTURES: Final = frozenset({"plot", "visualize", "visualise", "show", "print"})
_OF_OPTIMIZERS: Final = frozenset({"optimizer", "optimizers"})
_OF_INITIALISERS: Final = frozenset({"init", "initialize", "initialise"})
_OF_DISTRIBUTIONS: Final = frozenset({"normal", "uniform", "xavier", "kaiming", "orthogonal"})
# Selectors of examples and of pairs among them: what they give is indices.
_OF_SELECTORS: Final = frozenset({"miner"})
_OF_LOSSES: Final = frozenset({"loss", "losses", "criterion"})


@cache
def words_of(name: str) -> tuple[str, ...]:
    """`MultiSimilarityMiner` and `multi_similarity_miner`: multi, similarity, miner."""
    return tuple(word.lower() for word in _WORD.findall(name))


def is_loss(name: str) -> bool:
    """Whether something calls itself a loss: then a gradient that is missing is a fault."""
    return not _OF_LOSSES.isdisjoint(words_of(name))


def by_name_of_class(name: str) -> str:
    """What the name of a module says: its last word is what it is."""
    words = words_of(name)
    if not words or is_loss(name):
        return ""
    if words[-1] in _OF_DATA:
        return DATA_CODE
    if words[-1] in _OF_METRICS | _NAMED_METRICS:
        return METRIC
    return NO_GRADIENT if words[-1] in _OF_SELECTORS else ""


def by_name_of_function(name: str) -> str:
    """What the name of a function says."""
    words = words_of(name)
    if not words or is_loss(name):
        return ""
    ends = {words[0], words[-1]} if len(words) > 1 else frozenset[str]()
    named: tuple[tuple[bool, str], ...] = (
        (not _OF_INITIALISERS.isdisjoint(ends), INITIALISER),
        (name.endswith("_") and not _OF_DISTRIBUTIONS.isdisjoint(words), INITIALISER),
        (not _OF_METRICS.isdisjoint(words) or words[-1] in _NAMED_METRICS or words[-2:] == ("f", "score"), METRIC),
        (words[0] in _OF_PICTURES, NO_TENSOR),
        (not _OF_DATA.isdisjoint(words), DATA_CODE),
        (not _OF_OPTIMIZERS.isdisjoint(words), OPTIMIZER),
    )
    return next((reason for said, reason in named if said), "")
