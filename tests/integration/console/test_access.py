"""Who sees what in the console, and that looking changes nothing."""

import re
from collections.abc import Iterator

import pytest
from django.contrib import admin
from django.db import connection, models
from django.test import Client
from django.urls import reverse

from agentops.audit.models import AuditEntry
from agentops.tenancy.models import ApiToken, Membership, User
from approvals.models import Approval, Decision, Policy
from operations.models import Operation
from runs.models import AgentRun, RunEvent
from tests import factories, proposals

ROLE = factories.Membership.Role
NOBODY = "00000000000000000000000000"


@pytest.fixture
def approval(db: None) -> Approval:
    return proposals.asked(factories.run(proposals.shop("acme"), "Refund A-1002"))


def signed_in(user: User, **options: bool) -> Client:
    client = Client(**options)
    client.force_login(user)
    return client


def member(approval: Approval, role: str = ROLE.LEAD, **more: int) -> User:
    return factories.person(approval.tenant, role, each_minor=more.get("each_minor", 200_000))


def administrator() -> User:
    return User.objects.create(username="ada", is_staff=True, is_superuser=True)


def own_pages(approval: Approval) -> list[str]:
    run, operation = approval.operation.run.public_id, approval.operation.public_id
    return [
        "/admin/",
        "/admin/counts/",
        "/admin/approvals/",
        f"/admin/approvals/{approval.public_id}/",
        "/admin/runs/",
        f"/admin/runs/{run}/",
        f"/admin/runs/{run}/events/",
        f"/admin/runs/{run}/cancel/",
        "/admin/operations/",
        f"/admin/operations/{operation}/",
    ]


def changelists() -> Iterator[tuple[type[models.Model], str]]:
    for model in admin.site._registry:
        yield model, reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")


def test_a_visitor_is_sent_to_sign_in(approval: Approval) -> None:
    for path in [*own_pages(approval), *(path for _, path in changelists())]:
        answer = Client().get(path)
        assert answer.status_code == 302, path
        assert answer["Location"].startswith("/admin/login/?next="), path


def test_a_member_sees_every_page(approval: Approval) -> None:
    client = signed_in(member(approval))
    for path in own_pages(approval):
        assert client.get(path).status_code == 200, path


def test_another_tenants_objects_are_not_there(approval: Approval) -> None:
    stranger = factories.person(proposals.shop("globex"), ROLE.LEAD)
    client = signed_in(stranger)
    for path in own_pages(approval):
        if approval.public_id in path or "/run_" in path or "/op_" in path:
            assert client.get(path).status_code == 404, path
            assert client.post(path).status_code in (404, 405), path
        else:
            assert approval.tenant.name not in client.get(path).content.decode(), path
    assert Approval.objects.get().status == "requested"


@pytest.mark.parametrize("path", ["approvals/apr_", "runs/run_", "operations/op_", "approvals/run_", "runs/"])
def test_what_is_no_id_of_ours_is_not_there(db: None, path: str) -> None:
    person = factories.person(proposals.shop(), ROLE.LEAD)
    assert signed_in(person).get(f"/admin/{path}{NOBODY}/").status_code == 404


def test_without_a_right_anywhere_a_list_says_whom_to_ask(db: None) -> None:
    person = User.objects.create(username="new", is_staff=True)
    client = signed_in(person)
    for path in ("/admin/approvals/", "/admin/runs/", "/admin/operations/"):
        answer = client.get(path)
        assert answer.status_code == 403
        assert "A tenant administrator can grant it" in answer.content.decode()
    assert "Your account has no rights in any tenant yet." in client.get("/admin/").content.decode()


def test_who_may_not_cancel_finds_no_cancel_page(approval: Approval) -> None:
    run = approval.operation.run
    client = signed_in(member(approval, ROLE.REVIEWER))
    assert "data-cancel" not in client.get(f"/admin/runs/{run.public_id}/").content.decode()
    assert client.post(f"/admin/runs/{run.public_id}/cancel/", {"reason": "no"}).status_code == 404


def test_every_post_needs_its_token(approval: Approval) -> None:
    client = signed_in(member(approval), enforce_csrf_checks=True)
    posts = {
        f"/admin/approvals/{approval.public_id}/": {"verdict": "approve"},
        f"/admin/runs/{approval.operation.run.public_id}/cancel/": {"reason": "no"},
    }
    for path, form in posts.items():
        answer = client.post(path, form)
        assert answer.status_code == 403, path
        assert "This form is too old" in answer.content.decode()
    assert not Decision.objects.exists()


