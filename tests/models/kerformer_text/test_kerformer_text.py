"""Kerformer for text: padding, positions, pairs, and what is said of texts that don't fit."""

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorForMultipleChoice, pipeline

from hf_efficient import (
    KerformerTextConfig,
    KerformerTextForMaskedLM,
    KerformerTextForSequenceClassification,
    KerformerTextForSequencePairClassification,
    KerformerTextModel,
)
from hf_efficient.attention import list_attentions
from hf_efficient.data.tokenization import build_tokenizer

CLASSIFIER, FILLER = KerformerTextForSequenceClassification, KerformerTextForMaskedLM
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 40,
    "num_labels": 5,
}
FITTING = [name for name in list_attentions() if not KerformerTextConfig().misfit(name)]
ROTARY = [name for name in list_attentions() if not KerformerTextConfig(position_embedding="rotary").misfit(name)]


def tiny_config(**fields) -> KerformerTextConfig:
    return KerformerTextConfig(**{**SMALL, **fields})


def texts(config):
    return torch.randint(config.vocab_size, (3, 20), generator=torch.Generator().manual_seed(1))


def stirred(cls: type = CLASSIFIER, **fields):
    torch.manual_seed(0)
    model = cls(tiny_config(**fields))
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(1)) * 0.1)
    return model.eval()


def padded(ids, left: int, right: int) -> dict:
    noise = torch.randint(200, (len(ids), left + right), generator=torch.Generator().manual_seed(4))
    mask = torch.nn.functional.pad(torch.ones_like(ids), (left, right))
    return {"input_ids": torch.cat([noise[:, :left], ids, noise[:, left:]], 1), "attention_mask": mask}


