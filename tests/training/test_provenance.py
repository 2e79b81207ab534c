"""What results say about the code and the process that they came from."""

import subprocess

import torch

import hf_efficient
from hf_efficient.training import provenance
from hf_efficient.training.provenance import code_version, commit, is_tracked, peak_memory, resident


def git(folder, *words):
    identity = ["-c", "user.name=nobody", "-c", "user.email=nobody@localhost"]
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


def test_a_package_in_somebody_elses_repository_has_a_version_only(tmp_path, monkeypatch):
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "one")
    package = tmp_path / "site-packages/hf_efficient"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    monkeypatch.setattr(provenance, "PACKAGE", package)
    assert commit(package) and not is_tracked(package / "__init__.py")
    assert code_version.__wrapped__() == f"v{hf_efficient.__version__}"
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "two")
    assert code_version.__wrapped__() == commit(package)
    (package / "__init__.py").write_text("changed")
    assert code_version.__wrapped__() == f"{commit(package).removesuffix('-dirty')}-dirty"


def test_without_git_there_is_the_version(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert code_version.__wrapped__() == f"v{hf_efficient.__version__}"


def test_the_peak_counts_what_was_freed():
    before = resident("VmRSS")
    torch.ones(64 * 2**20 // 4)
    assert peak_memory() >= before + 60 * 2**20
    assert resident("VmNothing") is None
