"""What holds for every subcommand: its help, its exit code, one line for what went wrong."""

import re
from pathlib import Path

import pytest

from hf_efficient import extras
from hf_efficient.cli import COMMANDS, main, run, subcommand
from hf_efficient.errors import CommandError

ROOT = Path(__file__).parents[2]


def test_help_teaches_a_line_and_an_example_of_each(capsys):
    assert main(["--help"]) == 0
    text = capsys.readouterr().out
    for name in COMMANDS:
        assert re.search(rf"^  {name} +\S.*\n +hf-efficient {name} \S", text, flags=re.M), name
    assert main([]) == 0 and capsys.readouterr().out == text


@pytest.mark.parametrize("name", COMMANDS)
def test_every_subcommand_has_help(name, capsys):
    try:
        code = main([name, "--help"])
    except SystemExit as stopped:  # argparse does
        code = stopped.code
    text = capsys.readouterr().out
    assert code == 0 and f"hf-efficient {name}" in text
    assert subcommand(name).__doc__.splitlines()[0] in text


def test_the_version(capsys):
    assert main(["--version"]) == 0
    assert re.fullmatch(r"hf-efficient \d+\.\d+\.\d+\S*\n", capsys.readouterr().out)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["trian"], "there is no command 'trian'. Did you mean train?"),
        (["xyz"], "there is no command 'xyz'. There are train, evaluate"),
        (["train"], "which run?"),
        (["train", "--seed", "1"], "which run?"),
        (["evaluate"], "required: model"),
        (["predict"], "required: model"),
        (["list", "colours"], "invalid choice: 'colours'"),
        (["push", "folder", "me/model", "--private", "--public"], "not allowed with argument"),
        (["energy", "a.yaml", "-n", "0"], "--repetitions 0 must be at least 1"),
        (["energy", "a.yaml", "--first-seed", "-1"], "--first-seed: -1 must be a whole number, at least 0"),
        (["evaluate", "model", "digits", "--batch-size", "0"], "--batch-size: 0 must be a whole number, at least 1"),
        (["evaluate", "model", "digits", "--limit", "ten"], "--limit: ten must be a whole number, at least 1."),
        (
            ["predict", "model", "x", "--temperature", "nan"],
            "--temperature: nan must be a number, at least 0, at most 100",
        ),
        (["predict", "model", "x", "--max-new-tokens", "1000000000000"], "at least 1, at most 1,000,000."),
        (["predict", "model", "x", "--seed", "-1"], "--seed: -1 must be a whole number, at least 0"),
        (["pull", "me/model", "--timeout", "inf"], "--timeout: inf must be a number, at least 0.001."),
    ],
)
def test_bad_usage_is_2(words, said, capsys):
    try:
        code = main(words)
    except SystemExit as stopped:
        code = stopped.code
    assert code == 2 and said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["train", "cifar10_kerformer_vit_smal"], "Did you mean cifar10_kerformer_vit_small?"),
        (["train", "nothing/like/this.yaml"], "`hf-efficient list configs` shows what there is."),
        (["train", "digits_hugginggreen_vit", "--learning_ratee", "1"], "did you mean learning_rate?"),
        (["predict", "no/model", "cat.png"], "no/model can't be read as a model"),
        (["export", "no/model"], "no/model can't be read as a model"),
        (["push", "nowhere", "me/model"], "there is no folder nowhere"),
    ],
)
def test_what_fails_is_1_and_one_line(words, said, capsys, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_" + "x" * 34)
    assert main(words) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("Error: ") and said in line


def test_ctrl_c_is_130(capsys):
    def interrupted():
        raise KeyboardInterrupt

    assert run(interrupted) == 130 and "Traceback" not in capsys.readouterr().err


def test_a_mistake_of_ours_is_a_traceback():
    """An error that nobody has put into words must not look like bad usage."""
    with pytest.raises(ZeroDivisionError):
        run(lambda: 1 / 0)


def test_options_may_be_written_with_underscores(monkeypatch):
    given = {}

    def pretend(folder, repo_id, **options):
        given.update(options)
        raise CommandError("enough")

    monkeypatch.setattr("hf_efficient.hub.push", pretend)
    for option in ("--dry-run", "--dry_run"):
        assert main(["push", "some_folder", "me/my_model", option, "--message=a_b"]) == 1
        assert given["dry_run"] is True and given["message"] == "a_b"


# Optional dependencies


@pytest.mark.parametrize(
    ("words", "absent", "extra"),
    [
        (["train", "digits_hugginggreen_vit"], "accelerate", "train"),
        (["evaluate", "model", "digits"], "sklearn", "train"),
        (["energy", "digits_hugginggreen_vit"], "codecarbon", "energy"),
        (["export", "model"], "onnxruntime", "export"),
    ],
)
def test_a_missing_extra_is_named(words, absent, extra, capsys, monkeypatch):
    there = extras.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == absent else there(name))
    assert main(words) == 1
    assert capsys.readouterr().err == f'Error: {absent} is missing: pip install "hf-efficient[{extra}]"\n'


def test_extras_are_those_of_pyproject():
    tomllib = pytest.importorskip("tomllib")  # of Python 3.11
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    modules = {"scikit-learn": "sklearn"}
    for extra, names in extras.EXTRAS.items():
        stated = [re.match(r"[\w-]+", text)[0] for text in project["optional-dependencies"][extra]]
        assert sorted(names) == sorted(modules.get(name, name) for name in stated), extra
    assert "pillow" in project["dependencies"]
    assert project["scripts"] == {"hf-efficient": "hf_efficient.cli:main"}


# As a process


def test_python_m_is_the_same(capsys, bare, preloaded):
    done = bare.run("-m", "hf_efficient", "--help", cwd=ROOT)
    main(["--help"])
    assert done.returncode == 0 and done.stdout == capsys.readouterr().out
    assert preloaded.run("-m", "hf_efficient", "nonsense").returncode == 2


def test_a_command_does_not_look_for_garbage_when_it_is_done(preloaded):
    """That took a second of processor time; on a busy machine `--timeout 5` ended after 12."""
    code = "import atexit, gc; atexit.register(lambda: print(len(gc.get_objects()))); import hf_efficient.cli"
    done = preloaded.run("-c", f"{code}; kept = [[] for _ in range(10_000)]")
    assert int(done.stdout) < 5_000, done.stderr
