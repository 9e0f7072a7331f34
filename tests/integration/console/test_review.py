"""A decision from the console: exactly what was shown, once, by who may."""

import pytest
from django.test import Client

from agentops.audit.models import AuditEntry
from agentops.kernel.clock import now
from agentops.tenancy import vault
from agentops.tenancy.models import DataKey, Membership, Tenant, User
from approvals import seen, sentences
from approvals.models import Approval, Decision
from approvals.queries import reason
from approvals.services import expire_due
from tests import factories, proposals

ROLE = Membership.Role


@pytest.fixture
def tenant(db: None) -> Tenant:
    return proposals.shop("acme")


@pytest.fixture
def reviewer(tenant: Tenant) -> User:
    return factories.person(tenant, ROLE.REVIEWER, name="rosa")


@pytest.fixture
def approval(tenant: Tenant) -> Approval:
    return proposals.asked(factories.run(tenant, "Refund A-1002"))


def decide(user: User, approval: Approval, **form: object):
    client = Client()
    client.force_login(user)
    fields = {
        "verdict": "approve",
        "proposal_digest": approval.proposal_digest,
        "form_id": "one",
        "comment": "Seen.",
        **proposals.form_of(client, approval),
    }
    return client, client.post(f"/admin/approvals/{approval.public_id}/", fields | form)


def status_of(approval: Approval) -> str:
    return Approval.objects.get(pk=approval.pk).status


def test_a_yes_is_recorded_with_its_channel_and_its_words(reviewer: User, approval: Approval) -> None:
    client, answer = decide(reviewer, approval)
    assert answer.status_code == 302
    assert status_of(approval) == "approved"
    decision = Decision.objects.get()
    assert (decision.channel, reason(decision)) == ("admin", "Seen.")
    assert "It is sent in 5 s." in client.get("/admin/approvals/").content.decode()


def test_what_was_on_the_page_is_kept_and_a_page_that_reads_otherwise_decides_nothing(
    tenant: Tenant, reviewer: User, approval: Approval, monkeypatch
) -> None:
    for invented in ("f" * 64, "", "\x00"):
        _, answer = decide(reviewer, approval, seen_digest=invented)
        assert answer.status_code == 409
        assert "The page reads otherwise now than when you opened it" in answer.content.decode()
    client = Client()
    client.force_login(reviewer)
    form = proposals.form_of(client, approval)
    with monkeypatch.context() as patch:  # a release that words it in another way, between page and press
        patch.setitem(sentences._LABELS["en"], "refund_to", "Paid back to")
        assert decide(reviewer, approval, seen_digest=form["seen_digest"])[1].status_code == 409
        assert proposals.form_of(client, approval)["seen_digest"] != form["seen_digest"]
    assert not Decision.objects.exists()
    assert decide(reviewer, approval)[1].status_code == 302
    decision = Decision.objects.get()
    sheet = seen.seen_sheet(decision)
    assert decision.seen_sheet_digest == form["seen_digest"] == seen.digest_of(sheet)
    assert (sheet["title"], sheet["language"]) == ("Refund €189.00 on order A-1002", "en")
    assert ("Refund to", "visa 4242") in {(line["label"], line["after"]) for line in sheet["lines"]}
    assert b"visa 4242" not in bytes(decision.sealed_sheet)


def test_the_same_form_twice_is_told_calmly(reviewer: User, approval: Approval) -> None:
    client, _ = decide(reviewer, approval)
    again = client.post(
        f"/admin/approvals/{approval.public_id}/",
        {"verdict": "approve", "proposal_digest": approval.proposal_digest, "form_id": "one"},
        follow=True,
    )
    assert "sending it again changed nothing" in again.content.decode()
    assert Decision.objects.count() == 1


def test_another_digest_decides_nothing_and_the_comment_stays(reviewer: User, approval: Approval) -> None:
    _, answer = decide(reviewer, approval, proposal_digest="c1:proposal:" + "0" * 64, comment="Looks right.")
    page = answer.content.decode()
    assert answer.status_code == 409
    assert "The proposal is not the one that you were shown" in page
    assert page.count("Looks right.") == 2  # told in the notice, and still in the field
    assert status_of(approval) == "requested"


def test_above_the_limit_nothing_is_approved(tenant: Tenant, approval: Approval) -> None:
    small = factories.person(tenant, ROLE.REVIEWER, each_minor=100)
    factories.person(tenant, ROLE.LEAD, name="lena", each_minor=200_000)
    _, answer = decide(small, approval)
    assert answer.status_code == 403
    assert "Lena can approve it" in answer.content.decode()
    assert status_of(approval) == "requested"


