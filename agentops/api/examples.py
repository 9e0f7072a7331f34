"""The examples of the OpenAPI document: one refund, from the request to the receipt."""

from typing import Any

_RUN_ID = "run_01kbt3p8z4e6gah2mxw0c9v5fd"
_OPERATION_ID = "op_01kbt3pc5jf2s8a7r4q9d0w6ye"
_APPROVAL_ID = "apr_01kbt3pd1c9k4m7z2t5xh8v3nb"
_DIGEST = "c1:proposal:6d1c0f5f5b3f0f0f2b7a8f5a9f1f6f0c3e4d5b6a798811223344556677889900"

START: dict[str, Any] = {
    "agent": "support-agent",
    "input": "My order A-1001 arrived damaged, please refund it.",
    "actor": "customer:C-1001",
    "metadata": {"ticket": "T-2209"},
}
STARTED: dict[str, Any] = {
    "run_id": _RUN_ID,
    "status": "queued",
    "events_url": f"/v1/runs/{_RUN_ID}/events",
    "status_url": f"/v1/runs/{_RUN_ID}",
}
OPERATION: dict[str, Any] = {
    "operation_id": _OPERATION_ID,
    "run_id": _RUN_ID,
    "action": "refund.create",
    "target": "order:A-1001",
    "status": "succeeded",
    "amount_minor": 12900,
    "currency": "EUR",
    "provider": "stripe",
    "provider_ref": "re_1QK7mR2eZvKYlo2C",
    "receipt": {"id": "re_1QK7mR2eZvKYlo2C", "amount_minor": 12900, "currency": "EUR", "status": "succeeded"},
    "error": None,
    "attempts": 1,
    "key_expires_at": "2026-12-01T09:14:11.402000Z",
    "created_at": "2026-11-30T09:12:40.118000Z",
    "updated_at": "2026-11-30T09:14:11.915000Z",
}
APPROVAL: dict[str, Any] = {
    "approval_id": _APPROVAL_ID,
    "run_id": _RUN_ID,
    "operation_id": _OPERATION_ID,
    "status": "requested",
    "proposal": {
        "action": "refund.create",
        "target": "order:A-1001",
        "fields": [{"name": "refunded_minor", "before": 0, "after": 12900}],
        "amount_minor": 12900,
        "currency": "EUR",
        "reasons": [{"code": "over_50", "text": "Refunds above 50 EUR need a person."}],
        "warnings": [],
        "risk": "elevated",
    },
    "proposal_digest": _DIGEST,
    "required": 1,
    "decisions": [],
    "expires_at": "2026-12-01T09:12:40.118000Z",
}
APPROVE: dict[str, Any] = {
    "approval_id": _APPROVAL_ID,
    "proposal_digest": _DIGEST,
    "reason": "Photo shows the damage.",
}
REJECT: dict[str, Any] = {
    "approval_id": _APPROVAL_ID,
    "proposal_digest": _DIGEST,
    "reason": "Please send us a photo of the damage first.",
}
RUN: dict[str, Any] = {
    "run_id": _RUN_ID,
    "agent": "support-agent",
    "status": "waiting_for_approval",
    "blocked_on": ["approval"],
    "actor": "customer:C-1001",
    "conversation_id": None,
    "release": "sha256:3f6c2a9d81b4f0e2a7c5d913b8e604c2f17a9d35e8b06c41",
    "created_at": "2026-11-30T09:12:38.004000Z",
    "started_at": "2026-11-30T09:12:38.061000Z",
    "finished_at": None,
    "steps_taken": 5,
    "cost_microusd": 0,
    "budget_cents": 50,
    "result": None,
    "error": None,
    "pending_approvals": [APPROVAL],
    "operations": [{**OPERATION, "status": "pending", "provider_ref": None, "receipt": None, "attempts": 0}],
    "last_event_seq": 14,
    "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
    "events_url": f"/v1/runs/{_RUN_ID}/events",
    "status_url": f"/v1/runs/{_RUN_ID}",
}
CANCEL: dict[str, Any] = {
    "run_id": _RUN_ID,
    "status": "running",
    "cancelling": True,
    "requested_by": "token:tok_01kbt2a8h3e9v6x1z7c4m5q0wd",
    "reason": "The customer called it off.",
    "effects": [
        {
            "operation_id": _OPERATION_ID,
            "action": "refund.create",
            "target": "order:A-1001",
            "outcome": "unknown",
        }
    ],
}
