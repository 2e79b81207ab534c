"""Words that keep their spaces and end their sentences: decode(encode(text)) == text, up to what is <unk>.

word     characters that are neither white space nor a known mark, with apostrophes within: "it's"
mark     a known one, with the spaces around it where that is usual: ", " and " (" and "."
space    between two words it is no token: decoding puts it back. Any other is a token, as "\\n" is.
</s>     follows the end of a sentence, and decodes to nothing

Marks are known if they occur often enough, else they belong to words. So a token is unknown only if it is a word, and
its spaces stay: "the <unk> (<unk>)". (Ragupathi et al. 2021 delimit sentences, then take NLTK's words.)
"""

import re
from collections import Counter
from collections.abc import Sequence
from unicodedata import category

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

UNKNOWN, SENTENCE_END = "<unk>", "</s>"
JOINER = "\u2060"  # takes no room
WRITTEN_OUT = f"<{JOINER}/s>"  # what stands in the text ends no sentence
FRAME = "\ufdd0"  # stands in no text; around each word while it is decoded
WHITE = (" ", "\n", "\t", "\r")

CLOSING = "[\"'”’)\\]]"
STOP = "|".join("[.!?]" + CLOSING * count for count in range(4))  # a lookbehind needs lengths
ABBREVIATIONS = (r"\p{Lu}", "Mr", "Mrs", "Ms", "Dr", "Prof", "St", "Jr", "vs", "cf", "ca", r"e\.g", r"i\.e")
NO_STOP = "|".join(rf"\b{word}\." for word in ABBREVIATIONS)  # an initial, for one
IN_A_LINE = rf"(?<={STOP})(?<!{NO_STOP}) (?=[\p{{Lu}}\[(\"'“‘])"
# Where a line goes no further, or a paragraph.
AT_ITS_END = rf"(?<={STOP})(?<!{NO_STOP})\n(?!\s*\p{{Ll}})|(?<=\S)\n(?=\n)"


def word_tokenizer(pieces: Sequence[str], vocab_size: int, min_count: int) -> Tokenizer:
    """
    Args:
        pieces: the training split.
        vocab_size: at most so many tokens, ...
        min_count: ... each of which occurs so often.
    """
    if min_count < 1:
        raise ValueError(f"min_count={min_count} must be at least 1.")
    marks = known_marks(pieces, min_count)
    always = [UNKNOWN, SENTENCE_END, *WHITE, *marks]
    if vocab_size <= len(always):
        raise ValueError(f"vocab_size={vocab_size} must be more than {len(always)}: {UNKNOWN}, white space and marks.")
    no_letters = "".join(map(re.escape, (*WHITE, *marks)))
    letter = f"[^{no_letters}]"
    tokenizer = Tokenizer(models.WordLevel(unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(SENTENCE_END, WRITTEN_OUT),
            normalizers.Replace(Regex(IN_A_LINE), f" {SENTENCE_END}"),
            normalizers.Replace(Regex(AT_ITS_END), f"{SENTENCE_END}\n"),
        ]
    )
    word, spaced = rf"{letter}+(?:['’]{letter}+)*", map(re.escape, spaced_marks(pieces, marks, min_count))
    other = f"[{no_letters}](?<! )", f" (?!{letter})", f"(?<!{letter}) "  # of spaces, not the one between words
    whole = "|".join([SENTENCE_END, word, *spaced, *other])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(whole), "removed", invert=True)
    frames = rf"^(?={letter}|{UNKNOWN}$)|(?<={letter}|^{UNKNOWN})$"
    parts = [decoders.Replace(SENTENCE_END, ""), decoders.Replace(Regex(frames), FRAME), decoders.Fuse()]
    joined = [(FRAME * 2, " "), (FRAME, ""), (WRITTEN_OUT, SENTENCE_END)]
    tokenizer.decoder = decoders.Sequence([*parts, *(decoders.Replace(*step) for step in joined)])
    trainer = trainers.WordLevelTrainer(
        vocab_size=vocab_size, min_frequency=min_count, special_tokens=[UNKNOWN], show_progress=False
    )
    tokenizer.train_from_iterator(pieces, trainer)
    found = tokenizer.get_vocab()
    known = [*always, *(token for token in sorted(found, key=found.get) if token not in always)][:vocab_size]
    tokenizer.model = models.WordLevel({token: i for i, token in enumerate(known)}, unk_token=UNKNOWN)
    return tokenizer


def known_marks(pieces: Sequence[str], min_count: int) -> list[str]:
    """Punctuation, symbols and rarer white space that occur so often; and what is written in a text's place."""
    counts = Counter()
    for piece in pieces:
        counts.update(piece)
    marks = {x for x, count in counts.items() if count >= min_count and category(x)[0] in "PSZ"}
    return sorted({"<", JOINER, *marks} - {*WHITE, "_"})


def spaced_marks(pieces: Sequence[str], marks: list[str], min_count: int) -> list[str]:
    """Marks with spaces before or after them that occur so often, the longest first."""
    counts = Counter()
    for piece in pieces:
        counts.update(re.findall(f" ?[{''.join(map(re.escape, marks))}] ?", piece))
    return sorted((x for x, count in counts.items() if count >= min_count and len(x) > 1), key=len, reverse=True)