def test_nobody_approves_what_they_asked_for(tenant: Tenant, reviewer: User) -> None:
    own = proposals.asked(factories.run(tenant, "Refund", actor=f"user:{reviewer.pk}"))
    client = Client()
    client.force_login(reviewer)
    page = client.get(f"/admin/approvals/{own.public_id}/").content.decode()
    assert "You asked for this yourself." in page
    assert 'value="approve"' not in page
    _, answer = decide(reviewer, own)
    assert answer.status_code == 403
    assert status_of(own) == "requested"


def test_who_may_only_look_has_no_buttons(tenant: Tenant, approval: Approval) -> None:
    auditor = factories.person(tenant, ROLE.AUDITOR, each_minor=None)
    client = Client()
    client.force_login(auditor)
    page = client.get(f"/admin/approvals/{approval.public_id}/").content.decode()
    assert "You may read it, not decide it." in page
    assert 'name="verdict"' not in page
    _, answer = decide(auditor, approval, verdict="reject")
    assert answer.status_code == 403


def test_a_form_without_a_verdict_decides_nothing(reviewer: User, approval: Approval) -> None:
    _, answer = decide(reviewer, approval, verdict="maybe")
    assert answer.status_code == 422
    assert status_of(approval) == "requested"


@pytest.mark.parametrize(
    "form",
    [
        {"verdict": "lower", "why": "Less.", "amount": "9e999999"},
        {"verdict": "lower", "why": "Less.", "amount": "1e999"},
        {"verdict": "lower", "why": "Less.", "amount": "1" * 6_000},
        {"verdict": "lower", "why": "Less.", "amount": "sNaN"},
        {"verdict": "lower", "why": "\x00", "amount": "\x00"},
        {"verdict": "\x00"},
    ],
)
def test_what_no_form_of_ours_sends_changes_nothing(reviewer: User, approval: Approval, form) -> None:
    _, answer = decide(reviewer, approval, **form)
    assert answer.status_code == 422
    assert status_of(approval) == "requested"


def test_text_that_the_database_cannot_hold_is_no_fault_of_the_page(
    reviewer: User, approval: Approval
) -> None:
    client, answer = decide(reviewer, approval, comment="Seen\x00.", form_id="\x00")
    assert answer.status_code == 302
    assert reason(Decision.objects.get()) == "Seen\ufffd."
    for asked in ("q=%00", "action=%00", "tenant=%00", "tenant=" + "9" * 5_000):
        for page in ("approvals", "operations", "runs"):
            assert client.get(f"/admin/{page}/?{asked}").status_code == 200, (page, asked[:20])


def test_a_high_risk_needs_every_tick_and_a_comment(tenant: Tenant, reviewer: User) -> None:
    rule = {
        "code": "large",
        "when": "true",
        "outcome": "require_approval",
        "risk": "high",
        "sentences": {"en": "Large."},
    }
    factories.policy(tenant, "refund.create", [rule])
    approval = proposals.asked(factories.run(tenant, "Refund"))
    assert decide(reviewer, approval)[1].status_code == 422
    assert decide(reviewer, approval, ticked=["1"], comment=" ")[1].status_code == 422
    assert status_of(approval) == "requested"
    assert decide(reviewer, approval, ticked=["1"])[1].status_code == 302
    assert status_of(approval) == "approved"


def test_two_people_where_policy_asks_for_two(tenant: Tenant, reviewer: User) -> None:
    rule = {"code": "two", "when": "true", "outcome": "require_approval", "risk": "elevated", "required": 2}
    factories.policy(tenant, "refund.create", [rule])
    approval = proposals.asked(factories.run(tenant, "Refund"))
    client, _ = decide(reviewer, approval)
    page = client.get(f"/admin/approvals/{approval.public_id}/").content.decode()
    assert "1 of 2 have agreed" in page
    assert "You have answered." in page
    assert "Nobody else can approve it yet." in page
    assert 'name="verdict" value="approve"' not in page
    assert 'value="reject"' not in page
    assert "you have answered" in client.get("/admin/approvals/").content.decode()
    assert approval.public_id not in client.get("/admin/approvals/?show=mine").content.decode()
    assert status_of(approval) == "requested"
    assert decide(reviewer, approval, form_id="two")[1].status_code == 409
    assert decide(factories.person(tenant, ROLE.LEAD), approval)[1].status_code == 302
    assert status_of(approval) == "approved"


def test_an_expired_proposal_is_never_shown_as_refused(
    reviewer: User, approval: Approval, move_clock
) -> None:
    move_clock(25 * 3600)
    client, answer = decide(reviewer, approval)
    page = answer.content.decode()
    assert answer.status_code == 409
    assert "Time is up" in page
    assert "That is no refusal" in page
    assert 'name="verdict"' not in page
    assert approval.public_id not in client.get("/admin/approvals/").content.decode()


