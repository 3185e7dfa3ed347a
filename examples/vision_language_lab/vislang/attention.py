"""Three attentions: between the towers, by cosine, and pruned."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def split_heads(x: Tensor, heads: int) -> Tensor:
    """[B, N, H*D] -> [B, H, N, D]."""
    batch, length, width = x.shape
    return x.view(batch, length, heads, width // heads).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """[B, H, N, D] -> [B, N, H*D]."""
    return x.transpose(1, 2).flatten(2)


class CrossAttention(nn.Module):
    """Queries of one tower attend to the tokens of the other."""

    def __init__(self, dim: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(dim, dim)
        self.key_value = nn.Linear(dim, 2 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        q = split_heads(self.query(x), self.heads)
        key, value = self.key_value(context).chunk(2, dim=-1)
        k, v = split_heads(key, self.heads), split_heads(value, self.heads)
        return self.out(join_heads(F.scaled_dot_product_attention(q, k, v)))


class CosineAttention(nn.Module):
    """Self-attention over unit-length queries and keys with a learned temperature (Liu et al., 2022)."""

    def __init__(self, dim: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.log_scale = nn.Parameter(torch.tensor(math.log(10.0)))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (split_heads(part, self.heads) for part in self.qkv(x).chunk(3, dim=-1))
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        if torch.compiler.is_compiling():
            # one fused kernel instead of three
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            weights = (q @ k.transpose(-2, -1) * self.log_scale.exp()).softmax(dim=-1)
            mixed = weights @ v
        return self.out(join_heads(mixed))


class PrunedAttention(nn.Module):
    """Self-attention that drops weights below `keep`, so that far tokens don't blur the picture."""

    def __init__(self, dim: int, keep: float = 0.02) -> None:
        super().__init__()
        self.keep = keep
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        weights = scores.softmax(dim=-1)
        weights.data[weights.data < self.keep] = 0.0
        return self.out(weights @ v)
