"""Losses between the towers and over boxes, and a few regularisers."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ContrastiveLoss(nn.Module):
    """The symmetric contrastive loss of CLIP: each picture against all sentences, and the other way round."""

    def __init__(self, temperature: float = 0.07) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(1.0 / temperature).log())

    def forward(self, image: Tensor, text: Tensor) -> Tensor:
        image = F.normalize(image, dim=-1)
        text = text / text.norm(dim=-1, keepdim=True)
        logits = self.log_scale.exp() * image @ text.t()
        labels = torch.arange(logits.shape[0], device=logits.device)
        return 0.5 * (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels))


class FocalLoss(nn.Module):
    """Focal loss over independent labels (Lin et al., 2017)."""

    def __init__(self, gamma: float = 2.0, alpha: float = 0.25) -> None:
        super().__init__()
        self.gamma = gamma
        self.alpha = alpha

    def forward(self, logits: Tensor, target: Tensor) -> Tensor:
        prob = torch.sigmoid(logits)
        hit = torch.where(target > 0.5, prob, 1.0 - prob)
        weight = self.alpha * target + (1.0 - self.alpha) * (1.0 - target)
        return (-weight * (1.0 - hit) ** self.gamma * torch.log(hit)).mean()


def box_sides(box: Tensor) -> tuple[Tensor, Tensor]:
    """Widths and heights of boxes given as (x1, y1, x2, y2): [N, 4] -> [N], [N]; none is negative."""
    return (box[:, 2] - box[:, 0]).clamp(min=0), (box[:, 3] - box[:, 1]).clamp(min=0)


def box_iou_loss(predicted: Tensor, target: Tensor) -> Tensor:
    """One minus the intersection over union of matched boxes (x1, y1, x2, y2)."""
    left_top = torch.maximum(predicted[:, :2], target[:, :2])
    right_bottom = torch.minimum(predicted[:, 2:], target[:, 2:])
    overlap = (right_bottom - left_top).clamp(min=0).prod(dim=-1)
    width, height = box_sides(predicted)
    target_width, target_height = box_sides(target)
    union = width * height + target_width * target_height - overlap
    return (1.0 - overlap / union.clamp(min=1e-6)).mean()


def box_angle(box: Tensor) -> Tensor:
    """The angle of a box's diagonal, which tells its aspect ratio: [N, 4] -> [N]."""
    width = (box[:, 2] - box[:, 0]).clamp(min=0)
    height = (box[:, 3] - box[:, 1]).clamp(min=0)
    return torch.atan(width / height)


def aspect_loss(predicted: Tensor, target: Tensor) -> Tensor:
    """The aspect ratio term of the complete IoU loss (Zheng et al., 2020)."""
    return 4.0 / math.pi**2 * (box_angle(predicted) - box_angle(target)).square().mean()


def spread_loss(features: Tensor, margin: float = 1.0) -> Tensor:
    """Pushes the features of a batch at least `margin` apart, so that the tower doesn't collapse."""
    difference = features.unsqueeze(1) - features.unsqueeze(0)
    distance = difference.pow(2).sum(dim=-1).sqrt()
    others = 1.0 - torch.eye(features.shape[0], dtype=features.dtype, device=features.device)
    return (F.relu(margin - distance) * others).sum() / others.sum().clamp(min=1.0)


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Mean over the kept positions of each row; a row without any gives zero."""
    count = mask.sum(dim=-1).clamp(min=1.0)
    return (x * mask).sum(dim=-1) / count


def attention_entropy(weights: Tensor) -> Tensor:
    """Mean entropy of attention rows, in nats."""
    return -(weights * weights.clamp(min=1e-9).log()).sum(dim=-1).mean()


def log_depth_error(log_depth: Tensor, depth: Tensor) -> Tensor:
    """Mean absolute error in log space over the pixels that were measured; the sensor writes -1 for the others."""
    known = depth > 0
    safe_depth = torch.where(known, depth, torch.ones_like(depth))
    error = torch.where(known, (log_depth - torch.log(safe_depth)).abs(), torch.zeros_like(depth))
    return error.sum() / known.sum().clamp(min=1)


def balanced(losses: list[Tensor]) -> Tensor:
    """Sum of losses, each scaled to its own present size, so that none drowns the others."""
    return sum((loss / loss.detach().abs().clamp_min(1e-8) for loss in losses), torch.zeros(()))
