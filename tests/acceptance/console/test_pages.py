"""Every page at both widths in both themes: nothing for axe, nothing sideways, no complaint of the browser."""

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.db import transaction
from playwright.sync_api import Page

from agentops.audit.entries import SYSTEM
from agentops.audit.models import AuditEntry
from agentops.engine.control import cancel_run
from agentops.tenancy.models import ApiToken, Membership, User
from approvals.models import Approval, Policy
from approvals.services import decide
from operations.models import Operation
from runs.events import Event, append
from runs.models import AgentRun
from runs.services import lock
from tests import factories, proposals
from tests.acceptance.console.conftest import PASSWORD, House, Open
from tests.unit.console import logs

HOSTILE = (
    "<script>document.title='owned'</script> [pay](https://evil.example) ![x](https://evil.example/x.png) "
    "\u202egpj.exe " + "W" * 300 + "\n" + "line\n" * 40
)


def tell(run: AgentRun, frames: list[dict]) -> None:
    """Put a log's events on a run, after the one it has."""
    with transaction.atomic():
        append(lock(run.tenant_id, run.id), *(Event(one["type"], one["data"]) for one in frames[1:]))


def hostile_approval(house: House) -> Approval:
    run = factories.run(house.tenant, HOSTILE, actor="customer:\u202eA-C1")
    return proposals.asked(run, order="A-1003", amount_minor=60_000, note=HOSTILE[:500], refund_to=HOSTILE)


@pytest.fixture
def everyone(house: House) -> User:
    """Somebody who may see every page."""
    user = User(username=f"ada-{house.tenant.pk}", is_staff=True, is_superuser=True)
    user.set_password(PASSWORD)
    user.save()
    return user


@pytest.fixture
def pages(house: House) -> dict[str, int]:
    """The addresses of pages with something on them, each with how many looks it gets: Django's own are looked at twice."""
    tenant = house.tenant
    waiting = proposals.asked(factories.run(tenant, "My order A-1002 arrived damaged."), order="A-1002")
    closed = proposals.asked(factories.run(tenant, "Refund A-1005, please."), order="A-1005")
    decide(
        tenant.id, closed.id, reviewer=house.reviewer, verdict="reject", reason="The photo shows another lamp.",
        proposal_digest=closed.proposal_digest, channel="admin",
    )  # fmt: skip
    hostile = hostile_approval(house)
    ended = proposals.asked(factories.run(tenant, "Refund A-1007, please."), order="A-1007").operation.run
    cancel_run(tenant.id, ended.id, actor=SYSTEM, reason="Asked twice.")
    told = factories.run(tenant, "A long story")
    tell(told, logs.story())
    factories.token(tenant)
    entry = AuditEntry.objects.filter(tenant=tenant).first()
    policy = Policy.objects.filter(tenant=tenant).first()
    token = ApiToken.objects.filter(tenant=tenant).first()
    member = Membership.objects.filter(tenant=tenant).first()
    assert None not in (entry, policy, token, member)
    run = waiting.operation.run.public_id
    own = [
        "/admin/",
        "/admin/approvals/",
        "/admin/approvals/?show=high",
        "/admin/approvals/?show=today",
        f"/admin/approvals/?tenant={tenant.id}",
        f"/admin/approvals/{waiting.public_id}/",
        f"/admin/approvals/{closed.public_id}/",
        f"/admin/approvals/{hostile.public_id}/",
        "/admin/runs/",
        "/admin/runs/?status=failed&q=nothing",
        f"/admin/runs/{run}/",
        f"/admin/runs/{run}/events/",
        f"/admin/runs/{run}/cancel/",
        f"/admin/runs/{run}/pause/",
        f"/admin/runs/{ended.public_id}/rerun/",
        f"/admin/runs/{told.public_id}/",
        f"/admin/runs/{hostile.operation.run.public_id}/",
        "/admin/operations/",
        "/admin/operations/?status=unclear",
        f"/admin/operations/{closed.operation.public_id}/",
        "/admin/nothing-here/",
        "/admin/runs/run_00000000000000000000000000/",
    ]
    stock = [
        "/admin/password_change/",
        "/admin/tenancy/tenant/",
        f"/admin/tenancy/tenant/{tenant.pk}/change/",
        "/admin/tenancy/user/",
        f"/admin/tenancy/user/{house.lead.pk}/change/",
        "/admin/tenancy/membership/",
        f"/admin/tenancy/membership/{member.pk}/change/",
        "/admin/tenancy/apitoken/",
        f"/admin/tenancy/apitoken/{token.pk}/change/",
        "/admin/approvals/policy/",
        f"/admin/approvals/policy/{policy.pk}/change/",
        "/admin/audit/auditentry/",
        f"/admin/audit/auditentry/{entry.pk}/change/",
    ]
    return dict.fromkeys(own, 3) | dict.fromkeys(stock, 2)


