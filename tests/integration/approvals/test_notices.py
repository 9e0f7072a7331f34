"""Mail to people about what waits: once a notice, to who may decide, with a link to the signed-in page and nothing else."""

import smtplib

import pytest
from django.core import mail
from django.test import Client

from agentops.engine.tasks import tell_reviewers
from agentops.settings import mailer
from agentops.tenancy.models import Membership, User
from approvals import notices
from approvals.models import Approval, Decision, Notice
from approvals.services import extend
from tests import factories
from tests.stage import together
from tests.world import GIFT

ROLE = Membership.Role
HOUR = 3600


def person(world, name, role=ROLE.REVIEWER, each_minor=50_000) -> User:
    made = factories.person(world.tenant, role, name=name, each_minor=each_minor)
    made.email = f"{name}@acme.example"
    made.save()
    return made


def mailed() -> list[tuple[str, str]]:
    """(whom, what about) since the last look."""
    tell_reviewers()
    found = [(message.to[0].partition("@")[0], message.subject) for message in mail.outbox]
    mail.outbox.clear()
    return sorted(found)


@pytest.fixture
def mails(settings):
    mail.outbox.clear()
    return mail.outbox


def test_who_may_decide_is_told_then_reminded_then_the_next_group_is_told(still_world, mails):
    world = still_world
    asker = person(world, "asker")
    person(world, "rosa")
    person(world, "small", each_minor=1)
    person(world, "lena", ROLE.LEAD)
    person(world, "emil", ROLE.ENGINEER)
    factories.person(world.tenant, name="without-address")
    approval = world.ask(world.run(actor=f"user:{asker.pk}"), memo="kittens-and-umbrellas")
    assert Notice.objects.count() == 0  # the request that asked wrote to nobody
    assert mailed() == [("rosa", "Waits for a decision: gift.send, €400.00")]
    assert mailed() == []
    world.move_clock(13 * HOUR)
    assert mailed() == [("rosa", "Still waits for a decision: gift.send, €400.00")]
    world.move_clock(6 * HOUR)
    assert mailed() == [("lena", "Nobody has decided yet: gift.send, €400.00")]
    world.move_clock(HOUR)
    assert mailed() == []
    approval.refresh_from_db()
    assert (approval.notify_at, approval.notified) == (None, "escalated")
    assert set(Notice.objects.values_list("outcome", flat=True)) == {"sent"}


def test_a_mail_holds_a_link_to_the_page_and_no_word_of_a_customer(still_world, mails):
    world = still_world
    rosa = person(world, "rosa")
    approval = world.ask(memo="kittens-and-umbrellas")
    tell_reviewers()
    (message,) = mails
    text = message.message().as_string()
    assert f"/admin/approvals/{approval}/" in message.body
    assert "kittens" not in text
    assert "acc-" not in text  # whose account it is stands on the page
    assert approval.proposal_digest not in text
    assert message.extra_headers["Message-ID"] == f"<{Notice.objects.get().id}@agentops>"
    link = message.body.split("http")[1].split()[0].partition("/admin")[2]
    client = Client()
    client.force_login(rosa)
    assert client.get(f"/admin{link}").status_code == 200
    assert not Decision.objects.exists()  # to follow it decides nothing


def test_who_has_said_yes_where_two_must_is_not_reminded(still_world, mails):
    world = still_world
    two = {"code": "two", "when": "true", "outcome": "require_approval", "required": 2, "group": "reviewer"}
    factories.policy(world.tenant, GIFT.name, [two])
    rosa, _ = person(world, "rosa"), person(world, "gita")
    approval = world.ask()
    notices.make_due()
    world.decide(approval, rosa)
    assert [who for who, _ in mailed()] == ["gita"]  # hers was made before she answered
    world.move_clock(13 * HOUR)
    assert [who for who, _ in mailed()] == ["gita"]
    assert not Notice.objects.filter(person=rosa, kind="reminder").exists()  # not even made


@pytest.mark.case("D-9")
def test_a_link_that_is_passed_on_lets_nobody_decide_who_may_not(still_world, mails):
    world = still_world
    person(world, "rosa")
    engineer = person(world, "emil", ROLE.ENGINEER)
    foreign = factories.person(factories.tenant("globex"), name="gita", each_minor=10**6)
    approval = world.ask()
    tell_reviewers()
    page = f"/admin/approvals/{approval}/"
    assert page in mails[0].body
    form = {
        "verdict": "approve",
        "proposal_digest": approval.proposal_digest,
        "form_id": "one",
        "comment": "x",
    }
    signed_out = Client().get(page)
    assert (signed_out.status_code, signed_out["Location"]) == (302, f"/admin/login/?next={page}")
    assert Client().post(page, form).status_code == 302
    for who, seen, answered in ((engineer, 200, 403), (foreign, 404, 404)):
        client = Client()
        client.force_login(who)
        shown = client.get(page)
        assert shown.status_code == seen
        assert 'name="verdict"' not in shown.content.decode()
        assert client.post(page, form).status_code == answered
    lost = User.objects.get(username="rosa")
    client = Client()
    client.force_login(lost)
    assert 'value="approve"' in client.get(page).content.decode()
    lost.groups.clear()  # between the page and the click
    assert client.post(page, form).status_code in (403, 404)
    assert not Decision.objects.exists()
    assert Approval.objects.get(pk=approval.pk).status == "requested"


