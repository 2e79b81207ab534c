"""One tiny trained model of each kind for all tests, and a clean folder for each."""

import pytest
import yaml

from hf_efficient.cli import main

TRAINING = {"max_steps": 2, "per_device_train_batch_size": 8, "disable_tqdm": True}
VIT = {"image_size": 8, "patch_size": 2, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
LANGUAGE = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "segment_length": 16}
RUNS = {
    "classifier": {
        "task": "image-classification",
        "dataset": {"name": "digits", "limit": 60, "evaluation_limit": 20},
        "model": {"model_type": "kerformer_vit", **VIT, "intermediate_size": 16},
    },
    "language_model": {
        "task": "text-generation",
        "dataset": {"name": "pydocs", "preset": "standard", "limit": 20000},
        "model": {"model_type": "compressive_performer", **LANGUAGE, "memory_length": 16},
    },
}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A function of the kind of model that gives its folder."""
    folder, known = tmp_path_factory.mktemp("models"), {}

    def train(kind: str) -> str:
        if kind not in known:
            file = folder / f"{kind}.yaml"
            file.write_text(yaml.safe_dump({**RUNS[kind], "training": TRAINING, "energy": {"enabled": False}}))
            assert main(["train", str(file), "--output_dir", str(folder / kind)]) == 0
            known[kind] = str(folder / kind)
        return known[kind]

    return train