WHOLE = {"resultTypes": ["violations"]}
CONTRAST = {"runOnly": {"type": "rule", "values": ["color-contrast"]}, **WHOLE}
LOOKS = [("light", 1440, WHOLE), ("dark", 390, CONTRAST), ("light", 390, WHOLE)]


def faults(page: Page, looks: int) -> Iterator[str]:
    """What axe finds, in light at both widths and in dark, and what does not fit into the window.

    320 px is what 1280 px are at 400 %.
    """
    for theme, width, options in LOOKS[:looks]:
        page.emulate_media(color_scheme=theme)
        page.set_viewport_size({"width": width, "height": 900})
        for violation in Axe().run(page, options=options).response["violations"]:
            places = ", ".join(node["html"][:120] for node in violation["nodes"][:3])
            yield f"{theme} {width}: {violation['id']} ({violation['help']}): {places}"
    for width in (1440, 390, 320):
        page.set_viewport_size({"width": width, "height": 900})
        wide, room = page.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        if wide > room:
            yield f"{wide} px wide in {room} px"


def test_every_page_is_accessible_and_fits(visit: Open, everyone: User, pages: dict[str, int]) -> None:
    seen = visit(everyone, bypass_csp=True, reduced_motion="reduce")  # no colour is measured half way
    found = {path: list(faults(seen.open(path), looks)) for path, looks in pages.items()}
    door = visit(None, bypass_csp=True, reduced_motion="reduce").open("/admin/login/")
    found["sign-in"] = list(faults(door, 3))
    assert {path: told for path, told in found.items() if told} == {}


def test_no_page_offends_the_content_security_policy(
    visit: Open, everyone: User, pages: dict[str, int]
) -> None:
    """Any complaint of the browser fails at the end of the visit."""
    seen = visit(everyone)
    for path in pages:
        assert seen.open(path).title().endswith("AgentOps")


def test_hostile_text_is_text_everywhere(visit: Open, house: House) -> None:
    approval = hostile_approval(house)
    seen = visit(house.lead)
    operation = approval.operation
    for path in (
        f"/admin/approvals/{approval.public_id}/",
        f"/admin/runs/{operation.run.public_id}/",
        f"/admin/operations/{operation.public_id}/",
        "/admin/runs/",
    ):
        page = seen.open(path)
        assert page.title() != "owned"
        assert (
            page.locator("main script:not([type='application/json']), main img, main a[href*='evil']").count()
            == 0
        )
        assert "\u202e" not in page.locator("main").inner_text()
    page = seen.open(f"/admin/approvals/{approval.public_id}/")
    assert "[U+202E]gpj.exe" in page.locator(".review-main").inner_text()
    assert page.locator(".words details:not([open])").count() > 0  # a long text is folded


def test_an_erased_run_still_has_its_page(visit: Open, house: House) -> None:
    run = factories.run(house.tenant, "to be forgotten")
    tell(run, logs.erased())
    page = visit(house.engineer).open(f"/admin/runs/{run.public_id}/")
    assert page.locator("[data-timeline] > li").count() > 5
    assert Operation.objects.filter(run=run).count() == 0


def test_own_pages_are_light(visit: Open, house: House) -> None:
    """Uncompressed; the budget of 60 KB is with gzip, and at most twelve requests."""
    approval = proposals.asked(factories.run(house.tenant, "Refund A-1002"))
    seen = visit(house.reviewer)
    for path in (
        "/admin/approvals/",
        f"/admin/approvals/{approval.public_id}/",
        f"/admin/runs/{approval.operation.run.public_id}/",
        f"/admin/operations/{approval.operation.public_id}/",
    ):
        page = seen.open(path)
        weights = page.evaluate(
            """() => ["navigation", "resource"].flatMap((kind) => performance.getEntriesByType(kind))
                .map((entry) => entry.decodedBodySize)"""
        )
        assert len(weights) <= 12, path
        assert 10_000 < sum(weights) < 120_000, path
