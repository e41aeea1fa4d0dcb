-- name: create_instance
-- One row for ever. $1 instance_id, $2 policy jsonb, $3 restore_epoch
INSERT INTO instances (instance_id, policy, restore_epoch, system_identifier)
VALUES ($1, $2::jsonb, $3, (SELECT system_identifier FROM pg_control_system()))
ON CONFLICT (singleton) DO NOTHING;

-- name: read_instance
SELECT instance_id, policy_version FROM instances;

-- name: add_signing_keys
-- $1 kids, $2 public keys
INSERT INTO instance_signing_keys (kid, purpose, public_key)
SELECT kid, 'token', public_key FROM unnest($1::text[], $2::bytea[]) AS given(kid, public_key)
ON CONFLICT (kid) DO NOTHING;

-- name: retire_signing_keys
-- Whatever the keyring no longer holds. $1 kids that it holds
UPDATE instance_signing_keys SET retired_at = mailboxd_now()
 WHERE purpose = 'token' AND retired_at IS NULL AND kid <> ALL ($1::text[]);

-- name: live_signing_keys
SELECT kid, public_key FROM instance_signing_keys WHERE purpose = 'token' AND retired_at IS NULL;

-- name: fingerprint_key_in_use
-- $1 secret_key_id
SELECT EXISTS (SELECT FROM idempotency_records WHERE secret_key_id = $1 AND expires_at > mailboxd_now());

-- name: push_token_key_in_use
-- $1 seal_key_id
SELECT EXISTS (SELECT FROM push_routes WHERE seal_key_id = $1);
