"""`transformers serve` and `transformers chat` on loopback, with a saved language model."""

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from importlib.util import find_spec

import pytest
from interop_models import build

from hf_efficient.data.tokenization import build_tokenizer
from hf_efficient.serving import fault

if not all(find_spec(package) for package in ("fastapi", "uvicorn", "openai")):  # imported by the server alone
    pytest.skip("pip install hf-efficient[serve]", allow_module_level=True)

TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
DEADLINE = 240  # seconds, most of it for imports on a busy machine
LOOPBACK = {"NO_PROXY": "127.0.0.1", "HTTP_PROXY": "http://127.0.0.1:9", "HTTPS_PROXY": "http://127.0.0.1:9"}


@pytest.fixture(scope="module")
def served(tmp_path_factory, preloaded):
    """The address of a server, the folder of its model, and what the model goes on to write after "Hello"."""
    folder = tmp_path_factory.mktemp("served")
    model, tokenizer = build("CompressivePerformer"), build_tokenizer("byte")
    tokenizer.chat_template = TEMPLATE
    model.generation_config.suppress_tokens = [byte for byte in range(256) if not chr(byte).islower() or byte > 127]
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    written = model.generate(**tokenizer("Hello", return_tensors="pt"), max_new_tokens=12, do_sample=False)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--host", "127.0.0.1", "--port", str(port), "--device", "cpu"]
    command = [preloaded.python, "-m", "hf_efficient", "serve", folder, *options]
    with open(folder / "log", "wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | LOOPBACK)
    try:
        address = f"http://127.0.0.1:{port}"
        wait_for(server, address, folder / "log")
        yield address, str(folder), tokenizer.decode(written[0, 5:])
    finally:
        server.terminate()
        server.wait(30)


def wait_for(server, address, log):
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end and server.poll() is None:
        try:
            return opener.open(f"{address}/health", timeout=5).read()
        except OSError:
            time.sleep(0.2)
    pytest.fail(f"the server did not start:\n{log.read_text()[-2000:]}")


opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def post(address, body) -> dict:
    request = urllib.request.Request(address, json.dumps(body).encode(), {"Content-Type": "application/json"})
    return json.load(opener.open(request, timeout=60))


def test_completions(served):
    address, model, expected = served
    options = {"model": model, "max_tokens": 12, "temperature": 0}
    answer = post(f"{address}/v1/completions", {**options, "prompt": "Hello"})
    assert answer["choices"][0]["text"] == expected and len(expected) == 12
    messages = [{"role": "user", "content": "Hello"}]
    answer = post(f"{address}/v1/chat/completions", {**options, "messages": messages})
    assert answer["choices"][0]["message"]["content"] == expected


FAULTS = [
    ({"prompt": "Hello", "max_tokens": 10**12}, "max_tokens=1000000000000 must be a whole number from 1 to 65536"),
    ({"prompt": "Hello", "max_tokens": -1}, "max_tokens=-1 must be"),
    ({"prompt": "Hello", "max_tokens": "many"}, "max_tokens='many' must be"),
    ({"prompt": "", "max_tokens": 12}, "prompt is empty"),
    ({"messages": [{"role": "user", "content": ""}]}, "messages is empty"),
    ({"messages": []}, "messages is empty"),
    ({"input": "", "max_output_tokens": 3}, "input is empty"),
    ({"messages": "Hello"}, "messages must be a list of mappings"),
    ({"messages": [5]}, "messages must be a list"),
    ({"max_tokens": 12}, "prompt is missing"),
    ({"prompt": "Hello", "generation_config": '{"max_new_tokens": 1000000000000}'}, "max_new_tokens=10000"),
    ({"prompt": "Hello", "generation_config": "[1]"}, "generation_config must be a mapping"),
]


def path_for(body: dict) -> str:
    return {"messages": "/v1/chat/completions", "input": "/v1/responses"}.get(next(iter(body)), "/v1/completions")


@pytest.mark.parametrize(("body", "said"), FAULTS)
def test_what_is_wrong_with_a_request_is_named(body, said):
    assert said in fault(body, path_for(body))


def test_faults_are_answered_and_the_server_goes_on(served):
    address, model, _ = served
    for body, said in FAULTS:
        with pytest.raises(urllib.error.HTTPError) as error:
            post(address + path_for(body), {"model": model, **body})
        assert error.value.code == 400 and said in json.load(error.value)["error"]
    assert fault({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}) is None
    assert fault({"prompt": "Hello", "max_tokens": 1}) is None
    test_completions(served)


def test_chat(served, bare, tmp_path):
    """The client refuses every address in offline mode, loopback too; all others lead nowhere here."""
    address, model, expected = served
    command = [bare.python, "-m", "transformers.cli.transformers", "chat", model, address, "max_new_tokens=12"]
    chat = subprocess.run(
        [*command, "do_sample=False"],
        input="Hello\nno\n!exit\n",  # "no" answers whether it shall go on, as it has no end of its own
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        timeout=DEADLINE,
        cwd=tmp_path,
        env=os.environ | LOOPBACK | {"HF_HUB_OFFLINE": "0"},
    )
    assert chat.returncode == 0, chat.stderr[-2000:]
    assert expected in chat.stdout
