"""Building blocks of the image tower."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class PatchEmbed(nn.Module):
    """Cuts a picture into patches and embeds each: [B, C, H, W] -> [B, dim, H/patch, W/patch]."""

    def __init__(self, channels: int = 3, dim: int = 32, patch: int = 4) -> None:
        super().__init__()
        self.proj = nn.Conv2d(channels, dim, kernel_size=patch, stride=patch)
        nn.init.trunc_normal_(self.proj.weight, std=0.02)
        self.proj.bias.data.zero_()

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x)


class RMSNorm(nn.Module):
    """Divides by the root mean square over the last dimension."""

    def __init__(self, dim: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x: Tensor) -> Tensor:
        rms = x.pow(2).mean(dim=-1, keepdim=True).sqrt() + self.eps
        return x / rms * self.weight


class ChannelGate(nn.Module):
    """Squeeze-and-excitation whose gate starts as the identity."""

    def __init__(self, dim: int, reduction: int = 4) -> None:
        super().__init__()
        hidden = max(dim // reduction, 2)
        self.squeeze = nn.Conv2d(dim, hidden, kernel_size=1)
        self.excite = nn.Conv2d(hidden, dim, kernel_size=1)
        nn.init.zeros_(self.excite.weight)
        nn.init.zeros_(self.excite.bias)

    def forward(self, x: Tensor) -> Tensor:
        pooled = x.mean(dim=(2, 3), keepdim=True)
        gate = torch.sigmoid(self.excite(F.gelu(self.squeeze(pooled))))
        gate *= 2.0  # sigmoid(0) is a half
        return x * gate


class HighwayMixer(nn.Module):
    """Mixes a token with its own update: h + h * tanh(W h)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.update = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.norm(x)
        mixed = hidden * torch.tanh(self.update(hidden))
        hidden += mixed
        return hidden


class RootPool(nn.Module):
    """Global pooling of the square roots of the activations, which damps bursts; negative activations count as zero."""

    def forward(self, x: Tensor) -> Tensor:
        damped = torch.where(x > 0, torch.sqrt(x), torch.zeros_like(x))
        return damped.mean(dim=(2, 3))


class VisionBlock(nn.Module):
    """ConvNeXt-like: depthwise convolution, normalisation over channels, pointwise MLP, scaled residual."""

    def __init__(self, dim: int, expansion: int = 2, scale: float = 0.1) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(dim, dim, kernel_size=3, padding=1, groups=dim)
        self.norm = nn.LayerNorm(dim)
        self.widen = nn.Linear(dim, expansion * dim)
        self.narrow = nn.Linear(expansion * dim, dim)
        self.scale = nn.Parameter(torch.full((dim,), scale))

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.depthwise(x).permute(0, 2, 3, 1)
        hidden = self.narrow(F.gelu(self.widen(self.norm(hidden))))
        return x + (hidden * self.scale).permute(0, 3, 1, 2)
