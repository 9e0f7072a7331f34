"""Who may advance a run: the statements that claim, renew, checkpoint, park and hand back, each fenced by epoch.

They are plain SQL so that the driver's asynchronous pool and a test's connection run the very same text. Numbers are
taken only from `UPDATE … RETURNING`. Time is read after the row is locked.
"""

from typing import Any

from .events import INSERT_FROM_RUN


def _by_tenant(then: str) -> str:
    """`then`, over the tenants that have ready runs: a loose scan of the index `run_ready`, one look for each of them.

    No other index has the order that is asked for, here and in `_first`: whatever the planner believes of how many runs there
    are of which kind, it cannot hope to meet one early on another path.
    """
    return f"""
WITH RECURSIVE tenant AS (
  (SELECT tenant_id FROM runs_agentrun WHERE pool = %(pool)s AND ready_at IS NOT NULL AND paused_at IS NULL
   ORDER BY tenant_id, priority, ready_at LIMIT 1)
  UNION ALL
  SELECT (SELECT r.tenant_id FROM runs_agentrun r
          WHERE r.pool = %(pool)s AND r.ready_at IS NOT NULL AND r.paused_at IS NULL AND r.tenant_id > tenant.tenant_id
          ORDER BY r.tenant_id, r.priority, r.ready_at LIMIT 1)
  FROM tenant WHERE tenant.tenant_id IS NOT NULL
)
{then}
"""


def _first(what: str, pool: str, tenant_id: str, ready: str) -> str:
    """`what` of the first run in the index that may be claimed; `ready` says since when, and what else it must be."""
    return f"""(
  SELECT {what} FROM runs_agentrun r WHERE r.pool = {pool} AND r.tenant_id = {tenant_id} AND r.paused_at IS NULL
    AND (r.lease_owner IS NULL OR r.lease_expires_at <= (SELECT agentops_now())) AND {ready}
  ORDER BY r.priority, r.ready_at LIMIT 1)"""


def _claimable(tenant_id: str) -> str:
    return _first("true", "%(pool)s", tenant_id, "r.ready_at <= (SELECT agentops_now())")


# Tenants with runs that may be claimed, the least recently served first.
READY_TENANTS = _by_tenant(f"""
SELECT slot.tenant_id FROM tenant JOIN runs_slot slot USING (tenant_id) JOIN tenancy_tenant t ON t.id = slot.tenant_id
WHERE t.state = 'active' AND {_claimable("slot.tenant_id")}
ORDER BY slot.served_at LIMIT %(at_once)s
""")

# Busy slots are skipped: another process is claiming for that tenant at this moment.
LOCK_SLOTS = """
SELECT tenant_id FROM runs_slot WHERE tenant_id = ANY(%(tenants)s) ORDER BY tenant_id FOR NO KEY UPDATE SKIP LOCKED
"""

# Statements of their own, after the slots are locked: counting inside the statement that locks would over-claim.
PICK = """
WITH room AS (
  SELECT t.id AS tenant_id, t.weight, slot.deficit, slot.served_at, t.concurrent_runs - (
    SELECT count(*) FROM runs_agentrun l
    WHERE l.tenant_id = t.id AND l.lease_owner IS NOT NULL AND l.lease_expires_at > (SELECT agentops_now())
  ) AS free
  FROM tenancy_tenant t JOIN runs_slot slot ON slot.tenant_id = t.id WHERE t.id = ANY(%(tenants)s)
), held AS MATERIALIZED (
  SELECT tenant_id, concurrency_key, count(*) AS leases FROM runs_agentrun
  WHERE tenant_id = ANY(%(tenants)s) AND lease_owner IS NOT NULL AND lease_expires_at > (SELECT agentops_now())
    AND concurrency_key <> ''
  GROUP BY 1, 2
)
SELECT room.*, picked.id, picked.concurrency_key, picked.concurrency_limit, COALESCE(held.leases, 0) AS held
FROM room LEFT JOIN LATERAL (
  SELECT r.id, r.priority, r.ready_at, r.concurrency_key, r.concurrency_limit FROM runs_agentrun r
  WHERE r.pool = %(pool)s AND r.tenant_id = room.tenant_id AND r.ready_at <= (SELECT agentops_now())
    AND (r.lease_owner IS NULL OR r.lease_expires_at <= (SELECT agentops_now()))
    AND r.paused_at IS NULL AND r.ending = '' AND r.needs <@ %(has)s::varchar[]
  ORDER BY r.priority, r.ready_at
  LIMIT CASE WHEN room.free > 0 THEN %(look)s ELSE 0 END
) picked ON true
LEFT JOIN held ON held.tenant_id = room.tenant_id AND held.concurrency_key = picked.concurrency_key
ORDER BY room.served_at, room.tenant_id, picked.priority, picked.ready_at, picked.id
"""

