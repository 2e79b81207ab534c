"""Patch selection (Limone & Iannotti, "HuggingGreen"): which patches of an image are worth computing.

Every patch of p x p pixels gets a value F from its luminance I in [0, 1], and k patches are kept:

    contrast   (max I − min I) / (max I + min I + 1e-8)
    variance   Σ(I − mean I)² / (p² − 1)
    entropy    −Σ_b f_b log₂ f_b,    f = shares of the 256 levels round(255·I)

either those of largest F, or a sample without replacement with weights w = F + 1e-6·max F + 1e-12, drawn by the
Gumbel-top-k trick: the k largest of log w + Gumbel noise have the law of k sequential draws. An image's noise is a
hash of its pixels: the same on any rank, whatever else is in the batch.

"random" looks at no pixels and takes any k patches: what a heuristic must be better than.

Where the paper can't be followed: its contrast has the 1e-8 above the fraction bar, which makes black patches
infinitely contrasted (here 0); and it speaks of pixel intensities, but its code measures normalised pixels, whose
contrast has any sign and whose entropy is −∞. Here normalisation is undone first.

The paper keeps the full image more and more often as training goes on: a batch is reduced with the probability

    product        p_e = p₀ / Π_{t=1..e} (1 + r·t)    the authors' code; r=5e-3: .5 falls to .18 at e=20, .001 at e=50
    inverse_time   p₀ / (1 + r·e)
    exponential    p₀ · exp(−r·e)
    linear         p₀ · max(0, 1 − r·e)
    constant       p₀

after e epochs. `set_share` sets k and probability from outside instead, as functions of the steps taken for example.
"""

import math
import random
import warnings

import torch
from torch import Tensor, nn
from transformers import initialization as init

from ..attention.base import check_choice, check_positive
from ..attention.counter import Counter
from .constants import constant

REC_601 = (0.299, 0.587, 0.114)
HEURISTICS = ("contrast", "variance", "entropy")
SCHEDULES = ("product", "inverse_time", "exponential", "linear", "constant")