def test_the_most_pressing_stands_first(tenant: Tenant, reviewer: User) -> None:
    calm = proposals.asked(factories.run(tenant, "one"), order="A-1")
    rule = {
        "code": "large",
        "when": "true",
        "outcome": "require_approval",
        "risk": "high",
        "expires_hours": 48,
    }
    factories.policy(tenant, "refund.create", [rule])
    risky = proposals.asked(factories.run(tenant, "two"), order="A-2")
    factories.policy(tenant, "refund.create", [rule | {"risk": "elevated", "expires_hours": 1}])
    soon = proposals.asked(factories.run(tenant, "three"), order="A-3")
    client = Client()
    client.force_login(reviewer)
    page = client.get("/admin/approvals/").content.decode()
    assert [page.index(one.public_id) for one in (risky, soon, calm)] == sorted(
        page.index(one.public_id) for one in (risky, soon, calm)
    )
    assert "The amount is above the automatic limit." in page


def test_a_refund_made_before_on_the_target_is_warned_of(tenant: Tenant, reviewer: User) -> None:
    proposals.refund(factories.run(tenant, "one"), amount_minor=2_000, captured_minor=20_000)
    again = proposals.refund(
        factories.run(tenant, "two", actor="customer:other"), amount_minor=3_000, captured_minor=20_000
    )
    approval = Approval.objects.get(operation=again)
    client = Client()
    client.force_login(reviewer)
    page = client.get(f"/admin/approvals/{approval.public_id}/").content.decode()
    assert "Look first." in page
    assert "A refund of €20.00 on this order" in page


def test_what_a_reader_may_not_approve_is_not_offered_next(
    tenant: Tenant, reviewer: User, approval: Approval
) -> None:
    """Their own request and what is above their limit stand in the inbox, but are theirs only to look at."""
    own = proposals.asked(factories.run(tenant, "own", actor=f"user:{reviewer.pk}"), order="A-1")
    large = proposals.asked(factories.run(tenant, "large"), order="A-2", amount_minor=99_900)
    client = Client()
    client.force_login(reviewer)
    everything = client.get("/admin/approvals/").content.decode()
    mine = client.get("/admin/approvals/?show=mine").content.decode()
    for other in (own, large):
        assert other.public_id in everything
        assert other.public_id not in mine
    assert everything.count("not yours to approve") == 2
    _, answer = decide(reviewer, approval)
    assert answer["Location"] == "/admin/approvals/"


def test_a_proposal_that_is_asked_again_shows_what_has_moved_since_the_last_yes(
    reviewer: User, approval: Approval
) -> None:
    """A guard broke between the yes and the sending: less of the charge can be given back than before."""
    decide(reviewer, approval)
    proposals.ask_again(approval, refundable_minor=15_000)
    again = Approval.objects.get(status="requested")
    client = Client()
    client.force_login(reviewer)
    page = client.get(f"/admin/approvals/{again.public_id}/").content.decode()
    assert "Asked again" in page
    assert "The question before</a>: The proposal or what it rests on changed" in page
    moved = page[page.index("What has moved") : page.index("What changes")]
    assert '<del dir="auto">€189.00</del>' in moved
    assert '<ins dir="auto">€150.00</ins>' in moved
    assert "Order" not in moved
    assert "asked again" in client.get("/admin/approvals/").content.decode()


def test_a_reviewer_asks_about_less_gives_more_time_and_takes_a_yes_back(still_world) -> None:
    world = still_world
    small, other = (factories.person(world.tenant, ROLE.REVIEWER, each_minor=5_000) for _ in range(2))
    approval = world.ask()
    client = Client()
    client.force_login(small)
    page = client.get(f"/admin/approvals/{approval.public_id}/").content.decode()
    assert "Above your limit" in page
    assert "Ask about less" in page
    form = {"verdict": "lower", "proposal_digest": approval.proposal_digest, "why": "Half is enough."}
    path = f"/admin/approvals/{approval.public_id}/"
    assert client.post(path, form | {"amount": "4.999"}).status_code == 422
    assert client.post(path, form | {"amount": "400"}).status_code == 422
    answer = client.post(path, form | {"amount": "49,50"}, follow=True)
    page = answer.content.decode()
    new = Approval.objects.get(status="requested")
    assert answer.redirect_chain[0][0] == f"/admin/approvals/{new.public_id}/"
    assert new.amount_minor == 4_950
    assert "Lowered to €49.50." in page
    assert '<del dir="auto">€400.00</del>' in page
    assert "It was lowered by" in page
    path = f"/admin/approvals/{new.public_id}/"
    assert "It may be decided until" in client.post(path, {"verdict": "extend"}, follow=True).content.decode()
    page = client.post(path, {"verdict": "extend"}).content.decode()
    assert f"{small.get_full_name()} has extended it already" in page
    assert "Given more time once" in page
    assert 'value="extend"' not in page
    decide(small, new)
    assert client.post(path, {"verdict": "revoke", "why": " "}).status_code == 422
    back = Client()
    back.force_login(other)
    page = back.post(path, {"verdict": "revoke", "why": "Too fast."}, follow=True).content.decode()
    assert "The yes is taken back; nothing was sent. The question is open again." in page
    assert "The approval was taken back by" in page
    assert status_of(new) == "revoked"


