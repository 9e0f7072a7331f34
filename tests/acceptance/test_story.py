"""The main job, end to end, as a tenant's developer, a reviewer and a kill -9 meet it."""

import base64
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psycopg
import pytest

from tests.acceptance.stack import ROOT, Stack, environment, eventually
from tests.acceptance.story import Story


@pytest.fixture
def story(stack: Stack) -> Story:
    told = Story(stack)
    told.fault("ok")
    return told


def notice_of(stack: Stack, approval_id: str) -> str:
    """The mail to a reviewer that leads to that proposal; the demo writes each into a file."""
    texts = [path.read_text() for path in (stack.data / "notices").glob("*")]
    return next((text for text in texts if f"/admin/approvals/{approval_id}/" in text), "")


def mails(stack: Stack) -> list[Path]:
    return sorted((stack.data / "mail").glob("ao_*"))


def test_a_refund_that_a_person_approves_over_rest_happens_once_and_shows_its_receipt(story: Story) -> None:
    order = story.order(12_900)
    before = len(mails(story.stack))
    run_id = story.start(f"My order {order} arrived damaged, please refund it.")
    approval = story.waiting(run_id)
    assert approval["proposal"]["action"] == "refund.create"
    assert approval["proposal"]["target"] == f"order:{order}"
    assert {"name": "refunded", "before": 0, "after": 12_900} in approval["proposal"]["fields"]
    assert [reason["text"] for reason in approval["proposal"]["reasons"]] == [
        "The amount is above the automatic limit of €50.00."
    ]

    status, decided = story.decide(approval, reason="Photo checked.")
    assert (status, decided["status"]) == (200, "approved")

    run = story.ended(run_id)
    (refund,) = story.refunds(order)
    assert run["status"] == "completed"
    assert refund["amount"] == 12_900
    assert refund["id"] in run["result"]["text"]
    operation = run["operations"][0]
    assert operation["provider_ref"] == refund["id"]
    assert operation["operation_id"] == refund["operation_id"]
    status, receipt = story.stack.request(f"/v1/operations/{operation['operation_id']}", story.token)
    assert status == 200
    assert receipt["receipt"]["provider_ref"] == refund["id"]
    assert len(mails(story.stack)) == before + 1
    assert sum(refund["id"] in mail.read_text() for mail in mails(story.stack)) == 1


def test_up_to_fifty_euro_policy_allows_it_and_nobody_is_asked(story: Story) -> None:
    order = story.order(5_000)
    run = story.ended(story.start(f"为订单 {order} 退款"))
    assert run["status"] == "completed"
    assert [refund["amount"] for refund in story.refunds(order)] == [5_000]
    assert "退款" in run["result"]["text"]
    assert not [event for event in story.stream(run["run_id"]) if event["type"] == "approval.requested"]


def test_above_two_thousand_euro_it_is_denied_and_the_customer_is_told_why(story: Story) -> None:
    order = story.order(259_900)
    run = story.ended(story.start(f"My order {order} arrived damaged, please refund it."))
    assert run["status"] == "completed"
    assert "our finance team will contact you" in run["result"]["text"]
    assert story.refunds(order) == []
    assert run["operations"][0]["status"] == "rejected"


def test_a_rejection_needs_a_reason_and_the_customer_hears_it(story: Story) -> None:
    order = story.order(9_900)
    run_id = story.start(f"My order {order} arrived damaged, please refund it.")
    approval = story.waiting(run_id)
    eventually(lambda: notice_of(story.stack, approval["approval_id"]), 20, "a reviewer is written to")
    assert "To: reviewer@example.test" in notice_of(story.stack, approval["approval_id"])
    status, problem = story.decide(approval, "reject", reason=" ")
    assert status == 422, problem
    status, _ = story.decide(approval, "reject", reason="The photo shows another product.")
    assert status == 200
    run = story.ended(run_id)
    assert "The photo shows another product." in run["result"]["text"]
    assert story.refunds(order) == []


def test_a_person_decides_every_cancellation_of_an_order(story: Story) -> None:
    order = story.order(2_490)
    run_id = story.start(f"Cancel order {order}.")
    approval = story.waiting(run_id)
    assert approval["proposal"]["action"] == "order.cancel"
    assert story.cancellations(order) == []
    assert story.decide(approval)[0] == 200
    run = story.ended(run_id)
    assert run["status"] == "completed"
    assert len(story.cancellations(order)) == 1


def test_a_mere_question_changes_nothing(story: Story) -> None:
    order = story.order(2_490)
    run = story.ended(story.start(f"Where is order {order}?"))
    assert run["status"] == "completed"
    assert order in run["result"]["text"]
    assert run["operations"] == []


