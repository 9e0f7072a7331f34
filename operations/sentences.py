"""An operation in sentences: its title, its status and its evidence, rendered on read in the reader's language."""

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from .states import Grade, OperationStatus, Outcome, Source, Verdict

if TYPE_CHECKING:
    from .models import Operation

_SYMBOLS = {"EUR": "€", "USD": "$", "GBP": "£", "JPY": "¥", "CNY": "CN¥", "INR": "₹", "KRW": "₩"}
_WITHOUT_MINOR_UNIT = frozenset(
    [
        "BIF",
        "CLP",
        "DJF",
        "GNF",
        "ISK",
        "JPY",
        "KMF",
        "KRW",
        "PYG",
        "RWF",
        "UGX",
        "VND",
        "VUV",
        "XAF",
        "XOF",
        "XPF",
    ]
)
_WITH_THREE_DECIMALS = frozenset(["BHD", "IQD", "JOD", "KWD", "LYD", "OMR", "TND"])

type _Words = Mapping[str, Mapping[str, str]]

_TARGETS: _Words = {
    "en": {"order": "order", "customer": "customer", "charge": "charge", "notes": "notes"},
    "zh": {"order": "订单", "customer": "客户", "charge": "扣款", "notes": "备注"},
}
# {amount} is empty, or the amount with a space before it.
_TITLES: _Words = {
    "en": {
        "refund.create": "Refund{amount} on {target}",
        "order.cancel": "Cancel {target}",
        "order.reopen": "Reopen {target}",
        "mail.send": "Send a mail to {target}",
        "note.add": "Add a note to {target}",
        "": "{action}{amount} on {target}",
    },
    "zh": {
        "refund.create": "为{target} 退款{amount}",
        "order.cancel": "取消{target}",
        "order.reopen": "恢复{target}",
        "mail.send": "向{target} 发送邮件",
        "note.add": "为{target} 添加备注",
        "": "对{target} 执行 {action}{amount}",
    },
}
_LABELS: _Words = {
    "en": {
        OperationStatus.PENDING: "Waiting",
        OperationStatus.APPROVED: "Allowed",
        OperationStatus.EXECUTING: "Under way",
        OperationStatus.UNKNOWN: "Outcome unknown",
        OperationStatus.ESCALATED: "A person must settle it",
        OperationStatus.SUCCEEDED: "Succeeded",
        OperationStatus.FAILED: "Failed",
        OperationStatus.REJECTED: "Rejected",
        OperationStatus.CANCELLED: "Cancelled",
        OperationStatus.EXPIRED: "Expired",
    },
    "zh": {
        OperationStatus.PENDING: "等待中",
        OperationStatus.APPROVED: "已允许",
        OperationStatus.EXECUTING: "执行中",
        OperationStatus.UNKNOWN: "结果未知",
        OperationStatus.ESCALATED: "需要人工确认",
        OperationStatus.SUCCEEDED: "已成功",
        OperationStatus.FAILED: "失败",
        OperationStatus.REJECTED: "已拒绝",
        OperationStatus.CANCELLED: "已取消",
        OperationStatus.EXPIRED: "已过期",
    },
}
_STATUS: _Words = {
    "en": {
        "pending": "It waits for a decision. Nothing has been sent.",
        "approved": "It may be sent. Nothing is on its way yet.",
        "held": "It may be sent, and is held until {held_until} so that the approval can still be taken back.",
        "retrying": "The last try surely had no effect. The next one is at {next_at}.",
        "again": "A person lets it be sent again. Until its answer is there, it may have happened.",
        "executing": "We sent it{sent_at} and wait for the answer.",
        "accepted": "The provider has accepted it as {ref} and not settled it yet.",
        "unknown": "We sent it{sent_at} and got no answer. It may have happened.",
        "look_up": " We look it up again at {next_at}.",
        "escalated": "We sent it{sent_at}, and the provider cannot tell what became of it. A person must settle it.",
        "succeeded": "It happened. The provider's reference is {ref}.",
        "succeeded_plain": "It happened.",
        "reversed": "It happened{as_ref}, and was undone at {reversed_at}.",
        "failed": "It did not happen.",
        "rejected": "It was refused and never sent.",
        "cancelled": "It was cancelled before anything was sent.",
        "expired": "Nobody decided in time, so it was never sent. That is no refusal.",
        "because": " {detail}",
        "at": " at {time}",
        "as": " as {ref}",
    },
    "zh": {
        "pending": "正在等待决定,尚未发送任何内容。",
        "approved": "允许发送,目前尚未发出。",
        "held": "允许发送,保留至 {held_until},在此之前仍可撤回批准。",
        "retrying": "上一次尝试确定没有生效,下一次在 {next_at}。",
        "again": "有人允许再次发送;在收到答复之前,它可能已经生效。",
        "executing": "已发送{sent_at},正在等待答复。",
        "accepted": "服务方已受理({ref}),尚未完成。",
        "unknown": "已发送{sent_at},没有收到答复。它可能已经生效。",
        "look_up": "将在 {next_at} 再次查询。",
        "escalated": "已发送{sent_at},服务方无法说明结果,需要人工确认。",
        "succeeded": "已生效,服务方编号为 {ref}。",
        "succeeded_plain": "已生效。",
        "reversed": "已生效{as_ref},其后于 {reversed_at} 被撤销。",
        "failed": "没有生效。",
        "rejected": "已被拒绝,从未发送。",
        "cancelled": "在发送之前已取消。",
        "expired": "期限内无人决定,因此从未发送。这并不是拒绝。",
        "because": "{detail}",
        "at": "(时间 {time})",
        "as": "({ref})",
    },
}
_SOURCES: _Words = {
    "en": {
        Source.ANSWER: "The provider's answer",
        Source.LOOK_UP: "A look-up at the provider",
        Source.WEBHOOK: "A message from the provider",
        Source.PERSON: "A person",
        Source.SWEEP: "The daily comparison",
    },
    "zh": {
        Source.ANSWER: "服务方的答复",
        Source.LOOK_UP: "向服务方查询",
        Source.WEBHOOK: "服务方的通知",
        Source.PERSON: "人工确认",
        Source.SWEEP: "每日核对",
    },
}
# Where source and verdict side by side would not read as a sentence.
_WHOLE: Mapping[str, Mapping[tuple[str, str], str]] = {
    "en": {
        (Source.ANSWER, Verdict.UNKNOWN): "No answer came that says anything",
        (Source.ANSWER, Verdict.NOT_SENT): "Surely not done; it may be tried again",
        (Source.ANSWER, Verdict.BLOCKED): "Our credential or account was refused; nothing was done",
        (Source.LOOK_UP, Verdict.UNREACHABLE): "The provider could not be asked",
        (Source.PERSON, Verdict.REFUSED): "A person found out that it did not happen",
        (Source.PERSON, Verdict.NOT_SENT): "A person lets it be sent again",
        (Source.PERSON, Verdict.UNKNOWN): "A person wants it to be looked for longer",
    },
    "zh": {
        (Source.ANSWER, Verdict.UNKNOWN): "没有收到可用的答复",
        (Source.ANSWER, Verdict.NOT_SENT): "确定没有生效,可以重试",
        (Source.ANSWER, Verdict.BLOCKED): "我们的凭据或账户被拒绝,没有生效",
        (Source.LOOK_UP, Verdict.UNREACHABLE): "无法向服务方查询",
        (Source.PERSON, Verdict.REFUSED): "有人查明没有生效",
        (Source.PERSON, Verdict.NOT_SENT): "有人允许再次发送",
        (Source.PERSON, Verdict.UNKNOWN): "有人要求继续查询",
    },
}
_VERDICTS: _Words = {
    "en": {
        Verdict.APPLIED: "it happened",
        Verdict.ACCEPTED: "accepted, not settled yet",
        Verdict.REFUSED: "refused, and never done",
        Verdict.BLOCKED: "our credential or account was refused; not done",
        Verdict.NOT_SENT: "surely not done; it may be tried again",
        Verdict.BUSY: "a request under our key is still in progress",
        Verdict.SPENT: "it repeats a stored error; this key can say nothing else",
        Verdict.CONTRADICTION: "it speaks of something else than we asked for",
        Verdict.UNKNOWN: "no answer that says anything",
        Verdict.ABSENT: "not found",
        Verdict.UNREACHABLE: "nobody answered",
        Verdict.REVERSED: "it happened, and has been undone since",
    },
    "zh": {
        Verdict.APPLIED: "已生效",
        Verdict.ACCEPTED: "已受理,尚未完成",
        Verdict.REFUSED: "被拒绝,没有生效",
        Verdict.BLOCKED: "我们的凭据或账户被拒绝,没有生效",
        Verdict.NOT_SENT: "确定没有生效,可以重试",
        Verdict.BUSY: "同一密钥的请求仍在处理中",
        Verdict.SPENT: "重复返回已保存的错误,此密钥不再有其他答复",
        Verdict.CONTRADICTION: "答复与请求不符",
        Verdict.UNKNOWN: "没有可用的答复",
        Verdict.ABSENT: "没有找到",
        Verdict.UNREACHABLE: "没有应答",
        Verdict.REVERSED: "曾生效,其后被撤销",
    },
}