class PatchSelector(nn.Module):
    """Chooses patches; `epoch` and `step` are saved with the weights, so that a resumed run makes the same choices.

    In training one decision is taken per batch, since a batch has one length, by (seed, step): the same on all ranks.
    In evaluation the image stays whole, or, with `select_at_eval`, keeps its k best patches ("random": the same k of
    every image).

    Args:
        heuristic: "contrast", "variance", "entropy" or "random".
        top_k: patches kept of `num_patches`; images of another number of patches keep the same share.
        probabilistic: sample in training; otherwise take the k best.
        prob, prob_decay_rate, prob_schedule: p₀, r and the formula of p_e.
        image_mean, image_std: what images were normalised with, per channel.
    """

    def __init__(
        self,
        heuristic: str,
        patch_size: int,
        top_k: int,
        num_patches: int,
        *,
        probabilistic: bool = True,
        prob: float = 0.5,
        prob_decay_rate: float = 5e-3,
        prob_schedule: str = "product",
        select_at_eval: bool = False,
        seed: int = 0,
        image_mean: tuple[float, ...] = (0.5, 0.5, 0.5),
        image_std: tuple[float, ...] = (0.5, 0.5, 0.5),
    ):
        super().__init__()
        check_choice("heuristic", heuristic, (*HEURISTICS, "random"))
        check_choice("prob_schedule", prob_schedule, SCHEDULES)
        check_positive("top_k", top_k)
        if top_k > num_patches:
            raise ValueError(f"top_k={top_k}, but there are only {num_patches} patches.")
        self.heuristic, self.patch_size, self.top_k, self.num_patches = heuristic, patch_size, top_k, num_patches
        self.probabilistic, self.select_at_eval, self.seed = probabilistic, select_at_eval, seed
        self.prob, self.prob_decay_rate, self.prob_schedule = prob, prob_decay_rate, prob_schedule
        self.image_mean, self.image_std = tuple(image_mean), tuple(image_std)
        self.set_share(None)
        self.register_buffer("epoch", torch.zeros((), dtype=torch.long))  # completed epochs
        self.register_buffer("step", torch.zeros((), dtype=torch.long))  # batches seen in training
        self.epochs, self.steps = Counter(), Counter()
        self.batches_untold = 0  # without a word of the epoch; None once there was one

    def reset_parameters(self) -> None:
        init.zeros_(self.epoch)
        init.zeros_(self.step)

    def set_epoch(self, epoch: int) -> None:
        """How many epochs are completed."""
        self.epoch.fill_(epoch)
        self.batches_untold = None

    def set_share(self, share: float | None, prob: float | None = None) -> None:
        """The share of patches that training keeps, and p, from now on; None is top_k of num_patches, and p_e."""
        if share is not None and not 0 < share <= 1:
            raise ValueError(f"share={share!r} of the patches must lie in (0, 1].")
        if prob is not None and not 0 <= prob <= 1:
            raise ValueError(f"prob={prob!r} is a probability: it must lie in [0, 1].")
        self.training_share, self.training_prob = share, prob

    @torch.no_grad()
    def forward(self, pixel_values: Tensor) -> Tensor | None:
        """(B, C, H, W) -> which patches to keep, (B, k) ascending, counted row by row; None = all"""
        patches = count_patches(pixel_values, self.patch_size)
        kept, noise = self.share_of(patches), None
        if self.training:
            applies, key = self.draw()
            if applies and (self.probabilistic or self.heuristic == "random"):
                noise = gumbel_noise(pixel_values, patches, key)
        else:
            applies = self.select_at_eval
        if not applies or kept == patches:
            return None
        if noise is None:
            return top_indices(self.score(pixel_values), kept)
        if self.heuristic == "random":
            return top_indices(noise, kept)
        return top_indices(log_weights(self.score(pixel_values)) + noise, kept)

    def score(self, pixel_values: Tensor) -> Tensor:
        """F (B, n) of every patch, row by row"""
        if self.heuristic == "random":
            generator = random.Random(self.seed)
            order = [generator.random() for _ in range(count_patches(pixel_values, self.patch_size))]
            return torch.tensor(order, device=pixel_values.device).expand(pixel_values.shape[0], -1)
        grey = luminance(pixel_values, self.image_mean, self.image_std)
        return {"contrast": contrast, "variance": variance, "entropy": entropy}[self.heuristic](grey, self.patch_size)

    @torch.compiler.disable
    def draw(self) -> tuple[bool, int]:
        """One step: whether this batch is reduced, and the key of its noise."""
        self.warn_of_epochs()
        step = self.steps.add(self.step) - 1
        generator = random.Random(f"{self.seed} {step}")  # neighbouring steps are unrelated
        return generator.random() < self.probability(), generator.getrandbits(32)

    def warn_of_epochs(self) -> None:
        """Once, at the second batch, since a single one is no training."""
        decays = self.prob_schedule != "constant" and self.prob * self.prob_decay_rate > 0
        if self.batches_untold is None or not decays or self.training_prob is not None:
            return
        self.batches_untold += 1
        if self.batches_untold == 2:
            warnings.warn(
                f"prob={self.prob} decays with the epochs (prob_schedule={self.prob_schedule!r}), but nobody says "
                "which it is: add PatchSelectionCallback() to the Trainer's callbacks, or call model.set_epoch(epoch) "
                "in a loop of your own.",
                stacklevel=2,
            )

    def probability(self, epoch: int | None = None) -> float:
        """p_e, by default after the epochs completed so far"""
        if epoch is None and self.training_prob is not None:
            return self.training_prob
        epoch = self.epochs.read(self.epoch) if epoch is None else epoch
        return decayed(self.prob, self.prob_decay_rate, epoch, self.prob_schedule)

    def share_of(self, patches: int) -> int:
        """k for an image of that many patches"""
        if self.training and self.training_share is not None:
            return max(1, round(self.training_share * patches))
        return self.top_k if patches == self.num_patches else max(1, round(self.top_k / self.num_patches * patches))

    def extra_repr(self) -> str:
        return (
            f"heuristic={self.heuristic!r}, top_k={self.top_k}, prob={self.prob}, probabilistic={self.probabilistic}"
        )


def decayed(prob: float, rate: float, epoch: int, schedule: str = "product") -> float:
    """p_e of the module's formulas."""
    if schedule == "product":
        return prob / math.prod(1 + rate * t for t in range(1, epoch + 1))
    if schedule == "inverse_time":
        return prob / (1 + rate * epoch)
    if schedule == "exponential":
        return prob * math.exp(-rate * epoch)
    if schedule == "linear":
        return prob * max(0.0, 1 - rate * epoch)
    return prob


