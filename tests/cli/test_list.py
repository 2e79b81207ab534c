"""Models, mechanisms and configs, and which of them a filter leaves."""

import pytest

from hf_efficient.attention import get_attention, list_attentions
from hf_efficient.attention.registry import is_linear
from hf_efficient.cli import main
from hf_efficient.cli.list import FLAGS
from hf_efficient.training.configs import list_configs


def listed(capsys, *words) -> list[str]:
    assert main(["list", *words]) == 0
    return [line.split()[0] for line in capsys.readouterr().out.splitlines()[1:]]


def test_everything(capsys):
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    models, mechanisms, configs = text.split("\n\n")
    assert models.startswith("model ") and "KerformerViTForImageClassification" in models
    assert mechanisms.startswith("mechanism ") and configs.startswith("config ")


@pytest.mark.parametrize("option", FLAGS)
def test_a_filter_is_a_flag_of_the_mechanisms(option, capsys):
    flag = FLAGS[option][0]
    having = [name for name in list_attentions() if getattr(get_attention(name), flag, False)]
    assert listed(capsys, "mechanisms", f"--{option}") == having
    assert listed(capsys, "mechanisms", f"--no-{option}") == [x for x in list_attentions() if x not in having]


@pytest.mark.parametrize("word", ["mechanisms", "--mechanisms"])
def test_a_kind_may_be_an_option(word, capsys):
    assert listed(capsys, word) == list(list_attentions())
    assert "softmax" not in listed(capsys, word, "--linear")


def test_filters_add_up(capsys):
    both = listed(capsys, "--causal", "--linear")  # which only mechanisms have
    assert "performer" in both and "softmax" not in both and "linformer" not in both


@pytest.mark.parametrize(
    ("cost", "linear"), [("N²D", False), ("2ND² + NR", True), ("Nd log Nd", False), ("NmD", True), ("N(R+C)D", False)]
)
def test_linear_is_what_the_cost_says(cost, linear):
    assert is_linear(cost) is linear


def test_models(capsys):
    assert {"hugginggreen_vit", "kerformer_vit", "mobilevit_v2", "compressive_performer"} <= set(
        listed(capsys, "models")
    )


def test_configs_by_task(capsys):
    assert listed(capsys, "configs") == list(list_configs())
    texts = listed(capsys, "configs", "--task", "text-generation")
    assert "pydocs_compressive_performer" in texts and "digits_hugginggreen_vit" not in texts
