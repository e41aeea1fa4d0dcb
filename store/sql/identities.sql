-- name: take_invite
-- Single use: of two registrations with one invite the second finds it used. $1 invite_hash
UPDATE invites SET used_at = mailboxd_now()
 WHERE invite_hash = $1 AND used_at IS NULL AND revoked_at IS NULL AND expires_at > mailboxd_now()
RETURNING true;

-- name: find_registered
-- $1 device_public_key
SELECT d.device_id, d.identity_id, d.status, i.identity_public_bundle, i.status AS identity_status
  FROM devices d JOIN identities i USING (identity_id)
 WHERE d.device_public_key = $1;

-- name: insert_identity
-- $1 identity_id, $2 identity_public_bundle
INSERT INTO identities (identity_id, identity_public_bundle) VALUES ($1, $2);

-- name: insert_device
-- No row comes back when another transaction registered this key meanwhile.
-- $1 device_id, $2 identity_id, $3 device_public_key
INSERT INTO devices (device_id, identity_id, device_public_key) VALUES ($1, $2, $3)
ON CONFLICT (device_public_key) DO NOTHING
RETURNING true;

-- name: insert_mailbox
-- $1 device_id, $2 identity_id
INSERT INTO mailboxes (device_id, identity_id) VALUES ($1, $2);

-- name: insert_mailbox_owner
-- $1 device_id
INSERT INTO mailbox_owners (device_id) VALUES ($1);

-- name: list_devices
-- All devices of the identity that $1 belongs to, itself included, oldest first.
SELECT d.device_id, d.device_public_key, d.status, mailboxd_ms(d.created_at) AS created_ms
  FROM devices own JOIN devices d ON d.identity_id = own.identity_id
 WHERE own.device_id = $1
 ORDER BY d.created_at, d.device_id;

-- name: lock_identity
-- The first lock of everything that changes the set of an identity's devices. $1 identity_id
SELECT status FROM identities WHERE identity_id = $1 FOR NO KEY UPDATE;

-- name: set_identity_status
-- $1 identity_id, $2 status
UPDATE identities SET status = $2 WHERE identity_id = $1;

-- name: lock_devices
-- $1 identity_id
SELECT device_id, device_public_key, status FROM devices WHERE identity_id = $1 ORDER BY device_id FOR NO KEY UPDATE;

-- name: lock_mailbox
-- $1 device_id
SELECT state FROM mailboxes WHERE device_id = $1 FOR NO KEY UPDATE;

-- name: revoke_device
-- $1 device_id
UPDATE devices SET status = 'revoked', revoked_at = mailboxd_now() WHERE device_id = $1 AND status = 'active';

-- name: close_mailbox
-- From this commit on the device is an unknown recipient. $1 device_id
UPDATE mailboxes SET state = 2 WHERE device_id = $1;

-- name: drop_prekeys
-- Nobody may be given a key whose owner cannot read any more. $1 device_id
DELETE FROM prekeys WHERE device_id = $1;

-- name: drop_last_resort_prekey
-- $1 device_id
DELETE FROM last_resort_prekeys WHERE device_id = $1;

-- name: drop_push_route
-- $1 device_id
DELETE FROM push_routes WHERE device_id = $1;