def test_the_assistant_adds_a_note_once(story: Story) -> None:
    run = story.ended(story.start("Add a note: buy milk for the story", agent="assistant"))
    assert run["status"] == "completed"
    notes = [
        note for note in story.provider("/_books")["notes"] if "buy milk for the story" in json.dumps(note)
    ]
    assert len(notes) == 1


def test_a_reviewer_is_held_to_the_own_limit_tenant_and_one_answer(story: Story) -> None:
    run_id = story.start(f"My order {story.order(48_900)} arrived damaged, please refund it.")
    approval = story.waiting(run_id)
    status, problem = story.decide(approval)
    assert (status, problem["code"]) == (403, "over_limit")
    assert "Lena" in problem["detail"]
    assert story.decide(approval, "reject", reason="Over my limit, so no.")[0] == 200
    status, problem = story.decide(approval, "reject", reason="Again.")
    assert (status, problem["code"]) == (409, "already_decided")
    assert "Rosa" in problem["detail"]

    globex = Story(story.stack, "globex")
    foreign = globex.start(f"My order {globex.order(9_900)} arrived damaged, please refund it.")
    status, _ = story.decide(globex.waiting(foreign))
    assert status == 404
    assert story.stack.request(f"/v1/runs/{foreign}", story.token)[0] == 404
    assert globex.cancel(foreign)[0] == 200


def test_the_stream_goes_on_wherever_it_was_cut(story: Story) -> None:
    run = story.ended(story.start(f"为订单 {story.order(1_990)} 退款"))
    whole = story.stream(run["run_id"])
    assert [event["seq"] for event in whole] == list(range(1, run["last_event_seq"] + 1))
    assert whole[-1]["type"] == "run.completed"
    for cut in range(1, len(whole)):
        assert story.stream(run["run_id"], after=cut) == whole[cut:]
    assert story.stream(run["run_id"], after=len(whole)) == []


def test_a_stream_that_is_followed_live_and_cut_again_and_again_has_no_gap_and_no_repeat(
    story: Story,
) -> None:
    run_id = story.start(f"My order {story.order(6_000)} arrived damaged, please refund it.")
    seen: list[int] = []
    decided = False
    while not seen or not story.run(run_id)["finished_at"] or seen[-1] < story.run(run_id)["last_event_seq"]:
        events = story.stream(run_id, after=seen[-1] if seen else 0, at_most=3)
        seen += [event["seq"] for event in events]
        if not decided and any(event["type"] == "approval.requested" for event in events):
            decided = story.decide(story.waiting(run_id))[0] == 200
    assert seen == list(range(1, len(seen) + 1))


def test_two_runs_about_one_order_have_one_refund(story: Story) -> None:
    order = story.order(7_700)
    first = story.start(f"My order {order} arrived damaged, please refund it.")
    approval = story.waiting(first)
    second = story.start(f"My order {order} arrived damaged, please refund it.")
    eventually(lambda: len(story.run(second)["blocked_on"]) > 0, 20, "the second run waits as well")
    assert story.decide(approval)[0] == 200
    assert story.ended(first)["status"] == story.ended(second)["status"] == "completed"
    (refund,) = story.refunds(order)
    assert refund["id"] in story.run(first)["result"]["text"]
    assert refund["id"] in story.run(second)["result"]["text"]


@pytest.mark.parametrize("moment", ["first", "hold", "before_commit", "after_commit", "mail"])
def test_a_worker_killed_at_any_moment_leaves_one_refund(story: Story, moment: str) -> None:
    order = story.order(8_800)
    run_id = story.start(f"My order {order} arrived damaged, please refund it.")
    if moment == "first":
        time.sleep(0.3)
        kill_worker(story.stack)
    approval = story.waiting(run_id)
    if moment in ("before_commit", "after_commit"):
        story.fault("slow" if moment == "before_commit" else "slow_after", seconds=3, times=1)
    assert story.decide(approval)[0] == 200
    if moment == "hold":
        kill_worker(story.stack)
    if moment in ("before_commit", "after_commit"):
        eventually(lambda: story.run(run_id)["operations"][0]["status"] == "executing", 30, "sent")
        time.sleep(0.5)
        kill_worker(story.stack)
    if moment == "mail":
        eventually(lambda: story.run(run_id)["operations"][0]["status"] == "succeeded", 30, "refunded")
        kill_worker(story.stack)
    run = story.ended(run_id, seconds=90)
    assert run["status"] == "completed"
    (refund,) = story.refunds(order)
    assert refund["id"] in run["result"]["text"]
    assert sum(refund["id"] in mail.read_text() for mail in mails(story.stack)) == 1


