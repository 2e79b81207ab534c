"""The collator of data sets that make whole batches: `ImageBatches`, and the text streams."""


def take_batch(batch: dict) -> dict:
    """Returns what it gets: it is a batch already, as `__getitems__` of the data set made it."""
    if not isinstance(batch, dict):
        raise TypeError(
            f"take_batch needs a batch, a dict, and got a {type(batch).__name__}. If this is a Trainer, set "
            "remove_unused_columns=False in its arguments: otherwise it takes batches apart."
        )
    return batch
