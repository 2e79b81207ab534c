"""Models that leave one process and arrive in another, through the Hub: with transformers, Trainer and pipelines."""

import json
from pathlib import Path

import pytest
from loopback_client import Client, ClientError

MODELS = ["vit", "gpt2", "kerformer_vit", "hugginggreen_vit", "mobilevit_v2", "compressive_performer"]
AUTO = {"gpt2": "AutoModelForCausalLM", "compressive_performer": "AutoModelForCausalLM"}
IMPORTS = "import json, torch, transformers\nfrom pathlib import Path\nfrom hub_models import build, outputs\n"
BLOCK = "import sys; sys.modules['hf_efficient'] = None\n"
TRAINER = """
from hf_efficient.training.arguments import EfficientTrainingArguments
from hf_efficient.training.trainer import EfficientTrainer

def trainer(folder, repo, token=None, hub_timeout=2, **options):
    model, processor = build("kerformer_vit")
    images = torch.rand(8, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    rows = [{"pixel_values": image, "labels": i % 3} for i, image in enumerate(images)]
    args = EfficientTrainingArguments(
        folder, push_to_hub=True, hub_model_id=repo, hub_token=token, max_steps=4, save_strategy="steps", save_steps=2,
        eval_strategy="no", per_device_train_batch_size=2, disable_tqdm=True, use_cpu=True,
        hub_timeout=hub_timeout, **options,
    )
    return EfficientTrainer(model, args, train_dataset=rows, processing_class=processor)
"""


@pytest.fixture(scope="module")
def author(running_hub, tmp_path_factory):
    """A process with hf_efficient."""
    with Client(running_hub, tmp_path_factory.mktemp("author"), running_hub.alice) as client:
        client.run(IMPORTS + "import hf_efficient\nfrom hf_efficient import hub")
        yield client


@pytest.fixture(scope="module")
def reader(running_hub, tmp_path_factory):
    """A process that can't import hf_efficient, with a cache of its own."""
    home = tmp_path_factory.mktemp("reader")
    with Client(running_hub, home, running_hub.alice) as client:
        client.home = home
        client.run(BLOCK + IMPORTS)
        yield client


@pytest.fixture(scope="module")
def shared(running_hub, author):
    """Repositories with a model each, private for a part, and what the models say; made when they are asked for."""
    said = {}

    def share(name):
        if name not in said:
            private = name in ("vit", "kerformer_vit", "compressive_performer")
            code = f"parts = build({name!r}); hub.push(parts, 'alice/{name}', private={private})"
            said[name] = author.run(f"{code}; result = outputs(parts[0])")
        return f"alice/{name}", said[name]

    return share


@pytest.mark.parametrize("name", MODELS)
def test_01_a_pushed_model_loads_elsewhere_with_equal_logits(hub, author, reader, shared, name):
    repo, said = shared(name)
    auto = AUTO.get(name, "AutoModelForImageClassification")
    load = f"model = transformers.{auto}.from_pretrained({repo!r}"
    assert reader.run(f"{load}, trust_remote_code=True); result = outputs(model)") == said
    module = author.run(f"{load}); assert outputs(model) == {said}; result = type(model).__module__")
    assert module.startswith("transformers." if name in ("vit", "gpt2") else "hf_efficient.")
    assert hub.leaks(hub.alice) == []


def test_01_shards_and_code_on_a_branch(hub, author, reader, tmp_path):
    said = author.run(f"""
    model, processor = build("hugginggreen_vit")
    model.save_pretrained({str(tmp_path)!r}, max_shard_size="20KB")
    hub.push({str(tmp_path)!r}, "alice/shards", branch="sharded")
    result = outputs(model)
    """)
    assert "model.safetensors.index.json" in hub.head("alice/shards", "sharded").files
    assert list(hub.head("alice/shards").files) == [".gitattributes"]
    load = "transformers.AutoModelForImageClassification.from_pretrained('alice/shards', revision='sharded', "
    assert reader.run(f"result = outputs({load}trust_remote_code=True))") == said


def test_01_transformers_own_push_works_too(author, reader):
    said = author.run("parts = build('kerformer_vit'); parts[0].push_to_hub('alice/own'); result = outputs(parts[0])")
    load = "transformers.AutoModelForImageClassification.from_pretrained('alice/own', trust_remote_code=True)"
    assert reader.run(f"result = outputs({load})") == said


@pytest.mark.parametrize("name", ["vit", "kerformer_vit", "gpt2", "compressive_performer"])
def test_02_a_pipeline_knows_its_task(reader, shared, name):
    repo, _ = shared(name)
    code = f"""
    from PIL import Image
    pipe = transformers.pipeline(model={repo!r}, trust_remote_code=True)
    given = "The " if pipe.task == "text-generation" else Image.new("RGB", (40, 40), "red")
    result = pipe.task, pipe(given, **({{"max_new_tokens": 3}} if pipe.task == "text-generation" else {{}}))
    """
    task, answer = reader.run(code)
    assert task == ("text-generation" if name in AUTO else "image-classification") and answer


