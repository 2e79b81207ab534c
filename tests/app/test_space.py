"""A Space: what it holds, and that it runs by itself."""

import re
import sys
from pathlib import Path

import pytest
import tomllib
import yaml
from browsing import Visitor, serve

from hf_efficient.app import space
from hf_efficient.cli import main
from hf_efficient.errors import CommandError

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    return space.write("hugginggreen-vit-cifar10", tmp_path_factory.mktemp("spaces") / "one")


def test_what_a_space_holds(written):
    _, metadata, _ = (written / "README.md").read_text().split("---\n", 2)
    metadata = yaml.safe_load(metadata)
    assert metadata["sdk"] == "gradio" and metadata["app_file"] == "app.py"
    assert metadata["title"] == "hugginggreen-vit-cifar10" and "models" not in metadata
    assert (written / "model/hugginggreen-vit-cifar10/model.safetensors").is_file()
    assert (written / "hf_efficient/app/leaderboard.json").is_file()
    assert not list(written.rglob("__pycache__")) and not list((written / "hf_efficient/zoo").glob("*/config.json"))
    assert sum(file.stat().st_size for file in written.rglob("*")) < 5e6
    compile((written / "app.py").read_text(), "app.py", "exec")


def test_requirements_are_those_of_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert list(space.REQUIREMENTS) == project["dependencies"]
    (gradio,) = project["optional-dependencies"]["app"]
    least = re.search(r">=(\d+)\.(\d+)", gradio).groups()
    assert tuple(map(int, least)) <= tuple(map(int, space.GRADIO.split(".")[:2]))
    assert f"gradio=={space.GRADIO}\n" in (ROOT / "constraints.txt").read_text()


def test_it_is_written_again_but_not_over_other_things(written, tmp_path):
    before = (written / "app.py").read_text()
    assert space.write("hugginggreen-vit-cifar10", written) == written and (written / "app.py").read_text() == before
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(CommandError, match="holds something else"):
        space.write("hugginggreen-vit-cifar10", tmp_path)


def test_a_model_by_name(tmp_path, monkeypatch):
    monkeypatch.setattr(space, "task_of", lambda model: "image-classification")
    folder = space.write('me/vit"); exit("', tmp_path / "space", title='A "title": yes')
    text = (folder / "app.py").read_text()
    assert '"me/vit\\"); exit(\\""' in text and not (folder / "model").exists()
    metadata = yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])
    assert metadata["title"] == 'A "title": yes'


def test_the_command_without_a_target_is_told(capsys):
    with pytest.raises(SystemExit):
        main(["space", "hugginggreen-vit-cifar10"])
    assert "give --push, --to, or both" in capsys.readouterr().err


@pytest.mark.browser
def test_it_runs_by_itself(chromium, tmp_path):
    """In a process that finds hf_efficient in the Space and nowhere else."""
    folder = space.write("hugginggreen-vit-cifar10", tmp_path / "space")
    page = folder / "hf_efficient/app/page/__init__.py"
    page.write_text(page.read_text().replace("<h1>hf_efficient</h1>", "<h1>of the Space</h1>"))
    process, address, log = serve([sys.executable, "app.py"], folder, GRADIO_SERVER_PORT="7893")
    try:
        guest = Visitor(chromium, address)
        guest.page.get_by_role("heading", name="of the Space").wait_for()
        guest.page.get_by_role("button", name="airplane").click()
        guest.page.locator("#kept table").wait_for()
        assert guest.page.get_by_role("tab").all_inner_texts() == ["Look", "Compare"]
        guest.check()
        guest.context.close()
    finally:
        process.terminate()
        process.wait(10)
    assert ":7893" in address and "Traceback" not in log.read_text()
