"""What is written beside the weights: exactly the code that a checkpoint uses, flat, and whole at any moment."""

import ast
import inspect
import json
import os
import re
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel, AutoModelForImageClassification, Trainer, TrainingArguments
from transformers.dynamic_module_utils import get_relative_import_files

import hf_efficient
from hf_efficient import KerformerViTConfig, KerformerViTForImageClassification, remote_code
from hf_efficient.attention import attention_options, get_attention, list_attentions, register_attention, registry
from hf_efficient.attention.base import FLAGS
from hf_efficient.attention.mechanisms_without_code import declare_attention, describe_attention
from hf_efficient.models.auto import FAMILIES

VIT = {
    "image_size": 16,
    "patch_size": 8,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
}
CLASSES = [name for name in list_attentions() if get_attention(name).__module__.startswith("hf_efficient.")]


def vit(**fields) -> KerformerViTForImageClassification:
    return KerformerViTForImageClassification(KerformerViTConfig(**{**VIT, **fields}))


def python_files(folder: Path) -> dict[str, str]:
    return {file.name: file.read_text(encoding="utf-8") for file in folder.glob("*.py")}


@pytest.mark.parametrize("family", FAMILIES)
def test_every_auto_class_is_named_and_its_class_is_there(family, tmp_path):
    config = getattr(hf_efficient, FAMILIES[family].config)()
    config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["auto_map"] == {
        "AutoConfig": f"configuration_{family}.{FAMILIES[family].config}",
        **{auto: f"modeling_{family}.{name}" for auto, name in FAMILIES[family].classes().items()},
    }
    assert "model_module" not in saved
    for file, name in (ref.split(".") for ref in saved["auto_map"].values()):
        tree = ast.parse((tmp_path / f"{file}.py").read_text(encoding="utf-8"))
        assert any(isinstance(node, ast.ClassDef) and node.name == name for node in tree.body)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_file_is_missing_and_none_is_needless(family, tmp_path):
    getattr(hf_efficient, FAMILIES[family].config)().save_pretrained(tmp_path)
    modeling = tmp_path / f"modeling_{family}.py"
    followed = {Path(file).name for file in get_relative_import_files(modeling)} | {modeling.name}
    assert followed == set(python_files(tmp_path))
    assert not any(f"modeling_{other}.py" in followed for other in FAMILIES if other != family)


@pytest.mark.parametrize("name", CLASSES)
def test_only_the_mechanism_of_the_config_goes_along(name, tmp_path):
    fields = {"use_cls_token": not get_attention(name).needs_grid}
    KerformerViTConfig(**VIT, attention=name, **fields).save_pretrained(tmp_path)
    found = {file.removeprefix("attention_").removesuffix(".py") for file in python_files(tmp_path)}
    source = inspect.getsource(inspect.getmodule(get_attention(name)))
    built_on = {other for other in CLASSES if f"from .{other} import" in source}
    assert found & set(CLASSES) == {name} | built_on


def test_only_import_lines_are_changed(tmp_path):
    KerformerViTConfig(**VIT).save_pretrained(tmp_path)
    source = Path(hf_efficient.__file__).parent
    for flat, home in {"linear_chunked": "linear/chunked", "layers_block": "layers/block"}.items():
        signature, *lines = (tmp_path / f"{flat}.py").read_text(encoding="utf-8").splitlines()
        assert signature.startswith(f"# From hf_efficient {hf_efficient.__version__}, {home.replace('/', '.')}.")
        for line, original in zip(lines, (source / f"{home}.py").read_text().splitlines(), strict=True):
            assert line == original or re.fullmatch(r"from \.\w+ import .*", line), line


def test_imports_become_flat():
    source = "from ...linear.chunked import (\n    A,\n    B,\n)\n\n\ndef f():\n    from ..base import C\n"
    text, imports = remote_code.rewrite(source, "hf_efficient.models.x.modeling_x")
    assert text == source.replace("...linear.chunked", ".linear_chunked").replace("..base", ".models_base")
    assert imports == [("hf_efficient.linear.chunked", ["A", "B"]), ("hf_efficient.models.base", ["C"])]


def test_an_example_in_a_docstring_is_no_import(tmp_path):
    source = '"""Like this:\n\n    from .nowhere import x\nfrom\n  .elsewhere import y\n"""\n\nfrom .base import A\n'
    text, imports = remote_code.rewrite(source, "hf_efficient.attention.lsh")
    assert imports == [("hf_efficient.attention.base", ["A"])]
    (tmp_path / "attention_base.py").write_text("A = 1\n")
    (tmp_path / "entry.py").write_text(text)
    assert get_relative_import_files(tmp_path / "entry.py") == [str(tmp_path / "attention_base.py")]
    before, after = (ast.get_docstring(ast.parse(code)).split() for code in (source, text))
    assert before == after


def test_an_import_that_can_not_be_followed_is_named():
    with pytest.raises(ValueError, match=r"line 2: `from \. import base` can't be followed"):
        remote_code.rewrite("import math\nfrom . import base\n", "hf_efficient.attention.lsh")


def test_another_mechanism_in_the_same_folder(tmp_path):
    (tmp_path / "mine.py").write_text("print('not hf_efficient')\n")
    KerformerViTConfig(**VIT, attention="performer").save_pretrained(tmp_path)
    KerformerViTConfig(**VIT, attention="softmax").save_pretrained(tmp_path)
    files = python_files(tmp_path)
    assert "attention_softmax.py" in files
    assert not {"attention_performer.py", "attention_kernel_attention.py", "linear_chunked.py"} & set(files)
    assert files["mine.py"] == "print('not hf_efficient')\n"


