"""Memory carried by the trainer: over batches, accumulation, processes and resumes, apart from evaluation."""

import json
import math
import signal
from pathlib import Path

import language_runs
import numpy as np
import pytest
import torch
from language_runs import STEPS_PER_EPOCH, TINY, make, make_model, text
from runs import KillAt, Killed, assert_same, outcome
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModelForCausalLM

from hf_efficient.data.text_streams import TextStreams

pytestmark = pytest.mark.usefixtures("quickly")


def losses(trainer, name="loss"):
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def seen_after_each_step(trainer):
    """Trains, and says how many tokens each row of memory had seen after each step."""
    seen, step = [], trainer.training_step

    def spy(*args, **kwargs):
        loss = step(*args, **kwargs)
        seen.append(trainer.memories[0].layers[0].seen)
        return loss

    trainer.training_step = spy
    trainer.train()
    return seen


def test_training_is_a_loop_over_segments_that_carries_memory(tmp_path):
    trainer = make(tmp_path, max_grad_norm=0.5)
    trainer.train()
    model, tokens = make_model().train(), torch.from_numpy(text().tokens.astype(np.int64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.0)
    streams, memory, expected = tokens[:512].view(4, 128), None, []
    follow = torch.cat([streams[:, 1:], tokens[128:513:128, None]], 1)
    for start in range(0, 96, 8):
        part = slice(start, start + 8)
        outputs = model(streams[:, part], shift_labels=follow[:, part].contiguous(), memory=memory, use_cache=False)
        outputs.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()
        memory = outputs.memory
        expected.append([outputs.loss.item(), outputs.lm_loss.item(), outputs.auxiliary_loss.item()])
    found = zip(*(losses(trainer, name) for name in ("loss", "lm_loss", "auxiliary_loss")), strict=True)
    assert np.array(list(found)) == pytest.approx(np.array(expected), abs=1e-5)
    assert expected[-1][2] > 0  # something was compressed
    for name, x in memory.state_dict().items():
        torch.testing.assert_close(trainer.memories[0].state_dict()[name], x, rtol=1e-4, atol=1e-4)


def test_memory_begins_anew_with_every_epoch(tmp_path):
    seen = seen_after_each_step(make(tmp_path, max_steps=STEPS_PER_EPOCH + 1))
    assert seen == [[8 * (i + 1)] * 4 for i in range(STEPS_PER_EPOCH)] + [[8] * 4]


def test_random_order_forgets_after_every_crop(tmp_path):
    assert seen_after_each_step(make(tmp_path, order="random")) == [[8] * 4, [16] * 4, [24] * 4] * 4


def test_documents_begin_with_an_empty_memory_and_padding_stays_out(tmp_path):
    documents = text()._replace(documents=np.array([0, 20, 300]))  # 3 segments, the last of 4 tokens; 35; and the rest
    trainer = make(tmp_path, train=TextStreams(documents, 8, 4), max_steps=16)
    seen = seen_after_each_step(trainer)
    assert [rows[0] for rows in seen[:5]] == [8, 16, 20, 8, 16]
    assert all(math.isfinite(loss) for loss in losses(trainer))


def test_accumulation_equals_a_larger_batch(tmp_path):
    """Memory, normalisation of the loss and redraws included."""
    whole = make(tmp_path / "a", model=make_model().double())  # Adam makes much of float32's rounding
    whole.train()
    halves = make(tmp_path / "b", model=make_model().double(), batch=2, accumulate=2)
    halves.train()
    assert sorted(halves.memories) == [0, 2]
    for name in ("loss", "lm_loss", "auxiliary_loss"):
        assert losses(halves, name) == pytest.approx(losses(whole, name), abs=1e-5)
    for (name, a), b in zip(whole.model.state_dict().items(), halves.model.state_dict().values(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7, msg=name)
    assert whole.model.model.layers[0].memory_attention.attention.forwards == 12


SHORT_FIRST = {"length_schedule": {0: 2, 0.25: 4, 0.5: 8}}


def calls_while_training(trainer):
    """Trains, and returns input_ids and memory of every call of the model."""
    calls, forward = [], trainer.model.forward

    def spy(**inputs):
        calls.append((inputs["input_ids"], inputs.get("memory")))
        return forward(**inputs)

    trainer.model.forward = spy
    trainer.train()
    return calls


def test_short_texts_first_then_memory(tmp_path):
    """12 steps: 3 of texts of 2 tokens, 3 of 4, 6 of whole segments, from the second on with memory."""
    calls = calls_while_training(make(tmp_path / "a", **SHORT_FIRST))
    assert [tuple(ids.shape) for ids, _ in calls] == [(16, 2)] * 3 + [(8, 4)] * 3 + [(4, 8)] * 6
    assert [memory and memory.layers[0].seen[0] for _, memory in calls] == [None] * 7 + [8, 16, 24, 32, 40]
    usual = calls_while_training(make(tmp_path / "b"))  # reads the same in the same order
    assert all(torch.equal(ids.reshape(4, 8), others) for (ids, _), (others, _) in zip(calls, usual, strict=True))


def test_short_texts_are_texts_of_their_own(tmp_path):
    trainer = make(tmp_path, max_steps=1, length_schedule={0: 4})
    trainer.train()
    tokens = torch.from_numpy(text().tokens.astype(np.int64))[:512].view(4, 128)
    rows, labels = tokens[:, :8].reshape(8, 4), tokens[:, 1:9].reshape(8, 4)
    with torch.no_grad():
        expected = make_model().train()(rows, shift_labels=labels.contiguous(), use_cache=False).loss.item()
    assert losses(trainer) == pytest.approx([expected], abs=1e-5) and not trainer.memories


def test_documents_of_a_few_tokens_and_short_texts(tmp_path):
    """Some of the shorter rows are nothing but padding."""
    documents = text()._replace(documents=np.array([0, 20, 300]))
    trainer = make(tmp_path, train=TextStreams(documents, 8, 4), max_steps=16, **SHORT_FIRST)
    trainer.train()
    assert all(math.isfinite(loss) for loss in losses(trainer))


def run_here(folder, **options):
    language_runs.main(str(folder), json.dumps(options))


def command(folder, *words, **options) -> list[str]:
    """The same as a script."""
    return [language_runs.__file__, str(folder), json.dumps(options), *words]


def ended(folder, step):
    """The outcome of such a run, its weights, and the memory of all its streams."""
    memory = {}
    for file in sorted(Path(folder, f"checkpoint-{step}").glob("memory-*.safetensors")):
        memory |= {name: x for name, x in load_file(file).items() if name != "totals"}
    found = json.loads(Path(folder, "outcome.json").read_text())
    return found, load_file(Path(folder, "model.safetensors")), memory


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path, preloaded):
    """Streams 0 to 3 on one process, accumulated in two batches, and on two; evaluation on 4 streams."""
    saved = {"max_steps": 6, "save_strategy": "steps", "save_steps": 6, "batch": 2}
    run_here(tmp_path / "one", **saved, accumulate=2, evaluated=4)
    for run in preloaded.run_ranks(2, *command(tmp_path / "two", **saved, evaluated=2)):
        assert run.returncode == 0, run.stderr[-3000:]
    (one, weights, memory), (two, other_weights, other_memory) = (ended(tmp_path / name, 6) for name in ("one", "two"))
    for name in ("loss", "lm_loss", "auxiliary_loss"):
        assert [log[name] for log in two["logs"]] == pytest.approx([log[name] for log in one["logs"]], abs=1e-5)
    assert two["eval"] == pytest.approx(one["eval"], abs=1e-5)
    assert {name.split("/")[0] for name in memory} == {"0", "2"} and memory.keys() == other_memory.keys()
    for name, x in {**weights, **memory}.items():
        torch.testing.assert_close({**other_weights, **other_memory}[name], x, rtol=1e-3, atol=1e-4, msg=name)


@pytest.mark.slow
def test_kill_9_changes_nothing(tmp_path, preloaded):
    """Killed in the second epoch, between a checkpoint and the next."""
    options = {"max_steps": 22, "save_strategy": "steps", "save_steps": 4, "logging_steps": 3}
    run_here(tmp_path / "whole", **options)
    run = preloaded.run(*command(tmp_path / "killed", "19", **options))
    assert run.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "model.safetensors").exists()
    run_here(tmp_path / "killed", **options)
    assert_same(ended(tmp_path / "killed", 22), ended(tmp_path / "whole", 22))


