"""`make real-functions`: the gradient engine on `autograd.Function`s that other people wrote and released.

    python -m benchmarks.real_functions [--wheels DIRECTORY] [PACKAGE…]

Fetches the packages of `CASES` in the versions of `PACKAGES`, unpacks them into a temporary directory (nothing is
installed), and runs slow `torch.autograd.gradcheck` and `check_gradients` on each Function at ordinary inputs, each in
a process of its own, under a time limit. Each case carries what reading its source says: `right`, `design` (the
gradient is meant to differ from the derivative: surrogates, straight-through, reversal …), `approximate`, or `fault`.
Exits with 1 if anything but a fault was called a `fail`, or if the engine's verdict depends on its seed.
docs/real-functions.md tells what came of it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
import zipfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

RESULTS = Path(__file__).parent / "results"
CASE_CPU_S = 120
CASE_MEMORY = 6 * 2**30
PACKAGE_TIMEOUT_S = 1800


@dataclass(frozen=True, slots=True)
class Package:
    """`needs`: other packages to have on the path. `absent`: modules that its imports want and its Functions do not."""

    version: str
    needs: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """One Function: `target` and `inputs` are expressions, evaluated with the names of `module` and torch."""

    package: str
    module: str
    target: str
    inputs: str
    truth: str
    note: str


_HUB = ("tokenizers", "huggingface-hub", "safetensors", "regex", "requests", "tqdm", "packaging", "urllib3")

PACKAGES = {
    "botorch": Package("0.18.1"),
    "brevitas": Package("0.13.4", needs=("dependencies", "packaging"), absent=("unfoldNd",)),
    "compressai": Package("1.2.8", needs=("scipy",)),
    "dalib": Package("0.2", absent=("torchvision",)),
    "deepinv": Package(
        "0.5.0",
        needs=("tqdm", "requests", "urllib3", "charset-normalizer", "scipy"),
        absent=("torchvision", "natsort", "h5py", "torchmetrics", "matplotlib", "PIL"),
    ),
    "diffsort": Package("0.2.0"),
    "e3nn": Package("0.6.0"),
    "entmax": Package("1.3"),
    "geomloss": Package("0.3.1"),
    "gpytorch": Package(
        "1.15.2", needs=("linear-operator", "jaxtyping", "wadler-lindig", "scipy"), absent=("sklearn",)
    ),
    "kornia": Package("0.9.0"),
    "memcnn": Package("1.5.2", absent=("SimpleITK", "torchvision", "pathlib2", "tqdm")),
    "memory-efficient-attention-pytorch": Package("0.1.6"),
    "monai": Package("1.6.1"),
    "nncf": Package(
        "3.4.0",
        needs=("packaging", "scipy"),
        absent=("natsort", "pymoo", "pydot", "tabulate", "ninja", "openvino", "sklearn", "safetensors"),
    ),
    "norse": Package("0.0.4"),
    "peft": Package("0.21.2"),
    "pypose": Package("0.9.5"),
    "pyro-ppl": Package("1.9.2", needs=("opt-einsum", "pyro-api", "tqdm")),
    "pysdtw": Package("0.0.5", needs=("numba", "llvmlite")),
    "pytorch-adapt": Package("0.0.83", absent=("pytorch_metric_learning", "tqdm", "torchmetrics", "torchvision")),
    "pytorch-optimizer": Package("4.1.0"),
    "pytorch-revgrad": Package("0.2.0"),
    "pytorch-wavelets": Package("1.3.0", needs=("PyWavelets", "setuptools==80.9.0")),
    "ring-attention-pytorch": Package("0.5.20", absent=("beartype", "triton", "accelerate")),
    "rockpool": Package("2.0"),
    "sinabs": Package("3.1.3"),
    "snntorch": Package("1.0.0"),
    "speechbrain": Package(
        "1.1.2",
        needs=("scipy",),
        absent=("torchaudio", "tqdm", "hyperpyyaml", "huggingface_hub", "sentencepiece", "joblib"),
    ),
    "spikingjelly": Package("2.0.0"),
    "timm": Package("1.0.31"),
    "torch-geometric": Package(
        "2.8.1",
        needs=("psutil", "requests", "tqdm", "urllib3", "charset-normalizer"),
        absent=("aiohttp", "pyparsing", "xxhash"),
    ),
    "torch-harmonics": Package("0.9.3"),
    "torch-struct": Package("0.5"),
    "torchaudio": Package("2.11.1"),
    "torchdiffeq": Package("0.2.5", needs=("scipy",)),
    "torchkbnufft": Package("1.5.2", needs=("scipy",)),
    "transformers": Package("5.24.0", needs=(*_HUB, "charset-normalizer"), absent=("httpx2", "httpcore2")),
    "zennit": Package("0.5.1"),
}

# A module name that begins with "=" is imported with the packages above it; otherwise these stay empty, so that a
# package's `__init__` with its many imports is not run for one file of it.
_ENTMAX = "entmax.activations"
_ROOTS = "entmax.root_finding"
_LOSSES = "=entmax.losses"
_TIMM = "timm.layers.activations_me"
_SNN = "snntorch.surrogate"
_JELLY = "spikingjelly.activation_based.surrogate"
_JELLY_Q = "spikingjelly.activation_based.quantize"
_NORSE = "norse.torch.functional.threshold"
_STE = "=brevitas.ops.autograd_ste_ops"
_DEAL = "=deepinv.models.deal"
_LIE = "pypose.lietensor.operation"
_WAVELET = "=pytorch_wavelets.dwt.lowlevel"
_DTCWT = "=pytorch_wavelets.dtcwt.transform_funcs"
_X = "torch.randn(3, 5)"
_QUATERNION = "torch.nn.functional.normalize(torch.randn(3, 4), dim=-1)"
_SPD = "(lambda a: a @ a.mT + 2 * torch.eye(4))(torch.randn(4, 4))"
_SPLINE = (
    "torch.randn(2, 2, 1, 3, 2), torch.randn(2, 9), torch.tensor(-2.0), torch.tensor(2.0), 9, torch.tensor([0, 9])"
)
_FILTERS = "torch.randn(1, 1, 1, 4), torch.randn(1, 1, 1, 4), torch.randn(1, 1, 4, 1), torch.randn(1, 1, 4, 1)"

CASES = [
    # --- meant to be the derivative, and as far as reading shows it is
    Case("timm", _TIMM, "SwishAutoFn", _X, "right", "swish"),
    Case("timm", _TIMM, "MishAutoFn", _X, "right", "mish"),
    Case("timm", _TIMM, "HardSigmoidAutoFn", "4 * torch.randn(3, 5)", "right", "kinks at -3 and 3"),
    Case("timm", _TIMM, "HardSwishAutoFn", "4 * torch.randn(3, 5)", "right", "kinks at -3 and 3"),
    Case("timm", _TIMM, "HardMishAutoFn", "4 * torch.randn(3, 5)", "right", "kinks at -2 and 0"),
    Case("monai", "=monai.networks.blocks.activation", "SwishImplementation", _X, "right", "swish"),
    Case("entmax", _ENTMAX, "SparsemaxFunction", "torch.randn(3, 5), -1, None", "right", "projection onto a simplex"),
    Case(
        "entmax",
        _ENTMAX,
        "Entmax15Function",
        "torch.randn(3, 5), -1, None",
        "fault",
        "second derivative NaN where a probability is 0: backward takes its square root",
    ),
    Case(
        "entmax",
        _ROOTS,
        "EntmaxBisectFunction",
        "torch.randn(3, 5), 1.5, -1, 50, True",
        "fault",
        "second derivative NaN where a probability is 0; bisection: no reference from autograd",
    ),
    Case(
        "entmax",
        _ROOTS,
        "EntmaxBisectFunction",
        "torch.randn(3, 5), torch.tensor([[1.3], [1.5], [1.7]]), -1, 50, True",
        "fault",
        "keeps alpha on ctx, so a write to it goes unnoticed; second derivative as above",
    ),
    Case("entmax", _ROOTS, "SparsemaxBisectFunction", "torch.randn(3, 5), -1, 50, True", "right", "bisection"),
    Case("entmax", _ROOTS, "NormmaxBisectFunction", "torch.randn(3, 5), 2, -1, 50", "right", "bisection"),
    Case("entmax", _ROOTS, "BudgetBisectFunction", "torch.randn(3, 5), 2, -1, 50", "right", "bisection"),
    Case(
        "entmax",
        _LOSSES,
        "SparsemaxLossFunction",
        "torch.randn(3, 5), torch.tensor([0, 2, 4]), None",
        "fault",
        "second derivative wrong: saves what forward computed",
    ),
    Case(
        "entmax",
        _LOSSES,
        "Entmax15LossFunction",
        "torch.randn(3, 5), torch.tensor([0, 2, 4]), None",
        "fault",
        "second derivative wrong: saves what forward computed",
    ),
    Case(
        "entmax",
        _LOSSES,
        "EntmaxBisectLossFunction",
        "torch.randn(3, 5), torch.tensor([0, 2, 4]), 1.5, 50",
        "fault",
        "second derivative wrong: saves what forward computed",
    ),
    Case(
        "kornia",
        "kornia.losses.focal",
        "_TargetLogSoftmax",
        "torch.randn(2, 4, 3, 2), torch.randint(0, 4, (2, 1, 3, 2)), None",
        "right",
        "another formula when the graph is kept",
    ),
    Case(
        "kornia",
        "kornia.geometry.epipolar.essential",
        "_NullSpaceBasis",
        "torch.randn(2, 5, 9)",
        "design",
        "any rotation of the basis is as good: right for losses that do not depend on it",
    ),
    Case(
        "gpytorch",
        "gpytorch.functions.rbf_covariance",
        "lambda l: RBFCovariance.apply(x1, x2, l, lambda a, b: (a.unsqueeze(-2) - b.unsqueeze(-3)).square().sum(-1))",
        "torch.tensor([[0.7]])",
        "fault",
        "RBFCovariance: second derivative wrong: saves what forward computed",
    ),
    Case(
        "gpytorch",
        "gpytorch.functions.matern_covariance",
        "lambda l: MaternCovariance.apply(x1, x2, l, 2.5, lambda a, b: torch.cdist(a, b))",
        "torch.tensor([[0.7]])",
        "fault",
        "MaternCovariance: second derivative wrong: saves what forward computed",
    ),
    Case(
        "gpytorch",
        "gpytorch.functions._log_normal_cdf",
        "LogNormalCDF",
        "2 * torch.randn(3, 5)",
        "fault",
        "below -1 an approximation for far smaller values: forward jumps by 0.002, gradient off by 0.2 %",
    ),
    Case(
        "gpytorch",
        "=gpytorch.variational.large_batch_variational_strategy",
        "QuadFormDiagonal",
        f"{_SPD}, torch.randn(4, 3)",
        "right",
        "right for symmetric matrices only, which callers guarantee",
    ),
    Case(
        "gpytorch",
        "=gpytorch.variational.variational_strategy",
        "ComputePredictiveUpdates",
        f"torch.linalg.cholesky({_SPD}), torch.randn(4, 3), {_SPD}, torch.randn(4)",
        "right",
        "lower triangular and symmetric arguments",
    ),
    Case("diffsort", "diffsort.functional", "NormalCDF", "torch.randn(3, 5), 0.8", "right", "normal distribution"),
    Case("e3nn", "e3nn.math._soft_unit_step", "_SoftUnitStep", _X, "right", "smooth step"),
    Case(
        "torch-geometric",
        "=torch_geometric.utils.cross_entropy",
        "SparseCrossEntropy",
        "torch.randn(3, 5), torch.tensor([[0, 0, 1, 2], [1, 3, 2, 4]]), torch.tensor([0.5, 1.0, 2.0, 0.3])",
        "fault",
        "pairs that occur twice: backward writes by index, which does not add up",
    ),
    Case(
        "peft",
        "peft.tuners.c3a.utils",
        "BlockCircularConvolution",
        "torch.randn(3, 8), torch.randn(3, 2, 4)",
        "fault",
        "gradient for x is that of the reversed incoming gradient, for blocks of 3 and more",
    ),
    Case(
        "peft",
        "peft.tuners.lora.velora",
        "VeloraFunction",
        "torch.randn(3, 8), torch.randn(4, 8), torch.randn(4), torch.full((4,), 0.5), 2, 1.0",
        "approximate",
        "the weight's gradient comes from compressed activations",
    ),
    Case(
        "torchaudio",
        "torchaudio.functional.filtering",
        "DifferentiableFIR",
        "torch.randn(2, 2, 9), torch.randn(2, 3)",
        "fault",
        "backward calls view on the incoming gradient: refused when it is not contiguous",
    ),
    Case(
        "torchaudio",
        "torchaudio.functional.filtering",
        "DifferentiableIIR",
        "torch.randn(2, 2, 9), torch.cat([torch.ones(2, 1), 0.3 * torch.randn(2, 2)], 1)",
        "fault",
        "the loop in Python, used without the compiled one, writes to its input",
    ),
    Case(
        "pytorch-wavelets",
        _WAVELET,
        "AFB2D",
        f"torch.randn(1, 2, 8, 8), {_FILTERS}, 2",
        "fault",
        "symmetric padding: the gradient at the borders is that of zero padding",
    ),
    Case(
        "pytorch-wavelets",
        _WAVELET,
        "SFB2D",
        f"torch.randn(1, 2, 4, 4), torch.randn(1, 2, 3, 4, 4), {_FILTERS}, 2",
        "fault",
        "no gradient for the high bands when they alone require one",
    ),
    Case(
        "pytorch-wavelets",
        _WAVELET,
        "AFB1D",
        "torch.randn(1, 2, 8), torch.randn(1, 1, 4), torch.randn(1, 1, 4), 2",
        "fault",
        "symmetric padding: the gradient at the borders is that of zero padding",
    ),
    Case(
        "pytorch-wavelets",
        _WAVELET,
        "SFB1D",
        "torch.randn(1, 2, 4), torch.randn(1, 2, 4), torch.randn(1, 1, 4), torch.randn(1, 1, 4), 2",
        "fault",
        "no gradient for the high band when it alone requires one; 7 gradients for 5 arguments",
    ),
    Case(
        "pytorch-wavelets",
        "=pytorch_wavelets.scatternet.lowlevel",
        "SmoothMagFn",
        "torch.randn(3, 5), torch.randn(3, 5), 0.1",
        "fault",
        "UnboundLocalError when only the second input requires a gradient",
    ),
    Case(
        "pysdtw",
        "=pysdtw.sdtw_cpu",
        "SoftDTWcpu",
        "torch.rand(2, 4, 5), torch.tensor([[4, 5], [3, 4]]), 1.0, 0.0",
        "fault",
        "float64 gradients pass through float32 (torch.Tensor of an array)",
    ),
    Case(
        "memory-efficient-attention-pytorch",
        "memory_efficient_attention_pytorch.flash_attention",
        "FlashAttentionFunction",
        "torch.randn(1, 2, 6, 4), torch.randn(1, 2, 6, 4), torch.randn(1, 2, 6, 4), None, False, 4, 4",
        "right",
        "tiled attention",
    ),
    Case(
        "memory-efficient-attention-pytorch",
        "memory_efficient_attention_pytorch.flash_attention",
        "FlashAttentionFunction",
        "torch.randn(1, 2, 6, 4), torch.randn(1, 2, 6, 4), torch.randn(1, 2, 6, 4), None, True, 4, 4",
        "fault",
        "causal with fewer queries than keys: masks every key, and gradients are not divided by their number",
    ),
    Case(
        "memory-efficient-attention-pytorch",
        "memory_efficient_attention_pytorch.cosine_sim_flash_attention",
        "FlashAttentionFunction",
        "torch.randn(1, 2, 6, 4), torch.randn(1, 2, 6, 4), torch.randn(1, 2, 6, 4), None, 1.0, False, 4, 4",
        "right",
        "tiled cosine attention",
    ),
    Case(
        "ring-attention-pytorch",
        "ring_attention_pytorch.ring_flash_attention",
        "RingFlashAttentionFunction",
        "torch.randn(1, 6, 2, 4), torch.randn(1, 6, 2, 4), torch.randn(1, 6, 2, 4), "
        "None, True, 3, False, False, None, 1, False, 50.0",
        "fault",
        "causal with fewer queries than keys: backward masks other keys than forward",
    ),
    Case(
        "speechbrain",
        "speechbrain.nnet.quaternion_networks.q_ops",
        "QuaternionLinearCustomBackward",
        "torch.randn(3, 8), " + ", ".join(["torch.randn(2, 2)"] * 4) + ", torch.randn(8)",
        "fault",
        "no gradient for the other weights when r_weight requires none",
    ),
    Case(
        "torch-harmonics", "torch_harmonics.utils", "_EnsureContiguous", "torch.randn(4, 5).t()", "right", "layout only"
    ),
    Case("zennit", "zennit.core", "Identity", "torch.randn(3, 5), torch.randn(4)", "right", "several outputs"),
    Case(
        "torch-struct",
        "torch_struct.semirings.sparse_max",
        "_SimplexProject",
        "torch.randn(3, 5), -1",
        "fault",
        "the value takes the norm where half its square belongs; backward is that of the latter",
    ),
    Case(
        "pytorch-optimizer",
        "pytorch_optimizer.loss.bi_tempered",
        "ComputeNormalization",
        "torch.randn(3, 5), 1.3, 40",
        "right",
        "fixed point: autograd through the forward is no reference",
    ),
    Case(
        "pytorch-optimizer",
        "pytorch_optimizer.loss.bi_tempered",
        "ComputeNormalization",
        "torch.randn(3, 5), 0.7, 60",
        "right",
        "bisection: autograd through the forward is no reference",
    ),
    Case(
        "transformers",
        "=transformers.models.bloom.modeling_bloom",
        "GeLUFunction",
        _X,
        "right",
        "tanh approximation of GELU",
    ),
    Case(
        "transformers",
        "=transformers.models.sew_d.modeling_sew_d",
        "XSoftmax",
        "torch.randn(2, 3, 5), torch.tensor([[[1, 1, 1, 0, 1]]] * 2), -1",
        "right",
        "softmax under a mask",
    ),
    Case(
        "transformers",
        "=transformers.models.sew_d.modeling_sew_d",
        "XDropout",
        "torch.randn(3, 5), 0.3",
        "right",
        "dropout: the forward is random",
    ),
    Case(
        "transformers",
        "=transformers.models.recurrent_gemma.modeling_recurrent_gemma",
        "SqrtBoundDerivative",
        "torch.rand(3, 5) + 0.1",
        "right",
        "square root; the derivative is limited only near 0",
    ),
    Case(
        "pyro-ppl",
        "pyro.ops.special",
        "_SafeLog",
        "torch.rand(3, 5) + 0.1",
        "right",
        "logarithm; the derivative is limited only near 0",
    ),
    Case(
        "pyro-ppl",
        "=pyro.distributions.omt_mvn",
        "_OMTMVNSample",
        "torch.randn(4), torch.linalg.cholesky(" + _SPD + "), torch.Size((3, 4))",
        "design",
        "a sampler: the gradient is right in expectation only",
    ),
    Case(
        "torchkbnufft",
        "=torchkbnufft._autograd.interp",
        "lambda x: torchkbnufft.KbInterp((6, 6), grid_size=(8, 8), numpoints=3).to(x)(x, omega.to(x.real))",
        "torch.randn(1, 1, 8, 8, dtype=torch.complex64)",
        "right",
        "KbTableInterpForward: complex, linear",
    ),
    Case(
        "memcnn",
        "=memcnn",
        "memcnn.InvertibleModuleWrapper(memcnn.AdditiveCoupling(torch.nn.Conv1d(2, 2, 1)), "
        "keep_input=True, keep_input_inverse=True)",
        "torch.randn(2, 4, 3)",
        "right",
        "InvertibleCheckpointFunction: recomputes the input from the output",
    ),
    Case(
        "deepinv",
        _DEAL,
        "LinearSplineFunc",
        _SPLINE,
        "fault",
        "one knot: forward is constant, backward reads a second knot",
    ),
    Case(
        "deepinv",
        _DEAL,
        "LinearSplineDerivativeFunc",
        _SPLINE,
        "fault",
        "the coefficients' gradient leaves out the incoming gradient",
    ),
    Case(
        "deepinv",
        _DEAL,
        "QuadraticSplineFunc",
        _SPLINE,
        "fault",
        "second derivative wrong: saves what forward computed; knots fixed",
    ),
    Case(
        "brevitas",
        "brevitas_examples.bnn_pynq.models.losses",
        "squared_hinge_loss",
        "torch.randn(3, 5), torch.sign(torch.randn(3, 5))",
        "fault",
        "backward overwrites the incoming gradient and so leaves it out",
    ),
    Case(
        "torchdiffeq",
        "=torchdiffeq",
        "lambda y: odeint_adjoint(decay, y, torch.tensor([0.0, 0.3]).to(y), rtol=1e-7, atol=1e-9)",
        "torch.randn(4)",
        "approximate",
        "OdeintAdjointMethod: right up to the tolerance of the solver",
    ),
    # --- meant to differ from the derivative
    Case("snntorch", _SNN, "StraightThroughEstimator", _X, "design", "surrogate"),
    Case("snntorch", _SNN, "Triangular", "torch.randn(3, 5), 1.0", "design", "surrogate"),
    Case("snntorch", _SNN, "FastSigmoid", "torch.randn(3, 5), 25", "design", "surrogate"),
    Case("snntorch", _SNN, "ATan", "torch.randn(3, 5), 2.0", "design", "surrogate"),
    Case("snntorch", _SNN, "Heaviside", _X, "design", "surrogate"),
    Case(
        "snntorch",
        _SNN,
        "Sigmoid",
        "torch.randn(3, 5), 25",
        "fault",
        "surrogate: NaN below -3.42 in float32, 25 exp(25 * 3.42) overflows and so does its divisor",
    ),
    Case("snntorch", _SNN, "SpikeRateEscape", "torch.randn(3, 5), 1, 25", "design", "surrogate"),
    Case("snntorch", _SNN, "StochasticSpikeOperator", "torch.randn(3, 5), 0, 0.2", "design", "random surrogate"),
    Case(
        "snntorch",
        _SNN,
        "LeakySpikeOperator",
        "torch.randn(3, 5), 0.1",
        "fault",
        "returns one gradient for two arguments: its backward always raises",
    ),
    Case("snntorch", _SNN, "LSO()", _X, "fault", "calls StochasticSpikeOperator with too few arguments: always raises"),
    Case("snntorch", _SNN, "SparseFastSigmoid", "torch.randn(3, 5), 25, 0.2", "design", "surrogate"),
    Case(
        "snntorch",
        "snntorch.functional.quant",
        "StateQuant",
        "torch.randn(3, 5), torch.linspace(-1, 1, 5)",
        "design",
        "straight-through",
    ),
    Case("spikingjelly", _JELLY, "piecewise_quadratic", "torch.randn(3, 5), 1.0", "design", "surrogate"),
    Case("spikingjelly", _JELLY, "piecewise_exp", "torch.randn(3, 5), 1.0", "design", "surrogate"),
    Case("spikingjelly", _JELLY, "sigmoid", "torch.randn(3, 5), 4.0", "design", "surrogate"),
    Case("spikingjelly", _JELLY, "soft_sign", "torch.randn(3, 5), 2.0", "design", "surrogate"),
    Case("spikingjelly", _JELLY, "super_spike", "torch.randn(3, 5), 1.0", "design", "surrogate"),
    Case("spikingjelly", _JELLY, "atan", "torch.randn(3, 5), 2.0", "design", "surrogate"),
    Case("spikingjelly", _JELLY, "erf", "torch.randn(3, 5), 2.0", "design", "surrogate"),
    Case("spikingjelly", _JELLY, "piecewise_leaky_relu", "torch.randn(3, 5), 1.0, 0.01", "design", "surrogate"),
    Case("spikingjelly", _JELLY, "squarewave_fourier_series", "torch.randn(3, 5), 2, 8.0", "design", "surrogate"),
    Case("spikingjelly", _JELLY, "s2nn", "torch.randn(3, 5), 4.0, 1.0", "design", "surrogate"),
    Case("spikingjelly", _JELLY, "q_pseudo_spike", "torch.randn(3, 5), 2.0", "design", "surrogate"),
    Case("spikingjelly", _JELLY, "leaky_k_relu", "torch.randn(3, 5), 0.0, 1.0", "design", "surrogate"),
    Case("spikingjelly", _JELLY, "log_tailed_relu", "torch.randn(3, 5), 0.5", "design", "surrogate"),
    Case("spikingjelly", _JELLY, "rect", "torch.randn(3, 5), 1.0", "design", "surrogate"),
    Case("spikingjelly", _JELLY_Q, "RoundATGF", _X, "design", "straight-through"),
    Case("spikingjelly", _JELLY_Q, "StepQuantizeATGF", "torch.randn(3, 5), 0.25", "design", "straight-through"),
    Case("spikingjelly", _JELLY_Q, "KBitQuantizeATGF", "torch.randn(3, 5), 2", "design", "straight-through"),
    Case(
        "spikingjelly",
        _JELLY_Q,
        "MultiLevelSpikeCountATGF",
        "torch.randn(3, 5), 4, -0.5, 4.5",
        "design",
        "straight-through in a window",
    ),
    Case("spikingjelly", _JELLY_Q, "ClampATGF", "torch.randn(3, 5), -0.6, 0.6", "right", "clamp: kinks only"),
    Case("norse", _NORSE, "HeaviErfc", "torch.randn(3, 5), torch.tensor(1.0)", "design", "surrogate"),
    Case("norse", _NORSE, "HeaviTanh", "torch.randn(3, 5), torch.tensor(1.0)", "design", "surrogate"),
    Case("norse", _NORSE, "HeaviTent", "torch.randn(3, 5), torch.tensor(1.0)", "design", "surrogate"),
    Case(
        "norse",
        _NORSE,
        "HeaviCirc",
        "torch.randn(3, 5), torch.tensor(1.0)",
        "design",
        "surrogate; zeros of x's shape for alpha",
    ),
    Case("norse", _NORSE, "Logistic", "torch.randn(3, 5), torch.tensor(1.0)", "design", "random spikes, surrogate"),
    Case("norse", "norse.torch.functional.superspike", "SuperSpike", "torch.randn(3, 5), 100.0", "design", "surrogate"),
    Case("sinabs", "sinabs.activation.quantize", "Quantize", _X, "design", "straight-through"),
    Case("sinabs", "sinabs.activation.quantize", "StochasticRounding", _X, "design", "random straight-through"),
    Case(
        "rockpool",
        "rockpool.nn.modules.torch.lif_torch",
        "ThresholdSubtract",
        "torch.randn(3, 5), 1, 0.5",
        "design",
        "surrogate",
    ),
    Case(
        "rockpool",
        "rockpool.nn.modules.torch.lif_torch",
        "Bitshift",
        "torch.rand(3, 5), torch.tensor(4.0), torch.tensor(0.9375)",
        "design",
        "decay by a shift of bits",
    ),
    Case("brevitas", _STE, "ScalarClampSteFn", "torch.randn(3, 5), -0.5, 0.5", "design", "straight-through"),
    Case("brevitas", _STE, "ScalarClampMinSteFn", "torch.randn(3, 5), -0.5", "design", "straight-through"),
    Case(
        "brevitas",
        _STE,
        "TensorClampSteFn",
        "torch.randn(3, 5), torch.full((5,), -0.5), torch.full((5,), 0.5)",
        "design",
        "straight-through",
    ),
    Case(
        "brevitas",
        _STE,
        "InplaceTensorClampSteFn",
        "torch.randn(3, 5), torch.full((5,), -0.5), torch.full((5,), 0.5)",
        "fault",
        "straight-through; clamps its input in place and does not say so with mark_dirty",
    ),
    Case("brevitas", _STE, "RoundToZeroSteFn", "3 * torch.randn(3, 5)", "design", "straight-through"),
    Case("brevitas", _STE, "CeilSteFn", "3 * torch.randn(3, 5)", "design", "straight-through"),
    Case("brevitas", _STE, "FloorSteFn", "3 * torch.randn(3, 5)", "design", "straight-through"),
    Case("brevitas", _STE, "RoundSteFn", "3 * torch.randn(3, 5)", "design", "straight-through"),
    Case("brevitas", _STE, "BinarySignSteFn", _X, "design", "straight-through"),
    Case("brevitas", _STE, "TernarySignSteFn", _X, "design", "straight-through"),
    Case("brevitas", _STE, "AbsBinarySignGradFn", _X, "right", "absolute value with slope 1 at 0"),
    Case("nncf", "nncf.torch.functions", "STThreshold", "torch.randn(3, 5), 0.5", "design", "straight-through"),
    Case(
        "nncf",
        "=nncf.torch.quantization.quantize_functions",
        "QuantizeAsymmetricTorch",
        "torch.randn(3, 5), (3, 5), torch.tensor([-1.0]), torch.tensor([2.0]), 0, 255, 256",
        "design",
        "straight-through in a range, with gradients for the range",
    ),
    Case(
        "nncf",
        "=nncf.torch.quantization.quantize_functions",
        "TuneRange",
        "torch.tensor([-1.03]), torch.tensor([2.11]), 256",
        "design",
        "straight-through",
    ),
    Case("botorch", "botorch.utils.rounding", "RoundSTE", "3 * torch.randn(3, 5)", "design", "straight-through"),
    Case("botorch", "botorch.utils.rounding", "OneHotArgmaxSTE", _X, "design", "straight-through"),
    Case(
        "pyro-ppl",
        "=pyro.distributions.relaxed_straight_through",
        "QuantizeCategorical",
        "torch.randn(3, 5).softmax(-1)",
        "design",
        "straight-through",
    ),
    Case(
        "transformers",
        "=transformers.models.ibert.quant_modules",
        "round_ste",
        "3 * torch.randn(3, 5)",
        "design",
        "straight-through",
    ),
    Case(
        "transformers",
        "=transformers.models.ibert.quant_modules",
        "SymmetricQuantFunction",
        "torch.randn(3, 5), 8, False, torch.full((3,), 0.02)",
        "design",
        "straight-through",
    ),
    Case(
        "compressai",
        "compressai.ops.bound_ops",
        "LowerBoundFunction",
        "torch.randn(3, 5), torch.tensor([0.1])",
        "design",
        "lets gradients pass that lead back above the bound",
    ),
    Case(
        "compressai",
        "compressai.layers.layers",
        "QReLU",
        "3 * torch.randn(3, 5), 2, 100.0",
        "design",
        "surrogate outside the range",
    ),
    Case(
        "pytorch-revgrad",
        "pytorch_revgrad.functional",
        "RevGrad",
        "torch.randn(3, 5), torch.tensor(0.7)",
        "design",
        "reversal",
    ),
    Case("dalib", "dalib.modules.grl", "GradientReverseFunction", "torch.randn(3, 5), 0.7", "design", "reversal"),
    Case(
        "pytorch-adapt",
        "pytorch_adapt.layers.gradient_reversal",
        "_GradientReversal",
        "torch.randn(3, 5), torch.tensor([0.7])",
        "design",
        "reversal",
    ),
    Case(
        "speechbrain",
        "speechbrain.lobes.models.beats",
        "GradMultiply",
        "torch.randn(3, 5), 0.1",
        "design",
        "scales the gradient of an identity",
    ),
    Case(
        "geomloss", "geomloss._legacy.kernel_samples", "DoubleGrad", _X, "design", "doubles the gradient of an identity"
    ),
    Case(
        "monai",
        "=monai.visualize.gradient_based",
        "_AutoGradReLU",
        _X,
        "design",
        "guided backpropagation: not linear in the incoming gradient",
    ),
    Case(
        "pyro-ppl",
        "=pyro.contrib.oed.eig",
        "_EwmaLogFn",
        "torch.rand(3, 5) + 0.1, torch.rand(3, 5) + 0.1",
        "design",
        "logarithm whose derivative is taken at a moving average",
    ),
    Case(
        "torch-struct",
        "torch_struct.semirings.sample",
        "_SampledLogSumExp",
        "torch.randn(3, 5), -1",
        "design",
        "the gradient is a sample",
    ),
    Case(
        "pypose",
        _LIE,
        "SO3_Act",
        f"{_QUATERNION}, torch.randn(3, 3)",
        "design",
        "gradient in the tangent space of a group",
    ),
    Case("pypose", _LIE, "so3_Exp", "torch.randn(3, 3)", "design", "gradient in the tangent space of a group"),
    Case("pypose", _LIE, "SO3_Log", _QUATERNION, "design", "gradient in the tangent space of a group"),
    Case(
        "gpytorch",
        "=gpytorch.variational.natural_variational_distribution",
        "_NaturalToMuVarSqrt",
        f"torch.randn(4), -0.5 * {_SPD}",
        "design",
        "natural gradient: with respect to other parameters",
    ),
]


def fetch(wheels: Path, requirements: list[str]) -> None:
    """Download what is not there yet."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    for requirement in requirements:
        if not _wheel(wheels, requirement):
            subprocess.run(
                [*command, "--dest", str(wheels), requirement], check=True, stdout=sys.stderr, stderr=subprocess.DEVNULL
            )