def test_what_moved_and_broke_nothing_is_shown_where_it_was_sent(world) -> None:
    person = factories.person(world.tenant, ROLE.REVIEWER, each_minor=50_000)
    approval = world.ask()
    world.decide(approval, person)
    world.connector.facts["refundable_minor"] = 45_000
    world.send(approval.operation)
    client = Client()
    client.force_login(person)
    page = client.get(f"/admin/approvals/{approval.public_id}/").content.decode()
    moved = page[page.index("Moved before it was sent") : page.index("What changes")]
    assert "€500.00" in moved
    assert "€450.00" in moved
    assert "Take the approval back" not in page


def test_a_question_without_an_end_says_so_and_counts_no_time(still_world) -> None:
    endless = {"code": "endless", "when": "true", "outcome": "require_approval", "expires_hours": None}
    factories.policy(still_world.tenant, "gift.send", [endless])
    person = factories.person(still_world.tenant, ROLE.REVIEWER, each_minor=50_000)
    approval = still_world.ask()
    client = Client()
    client.force_login(person)
    for path in ("/admin/approvals/", f"/admin/approvals/{approval.public_id}/"):
        page = client.get(path).content.decode()
        assert "no end" in page
        assert "data-expires" not in page
    assert decide(person, approval)[1].status_code == 302


@pytest.mark.parametrize("wrong", ["sealed_proposal", "sealed_grounds", "erased"])
def test_a_proposal_that_does_not_open_hides_no_other_and_can_only_be_refused(still_world, wrong) -> None:
    rosa = factories.person(still_world.tenant, name="rosa", each_minor=50_000)
    other, approval, decided = (still_world.ask(memo=f"memo {number}") for number in range(3))
    still_world.decide(decided, rosa)
    for each in (approval, decided):
        if wrong == "erased":
            DataKey.objects.filter(pk=each.data_key_id).update(wrapped=None, erased_at=now())
        else:
            Approval.objects.filter(pk=each.pk).update(**{wrong: b"x"})
    vault.forget()
    run, client = approval.operation.run, Client()
    client.force_login(rosa)
    for place in ("", "approvals/", "approvals/?show=today", f"approvals/{decided}/", f"approvals/{other}/"):
        assert client.get(f"/admin/{place}").status_code == 200, place
    page = client.get(f"/admin/approvals/{approval}/").content.decode()
    assert "does not open any more" in page
    assert 'value="approve"' not in page
    assert 'value="reject"' in page
    bearer = {"Authorization": f"Bearer {factories.token(still_world.tenant, person=rosa)}"}
    listed = client.get(f"/v1/runs/{run.public_id}/approvals", headers=bearer)
    assert [each["proposal_digest"] for each in listed.json()["items"]] == [approval.proposal_digest]
    if wrong != "sealed_grounds":
        assert listed.json()["items"][0]["proposal"]["warnings"][0]["code"] == "unreadable"
    _, answer = decide(rosa, approval)
    assert (answer.status_code, status_of(approval)) == (409, "requested")
    named = {"approval_id": approval.public_id, "proposal_digest": approval.proposal_digest}
    path = f"/v1/runs/{run.public_id}/approvals/approve"
    answer = client.post(path, named, headers=bearer, content_type="application/json")
    assert (answer.status_code, answer.json()["code"]) == (409, "record_altered")
    noted = AuditEntry.objects.filter(security=True, verb="operation.tampered")
    assert [(each.channel, each.object_id) for each in noted.order_by("id")] == [
        ("admin", approval.operation.public_id), ("rest", approval.operation.public_id),
    ]  # fmt: skip
    _, answer = decide(rosa, approval, verdict="reject", form_id="two")
    if wrong == "erased":  # its events cannot be sealed any more: its run is ended before that
        assert answer.status_code == 409
        assert "have been erased: no answer to it can be kept" in answer.content.decode()
        path = f"/v1/runs/{run.public_id}/approvals/reject"
        over_rest = client.post(
            path, named | {"reason": "No."}, headers=bearer, content_type="application/json"
        )
        assert (over_rest.status_code, over_rest.json()["code"]) == (409, "erased")
        assert client.get(f"/admin/runs/{run.public_id}/").status_code == 410
        still_world.move_clock(25 * 3600)
        assert (expire_due(), status_of(other)) == (1, "expired")
    else:
        assert (answer.status_code, status_of(approval)) == (302, "rejected")
