"""How a question ended and why it is asked again, in sentences; endings are told apart, and silence is no refusal."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from operations.sentences import spoken
from operations.states import OperationStatus

from .sentences import code_sentence, field_label, field_value
from .states import ApprovalStatus

if TYPE_CHECKING:
    from .models import Approval

_ENDINGS: Mapping[str, Mapping[str, str]] = {
    "en": {
        ApprovalStatus.REQUESTED: "Nobody has decided yet.",
        ApprovalStatus.APPROVED: "Approved{by}{time}.",
        ApprovalStatus.REJECTED: "Rejected{by}{time}.",
        ApprovalStatus.EXPIRED: "Nobody decided in time. It ended{time}, and that is no refusal.",
        ApprovalStatus.REVOKED: "The approval was taken back{by}{time}, before anything was sent.",
        ApprovalStatus.WITHDRAWN: "The question was withdrawn{time}: its run was ended before anybody decided.",
        ApprovalStatus.SUPERSEDED: "The proposal or what it rests on changed{time}; a newer one asks instead.",
        "lowered": "It was lowered{by}{time}; a newer one asks for less.",
        "needless": "The question was withdrawn{time}.",
        "void": "The approval no longer stood{time}, and nothing was sent.",
        "by": " by {name}",
        "at": " on {at:%-d %b} at {at:%H:%M:%S} UTC",
    },
    "zh": {
        ApprovalStatus.REQUESTED: "尚无人决定。",
        ApprovalStatus.APPROVED: "已批准{by}{time}。",
        ApprovalStatus.REJECTED: "已拒绝{by}{time}。",
        ApprovalStatus.EXPIRED: "期限内无人决定{time}。这并不是拒绝。",
        ApprovalStatus.REVOKED: "批准已撤回{by}{time},尚未发送任何内容。",
        ApprovalStatus.WITHDRAWN: "申请已撤销{time}:任务在有人决定之前已结束。",
        ApprovalStatus.SUPERSEDED: "申请或其依据已变更{time},已有新的申请代替。",
        "lowered": "金额已调低{by}{time},已有新的申请代替。",
        "needless": "申请已撤销{time}。",
        "void": "批准已失效{time},尚未发送任何内容。",
        "by": "({name})",
        "at": "({at:%Y-%m-%d %H:%M:%S} UTC)",
    },
}
# Of the operation, after a yes to it was taken back.
_TAKEN_BACK: Mapping[str, str] = {
    OperationStatus.PENDING: "nothing was sent. The question is open again.",
    OperationStatus.REJECTED: "nothing was sent. The rules in force deny it, so nobody is asked again.",
    OperationStatus.FAILED: "nothing was sent. Its record was altered since, so nobody is asked about it.",
    OperationStatus.UNKNOWN: "nothing more is sent. What an earlier try has done is looked up.",
}
# Why a yes allowed nothing any more, or was asked for anew; a broken guard is told by its fact.
_LAPSES: Mapping[str, Mapping[str, str]] = {
    "en": {
        "guard_broken": "What it rests on no longer holds: {label}.",
        "approver_lost_right": "Who approved it may no longer decide.",
        "approver_limit_lowered": "It is above the limit that its approver has now.",
        "approver_left_group": "Who approved it has left the group that a rule asks.",
        "approver_asked_for_it": "Who approved it stands among those who asked for it.",
        "requester_lost_right": "Who asked for it may no longer ask.",
        "policy_asks_more": "The rules in force ask for more than it gave.",
        "action_changed": "A new release does this action in another way.",
        "approval_expired": "Its time was over before it could be sent.",
        "approval_revoked": "It was taken back before anything was sent.",
        "asked_too_often": "What it rests on changed again and again; a person must reopen it.",
        "lowered": "A reviewer lowered it.",
        "settled": "It has happened without an answer.",
        "tenant_suspended": "Its tenant was suspended.",
        "proposal_differs": "The agent asks for something else now than people were asked.",
        "revoked": "A yes was taken back before anything was sent.",
    },
    "zh": {
        "guard_broken": "其依据已不成立:{label}。",
        "approver_lost_right": "批准人已无权决定。",
        "approver_limit_lowered": "已超出批准人现在的限额。",
        "approver_left_group": "批准人已离开规则所要求的小组。",
        "approver_asked_for_it": "批准人也是申请人之一。",
        "requester_lost_right": "申请人已无权申请。",
        "policy_asks_more": "现行规则的要求更严。",
        "action_changed": "新版本以另一种方式执行此操作。",
        "approval_expired": "在发送之前已过期。",
        "approval_revoked": "发送之前已被撤回。",
        "asked_too_often": "其依据一再变更,须由人重新开启。",
        "lowered": "审批人调低了金额。",
        "settled": "未经答复即已发生。",
        "tenant_suspended": "租户已被暂停。",
        "proposal_differs": "智能体现在的申请与之前的不同。",
        "revoked": "发送之前,批准已被撤回。",
    },
}


def ending_sentence(approval: "Approval", language: str = "en", *, by: str = "", reason: str = "") -> str:
    """How it ended; endings are told apart, and an expiry is never shown as a refusal. `by`: who decided."""
    words = _ENDINGS[spoken(language)]
    at, key = approval.closed_at, approval.status
    if approval.closed_reason == "lowered":
        key = "lowered"
    elif key == ApprovalStatus.REVOKED and approval.closed_by == "system":
        key = "void"
    elif key == ApprovalStatus.WITHDRAWN and approval.closed_reason in ("settled", "proposal_differs"):
        key = "needless"
    sentence = words.get(key, key).format(
        by=words["by"].format(name=by) if by else "", time=words["at"].format(at=at) if at else ""
    )
    if key in ("void", "needless", ApprovalStatus.SUPERSEDED) and approval.closed_reason:
        sentence = f"{sentence} {lapse_sentence(approval.closed_reason, language)}"
    return f"{sentence} “{reason}”" if reason else sentence


def taken_back_sentence(status: str) -> str:
    """What a yes that was taken back has come to: `status` of its operation then."""
    return f"The yes is taken back; {_TAKEN_BACK.get(status, 'nothing more is sent.')}"


def lapse_sentence(code: str, language: str = "en") -> str:
    """Why a yes did not stand; a code that we have no words for is a rule of the tenant's."""
    words = _LAPSES[spoken(language)]
    kind, _, name = code.partition(":")
    if kind in words:
        return words[kind].format(label=field_label(name, language))
    return code_sentence(code, language)


def moved_sentence(moved: Mapping[str, Any], language: str = "en", *, currency: str = "") -> str:
    """What is otherwise than when people were asked before: `Asked again: still refundable €50.00 → €20.00.`"""
    lines = [change_text(change, language, currency=currency) for change in moved["changes"]]
    why = lapse_sentence(moved["why"], language)
    return " ".join([why, *(f"{line}." for line in lines)])


def change_text(change: Mapping[str, Any], language: str = "en", *, currency: str = "") -> str:
    then, now = (field_value(change[side], change["kind"], currency, language) for side in ("then", "now"))
    return f"{field_label(change['name'], language)}: {then or '–'} → {now or '–'}"