def check_padding(model):
    ids = texts(model.config)
    expected = model(ids).logits
    assert expected.std() > 0.1
    for sides in ((0, 7), (7, 0), (3, 4)):
        torch.testing.assert_close(model(**padded(ids, *sides)).logits, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("attention", FITTING)
@torch.no_grad()
def test_padding_on_either_side_changes_nothing(attention):
    check_padding(stirred(attention=attention))


@pytest.mark.parametrize("attention", ROTARY)
@torch.no_grad()
def test_padding_changes_nothing_with_rotary_positions_and_cls(attention):
    check_padding(stirred(attention=attention, position_embedding="rotary", pooling="cls"))


@torch.no_grad()
def test_ngrams_of_real_tokens_alone():
    """Each token's vector also has the n-grams that end there, whatever is padded; they are made of tokens."""
    model = stirred(ngrams=3, ngram_buckets=50)
    check_padding(model)
    ids = texts(model.config)
    changed = ids.clone()
    changed[:, 3] = (ids[:, 3] + 1) % 200
    first, second = (model.encoder.embed_ngrams(x)[0] for x in (ids, changed))
    differs = (first != second).any(-1).any(0)
    assert differs.nonzero().flatten().tolist() == [3, 4, 5]
    with pytest.raises(ValueError, match=r"ngrams=3: .* give input_ids, not inputs_embeds"):
        model(inputs_embeds=torch.zeros(1, 4, model.config.hidden_size))


def test_which_mechanisms_fit():
    assert {"kerformer", "softmax", "performer", "linformer", "nystrom", "separable"} <= set(FITTING)
    with pytest.raises(ValueError, match=r"attention='window' needs a grid .* Mechanisms that fit: .*kerformer"):
        tiny_config(attention="window")
    with pytest.raises(ValueError, match="attention='fnet' can't leave padding out"):
        tiny_config(attention="fnet")
    with pytest.raises(ValueError, match="attention='mixer' has no queries and keys that rotary positions could turn"):
        tiny_config(attention="mixer", position_embedding="rotary")


@torch.no_grad()
@pytest.mark.parametrize(
    ("attention", "options"),
    [
        ("gaussian_mixture", {"keys": "multi", "num_keys": 2}),
        ("longformer", {"num_global": 1, "separate_global": True}),
    ],
)
def test_several_keys_per_head_have_no_rotary_positions(attention, options):
    config = tiny_config(attention=attention, attention_options=options, position_embedding="rotary")
    with pytest.raises(ValueError, match=f"turns one key per head, and with these .* '{attention}' has several"):
        KerformerTextModel(config)


def test_rotary_positions_are_relative_and_learned_ones_are_not():
    """Softmax sees distances only: a text further on is the same text."""
    for kind in ("rotary", "learned"):
        model = stirred(attention="softmax", position_embedding=kind)
        ids = texts(model.config)
        moved = model(ids, position_ids=torch.arange(ids.shape[1])[None] + 9).logits
        assert torch.allclose(moved, model(ids).logits, atol=1e-5) == (kind == "rotary")
        assert not torch.allclose(model(ids.flip(1)).logits, model(ids).logits, atol=1e-3), "order matters"


@torch.no_grad()
def test_rotary_attention_is_its_formula():
    """q and k times e^{ipω}, written out with sines and cosines."""
    attention = stirred(KerformerTextModel, attention="softmax", position_embedding="rotary").layers[0].attention
    x = torch.randn(2, 9, 32, generator=torch.Generator().manual_seed(2))
    q, k, v = attention.project(x)
    angles = torch.arange(9)[:, None] * 10000 ** (-torch.arange(0, 16, 2) / 16)

    def turn(y):
        even, odd = y[..., ::2], y[..., 1::2]
        parts = even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()
        return torch.stack(parts, -1).flatten(-2)

    expected = attention.merge_heads((turn(q) @ turn(k).mT / 4).softmax(-1) @ v)
    torch.testing.assert_close(attention(x).hidden_states, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_pooling():
    model = stirred(KerformerTextModel)
    batch = padded(texts(model.config), 2, 5)
    output = model(**batch)
    real = output.last_hidden_state[:, 2:-5]
    torch.testing.assert_close(output.pooler_output, real.mean(1))
    model = stirred(KerformerTextModel, pooling="cls")
    output = model(**batch)
    assert torch.equal(output.pooler_output, output.last_hidden_state[:, 0])
    assert output.last_hidden_state.shape[1] == batch["input_ids"].shape[1] + 1
    filler = stirred(FILLER, pooling="cls")
    assert filler(**batch).logits.shape[:2] == batch["input_ids"].shape


# Pairs


@torch.no_grad()
def test_a_pair_is_two_texts_through_one_encoder(tmp_path):
    model = stirred(KerformerTextForSequencePairClassification)
    tokenizer = build_tokenizer("byte", padding=True)
    rows = [{**tokenizer(["a film", "the same film"]), "label": 1}, {**tokenizer(["a film", "no"]), "label": 0}]
    batch = dict(DataCollatorForMultipleChoice(tokenizer)(rows))
    assert batch["input_ids"].shape[:2] == (2, 2)
    output = model(**batch)
    a, b = (
        model.encoder(tokenizer(text, return_tensors="pt")["input_ids"]).pooler_output for text in ("a film", "no")
    )
    hidden = torch.nn.functional.gelu(model.dense(torch.cat([a, b, a * b, a - b], 1)))
    torch.testing.assert_close(output.logits[1:], model.classifier(hidden), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(output.loss, torch.nn.functional.cross_entropy(output.logits, batch["labels"]))
    model.save_pretrained(tmp_path)
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert type(again) is type(model) and torch.equal(again(**batch).logits, output.logits)
    with pytest.raises(
        ValueError, match=r"input_ids must be \(batch, 2, tokens\): two texts in each row, got \(2, 9\)"
    ):
        model(torch.ones(2, 9, dtype=torch.long))
    with pytest.raises(ValueError, match="labels holds 9"):
        model(**{**batch, "labels": torch.tensor([0, 9])})


# Texts and tokenizers


@pytest.mark.parametrize("level", ["byte", "bpe", "word"])
def test_pipelines_with_every_tokenizer(level, tmp_path, caplog):
    text = "The cat sat on the mat. " * 9
    tokenizer = build_tokenizer(level, text.encode(), vocab_size=300, min_count=1, padding=True, mask=True)
    tasks = {"text-classification": CLASSIFIER, "fill-mask": FILLER}
    for task, cls in tasks.items():
        model = stirred(cls, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id)
        model.save_pretrained(tmp_path / task)
        tokenizer.save_pretrained(tmp_path / task)
    classify, fill = (pipeline(task, model=str(tmp_path / task)) for task in tasks)
    assert "is not supported" not in caplog.text
    said = ["The cat sat", "The mat on the cat sat."]
    alone, together = [classify(x)[0] for x in said], classify(said, batch_size=2)
    assert [x["label"] for x in alone] == [x["label"] for x in together]
    assert [x["score"] for x in alone] == pytest.approx([x["score"] for x in together], abs=1e-5)
    ids = AutoTokenizer.from_pretrained(tmp_path / "fill-mask")("The <mask> sat", return_tensors="pt")
    (at,) = (ids["input_ids"][0] == tokenizer.mask_token_id).nonzero()
    best = fill.model(**ids).logits[0, at].argmax()
    assert fill("The <mask> sat")[0]["token"] == best
    with pytest.raises(ValueError, match=r"input_ids of \(1, 0\) is empty"):
        classify("")
    with pytest.raises(
        ValueError, match=r"has \d+ tokens, but the model has max_position_embeddings=40: cut the text"
    ):
        classify(text)
    assert classify(text, truncation=True, max_length=40)


def test_an_empty_text_among_others_is_named():
    batch = build_tokenizer("byte", padding=True)(["a text", "", "another"], padding=True, return_tensors="pt")
    with pytest.raises(ValueError, match="attention_mask has no real token in row 1: its text is empty"):
        stirred()(**batch)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "give either input_ids or inputs_embeds"),
        (
            {"input_ids": torch.full((1, 3), 300)},
            r"input_ids holds 300, but the tokens are 0 to 257 \(vocab_size=258\)",
        ),
        ({"attention_mask": torch.ones(1, 2)}, r"attention_mask must be \(1, 3\), got \(1, 2\)"),
        ({"position_ids": torch.tensor([[0, 1, 40]])}, "position_ids holds 40, but positions are 0 to 39"),
        ({"position_ids": torch.arange(4)[None]}, r"position_ids must be \(1, 3\), got \(1, 4\)"),
    ],
)
def test_bad_input_is_named(given, message):
    given = given and {"input_ids": torch.ones(1, 3, dtype=torch.long), **given}
    with pytest.raises(ValueError, match=message):
        stirred()(**given)


