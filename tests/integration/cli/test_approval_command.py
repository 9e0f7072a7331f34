"""Approvals at the terminal: the same verbs, with the rights of the person who is named."""

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from agentops.cli.people import NO_RIGHT, NOT_THERE, REFUSED
from agentops.tenancy.models import Membership
from approvals.models import Approval, Decision
from operations.models import Operation
from tests import factories
from tests.world import GIFT, still_world

__all__ = ["still_world"]


def said(*words: str) -> str:
    out = StringIO()
    call_command("approval", *words, stdout=out)
    return out.getvalue()


def refused(*words: str) -> int:
    with pytest.raises(CommandError) as told:
        said(*words)
    return told.value.returncode


def test_a_proposal_is_read_lowered_approved_taken_back_and_rejected_by_name(still_world):
    world = still_world
    factories.person(world.tenant, name="rosa", each_minor=5_000)
    factories.person(world.tenant, Membership.Role.ENGINEER, name="emil", each_minor=None)
    factories.person(factories.tenant("globex"), name="gita", each_minor=10**6)
    approval = world.ask()
    by = ("--as", "rosa")
    digest = ("--digest", approval.proposal_digest)
    assert str(approval) in said("list", *by)
    assert said("list", "--as", "gita") == ""
    shown = said("show", str(approval), *by)
    assert f"digest {approval.proposal_digest}" in shown
    assert "amount_minor: 40000" in shown
    assert refused("approve", str(approval), *by, *digest) == NO_RIGHT  # above her limit
    assert refused("approve", str(approval), "--as", "emil", *digest) == NO_RIGHT
    assert refused("approve", str(approval), "--as", "gita", *digest) == NOT_THERE
    assert refused("reject", str(approval), *by, "--digest", "x", "--reason", "No.") == REFUSED
    assert refused("lower", str(approval), "amount_minor=much", *by, *digest, "--reason", "x") == REFUSED
    assert "asks for less" in said(
        "lower", str(approval), "amount_minor=4900", *by, *digest, "--reason", "Half."
    )
    new = Approval.objects.get(status="requested")
    assert "Asked again. A reviewer lowered it. Amount: €400.00 → €49.00." in said("show", str(new), *by)
    assert "may be decided until" in said("extend", str(new), *by)
    assert "is approved" in said("approve", str(new), *by, "--digest", new.proposal_digest)
    assert Decision.objects.get().channel == "cli"
    assert "The question is open again." in said("revoke", str(new), *by, "--reason", "Too fast.")
    last = Approval.objects.get(status="requested")
    assert "is rejected" in said(
        "reject", str(last), *by, "--digest", last.proposal_digest, "--reason", "No."
    )


def test_who_takes_a_yes_back_is_told_what_it_has_come_to(still_world):
    world = still_world
    rosa = factories.person(world.tenant, name="rosa", each_minor=40_000)
    denied, altered = world.ask(), world.ask()
    for approval in (denied, altered):
        world.decide(approval, rosa)
    Operation.objects.filter(pk=altered.operation_id).update(amount_minor=50)
    factories.policy(world.tenant, GIFT.name, [{"code": "stop", "when": "true", "outcome": "deny"}])
    by = ("--as", "rosa", "--reason", "Too fast.")
    assert "nothing was sent. The rules in force deny it" in said("revoke", str(denied), *by)
    assert "nothing was sent. Its record was altered since" in said("revoke", str(altered), *by)


def test_the_words_of_a_customer_command_no_terminal_and_make_no_line_of_their_own(still_world):
    factories.person(still_world.tenant, name="rosa")
    approval = still_world.ask(memo="Hi\x1b[2J\u202e\ndigest c1:proposal:0", account="acc\x1b[31m")
    shown = said("show", str(approval), "--as", "rosa") + said("list", "--as", "rosa")
    assert not set("\x1b\u202e") & set(shown)
    assert [line for line in shown.splitlines() if line.startswith("digest")] == [
        f"digest {approval.proposal_digest}"
    ]
    digest = ("--digest", approval.proposal_digest)
    too_long = f"amount_minor={'9' * 5_000}"
    assert refused("lower", str(approval), too_long, "--as", "rosa", *digest, "--reason", "x") == REFUSED