def test_a_save_that_fails_leaves_whole_files(tmp_path, monkeypatch):
    model = vit()
    model.save_pretrained(tmp_path)
    before = python_files(tmp_path)

    def full(self, *args, **kwargs):
        with open(self, "w") as file:
            file.write("half a fi")
        raise OSError("No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        model.save_pretrained(tmp_path)
    monkeypatch.undo()
    assert python_files(tmp_path) == before
    assert not list(tmp_path.glob(".*"))


def test_every_save_touches_the_files_that_are_to_be_pushed(tmp_path):
    """`save_pretrained(push_to_hub=True)` sends what is newer than its call."""
    model = vit()
    model.save_pretrained(tmp_path)
    for file in tmp_path.iterdir():
        os.utime(file, (1, 1))
    model.save_pretrained(tmp_path)
    assert [file.name for file in tmp_path.iterdir() if file.stat().st_mtime == 1] == []


def test_sources_are_read_once(tmp_path, monkeypatch):
    model = vit()
    model.save_pretrained(tmp_path / "first")
    monkeypatch.setattr(remote_code, "_source", None)
    model.save_pretrained(tmp_path / "second")
    assert python_files(tmp_path / "first") == python_files(tmp_path / "second")


def test_checkpoints_of_a_trainer_hold_it(tmp_path):
    rows = [{"pixel_values": torch.randn(3, 16, 16), "labels": i % 2} for i in range(4)]
    args = TrainingArguments(tmp_path, max_steps=1, save_steps=1, use_cpu=True, disable_tqdm=True)
    Trainer(vit(), args, train_dataset=rows).train()
    files = {file.name for file in (tmp_path / "checkpoint-1").iterdir()}
    assert {"config.json", "model.safetensors", "modeling_kerformer_vit.py", "attention_kerformer.py"} <= files
    assert AutoModelForImageClassification.from_pretrained(tmp_path / "checkpoint-1").config.auto_map


def test_no_flag_and_no_prompt_where_hf_efficient_is_imported(tmp_path, monkeypatch):
    vit().save_pretrained(tmp_path)
    monkeypatch.setattr("builtins.input", None)
    for options in ({}, {"trust_remote_code": True}, {"trust_remote_code": False}):
        assert type(AutoConfig.from_pretrained(tmp_path, **options)) is KerformerViTConfig
        model = AutoModelForImageClassification.from_pretrained(tmp_path, **options)
        assert type(model) is KerformerViTForImageClassification
        assert type(AutoModel.from_config(model.config, **options)) is hf_efficient.KerformerViTModel


def test_registering_by_hand_is_harmless(tmp_path):
    KerformerViTConfig.register_for_auto_class()
    KerformerViTForImageClassification.register_for_auto_class("AutoModelForImageClassification")
    vit().save_pretrained(tmp_path)
    assert len(AutoConfig.from_pretrained(tmp_path).auto_map) == 4


def test_an_adapter_is_saved_without_code(tmp_path):
    """A repository of an adapter has no config.json of ours, so it needs no code."""
    pytest.importorskip("peft")
    from peft import LoraConfig

    model = vit()
    model.add_adapter(LoraConfig(target_modules=["q_proj"]))
    model.save_pretrained(tmp_path)
    assert not python_files(tmp_path)


@pytest.fixture
def own_registry(monkeypatch):
    monkeypatch.setattr(registry, "_MECHANISMS", dict(registry._MECHANISMS))
    remote_code.flatten.cache_clear()
    yield
    remote_code.flatten.cache_clear()


def test_a_mechanism_of_someone_else_is_named(tmp_path, own_registry):
    @register_attention
    class SomeoneElses(get_attention("softmax")):
        pass

    model = vit(attention="someone_elses")
    with pytest.warns(UserWarning, match="attention='someone_elses' is defined in .*test_remote_code.* is not saved"):
        model.save_pretrained(tmp_path)
    again = AutoModelForImageClassification.from_pretrained(tmp_path)
    assert type(again.vit.layers[0].attention).__name__ == "SomeoneElses"
    assert "declare_attention('someone_elses', {}" in (tmp_path / "attention.py").read_text()


def test_a_config_of_someone_else_is_saved_without_code(tmp_path):
    class OtherConfig(KerformerViTConfig):
        model_type = "other_vit"

    with pytest.warns(UserWarning, match="OtherConfig is defined in .*test_remote_code"):
        OtherConfig(**VIT).save_pretrained(tmp_path)
    assert not python_files(tmp_path)
    assert "auto_map" not in json.loads((tmp_path / "config.json").read_text())


def test_a_model_of_someone_else_is_named(tmp_path):
    class Other(KerformerViTForImageClassification):
        pass

    with pytest.warns(UserWarning, match="Other is not one of hf_efficient's models"):
        Other(KerformerViTConfig(**VIT)).save_pretrained(tmp_path)
    assert type(AutoModelForImageClassification.from_pretrained(tmp_path)) is KerformerViTForImageClassification


@pytest.mark.parametrize("name", CLASSES)
def test_an_absent_mechanism_is_known_but_not_built(name, own_registry):
    present, options = get_attention(name), attention_options(name)
    call = describe_attention(present)
    del registry._MECHANISMS[name]
    exec(call, {"declare_attention": declare_attention})
    absent = get_attention(name)
    assert absent is not present and attention_options(name) == options
    for flag in FLAGS:
        assert getattr(absent, flag) == getattr(present, flag), flag
    assert absent.has_weights() == present.has_weights()
    assert (absent.absorb is None) == (present.absorb is None)
    with pytest.raises(ImportError, match=f"the code of '{name}' attention is not in this repository"):
        registry.build_attention(name, 8, 2)
