-- name: read_status
-- One snapshot. Sums come from the counters of the mailboxes, not from the envelopes.
SELECT i.instance_id, i.policy_version, mailboxd_ms(i.created_at) AS created_at, mailboxd_ms(mailboxd_now()) AS now,
       current_setting('server_version') AS postgres_version,
       (SELECT count(*) FROM identities WHERE status = 'active') AS identities_active,
       (SELECT count(*) FROM devices WHERE status = 'active') AS devices_active,
       (SELECT count(*) FROM devices WHERE status = 'revoked') AS devices_revoked,
       m.devices_online, m.mailboxes_waiting, m.pending_entries, m.pending_bytes, m.pending_echoes
  FROM instances AS i,
       (SELECT count(*) FILTER (WHERE o.online_until > mailboxd_now()) AS devices_online,
               count(*) FILTER (WHERE b.stored_entries > o.released_entries) AS mailboxes_waiting,
               coalesce(sum(b.stored_entries - o.released_entries), 0)::bigint AS pending_entries,
               coalesce(sum(b.stored_bytes - o.released_bytes), 0)::bigint AS pending_bytes,
               coalesce(sum(b.stored_echoes - o.released_echoes), 0)::bigint AS pending_echoes
          FROM mailboxes AS b JOIN mailbox_owners AS o USING (device_id)) AS m;

-- name: count_outbox
SELECT state, count(*) AS events FROM outbox_events GROUP BY state;

-- name: count_push_routes
SELECT provider, status, count(*) AS routes FROM push_routes GROUP BY provider, status ORDER BY provider, status;
