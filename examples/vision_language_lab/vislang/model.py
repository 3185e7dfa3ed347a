"""The two towers."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vislang.attention import CrossAttention
from vislang.blocks import PatchEmbed, VisionBlock


class TwoTowers(nn.Module):
    """Embeds pictures [B, 3, H, W] and token ids [B, N] into one space: two tensors [B, dim]. Token 0 is padding."""

    def __init__(self, dim: int = 32, words: int = 100, heads: int = 4) -> None:
        super().__init__()
        self.patches = PatchEmbed(3, dim)
        self.block = VisionBlock(dim)
        self.words = nn.Embedding(words, dim, padding_idx=0)
        self.reader = CrossAttention(dim, heads)
        self.summary = nn.Parameter(torch.randn(1, 1, dim) * dim**-0.5)

    def forward(self, image: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        picture = self.block(self.patches(image)).mean(dim=(2, 3))
        words = self.words(tokens)
        sentence = self.reader(self.summary.expand(words.shape[0], -1, -1), words).squeeze(1)
        return picture, F.layer_norm(sentence, sentence.shape[-1:])
