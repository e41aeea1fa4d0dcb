-- name: load_policy
SELECT policy, policy_version FROM instances;

-- name: lock_policy
-- Two changes at once are one after the other: the second starts from what the first wrote.
SELECT policy, policy_version FROM instances FOR NO KEY UPDATE;

-- name: write_policy
-- $1 policy jsonb, $2 policy_version bigint
UPDATE instances SET policy = $1::jsonb, policy_version = $2;
