import pytest


@pytest.fixture
def quickly(monkeypatch):
    """Without pictures and without waiting for the disk, where neither is what is tested."""
    monkeypatch.setattr("hf_efficient.training.trainer.draw_curves", lambda *_: None)
    monkeypatch.setattr("hf_efficient.training.checkpoints.force_to_disk", lambda _: None)
