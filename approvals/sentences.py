"""A proposal in sentences: codes and values as stored, rendered on read in the reader's language."""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from operations.sentences import money, spoken, target_words, title_of

if TYPE_CHECKING:
    from .models import Approval

__all__ = [
    "code_sentence",
    "fact_sentence",
    "field_label",
    "field_value",
    "money",
    "reason_sentence",
    "risk_label",
    "title",
    "warning_sentence",
]

_LABELS: Mapping[str, Mapping[str, str]] = {
    "en": {
        "amount": "Amount",
        "charge": "Charge",
        "mail": "Mail",
        "mail_to": "Mail to",
        "customer": "Customer",
        "line": "Order line",
        "note": "Note",
        "order": "Order",
        "order_status": "Order status",
        "reason": "Reason",
        "refund_to": "Refund to",
        "refundable_minor": "Still refundable",
        "refunded": "Refunded",
        "refunded_minor": "Refunded",
        "status": "Status",
        "rule": "Rule",
        "policy": "Version of the rules",
        "people": "People who must agree",
        "group": "Group that decides",
        "release": "Release of the agent",
        "action_version": "Version of the action",
        "to_customer": "Customer",
    },
    "zh": {
        "amount": "金额",
        "charge": "扣款",
        "mail": "邮件",
        "mail_to": "收件人",
        "customer": "客户",
        "line": "订单行",
        "note": "备注",
        "order": "订单",
        "order_status": "订单状态",
        "reason": "原因",
        "refund_to": "退款至",
        "refundable_minor": "可退金额",
        "refunded": "已退款",
        "refunded_minor": "已退款",
        "status": "状态",
        "rule": "规则",
        "policy": "规则版本",
        "people": "须同意的人数",
        "group": "负责的小组",
        "release": "智能体版本",
        "action_version": "操作版本",
        "to_customer": "客户",
    },
}
_CODES: Mapping[str, Mapping[str, str]] = {
    "en": {"in_transit": "on its way"},
    "zh": {
        "preparing": "备货中",
        "in_transit": "运输中",
        "delivered": "已送达",
        "cancelled": "已取消",
        "damaged": "商品损坏",
        "not_received": "未收到",
        "wrong_item": "发错商品",
        "not_wanted": "不想要了",
        "other": "其他",
    },
}
# {value} is formatted; {source} is the system whose word it is. A yes or no has a sentence each.
_FACTS: Mapping[str, Mapping[str, str]] = {
    "en": {
        "refundable_minor": "{value} of this charge can still be refunded, says {source}",
        "captured_minor": "{value} was paid, says {source}",
        "refunded_minor": "{value} has been refunded so far, says {source}",
        "line_minor": "{value} was paid for this order line, says {source}",
        "order_status": "The order is {value}, says {source}",
        "order_charge": "The order was paid with {value}, says {source}",
        "order_customer": "The order is of customer {value}, says {source}",
        "charge_status": "The charge is {value}, says {source}",
        "charge_currency": "The charge is in {value}, says {source}",
        "is_cancelled": "The order is cancelled, says {source}",
        "cancellation": "Its cancellation is {value}, says {source}",
        "is_cancelled.no": "The order is not cancelled, says {source}",
        "address_unchanged": "The customer's address is the same as when this was proposed, says {source}",
        "address_unchanged.no": "The customer's address has changed since this was proposed, says {source}",
        "": "{label} is {value}, says {source}",
        "yes": "yes",
        "no": "no",
    },
    "zh": {
        "refundable_minor": "{source}:此扣款还可退 {value}",
        "captured_minor": "{source}:已付 {value}",
        "refunded_minor": "{source}:已退款 {value}",
        "line_minor": "{source}:此订单行已付 {value}",
        "order_status": "{source}:订单{value}",
        "order_charge": "{source}:订单的扣款为 {value}",
        "order_customer": "{source}:订单属于客户 {value}",
        "charge_status": "{source}:扣款状态为 {value}",
        "charge_currency": "{source}:扣款币种为 {value}",
        "is_cancelled": "{source}:订单已取消",
        "cancellation": "{source}:其取消编号为 {value}",
        "is_cancelled.no": "{source}:订单未取消",
        "address_unchanged": "{source}:客户地址与提出时相同",
        "address_unchanged.no": "{source}:客户地址在提出后已变更",
        "": "{source}:{label}为{value}",
        "yes": "是",
        "no": "否",
    },
}
# What must hold when it is sent. {bound} is formatted; "same": it must be as it is.
_GUARDS: Mapping[str, Mapping[str, str]] = {
    "en": {
        ">=": " (at least {bound} is needed)",
        "<=": " (at most {bound} is allowed)",
        "==": " (must be {bound})",
        "same": " (must stay so until it is sent)",
    },
    "zh": {
        ">=": "(至少需要 {bound})",
        "<=": "(最多允许 {bound})",
        "==": "(须为 {bound})",
        "same": "(发送前须保持不变)",
    },
}
_REASONS: Mapping[str, Mapping[str, str]] = {
    "en": {
        "no_rule": "No rule of this tenant's policy covers it, so a person decides.",
        "no_policy": "This tenant has no policy for the action, so a person decides.",
        "policy_error": "The policy could not be evaluated.",
        "policy_lowers": "The policy lets through less than this by now.",
        "lowered_too_often": "Rules lower it one after the other without end.",
        "same_target": "Another operation of this kind exists on the same target.",
        "unreadable": "What it says does not open any more: it was erased, or its record was altered.",
        "": "Policy asks a person ({code}).",
    },
    "zh": {
        "no_rule": "没有适用的规则,因此由人决定。",
        "no_policy": "此租户没有针对该操作的规则,因此由人决定。",
        "policy_error": "规则无法求值。",
        "policy_lowers": "规则现在只允许更低的数额。",
        "lowered_too_often": "规则逐条降低数额,没有止境。",
        "same_target": "同一对象上还有另一个同类操作。",
        "unreadable": "其内容已无法打开:已被删除,或记录遭到改动。",
        "": "规则要求由人决定({code})。",
    },
}
# What the other operation is called, and how it stands; {when} is empty or a date.
_OTHERS: Mapping[str, Mapping[str, str]] = {
    "en": {
        "refund.create": "A refund{amount}",
        "order.cancel": "A cancellation",
        "order.reopen": "A reopening",
        "mail.send": "A mail",
        "": "Another operation ({action}{amount})",
        "amount": " of {money}",
        "on": " on this {target}",
        "succeeded": "{what} was made{when}.",
        "pending": "{what} is waiting for a decision{when}.",
        "approved": "{what} is allowed and about to be sent{when}.",
        "executing": "{what} is under way{when}.",
        "unknown": "{what} was sent{when}, and its outcome is unknown: it may have happened.",
        "escalated": "{what} was sent{when}, and its outcome is unknown: it may have happened.",
        "rejected": "{what} was refused{when}.",
        "when": " on {day}",
        "since": " since {day}",
        "else": "{what} exists ({status}){when}.",
        "lowered": "{was} was proposed; policy lowers it to {now} ({rule}).",
        "plain": "Look twice: {code}.",
    },
    "zh": {
        "refund.create": "一笔退款{amount}",
        "order.cancel": "一次取消",
        "order.reopen": "一次恢复",
        "mail.send": "一封邮件",
        "": "另一个操作({action}{amount})",
        "amount": " {money}",
        "on": "(同一{target})",
        "succeeded": "{what}已完成{when}。",
        "pending": "{what}正在等待决定{when}。",
        "approved": "{what}已获允许,即将发送{when}。",
        "executing": "{what}正在执行{when}。",
        "unknown": "{what}已发送{when},结果未知,可能已经生效。",
        "escalated": "{what}已发送{when},结果未知,可能已经生效。",
        "rejected": "{what}曾被拒绝{when}。",
        "when": "({day})",
        "since": "({day} 起)",
        "else": "{what}存在({status}){when}。",
        "lowered": "提出的是 {was};规则将其降至 {now}({rule})。",
        "plain": "请仔细核对:{code}。",
    },
}
_RISKS: Mapping[str, Mapping[str, str]] = {
    "en": {"routine": "Routine", "elevated": "Elevated", "high": "High"},
    "zh": {"routine": "常规", "elevated": "较高", "high": "高"},
}


