"""Trains the two towers on synthetic pairs: a picture's brightness pattern is told by its sentence."""

import argparse

import torch
from torch import Tensor

from vislang import ContrastiveLoss, TwoTowers


def make_pairs(count: int, words: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pictures [count, 3, 16, 16] and sentences [count, 5] that name their quadrant brightness."""
    tokens = torch.randint(1, words, (count, 5), generator=generator)
    quadrants = tokens[:, :4].view(count, 1, 2, 2).float() / words
    pictures = quadrants.repeat(1, 3, 1, 1).repeat_interleave(8, dim=2).repeat_interleave(8, dim=3)
    return pictures + 0.05 * torch.randn(pictures.shape, generator=generator), tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--clip", type=float, default=0.0, help="largest gradient norm; 0: no clipping")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()

    torch.manual_seed(arguments.seed)
    generator = torch.Generator().manual_seed(arguments.seed)
    model, loss_function = TwoTowers(), ContrastiveLoss()
    parameters = [*model.parameters(), *loss_function.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=3e-3)
    for step in range(arguments.steps):
        pictures, tokens = make_pairs(arguments.batch, 100, generator)
        loss = loss_function(*model(pictures, tokens))
        optimizer.zero_grad()
        loss.backward()
        if arguments.clip > 0:
            torch.nn.utils.clip_gradient_norm_(parameters, arguments.clip)
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step:4d}  loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
