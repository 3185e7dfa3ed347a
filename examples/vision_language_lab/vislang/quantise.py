"""A vector quantiser for prompts, trained straight through."""

import torch
from torch import Tensor, nn


class PromptQuantiser(nn.Module):
    """Replaces each vector by its nearest code; the gradient passes straight through to the vector.

    The codes follow the data as moving averages, outside the graph.
    """

    def __init__(self, codes: int = 64, dim: int = 16, decay: float = 0.99) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("codebook", torch.randn(codes, dim))

    def forward(self, x: Tensor) -> Tensor:
        nearest = torch.cdist(x.detach().flatten(0, -2), self.codebook).argmin(dim=-1)
        chosen = self.codebook[nearest].view_as(x)
        return x + (chosen - x).detach()

    @torch.no_grad()
    def follow(self, x: Tensor) -> None:
        """Move each code towards the mean of the vectors that chose it."""
        flat = x.flatten(0, -2)
        nearest = torch.cdist(flat, self.codebook).argmin(dim=-1)
        count = torch.bincount(nearest, minlength=self.codebook.shape[0]).unsqueeze(1)
        total = torch.zeros_like(self.codebook).index_add_(0, nearest, flat)
        mean = torch.where(count > 0, total / count.clamp(min=1), self.codebook)
        self.codebook.lerp_(mean, 1.0 - self.decay)