def unpack(wheels: Path, places: Path, requirement: str, *, compiled: bool) -> Path:
    """The directory of one package, with its compiled files or without."""
    wheel = _wheel(wheels, requirement)
    if wheel is None:
        raise SystemExit(f"{requirement} could not be fetched")
    place = places / wheel.name.partition("-")[0]
    if not place.exists():
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(place, [name for name in archive.namelist() if compiled or ".so" not in name])
    return place


def _wheel(wheels: Path, requirement: str) -> Path | None:
    name, _, version = requirement.partition("==")
    found = sorted(wheels.glob(f"{name.replace('-', '_').lower()}-{version or '[0-9]*'}-*.whl"))
    return found[-1] if found else None


# --- in the process of a package


def measure(work: dict[str, Any]) -> None:
    """Run the cases of one package, each in a fork, a line of JSON for each on standard output."""
    import torch  # noqa: PLC0415 - the process that prints the table does without
    from gradproof_probe import missing_modules  # noqa: PLC0415

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    sys.path[:0] = work["paths"]
    missing_modules.install(work["absent"])
    for number, case in enumerate(work["cases"]):
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            try:
                resource.setrlimit(resource.RLIMIT_CPU, (CASE_CPU_S, CASE_CPU_S))
                resource.setrlimit(resource.RLIMIT_DATA, (CASE_MEMORY, CASE_MEMORY))
                _measure_one(number, case, work["paths"][0])
                sys.stdout.flush()
            except BaseException:  # noqa: BLE001 - a fork must end here
                traceback.print_exc()
            finally:
                os._exit(0)  # whatever happens: a fork must not go on with the loop
        os.waitpid(child, 0)