def test_labels_of_masks_out_of_range_are_named():
    model = stirred(FILLER)
    ids = texts(model.config)
    with pytest.raises(ValueError, match="labels holds 258, but the model has labels 0 to 257"):
        model(ids, labels=torch.full_like(ids, 258))
    only = torch.full_like(ids, -100)
    only[:, 3] = 7
    expected = torch.nn.functional.cross_entropy(model(ids).logits[:, 3], only[:, 3])
    torch.testing.assert_close(model(ids, labels=only).loss, expected)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"pooling": "max"}, "pooling='max' must be one of 'mean', 'cls'"),
        ({"position_embedding": "sine"}, "position_embedding='sine' must be one of 'learned', 'rotary'"),
        ({"position_embedding": "rotary", "hidden_size": 30}, "heads of 15 channels"),
        ({"ngrams": 1}, r"ngrams=1 must be 0 \(none\), or 2 or more"),
        ({"pad_token_id": 258}, "pad_token_id=258 must lie within vocab_size=258"),
    ],
)
def test_config_errors(fields, message):
    with pytest.raises(ValueError, match=message):
        tiny_config(**fields)


def test_presets_and_tables():
    config = KerformerTextConfig.from_preset("lra_text", num_labels=2, pooling="cls")
    assert (config.max_position_embeddings, config.hidden_size, config.num_hidden_layers) == (4000, 256, 4)
    assert config.options_of_layer(0)["max_length"] == 4001
    with pytest.raises(ValueError, match="unknown preset 'lra'; known: lra_listops"):
        KerformerTextConfig.from_preset("lra")


def test_embeddings_grow_and_stay_tied():
    model = stirred(FILLER)
    model.resize_token_embeddings(270)
    assert model.config.vocab_size == 270 and model.lm_head.weight is model.get_input_embeddings().weight
    assert model(torch.tensor([[269, 3]])).logits.shape == (1, 2, 270)