def trained(folder, *callbacks, **options):
    """Everything that a resume must give back."""
    options = {"max_steps": 22, "save_strategy": "steps", "save_steps": 5, "logging_steps": 2, **options}
    trainer = make(folder, *callbacks, model=make_model(hidden_dropout_prob=0.1), batch=2, accumulate=2, **options)
    trainer.train(resume_from_checkpoint=True)
    return {
        **outcome(trainer),
        "memory": {stream: memory.state_dict() for stream, memory in sorted(trainer.memories.items())},
    }


@pytest.mark.parametrize(
    "options",
    [{"order": "contiguous"}, {"order": "random"}, SHORT_FIRST],
    ids=["contiguous", "random", "short texts first"],
)
def test_resume_is_bit_identical(tmp_path, options):
    """Within the first epoch, where the next one begins, and within that; the redraw counter is among the weights."""
    expected = trained(tmp_path / "whole", **options)
    for step in (7, 16, 21):
        with pytest.raises(Killed):
            trained(tmp_path / "killed", KillAt(step), **options)
    assert_same(trained(tmp_path / "killed", **options), expected)
    assert list(expected["memory"]) == [0, 2]


FEWEST_BITS = {
    **{"eval_strategy": "steps", "eval_steps": 2, "save_strategy": "steps", "metric_for_best_model": "bits_per_byte"},
    **{"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"factor": 0.5, "patience": 1}},
}


def overfit(folder, *callbacks):
    """A run on noise, which can be learnt by heart and helps with no other text."""
    random = np.random.default_rng(0)
    noise = text()._replace(tokens=random.integers(0, 32, 520).astype(np.uint8))
    trainer = make(
        folder,
        *callbacks,
        train=TextStreams(noise, 8, 4),
        max_steps=60,
        learning_rate=0.02,
        **FEWEST_BITS,
        early_stopping_patience=5,
    )
    trainer.train(resume_from_checkpoint=True)
    return trainer


def test_the_papers_schedule_acts_and_survives_a_resume(tmp_path):
    """A plateau halves the learning rate, a longer one ends the run; both count on where they were killed."""
    trainer = overfit(tmp_path / "whole")
    scores = losses(trainer, "eval_bits_per_byte")
    best = scores.index(min(scores))
    assert len(scores) == best + 6 and trainer.state.global_step == 2 * len(scores) < 60, "five evaluations no better"
    stepped = torch.optim.lr_scheduler.ReduceLROnPlateau(
        torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.02), factor=0.5, patience=1
    )
    rates = [0.02, 0.02]  # of the steps before the first evaluation
    for score in scores:
        stepped.step(score)
        rates += stepped.get_last_lr() * 2
    assert losses(trainer, "learning_rate") == rates[: 2 * len(scores)]
    assert rates[-1] <= 0.005, "twice"
    for step in (2 * best + 3, 2 * best + 8):  # before the first halving, and between it and the end
        with pytest.raises(Killed):
            overfit(tmp_path / "killed", KillAt(step))
    assert_same(outcome(overfit(tmp_path / "killed")), outcome(trainer))


