-- name: claim
-- $1 claim_max, $2 published_for, $3 pushes_max, $4 first repeat, $5 longest repeat, $6 may_publish
SELECT event_ids, task_types, task_versions, generations, claimed_at, completed, put_off, left_due
  FROM outbox_claim_v1($1, $2, $3, $4, $5, $6);

-- name: unpublish
-- What could not be handed to the queue after all is due again at once. $1 event_ids, $2 claimed_at
UPDATE outbox_events SET state = 'pending', next_attempt_at = mailboxd_now(), updated_at = mailboxd_now()
 WHERE event_id = ANY ($1::uuid[]) AND state = 'published' AND published_at = $2;

-- name: begin
-- Counts the attempt before anything is done: a worker that dies in it leaves a trace. No published_at: it waits in the
-- queue no more, and a second message of the same publication begins nothing beside it. $1 event_id, $2 lease.
-- Facts of the same snapshot as the position: what is pushed after this began after that position committed.
WITH begun AS (
    UPDATE outbox_events SET attempts = attempts + 1, published_at = NULL, next_attempt_at = mailboxd_now() + $2::interval,
           updated_at = mailboxd_now()
     WHERE event_id = $1 AND state = 'published' AND published_at IS NOT NULL
    RETURNING *
)
SELECT x.event_id, x.aggregate_ref AS device, x.task_type, x.task_version, x.generation, x.attempts, x.troubles,
       x.pushes_accepted, x.push_began_at, x.push_position, coalesce(b.state = 1, false) AS active,
       coalesce(b.wake_position, 0) AS wake_position, coalesce(b.stored_entries > w.released_entries, false) AS pending,
       w.online_until, w.contact_at,
       (SELECT e.position FROM envelopes e
         WHERE e.recipient_device_id = b.device_id AND e.position <= b.wake_position AND e.position > w.floor_position
           AND e.acked_at IS NULL AND e.kind = 0 AND e.expires_at > mailboxd_now()
         ORDER BY e.position DESC LIMIT 1) IS NOT NULL AS waiting,
       r.wake_route_id, r.provider, r.mode, r.sealed_address, r.seal_key_id, r.version AS route_version, r.status AS route_status,
       coalesce(r.status <> 'gone', false) AS has_route, mailboxd_now() AS now
  FROM begun x
  LEFT JOIN mailboxes b ON b.device_id = x.aggregate_ref
  LEFT JOIN mailbox_owners w ON w.device_id = x.aggregate_ref
  LEFT JOIN push_routes r ON r.device_id = x.aggregate_ref;

-- name: push_begins
-- From here on a contact counts as an answer. $1 device
UPDATE mailbox_owners SET pushed_at = mailboxd_now() WHERE device_id = $1 RETURNING pushed_at;

-- name: pushed
-- A provider took the push. Its count starts again when the device was in contact since the one before.
-- $1 event_id, $2 generation, $3 began_at, $4 position, $5 first repeat, $6 longest repeat. Another generation: due again.
UPDATE outbox_events x
   SET state = CASE WHEN x.generation = $2 THEN 'retry_wait' ELSE 'pending' END, attempts = 0, troubles = 0, reason = NULL,
       pushes_accepted = CASE WHEN x.generation = $2 THEN n.count ELSE x.pushes_accepted END,
       push_began_at = CASE WHEN x.generation = $2 THEN $3 ELSE x.push_began_at END,
       push_position = CASE WHEN x.generation = $2 THEN $4 ELSE x.push_position END,
       next_attempt_at = CASE WHEN x.generation <> $2 THEN mailboxd_now()
                              WHEN w.contact_at > $3 THEN $3 + $5::interval
                              ELSE $3 + wake_repeat_v1(n.count, $5::interval, $6::interval) END,
       updated_at = mailboxd_now()
  FROM mailbox_owners w
 CROSS JOIN LATERAL (SELECT CASE WHEN o.pushes_accepted = 0 OR coalesce(w.contact_at > o.push_began_at, false) THEN 1
                                 ELSE o.pushes_accepted + 1 END AS count
                       FROM outbox_events o WHERE o.event_id = $1) AS n
 WHERE x.event_id = $1 AND w.device_id = x.aggregate_ref AND x.state IN ('published', 'pending')
RETURNING x.state;

-- name: put_off
-- Comes again at the time given, by itself; no attempt is used up. $1 event_id, $2 generation, $3 wait, $4 reason, $5 troubles
UPDATE outbox_events
   SET state = CASE WHEN generation = $2 THEN 'retry_wait' ELSE 'pending' END, attempts = 0, troubles = $5, reason = $4,
       next_attempt_at = CASE WHEN generation = $2 THEN mailboxd_now() + $3::interval ELSE mailboxd_now() END,
       updated_at = mailboxd_now()
 WHERE event_id = $1 AND state IN ('published', 'pending')
RETURNING state;

-- name: back_to_pending
-- For the dispatcher to look at again at the time given: online until then, or pushed a moment ago. $1 event_id, $2 until
UPDATE outbox_events SET state = 'pending', attempts = 0, next_attempt_at = $2, updated_at = mailboxd_now()
 WHERE event_id = $1 AND state IN ('published', 'pending')
RETURNING state;

-- name: failed
-- The handler raised: the attempt stays counted. $1 event_id, $2 wait, $3 reason
UPDATE outbox_events
   SET state = 'retry_wait', reason = $3, next_attempt_at = mailboxd_now() + $2::interval, updated_at = mailboxd_now()
 WHERE event_id = $1 AND state = 'published'
RETURNING attempts;

