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

-- name: count_tries
-- Of open intents: how often the hardest one was tried, and how many were pushed and wait for their device.
SELECT coalesce(max(attempts), 0)::integer AS attempts_max, coalesce(max(troubles), 0)::integer AS troubles_max,
       count(*) FILTER (WHERE pushes_accepted > 0) AS pushed_unanswered
  FROM outbox_events WHERE state IN ('pending', 'published', 'retry_wait');

-- name: count_ended
SELECT coalesce(reason, 'unknown') AS reason, count(*) AS events FROM outbox_events
 WHERE state = 'completed' GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 12;

-- name: count_trouble
-- What providers said where a push did not go out, and why dead letters died.
SELECT coalesce(reason, 'unknown') AS reason, count(*) AS events FROM outbox_events
 WHERE state = 'dead_letter' OR (state IN ('pending', 'published', 'retry_wait') AND troubles > 0)
 GROUP BY 1 ORDER BY 2 DESC, 1 LIMIT 12;
