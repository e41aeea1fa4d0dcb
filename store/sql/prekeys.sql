-- name: lock_uploader
-- Uploads of one device are one after the other, so that its limit holds. $1 device_id
SELECT d.status, i.status AS identity_status FROM devices d JOIN identities i USING (identity_id)
 WHERE d.device_id = $1
   FOR NO KEY UPDATE OF d;

-- name: known_prekeys
-- $1 device_id, $2 key_ids
SELECT key_id, public_key FROM prekeys WHERE device_id = $1 AND key_id = ANY ($2::bigint[])
UNION ALL
SELECT key_id, public_key FROM last_resort_prekeys WHERE device_id = $1 AND key_id = ANY ($2::bigint[]);

-- name: insert_prekeys
-- A key that a restore made suspect is good again once its owner uploads it; a consumed one stays consumed.
-- $1 device_id, $2 key_ids, $3 public_keys
INSERT INTO prekeys AS p (device_id, key_id, public_key)
SELECT $1, k.key_id, k.public_key FROM unnest($2::bigint[], $3::bytea[]) AS k(key_id, public_key) ORDER BY k.key_id
ON CONFLICT (device_id, key_id) DO UPDATE SET state = 'available' WHERE p.state = 'suspect';

-- name: write_last_resort_prekey
-- $1 device_id, $2 key_id, $3 public_key, $4 signature
INSERT INTO last_resort_prekeys (device_id, key_id, public_key, signature) VALUES ($1, $2, $3, $4)
ON CONFLICT (device_id) DO UPDATE
   SET key_id = excluded.key_id, public_key = excluded.public_key, signature = excluded.signature,
       updated_at = mailboxd_now();

-- name: count_available
-- $1 device_id
SELECT count(*) FROM prekeys WHERE device_id = $1 AND state = 'available';

-- name: claimed_identity
-- $1 identity_id
SELECT identity_public_bundle FROM identities WHERE identity_id = $1 AND status = 'active';

-- name: claimed_devices
-- $1 identity_id
SELECT d.device_id, d.device_public_key, l.key_id, l.public_key, l.signature
  FROM devices d LEFT JOIN last_resort_prekeys l USING (device_id)
 WHERE d.identity_id = $1 AND d.status = 'active'
 ORDER BY d.created_at, d.device_id;

-- name: device_public_keys
-- $1 device_ids
SELECT device_id, device_public_key FROM devices WHERE device_id = ANY ($1::uuid[]);

-- name: reserve_prekeys
-- One key of each device, and never one that another claim holds: nobody waits, and nobody gets a key twice.
-- $1 device_ids
WITH free AS (
    SELECT p.device_id, p.key_id
      FROM unnest($1::uuid[]) AS d(device_id)
     CROSS JOIN LATERAL (
           SELECT k.device_id, k.key_id FROM prekeys k
            WHERE k.device_id = d.device_id AND k.state = 'available'
            ORDER BY k.key_id LIMIT 1
              FOR UPDATE SKIP LOCKED) AS p
)
UPDATE prekeys k SET state = 'reserved', reserved_at = mailboxd_now()
  FROM free WHERE k.device_id = free.device_id AND k.key_id = free.key_id
RETURNING k.device_id, k.key_id, k.public_key;

-- name: consume_prekeys
-- In the transaction that reserved them: reserved is never seen from outside and never given back.
-- $1 device_ids, $2 key_ids
UPDATE prekeys k SET state = 'consumed', consumed_at = mailboxd_now()
  FROM unnest($1::uuid[], $2::bigint[]) AS c(device_id, key_id)
 WHERE k.device_id = c.device_id AND k.key_id = c.key_id AND k.state = 'reserved';

-- name: running_low
-- Of these devices, those with fewer than $2 keys left, and how many. $1 device_ids, $2 threshold
SELECT d.device_id, n.left_over
  FROM unnest($1::uuid[]) AS d(device_id)
 CROSS JOIN LATERAL (
       SELECT count(*) AS left_over FROM (
              SELECT FROM prekeys k WHERE k.device_id = d.device_id AND k.state = 'available' LIMIT $2) AS few) AS n
 WHERE n.left_over < $2;
