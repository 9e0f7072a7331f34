"""An effect that stands under our operation's id before we send: it is evidence, and nothing is sent."""

import httpx

from operations.models import Incident
from operations.states import OperationStatus
from tests.provider import STRIPE_KEY
from tests.stage import LARGE, eventually, operation


def test_an_effect_that_is_there_before_the_first_sending_is_an_alarm_and_nothing_is_sent(stage):
    order = stage.order(LARGE)
    approval = stage.until_asked(stage.ask_refund(order))
    made = operation(approval.operation.run)
    found = httpx.post(
        f"{stage.provider.payments_url}/v1/refunds",
        headers={"Authorization": f"Bearer {STRIPE_KEY}"},
        data={"charge": order["charge"], "amount": str(LARGE), "metadata[operation_id]": made.public_id},
    )
    assert found.status_code == 200, found.text
    stage.decide(approval, stage.reviewer())
    eventually(lambda: Incident.objects.filter(about=made.public_id).exists(), "an incident")
    made.refresh_from_db()
    assert made.status == OperationStatus.APPROVED
    assert made.attempts == 0
    assert len(stage.refunds(order)) == 1