def test_memory_is_saved_without_pickle(tmp_path):
    trainer = make(tmp_path, max_steps=5, save_strategy="steps", save_steps=5)
    trainer.train()
    (file,) = (tmp_path / "checkpoint-5").glob("memory-*")
    assert {"0/0.recent", "0/1.compressed", "0/0.seen"} <= set(load_file(file))
    with pytest.raises(ValueError, match="has no memory"):
        trainer.load_extra(tmp_path)


def test_evaluation_predicts_the_whole_text_with_its_own_memory(tmp_path):
    trainer = make(tmp_path, max_steps=5)
    trainer.train()
    before = {name: x.clone() for name, x in trainer.memories[0].state_dict().items()}
    found = trainer.evaluate()
    assert trainer.evaluate()["eval_loss"] == found["eval_loss"]  # it begins empty every time
    assert_same(trainer.memories[0].state_dict(), before)

    data, nats = text(100, seed=1), 0.0
    tokens = torch.from_numpy(data.tokens.astype(np.int64))
    model = trainer.model.eval()
    for first, segments in ((0, 5), (5, 4), (9, 4)):  # 13 segments on three streams, each as one long call
        stream = tokens[first * 8 : (first + segments) * 8 + 1]
        with torch.no_grad():
            logits = model(stream[None, :-1]).logits
        nats += torch.nn.functional.cross_entropy(logits[0], stream[1:], reduction="sum").item()
    assert found["eval_nats_per_token"] == found["eval_loss"] == pytest.approx(nats / 99, rel=1e-5)
    assert found["eval_perplexity"] == pytest.approx(math.exp(nats / 99), rel=1e-4)
    assert found["eval_bits_per_character"] == pytest.approx(nats / math.log(2) / 198, rel=1e-5)
    assert found["eval_bits_per_byte"] == pytest.approx(nats / math.log(2) / 297, rel=1e-5)