LOCK_RUNS = """
SELECT r.id, r.tenant_id, r.data_key_id, r.status, r.started_at, r.lease_owner, r.blocked_on, r.agent,
  k.wrapped, k.wrapped_by, p.wrapped AS parent_wrapped, rel.manifest, rel.digest AS release_digest
FROM runs_agentrun r
JOIN tenancy_datakey k ON k.id = r.data_key_id
LEFT JOIN tenancy_datakey p ON p.id = k.wrapped_by
JOIN runs_agentrelease rel ON rel.id = r.release_id
WHERE r.id = ANY(%(run_ids)s) AND r.ready_at <= (SELECT agentops_now())
  AND (r.lease_owner IS NULL OR r.lease_expires_at <= (SELECT agentops_now()))
  AND r.paused_at IS NULL AND r.ending = ''
ORDER BY r.id FOR NO KEY UPDATE OF r SKIP LOCKED
"""

# Whose turn is over goes to the end of the line; whose turn was cut short keeps its place and what is due to it.
SERVED = """
UPDATE runs_slot slot SET deficit = mine.deficit,
  served_at = CASE WHEN mine.served THEN agentops_now() ELSE slot.served_at END
FROM unnest(%(tenants)s::bigint[], %(deficits)s::int[], %(served)s::bool[]) AS mine(tenant_id, deficit, served)
WHERE slot.tenant_id = mine.tenant_id
"""

# Ready runs under a key that is taken step aside until the first of its leases could end, so that nobody looks at them over
# and over; who leaves the key lets the next one come at once.
STEP_ASIDE = """
WITH mine AS (
  SELECT id, tenant_id, concurrency_key FROM runs_agentrun
  WHERE id = ANY(%(run_ids)s) AND ready_at <= (SELECT agentops_now())
    AND (lease_owner IS NULL OR lease_expires_at <= (SELECT agentops_now()))
  ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE runs_agentrun run SET stepped_aside = true, ready_at = COALESCE(
  (SELECT min(l.lease_expires_at) FROM runs_agentrun l WHERE l.tenant_id = mine.tenant_id
     AND l.concurrency_key = mine.concurrency_key AND l.lease_owner IS NOT NULL
     AND l.lease_expires_at > (SELECT agentops_now())),
  agentops_now() + make_interval(secs => %(lease_seconds)s))
FROM mine WHERE run.id = mine.id
"""
LEAVE_KEY = """
UPDATE runs_agentrun SET ready_at = agentops_now() WHERE id = (
  SELECT id FROM runs_agentrun WHERE tenant_id = %(tenant_id)s AND concurrency_key = %(key)s AND stepped_aside
    AND ending = '' AND paused_at IS NULL AND ready_at > (SELECT agentops_now())
    AND (lease_owner IS NULL OR lease_expires_at <= (SELECT agentops_now()))
  ORDER BY priority, ready_at LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED
) RETURNING id
"""

# Runs that this process cannot open are looked at again later, so that they hold up nobody: another may have their key.
PUT_OFF = """
UPDATE runs_agentrun SET ready_at = agentops_now() + make_interval(secs => %(lease_seconds)s) WHERE id = ANY(%(run_ids)s)
"""

