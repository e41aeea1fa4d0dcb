-- name: keep_invite
-- $1 invite_hash, $2 invite_tag, $3 lifetime in seconds
INSERT INTO invites (invite_hash, invite_tag, created_at, expires_at)
SELECT $1, $2, t.now, t.now + $3::integer * interval '1 second'
  FROM (SELECT mailboxd_now() AS now) AS t
RETURNING mailboxd_ms(expires_at);

-- name: list_invites
-- Newest first. $1 limit
SELECT invite_tag, mailboxd_ms(created_at) AS created_ms, mailboxd_ms(expires_at) AS expires_ms,
       CASE WHEN revoked_at IS NOT NULL THEN 'revoked' WHEN used_at IS NOT NULL THEN 'used'
            WHEN expires_at <= mailboxd_now() THEN 'expired' ELSE 'open' END AS status
  FROM invites
 ORDER BY created_at DESC, invite_tag
 LIMIT $1;

-- name: revoke_invite
-- $1 invite_tag
UPDATE invites SET revoked_at = mailboxd_now() WHERE invite_tag = $1 AND used_at IS NULL AND revoked_at IS NULL
RETURNING true;
