"""Deciding in a browser: one press, calm answers, and no way to decide by accident."""

from datetime import timedelta

from playwright.sync_api import Page, expect

from agentops.kernel.clock import now
from approvals.models import Approval, Decision
from approvals.queries import reason
from tests import factories, proposals
from tests.acceptance.console.conftest import House, Open, sign_in

APPROVE = "button[value=approve]"
REJECT = "button[value=reject]"


def ask(house: House, order: str = "A-1002", amount_minor: int = 18_900) -> Approval:
    return proposals.asked(
        factories.run(house.tenant, f"Refund {order}"), order=order, amount_minor=amount_minor
    )


def path_of(approval: Approval) -> str:
    return f"/admin/approvals/{approval.public_id}/"


def status_of(approval: Approval) -> str:
    return Approval.objects.get(pk=approval.pk).status


def test_one_press_approves_and_the_next_one_opens(visit: Open, house: House) -> None:
    first, second = ask(house, "A-1002"), ask(house, "A-1005", 7_990)
    page = visit(house.reviewer).open("/admin/approvals/")
    page.click("text=Start reviewing")
    expect(page.locator("h1")).to_have_text("Refund €189.00 on order A-1002")
    page.click("text=Approve €189.00")
    expect(page.locator("[role=status]").first).to_contain_text(
        "Approved: Refund €189.00 on order A-1002. It is sent in"
    )
    expect(page.locator("h1")).to_have_text("Refund €79.90 on order A-1005")
    assert (status_of(first), status_of(second)) == ("approved", "requested")
    decision = Decision.objects.get(approval=first)
    assert decision.channel == "admin"
    assert decision.seen_sheet_digest


def test_a_rejection_without_a_reason_is_asked_for_one_and_keeps_the_focus_there(
    visit: Open, house: House
) -> None:
    approval = ask(house)
    page = visit(house.reviewer).open(path_of(approval))
    page.click(REJECT)
    expect(page.locator(".fault")).to_contain_text("needs a reason")
    expect(page.locator("#comment")).to_be_focused()
    assert status_of(approval) == "requested"
    page.fill("#comment", "The photo shows another lamp.")
    page.click(REJECT)
    expect(page.locator(".banner")).to_contain_text("Rejected: Refund €189.00")
    assert reason(Decision.objects.get(approval=approval)) == "The photo shows another lamp."


def test_a_canned_reason_is_enough(visit: Open, house: House) -> None:
    approval = ask(house)
    page = visit(house.reviewer).open(path_of(approval))
    page.click("text=Outside our terms")
    page.click(REJECT)
    expect(page.locator(".banner")).to_contain_text("Rejected")
    assert reason(Decision.objects.get(approval=approval)) == "Our terms do not cover this case."


def test_the_second_of_two_reviewers_is_told_calmly_and_keeps_the_comment(visit: Open, house: House) -> None:
    approval = ask(house)
    quick, slow = visit(house.lead), visit(house.reviewer, width=390)
    first, second = quick.open(path_of(approval)), slow.open(path_of(approval))
    first.click(APPROVE)
    expect(first.locator(".banner")).to_be_visible()
    second.fill("#comment", "I would have said no.")
    second.click(REJECT)
    notice = second.locator(".notice")
    expect(notice).to_contain_text("Your decision was not recorded")
    expect(notice).to_contain_text(f"Approved by {house.lead.get_full_name()}")
    expect(notice).to_contain_text("I would have said no.")
    expect(notice).to_be_focused()
    assert Decision.objects.filter(approval=approval).count() == 1


def test_time_runs_out_while_the_page_is_open(visit: Open, house: House) -> None:
    approval = ask(house)
    Approval.objects.filter(pk=approval.pk).update(expires_at=now() + timedelta(seconds=15))
    page = visit(house.reviewer).open(path_of(approval))
    expect(page.locator(APPROVE)).to_be_visible()
    expect(page.locator(".pill.time")).to_have_class("pill time urgent")
    expect(page.locator("[data-gone]")).to_be_visible(timeout=30_000)
    expect(page.locator(f"{APPROVE}, {REJECT}")).to_have_count(0)
    page.click("[data-gone] a")
    expect(page.locator(".decided")).to_contain_text("That is no refusal")


def test_above_the_limit_the_page_says_who_can(visit: Open, house: House) -> None:
    approval = ask(house, amount_minor=48_900)
    page = visit(house.reviewer).open(path_of(approval))
    expect(page.locator(APPROVE)).to_have_count(0)
    expect(page.locator(".blocked")).to_contain_text("Above your limit of €200.00")
    expect(page.locator(".blocked")).to_contain_text(house.lead.get_full_name())
    page.fill("#comment", "Too much for a scratch.")
    page.click(REJECT)
    expect(page.locator(".banner")).to_contain_text("Rejected")


