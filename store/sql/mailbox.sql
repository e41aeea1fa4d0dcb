-- name: read_mailboxes
-- A page for each of many devices, with the head of the same snapshot; a device without entries has one row without
-- an entry. One entry more than asked says whether there is more. Reads start at the floor: everything at or below it
-- is gone or acked.
-- $1 device_ids uuid[], $2 after bigint[], $3 entries_max integer[], $4 bytes_max bigint[]
SELECT d.n::integer AS n, coalesce(b.head_position, 0) AS head, e.position, e.message_id, e.protocol_version,
       e.envelope_bytes, e.accepted_ms, e.expires_ms, e.padding_class, e.client_message_id, e.kind, e.envelope_size, e.beyond
  FROM unnest($1::uuid[], $2::bigint[], $3::integer[], $4::bigint[]) WITH ORDINALITY AS d(id, after, entries_max, bytes_max, n)
  LEFT JOIN mailboxes b ON b.device_id = d.id
  LEFT JOIN mailbox_owners o ON o.device_id = d.id
  LEFT JOIN LATERAL (
       SELECT x.*, x.row > d.entries_max OR (x.row > 1 AND x.total > d.bytes_max) AS beyond
         FROM (SELECT y.position, y.message_id, y.protocol_version, y.envelope_bytes, y.padding_class,
                      y.client_message_id, y.kind, y.envelope_size,
                      mailboxd_ms(y.accepted_at) AS accepted_ms, mailboxd_ms(y.expires_at) AS expires_ms,
                      row_number() OVER (ORDER BY y.position) AS row,
                      sum(y.envelope_size) OVER (ORDER BY y.position) AS total
                 FROM envelopes y
                WHERE y.recipient_device_id = d.id AND y.position > greatest(d.after, o.floor_position)
                  AND y.acked_at IS NULL AND y.expires_at > (SELECT mailboxd_now())
                ORDER BY y.position LIMIT d.entries_max + 1) AS x
       ) AS e ON true
 ORDER BY d.n, e.position

-- name: read_status
-- Un-acked and unexpired, echoes not counted.
SELECT count(*) AS entries, coalesce(sum(e.envelope_size), 0)::bigint AS bytes, mailboxd_ms(min(e.accepted_at)) AS oldest_ms
  FROM envelopes e
 WHERE e.recipient_device_id = $1
   AND e.position > coalesce((SELECT o.floor_position FROM mailbox_owners o WHERE o.device_id = $1), 0)
   AND e.acked_at IS NULL AND e.kind = 0 AND e.expires_at > (SELECT mailboxd_now())
