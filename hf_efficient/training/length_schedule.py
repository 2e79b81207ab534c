"""Short texts first, longer ones later: `length_schedule: {0: 64, 0.5: 128, 0.8: 256}`, progress -> tokens.

Data come in blocks (B, T) of the longest length, in an order that the schedule has no say in. While it says l < T, a
block is read as T/l texts of their own, (B·T/l, l), each without what came before. Memory is carried on from the time
at which it says T.
"""

from torch import Tensor

from .step_functions import StepFunction

ROWS = ("input_ids", "attention_mask", "labels", "shift_labels")  # of a batch, (B, T) each


def check_lengths(schedule: StepFunction, longest: int) -> None:
    """Raises unless blocks of so many tokens can be cut as it says."""
    for length in schedule.values():
        if longest % length:
            raise ValueError(
                f"length_schedule: {length:.0f} tokens don't divide segment_length={longest}, in blocks of which the "
                "data are read."
            )


def cut_rows(batch: dict[str, Tensor], length: int) -> dict[str, Tensor]:
    """(B, T) -> (B·T/l, l), what else is in the batch as it is."""
    return {name: x.reshape(-1, length) if name in ROWS else x for name, x in batch.items()}