def kill_worker(stack: Stack) -> None:
    """SIGKILL, as the kernel does when memory runs out; the supervisor starts another."""
    pid = stack.pid("worker")
    os.kill(pid, signal.SIGKILL)
    pidfile = stack.data / "pids" / "worker.pid"
    eventually(
        lambda: pidfile.exists() and pidfile.read_text().strip() not in ("", str(pid)), 60, "another worker"
    )


def test_a_lost_answer_is_unknown_until_it_is_looked_up_and_never_sent_twice(story: Story) -> None:
    order = story.order(4_400)
    story.fault("commit_then_drop", times=1)
    calls = story.provider("/_books")["calls"]
    run_id = story.start(f"My order {order} arrived damaged, please refund it.")
    eventually(lambda: "unknown" in [op["status"] for op in story.run(run_id)["operations"]], 20, "unknown")
    run = story.ended(run_id, seconds=60)
    assert run["status"] == "completed"
    assert len(story.refunds(order)) == 1
    assert story.provider("/_books")["calls"] == calls + 1


def test_cancel_answers_with_what_became_of_each_effect(story: Story) -> None:
    order = story.order(9_100)
    run_id = story.start(f"My order {order} arrived damaged, please refund it.")
    approval = story.waiting(run_id)
    status, receipt = story.cancel(run_id, "Wrong order.")
    assert status == 200
    assert receipt["status"] == "cancelled"
    assert receipt["reason"] == "Wrong order."
    assert [effect["outcome"] for effect in receipt["effects"]] == ["not_sent"]
    status, problem = story.cancel(run_id)
    assert status == 409
    assert problem["receipt"]["reason"] == "Wrong order."
    assert story.decide(approval)[0] == 409
    assert story.stream(run_id)[-1]["type"] == "run.cancelled"
    assert story.refunds(order) == []


def test_a_cancel_while_the_refund_is_on_its_way_says_that_it_cannot_be_stopped(story: Story) -> None:
    order = story.order(3_300)
    story.fault("slow", seconds=4, times=1)
    run_id = story.start(f"My order {order} arrived damaged, please refund it.")
    eventually(lambda: "executing" in [op["status"] for op in story.run(run_id)["operations"]], 20, "sent")
    status, receipt = story.cancel(run_id)
    assert (status, receipt["cancelling"]) == (202, True)
    assert [effect["outcome"] for effect in receipt["effects"]] == ["cannot_be_stopped"]
    run = story.ended(run_id, seconds=60)
    assert run["status"] == "cancelled"
    assert run["operations"][0]["status"] == "succeeded"
    assert len(story.refunds(order)) == 1


def test_the_same_start_twice_is_one_run(story: Story) -> None:
    order = story.order(1_000)
    assert story.start(f"Where is order {order}?", key="same") == story.start(
        f"Where is order {order}?", key="same"
    )


def test_runs_finish_while_the_web_process_is_down(story: Story) -> None:
    order = story.order(2_000)
    run_id = story.start(f"My order {order} arrived damaged, please refund it.")
    os.kill(story.stack.pid("web"), signal.SIGKILL)
    eventually(lambda: len(story.refunds(order)) == 1, 30, "the refund, with nobody serving")
    eventually(lambda: story.stack.answers("/readyz"), 60, "the web process is back")
    assert story.ended(run_id)["status"] == "completed"


def test_every_log_line_of_a_run_carries_its_ids_and_no_customer_words(story: Story) -> None:
    run_id = story.start(f"My order {story.order(1_500)} arrived damaged, please refund it: SECRET-WORDS-42")
    story.ended(run_id)
    lines = (story.stack.data / "logs" / "worker.log").read_text().splitlines()
    entries = [json.loads(line) for line in lines if line.startswith("{")]
    ours = [entry for entry in entries if entry.get("run_id") == run_id]
    assert {"provider_answered"} <= {entry["event"] for entry in ours}
    for entry in ours:
        assert entry["tenant"] == "acme"
        assert entry["trace_id"]
    answered = next(entry for entry in ours if entry["event"] == "provider_answered")
    assert answered["operation_id"].startswith("op_")
    assert answered["step"].startswith("turn-")
    for log in (story.stack.data / "logs").glob("*.log"):
        assert "SECRET-WORDS-42" not in log.read_text(errors="replace"), log


