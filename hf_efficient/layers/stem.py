"""Convolutional stems (Xiao et al. 2021, "Early Convolutions Help Transformers See Better").

Patches of p x p pixels through log₂ p small convolutions of stride 2 instead of one large one:

    conv         3 x 3, overlapping: a token knows a little of its neighbours. It is computed once for the whole
                 image, and tokens that are not wanted are dropped after it.
    patch_conv   2 x 2: nothing crosses the border of a patch, so only wanted patches are computed.

BatchNorm and GELU follow each, channels are w, 2w, 4w, ..., and a linear map makes tokens of width d of the last.
"""

from itertools import pairwise

from torch import Tensor, nn

from .patch_embedding import gather_patches, join_patches, take_tokens


class ConvolutionalStem(nn.Module):
    """Stands in for `PatchEmbeddings`.

    Args:
        patch_size: p, a power of two.
        width: w; by default so that the last convolution has `hidden_size` channels.
        overlaps: 3 x 3 instead of 2 x 2.
    """

    def __init__(
        self, patch_size: int, num_channels: int, hidden_size: int, width: int | None = None, overlaps: bool = True
    ):
        super().__init__()
        halvings = patch_size.bit_length() - 1
        if patch_size < 2 or patch_size != 1 << halvings:
            raise ValueError(f"patch_size={patch_size} must be 2, 4, 8, 16, ...: a stem's convolutions halve images.")
        self.patch_size, self.num_channels, self.overlaps = patch_size, num_channels, overlaps
        first = width or max(1, hidden_size >> (halvings - 1))
        widths = [num_channels, *(first << step for step in range(halvings))]
        shape = {"kernel_size": 3, "padding": 1} if overlaps else {"kernel_size": 2}
        self.layers = nn.Sequential()
        for before, after in pairwise(widths):
            self.layers.append(nn.Conv2d(before, after, stride=2, bias=False, **shape))
            self.layers.append(nn.BatchNorm2d(after))
            self.layers.append(nn.GELU())
        self.projection = nn.Linear(widths[-1], hidden_size)

    def forward(self, pixel_values: Tensor, patch_indices: Tensor | None = None) -> Tensor:
        """(B, C, H, W), and which patches (B, k) -> (B, n or k, d)"""
        drops_after = patch_indices is not None and self.overlaps
        if patch_indices is not None and not self.overlaps:
            patches = gather_patches(pixel_values, self.patch_size, patch_indices)  # (B, k, C, p, p)
            pixel_values = join_patches(patches, (1, patches.shape[1]))  # side by side: one image is faster than k
        tokens = self.layers(pixel_values).flatten(2).mT  # (B, n or k, channels)
        return self.projection(take_tokens(tokens, patch_indices) if drops_after else tokens)