# `crash_count` counts lives that have done nothing yet: each begins as one more, and its first step sets it back.
TAKE = f"""
WITH run AS (
  UPDATE runs_agentrun SET
    status = 'running', version = version + 1, blocked_on = '{{}}', needs = '{{}}', error_code = '', error_detail = '',
    stepped_aside = false,
    lease_owner = %(owner)s, lease_epoch = lease_epoch + 1,
    lease_expires_at = agentops_now() + make_interval(secs => %(lease_seconds)s),
    ready_at = agentops_now() + make_interval(secs => %(lease_seconds)s),
    crash_count = crash_count + 1,
    started_at = COALESCE(started_at, agentops_now()),
    last_event_seq = last_event_seq + cardinality(%(event_types)s::text[])
  WHERE id = %(run_id)s
  RETURNING *
), written AS ({INSERT_FROM_RUN})
SELECT * FROM run
"""

# One round trip, one commit: the run's counters, its steps, its events, and its end where there is one.
CHECKPOINT = f"""
WITH run AS (
  UPDATE runs_agentrun SET
    last_event_seq = last_event_seq + cardinality(%(event_types)s::text[]),
    steps_taken = steps_taken + %(steps_taken)s,
    spent_microusd = spent_microusd + %(cost_microusd)s,
    reserved_microusd = CASE WHEN %(turn_ends)s THEN 0 ELSE reserved_microusd END,
    inbox_taken = GREATEST(inbox_taken, %(inbox_read)s),
    crash_count = CASE WHEN %(progress)s THEN 0 ELSE crash_count END,
    lease_expires_at = CASE WHEN %(end_status)s::text IS NOT NULL THEN NULL
      WHEN lease_expires_at < agentops_now() + make_interval(secs => %(lease_seconds)s / 2.0)
      THEN agentops_now() + make_interval(secs => %(lease_seconds)s) ELSE lease_expires_at END,
    ready_at = CASE WHEN %(end_status)s::text IS NOT NULL THEN NULL
      WHEN lease_expires_at < agentops_now() + make_interval(secs => %(lease_seconds)s / 2.0)
      THEN agentops_now() + make_interval(secs => %(lease_seconds)s) ELSE ready_at END,
    status = COALESCE(%(end_status)s, status),
    version = version + CASE WHEN %(end_status)s::text IS NULL THEN 0 ELSE 1 END,
    lease_owner = CASE WHEN %(end_status)s::text IS NULL THEN lease_owner END,
    finished_at = CASE WHEN %(end_status)s::text IS NOT NULL THEN agentops_now() END,
    sealed_result = COALESCE(%(sealed_result)s::bytea, sealed_result),
    error_code = COALESCE(%(error_code)s, error_code),
    error_detail = COALESCE(%(error_detail)s, error_detail)
  WHERE id = %(run_id)s AND lease_owner = %(owner)s AND lease_epoch = %(epoch)s AND ending = ''
  RETURNING id, tenant_id, last_event_seq, version, inbox_seq, inbox_taken, paused_at, spent_microusd,
    steps_taken
), stepped AS (
  INSERT INTO runs_step AS s (run_id, key, tenant_id, kind, name, status, attempt, input_digest, sealed_input, sealed_result,
    error_class, started_at, ended_at, model, input_tokens, output_tokens, cost_microusd)
  SELECT run.id, n.key, run.tenant_id, n.kind, n.name, n.status, 1, n.input_digest, n.sealed_input, n.sealed_result,
    n.error_class, agentops_now() - make_interval(secs => n.took_seconds), agentops_now(), n.model,
    n.input_tokens, n.output_tokens, n.cost_microusd
  FROM run, unnest(%(step_keys)s::text[], %(step_kinds)s::text[], %(step_names)s::text[], %(step_statuses)s::text[],
    %(step_digests)s::text[], %(step_asked)s::bytea[], %(step_results)s::bytea[], %(step_errors)s::text[], %(step_seconds)s::float8[],
    %(step_models)s::text[], %(step_inputs)s::int[], %(step_outputs)s::int[], %(step_costs)s::bigint[])
    AS n(key, kind, name, status, input_digest, sealed_input, sealed_result, error_class, took_seconds, model,
         input_tokens, output_tokens, cost_microusd)
  ON CONFLICT (run_id, key) DO UPDATE SET status = excluded.status, sealed_result = excluded.sealed_result,
    error_class = excluded.error_class, ended_at = excluded.ended_at, attempt = s.attempt + 1
    WHERE s.status = 'started'
), written AS ({INSERT_FROM_RUN})
SELECT * FROM run
"""

