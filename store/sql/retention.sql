-- name: cleanup_expired
-- $1 rows_max
SELECT seen, deleted FROM cleanup_expired_v1($1);

-- name: cleanup_acked
-- $1 rows_max, $2 notes_max, $3 age
SELECT seen, deleted FROM cleanup_acked_v1($1, $2, $3);

-- name: cleanup_idempotency
-- $1 rows_max. All of these: oldest first, whoever else is at it takes others.
DELETE FROM idempotency_records x
 USING (SELECT i.actor_scope_hash, i.idempotency_key_hash, i.operation FROM idempotency_records i
         WHERE i.expires_at <= mailboxd_now() ORDER BY i.expires_at LIMIT $1 FOR UPDATE SKIP LOCKED) AS old
 WHERE (x.actor_scope_hash, x.idempotency_key_hash, x.operation)
     = (old.actor_scope_hash, old.idempotency_key_hash, old.operation);

-- name: cleanup_challenges
DELETE FROM auth_challenges x
 USING (SELECT c.challenge_hash FROM auth_challenges c
         WHERE c.expires_at <= mailboxd_now() ORDER BY c.expires_at LIMIT $1 FOR UPDATE SKIP LOCKED) AS old
 WHERE x.challenge_hash = old.challenge_hash;

-- name: cleanup_outbox
-- Completed ones only: a dead letter stays until somebody decides. $1 rows_max, $2 age
DELETE FROM outbox_events x
 USING (SELECT o.event_id FROM outbox_events o
         WHERE o.state = 'completed' AND o.updated_at <= mailboxd_now() - $2::interval
         ORDER BY o.updated_at LIMIT $1 FOR UPDATE SKIP LOCKED) AS old
 WHERE x.event_id = old.event_id;

-- name: cleanup_audit
-- $1 rows_max, $2 age
DELETE FROM audit_events x
 USING (SELECT a.audit_id FROM audit_events a
         WHERE a.created_at <= mailboxd_now() - $2::interval ORDER BY a.created_at LIMIT $1 FOR UPDATE SKIP LOCKED) AS old
 WHERE x.audit_id = old.audit_id;

-- name: cleanup_invites
-- Whatever became of them: after their end none admits anybody. $1 rows_max, $2 age
DELETE FROM invites x
 USING (SELECT i.invite_hash FROM invites i
         WHERE i.expires_at <= mailboxd_now() - $2::interval ORDER BY i.expires_at LIMIT $1 FOR UPDATE SKIP LOCKED) AS old
 WHERE x.invite_hash = old.invite_hash;

-- name: cleanup_revoked
-- Nobody can read them any more. The mailboxes' rows stay: a revoked device is known as such for ever. $1 rows_max
WITH held AS MATERIALIZED (
    SELECT w.device_id FROM mailbox_owners w
     WHERE w.device_id IN (SELECT d.device_id FROM devices d JOIN envelopes e ON e.recipient_device_id = d.device_id
                            WHERE d.status = 'revoked' LIMIT 32)
     ORDER BY w.device_id FOR NO KEY UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM envelopes e
     USING (SELECT x.recipient_device_id, x.position FROM held h
             CROSS JOIN LATERAL (SELECT y.recipient_device_id, y.position FROM envelopes y
                                  WHERE y.recipient_device_id = h.device_id ORDER BY y.position LIMIT $1) AS x
             LIMIT $1) AS old
     WHERE e.recipient_device_id = old.recipient_device_id AND e.position = old.position
    RETURNING e.recipient_device_id, e.kind, e.envelope_size, e.acked_at
), released AS (
    SELECT g.recipient_device_id AS id, count(*) FILTER (WHERE g.kind = 0) AS entries,
           coalesce(sum(g.envelope_size) FILTER (WHERE g.kind = 0), 0)::bigint AS bytes,
           count(*) FILTER (WHERE g.kind = 1) AS echoes
      FROM gone g WHERE g.acked_at IS NULL GROUP BY 1
), counted AS (
    UPDATE mailbox_owners w
       SET released_entries = w.released_entries + r.entries, released_bytes = w.released_bytes + r.bytes,
           released_echoes = w.released_echoes + r.echoes
      FROM released r WHERE w.device_id = r.id
)
SELECT count(*) FROM gone;

