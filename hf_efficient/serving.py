"""`transformers serve` for our language model, with requests that no server should try refused.

transformers looks for a model's class in its own namespace, where ours is put; and it tries to write any number of
tokens after any prompt.
"""

import json
from typing import Any

import transformers

from . import models
from .errors import CommandError
from .extras import require
from .inference import read_config

MOST_TOKENS = 65_536  # of one answer
LENGTHS = ("max_tokens", "max_completion_tokens", "max_output_tokens", "max_new_tokens", "max_length")
PROMPTS = {"/chat/completions": "messages", "/completions": "prompt", "/responses": "input"}  # by the end of a path


def serve(model: str, host: str = "localhost", port: int = 8000, device: str = "auto") -> None:
    """Serves a model, in a folder or on the Hub, until the process is stopped."""
    read_config(model)
    require("serve")
    from transformers.cli.serve import Serve
    from transformers.cli.serving import server

    for name in models.__all__:
        if name.endswith("ForCausalLM"):
            setattr(transformers, name, getattr(models, name))
    build = server.build_server
    server.build_server = lambda *args, **kwargs: refusing(build(*args, **kwargs))
    try:
        Serve(model, host=host, port=port, device=device)
    except (OSError, ValueError) as error:
        raise CommandError(f"{model} can't be served: {' '.join(str(error).split())}") from error


def refusing(app):
    """The server's application; a request with a fault is answered with 400 and what would be right."""
    from fastapi import Request
    from fastapi.responses import JSONResponse

    @app.middleware("http")
    async def refuse(request: Request, call_next):
        try:
            body = await request.json() if request.method == "POST" else None
        except ValueError:  # no JSON, as sound is; the server knows what to say
            body = None
        wrong = fault(body, request.url.path) if isinstance(body, dict) else None
        return await call_next(request) if wrong is None else JSONResponse({"error": wrong}, 400)

    return app


def fault(body: dict[str, Any], path: str = "") -> str | None:
    """What is wrong with the lengths and prompts of a request to this path; None if nothing is."""
    try:
        options = json.loads(body.get("generation_config") or "{}")  # which may hold a length, too
    except (TypeError, ValueError):
        options = None
    if not isinstance(options, dict):
        return "generation_config must be a mapping, as a string of JSON."
    for name, length in ((name, given.get(name)) for given in (body, options) for name in LENGTHS):
        if length is not None and not (type(length) is int and 1 <= length <= MOST_TOKENS):
            return f"{name}={length!r} must be a whole number from 1 to {MOST_TOKENS}."
    for name in PROMPTS.values():
        if name in body and is_empty(body[name]):
            return f"{name} is empty: give at least one character to go on from."
    needed = next((name for end, name in PROMPTS.items() if path.endswith(end)), None)
    if needed is not None and needed not in body:
        return f"{needed} is missing."
    messages = body.get("messages", [])
    if not (isinstance(messages, list) and all(isinstance(message, dict) for message in messages)):
        return "messages must be a list of mappings, as {role: user, content: Hello}."
    return None


def is_empty(prompt: Any) -> bool:
    """Whether a prompt, or all messages of a conversation, hold no text."""
    if isinstance(prompt, list):
        return all(is_empty(part) for part in prompt)
    if isinstance(prompt, dict):
        return is_empty(prompt.get("content", prompt.get("text", "something else, such as an image")))
    return not prompt