# Parking rests on counters, never on a subquery: a message that this life has not read has raised `inbox_seq`. A run that parks
# for a person says why: its code and sentence stand on the row until the next claim. One that needs another worker parks over
# messages too: they wait for that worker.
PARK = f"""
WITH run AS (
  UPDATE runs_agentrun SET
    lease_owner = NULL, lease_expires_at = NULL, ready_at = %(ready_at)s::timestamptz,
    blocked_on = %(blocked_on)s::varchar[], needs = %(needs)s::varchar[],
    status = CASE WHEN 'approval' = ANY(%(blocked_on)s::varchar[]) THEN 'waiting_for_approval' ELSE 'running' END,
    version = version + 1, crash_count = 0, error_code = %(error_code)s,
    inbox_taken = CASE WHEN %(needs)s::varchar[] = '{{}}' THEN %(inbox_read)s ELSE inbox_taken END,
    deadline_at = CASE WHEN NOT %(answered)s THEN deadline_at END,
    error_detail = %(error_detail)s, last_event_seq = last_event_seq + cardinality(%(event_types)s::text[])
  WHERE id = %(run_id)s AND lease_owner = %(owner)s AND lease_epoch = %(epoch)s AND ending = ''
    AND (inbox_seq = %(inbox_read)s OR NOT %(needs)s::varchar[] = '{{}}')
  RETURNING id, tenant_id, last_event_seq
), written AS ({INSERT_FROM_RUN})
SELECT id FROM run
"""

# Runs that were parked because no worker had what they need: one that has it takes them up again by itself.
HAVE_NEEDED = """
WITH mine AS (
  SELECT id FROM runs_agentrun
  WHERE pool = %(pool)s AND NOT (needs = '{}') AND needs <@ %(has)s::varchar[] AND lease_owner IS NULL AND ending = ''
    AND paused_at IS NULL AND (ready_at IS NULL OR ready_at > (SELECT agentops_now()))
  ORDER BY id LIMIT 100 FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE runs_agentrun run SET ready_at = agentops_now() FROM mine WHERE run.id = mine.id RETURNING run.id
"""

# What a run has been told and has not taken, in order; `after` is what this life has read already.
READ_INBOX = """
SELECT m.run_id, m.n, m.kind, m.sealed_body FROM unnest(%(run_ids)s::uuid[], %(after)s::int[]) AS reader(run_id, n)
JOIN runs_inboxmessage m ON m.run_id = reader.run_id AND m.n > reader.n
ORDER BY m.run_id, m.n
"""

# One statement for all runs of a process: only leases below half of their time are written. Whoever holds one of the rows
# may want another of them next, so none is waited for: it is renewed at the next look.
RENEW = """
WITH mine AS (
  SELECT id FROM runs_agentrun WHERE lease_owner = %(owner)s AND id = ANY(%(run_ids)s)
    AND lease_expires_at < agentops_now() + make_interval(secs => %(lease_seconds)s / 2.0)
  FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE runs_agentrun run SET
  lease_expires_at = agentops_now() + make_interval(secs => %(lease_seconds)s),
  ready_at = agentops_now() + make_interval(secs => %(lease_seconds)s)
FROM mine WHERE run.id = mine.id
"""

# Which of a process's runs are still its own, and which of them a person has paused; others were ended or taken over.
STILL_MINE = "SELECT id, lease_epoch, paused_at FROM runs_agentrun WHERE lease_owner = %(owner)s"

# How long a cancel took to reach the process that held the run.
CANCELLED_AGO = """
SELECT id, extract(epoch FROM agentops_now() - cancel_requested_at)::float8 AS seconds FROM runs_agentrun
WHERE id = ANY(%(run_ids)s) AND cancel_requested_at IS NOT NULL
"""

