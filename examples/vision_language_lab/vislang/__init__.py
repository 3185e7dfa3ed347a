"""A small two-tower vision-language model."""

from vislang.losses import ContrastiveLoss
from vislang.model import TwoTowers

__all__ = ["ContrastiveLoss", "TwoTowers"]
