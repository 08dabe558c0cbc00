"""Where the specification of the gateway decides otherwise than a vector."""

from __future__ import annotations

from tests.vectors.cases import Case, Facts
from tests.vectors.rules import Rule


def _is_this_machines(case: Case, facts: Facts) -> bool:
    return case.given.get("server_token") == "" and facts.get("role") == "admin"


def _lets_nobody_in(case: Case, facts: Facts) -> bool:
    wrong = case.given.get("server_token") != case.given.get("client_token")
    return wrong and facts == {"role": "", "error": "unauthorized"}


RULES = (
    Rule(
        "gateway_frames",
        'gateway.md 2: "refuses a non-loopback listen address without any token": without one it '
        "is the person at this machine, who is its admin",
        _is_this_machines,
    ),
    Rule(
        "gateway_frames",
        'gateway.md 2: "roles ... bound to **one user**"; 6: "`connect` failures": a wrong token '
        "is nobody's, and no viewer's",
        _lets_nobody_in,
    ),
)
