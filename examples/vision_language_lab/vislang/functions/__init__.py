"""Autograd functions written by hand: each saves less for backward than its composition of torch operations would."""

from vislang.functions.activations import LogCosh, Mish, SquaredReLU
from vislang.functions.distances import GaussianKernel, SoftClip
from vislang.functions.pooling import PairSum
from vislang.functions.scaling import ChannelAffine, ScaleRows, WarmupScale

__all__ = [
    "ChannelAffine",
    "GaussianKernel",
    "LogCosh",
    "Mish",
    "PairSum",
    "ScaleRows",
    "SoftClip",
    "SquaredReLU",
    "WarmupScale",
]