def test_the_keyboard_alone_is_enough_and_no_single_key_sends(visit: Open, house: House) -> None:
    first, second = ask(house, "A-1002"), ask(house, "A-1005", 7_990)
    page = visit(house.reviewer).open("/admin/approvals/")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("k")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("Refund €189.00 on order A-1002")
    page.keyboard.press("r")
    expect(page.locator("#comment")).to_be_focused()
    page.keyboard.type("a jolly rabbit?")
    expect(page.locator("#comment")).to_have_value("a jolly rabbit?")
    page.keyboard.press("Tab")
    page.keyboard.press("a")
    expect(page.locator(APPROVE)).to_be_focused()
    assert {status_of(first), status_of(second)} == {"requested"}
    page.keyboard.press("Control+Enter")
    expect(page.locator(".banner")).to_contain_text("Approved")
    assert (status_of(first), status_of(second)) == ("approved", "requested")


def test_letter_keys_can_be_switched_off(visit: Open, house: House) -> None:
    approval = ask(house)
    page = visit(house.reviewer).open(path_of(approval))
    page.keyboard.press("?")
    expect(page.locator("#keys-help")).to_be_visible()
    page.uncheck("[data-keys-switch]")
    page.keyboard.press("Escape")
    page.keyboard.press("r")
    expect(page.locator("#comment")).not_to_be_focused()
    page.reload()
    page.keyboard.press("r")
    expect(page.locator("#comment")).not_to_be_focused()


def test_on_a_phone_the_decision_stays_in_reach_and_hides_nothing(visit: Open, house: House) -> None:
    approval = ask(house)
    page = visit(house.reviewer, width=390).open(path_of(approval))
    for button in (page.locator(APPROVE), page.locator(REJECT)):
        box = button.bounding_box()
        assert box is not None
        assert box["height"] >= 48
        assert box["y"] + box["height"] <= 844
    for _ in range(40):
        page.keyboard.press("Tab")
        assert not _is_covered(page)


def _is_covered(page: Page) -> bool:
    """Whether the focused element lies wholly under the decision bar."""
    covered: bool = page.evaluate(
        """() => {
            const bar = document.querySelector(".decide-bar").getBoundingClientRect();
            const focused = document.activeElement;
            if (focused === document.body || focused.closest(".decide-bar")) return false;
            const box = focused.getBoundingClientRect();
            return box.top >= bar.top && box.bottom <= bar.bottom && box.height > 0;
        }"""
    )
    return covered


def test_without_javascript_everything_but_live_updates_works(visit: Open, house: House) -> None:
    approval = ask(house)
    seen = visit(house.reviewer, java_script_enabled=False)
    page = seen.open("/admin/approvals/")
    page.click("text=Refund €189.00 on order A-1002")
    page.click("text=its run")
    expect(page.locator("[data-timeline] > li")).to_have_count(4)
    page.click("text=Tools")
    expect(page.locator("[data-timeline] > li:visible")).to_have_count(0)
    page.go_back()
    page.go_back()
    page.click(REJECT)
    expect(page.locator(".fault")).to_be_visible()
    page.click(APPROVE)
    expect(page.locator(".banner")).to_contain_text("Approved")
    assert status_of(approval) == "approved"


def test_a_high_risk_is_approved_reason_by_reason_with_a_comment(visit: Open, house: House) -> None:
    factories.policy(
        house.tenant,
        "refund.create",
        [
            {
                "code": "large",
                "when": "true",
                "outcome": "require_approval",
                "risk": "high",
                "sentences": {"en": "It is large."},
            }
        ],
    )
    approval = ask(house)
    page = visit(house.reviewer).open(path_of(approval))
    page.click(APPROVE)
    expect(page.locator(".fault")).to_contain_text("tick every reason")
    page.check("text=I checked: It is large.")
    page.click(APPROVE)
    expect(page.locator(".fault")).to_contain_text("say in the comment")
    expect(page.locator("[name=ticked]")).to_be_checked()
    page.fill("#comment", "Called the customer.")
    page.click(APPROVE)
    expect(page.locator(".banner")).to_contain_text("Approved")
    assert status_of(approval) == "approved"


def test_an_open_inbox_hears_of_a_new_proposal(visit: Open, house: House) -> None:
    page = visit(house.reviewer).open("/admin/approvals/")
    expect(page.locator(".empty")).to_contain_text("Nothing waits for you.")
    ask(house)
    expect(page.locator("[data-inbox-news]")).to_contain_text("New proposals wait.", timeout=20_000)
    expect(page.locator("[data-count=approvals]")).to_have_text("1")
    page.click("[data-inbox-news] a")
    expect(page.locator("[data-row]")).to_have_count(1)


def test_a_form_from_before_a_new_sign_in_is_refused_in_our_layout(visit: Open, house: House) -> None:
    approval = ask(house)
    seen = visit(house.reviewer)
    page = seen.open(path_of(approval))
    page.context.clear_cookies(name="csrftoken")
    page.click(APPROVE)
    expect(page.locator("h1")).to_have_text("This form is too old")
    assert status_of(approval) == "requested"
    page.context.clear_cookies()
    sign_in(seen, house.reviewer)