def _measure_one(number: int, case: dict[str, str], root: str) -> None:
    said = io.StringIO()
    row: dict[str, Any] = {"number": number}
    with contextlib.redirect_stdout(said):
        try:
            names = _names(_module(case["module"], Path(root)))
        except BaseException as error:  # noqa: BLE001 - other people's code may raise anything
            row |= {"verdict": "error", "reason": f"import: {type(error).__name__}: {error}"[:300]}
        else:
            row |= _judged(case, names)
    print(json.dumps(row))


def _module(name: str, root: Path) -> ModuleType:
    if name.startswith("="):
        return importlib.import_module(name[1:])
    parts = name.split(".")
    for depth in range(1, len(parts)):
        package = ModuleType(".".join(parts[:depth]))
        package.__path__ = [str(root.joinpath(*parts[:depth]))]
        sys.modules[package.__name__] = package
        if depth > 1:
            setattr(sys.modules[".".join(parts[: depth - 1])], parts[depth - 1], package)
    return importlib.import_module(name)


def _names(module: ModuleType) -> dict[str, Any]:
    """What the expressions of the cases may use: the module's names, torch, and what some calls take along."""
    import torch  # noqa: PLC0415

    class Decay(torch.nn.Module):  # type: ignore[misc]
        def forward(self, t: Any, y: Any) -> Any:
            return -0.7 * y * (1 + 0.1 * t)

    torch.manual_seed(0)
    tops = {name: loaded for name, loaded in sys.modules.items() if "." not in name}
    fixed = {
        "x1": torch.randn(4, 2),
        "x2": torch.randn(3, 2),
        "omega": 6 * torch.rand(2, 7) - 3,
        "decay": Decay(),
        "torch": torch,
    }
    return tops | vars(module) | fixed


