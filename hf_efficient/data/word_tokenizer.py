"""Words that keep their spaces and end their sentences: decode(encode(text)) == text, up to what is <unk>.

A token is a word, a number or a mark, as NLTK's simple tokenizer has them, together with the space before it: " cat"
and "cat" are two tokens. Other white space is a token for each character. After the end of a sentence stands </s>,
which decodes to nothing (Ragupathi et al. 2021 delimit sentences before they cut words). So every token stands for a
string of its own, and what is decoded in parts is what is decoded at once: pipelines append a continuation as it is.

A word that is too rare is <unk>, and the space before it a token of its own: "the <unk> sat". To have that, known
words are the vocabulary of a BPE model without merges. It looks for the whole piece first, and then for its
characters. The space is one of them; all others are written otherwise within a piece (INSIDE) and alone (ALONE), so
that none is found, and what is not found becomes one <unk>.
"""

from collections.abc import Iterable

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

UNKNOWN, SENTENCE_END = "<unk>", "</s>"
WRITTEN_OUT = "<\u2060/s>"  # what stands in the text ends no sentence: with a word joiner, which takes no room
ALONE, INSIDE = "</w>", "\0"
ALWAYS = (UNKNOWN, SENTENCE_END, " ", "\n", "\t", "\r", "\u2060")
PIECE = r"</s>| ?\w+(?:['’]\w+)*| ?[^\w\s]|\s"

CLOSING = "[\"'”’)\\]]"
STOP = "|".join("[.!?]" + CLOSING * count for count in range(4))  # a lookbehind needs lengths
ABBREVIATIONS = (r"\p{Lu}", "Mr", "Mrs", "Ms", "Dr", "Prof", "St", "Jr", "vs", "cf", "ca", r"e\.g", r"i\.e")
NO_STOP = "|".join(rf"\b{word}\." for word in ABBREVIATIONS)  # an initial, for one
IN_A_LINE = rf"(?<={STOP})(?<!{NO_STOP}) (?= *[\p{{Lu}}\[(\"'“‘])"
# Where a line goes no further, or a paragraph.
AT_ITS_END = rf"(?<={STOP})(?<!{NO_STOP})\n(?!\s*\p{{Ll}})|(?<=\S)\n(?=\n)"


def word_tokenizer(pieces: Iterable[str], vocab_size: int, min_count: int) -> Tokenizer:
    """
    Args:
        pieces: the training split.
        vocab_size: at most so many tokens, ...
        min_count: ... each of which occurs so often.
    """
    if min_count < 1:
        raise ValueError(f"min_count={min_count} must be at least 1.")
    if vocab_size <= len(ALWAYS):
        raise ValueError(
            f"vocab_size={vocab_size} must be more than {len(ALWAYS)}: {UNKNOWN}, {SENTENCE_END} and white space."
        )
    counter = cut_into_words(Tokenizer(models.WordLevel(unk_token=UNKNOWN)))
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size, min_frequency=min_count, special_tokens=[UNKNOWN], show_progress=False
    )
    counter.train_from_iterator(pieces, trainer)
    found = counter.get_vocab()
    known = [*ALWAYS, *(word for word in sorted(found, key=found.get) if word not in ALWAYS)][:vocab_size]
    written = (word + ALONE if len(word) == 1 and word != " " else word for word in known)
    model = models.BPE(
        vocab={word: i for i, word in enumerate(written)},
        merges=[],
        unk_token=UNKNOWN,
        fuse_unk=True,
        ignore_merges=True,
        continuing_subword_prefix=INSIDE,
        end_of_word_suffix=ALONE,
    )
    tokenizer = cut_into_words(Tokenizer(model))
    parts = [decoders.Replace(ALONE, ""), decoders.Replace(SENTENCE_END, ""), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*parts, decoders.Replace(WRITTEN_OUT, SENTENCE_END)])
    return tokenizer


def cut_into_words(tokenizer: Tokenizer) -> Tokenizer:
    steps = (
        (SENTENCE_END, WRITTEN_OUT),
        (Regex(IN_A_LINE), f"{SENTENCE_END} "),
        (Regex(AT_ITS_END), f"{SENTENCE_END}\n"),
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.Replace(*step) for step in steps])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(PIECE), "removed", invert=True)
    return tokenizer
