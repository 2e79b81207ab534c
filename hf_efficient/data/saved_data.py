"""What `save_to_disk` of `datasets` has written."""

from pathlib import Path


def saved_splits(path: Path) -> dict | None:
    """split -> `datasets.Dataset`; None if the folder is no such thing."""
    if not any((path / name).is_file() for name in ("dataset_dict.json", "state.json")):
        return None
    from datasets import load_from_disk

    found = load_from_disk(str(path))
    return dict(found) if isinstance(found, dict) else {"train": found}