def _judged(case: dict[str, str], names: dict[str, Any]) -> dict[str, Any]:
    import torch  # noqa: PLC0415
    from gradproof_probe import check_gradients  # noqa: PLC0415

    torch.manual_seed(1)
    target = eval(case["target"], names)
    inputs = eval(f"({case['inputs']},)", names)
    row: dict[str, Any] = {"gradcheck": _stock(target, inputs)}
    reports = [check_gradients(target, inputs, seed=0)]
    start = time.perf_counter()
    reports.append(check_gradients(target, inputs, seed=1))
    row["ms"] = 1000 * (time.perf_counter() - start)
    report = reports[0]
    row |= {
        "verdict": report.verdict,
        "reason": report.reason,
        "failures": [{"check": item.check, "cause": item.cause, "text": item.text} for item in report.failures],
        "other_seed": reports[1].verdict,
    }
    return row


def _stock(target: Any, inputs: tuple[Any, ...]) -> str:
    """What slow gradcheck says at the same inputs in float64, every differentiable input at once."""
    import torch  # noqa: PLC0415
    from torch.autograd.gradcheck import GradcheckError  # noqa: PLC0415

    def wide(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not (value.is_floating_point() or value.is_complex()):
            return value
        dtype = torch.complex128 if value.is_complex() else torch.float64
        return value.detach().to(dtype).requires_grad_()

    function = getattr(target, "apply", target) if isinstance(target, type) else target
    if isinstance(target, torch.nn.Module):
        function = target.to(torch.float64)
    try:
        torch.autograd.gradcheck(function, tuple(wide(value) for value in inputs))
    except GradcheckError as error:
        return f"fail: {str(error).strip().splitlines()[0][:120]}"
    except Exception as error:  # noqa: BLE001 - other people's code
        return f"error: {type(error).__name__}: {error}"[:140]
    finally:
        if isinstance(target, torch.nn.Module):
            target.to(torch.float32)
    return "pass"


# --- in the process that prints the table


def run(wheels: Path, package: str, cases: list[Case]) -> list[dict[str, Any]]:
    """The rows of one package, in the order of its cases."""
    about = PACKAGES[package]
    requirements = [f"{package}=={about.version}", *about.needs]
    fetch(wheels, requirements)
    with tempfile.TemporaryDirectory(prefix="gradproof-real-") as directory:
        # Compiled parts were built for another torch: the Functions in Python are measured. Other packages need theirs.
        paths = [
            str(unpack(wheels, Path(directory), requirement, compiled=number > 0))
            for number, requirement in enumerate(requirements)
        ]
        work = {"paths": paths, "absent": about.absent, "cases": [asdict(case) for case in cases]}
        try:
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.real_functions", "--measure"],
                input=json.dumps(work),
                capture_output=True,
                text=True,
                timeout=PACKAGE_TIMEOUT_S,
                check=False,
            )
            output, complaint = done.stdout, done.stderr
        except subprocess.TimeoutExpired as error:
            output, complaint = str(error.stdout or ""), "out of time"
    measured = {row["number"]: row for row in map(json.loads, filter(_is_row, output.splitlines()))}
    lost = {"verdict": "error", "reason": f"the process died or ran out of time: {complaint.strip()[-200:]}"}
    return [{**asdict(case), **measured.get(number, lost)} for number, case in enumerate(cases)]