def title(proposal: "Approval | Mapping[str, Any]", language: str = "en") -> str:
    """`Refund €489.00 on order A-1002`, from an approval (its operation loaded) or from its unsealed proposal."""
    if isinstance(proposal, Mapping):
        return title_of(
            proposal["action"],
            proposal["target"],
            proposal.get("amount_minor"),
            proposal.get("currency") or "",
            language,
        )
    target = proposal.operation.target_text
    return title_of(proposal.action, target, proposal.amount_minor, proposal.currency, language)


def risk_label(risk: str, language: str = "en") -> str:
    return _RISKS[spoken(language)].get(risk, risk)


def field_label(name: str, language: str = "en") -> str:
    """The name of a field for people; an unknown one is its code in words."""
    return _LABELS[spoken(language)].get(name) or _in_words(name.removesuffix("_minor")).capitalize()


def field_value(value: Any, kind: str, currency: str = "", language: str = "en") -> str:
    """One side of a field; empty where there is nothing."""
    match value:
        case None:
            return ""
        case bool():
            return _FACTS[spoken(language)]["yes" if value else "no"]
        case int() if kind == "money":
            return money(value, currency)
        case str() if kind == "code":
            return _CODES[spoken(language)].get(value) or _in_words(value)
    return str(value)


def fact_sentence(fact: Mapping[str, Any], language: str = "en", *, currency: str = "") -> str:
    """`€489.00 of this charge can still be refunded, says payments.` with its guard, where the fact has one."""
    words = _FACTS[spoken(language)]
    name, value = fact["name"], fact["value"]
    kind = "money" if name.endswith("_minor") else "code" if name.endswith("_status") else "text"
    key = f"{name}.no" if value is False and f"{name}.no" in words else name
    sentence = words.get(key, words[""]).format(
        label=field_label(name, language),
        value=field_value(value, kind, currency, language),
        source=fact["source"],
    )
    guard = fact.get("guard")
    if guard:
        is_same = guard["relation"] == "==" and guard["bound"] == value
        rule = _GUARDS[spoken(language)].get("same" if is_same else guard["relation"], "")
        sentence += rule.format(bound=field_value(guard["bound"], kind, currency, language))
    return sentence if spoken(language) == "zh" else f"{sentence}."


