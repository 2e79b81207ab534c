"""ListOps (Nangia & Bowman 2018; Tay et al. 2020, "Long Range Arena"): what is the value of this expression?

    [MAX 4 3 [MIN 2 3 ] 1 0 [SM 1 5 9 ] ]   is   5

An argument is an expression with probability 1/4, above depth 10, and else a digit; there are 2 to 10 of them. SM is
their sum modulo 10, MED the whole part of their median. A token is a digit, an operator with its bracket, or the
bracket that closes it. Sample i of a split is a function of seed, split and i alone, and the same on every machine: of
Python's generator only `random()` is used, whose numbers no version changes.
"""

from random import Random
from statistics import median

OPERATORS = {
    "MIN": min,
    "MAX": max,
    "MED": lambda values: int(median(values)),
    "SM": lambda values: sum(values) % 10,
}
OPERATOR_SHARE = 0.25


class ListOps:
    """
    Args:
        shortest, longest: tokens of an expression.
        depth: at which all arguments are digits; the outermost expression has depth 1.
        most_arguments: of an operator.
        seed: of all samples.
    """

    class_names = [str(value) for value in range(10)]
    sizes = {"train": 96_000, "validation": 2_000, "test": 2_000}
    level = "symbol"  # of the tokens

    def __init__(
        self, shortest: int = 500, longest: int = 2000, depth: int = 10, most_arguments: int = 10, seed: int = 0
    ):
        if not 4 <= shortest <= longest:
            raise ValueError(f"shortest={shortest} and longest={longest} must be at least 4, in this order.")
        if depth < 2 or most_arguments < 2:
            raise ValueError(f"depth={depth} and most_arguments={most_arguments} must be at least 2.")
        if (possible := most_length(depth, most_arguments)) < shortest:
            raise ValueError(
                f"shortest={shortest}, but with depth={depth} and most_arguments={most_arguments} no expression has "
                f"more than {possible} tokens."
            )
        self.shortest, self.longest, self.depth, self.most_arguments = shortest, longest, depth, most_arguments
        self.seed = seed

    def sample(self, split: str, index: int) -> tuple[str, int]:
        """An expression and its value."""
        random = Random(f"listops {self.seed} {split} {index}").random
        while True:
            tokens, value = self.draw(random)
            if self.shortest <= len(tokens) <= self.longest:
                return " ".join(tokens), value

    def draw(self, random) -> tuple[list[str], int]:
        """The tokens of an expression, and its value; one that gets too long is broken off."""
        tokens: list[str] = []
        value, unfinished = 0, []  # of each expression around here: operator, number of arguments, their values so far
        while len(tokens) <= self.longest:
            if not unfinished or (len(unfinished) + 1 < self.depth and random() < OPERATOR_SHARE):
                name = list(OPERATORS)[int(len(OPERATORS) * random())]
                tokens.append(f"[{name}")
                unfinished.append((OPERATORS[name], 2 + int((self.most_arguments - 1) * random()), []))
                continue
            digit = int(10 * random())
            tokens.append(str(digit))
            unfinished[-1][2].append(digit)
            while len(unfinished[-1][2]) == unfinished[-1][1]:
                operator, _, values = unfinished.pop()
                tokens.append("]")
                value = operator(values)
                if not unfinished:
                    return tokens, value
                unfinished[-1][2].append(value)
        return tokens, value


def most_length(depth: int, arguments: int) -> int:
    """Tokens of the largest expression."""
    length = 1
    for _ in range(depth - 1):
        length = 2 + arguments * length
    return length
