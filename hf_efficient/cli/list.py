"""List models, attention mechanisms and runs.

    hf-efficient list mechanisms --causal --linear
    hf-efficient list models
    hf-efficient list configs --task text-generation

Without a word after it, all three; --mechanisms is the same as mechanisms.
"""

import argparse

from ..tables import columns
from .parser import Parser

KINDS = ("models", "mechanisms", "configs")
# --option: the class attribute of a mechanism, and what it says
FLAGS = {
    "causal": ("supports_causal", "can hide later tokens, as language models must"),
    "recurrent": ("supports_recurrent", "has a state of constant size, token by token"),
    "key-mask": ("supports_key_mask", "can leave out padding"),
    "cross": ("supports_cross", "can look at another sequence"),
    "grid": ("needs_grid", "needs the rows and columns of an image"),
    "fixed-length": ("fixed_length", "is built for a greatest length"),
    "per-head": ("per_head", "works on queries, keys and values"),
    "parameter-free": ("parameter_free", "learns nothing of its own: works in transformers' models too"),
}


def main(argv: list[str]) -> None:
    parser = Parser("list", __doc__)
    parser.add_argument("kind", nargs="?", choices=KINDS, help="what to list; by default everything")
    for name in KINDS:
        parser.add_argument(f"--{name}", dest="flag", action="store_const", const=name, help=argparse.SUPPRESS)
    filters = parser.add_argument_group("which mechanisms (each also as --no-...)")
    for name, (_, help) in {**FLAGS, "linear": ("", "costs no more than in proportion to the length")}.items():
        filters.add_argument(f"--{name}", action=argparse.BooleanOptionalAction, help=help)
    parser.add_argument("--task", help="which configs: image-classification, object-detection, text-generation, ...")
    arguments = vars(parser.parse_args(argv))
    kind, flag, task = (arguments.pop(name) for name in ("kind", "flag", "task"))
    kind = kind or flag
    wanted = {name: value for name, value in arguments.items() if value is not None}
    if kind is None and (wanted or task):
        kind = "mechanisms" if wanted else "configs"
    tables = {"models": models, "mechanisms": lambda: mechanisms(wanted), "configs": lambda: configs(task)}
    print("\n\n".join(columns(tables[name]()) for name in KINDS if kind in (None, name)))


def models() -> list[tuple[str, ...]]:
    import hf_efficient

    rows = [("model", "classes")]
    for name in sorted(hf_efficient.__all__):
        if name.endswith("Config"):
            prefix = name.removesuffix("Config")
            classes = [other for other in sorted(hf_efficient.__all__) if other.startswith(prefix) and other != name]
            rows.append((getattr(hf_efficient, name).model_type, ", ".join(classes)))
    return rows


def mechanisms(wanted: dict[str, bool]) -> list[tuple[str, ...]]:
    """
    Args:
        wanted: option -> whether a mechanism must or must not have that.
    """
    from ..attention import get_attention, list_attentions
    from ..attention.registry import is_linear

    rows = [("mechanism", "cost", *(name for name in FLAGS), "paper")]
    for name in list_attentions():
        cls = get_attention(name)
        has = {option.replace("-", "_"): bool(getattr(cls, flag, False)) for option, (flag, _) in FLAGS.items()}
        has["linear"] = is_linear(cls.cost)
        if all(has[option] == value for option, value in wanted.items()):
            marks = ["yes" if has[option.replace("-", "_")] else "-" for option in FLAGS]
            rows.append((name, cls.cost, *marks, cls.paper))
    return rows


def configs(task: str | None) -> list[tuple[str, ...]]:
    from ..training.configs import describe_config, list_configs
    from ..training.run_file import read_file

    rows = [("config", "task", "about")]
    for name, file in list_configs().items():
        stated = read_file(str(file))["task"]
        if task in (None, stated):
            rows.append((name, stated, describe_config(file)))
    return rows
