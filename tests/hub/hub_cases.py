"""What is pushed and pulled in the tests."""

import json
from pathlib import Path


def write_model(folder: Path, seed: int = 0, size: int = 200_000) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({"model_type": "vit", "seed": seed}))
    (folder / "model.safetensors").write_bytes(
        seed.to_bytes(4, "big") + (bytes(range(251)) * (size // 251 + 1))[: size - 4]
    )
    return folder
