-- name: find_record
-- A finished request under the secret that is being replaced. An expired record counts as absent.
-- $1 actor_scope_hash, $2 idempotency_key_hash, $3 operation
SELECT request_fingerprint, response_status, response_body_safe
  FROM idempotency_records
 WHERE actor_scope_hash = $1 AND idempotency_key_hash = $2 AND operation = $3 AND expires_at > mailboxd_now();

-- name: claim_record
-- Takes the key for the rest of this transaction: a second one with the same key waits here and then finds the
-- finished record. No row comes back when a live record has the key. Rolled back, the claim never was.
-- $1 actor_scope_hash, $2 idempotency_key_hash, $3 operation, $4 response_status, $5 secret_key_id,
-- $6 lifetime in seconds, $7 request_fingerprint
INSERT INTO idempotency_records AS x (actor_scope_hash, idempotency_key_hash, operation, response_status,
       secret_key_id, created_at, expires_at, request_fingerprint)
SELECT $1, $2, $3, $4, $5, t.now, t.now + $6::integer * interval '1 second', $7
  FROM (SELECT mailboxd_now() AS now) AS t
ON CONFLICT (actor_scope_hash, idempotency_key_hash, operation) DO UPDATE
   SET response_status = excluded.response_status, secret_key_id = excluded.secret_key_id,
       created_at = excluded.created_at, expires_at = excluded.expires_at,
       request_fingerprint = excluded.request_fingerprint, resource_reference = NULL, response_instants = NULL,
       response_body_safe = NULL
 WHERE x.expires_at <= excluded.created_at
RETURNING true;

-- name: finish_record
-- The answer joins the claim before the commit. $1..$3 the key, $4 response_body_safe
UPDATE idempotency_records SET response_body_safe = $4
 WHERE actor_scope_hash = $1 AND idempotency_key_hash = $2 AND operation = $3;
