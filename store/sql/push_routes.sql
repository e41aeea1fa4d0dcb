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

-- name: routes_to_reseal
-- $1 after device, $2 superseded key ids, $3 page
SELECT device_id, provider, sealed_address, seal_key_id FROM push_routes
 WHERE device_id > $1 AND seal_key_id = ANY ($2::smallint[]) ORDER BY device_id LIMIT $3;

-- name: reseal_routes
-- The same address in another seal: neither its version nor its dates change, and no intent becomes due.
-- $1 devices, $2 the seals that were opened, $3 the new ones, $4 their key id
WITH held AS (
    SELECT r.device_id, n.sealed FROM unnest($1::uuid[], $2::bytea[], $3::bytea[]) AS n(device_id, before, sealed)
      JOIN push_routes r ON r.device_id = n.device_id AND r.sealed_address = n.before
     ORDER BY r.device_id FOR UPDATE OF r SKIP LOCKED
), written AS (
    UPDATE push_routes r SET sealed_address = h.sealed, seal_key_id = $4 FROM held h WHERE r.device_id = h.device_id
    RETURNING r.device_id
)
SELECT count(*) FROM written;
