"""What can be concluded from the samples of a claim: it holds, it does not hold, or it is undecided.

A statement says that b/a or b − a is more (or less) than a bound. It holds if the whole 95 % interval of that effect
is, does not hold if none of the interval is, and is undecided if the bound lies within. A claim holds if all of its
statements do, and does not hold if one does not. Intervals are not widened for the number of statements: one wrong
"does not hold" in forty is to be expected of those that are exactly on their bound.
"""

from dataclasses import asdict, dataclass

from ..statistics import compare
from .base import Claim, Statement

HOLDS, FAILS, UNDECIDED, NOT_RUN = "holds", "does not hold", "undecided", "not run"


@dataclass(frozen=True)
class Finding:
    """Of one statement.

    Args:
        verdict: one of the four words.
        effect, low, high: b/a or b − a with its interval.
        reason: why it is undecided or not run.
        a, b: means of the samples.
        seeds: that both have, or how many rounds.
    """

    verdict: str
    effect: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str = ""
    test: str = ""
    a: float | None = None
    b: float | None = None
    seeds: int = 0


def decide(statement: Statement, arms: dict[str, dict]) -> Finding:
    """What the samples of two arms say of a statement."""
    for name in (statement.a, statement.b):
        if not arms.get(name, {}).get("samples", {}).get(statement.metric):
            left_out = arms.get(name, {}).get("left_out", {}).get(statement.metric)
            return Finding(NOT_RUN, reason=f"{name}: {left_out or 'not measured'}")
    a, b = (arms[name]["samples"][statement.metric] for name in (statement.a, statement.b))
    means = {"a": mean(a), "b": mean(b), "seeds": min(len(a), len(b))}
    try:
        found = compare(a, b, (statement.a, statement.b), statement.ratio)
    except ValueError as error:
        return Finding(UNDECIDED, reason=str(error), **means)
    known = {"effect": found.effect, "low": found.low, "high": found.high, "test": found.test, **means}
    if found.p is None:
        return Finding(UNDECIDED, **known, reason=found.reason)
    beyond = found.low > statement.limit if statement.more else found.high < statement.limit
    short = found.high < statement.limit if statement.more else found.low > statement.limit
    if beyond or short:
        return Finding(HOLDS if beyond else FAILS, **known)
    return Finding(UNDECIDED, **known, reason="the bound lies within the interval")


def mean(values: dict[str, float]) -> float:
    return sum(values.values()) / len(values)


def findings(claim: Claim, arms: dict[str, dict]) -> list[Finding]:
    return [decide(statement, arms) for statement in claim.statements]


def verdict(found: list[Finding]) -> str:
    """Of all statements of a claim."""
    words = {finding.verdict for finding in found}
    if FAILS in words:
        return FAILS
    if words == {NOT_RUN}:
        return NOT_RUN
    return HOLDS if words == {HOLDS} else UNDECIDED


def to_json(claim: Claim, arms: dict[str, dict]) -> dict:
    """What a claim's JSON says of its verdict, with what it was decided by."""
    found = findings(claim, arms)
    rows = [
        {**asdict(statement), "bound": statement.limit, **{f"found_{k}": v for k, v in asdict(finding).items()}}
        for statement, finding in zip(claim.statements, found, strict=True)
    ]
    return {"verdict": verdict(found), "statements": rows}