def manage(stack: Stack, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    changes = {
        "AGENTOPS_DEMO": "1",
        "AGENTOPS_DATA": str(stack.data),
        "DATABASE_URL": stack.demo["database_url"],
        "AGENTOPS_PROVIDER_URL": stack.demo["provider_url"],
    }
    return subprocess.run(
        [sys.executable, "manage.py", *words],
        cwd=ROOT,
        env=environment(**changes | env),
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_more_orders_are_made_on_the_command_line(story: Story) -> None:
    words = ("seed_orders", "--tenant", "acme", "--count", "3", "--amount", "24.90")
    made = manage(story.stack, *words, AGENTOPS_DEMO="", AGENTOPS_PROVIDER_URL="", DATABASE_URL="")
    orders = json.loads(made.stdout)
    assert [order["amount_minor"] for order in orders] == [2490] * 3
    assert len({order["charge"] for order in orders}) == 3
    wrong = manage(story.stack, "seed_orders", "--tenant", "acme", "--count", "3", "--amount", "a lot")
    assert wrong.returncode != 0
    assert "--amount takes euro" in wrong.stderr


def test_a_terminal_beside_the_demo_speaks_to_it_and_needs_no_more_than_its_folder(story: Story) -> None:
    for words in (
        ("approval", "list", "--as", "reviewer"),
        ("policy", "show", "refund.create", "--as", "policy-owner"),
    ):
        beside = subprocess.run(
            [sys.executable, "manage.py", *words],
            cwd=ROOT,
            env=environment(AGENTOPS_DATA=str(story.stack.data)),
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert beside.returncode == 0, beside.stderr
    assert "refund.over_ceiling" in beside.stdout


def test_outside_the_demo_a_start_with_demo_secrets_is_refused(story: Story) -> None:
    missing = manage(story.stack, "check", "--deploy", AGENTOPS_DEMO="0")
    assert missing.returncode == 0 or "AGENTOPS_SECRET_KEY" in missing.stderr
    refused = manage(story.stack, "serve", AGENTOPS_DEMO="0")
    assert refused.returncode != 0
    assert "AGENTOPS_SECRET_KEY is not set" in refused.stderr
    secret = "agentops-demo-secret-never-use-outside-the-demo/AGENTOPS_SECRET_KEY"
    demo = base64.b64encode(hashlib.sha256(secret.encode()).digest()).decode()
    refused = manage(story.stack, "serve", AGENTOPS_DEMO="0", AGENTOPS_SECRET_KEY=demo)
    assert refused.returncode != 0
    assert "is the demo's secret" in refused.stderr


def test_a_real_model_without_its_key_says_so_at_the_start(story: Story) -> None:
    refused = manage(story.stack, "check", AGENTOPS_MODEL="anthropic:claude-sonnet-4-5", ANTHROPIC_API_KEY="")
    assert refused.returncode != 0
    assert "ANTHROPIC_API_KEY" in refused.stderr


def test_the_accounts_tokens_and_orders_of_the_demo_are_as_promised(stack: Stack) -> None:
    demo = stack.demo
    amounts = {order["id"]: (order["amount_minor"], order["currency"]) for order in demo["orders"]}
    assert amounts["A-1001"] == (12_900, "EUR")
    assert amounts["A-1002"] == (48_900, "EUR")
    assert amounts["A-1003"] == (2_490, "EUR")
    assert amounts["A-1004"] == (259_900, "EUR")
    twenty = [amounts[f"A-{number}"][0] for number in range(1005, 1025)]
    assert sum(amount < 5_000 for amount in twenty) == 10
    assert sum(6_000 <= amount <= 19_000 for amount in twenty) == 10
    assert all(
        {"id", "tenant", "charge", "amount_minor", "currency"} <= set(order) for order in demo["orders"]
    )
    assert "G-2001" in amounts
    assert set(demo["tokens"]) == {"acme", "globex", "acme_reviewer"}
    assert {account["name"] for account in demo["accounts"]} == {
        "reviewer",
        "lead",
        "engineer",
        "policy-owner",
        "globex-reviewer",
        "admin",
    }


def test_a_refund_that_bounces_is_told_by_the_payments_themselves(story: Story) -> None:
    """After success nobody looks any more: only a signed message can bring it."""
    order = story.order(2_490)
    story.fault("bounce_after", seconds=1, times=1)
    assert (
        story.ended(story.start(f"My order {order} arrived damaged, please refund it."))["status"]
        == "completed"
    )
    with psycopg.connect(story.stack.demo["database_url"], autocommit=True) as database:

        def is_reversed() -> bool:
            wanted = "SELECT reversed_at FROM operations_operation WHERE target_name = %s AND action = 'refund.create'"
            return database.execute(wanted, [order]).fetchone()[0] is not None

        eventually(is_reversed, 20, "the operation says that it was undone")