# The calls that a process's threads are still in though nobody waits for them: told anew, and no longer told of the rest.
STILL_BUSY = """
WITH told AS (
  INSERT INTO runs_busycall AS b (run_id, key, tenant_id, worker, seen_at)
  SELECT run.id, busy.key, run.tenant_id, %(owner)s, agentops_now()
  FROM unnest(%(run_ids)s::uuid[], %(keys)s::text[]) AS busy(run_id, key) JOIN runs_agentrun run ON run.id = busy.run_id
  ON CONFLICT (run_id, key) DO UPDATE SET worker = excluded.worker, seen_at = excluded.seen_at
)
DELETE FROM runs_busycall b WHERE b.worker = %(owner)s
  AND NOT EXISTS (SELECT 1 FROM unnest(%(run_ids)s::uuid[], %(keys)s::text[]) AS busy(run_id, key)
                  WHERE busy.run_id = b.run_id AND busy.key = b.key)
"""

# A life that ends in order counts as no crash; one that PostgreSQL has ended does.
HAND_BACK = """
WITH mine AS (
  SELECT run.id FROM runs_agentrun run JOIN unnest(%(run_ids)s::uuid[], %(epochs)s::int[]) AS held(id, epoch)
    ON run.id = held.id AND run.lease_owner = %(owner)s AND run.lease_epoch = held.epoch
  ORDER BY run.id FOR NO KEY UPDATE OF run
)
UPDATE runs_agentrun run SET lease_owner = NULL, lease_expires_at = NULL,
  ready_at = agentops_now() + make_interval(secs => %(pause_seconds)s),
  crash_count = GREATEST(crash_count - 1 + %(crashes)s, 0)
FROM mine WHERE run.id = mine.id RETURNING run.id
"""

# After a supervisor has reaped a process: its leases end now, and those under a key let the next one come (LEAVE_KEY).
HAND_BACK_DEAD = """
UPDATE runs_agentrun SET lease_owner = NULL, lease_expires_at = NULL, ready_at = agentops_now()
WHERE lease_owner = %(owner)s RETURNING tenant_id, concurrency_key AS key
"""

# Whether anything of a pool may be claimed now.
WAITING = _by_tenant(f"SELECT EXISTS (SELECT 1 FROM tenant WHERE {_claimable('tenant.tenant_id')}) AS exists")

# Of each pool and tenant the first run that has been ready for a while though its tenant has room for it and nobody holds it
# back: a loose scan over both. One that needs another release has said so when it was parked.
UNCLAIMED = f"""
WITH RECURSIVE place AS (
  (SELECT pool, tenant_id FROM runs_agentrun WHERE ready_at IS NOT NULL AND paused_at IS NULL
   ORDER BY pool, tenant_id, priority, ready_at LIMIT 1)
  UNION ALL
  SELECT next.pool, next.tenant_id FROM place CROSS JOIN LATERAL (
    SELECT r.pool, r.tenant_id FROM runs_agentrun r WHERE r.ready_at IS NOT NULL AND r.paused_at IS NULL
      AND (r.pool, r.tenant_id) > (place.pool, place.tenant_id)
    ORDER BY r.pool, r.tenant_id, r.priority, r.ready_at LIMIT 1) next
)
SELECT place.pool, first.id FROM place JOIN tenancy_tenant t ON t.id = place.tenant_id CROSS JOIN LATERAL {
    _first(
        "r.id, r.ready_at",
        "place.pool",
        "place.tenant_id",
        "r.ready_at < (SELECT agentops_now()) - make_interval(secs => %(seconds)s) AND r.needs <@ %(has)s::varchar[]",
    )
} first
WHERE t.state = 'active' AND t.concurrent_runs > (
  SELECT count(*) FROM runs_agentrun l
  WHERE l.tenant_id = t.id AND l.lease_owner IS NOT NULL AND l.lease_expires_at > (SELECT agentops_now())
) ORDER BY first.ready_at
"""


def taken_away(epoch: int) -> dict[str, Any]:
    """The columns of a run of that epoch that nobody may advance any more: whoever holds it has lost it."""
    gone = dict.fromkeys(("lease_owner", "lease_expires_at", "ready_at"))
    return {**gone, "lease_epoch": epoch + 1, "stepped_aside": False}


# A run that ends leaves no step that looks as if somebody were still at it: it may or may not have happened.
INTERRUPT = """
UPDATE runs_step SET status = 'interrupted', error_class = %(why)s, ended_at = agentops_now()
WHERE run_id = %(run_id)s AND status = 'started'
"""
