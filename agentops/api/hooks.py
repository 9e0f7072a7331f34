"""The door for providers: what they tell us by themselves, signed."""

from django.http import HttpRequest, JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from agentops.kernel.ids import parse
from agentops.kernel.problems import NotFound
from operations import hooks

from . import body


@csrf_exempt  # the signature is the proof of who sends
@require_POST
def receive(request: HttpRequest, connection_id: str) -> JsonResponse:
    """Answers as soon as the message is on record; what it changes shows on the operation."""
    body.check(request)
    known = parse("con", connection_id)
    if known is None:
        raise NotFound("There is no such connection, or its provider sends no messages.")
    hook = hooks.receive(known, request.headers, request.body)
    return JsonResponse({"received": hook.event_id})
