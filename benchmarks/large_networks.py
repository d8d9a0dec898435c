"""Networks of sizes that people train, in plain PyTorch: a language model, a picture transformer, a residual network.

Positions and the class token are embeddings, which every library here knows; a bare parameter would not be.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dpbnn.models.likelihoods import Likelihood
from dpbnn.models.likelihoods.likelihood import Probabilities
from dpbnn.types import Weights

__all__ = ["LanguageModel", "NextToken", "PictureTransformer", "WideResNet"]


class Block(nn.Module):
    """Attention and two layers, each behind a normalization and around a sum."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.before_attention, self.before_layers = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """``[records, tokens, width]``"""
        parts = self.project(self.before_attention(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=self.causal)
        x = x + self.merge(mixed.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.widen(self.before_layers(x))))


class LanguageModel(nn.Module):
    """A causal transformer; of GPT-2's small size by default."""

    def __init__(
        self,
        sequence: int,
        tied: bool = False,
        vocabulary: int = 50_257,
        width: int = 768,
        depth: int = 12,
        heads: int = 12,
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(sequence, width)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=True) for _ in range(depth)))
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        if tied:
            self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[records, tokens, vocabulary]``."""
        positions = torch.arange(x.shape[1], device=x.device).repeat(len(x), 1)
        return self.head(self.last(self.blocks(self.tokens(x) + self.positions(positions))))


class PictureTransformer(nn.Module):
    """Patches of 16 x 16 pixels as tokens, and one for the class; ViT-S by default."""

    def __init__(
        self, side: int, classes: int = 1000, width: int = 384, depth: int = 12, heads: int = 6, patch: int = 16
    ) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, kernel_size=patch, stride=patch)
        self.first, self.positions = nn.Embedding(1, width), nn.Embedding((side // patch) ** 2 + 1, width)
        self.blocks = nn.Sequential(*(Block(width, heads, causal=False) for _ in range(depth)))
        self.last, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits ``[records, classes]``."""
        patches = self.patches(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.first(torch.zeros(len(x), 1, dtype=torch.long, device=x.device)), patches], dim=1)
        positions = torch.arange(tokens.shape[1], device=x.device).repeat(len(x), 1)
        return self.head(self.last(self.blocks(tokens + self.positions(positions)))[:, 0])


class ResidualBlock(nn.Module):
    """Two convolutions behind normalizations, around a sum."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.GroupNorm(16, inputs), nn.GroupNorm(16, outputs)])
        self.first = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        same = inputs == outputs and stride == 1
        self.short = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[records, outputs, height, width]``"""
        active = F.relu(self.norms[0](x))
        short = x if isinstance(self.short, nn.Identity) else self.short(active)
        return short + self.second(F.relu(self.norms[1](self.first(active))))


class WideResNet(nn.Sequential):
    """For pictures of 32 x 32 pixels, with GroupNorm; depth 16 and widening 4 by default."""

    def __init__(self, depth: int = 16, widening: int = 4, classes: int = 10) -> None:
        layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, padding=1, bias=False)]
        channels = 16
        for stage in range(3):
            for position in range((depth - 4) // 6):
                wider = 16 * 2**stage * widening
                layers.append(ResidualBlock(channels, wider, stride=2 if stage and not position else 1))
                channels = wider
        ends = [nn.GroupNorm(16, channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        super().__init__(*layers, *ends, nn.Linear(channels, classes))


@dataclass(frozen=True)
class NextToken(Likelihood):
    """A record is a sequence: the mean over its tokens of the cross entropy."""

    def negative_log_likelihood(self, outputs: Tensor, targets: Tensor, weights: Weights) -> Tensor:
        """``[records]``"""
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), reduction="none").view(targets.shape).mean(1)

    def predictive(self, outputs: Tensor, weights: Weights) -> Probabilities:
        """For the last token."""
        return Probabilities(outputs[:, -1].softmax(dim=-1))