def reason_sentence(reason: Mapping[str, Any], language: str = "en") -> str:
    """The tenant's own sentence in the reader's language, else in English, else in any; else ours for the code."""
    own: Mapping[str, str] = reason.get("sentence") or {}
    sentence = own.get(language) or own.get(spoken(language)) or own.get("en") or next(iter(own.values()), "")
    if sentence:
        return sentence
    return code_sentence(reason["code"], language)


def code_sentence(code: str, language: str = "en") -> str:
    """What a code of ours says without a tenant's own words; a code of a rule's is named."""
    words = _REASONS[spoken(language)]
    return words.get(code, words[""]).format(code=code)


def warning_sentence(warning: Mapping[str, Any], language: str = "en") -> str:
    """`A refund of €20.00 on this order was made on 12 Nov.`; without an operation behind it, what the code says."""
    words = _OTHERS[spoken(language)]
    status = warning.get("status")
    if warning["code"] == "lowered":
        currency, kind = warning["currency"], "money" if warning["field"].endswith("_minor") else "text"
        was, now = (field_value(warning[side], kind, currency, language) for side in ("from", "to"))
        return words["lowered"].format(was=was, now=now, rule=warning["by"])
    if not status:
        known = _REASONS[spoken(language)].get(warning["code"])
        return known or words["plain"].format(code=_in_words(warning["code"]))
    amount = warning.get("amount_minor")
    shown = (
        words["amount"].format(money=money(amount, warning.get("currency") or ""))
        if amount is not None
        else ""
    )
    action = warning.get("action", "")
    what = words.get(action, words[""]).format(amount=shown, action=action)
    target_type = str(warning.get("target", "")).partition(":")[0]
    if target_type:
        what += words["on"].format(target=target_words(target_type, target_type, language))
    at = _moment(warning.get("at"))
    since = status in ("pending", "approved", "executing")
    when = words["since" if since else "when"].format(day=f"{at:%-d %b}") if at else ""
    return words.get(status, words["else"]).format(what=what, when=when, status=status)


def _in_words(code: str) -> str:
    return code.replace("_", " ").replace(".", " ")


def _moment(value: Any) -> datetime | None:
    if isinstance(value, str):
        return datetime.fromisoformat(value)
    return value if isinstance(value, datetime) else None
