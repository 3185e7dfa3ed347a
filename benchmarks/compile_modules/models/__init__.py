"""The modules that are compiled: layers of torch, models of vit-pytorch and x-transformers, a custom Function, breaks.

No dropout: a float64 reference would draw other random numbers, and inductor would not be judged.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from vit_pytorch import SimpleViT, ViT
from vit_pytorch.cait import CaiT
from vit_pytorch.cvt import CvT
from vit_pytorch.levit import LeViT
from vit_pytorch.vit_for_small_dataset import ViT as SmallDatasetViT
from x_transformers import Decoder, Encoder, TransformerWrapper

_VIT: dict[str, Any] = {"image_size": 32, "patch_size": 8, "num_classes": 10, "dim": 64, "mlp_dim": 128}


class MLP(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 32))


class ConvNet(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        )  # fmt: skip


class EncoderLayer(nn.TransformerEncoderLayer):
    def __init__(self) -> None:
        super().__init__(64, 4, 128, dropout=0.0, batch_first=True)


class Recurrent(nn.LSTM):
    def __init__(self) -> None:
        super().__init__(32, 64, batch_first=True)


class VisionTransformer(ViT):
    def __init__(self) -> None:
        super().__init__(**_VIT, depth=3, heads=4)


class SimpleVisionTransformer(SimpleViT):
    def __init__(self) -> None:
        super().__init__(**_VIT, depth=3, heads=4)


class ClassAttention(CaiT):
    def __init__(self) -> None:
        super().__init__(**_VIT, depth=3, cls_depth=1, heads=4)


class Convolutional(CvT):
    def __init__(self) -> None:
        stages = {
            f"s{number}_{name}": value
            for number, width in ((1, 16), (2, 32), (3, 48))
            for name, value in (("emb_dim", width), ("heads", 1), ("depth", 1), ("mlp_mult", 2))
        }
        super().__init__(num_classes=10, **stages)


class Levit(LeViT):
    def __init__(self) -> None:
        super().__init__(
            image_size=64, num_classes=10, stages=2, dim=(32, 48), depth=1, heads=(2, 4), mlp_mult=2, dim_key=16,
            dim_value=16,
        )  # fmt: skip


class SmallDataset(SmallDatasetViT):
    def __init__(self) -> None:
        super().__init__(**_VIT, depth=3, heads=4)


class LanguageDecoder(TransformerWrapper):
    def __init__(self) -> None:
        layers = Decoder(dim=64, depth=3, heads=4, rotary_pos_emb=True, ff_glu=True)
        super().__init__(num_tokens=128, max_seq_len=32, attn_layers=layers)


class LanguageEncoder(TransformerWrapper):
    def __init__(self) -> None:
        super().__init__(num_tokens=128, max_seq_len=32, attn_layers=Encoder(dim=64, depth=3, heads=4))


class _Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.square()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * gradients[0]


class CustomFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        squared: Tensor = _Squared.apply(self.first(x))
        result: Tensor = self.second(squared)
        return result


class Breaks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(32, 64), nn.Linear(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu()
        torch._dynamo.graph_break()
        if hidden.sum() > 0:
            hidden = hidden + 1.0
        result: Tensor = self.second(hidden)
        return result


IMAGES = "torch.randn(2, 3, 32, 32)"
TOKENS = "torch.randint(0, 128, (2, 16))"
# Module and inputs, in the order of the table.
INPUTS: dict[type[nn.Module], str] = {
    MLP: "torch.randn(8, 64)",
    ConvNet: "torch.randn(4, 3, 16, 16)",
    EncoderLayer: "torch.randn(2, 16, 64)",
    Recurrent: "torch.randn(2, 8, 32)",
    VisionTransformer: IMAGES,
    SimpleVisionTransformer: IMAGES,
    ClassAttention: IMAGES,
    Convolutional: IMAGES,
    Levit: "torch.randn(2, 3, 64, 64)",
    SmallDataset: IMAGES,
    LanguageDecoder: TOKENS,
    LanguageEncoder: TOKENS,
    CustomFunction: "torch.randn(8, 64)",
    Breaks: "torch.randn(8, 32)",
}