_GRADES: _Words = {
    "en": {
        "": "not tested: a lost answer that is not found goes to a person",
        Grade.VERIFIABLE: "at most once and verifiable",
        Grade.KEY_LIFETIME: "at most once within the key's lifetime",
        Grade.UNVERIFIABLE: "cannot be verified: a lost answer that is not found goes to a person",
    },
    "zh": {
        "": "尚未检验:答复丢失且查询不到时,由人工确认",
        Grade.VERIFIABLE: "至多一次,且可核实",
        Grade.KEY_LIFETIME: "在密钥有效期内至多一次",
        Grade.UNVERIFIABLE: "无法核实:答复丢失且查询不到时,由人工确认",
    },
}
_ABILITIES = {
    "honours_idempotency_keys": "honours keys",
    "key_lifetime_seconds": "key lifetime",
    "refuses_changed_body": "refuses a changed body",
    "replays_errors": "replays errors",
    "can_look_up": "can look up",
    "look_up_lag_seconds": "look-up lag",
    "can_list": "can list",
}
_PROOFS: Mapping[tuple[str, str], str] = {
    ("honours_idempotency_keys", "same_effect"): "the same request under its key was answered with the same effect, {first}",
    ("honours_idempotency_keys", "second_effect"): (
        "the same request under its key had a second effect: {first}, then {again}. A lost answer must not be sent again here"
    ),
    ("key_lifetime_seconds", "held_so_long"): "still honoured after {held_seconds} s; the declared {declared_seconds} s are more than a test can wait",
    ("key_lifetime_seconds", "forgotten"): (
        "{declared_seconds} s are declared, and after {held_seconds} s the key was forgotten: the request had another effect"
    ),
    ("key_lifetime_seconds", "keys_not_proved"): "a key that is not honoured has no lifetime",
    ("refuses_changed_body", "refused"): "another body under the same key was refused ({answer})",
    ("refuses_changed_body", "taken"): "another body under the same key was taken, as {reference}",
    ("replays_errors", "stored"): "a refusal ({first}) came back under its key as a stored one",
    ("replays_errors", "decided_anew"): "a refusal ({first}) was not stored: the same request was decided anew",
    ("can_look_up", "found_after_not_before"): "not found before it was sent, found afterwards as {reference}",
    ("can_look_up", "found_something_else"): "before it was sent the look-up said {before}, afterwards {after}",
    ("can_look_up", "not_found"): "what had happened was not found",
    ("can_look_up", "unreachable"): "the provider did not answer look-ups",
    ("look_up_lag_seconds", "found_in_time"): "at most {declared_seconds} s are declared; it was found after {seen_seconds} s",
    ("look_up_lag_seconds", "not_found_in_time"): "at most {declared_seconds} s are declared; after {seen_seconds} s it was not found",
    ("can_list", "listed"): "the effect stands in the provider's list as {reference}",
    ("can_list", "not_listed"): "the effect does not stand in the provider's list of {count}",
    ("", "cannot_be_asked"): "the provider's list cannot be read ({answer})",
    ("", "no_trial"): "this connection has nothing harmless to try it with",
    ("", "nothing_to_try"): "there was nothing to try it with",
    ("", "trial_not_done"): "the trial itself was not carried out ({answer})",
    ("", "no_answer_to_it"): "the provider's answer says nothing about it",
}  # fmt: skip
_OUTCOMES = {
    Outcome.PROVED: "proved",
    Outcome.CONTRADICTED: "CONTRADICTED",
    Outcome.NOT_PROVED: "not proved",
    Outcome.NOT_DECLARED: "not declared",
}


