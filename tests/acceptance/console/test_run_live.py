"""The run page while the run goes on: what arrives is what a fresh page shows."""

import re
from typing import Any

from django.contrib.auth.models import Group
from django.db import transaction
from playwright.sync_api import Page, WebSocketRoute, expect

from runs.events import Event, append
from runs.models import AgentRun
from runs.services import lock
from tests import factories, proposals
from tests.acceptance.console.conftest import House, Open
from tests.unit.console import logs


def tell(run: AgentRun, frames: list[dict[str, Any]]) -> None:
    with transaction.atomic():
        append(lock(run.tenant_id, run.id), *(Event(one["type"], one["data"]) for one in frames))


def started(house: House) -> tuple[AgentRun, list[dict[str, Any]]]:
    """A run with its first event, and the events that will follow."""
    return factories.run(house.tenant, "My order A-1002 arrived damaged."), logs.story()[1:]


def shown(page: Page) -> str:
    """The timeline, the line of now and the status as markup, without the white space between elements."""
    parts = page.evaluate(
        """() => ["[data-timeline]", "[data-now]", "[data-answer]"]
            .map((place) => document.querySelector(place).outerHTML)"""
    )
    return re.sub(r">\s+<", "><", "\n".join(parts)).replace("> ", ">").replace(" <", "<")


def open_run(visit: Open, house: House, run: AgentRun, **options: Any) -> Page:
    page = visit(house.engineer, **options).open(f"/admin/runs/{run.public_id}/")
    expect(page.locator("[data-live].is-live")).to_be_visible()
    return page


def test_a_page_from_an_old_state_plus_its_events_equals_a_fresh_page(visit: Open, house: House) -> None:
    run, frames = started(house)
    page = open_run(visit, house, run)
    for begin in range(0, len(frames), 6):
        tell(run, frames[begin : begin + 6])
        page.wait_for_timeout(150)
    expect(page.locator("[data-status]")).to_have_text("Completed")
    expect(page.locator("[data-answer-text]")).to_have_text("I have refunded €489.00.")
    expect(page.locator("[data-cancel]")).to_have_count(0)
    live = shown(page)
    page.reload()
    assert shown(page) == live


def test_the_row_of_a_question_and_the_line_of_now_move_together(visit: Open, house: House) -> None:
    run, frames = started(house)
    page = open_run(visit, house, run)
    asked = next(place for place, frame in enumerate(frames) if frame["type"] == "approval.requested")
    tell(run, frames[: asked + 1])
    expect(page.locator("[data-status]")).to_have_text("Waits for a person")
    expect(page.locator("#g-apr_1")).to_have_attribute("data-state", "waiting")
    expect(page.locator("[data-now-link]")).to_have_attribute("href", "/admin/approvals/apr_1/")
    tell(run, frames[asked + 1 : asked + 2])
    expect(page.locator("[data-status]")).to_have_text("Running")
    expect(page.locator("#g-apr_1")).to_have_attribute("data-state", "ok")
    expect(page.locator("[data-now-link]")).to_be_hidden()


def test_an_open_row_stays_open_while_events_arrive(visit: Open, house: House) -> None:
    run, frames = started(house)
    page = open_run(visit, house, run)
    tell(run, frames[:6])
    page.click("#g-turn-1\\/call-0 summary")
    tell(run, frames[6:10])
    expect(page.locator("#g-turn-1\\/call-0 .tl-detail")).to_be_visible()
    expect(page.locator("#g-turn-1\\/call-0 .tl-detail")).to_contain_text("No answer in 5 s.")


