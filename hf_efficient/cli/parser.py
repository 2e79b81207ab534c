"""The argument parser of the subcommands."""

import argparse


class Parser(argparse.ArgumentParser):
    """With the subcommand's docstring as its help; takes --two_words for --two-words, as keys of runs are written."""

    def __init__(self, command: str, description: str):
        super().__init__(
            prog=f"hf-efficient {command}",
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )

    def parse_known_args(self, args=None, namespace=None):
        words = [hyphened(word) if word.startswith("--") else word for word in args or []]
        return super().parse_known_args(words, namespace)


def hyphened(word: str) -> str:
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value
