"""Tokens that models of text are given: checks whose errors name the field, and what would be right."""

import torch
from torch import Tensor, nn

from ..attention.base import check_tensor


def check_tokens(input_ids: Tensor | None, inputs_embeds: Tensor | None) -> None:
    """Raises unless one of (B, N) and (B, N, d) is given, with at least one token."""
    if (input_ids is None) == (inputs_embeds is None):
        raise ValueError("give either input_ids or inputs_embeds.")
    name = "input_ids" if inputs_embeds is None else "inputs_embeds"
    check_tensor(name, input_ids if inputs_embeds is None else inputs_embeds)
    if input_ids is not None and input_ids.dim() != 2:
        raise ValueError(f"input_ids must be (batch, tokens), got {tuple(input_ids.shape)}.")
    shape = (inputs_embeds if input_ids is None else input_ids).shape[:2]
    if not all(shape):
        raise ValueError(f"input_ids of {tuple(shape)} is empty: at least one token is needed.")


def check_has_tokens(input_ids: Tensor | None, ngrams: int) -> None:
    if input_ids is None:
        raise ValueError(f"ngrams={ngrams}: n-grams are made of tokens, so give input_ids, not inputs_embeds.")


def look_up(embeddings: nn.Module, input_ids: Tensor, vocab_size: int) -> Tensor:
    """(B, N) -> (B, N, d); names a token that there is not."""
    try:
        return embeddings(input_ids)
    except IndexError:
        wrong = input_ids[(input_ids < 0) | (input_ids >= vocab_size)]
        raise ValueError(
            f"input_ids holds {wrong[0].item()}, but the tokens are 0 to {vocab_size - 1} (vocab_size={vocab_size})."
        ) from None


def key_mask_of(attention_mask: Tensor | None, batch: int, length: int) -> Tensor | None:
    """attention_mask (B, N), 0 = padding, as bool; None where all tokens are known to be real. A row of padding alone
    is an empty text, and an error."""
    if attention_mask is None:
        return None
    check_tensor("attention_mask", attention_mask)
    if attention_mask.shape != (batch, length):
        raise ValueError(f"attention_mask must be {(batch, length)}, got {tuple(attention_mask.shape)}.")
    mask = attention_mask.bool()
    if mask.device.type != "cpu" or torch.compiler.is_compiling():  # elsewhere the answers cost a sync
        return mask
    if mask.all():
        return None
    if not (real := mask.any(1)).all():
        raise ValueError(f"attention_mask has no real token in row {int(real.int().argmin())}: its text is empty.")
    return mask


def check_length(length: int, max_position_embeddings: int) -> None:
    if length > max_position_embeddings:
        raise ValueError(
            f"input_ids has {length} tokens, but the model has max_position_embeddings={max_position_embeddings}: cut "
            f"the text (truncation=True, max_length={max_position_embeddings}), or make a model for longer ones."
        )