def test_evaluation_during_training_changes_nothing(tmp_path):
    plain = make(tmp_path / "a")
    plain.train()
    watched = make(tmp_path / "b", eval_strategy="steps", eval_steps=2, load_best_model_at_end=False)
    watched.train()
    assert losses(watched) == losses(plain)
    assert len(losses(watched, "eval_bits_per_byte")) == 6


def test_the_best_is_the_one_with_fewest_bits(tmp_path):
    trainer = make(tmp_path, max_steps=6, **FEWEST_BITS)
    trainer.train()
    assert trainer.state.best_metric == min(losses(trainer, "eval_bits_per_byte"))


SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
BASELINES = {
    "gpt2": {"model_type": "gpt2", "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 8},
    "llama": {"model_type": "llama", **SIZES},
    "performer": {**TINY, "model_type": "compressive_performer", "memory_length": 0, "compressed_memory_length": 0},
}


@pytest.mark.parametrize("name", BASELINES)
def test_models_without_memory_train_on_the_same_data(tmp_path, name):
    torch.manual_seed(0)
    ids = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    config = AutoConfig.for_model(**{**BASELINES[name], "vocab_size": 32, **ids})
    cached = config.use_cache
    trainer = make(tmp_path, model=AutoModelForCausalLM.from_config(config), max_steps=40, batch=2, accumulate=2)
    before = trainer.evaluate()["eval_bits_per_byte"]
    trainer.train()
    assert trainer.evaluate()["eval_bits_per_byte"] < before - 0.2
    assert losses(trainer)[0] == pytest.approx(math.log(32), abs=0.3)  # not multiplied by the accumulation
    assert not trainer.memories
    assert trainer.model.config.use_cache == cached


def test_bad_input(tmp_path):
    with pytest.raises(ValueError, match="streams=4, but batches of 2 rows on 1 processes, 1 per step, need 2"):
        make(tmp_path, train=TextStreams(text(), 8, 4), batch=2).train()
    trainer = make(tmp_path)
    with pytest.raises(ValueError, match="each token is predicted once"):
        trainer.evaluate(TextStreams(text(), 8, 3))
    with pytest.raises(ValueError, match="got list"):
        make(tmp_path, train=[{}]).train()
    with pytest.raises(ValueError, match="3 tokens don't divide segment_length=8"):
        make(tmp_path, length_schedule={0: 3, 0.5: 8}).train()
    with pytest.raises(ValueError, match=r"label_smoothing_factor=0\.1"):
        make(tmp_path, label_smoothing_factor=0.1)
