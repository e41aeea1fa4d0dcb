-- name: keep_challenge
-- For unknown devices too, so that the two cannot be told apart. $1 challenge_hash, $2 device_id, $3 purpose,
-- $4 lifetime in seconds
INSERT INTO auth_challenges (challenge_hash, device_id, purpose, created_at, expires_at)
SELECT $1, $2, $3, t.now, t.now + $4::integer * interval '1 second'
  FROM (SELECT mailboxd_now() AS now) AS t
RETURNING mailboxd_ms(expires_at);

-- name: consume_challenge
-- Of two that race, the second waits for the row and then finds it consumed.
-- $1 challenge_hash, $2 device_id, $3 purpose
UPDATE auth_challenges SET consumed_at = mailboxd_now()
 WHERE challenge_hash = $1 AND device_id = $2 AND purpose = $3 AND consumed_at IS NULL AND expires_at > mailboxd_now()
RETURNING true;

-- name: find_device_key
-- $1 device_id
SELECT d.identity_id, d.device_public_key, d.status, i.status AS identity_status
  FROM devices d JOIN identities i USING (identity_id)
 WHERE d.device_id = $1;