def _is_row(line: str) -> bool:
    return line.startswith('{"number"')


def judgement(row: dict[str, Any]) -> str:
    """How the verdict stands to what the source says."""
    if row["verdict"] == "error":
        return "not run"
    if row["verdict"] == row["other_seed"]:
        if row["verdict"] == "fail":
            return "found" if row["truth"] == "fault" else "FALSE FAIL"
        if row["truth"] == "fault":
            return "missed"
        if row["verdict"] == "pass" or row["truth"] != "right":
            return "ok"
        return "undecided"
    return "UNSTABLE"


def main(arguments: list[str]) -> int:
    """Measure, print, and keep the figures as JSON; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("packages", nargs="*", metavar="PACKAGE")
    parser.add_argument("--wheels", type=Path, help="where wheels lie, and are put when they are missing")
    parser.add_argument("--markdown", action="store_true", help="the table as docs/real-functions.md has it")
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    if asked.measure:
        measure(json.loads(sys.stdin.read()))
        return 0
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="gradproof-wheels-") as temporary:
        wheels = asked.wheels or Path(temporary)
        for package in asked.packages or PACKAGES:
            cases = [case for case in CASES if case.package == package]
            for row in run(wheels, package, cases):
                rows.append(row)
                (_print_markdown if asked.markdown else _print)(row)
    counts = Counter(judgement(row) for row in rows)
    stock = Counter((row["truth"], str(row.get("gradcheck", "none")).partition(":")[0]) for row in rows)
    print("\n" + ", ".join(f"{count} {name}" for name, count in counts.most_common()))
    print("gradcheck: " + ", ".join(f"{count} {truth} {verdict}" for (truth, verdict), count in sorted(stock.items())))
    RESULTS.mkdir(parents=True, exist_ok=True)
    if not asked.packages:
        (RESULTS / "real-functions.json").write_text(json.dumps(rows, indent=1))
    return 1 if counts["FALSE FAIL"] or counts["UNSTABLE"] else 0


def _name(row: dict[str, Any]) -> str:
    """What the tables call a case: a Function, or what its note begins with."""
    return str(row["target"]) if len(row["target"]) <= 34 else str(row["note"]).partition(":")[0]


def _causes(row: dict[str, Any]) -> str:
    return ", ".join(failure["cause"] for failure in row.get("failures", ()))


def _print_markdown(row: dict[str, Any]) -> None:
    package = f"{row['package']} {PACKAGES[row['package']].version}"
    stock = str(row.get("gradcheck", "")).partition(":")[0]
    milliseconds = f"{row['ms']:.0f}" if "ms" in row else ""
    print(
        f"| {package} | `{_name(row)}` | {row['truth']} | {row['verdict']} | {_causes(row)} | {judgement(row)} | "
        f"{stock} | {milliseconds} |",
        flush=True,
    )


def _print(row: dict[str, Any]) -> None:
    name, cause = _name(row), _causes(row)
    milliseconds = f"{row['ms']:.0f} ms" if "ms" in row else ""
    stock = str(row.get("gradcheck", "")).partition(":")[0]
    print(
        f"{row['package']:18.18s} {name:34.34s} {row['truth']:11s} {row['verdict']:12s} {judgement(row):10s} "
        f"gradcheck {stock:5s} {milliseconds:>8s}  {cause or row['reason'][:90]}",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