def fingerprints() -> dict[str, str]:
    prints = {}
    with connection.cursor() as cursor:
        for model in (
            Approval,
            Decision,
            Operation,
            AgentRun,
            RunEvent,
            AuditEntry,
            Policy,
            Membership,
            ApiToken,
        ):
            table = model._meta.db_table
            cursor.execute(
                f"SELECT md5(coalesce(string_agg(t::text, '|' ORDER BY t::text), '')) FROM {table} t"
            )
            prints[table] = cursor.fetchone()[0]
    return prints


def test_looking_changes_nothing(approval: Approval) -> None:
    client = signed_in(administrator())
    before = fingerprints()
    for path in [*own_pages(approval), *(path for _, path in changelists())]:
        assert client.get(
            path, {"verdict": "approve", "reason": "x", "action": "delete_selected"}
        ).status_code in (200, 302)
    assert fingerprints() == before


def test_nothing_is_added_changed_or_deleted_in_the_stock_admin(approval: Approval) -> None:
    factories.token(approval.tenant)
    member(approval)
    client = signed_in(administrator())
    for model, path in changelists():
        row = model._default_manager.first()
        assert row is not None
        assert client.get(path).status_code == 200, path
        assert client.get(f"{path}{row.pk}/change/").status_code == 200, path
        assert client.get(f"{path}add/").status_code == 403, path
        assert client.get(f"{path}{row.pk}/delete/").status_code == 403, path
        assert client.post(f"{path}{row.pk}/change/", {}).status_code == 403, path


def test_a_tenants_administrator_sees_own_people_and_tokens_only(approval: Approval) -> None:
    other = proposals.shop("globex")
    factories.token(other)
    factories.token(approval.tenant)
    client = signed_in(member(approval, ROLE.TENANT_ADMIN))
    shown = client.get("/admin/tenancy/apitoken/").content.decode()
    assert approval.tenant.name in shown
    assert other.name not in shown
    foreign = ApiToken.objects.get(tenant=other)
    assert (
        client.get(f"/admin/tenancy/apitoken/{foreign.pk}/change/").status_code == 302
    )  # Django's "does not exist"
    assert client.get("/admin/tenancy/tenant/").status_code == 403


def test_no_page_shows_a_tokens_hash(approval: Approval) -> None:
    text = factories.token(approval.tenant)
    token = ApiToken.objects.get(prefix=text[:10])
    client = signed_in(administrator())
    for path in ("/admin/tenancy/apitoken/", f"/admin/tenancy/apitoken/{token.pk}/change/"):
        page = client.get(path).content.decode()
        assert text not in page
        assert bytes(token.hash).hex() not in page
        assert "hash" not in re.sub(r"<[^>]+>", "", page)


def test_a_list_is_asked_only_by_what_it_offers(approval: Approval) -> None:
    factories.token(approval.tenant)
    client = signed_in(administrator())
    for model, path in changelists():
        for field in model._meta.fields:
            for lookup in (field.name, f"{field.name}__startswith", f"{field.name}__regex"):
                assert client.get(path, {lookup: "("}).headers["Location"] == f"{path}?e=1", lookup
    assert client.get("/admin/tenancy/membership/", {"role__exact": ROLE.LEAD}).status_code == 200
    assert client.get("/admin/audit/auditentry/", {"security__exact": "1"}).status_code == 200


def test_no_list_offers_a_select_over_a_large_table() -> None:
    for model, model_admin in admin.site._registry.items():
        keys = {field.name for field in model._meta.fields if isinstance(field, models.ForeignKey)}
        assert keys <= set(model_admin.raw_id_fields), model
        assert model_admin.show_full_result_count is False
        assert model_admin.date_hierarchy is None


def test_every_page_has_a_strict_policy(approval: Approval) -> None:
    answer = signed_in(member(approval)).get("/admin/approvals/")
    policy = answer["Content-Security-Policy"]
    assert "script-src 'self'" in policy
    assert "style-src 'self'" in policy
    assert "unsafe" not in policy
    page = answer.content.decode()
    assert "style=" not in page
    assert not re.search(r"<script(?![^>]*(src=|application/json))", page)


