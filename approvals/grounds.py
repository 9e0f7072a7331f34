"""What a proposal rests on: facts with their guards, the rule that asked, the release, and who asked."""

from typing import Any

from agentops.kernel.clock import now
from operations.connectors.base import Facts
from runs.models import AgentRun
from runs.services import requesters_of

from .policy import Verdict


def grounds_of(run: AgentRun, verdict: Verdict, facts: Facts) -> dict[str, Any]:
    at = now().isoformat()
    return {
        "facts": [
            {
                "name": fact.name,
                "value": fact.value,
                "source": fact.source,
                "at": at,
                "guard": {"relation": fact.guard.relation, "bound": fact.guard.bound} if fact.guard else None,
            }
            for fact in facts.facts
        ],
        "policy": {
            "number": verdict.policy.number if verdict.policy else None,
            "rule": verdict.rule,
            "outcome": verdict.outcome,
        },
        "release": str(run.release_id),
        "requested_by": requesters_of(run),
    }
