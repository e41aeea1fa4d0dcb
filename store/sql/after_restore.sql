-- name: read_state
SELECT coalesce(current_setting('mailboxd.restored', true), '') AS marker, coalesce(restored_done, '') AS done
  FROM instances;

-- name: count_repeated_records
-- By the rows themselves: an index that a bad copy damaged would hide what it must not.
SELECT count(*) FROM (SELECT FROM idempotency_records
                       GROUP BY actor_scope_hash::text, idempotency_key_hash::text, operation + 0 HAVING count(*) > 1) AS repeated;

-- name: suspect_prekeys
-- What was handed out after the backup was taken must not be handed out again. $1 rows_max
WITH next AS (SELECT device_id, key_id FROM prekeys WHERE state = 'available'
               ORDER BY device_id, key_id LIMIT $1 FOR UPDATE)
UPDATE prekeys p SET state = 'suspect' FROM next n WHERE p.device_id = n.device_id AND p.key_id = n.key_id;

-- name: next_devices
-- $1 after device, $2 page
SELECT device_id FROM mailboxes WHERE device_id > $1 ORDER BY device_id LIMIT $2;

-- name: reopen_published
-- Whatever the queue held before the restore: due again. $1 rows_max
UPDATE outbox_events x SET state = 'pending', next_attempt_at = mailboxd_now(), updated_at = mailboxd_now()
  FROM (SELECT event_id FROM outbox_events WHERE state = 'published'
         ORDER BY event_id LIMIT $1 FOR UPDATE SKIP LOCKED) AS held
 WHERE x.event_id = held.event_id;

-- name: finish
-- From this commit on every cursor of before is refused once, and new connections may write. $1 restore_epoch
UPDATE instances
   SET restore_epoch = $1, restored_done = nullif(current_setting('mailboxd.restored', true), ''),
       system_identifier = (SELECT system_identifier FROM pg_control_system());

-- name: drop_connections
-- Those opened before know the old epoch.
SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
 WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()
   AND application_name LIKE 'mailboxd %' AND application_name <> 'mailboxd after-restore';

-- name: list_revocations
-- In the order they happened. $1 since, in ms, $2 limit
SELECT device_id, mailboxd_ms(revoked_at) AS revoked_at_ms FROM devices
 WHERE status = 'revoked' AND revoked_at >= to_timestamp($1::bigint / 1000.0)
 ORDER BY revoked_at, device_id LIMIT $2;
