"""What a parameter's name says about its value. Small sizes, different from each other where they may be.

Batch 2, sequence 5, width 8, classes 7, input channels 3, output channels 6: a transposed or swapped axis then shows
as a shape error or a wrong value instead of passing unnoticed. Heads (2) divide the width, and width = heads x 4.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

BATCH: Final = 2
SEQUENCE: Final = 5
WIDTH: Final = 8
HEADS: Final = 2
HEAD_WIDTH: Final = 4
HIDDEN: Final = 12
CLASSES: Final = 7
VOCABULARY: Final = 11
CHANNELS: Final = 3
OUT: Final = 6
IMAGE: Final = 16
PATCH: Final = 4
POINTS: Final = 6

_I = re.IGNORECASE

# First match wins. Expressions, so that tuples and modules can stand beside numbers.
CONSTRUCTOR_VALUES: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern, _I), value)
    for pattern, value in (
        (r"(^|_)(dim|size|width)_?(per_)?head$|^head_?dim$|^d_?head$|^(dim|d)_(head|key|value|k|v)$|^d_[kvq]$", "4"),
        (r"(^|_)(n|num|number)?_?heads?$|^n_?heads?$|num_?heads|^nhead$", "2"),
        (r"^heads_.*|.*_heads$", "2"),
        (r"^spatial_?dims?$|^n_?dims?$|^num_?dims?$|^ndims?$|spatial_dimensions?$|^dimensions?$|^rank$", "2"),
        (
            r"^(context|cond|condition|cross|memory|source|text|style|guidance|kv|temb|time)_?(attention_)?(dim|channels|features|width)$",
            "10",
        ),
        (
            r"(image|img|input|video|frame|spatial)_?(size|resolution|res)$|^(height|width|resolution)$|^image_(h|w).*",
            "16",
        ),
        (r"image_(height|width)$", "16"),
        (r"^(num_)?frames$|^(frame|temporal|video)_(length|len|size|frames)$|^max_frames$", "4"),
        (r"frame_patch_size|temporal_patch_size", "2"),
        (r"patch_(size|height|width)|^patch(es)?$", "4"),
        (r"num_patches|n_patches", "16"),
        (r"num_?classes|n_?classes|num_?labels|n_?labels|^classes$|nclass|num_class", "7"),
        (r"^(num|n)_(quantizers|groups|norm_groups|nodes|neighbors|neighbours)$|^norm_num_groups$", "2"),
        (r"vocab|num_?tokens|n_?tokens|num_?embeddings|num_?words|dict_size|codebook_size|num_codes", "11"),
        (r"^(in_?channels?|in_?ch|in_?planes|inplanes|in_?chans|input_?channels?|c_?in|n?_?channels_?in)$", "3"),
        (r"^(channels?|num_?channels|n_?channels|chans|in_chans|image_channels)$", "3"),
        (r"^(out_?channels?|out_?ch|out_?planes|out_?chans|output_?channels?|c_?out|planes)$", "6"),
        (
            r"(mlp|ff|ffn|hidden|inner|feedforward|intermediate).*(dim|size|width|channels|features|units)|^hidden$",
            "12",
        ),
        (r"^d_ff$|^dim_?feedforward$|^mlp_dim$|^nhid$|^n_hidden$", "12"),
        (r"(out|output)_?(dim|features|size|width)|^dim_?out$|^d_?out$|^out$", "6"),
        (r"(num|n)_?(layers?|blocks?|stages?)|^depth$|^layers$|^blocks$|.*_depth$|depth_.*", "1"),
        (r"(max|context|ctx|block|sequence|seq).*(len|length|size|pos|positions)|max_?len|^length$|^seq_?len$", "16"),
        (r"window_?size|^window$", "4"),
        (r"kernel(_?size)?$|^ks$|^k_size$|.*_kernel$", "3"),
        (r"^stride$|^dilation$|^groups$|^padding$|.*_stride$", "1"),
        (r"(mlp|ff|expansion|expand|hidden)_?(ratio|mult|factor|rate)|^mult$|^expansion$|^t$", "2"),
        (r"drop|dropout|p_drop|drop_?prob|^p$", "0.0"),
        (r"^(eps|epsilon)$", "1e-05"),
        (r"temperature|^tau$|^temp$", "0.7"),
        (r"^(alpha|beta|gamma|momentum|decay|lambda_?|lambd|lamb|weight|margin|smoothing|threshold|rho)$", "0.5"),
        (r"scale_?factor|^factor$|upscale|downscale|reduction|^ratio$|^r$|rank|.*_factor$", "2"),
        (r"^scale$|^gain$|.*_scale$", "0.5"),
        (r"^(num|n)_?(experts|slots|queries|latents|groups|codebooks|memory|clusters|parts|register).*", "2"),
        (r"topk|top_k|^k$|num_samples|n_samples", "2"),
        (r"^(steps|num_steps|n_steps|timesteps|num_iters|iters|iterations|n_iter)$", "3"),
        (
            r"bias$|causal|learn|flag|use_|is_|with_|return_|batch_first|bidirectional|residual|normalize|affine",
            "False",
        ),
        (
            r"^(fn|func|function|f|net|model|module|layer|block|backbone|encoder|base|network|inner)$",
            "torch.nn.Linear(8, 8)",
        ),
        (r"act(ivation)?(_fn|_layer|_func)?$|nonlinearity", "torch.nn.Tanh()"),
        (r"norm_?layer|^norm$", "torch.nn.LayerNorm"),
        (r"^(low|lower|min|minimum)(_?bound|_?val(ue)?)?$", "-1.0"),
        (r"^(high|upper|max|maximum)(_?bound|_?val(ue)?)?$", "1.0"),
        (r"normalized_?shape|^shape$|^size$", "8"),
        (r"dim|width|channels?|features?|embed|hidden|size|d_model|units|nf$|^c$|^d$|^n$|filters|^ch$", "8"),
        (r"^(num|n|nb)_\w+|_count$", "4"),
    )
)

# What overrides a default: only sizes, and only where the default is larger than the small value.
SHRINKABLE: Final = re.compile(
    r"dim|width|channels|features|embed|hidden|depth|layers|image|img|resolution|vocab|tokens|mlp|heads?$|planes|"
    r"num_classes|max_len|seq_len|frames|size|pieces|positions",
    _I,
)

# Descriptions of arrays by their bounds, shape and type (of what an agent observes, of a sensor): a vector, an image.
# By the names that a constructor has for these; a type is given only where it has a name for one.
BOUNDS: Final[tuple[tuple[frozenset[str], str, str], ...]] = (
    (frozenset({"low", "lower", "minimum"}), "-1.0", "0"),
    (frozenset({"high", "upper", "maximum"}), "1.0", "255"),
    (frozenset({"shape"}), "(8,)", "(3, 36, 36)"),
)
# What a file is read from. Never a number: `open(1)` takes over this process's own output, and closes it.
# `vocab_size_or_config_file` takes a number as well.
PLACE_OF_A_FILE: Final = re.compile(
    r"^(?!.*(size|dim|num|count)).*(?<![a-z])(path|file|filename|dir|folder|directory|ckpt)$", _I
)
BYTE_TYPES: Final = ("'uint8'", "torch.uint8")  # as arrays of other libraries name it, and as tensors do

INTEGER_INPUT: Final = re.compile(
    r"^(labels?|targets?|class(es)?|index|indices|idx|ids|input_ids|tokens?|token_ids|positions?|pos_ids|timesteps?|"
    r"steps?|lengths?|lens|segments?|words|edge_index|batch|y|y_true|gt|texts?)$|_(ids?|idx|index|indices|labels?|tokens)$",
    _I,
)
BOOLEAN_INPUT: Final = re.compile(r"mask|padding|^(valid|keep|select|done)s?$", _I)
LOSS_TARGET: Final = re.compile(
    r"^(y|y_?true|y_?hat|target|targets|label|labels|gt|ground_truth|truth|ref|reference)$", _I
)
PREDICTION: Final = re.compile(
    r"^(x|input|inputs|logits?|pred|preds|prediction|predictions|output|outputs|y_?pred|scores?|z|yhat)$", _I
)
IMAGE_INPUT: Final = re.compile(
    r"^(img|imgs|image|images|pixel_values|im|frame|feature_map|fmap|feat(ure)?_?maps?)$", _I
)
VIDEO_INPUT: Final = re.compile(r"^(video|videos|clip|clips|volume|vol)$", _I)
ATTENTION_INPUT: Final = re.compile(r"^(q|k|v|query|queries|key|keys|value|values|context|memory|tokens|src|tgt)$", _I)

SCALAR_INPUTS: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern, _I), value)
    for pattern, value in (
        (r"^(dim|axis)$", "-1"),
        (
            r"^(alpha|beta|gamma|lambda_?|lambd|lamb|factor|slope|scale|weight|temperature|tau|t|margin|momentum|coef.*|coeff"
            r"|delta|sigma|std|p|prob|threshold|strength|rate|smoothing|.*_scale|.*_factor|.*_weight|negative_slope)$",
            "0.7",
        ),
        (r"^(eps|epsilon)$", "1e-05"),
        (
            r"^(k|n|num.*|n_.*|size|groups|heads|num_heads|h|w|height|width|bits|n_bits|levels|steps|max_iter|n_iter)$",
            "2",
        ),
        (r"^(kernel|window)_?size$|^ks$", "3"),
        (r"^(stride|dilation)$", "1"),
        (r"^(padding)$", "0"),
        (r"^(training|inplace|causal|is_causal|keepdim|return_.*|use_.*)$", "False"),
        (r"^(reduction)$", "'mean'"),
        (r"^(min|low|lower|min_val(ue)?|lo)$", "-0.5"),
        (r"^(max|high|upper|max_val(ue)?|hi)$", "0.5"),
        (r"^(fn|func|function|f)$", "torch.tanh"),
    )
)


# What values a tensor of this name has: what is computed of others is not a number or has no gradient.
_VALUES_BY_NAME: Final[tuple[tuple[re.Pattern[str], str], ...]] = tuple(
    (re.compile(pattern, _I), values)
    for pattern, values in (
        (r"^probs?$|probabilit|_probs?$|^alphas?_?cumprod", "unit"),
        (r"quaternion|^quats?$|^q[12]$|unit_vec|^normals?$|^directions?$|^axis$", "direction"),
        (r"^cov(ariance)?s?$|_cov$|^sigma_?(x|y|1|2)$|precision_matri", "definite"),
        (r"rotation_mat|^rot(ation)?s?$|_rot$", "orthogonal"),
        (r"homograph|^intrinsics?$|camera_matrix|^[HF]_?mat|transform_matrix", "invertible"),
        (r"^boxes?\d?$|bbox|_boxes$", "boxes"),
        (
            r"^(std|sigma|sigmas|var|variance|radius|radii)$|_std$|_var$",
            "positive",
        ),
        (r"^(ts|times|knots|bins|boundaries|t_span|grid_points)$", "sorted"),
        (r"^(grid|coords_norm|flow_grid)$", "symmetric_unit"),
    )
)


def values_by_name(name: str) -> str:
    """How the values of a tensor of this name are drawn: `normal` where it says nothing."""
    return next((values for pattern, values in _VALUES_BY_NAME if pattern.search(name)), "normal")


def constructor_value(name: str) -> str | None:
    """The usual small value for a constructor parameter of this name, as an expression."""
    return next((value for pattern, value in CONSTRUCTOR_VALUES if pattern.search(name)), None)


def bounded_arrays(parameters: Iterable[str]) -> Iterator[dict[str, str]]:
    """Arguments for a constructor with names for bounds and a shape; none where it lacks one of them."""
    listed = list(parameters)
    found = [next((name for name in listed if name in alike), None) for alike, _, _ in BOUNDS]
    if None in found:
        return
    names = [str(name) for name in found]
    yield dict(zip(names, (vector for _, vector, _ in BOUNDS), strict=True))
    image = dict(zip(names, (image for _, _, image in BOUNDS), strict=True))
    yield from ({**image, "dtype": text} for text in BYTE_TYPES) if "dtype" in listed else (image,)


def scalar_input(name: str) -> str | None:
    """The usual value if this name of a function's parameter means a number, not a tensor."""
    return next((value for pattern, value in SCALAR_INPUTS if pattern.search(name)), None)
