"""Use a model: labels or boxes of images, labels of texts, or how a text goes on.

    hf-efficient predict photo.png
    hf-efficient predict results/cifar10_kerformer_vit_small cat.png dog.png
    hf-efficient predict results/sst2_kerformer_text_small "a film to see"
    hf-efficient predict results/pydocs_compressive_performer "The import statement"
    cat story.txt | hf-efficient predict results/pydocs_compressive_performer --json

The model is a folder, a repository on the Hub or a name of `hf-efficient zoo`; what it was made for says what is done.
Images without a model are shown to the zoo's mobilevit-v2-cifar10, which knows ten kinds of things.
"""

import json
import sys
from pathlib import Path

from .parser import SEED, Parser, number

FIRST_MODEL = "mobilevit-v2-cifar10"


def main(argv: list[str]) -> None:
    parser = Parser("predict", __doc__)
    parser.add_argument("model", help="a folder, a repository on the Hub, or a name in the zoo")
    parser.add_argument("inputs", nargs="*", metavar="input", help="image files, or texts; - is standard input")
    parser.add_argument("--task", help="by default what the model was made for")
    parser.add_argument(
        "--top-k", type=number(int, 1), default=5, help="labels per image or text (default: %(default)s)"
    )
    parser.add_argument(
        "--threshold", type=number(float, 0, 1), default=0.5, help="least score of a box (default: %(default)s)"
    )
    parser.add_argument(
        "--max-new-tokens", type=number(int, 1, 10**6), default=100, help="of a text (default: %(default)s)"
    )
    parser.add_argument(
        "--temperature", type=number(float, 0, 100), default=0.8, help="of a text; 0 takes the likeliest token"
    )
    parser.add_argument("--seed", type=SEED, default=0, help="of a text")
    parser.add_argument("--trust-remote-code", action="store_true", help="run code that comes with a repository")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = vars(parser.parse_args(argv))
    if Path(arguments["model"]).is_file():
        arguments["inputs"].insert(0, arguments["model"])
        arguments["model"] = FIRST_MODEL
    if not arguments["inputs"] and sys.stdin.isatty():
        parser.error("give an image, a text, or a text on standard input.")
    arguments["inputs"] = [sys.stdin.read() if x == "-" else x for x in arguments["inputs"] or ["-"]]
    as_json = arguments.pop("json")
    from transformers.utils.logging import disable_progress_bar

    from ..inference import predict

    disable_progress_bar()  # of loading weights
    records = predict(arguments.pop("model"), arguments.pop("inputs"), **arguments)
    if as_json:
        print(json.dumps(records, indent=2, default=share))
    else:
        print("\n\n".join(shown(record) for record in records))


def share(mask) -> float:
    """Of a segmentation's mask, which is a picture, the share of the pixels that it holds."""
    counts = mask.histogram()
    return round(1 - counts[0] / sum(counts), 4)


def shown(record: dict) -> str:
    """A record as lines for people."""
    task, found = record["task"], record["predictions"]
    if task == "text-generation":
        return record["input"] + found[0]["generated_text"]
    lines = [record["input"]]
    for row in found:
        if task == "object-detection":
            box = " ".join(f"{side} {value}" for side, value in row["box"].items())
            lines.append(f"  {row['score']:.4f}  {row['label']}  {box}")
        elif task == "image-segmentation":
            lines.append(f"  {share(row['mask']):7.2%}  {row['label']}")
        else:
            lines.append(f"  {row['score']:.4f}  {row['label']}")
    return "\n".join(lines if found else [*lines, "  nothing found"])
