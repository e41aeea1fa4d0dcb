-- name: record_audit_event
-- $1 event_type, $2 request_id, $3 actor_hash, $4 outcome, $5 policy_version, $6 detail jsonb
INSERT INTO audit_events (event_type, request_id, actor_hash, outcome, policy_version, detail)
VALUES ($1, $2, $3, $4, $5, $6::jsonb);

-- name: list_audit_events
-- Newest first. $1 before audit_id or null, $2 event_type or null, $3 limit
SELECT audit_id, event_type, request_id, actor_hash, outcome, policy_version, detail,
       mailboxd_ms(created_at) AS created_ms
  FROM audit_events
 WHERE ($1::bigint IS NULL OR audit_id < $1) AND ($2::text IS NULL OR event_type = $2)
 ORDER BY audit_id DESC
 LIMIT $3;
