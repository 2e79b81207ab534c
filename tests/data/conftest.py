import pytest


@pytest.fixture
def own_caches(tmp_path_factory, monkeypatch):
    """Caches of `datasets` and of ours that live as long as the test."""
    import datasets

    tmp_path = tmp_path_factory.mktemp("caches")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setenv("HF_EFFICIENT_CACHE", str(tmp_path / "cache"))
    return tmp_path
