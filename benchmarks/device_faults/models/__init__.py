"""Four ordinary models, small: what kernels do shows in their outputs and gradients."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 16))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.SiLU()
        )
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x).mean((2, 3)))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, activation="gelu", batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class TokenAttention(nn.Module):
    """Attention written out, over embedded tokens that repeat."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(16, 64)
        self.query, self.key, self.value = (nn.Linear(64, 64) for _ in range(3))
        self.norm = nn.LayerNorm(64)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        weights = torch.softmax(self.query(x) @ self.key(x).mT / 8, dim=-1)
        return self.norm(x + weights @ self.value(x))


MODELS = (
    (MLP, "torch.randn(16, 64)"),
    (ConvNet, "torch.randn(2, 3, 12, 12)"),
    (Encoder, "torch.randn(2, 12, 64)"),
    (TokenAttention, "torch.randint(0, 16, (2, 24))"),
)
