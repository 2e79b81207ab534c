"""The other end of `Client`: runs the code that it is sent, and answers with `result` or with the error."""

import json
import sys
import traceback

answers = sys.stdout
sys.stdout = sys.stderr  # what the code prints is no answer
names: dict = {}
for line in sys.stdin:
    names["result"], request = None, json.loads(line)
    try:
        exec(request["code"], names)
        answer = {"result": names["result"]}
    except Exception as error:
        answer = {"error": type(error).__name__, "message": str(error), "traceback": traceback.format_exc()}
    print(json.dumps({"number": request["number"], **answer}, default=str), file=answers, flush=True)