-- name: quarantine
-- Not for this release. The attempt, if one was counted, is taken back. $1 event_id, $2 wait, $3 reason
UPDATE outbox_events
   SET state = 'retry_wait', reason = $3, next_attempt_at = mailboxd_now() + $2::interval, updated_at = mailboxd_now()
 WHERE event_id = $1 AND state = 'published'
RETURNING state;

-- name: complete
SELECT outbox_complete_v1($1, $2, $3, $4);

-- name: bury
SELECT outbox_bury_v1($1, $2);

-- name: take_back_overdue
-- Published and not brought to an end in time: the queue lost it, or the worker that had it is gone. $1 rows_max
UPDATE outbox_events x SET state = 'pending', next_attempt_at = mailboxd_now(), updated_at = mailboxd_now()
  FROM (SELECT o.event_id FROM outbox_events o
         WHERE o.state = 'published' AND o.next_attempt_at <= mailboxd_now()
         ORDER BY o.next_attempt_at, o.event_id LIMIT $1 FOR UPDATE SKIP LOCKED) AS late
 WHERE x.event_id = late.event_id
RETURNING x.event_id;

-- name: take_back_published
-- The queue was emptied: everything that it held. $1 published before, $2 rows_max
UPDATE outbox_events x SET state = 'pending', next_attempt_at = mailboxd_now(), updated_at = mailboxd_now()
  FROM (SELECT o.event_id FROM outbox_events o
         WHERE o.state = 'published' AND o.published_at <= $1
         ORDER BY o.event_id LIMIT $2 FOR UPDATE SKIP LOCKED) AS lost
 WHERE x.event_id = lost.event_id
RETURNING x.event_id;

-- name: mend_after_clock_step
-- $1 the longest that anything waits, $2 rows_max
SELECT outbox_clock_went_back_v1($1, $2);

-- name: now
SELECT mailboxd_now();

-- name: wake_drift
-- Mailboxes whose wake_open does not say what the outbox says. $1 after device, $2 page
WITH page AS (SELECT b.device_id, b.wake_open, b.state FROM mailboxes b WHERE b.device_id > $1 ORDER BY b.device_id LIMIT $2)
SELECT p.device_id, p.wake_open IS DISTINCT FROM (x.event_id IS NOT NULL) AS differs
  FROM page p
  LEFT JOIN outbox_events x ON x.aggregate_ref = p.device_id AND x.task_type = 'wake_device'
                           AND x.state IN ('pending', 'published', 'retry_wait')
 ORDER BY p.device_id;

-- name: lock_mailbox
SELECT wake_open FROM mailboxes WHERE device_id = $1 FOR NO KEY UPDATE;

-- name: repair_wake_open
-- Under the mailbox's lock. $1 device
UPDATE mailboxes b
   SET wake_open = EXISTS (SELECT FROM outbox_events x WHERE x.aggregate_ref = $1 AND x.task_type = 'wake_device'
                              AND x.state IN ('pending', 'published', 'retry_wait'))
 WHERE b.device_id = $1
RETURNING b.wake_open;

-- name: open_wakes
SELECT wake_open_v1($1::uuid[]);

-- name: status
SELECT count(*) FILTER (WHERE state = 'pending') AS pending, count(*) FILTER (WHERE state = 'published') AS published,
       count(*) FILTER (WHERE state = 'retry_wait') AS retry_wait, count(*) FILTER (WHERE state = 'dead_letter') AS dead_letter,
       count(*) FILTER (WHERE state IN ('pending', 'retry_wait') AND next_attempt_at <= mailboxd_now()) AS due,
       coalesce(extract(epoch FROM mailboxd_now() - min(next_attempt_at)
                FILTER (WHERE state IN ('pending', 'retry_wait') AND next_attempt_at <= mailboxd_now())), 0)::float8
           AS oldest_due_seconds,
       count(*) FILTER (WHERE state = 'retry_wait' AND reason LIKE 'unknown task%') AS unknown_tasks
  FROM outbox_events WHERE state <> 'completed';

-- name: list_dead_letters
-- Oldest first. $1 limit
SELECT event_id, task_type, task_version, generation, attempts, reason, mailboxd_ms(created_at) AS created_ms,
       mailboxd_ms(updated_at) AS updated_ms
  FROM outbox_events WHERE state = 'dead_letter' ORDER BY updated_at, event_id LIMIT $1;

-- name: show_dead_letter
SELECT event_id, task_type, task_version, generation, attempts, reason, mailboxd_ms(created_at) AS created_ms,
       mailboxd_ms(updated_at) AS updated_ms
  FROM outbox_events WHERE event_id = $1 AND state = 'dead_letter';

-- name: requeue_dead_letter
SELECT outbox_requeue_v1($1);

-- name: drop_dead_letter
DELETE FROM outbox_events WHERE event_id = $1 AND state = 'dead_letter' RETURNING event_id;

-- name: disable_route
-- Only the route that the provider spoke of: a newer one may have come. $1 device, $2 wake_route_id, $3 version
UPDATE push_routes SET status = 'gone', gone_told_at = NULL, updated_at = mailboxd_now()
 WHERE device_id = $1 AND wake_route_id = $2 AND version = $3 AND status <> 'gone'
RETURNING device_id;

-- name: mark_route
-- Tells the owner whether a provider takes pushes for it. $1 device, $2 wake_route_id, $3 status active or misconfigured
UPDATE push_routes SET status = $3, updated_at = mailboxd_now()
 WHERE device_id = $1 AND wake_route_id = $2 AND status NOT IN ('gone', $3)
RETURNING device_id;