def test_08_what_is_damaged_is_not_loaded(hub, author, shared, tmp_path):
    repo, said = shared("gpt2")
    load = f"hub.pull({repo!r}, cache_dir={str(tmp_path)!r}, timeout=3)"
    load = f"result = outputs(transformers.AutoModelForCausalLM.from_pretrained({load}))"
    hub.fail("flip", "GET", "/blob/", at=5000, times=99)
    with pytest.raises(ClientError, match="arrived damaged"):
        author.run(load)
    hub.mend()
    assert author.run(load) == said


@pytest.mark.parametrize("family", ["kerformer_vit", "compressive_performer"])
def test_13_a_local_shard_index_that_points_outside_is_refused(author, tmp_path, family):
    code = f"""
    model = build({family!r})[0]
    model.save_pretrained({str(tmp_path / "model")!r})
    folder = Path({str(tmp_path)!r})
    (folder / "out").mkdir()
    (folder / "model/model.safetensors").rename(folder / "out/x.safetensors")
    index = {{"metadata": {{}}, "weight_map": {{name: "../out/x.safetensors" for name in model.state_dict()}}}}
    (folder / "model/model.safetensors.index.json").write_text(json.dumps(index))
    type(model).from_pretrained(folder / "model")
    """
    with pytest.raises(ClientError, match="lies outside the folder; it will not be loaded"):
        author.run(code)


def test_13_a_local_tokenizer_that_points_outside_is_refused(author, tmp_path):
    """A pipeline loads the model first, which looks at its folder; AutoTokenizer alone would read that file."""
    code = f"""
    folder = Path({str(tmp_path)!r})
    parts = build("compressive_performer")
    for part in parts:
        part.save_pretrained(folder / "model")
    parts[1].save_pretrained(folder / "out")
    (folder / "model/special_tokens_map.json").write_text(json.dumps({{"tokenizer_file": "../out/tokenizer.json"}}))
    transformers.pipeline("text-generation", model=str(folder / "model"))
    """
    with pytest.raises(ClientError, match=r"tokenizer_file names .*, no file of the folder; it will not be loaded"):
        author.run(code)


def test_15_offline_what_is_cached_loads_without_a_request_and_the_rest_is_a_clear_error(hub, author, reader, shared):
    said = {name: shared(name) for name in ("gpt2", "kerformer_vit")}
    for name, (repo, _) in said.items():
        auto = AUTO.get(name, "AutoModelForImageClassification")
        reader.run(f"transformers.{auto}.from_pretrained({repo!r}, trust_remote_code=True)")
    hub.plant("alice/cold", {"config.json": json.dumps({"model_type": "gpt2"}).encode()})
    hub.mend()
    with Client(hub, reader.home, hub.alice, HF_HUB_OFFLINE="1") as offline:
        offline.run(IMPORTS + "import hf_efficient\nfrom hf_efficient import hub")
        for name, (repo, logits) in said.items():
            auto = AUTO.get(name, "AutoModelForImageClassification")
            assert offline.run(f"result = outputs(transformers.{auto}.from_pretrained({repo!r}))") == logits
            assert Path(offline.run(f"result = hub.pull({repo!r})"), "config.json").is_file()
        with pytest.raises(ClientError, match="not in the cache, and HF_HUB_OFFLINE is set"):
            offline.run("hub.pull('alice/cold')")
        with pytest.raises(ClientError, match=r"offline|find.*in the cached files"):
            offline.run("transformers.AutoModelForCausalLM.from_pretrained('alice/cold')")
    assert not hub.requests


@pytest.fixture(scope="module")
def training(author):
    author.run(TRAINER + "\nimport gc; gc.freeze()")  # or every Trainer looks for garbage among the modules
    return author


@pytest.mark.parametrize("strategy", ["every_save", "all_checkpoints"])
def test_14_a_trainer_with_a_token_leaks_it_nowhere(hub, training, reader, tmp_path, strategy):
    repo = f"bob/{strategy}"
    said = training.run(f"""
    run = trainer({str(tmp_path)!r}, {repo!r}, {hub.bob!r}, hub_strategy={strategy!r}, hub_always_push=True)
    run.train()
    run.push_to_hub()
    result = outputs(run.model)
    """)
    assert hub.leaks(hub.bob) == [] and hub.leaks(hub.alice) == []
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "training_args.bin" for path in written)
    assert not [path for path in written if hub.bob.encode() in path.read_bytes()]
    assert hub.bob not in training.stderr()
    files = hub.head(repo).files
    assert {"config.json", "model.safetensors", "README.md", "preprocessor_config.json"} <= set(files)
    assert ("checkpoint-2/optimizer.pt" in files) is (strategy == "all_checkpoints")
    assert not [name for name in files if "/" not in name and name.endswith((".bin", ".pt", ".pth"))]
    load = f"transformers.AutoModelForImageClassification.from_pretrained({repo!r}, trust_remote_code=True)"
    assert reader.run(f"result = outputs({load})") == said


