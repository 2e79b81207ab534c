"""N-grams that are embedded with each token: padding, new texts, beams, what is kept of them."""

import pytest
import torch
from compressive_performer_cases import SMALL_TABLES, TINY, in_calls, make, text

from hf_efficient.models.compressive_performer.cache import CompressiveMemory

FIELDS = {**SMALL_TABLES, "ngrams": 4}


@pytest.fixture(scope="module")
def model():
    return make(**FIELDS)


@torch.no_grad()
def test_padding_stands_before_nobody(model):
    """On any side, and in the middle; also of the calls that follow."""
    ids = text(1, 11)
    whole = model(ids).logits
    for places in ([0, 1, 2], [13, 12, 11], [4, 5, 9], [0, 6, 13]):
        mask = torch.ones(1, 14, dtype=torch.bool)
        mask[0, places] = False
        padded = torch.zeros(1, 14, dtype=torch.long)
        padded[mask] = ids
        for cuts in ([], [1], [5, 10]):
            torch.testing.assert_close(in_calls(model, padded, cuts, mask=mask)[0][mask], whole[0])


@torch.no_grad()
def test_a_new_text_has_nothing_before_it(model):
    first, second = text(2, 7), text(2, 9, seed=5)
    memory = model(first, use_cache=True).memory
    begun = model(second, memory=memory, reset=torch.tensor([True, False])).logits
    torch.testing.assert_close(begun[:1], model(second[:1]).logits)
    torch.testing.assert_close(begun[1:], model(torch.cat([first, second], 1)).logits[1:, 7:])


@torch.no_grad()
def test_the_given_memory_stays_as_it_is(model):
    memory = model(text(2, 7), use_cache=True).memory
    kept = memory.layers[0].tokens.clone()
    model(text(2, 5, seed=3), memory=memory)
    assert memory.layers[0].tokens.equal(kept)


@torch.no_grad()
def test_a_saved_memory_goes_on(model):
    ids = text(2, 12)
    memory = model(ids[:, :7], use_cache=True).memory
    loaded = CompressiveMemory.from_state_dict(memory.state_dict(), model.config)
    torch.testing.assert_close(model(ids[:, 7:], memory=loaded).logits, model(ids).logits[:, 7:])


@torch.no_grad()
def test_beams_are_told_apart(model):
    """Beam search equals a search by hand: rows of the cache move with their beams."""
    ids = text(1, 5)
    found = model.generate(ids, num_beams=3, max_new_tokens=6, do_sample=False)
    beams = [(0.0, ids)]
    for _ in range(6):
        grown = []
        for score, tokens in beams:
            log = model(tokens).logits[0, -1].log_softmax(-1)
            grown += [(score + log[i].item(), torch.cat([tokens, i.view(1, 1)], 1)) for i in log.topk(3).indices]
        beams = sorted(grown, key=lambda beam: -beam[0])[:3]
    assert found.equal(beams[0][1])


def test_embeddings_without_tokens_are_refused(model):
    with pytest.raises(ValueError, match=r"ngrams=4.*input_ids"):
        model(inputs_embeds=torch.zeros(1, 4, TINY["hidden_size"], dtype=torch.float64))


def test_what_comes_later_changes_nothing_before_it(model):
    ids = text(1, 20)
    other = ids.clone()
    other[0, 11] = (ids[0, 11] + 1) % TINY["vocab_size"]
    assert model(ids).logits[:, :11].equal(model(other).logits[:, :11])


@pytest.mark.parametrize(
    ("name", "value"), [("ngrams", -1), ("ngrams", 1), ("ngrams", 1.5), ("ngram_buckets", 0), ("ngram_width", -4)]
)
def test_the_sizes_are_checked(name, value):
    with pytest.raises((ValueError, TypeError), match=name):
        make(**{**FIELDS, name: value})
