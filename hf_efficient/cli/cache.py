"""Show or clear what is kept of data: decoded images, features and tokens.

    hf-efficient cache --clear

It is in the folder that HF_EFFICIENT_CACHE names, by default in ~/.cache; what is missing there is made again.
"""

from ..tables import columns
from .parser import Parser


def main(argv: list[str]) -> None:
    parser = Parser("cache", __doc__)
    parser.add_argument("--clear", action="store_true", help="remove it; not while something trains")
    clear = parser.parse_args(argv).clear
    from ..data.folders import cache_folder, cached_bytes, clear_cache

    sizes = cached_bytes()
    rows = [("", "GB"), *((part, f"{size / 1e9:.2f}") for part, size in sizes.items())]
    print(f"{cache_folder()}\n\n{columns(rows)}")
    if clear:
        clear_cache()
        print(f"\nremoved {sum(sizes.values()) / 1e9:.2f} GB")
