"""Train, evaluate, predict and export by the command line."""

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

import hf_efficient
from hf_efficient import image_processor_for, onnx_export, onnx_language
from hf_efficient.cli import bench, main
from hf_efficient.errors import CommandError

MOBILEVIT = {"image_size": 64, "width_multiplier": 0.25, "n_attn_blocks": [1, 1, 1], "aspp_out_channels": 16}
LABELS = ["ant", "bee", "cat"]


@pytest.fixture
def picture(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (24, 20, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "picture.png")
    return "picture.png"


def test_a_shipped_run_trains_by_its_name_in_an_empty_folder(capsys):
    small = ("--max_steps", "1", "--limit", "40", "--hidden_size", "16", "--num_hidden_layers", "1")
    assert main(["train", "digits_hugginggreen_vit", *small, "--energy.enabled", "false"]) == 0
    results = json.loads(Path("results/digits_hugginggreen_vit/results.json").read_text())
    assert results["run"] == "digits_hugginggreen_vit" and results["steps"] == 1
    assert Path("results/digits_hugginggreen_vit/model.safetensors").is_file()


def test_the_keys_of_a_shipped_run(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["train", "digits_hugginggreen_vit", "--help"])
    text = capsys.readouterr().out
    assert stopped.value.code == 0 and "top_k" in text and "learning_rate" in text


@pytest.mark.parametrize("program", ["/usr/bin/hf-efficient", "/lib/hf_efficient/__main__.py"])
def test_the_command_in_a_card_is_what_one_types(program, monkeypatch):
    from hf_efficient.training.run import load_run

    monkeypatch.setattr(sys, "argv", [program, "train", "digits_hugginggreen_vit", "--seed", "1"])
    Path("run.yaml").write_text("task: image-classification\nmodel: {model_type: vit}\ntraining: {use_cpu: true}")
    assert load_run(["run.yaml"]).command == "hf-efficient train digits_hugginggreen_vit --seed 1"


def test_several_runs_are_stages(monkeypatch):
    given = []
    monkeypatch.setattr("hf_efficient.training.tasks.stages.train_in_stages", lambda *words: given.append(words))
    assert main(["train", "first", "second", "--seed", "3"]) == 0
    assert given == [(["first", "second"], ["--seed", "3"])]


def test_evaluate(trained, capsys):
    assert main(["evaluate", trained("classifier"), "digits", "--limit", "20", "--output", "scores.json"]) == 0
    scores = json.loads(Path("scores.json").read_text())
    before = json.loads((Path(trained("classifier")) / "results.json").read_text())
    assert scores["metrics"]["accuracy"] == before["metrics"]["eval_accuracy"]
    assert "accuracy" in capsys.readouterr().out


def test_predict_an_image(trained, picture, capsys):
    model = trained("classifier")
    capsys.readouterr()
    assert main(["predict", model, picture, picture]) == 0
    first, second = capsys.readouterr().out.split("\n\n")
    assert first.splitlines()[0] == picture and len(first.splitlines()) == 6 and second.strip() == first
    assert main(["predict", model, picture, "--top-k", "2", "--json"]) == 0
    (record,) = json.loads(capsys.readouterr().out)
    assert record["task"] == "image-classification" and len(record["predictions"]) == 2
    assert f"{record['predictions'][0]['score']:.4f}  {record['predictions'][0]['label']}" in first
    hidden = Image.open(picture)
    hidden.putalpha(0)
    hidden.save("hidden.png")
    Image.new("RGB", hidden.size, "white").save("white.png")
    assert main(["predict", model, "hidden.png", "white.png", "--json"]) == 0
    seen, white = (record["predictions"] for record in json.loads(capsys.readouterr().out))
    assert seen == white  # as in training
    assert main(["predict", model, "nowhere.png"]) == 1
    assert capsys.readouterr().err == "Error: there is no image nowhere.png.\n"


def test_predict_a_text(trained, capsys, monkeypatch):
    model = trained("language_model")
    capsys.readouterr()
    assert main(["predict", model, "The import", "--max-new-tokens", "8"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("The import") and len(text) > len("The import\n")
    monkeypatch.setattr(sys, "stdin", io.StringIO("The import"))
    assert main(["predict", model, "--max-new-tokens", "8"]) == 0
    assert capsys.readouterr().out == text  # the same seed


@pytest.mark.parametrize(
    ("head", "task"), [("ForObjectDetection", "object-detection"), ("ForSemanticSegmentation", "image-segmentation")]
)
def test_predict_boxes_and_segments(head, task, picture, capsys):
    config = hf_efficient.MobileViTv2Config(**MOBILEVIT, id2label=dict(enumerate(LABELS)))
    model = getattr(hf_efficient, f"MobileViTv2{head}")(config).eval()
    model.save_pretrained("model")
    image_processor_for(model.config, task).save_pretrained("model")
    assert main(["predict", "model", picture, "--threshold", "0.0"]) == 0
    found = capsys.readouterr().out.splitlines()[1:]
    assert found and all(any(label in line for label in LABELS) for line in found)
    assert main(["predict", "model", picture, "--threshold", "0.0", "--json"]) == 0
    predictions = json.loads(capsys.readouterr().out)[0]["predictions"]
    if task == "image-segmentation":
        assert sum(row["mask"] for row in predictions) == pytest.approx(1, abs=1e-3)
    else:
        assert "xmin" in found[0] and predictions[0]["box"].keys() == {"xmin", "ymin", "xmax", "ymax"}


def test_export(trained, capsys):
    model, images = trained("classifier"), torch.randn(4, 3, 8, 8)
    capsys.readouterr()
    assert main(["export", model, "--to", "out/model.onnx"]) == 0
    assert "pixel_values (batch, 3, 8, 8) -> logits" in capsys.readouterr().out
    network = onnx_export.load(model, trust_remote_code=False)
    names, difference = onnx_export.compare(network, images, Path("out/model.onnx"))
    assert names == ["logits"] and difference < 1e-5
    torch.nn.init.normal_(network.classifier.weight)  # now it is another model
    with pytest.raises(CommandError, match="was written, but onnxruntime's logits differs by"):
        onnx_export.compare(network, images, Path("out/model.onnx"))


EXPORTERS = ("transformers.exporters.exporter_onnx.OnnxExporter.export", "torch.onnx.export")


@pytest.mark.parametrize("kind", ["classifier", "language_model"])
def test_exports_that_fail(trained, kind, monkeypatch, capsys):
    """On a full disk, and of operators that ONNX does not know (those of `lsh`, for one)."""

    def save(file):
        raise OSError(28, "No space left on device")

    def export(*_, **__):
        raise torch.onnx.OnnxExporterError("Error when translating\nnode %sort_default")

    for function, said in (
        (lambda *_, **__: SimpleNamespace(save=save), "onnx can't be written: [Errno 28] No space left"),
        (export, "torch.onnx can't translate a"),
    ):
        for exporter in EXPORTERS:
            monkeypatch.setattr(exporter, function)
        assert main(["export", trained(kind), "--to", "model.onnx"]) == 1
        assert said in capsys.readouterr().err.splitlines()[-1]


def test_export_of_the_language_model(trained, capsys):
    model = trained("language_model")
    capsys.readouterr()
    assert main(["export", model, "--to", "out/writer.onnx"]) == 0
    assert "Written: out/writer_segment.onnx" in capsys.readouterr().out
    network = AutoModelForCausalLM.from_pretrained(model).eval()
    assert onnx_language.compare(network, "out/writer.onnx") < 1e-5
    torch.nn.init.normal_(network.lm_head.weight)  # now it is another model
    with pytest.raises(CommandError, match="was written, but onnxruntime's logits differ by"):
        onnx_language.compare(network, "out/writer.onnx")


def test_what_cannot_be_exported_is_told(capsys):
    GPT2LMHeadModel(GPT2Config(n_embd=16, n_layer=1, n_head=2, vocab_size=32)).save_pretrained("gpt2")
    assert main(["export", "gpt2"]) == 1
    assert "GPT2LMHeadModel, which can't be exported: image classifiers" in capsys.readouterr().err


BENCHMARKS = """
from types import SimpleNamespace

BENCHMARKS = {"attention": SimpleNamespace(help="of attention", main=lambda words: len(words))}
"""


def test_bench_calls_what_a_clone_has(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(bench, "CLONE", tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "benchmarks", raising=False)
    assert main(["bench"]) == 1 and "need a clone of the repository" in capsys.readouterr().err
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "__init__.py").write_text(BENCHMARKS)
    assert main(["bench"]) == 0 and "hf-efficient bench attention" in capsys.readouterr().out
    assert main(["bench", "attention", "--quick", "1"]) == 2  # as many as it was given words
    assert main(["bench", "atention"]) == 2 and "Did you mean attention?" in capsys.readouterr().err
    monkeypatch.delitem(sys.modules, "benchmarks")