def luminance(pixel_values: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Normalised (B, C, H, W) -> I (B, H, W) in [0, 1]: Rec. 601 of three channels, else their mean"""
    channels = pixel_values.shape[1]
    x = pixel_values.to(torch.promote_types(pixel_values.dtype, torch.float32))
    weight = REC_601 if channels == 3 else (1 / channels,) * channels
    mean, std, weight = (constant(values, x).view(-1, 1, 1) for values in (mean, std, weight))
    grey = torch.addcmul(mean, x, std).clamp_(0, 1).mul_(weight).sum(1)
    if grey.device.type == "cpu" and not torch.compiler.is_compiling() and grey.sum().isnan():
        raise ValueError("pixel_values holds NaN: patches can't be ranked.")  # elsewhere looking would cost a sync
    return grey


def count_patches(pixel_values: Tensor, patch_size: int) -> int:
    """n of (B, C, H, W)"""
    return pixel_values.shape[2] // patch_size * (pixel_values.shape[3] // patch_size)


def split_patches(grey: Tensor, patch_size: int) -> Tensor:
    """(B, H, W) -> (B, h, p, w, p)"""
    return grey.unflatten(2, (-1, patch_size)).unflatten(1, (-1, patch_size))


def contrast(grey: Tensor, patch_size: int) -> Tensor:
    """(B, H, W) -> (B, n)"""
    patches = split_patches(grey, patch_size)
    high, low = patches.amax(2).amax(-1), patches.amin(2).amin(-1)  # rows first: reading memory in order is 10x faster
    return ((high - low) / (high + low + 1e-8)).flatten(1)


def variance(grey: Tensor, patch_size: int) -> Tensor:
    """(B, H, W) -> (B, n)"""
    patches = split_patches(grey, patch_size)
    mean = patches.mean(2).mean(-1)[:, :, None, :, None]
    return (patches - mean).square_().sum(2).sum(-1).flatten(1) / max(patch_size**2 - 1, 1)


def entropy(grey: Tensor, patch_size: int) -> Tensor:
    """(B, H, W) -> (B, n)"""
    levels = split_patches((grey * 255).round_().long().clamp_(0, 255), patch_size)
    levels = levels.transpose(2, 3).flatten(3).flatten(1, 2)  # (B, n, p²)
    counts = grey.new_zeros(*levels.shape[:2], 256)
    counts.scatter_add_(2, levels, counts.new_ones(()).expand(levels.shape))
    mean_log = (counts.clamp_min(1).log2_() * counts).sum(-1) / patch_size**2
    return (math.log2(patch_size**2) - mean_log).clamp_min(0)


def gumbel_noise(pixel_values: Tensor, patches: int, key: int) -> Tensor:
    """(B, C, H, W) -> (B, n): −log(−log u), u a hash of the image, the patch's number and the key"""
    levels = (pixel_values[:, 0].float() * 256).round().long().flatten(1)  # (B, pixels), unmoved by rounding
    places = mixed(torch.arange(levels.shape[1], device=levels.device))
    image = mixed((levels * places).sum(1, keepdim=True) + key)  # (B, 1)
    bits = mixed(mixed(image + torch.arange(patches, device=levels.device)) + key)
    uniform = ((bits >> 9).float() + 0.5) / 2**23  # never 0 or 1
    return -(-uniform.log()).log()


def mixed(x: Tensor) -> Tensor:
    """Integers -> integers below 2³² that have nothing in common with their neighbours."""
    x = x & 0xFFFFFFFF
    x = (x ^ (x >> 16)) * 0x7FEB352D & 0xFFFFFFFF
    x = (x ^ (x >> 15)) * 0x846CA68B & 0xFFFFFFFF
    return x ^ (x >> 16)


def log_weights(scores: Tensor) -> Tensor:
    """log w (B, n): patches of F = 0 stay possible, and an image of nothing else is sampled evenly"""
    return (scores + 1e-6 * scores.amax(1, keepdim=True) + 1e-12).log()


def top_indices(scores: Tensor, k: int) -> Tensor:
    """The k largest of (B, n), as ascending indices (B, k); among equals the first ones"""
    scores = scores.nan_to_num(nan=-torch.inf)
    least = scores.topk(k).values[:, -1:]  # no stable sort, which ONNX lacks: ties are counted instead
    above, equal = scores > least, scores == least
    kept = above | (equal & (equal.cumsum(1) <= k - above.sum(1, keepdim=True)))
    places = torch.arange(scores.shape[1], device=scores.device)
    return torch.where(kept, places, len(places)).sort(1).values[:, :k]
