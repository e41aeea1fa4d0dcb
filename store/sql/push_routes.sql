-- name: read_route
-- $1 device_id
SELECT wake_route_id, provider, mode, sealed_address, seal_key_id, status, version,
       mailboxd_ms(created_at) AS created_ms
  FROM push_routes WHERE device_id = $1;

-- name: lock_route
-- $1 device_id
SELECT wake_route_id, provider, mode, sealed_address, seal_key_id, status, version,
       mailboxd_ms(created_at) AS created_ms
  FROM push_routes WHERE device_id = $1
   FOR UPDATE;

-- name: write_route
-- A new address is a new route: who still holds the old wake_route_id learns nothing more.
-- $1 device_id, $2 wake_route_id, $3 provider, $4 mode, $5 sealed_address, $6 seal_key_id
INSERT INTO push_routes AS r (device_id, wake_route_id, provider, mode, sealed_address, seal_key_id, created_at, updated_at)
SELECT $1, $2, $3, $4, $5, $6, t.now, t.now FROM (SELECT mailboxd_now() AS now) AS t
ON CONFLICT (device_id) DO UPDATE
   SET wake_route_id = excluded.wake_route_id, provider = excluded.provider, mode = excluded.mode,
       sealed_address = excluded.sealed_address, seal_key_id = excluded.seal_key_id, status = 'active',
       version = r.version + 1, gone_told_at = NULL, created_at = excluded.created_at, updated_at = excluded.updated_at
RETURNING wake_route_id, provider, status, mailboxd_ms(created_at) AS created_ms;

-- name: lock_mailbox
-- $1 device_id
SELECT state FROM mailboxes WHERE device_id = $1 FOR NO KEY UPDATE;

-- name: announce_route
-- What waits is announced over the new route now; what the old one was told counts no more. $1 device_id
SELECT wake_route_changed_v1($1);

-- name: delete_route
-- $1 device_id
DELETE FROM push_routes WHERE device_id = $1;