def spoken(language: str) -> str:
    """The language that we have words in for a reader's language tag: "zh" for every Chinese, else "en"."""
    return "zh" if language.lower().startswith("zh") else "en"


def decimals_of(currency: str) -> int:
    return 0 if currency in _WITHOUT_MINOR_UNIT else 3 if currency in _WITH_THREE_DECIMALS else 2


def money(amount_minor: int, currency: str) -> str:
    """`money(48900, "EUR")` -> `€489.00`; a currency without a sign of its own keeps its code: `CHF 489.00`."""
    decimals = decimals_of(currency)
    whole, part = divmod(abs(amount_minor), 10**decimals)
    figures = f"{whole:,}" + (f".{part:0{decimals}}" if decimals else "")
    sign = "−" if amount_minor < 0 else ""
    return f"{sign}{_SYMBOLS.get(currency) or f'{currency}\u00a0'}{figures}"


def clock(at: datetime) -> str:
    return f"{at:%H:%M:%S} UTC"


def target_words(target_type: str, name: str, language: str = "en") -> str:
    """`order A-1002`; where a target's name says it all ("notes"), only the word."""
    word = _TARGETS[spoken(language)].get(target_type, target_type.replace("_", " "))
    return word if name == target_type else f"{word} {name}"


def title_of(
    action: str, target: str, amount_minor: int | None = None, currency: str = "", language: str = "en"
) -> str:
    """The title of an action on a `type:id` target: `Refund €489.00 on order A-1002`."""
    words = _TITLES[spoken(language)]
    target_type, _, name = target.partition(":")
    amount = "" if amount_minor is None else f" {money(amount_minor, currency)}"
    return words.get(action, words[""]).format(
        action=action, amount=amount, target=target_words(target_type, name or target_type, language)
    )