def test_a_lost_frame_and_a_cut_socket_leave_no_gap(visit: Open, house: House) -> None:
    run, frames = started(house)
    seen = visit(house.engineer)
    dropped: list[str] = []

    def meddle(socket: WebSocketRoute) -> None:
        server = socket.connect_to_server()

        def pass_on(message: str | bytes) -> None:
            if len(dropped) < 2 and '"seq":7,' in str(message):
                dropped.append(str(message))
                return
            socket.send(message)

        server.on_message(pass_on)

    seen.page.route_web_socket("**/ws/runs/**", meddle)
    page = seen.open(f"/admin/runs/{run.public_id}/")
    tell(run, frames[:9])
    tell(run, frames[9:])
    expect(page.locator("[data-status]")).to_have_text("Completed", timeout=15_000)
    assert dropped
    live = shown(page)
    page.reload()
    assert shown(page) == live


def test_without_the_socket_the_page_asks_every_five_seconds_and_says_so(visit: Open, house: House) -> None:
    run, frames = started(house)
    seen = visit(house.engineer)
    seen.page.route_web_socket("**/ws/runs/**", lambda socket: socket.close(code=1011))
    page = seen.open(f"/admin/runs/{run.public_id}/")
    expect(page.locator("[data-live-text]")).to_have_text("connection lost; asks every 5 s", timeout=10_000)
    tell(run, frames)
    expect(page.locator("[data-status]")).to_have_text("Completed", timeout=10_000)


def test_a_right_that_is_withdrawn_ends_the_live_view(visit: Open, house: House) -> None:
    run, _ = started(house)
    page = open_run(visit, house, run)
    house.engineer.groups.remove(*Group.objects.all())
    expect(page.locator("[data-live-text]")).to_contain_text("no longer shown live", timeout=10_000)
    page.reload()
    expect(page.locator("h1")).to_have_text("Not found")


def test_filters_and_scale_work_without_a_new_page(visit: Open, house: House) -> None:
    run, frames = started(house)
    tell(run, frames)
    page = visit(house.engineer).open(f"/admin/runs/{run.public_id}/")
    page.evaluate("window.kept = true")
    page.click(".tl-filter >> text=Model")
    expect(page.locator("[data-timeline] > li:visible")).to_have_count(3)
    page.click(".tl-filter >> text=Problems")
    expect(page.locator("[data-timeline] > li:visible").first).to_have_attribute("data-problem", "")
    page.click("text=True scale")
    expect(page.locator("[data-scale]")).to_have_text("Fold idle time")
    assert page.evaluate("window.kept") is True


def test_a_long_run_shows_its_newest_groups_and_older_ones_on_request(visit: Open, house: House) -> None:
    run, _ = started(house)
    log = logs.Log()
    log(0, "run.started", worker="w-1")
    for number in range(400):
        log(0, "tool.requested", call_id=f"turn-1/call-{number}", tool="lookup_order", arguments={})
    tell(run, log.frames)
    page = visit(house.engineer).open(f"/admin/runs/{run.public_id}/")
    expect(page.locator("[data-timeline] > li")).to_have_count(300)
    page.click("text=Show older")
    expect(page.locator("[data-timeline] > li")).to_have_count(401)


def test_a_run_is_cancelled_after_it_was_said_what_that_does_not_undo(visit: Open, house: House) -> None:
    run = factories.run(house.tenant, "Refund A-1002")
    approval = proposals.asked(run)
    page = open_run(visit, house, run)
    page.click("text=Cancel run")
    expect(page.locator("#undo + p")).to_contain_text("The agent stops")
    expect(page.locator("main")).to_contain_text("Not sent yet, and then never will be")
    expect(page.locator("main")).to_contain_text("Refund €189.00 on order A-1002")
    page.fill("#reason", "The customer called.")
    page.click("text=Cancel the run")
    expect(page.locator(".banner")).to_contain_text("Cancelled. refund.create on order A-1002: not sent")
    expect(page.locator("[data-status]")).to_have_text("Cancelled")
    page.goto(page.url + "cancel/")
    expect(page.locator(".banner")).to_contain_text("cancelled already; nothing more was done")
    page.goto(page.url.split("/runs/")[0] + f"/approvals/{approval.public_id}/")
    expect(page.locator(".decided")).to_contain_text("withdrawn")