-- name: oldest_overdue
-- Seconds since the oldest row of each kind should have been gone; 0 when none is overdue.
-- $1 age of acked, $2 of completed outbox rows, $3 of audit events
SELECT greatest(0, extract(epoch FROM t.now - (SELECT min(expires_at) FROM envelopes)))::float8 AS expired,
       greatest(0, extract(epoch FROM t.now - $1::interval
                - (SELECT a.acked_at FROM ack_batches a ORDER BY a.batch_id LIMIT 1)))::float8 AS acked,
       greatest(0, extract(epoch FROM t.now - (SELECT min(expires_at) FROM idempotency_records)))::float8 AS idempotency,
       greatest(0, extract(epoch FROM t.now - (SELECT min(expires_at) FROM auth_challenges)))::float8 AS challenges,
       greatest(0, extract(epoch FROM t.now - $2::interval
                - (SELECT o.updated_at FROM outbox_events o WHERE o.state = 'completed'
                    ORDER BY o.updated_at LIMIT 1)))::float8 AS outbox,
       greatest(0, extract(epoch FROM t.now - $3::interval - (SELECT min(created_at) FROM audit_events)))::float8 AS audit,
       greatest(0, extract(epoch FROM t.now - $3::interval - (SELECT min(expires_at) FROM invites)))::float8 AS invites
  FROM (SELECT mailboxd_now() AS now) AS t;

-- name: database_ms
SELECT mailboxd_ms(mailboxd_now());

-- name: counter_drift
-- $1 after device, $2 page
SELECT device_id, entries_drift, bytes_drift, echoes_drift, floor_drift, floor_may, floor_lags, last_device
  FROM counter_drift_v1($1, $2);

-- name: raise_floors
-- To where an earlier snapshot said that they may be; held rows another time. $1 devices, $2 floors
UPDATE mailbox_owners w SET floor_position = t.floor
  FROM (SELECT o.device_id, d.floor FROM unnest($1::uuid[], $2::bigint[]) AS d(id, floor)
          JOIN mailbox_owners o ON o.device_id = d.id
         ORDER BY o.device_id FOR NO KEY UPDATE OF o SKIP LOCKED) AS t
 WHERE w.device_id = t.device_id AND w.floor_position < t.floor;

-- name: repair_counters
SELECT repair_counters_v1($1);

-- name: retention_preview
-- What a shorter life would change: $1 the new longest life.
SELECT count(*) AS shortened_envelopes, count(DISTINCT e.recipient_device_id) AS devices,
       count(*) FILTER (WHERE e.accepted_at + $1::interval <= t.now) AS removed_envelopes,
       coalesce(sum(e.envelope_size) FILTER (WHERE e.accepted_at + $1::interval <= t.now), 0)::bigint AS removed_bytes,
       count(DISTINCT e.recipient_device_id) FILTER (WHERE e.accepted_at + $1::interval <= t.now) AS removed_devices
  FROM envelopes e CROSS JOIN (SELECT mailboxd_now() AS now) AS t
 WHERE e.expires_at > e.accepted_at + $1::interval AND e.acked_at IS NULL AND e.expires_at > t.now;

-- name: retention_owners
-- Locks the owners of up to $3 entries that stand after ($1 device, $2 position): a statement of its own, so that the next
-- one sees what was acked before the lock.
SELECT w.device_id FROM mailbox_owners w
 WHERE w.device_id IN (SELECT p.recipient_device_id
                         FROM (SELECT e.recipient_device_id FROM envelopes e
                                WHERE (e.recipient_device_id, e.position) > ($1, $2)
                                ORDER BY e.recipient_device_id, e.position LIMIT $3) AS p)
 ORDER BY w.device_id FOR NO KEY UPDATE;

-- name: retention_step
-- Shortens the lives of up to $4 entries that stand after ($2 device, $3 position) and whose owners $5 are locked. Clean-up
-- removes what is over then. $1 the new longest life. Returns where it came to; no row at the end. Acked ones are left
-- alone: they are on their way out already, and their clean-up deletes them without the owner's lock.
WITH page AS MATERIALIZED (
    SELECT e.recipient_device_id, e.position, e.acked_at IS NULL AND e.expires_at > e.accepted_at + $1::interval AS longer
      FROM envelopes e WHERE (e.recipient_device_id, e.position) > ($2, $3)
     ORDER BY e.recipient_device_id, e.position LIMIT $4
), shortened AS (
    UPDATE envelopes e SET expires_at = e.accepted_at + $1::interval
      FROM page p
     WHERE p.longer AND p.recipient_device_id = ANY ($5::uuid[])
       AND e.recipient_device_id = p.recipient_device_id AND e.position = p.position
    RETURNING e.envelope_size
)
SELECT p.recipient_device_id AS device, p.position,
       (SELECT count(*) FROM shortened) AS envelopes,
       (SELECT coalesce(sum(s.envelope_size), 0)::bigint FROM shortened s) AS bytes
  FROM page p ORDER BY p.recipient_device_id DESC, p.position DESC LIMIT 1;