def action_title(operation: "Operation", language: str = "en") -> str:
    return title_of(
        operation.action, operation.target_text, operation.amount_minor, operation.currency, language
    )


def status_label(status: str, language: str = "en") -> str:
    return _LABELS[spoken(language)].get(status, status)


def status_sentence(operation: "Operation", language: str = "en", *, sent_at: datetime | None = None) -> str:
    """What became of it so far, and what comes next. `sent_at`: when the last attempt began, where there was one."""
    words = _STATUS[spoken(language)]
    key, more = _status_words(operation)
    next_at = clock(operation.next_attempt_at) if operation.next_attempt_at else ""
    text = words[key].format(
        ref=operation.provider_ref,
        as_ref=words["as"].format(ref=operation.provider_ref) if operation.provider_ref else "",
        sent_at=words["at"].format(time=clock(sent_at)) if sent_at else "",
        held_until=clock(operation.dispatch_after) if operation.dispatch_after else "",
        reversed_at=clock(operation.reversed_at) if operation.reversed_at else "",
        next_at=next_at,
    )
    return text + (words[more].format(next_at=next_at, detail=operation.error_detail) if more else "")


def _status_words(operation: "Operation") -> tuple[str, str]:
    """Which sentence tells the status, and which one follows it ("" for none)."""
    match operation.status:
        case OperationStatus.APPROVED if operation.in_doubt:
            return "again", ""
        case OperationStatus.APPROVED if operation.attempts and operation.next_attempt_at:
            return "retrying", ""
        case OperationStatus.APPROVED if operation.dispatch_after:
            return "held", ""
        case OperationStatus.EXECUTING if operation.accepted_at and operation.provider_ref:
            return "accepted", ""
        case OperationStatus.UNKNOWN:
            return "unknown", "look_up" if operation.next_attempt_at else ""
        case OperationStatus.SUCCEEDED if operation.reversed_at:
            return "reversed", ""
        case OperationStatus.SUCCEEDED:
            return "succeeded" if operation.provider_ref else "succeeded_plain", ""
        case OperationStatus.FAILED | OperationStatus.REJECTED | OperationStatus.CANCELLED:
            return str(operation.status), "because" if operation.error_detail else ""
    return str(operation.status), ""


def grade_sentence(grade: str | None, language: str = "en") -> str:
    """What a connection's grade says of a lost answer; None where it has none now."""
    return _GRADES[spoken(language)][grade or ""]


def ability_name(ability: str) -> str:
    return _ABILITIES[ability]


def proof_sentence(proof: Mapping[str, Any]) -> str:
    """`proved: not found before it was sent, found afterwards as re_1`, from one stored proof of a connection."""
    words = _PROOFS.get((proof["ability"], proof["code"])) or _PROOFS.get(("", proof["code"]), "")
    evidence = words.format(**proof["values"])
    return f"{_OUTCOMES[proof['outcome']]}{': ' if evidence else ''}{evidence}"


def finding_sentence(finding: Mapping[str, Any], language: str = "en") -> str:
    """`A look-up at the provider: not found.`, with the provider's reference where it names one.

    `finding` is one of `operations.queries.findings`.
    """
    spoken_in = spoken(language)
    reference = f" ({finding['provider_ref']})" if finding.get("provider_ref") else ""
    whole = _WHOLE[spoken_in].get((finding["source"], finding["verdict"]))
    source = _SOURCES[spoken_in].get(finding["source"], finding["source"])
    verdict = _VERDICTS[spoken_in].get(finding["verdict"], finding["verdict"])
    return f"{whole or f'{source}: {verdict}'}{reference}."
