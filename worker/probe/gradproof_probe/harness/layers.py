"""What torch's own layers demand of the tensor that goes into them, and the form of what comes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from torch import nn

from gradproof_probe.harness.axes import Axis, Form
from gradproof_probe.harness.values import form_of

Rule = Callable[[Any, Form], Any]


def _last(size: int, out: int | None = None) -> Callable[[Form], Form]:
    def apply(form: Form) -> Form:
        axis = form.axis(-1)
        axis.fix(size)
        return replaced(form, -1, Axis(out)) if out is not None else form

    return apply


def replaced(form: Form, index: int, axis: Axis) -> Form:
    """The same form with another axis in one place."""
    if form.rank is None:
        # What is learnt of the result's rank is not learnt of the operand's; the axes that are known are shared.
        result = Form(None, form.least_rank, dict(form.axes), twin=form)
        result.axes[index] = axis
        return result
    result = Form.of(form.axis(place) for place in range(form.rank))
    if form.rank:  # a number has no axes: the layer will refuse it
        result.axes[index % form.rank] = axis
    return result


def _linear(layer: Any, form: Form) -> Form:
    return _last(layer.in_features, layer.out_features)(form)


def _convolution(rank: int) -> Rule:
    def apply(layer: Any, form: Form) -> Form:
        form.set_rank(rank)
        form.axis(1).fix(layer.in_channels)
        axes = [form.axis(0), Axis(layer.out_channels)]
        for place in range(2, rank):
            before = form.axis(place)
            kernel = layer.kernel_size[place - 2]
            stride = layer.stride[place - 2]
            padding = layer.padding if isinstance(layer.padding, str) else layer.padding[place - 2]
            _spatial(before, place, rank)
            if isinstance(padding, int) and not isinstance(layer, nn.modules.conv._ConvTransposeNd):
                before.root().least = max(
                    before.root().least, layer.dilation[place - 2] * (kernel - 1) + 1 - 2 * padding
                )
                same = stride == 1 and 2 * padding == layer.dilation[place - 2] * (kernel - 1)
                if stride > 1 and stride == kernel:
                    before.root().divisors.add(stride)
                axes.append(before if same else Axis(symbol=before.root().symbol))
            else:
                axes.append(before if padding == "same" else Axis(symbol=before.root().symbol))
        return Form.of(axes)

    return apply


def _spatial(axis: Axis, place: int, rank: int) -> None:
    root = axis.root()
    root.symbol = root.symbol or ("l" if rank == 3 else "h" if place == rank - 2 else "w" if place == rank - 1 else "f")


def _channels(rank: int | None, name: str) -> Rule:
    def apply(layer: Any, form: Form) -> Form:
        if rank is not None:
            form.set_rank(rank)
        form.axis(1).fix(getattr(layer, name))
        return form

    return apply


def _embedding(layer: Any, form: Form) -> Form:
    form.want("int", layer.num_embeddings)
    axes = form.all_axes()
    width = Axis(layer.embedding_dim)
    if axes is None:
        return Form(None, form.least_rank + 1, {**{k: a for k, a in form.axes.items() if k >= 0}, -1: width})
    return Form.of([*axes, width])


def _layer_norm(layer: Any, form: Form) -> Form:
    count = len(layer.normalized_shape)
    for index, size in enumerate(layer.normalized_shape):
        form.axis(index - count).fix(size)
    return form


def _recurrent(layer: Any, form: Form) -> Any:
    form.set_rank(3)
    form.axis(-1).fix(layer.input_size)
    from gradproof_probe.harness.values import UNKNOWN, Items

    return Items([replaced(form, -1, Axis(layer.hidden_size * (2 if layer.bidirectional else 1))), UNKNOWN])


def _shuffle(layer: Any, form: Form) -> Form:
    form.set_rank(4)
    form.axis(1).root().divisors.add(layer.upscale_factor**2)
    return Form.of([form.axis(0), Axis(), Axis(), Axis()])


def _pool(rank: int) -> Rule:
    def apply(layer: Any, form: Form) -> Form:
        form.set_rank(rank)
        axes = [form.axis(0), form.axis(1)]
        for place in range(2, rank):
            before = form.axis(place)
            _spatial(before, place, rank)
            kernel = getattr(layer, "kernel_size", 1)
            size = kernel if isinstance(kernel, int) else kernel[place - 2] if isinstance(kernel, tuple) else 1
            before.root().least = max(before.root().least, size)
            axes.append(Axis(symbol=before.root().symbol))
        return Form.of(axes)

    return apply


def _flatten(layer: Any, form: Form) -> Form:
    axes = form.all_axes()
    if axes is None or layer.start_dim != 1 or layer.end_dim != -1:
        return Form()
    product = Axis()
    product.parts = tuple(axes[1:])
    return Form.of([axes[0], product])


def _same(_layer: Any, form: Form) -> Form:
    return form


RULES: Final[tuple[tuple[tuple[type, ...], Rule], ...]] = (
    ((nn.Linear,), _linear),
    ((nn.Conv1d, nn.ConvTranspose1d), _convolution(3)),
    ((nn.Conv2d, nn.ConvTranspose2d), _convolution(4)),
    ((nn.Conv3d, nn.ConvTranspose3d), _convolution(5)),
    ((nn.BatchNorm1d, nn.InstanceNorm1d), _channels(None, "num_features")),
    ((nn.BatchNorm2d, nn.InstanceNorm2d), _channels(4, "num_features")),
    ((nn.BatchNorm3d, nn.InstanceNorm3d), _channels(5, "num_features")),
    ((nn.GroupNorm,), _channels(None, "num_channels")),
    ((nn.Embedding, nn.EmbeddingBag), _embedding),
    ((nn.LayerNorm,), _layer_norm),
    ((nn.RNNBase,), _recurrent),
    ((nn.PixelShuffle,), _shuffle),
    ((nn.MaxPool1d, nn.AvgPool1d, nn.AdaptiveAvgPool1d, nn.AdaptiveMaxPool1d), _pool(3)),
    ((nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d, nn.Upsample), _pool(4)),
    ((nn.MaxPool3d, nn.AvgPool3d, nn.AdaptiveAvgPool3d), _pool(5)),
    ((nn.Flatten,), _flatten),
    (
        tuple(
            getattr(nn, name)
            for name in [
                "Identity",
                "Dropout",
                "Dropout1d",
                "Dropout2d",
                "Dropout3d",
                "AlphaDropout",
                "ReLU",
                "GELU",
                "SiLU",
                "Tanh",
                "Sigmoid",
                "Softmax",
                "ELU",
                "LeakyReLU",
                "PReLU",
                "ReLU6",
                "Softplus",
                "LogSoftmax",
                "Hardswish",
                "Hardtanh",
                "Mish",
                "SELU",
                "CELU",
                "Softsign",
            ]
        ),
        _same,
    ),
)


def through_layer(layer: nn.Module, value: Any) -> tuple[bool, Any]:
    """(whether this is a layer that we know, what comes out)."""
    for kinds, rule in RULES:
        if isinstance(layer, kinds):
            form = form_of(value)
            if form is not None and rule not in (_embedding, _same):
                form.want("float")
            return True, rule(layer, form) if form is not None else None
    return False, None


def attention(layer: Any, query: Any, key: Any, value: Any) -> Form | None:
    """nn.MultiheadAttention: the widths, and keys as many as values."""
    forms = [form_of(item) for item in (query, key, value)]
    for form, width in zip(forms, (layer.embed_dim, layer.kdim, layer.vdim), strict=True):
        if form is not None:
            form.want("float")
            form.set_rank(3)
            form.axis(-1).fix(width)
    first, second, third = forms
    batch = 0 if layer.batch_first else 1
    for form in (second, third):
        if first is not None and form is not None:
            first.axis(batch).join(form.axis(batch))
    if second is not None and third is not None:
        second.axis(1 - batch).join(third.axis(1 - batch))
    return first