def test_an_engineer_pauses_resumes_and_retries_and_nobody_else_does(approval: Approval) -> None:
    run = approval.operation.run
    page = f"/admin/runs/{run.public_id}/"
    engineer = member(approval, ROLE.ENGINEER)
    client = signed_in(engineer)
    for verb, said in (
        ("pause", "Paused by"),
        ("resume", ""),
        ("cancel", ""),
        ("retry", "Carries on the work of"),
    ):
        assert f"{page}{verb}/" in client.get(page).content.decode()
        for role in (ROLE.REVIEWER, ROLE.AUDITOR):
            other = signed_in(member(approval, role))
            assert f"{page}{verb}/" not in other.get(page).content.decode()
            assert other.post(f"{page}{verb}/", {"reason": "no"}).status_code == 404
        checked = signed_in(engineer, enforce_csrf_checks=True)
        assert checked.post(f"{page}{verb}/", {"reason": "no"}).status_code == 403
        assert client.get(f"{page}{verb}/").status_code == 200
        for unseen in (" ", "\u200b\u2060", "\u202e"):
            assert client.post(f"{page}{verb}/", {"reason": unseen}).status_code == 422
        answer = client.post(f"{page}{verb}/", {"reason": "It must be so."}, follow=True)
        assert said in answer.content.decode()
    verbs = AuditEntry.objects.filter(actor=f"user:{engineer.pk}").values_list("verb", flat=True)
    assert {"run.paused", "run.resumed", "run.cancelled", "run.retried"} <= set(verbs)
    again = AgentRun.objects.get(retry_of=run)
    assert "Carried on by" in client.get(page).content.decode()
    assert (
        "has not stopped"
        in client.post(f"/admin/runs/{again.public_id}/retry/", {"reason": "x"}, follow=True).content.decode()
    )
    assert client.post(f"{page}explode/", {"reason": "x"}).status_code == 404


def test_an_engineer_sees_what_a_rerun_would_meet_and_confirms_exactly_that(approval: Approval) -> None:
    run = approval.operation.run
    page = f"/admin/runs/{run.public_id}/"
    engineer = member(approval, ROLE.ENGINEER)
    client = signed_in(engineer)
    assert "rerun/" not in client.get(page).content.decode()
    assert "has not ended" in client.get(f"{page}rerun/", follow=True).content.decode()
    client.post(f"{page}cancel/", {"reason": "x"})
    assert f"{page}rerun/" in client.get(page).content.decode()
    for role in (ROLE.REVIEWER, ROLE.AUDITOR):
        other = signed_in(member(approval, role))
        assert "rerun/" not in other.get(page).content.decode()
        assert other.get(f"{page}rerun/").status_code == 404
    assert signed_in(engineer, enforce_csrf_checks=True).post(f"{page}rerun/").status_code == 403
    shown = client.get(f"{page}rerun/").content.decode()
    assert "Proposed again, and decided again" in shown
    assert "It was cancelled before anything was sent." in shown
    digest = re.search(r'name="digest" value="([^"]+)"', shown).group(1)
    given = {"digest": digest, "reason": "The answer was odd.", "input": "Refund A-1002"}
    assert client.post(f"{page}rerun/", {**given, "reason": " "}).status_code == 422
    moved = client.post(f"{page}rerun/", {**given, "digest": "c1:rerun:0"})
    assert (moved.status_code, "nothing was started" in moved.content.decode()) == (409, True)
    assert not run.reruns.exists()
    answer = client.post(f"{page}rerun/", given, follow=True).content.decode()
    assert "Takes up the request of" in answer
    (made,) = run.reruns.all()
    assert (made.principal, made.channel) == (f"user:{engineer.pk}", "admin")
    assert AuditEntry.objects.filter(verb="run.rerun", actor=f"user:{engineer.pk}").exists()
    assert "Run again as" in client.get(page).content.decode()
    again = client.post(f"{page}rerun/", given)  # the button pressed twice
    assert (again.status_code, run.reruns.count()) == (409, 1)
    digest = re.search(r'name="digest" value="([^"]+)"', again.content.decode()).group(1)
    client.post(f"{page}rerun/", {**given, "digest": digest, "input": "Cancel order A-1003."})
    assert AuditEntry.objects.filter(verb="run.forked").count() == 1
