"""Short texts first, longer ones later: `length_schedule: {0: 64, 0.5: 128, 0.8: 256}`, shares of a run -> tokens.

Data come in blocks (B, T) of the longest length, in an order that the schedule has no say in. While it says l < T, a
block is read as T/l texts of their own, (B·T/l, l), each without what came before; memory is carried from the time on
at which it says T. What is said is a function of the step, so that a resumed run goes on as it would have.
"""

import torch

ROWS = ("input_ids", "attention_mask", "labels", "shift_labels")  # of a batch, (B, T) each


class LengthSchedule:
    """
    Args:
        lengths: share of the run from which on -> tokens; the first share is 0.
    """

    def __init__(self, lengths: dict[float | str, int]):
        try:
            self.lengths = {float(share): int(length) for share, length in lengths.items()}
        except (TypeError, ValueError) as error:
            raise ValueError(f"length_schedule={lengths!r} must map shares of the run to tokens ({error}).") from error
        shares = list(self.lengths)
        if not shares or shares[0] != 0 or shares != sorted(shares) or shares[-1] >= 1:
            raise ValueError(f"length_schedule={lengths!r} must begin with 0, and its shares rise and stay below 1.")
        if min(self.lengths.values()) < 1:
            raise ValueError(f"length_schedule={lengths!r} must hold lengths of at least 1 token.")

    def check(self, longest: int) -> None:
        """Raises unless blocks of so many tokens can be cut as it says."""
        for length in self.lengths.values():
            if longest % length:
                raise ValueError(
                    f"length_schedule: {length} tokens don't divide the data's segment_length={longest}, in blocks of "
                    "which texts are read."
                )

    def at(self, share: float) -> int:
        """Tokens of a text when so much of the run is over."""
        return [length for start, length in self.lengths.items() if start <= share][-1]


def cut_rows(batch: dict[str, torch.Tensor], length: int) -> dict[str, torch.Tensor]:
    """(B, T) -> (B·T/l, l), what else is in the batch as it is."""
    return {name: x.reshape(-1, length) if name in ROWS else x for name, x in batch.items()}
