"""Parts that models share, built on attention mechanisms."""

from .patch_selection import PatchSelector
from .routing import HeadRouter, RoutedOutput, TokenRouter
from .sparsity import AttentionSparsity, attach_sparsity
from .token_pooling import PooledTokens, TokenPooling

__all__ = [
    "AttentionSparsity",
    "HeadRouter",
    "PatchSelector",
    "PooledTokens",
    "RoutedOutput",
    "TokenPooling",
    "TokenRouter",
    "attach_sparsity",
]
