"""Parts that models share, built on attention mechanisms."""

from .routing import HeadRouter, RoutedOutput, TokenRouter
from .sparsity import AttentionSparsity, attach_sparsity
from .token_pooling import PooledTokens, TokenPooling

__all__ = [
    "AttentionSparsity",
    "HeadRouter",
    "PooledTokens",
    "RoutedOutput",
    "TokenPooling",
    "TokenRouter",
    "attach_sparsity",
]