def test_a_rule_that_names_a_group_is_escalated_to_the_next_whose_members_may_then_decide(still_world, mails):
    world = still_world
    rule = {"code": "first", "when": "true", "outcome": "require_approval", "group": "reviewer"}
    factories.policy(world.tenant, GIFT.name, [rule])
    person(world, "rosa")
    lena = person(world, "lena", ROLE.LEAD)
    approval = world.ask()
    from approvals.rights import why_not

    assert [who for who, _ in mailed()] == ["rosa"]
    assert why_not(lena, approval) == "other_group"
    world.move_clock(19 * HOUR)
    assert [who for who, _ in mailed()] == ["rosa"]  # both are late: one after the other
    assert [who for who, _ in mailed()] == ["lena"]
    approval.refresh_from_db()
    assert why_not(lena, approval) == ""
    assert world.decide(approval, lena).status == "approved"


def test_what_was_decided_meanwhile_or_is_no_more_theirs_is_not_written_about(still_world, mails):
    world = still_world
    rosa, gita = person(world, "rosa"), person(world, "gita")
    decided, waits = world.ask(), world.ask()
    notices.make_due()
    assert Notice.objects.count() == 4
    world.decide(decided, rosa)
    gita.groups.clear()
    assert notices.send_due() == 1
    assert [message.to for message in mails] == [["rosa@acme.example"]]
    assert Notice.objects.filter(outcome="needless").count() == 3
    extend(world.tenant.id, waits.id, reviewer=rosa, channel="admin")
    mail.outbox.clear()
    world.move_clock(13 * HOUR)
    assert mailed() == []  # its reminder has moved with its end
    world.move_clock(12 * HOUR)
    assert [who for who, _ in mailed()] == ["rosa"]


def test_two_who_send_at_once_send_each_mail_once_and_one_that_fails_is_tried_again(
    world, mails, monkeypatch
):
    for name in ("rosa", "gita", "lena"):
        person(world, name)
    world.ask()
    assert [type(each) for each in together(*[notices.make_due] * 4)] == [int] * 4
    assert sum(together(*[notices.send_due] * 4)) == 3
    assert sorted(message.to[0] for message in mails) == [
        f"{name}@acme.example" for name in ("gita", "lena", "rosa")
    ]
    mails.clear()
    world.ask()
    notices.make_due()
    send, failed = notices.EmailMessage.send, []

    def refuses(self, *args, **more):
        if len(failed) < 2:
            failed.append(1)
            raise smtplib.SMTPServerDisconnected("away")
        return send(self, *args, **more)

    monkeypatch.setattr(notices.EmailMessage, "send", refuses)
    assert notices.send_due() == 1
    assert notices.send_due() == 0
    world.move_clock(61)
    assert notices.send_due() == 2
    assert len(mails) == 3
    mails.clear()


@pytest.mark.parametrize("none", ["gita@acme.example\nBcc: all@acme.example", '"', "gita@["])
def test_an_address_that_is_none_keeps_nobody_else_waiting_and_is_given_up(world, mails, none):
    for name in ("gita", "lena", "rosa"):
        person(world, name)
    User.objects.filter(username="gita").update(email=none)
    world.ask()
    notices.make_due()
    assert notices.send_due() == 2
    assert {message.to[0] for message in mails} == {"rosa@acme.example", "lena@acme.example"}
    for _ in range(notices.MAX_TRIES):
        world.move_clock(3 * HOUR)
        notices.send_due()
    assert Notice.objects.filter(outcome="gave_up").count() == 1


def test_without_a_mail_server_each_mail_is_a_file(still_world, settings, tmp_path):
    world = still_world
    for name in ("rosa", "gita"):
        person(world, name)
    world.ask()
    settings.MAILERS = {"default": mailer("", tmp_path / "notices")}
    tell_reviewers()
    files = [path.read_text() for path in (tmp_path / "notices").iterdir()]
    assert sorted(text.partition("\nTo: ")[2].partition("@")[0] for text in files) == ["gita", "rosa"]
    assert all("Subject: Waits for a decision: gift.send" in text for text in files)
    assert mailer("smtps://ada:p%40ss@mail.example", tmp_path)["OPTIONS"]["password"] == "p@ss"
