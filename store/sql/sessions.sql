-- name: open_sessions_v1
SELECT * FROM open_sessions_v1($1, $2, $3, $4, $5, $6, $7, $8, $9)

-- name: close_sessions_v1
SELECT due FROM close_sessions_v1($1, $2, $3)

-- name: sweep_sessions_v1
SELECT * FROM sweep_sessions_v1($1, $2, $3, $4, $5)

-- name: still_pending_v1
SELECT p_pending FROM still_pending_v1($1, $2)

-- name: touch_contacts_v1
SELECT touched FROM touch_contacts_v1($1)

-- name: prove_write
-- A commit that has to reach the disk (and the synchronous standby), and changes no row. PostgreSQL lets a read-only
-- session emit a message; an UPDATE it refuses, also of nothing.
WITH nothing AS (UPDATE instances SET restored_done = restored_done WHERE false)
SELECT pg_logical_emit_message(true, 'mailboxd.ready', '')

-- name: database_ms
SELECT mailboxd_ms(mailboxd_now())
