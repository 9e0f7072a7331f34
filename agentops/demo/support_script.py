"""The scripted stand-in for a model behind `support-agent`: reads English and Chinese, decides by fixed rules."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

from agentops.demo.support_words import CHINESE, ENGLISH, Words
from agentops.sdk import Call, Message, Reply

Intent = Literal["refund", "cancel", "question"]

_ORDER = re.compile(r"(?<![A-Za-z0-9-])([A-Za-z]{1,4}-[0-9]{1,12})(?![A-Za-z0-9-])", re.ASCII)
_INTENTS: dict[Intent, re.Pattern[str]] = {
    "refund": re.compile(r"\brefund|money back|reimburse|退款|退钱|退货", re.IGNORECASE),
    "cancel": re.compile(r"\bcancel|取消", re.IGNORECASE),
}
_REASONS = {
    "damaged": re.compile(r"damaged|broken|defect|cracked|损坏|破损|坏了", re.IGNORECASE),
    "not_received": re.compile(r"never arrived|not arrived|not received|lost|没收到|未收到", re.IGNORECASE),
    "wrong_item": re.compile(r"wrong (?:item|product|size|colou?r)|发错|错误的商品", re.IGNORECASE),
    "not_wanted": re.compile(
        r"changed my mind|no longer|do not want|don't want|不想要|不要了", re.IGNORECASE
    ),
}
_CURRENCIES = {
    "€": "EUR",
    "euro": "EUR",
    "euros": "EUR",
    "欧元": "EUR",
    "$": "USD",
    "美元": "USD",
    "£": "GBP",
}
_UNIT = r"(?P<{}>EUR|USD|GBP|CHF|euros?|欧元|美元|[€$£])"
_NUMBER = (
    r"(?P<{}>[0-9]{{1,3}}(?:,[0-9]{{3}})+(?:\.[0-9]{{1,2}})?|[0-9]{{1,9}}(?:[.,][0-9]{{1,2}})?)(?![0-9])"
)
_AMOUNT = re.compile(
    rf"(?<![0-9A-Za-z.,-]){_NUMBER.format('n1')}\s*{_UNIT.format('u1')}|{_UNIT.format('u2')}\s*{_NUMBER.format('n2')}",
    re.IGNORECASE,
)
_CHINESE = re.compile(r"[\u4e00-\u9fff]")


@dataclass(frozen=True, slots=True)
class _Request:
    intent: Intent
    orders: tuple[str, ...]
    amount: dict[str, Any] | None
    reason: str
    words: Words


def answer(conversation: Sequence[Message]) -> Reply:
    """The next turn. A call that failed is explained, never repeated, so every conversation ends."""
    asked = max(index for index, message in enumerate(conversation) if message.role == "user")
    request = _understood(conversation[asked].text)
    words = request.words
    if not request.orders:
        return Reply(words.which_order)
    if len(request.orders) > 1:
        return Reply(words.one_at_a_time.format(orders=", ".join(request.orders)))
    results = {message.tool: message for message in conversation[asked + 1 :] if message.role == "tool"}
    for result in results.values():
        if not result.ok:
            return Reply(_explained(result, request.orders[0], words))
    return _next(request, request.orders[0], {tool: message.result for tool, message in results.items()})


def _next(request: _Request, order: str, results: dict[str, Any]) -> Reply:
    words = request.words
    if "lookup_order" not in results:
        return Reply(words.looking_up.format(order=order), (Call("lookup_order", {"order_id": order}),))
    match request.intent:
        case "question":
            return Reply(_described(results["lookup_order"], words))
        case "cancel" if "cancel_order" not in results:
            return Reply(words.cancelling.format(order=order), (Call("cancel_order", {"order_id": order}),))
        case "cancel":
            return Reply(words.cancelled.format(order=order))
        case "refund" if "check_refund_policy" not in results:
            return Reply(words.checking, (Call("check_refund_policy", {"order_id": order}),))
        case "refund" if not results["check_refund_policy"]["refundable"]:
            reason = results["check_refund_policy"]["reason"]
            return Reply(words.not_refundable.format(order=order, reason=reason))
        case "refund" if "refund_order" not in results:
            args: dict[str, Any] = {"order_id": order, "reason": request.reason}
            if request.amount:
                args["amount"] = request.amount
            return Reply(words.refunding.format(order=order), (Call("refund_order", args),))
        case "refund":
            receipt = results["refund_order"]
            amount = _shown(receipt["amount_minor"], receipt["currency"])
            return Reply(words.refunded.format(order=order, amount=amount, ref=receipt["provider_ref"]))


def _understood(text: str) -> _Request:
    found = {intent: match.start() for intent, pattern in _INTENTS.items() if (match := pattern.search(text))}
    orders = dict.fromkeys(match.group(1).upper() for match in _ORDER.finditer(text))
    return _Request(
        intent=min(found, key=lambda intent: found[intent]) if found else "question",
        orders=tuple(orders),
        amount=_amount(text),
        reason=next((reason for reason, pattern in _REASONS.items() if pattern.search(text)), "other"),
        words=CHINESE if _CHINESE.search(text) else ENGLISH,
    )


def _amount(text: str) -> dict[str, Any] | None:
    """`20 EUR`, `€ 20.50` or `2,599.00 EUR` as money; None where no amount stands."""
    match = _AMOUNT.search(text)
    if match is None:
        return None
    number, unit = match["n1"] or match["n2"], match["u1"] or match["u2"]
    plain = re.sub(r",(?=[0-9]{3})", "", number).replace(",", ".")
    return {
        "amount_minor": int(Decimal(plain) * 100),
        "currency": _CURRENCIES.get(unit.lower(), unit.upper()),
    }


def _explained(result: Message, order: str, words: Words) -> str:
    """Why it did not happen, each end in its own words: nobody looked is not a refusal."""
    error = result.result["error"]
    reason = error["message"].rstrip(".。")
    match error.get("status"), error["code"]:
        case "rejected", _:
            return words.rejected.format(order=order, reason=reason)
        case "expired", _:
            return words.expired.format(order=order)
        case "unknown", _:
            return words.unknown.format(order=order)
        case "cancelled", _:
            return words.withdrawn.format(order=order)
        case _, "not_found":
            return words.unknown_order.format(order=order)
        case _, "not_yours":
            return words.not_yours.format(order=order)
        case _:
            return words.failed.format(order=order, reason=reason)


def _described(order: dict[str, Any], words: Words) -> str:
    shipment = order["shipment"] or {}
    where = shipment.get("status") or order["status"]
    paid = _shown(order["amount_minor"], order["currency"])
    tracking = words.tracking.format(tracking=shipment["tracking"]) if shipment.get("tracking") else ""
    return words.described.format(order=order["id"], amount=paid, where=where) + tracking


def _shown(amount_minor: int, currency: str) -> str:
    return f"{amount_minor // 100:,}.{amount_minor % 100:02d} {currency}"