def test_16_a_push_that_fails_in_training_is_told_and_made_up_for(hub, training, repo, tmp_path):
    hub.fail("status", "POST", "/commit/", status=500, times=4)
    failures, steps = training.run(f"""
    run = trainer({str(tmp_path)!r}, {repo!r}, hub_timeout=6)
    run.train()
    result = run.push_failures, run.state.global_step
    """)
    assert steps == 4 and failures == []
    told = training.stderr()
    assert f"pushing to {repo}: not done within 6 s" in told and "the last problem: the Hub answered 500" in told
    assert "this will be tried again at its end" in told
    weights = (tmp_path / "checkpoint-4/model.safetensors").read_bytes()
    assert hub.bytes_of(repo, "model.safetensors") == weights
    assert "trainer_state.json" not in hub.head(repo).files and not list(tmp_path.glob("_pushing"))


def test_06_all_that_is_left_to_push_has_one_deadline(hub, training, repo, tmp_path):
    hub.fail("hang", "POST", "/commit/", times=999)
    failure, seconds = training.run(f"""
    import time
    run = trainer({str(tmp_path)!r}, {repo!r}, hub_timeout=4)
    run.pushes_results = True
    run.train()
    start = time.monotonic()
    try:
        run.push_to_hub()
    except Exception as error:
        result = str(error), time.monotonic() - start
    """)
    assert "not done within 4 s (--timeout, in training --hub_timeout, allows for more)" in failure
    assert "the last problem: http://" in failure and "/commit/" not in failure
    assert seconds < 8, "one push that fails, and a second each for those after it"


def test_16_a_hub_that_is_away_does_not_stop_training(hub, training, repo, tmp_path):
    hub.fail("hang", "POST", "/api/repos/create", times=99)
    failures = training.run(f"""
    run = trainer({str(tmp_path)!r}, {repo!r})
    run.train()
    result = run.push_failures
    """)
    assert failures and f"pushing to {repo}: not done within 2 s" in failures[0]
    assert "It was the last attempt" in training.stderr()
    assert (tmp_path / "checkpoint-4/model.safetensors").is_file()
    with pytest.raises(ClientError, match="not done within 2 s") as raised:
        training.run("run.push_to_hub()")
    assert raised.value.kind == "HubError"
    hub.mend()
    assert training.run("run.push_to_hub(); result = run.push_failures") == []
    assert "model.safetensors" in hub.head(repo).files


def test_16_a_last_push_that_fails_is_an_error_and_leaves_the_run_whole(hub, training, repo, tmp_path):
    """A training script's own; the same run again has only to push."""
    sections = {
        "task": "image-classification",
        "dataset": {"name": "digits", "limit": 50},
        "model": {"model_type": "kerformer_vit", "image_size": 8, "patch_size": 4, "hidden_size": 16}
        | {"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16},
        "training": {"max_steps": 2, "output_dir": str(tmp_path / "out"), "push_to_hub": True}
        | {"hub_model_id": repo, "hub_strategy": "end"},
        "energy": {"enabled": False},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(sections))
    code = f"""
    from hf_efficient.training.tasks import train
    result = train({str(tmp_path / "run.yaml")!r}, [])["steps"]
    """
    hub.fail("status", "POST", "/commit/", status=403, times=9)
    with pytest.raises(ClientError, match=f"pushing to {repo}: your token may not do this") as raised:
        training.run(code)
    assert raised.value.kind == "HubError"
    assert all((tmp_path / "out" / name).is_file() for name in ("model.safetensors", "results.json", "README.md"))
    hub.mend()
    assert training.run(code) == 2
    assert hub.bytes_of(repo, "model.safetensors") == (tmp_path / "out/model.safetensors").read_bytes()


def test_11_a_trainer_with_a_wrong_token_stops_before_it_trains(hub, training, repo, tmp_path):
    wrong = "hf_" + "y" * 34
    with pytest.raises(ClientError, match="the Hub does not accept your token") as raised:
        training.run(f"trainer({str(tmp_path)!r}, {repo!r}, {wrong!r})")
    assert raised.value.kind == "HubError" and wrong not in raised.value.message
