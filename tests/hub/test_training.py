"""A training script that pushes, in a process of its own: what arrives, what is told, and what is seen nowhere."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from huggingface_hub import ModelCard
from loopback_card import validate_card
from loopback_client import environment

from hf_efficient.training.evaluation import evaluate

SCRIPTS = Path(__file__).parents[2] / "scripts"
REPO = "bob/pushed-by-a-script"
SIZES = {"image_size": 8, "patch_size": 2, "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
RUN = {
    "dataset": {"name": "digits", "limit": 100, "evaluation_limit": 37},
    "model": {"model_type": "kerformer_vit", **SIZES, "intermediate_size": 16},
    "training": {
        **{"max_steps": 6, "per_device_train_batch_size": 8, "eval_strategy": "steps", "eval_steps": 3},
        **{"push_to_hub": True, "hub_model_id": REPO, "hub_private_repo": True, "hub_always_push": True},
    },
    "energy": {"country": "DEU"},
}


@pytest.fixture(scope="module")
def trained(running_hub, bare, tmp_path_factory):
    """A run whose pushes in mid-training are refused, with a token on its command line."""
    running_hub.mend()
    folder = tmp_path_factory.mktemp("run")
    (folder / "run.yaml").write_text(yaml.safe_dump(RUN))
    running_hub.fail("status", "POST", "/commit/", status=403, times=2)
    words = ("run.yaml", "--output_dir", "out", "--hub_token", running_hub.bob)
    variables = environment(running_hub, folder / "home")
    finished = bare.run(SCRIPTS / "train_image_classifier.py", *words, env=variables, cwd=folder)
    assert finished.returncode == 0, finished.stderr[-3000:]
    leaks, judged = running_hub.leaks(running_hub.bob), running_hub.seen("POST", "/api/validate-yaml")
    said = finished.stdout + finished.stderr
    return SimpleNamespace(folder=folder, out=folder / "out", said=said, leaks=leaks, judged=judged)


def test_16_pushes_that_fail_are_told_and_made_up_for_when_training_is_over(trained, hub):
    told = [line for line in trained.said.splitlines() if f"pushing to {REPO}: your token may not do this" in line]
    assert len(told) == 2 and all("Training goes on; this will be tried again at its end" in line for line in told)
    assert "It was the last attempt" not in trained.said and "Traceback" not in trained.said
    last, before = hub.head(REPO), hub.head(REPO).parent
    assert [before.parent.title, before.title, last.title] == [
        *("initial commit", "Training in progress, step 6", "End of training"),
    ]
    assert hub.store.repositories["model", REPO].private
    for name in ("model.safetensors", "config.json", "README.md", "results.json", "preprocessor_config.json"):
        assert hub.bytes_of(REPO, name) == (trained.out / name).read_bytes(), name
    assert not [name for name in last.files if name.endswith((".bin", ".pt", ".pth")) or name.startswith("_")]


def test_14_the_token_of_a_script_is_seen_nowhere(trained, hub):
    assert trained.leaks == [] and hub.bob not in trained.said
    written = [path for path in trained.folder.rglob("*") if path.is_file()]
    assert {"training_args.bin", "run.yaml", "results.json", "history.csv"} <= {path.name for path in written}
    assert not [path for path in written if hub.bob.encode() in path.read_bytes()]
    assert "--hub_token (secret)" in json.loads((trained.out / "results.json").read_text())["command"]


def test_17_the_card_of_a_run_is_valid_and_says_what_its_evaluation_found(trained, hub, client):
    """The Hub's validation is asked, and the pushed model is evaluated anew."""
    text = hub.bytes_of(REPO, "README.md").decode()
    assert text in [json.loads(request.body)["content"] for request in trained.judged]
    assert validate_card(text) == ([], [])
    shown = re.findall(r"!\[.+\]\((.+)\)", text)
    assert shown == ["predictions.png", "confusion.png", "curves.png"]
    for name in (*shown, "example.png"):
        assert hub.bytes_of(REPO, name) == (trained.out / name).read_bytes(), name
    card = ModelCard(text).data
    assert card.widget[0]["src"] == "example.png" and f'pipeline("image-classification", "{REPO}")' in text
    stated = {(result.metric_type, str(result.metric_args)): result.metric_value for result in card.eval_results}
    pulled = trained.folder / "pulled"
    client.run(f"hub.pull({REPO!r}, local_dir={str(pulled)!r}, token={hub.bob!r})")
    found = evaluate(str(pulled), "digits", limit=37)["metrics"]
    results = json.loads((trained.out / "results.json").read_text())["metrics"]
    for metric in ("accuracy", "loss", "micro_f1", "macro_f1"):
        arguments = {"average": metric.split("_")[0]} if metric.endswith("f1") else None
        value = stated.pop((metric.split("_")[-1], str(arguments)))
        assert value == results[f"eval_{metric}"] == pytest.approx(found[metric], rel=1e-6), metric
    assert not stated
    assert card.co2_eq_emissions["emissions"] > 0 and card.pipeline_tag == "image-classification"
