"""Serve a language model over HTTP: `transformers serve`, for our models too.

    hf-efficient serve results/pydocs_compressive_performer --port 8000

Completions and chat, by OpenAI's protocol. Requests with an empty prompt, or for less than 1 or more than 65,536
tokens, are refused.
"""

from .parser import Parser


def main(argv: list[str]) -> None:
    parser = Parser("serve", __doc__)
    parser.add_argument("model", help="a folder, or a repository on the Hub")
    parser.add_argument("--host", default="localhost", help="address to listen at (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="(default: %(default)s)")
    parser.add_argument("--device", default="auto", help="where it computes (default: %(default)s)")
    arguments = vars(parser.parse_args(argv))
    from ..serving import serve

    serve(**arguments)
