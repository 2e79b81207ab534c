"""What `make demo` shows and leaves, in a few steps of training."""

import os
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_demo_trains_reports_and_uses_both_models(preloaded, tmp_path):
    """It starts a new process for each training."""
    (tmp_path / "digits_hugginggreen_vit").mkdir()
    (tmp_path / "digits_hugginggreen_vit" / "left_over").touch()  # of an earlier demonstration
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = (ROOT / "scripts" / "demo.py", "--steps", "2", "--output", tmp_path)
    done = preloaded.run(*command, env=environment, cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].startswith("  hf-efficient app ")
    assert len(done.stdout.splitlines()) < 80 - 18 - 3, "the whole of it has 18 epochs and 3 evaluations more"
    assert "torchao" not in done.stderr and "_pytree" not in done.stderr
    for word in (
        "accuracy",
        "micro-F1",
        "bits per byte",
        "energy",
        "of three unseen digits:",
        "  | The import statement",
        "hf-efficient predict",
    ):
        assert word in done.stdout
    tasks = {"digits_hugginggreen_vit": "image-classification", "pydocs_compressive_performer": "text-generation"}
    for name, task in tasks.items():
        assert ModelCard.load(tmp_path / name / "README.md").data.pipeline_tag == task
        assert (tmp_path / name / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "digits_hugginggreen_vit" / "kept_patches.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "digits_hugginggreen_vit" / "left_over").exists()
    assert "bits per byte" in (tmp_path / "pydocs_compressive_performer" / "README.md").read_text()
