-- version: 0003
-- predecessor: 0002
-- summary: sessions: fencing, leases, and what the gateways' sweep compares
-- compatibility: New functions only. A later version of a function is installed beside these under its own number and
--   these stay until no running release calls them.

-- migrate: apply
-- HELLO for many devices at once (DESIGN, "One session per device"). Judges a takeover first; only a winner takes the epoch.
-- The owners' rows are locked, in the order of their ids, so that two gateways cannot both win against one session.
CREATE FUNCTION open_sessions_v1(
    h_device uuid[],              -- distinct, sorted: the lock order
    h_instance uuid[],            -- keyed hash of the client's process, or null
    h_attempt bigint[],
    h_life_ms integer[],          -- how long ago a session of the device showed life here; null when this gateway has none
    h_start bigint[],             -- where the session wants to start; above the head it is from elsewhere and counts as 0
    lease_ms integer, takeovers_max integer, alive_ms integer, prekeys_low integer,
    OUT now_ms bigint,
    OUT h_verdict smallint[],     -- 0 open, 1 no such device, 2 revoked, 3 late attempt, 4 too many takeovers
    OUT h_epoch bigint[],         -- the new session's, or the one that it lost against
    OUT h_replaced bigint[],      -- the session that has to go, or 0
    OUT h_same_process boolean[], -- it belonged to the same process of the client
    OUT h_retry_ms integer[],
    OUT h_from bigint[],          -- where it does start
    OUT h_pending boolean[],      -- something un-acked lies behind that, echoes included
    OUT h_head bigint[], OUT h_entries bigint[], OUT h_bytes bigint[], OUT h_prekeys integer[], OUT h_route_gone boolean[]
)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
AS $$
DECLARE
    OPENED CONSTANT smallint := 0;  UNKNOWN CONSTANT smallint := 1;  REVOKED CONSTANT smallint := 2;
    LATE CONSTANT smallint := 3;  TOO_MANY CONSTANT smallint := 4;
    at_now timestamptz;
BEGIN
    PERFORM FROM unnest(h_device) WITH ORDINALITY AS d(id, n) JOIN mailbox_owners o ON o.device_id = d.id
      ORDER BY d.n FOR NO KEY UPDATE OF o;
    at_now := mailboxd_now();
    now_ms := mailboxd_ms(at_now);

    WITH judged AS (
        SELECT d.n, d.id, d.instance, d.attempt, o.session_epoch AS old_epoch,
               s.live, s.lively, s.same,
               CASE WHEN o.takeovers_since > at_now - interval '1 minute' THEN o.takeovers ELSE 0 END AS takeovers,
               CASE WHEN o.takeovers_since > at_now - interval '1 minute' THEN o.takeovers_since ELSE at_now END
                   AS takeovers_since,
               CASE WHEN b.device_id IS NULL OR o.device_id IS NULL THEN UNKNOWN
                    WHEN b.state <> 1 THEN REVOKED
                    WHEN s.live AND s.same AND d.attempt <= o.session_attempt THEN LATE
                    WHEN s.lively AND o.takeovers_since > at_now - interval '1 minute' AND o.takeovers >= takeovers_max
                        THEN TOO_MANY
                    ELSE OPENED END AS verdict,
               coalesce(b.head_position, 0) AS head,
               CASE WHEN d.start <= b.head_position THEN d.start ELSE 0 END AS start, o.floor_position AS floor,
               coalesce(b.stored_entries, 0) - coalesce(o.released_entries, 0) AS entries,
               coalesce(b.stored_bytes, 0) - coalesce(o.released_bytes, 0) AS bytes,
               (SELECT count(*) FROM (SELECT FROM prekeys p WHERE p.device_id = d.id AND p.state = 'available'
                                       LIMIT prekeys_low) AS k)::integer AS prekeys,
               coalesce((SELECT r.status = 'gone' FROM push_routes r WHERE r.device_id = d.id), false) AS route_gone
          FROM unnest(h_device, h_instance, h_attempt, h_life_ms, h_start) WITH ORDINALITY
                   AS d(id, instance, attempt, life_ms, start, n)
          LEFT JOIN mailboxes b ON b.device_id = d.id
          LEFT JOIN mailbox_owners o ON o.device_id = d.id
         CROSS JOIN LATERAL (SELECT l.live, l.live AND (coalesce(d.life_ms < alive_ms, false)
                                          OR o.session_alive_at > at_now - alive_ms * interval '1 millisecond') AS lively,
                                    coalesce(d.instance = o.session_instance, false) AS same
                               -- A closed session has no session_alive_at; a lost gateway's lease runs out.
                               FROM (SELECT coalesce(o.session_alive_at IS NOT NULL AND o.online_until > at_now, false)
                                                AS live) AS l) AS s
    ), opened AS (
        UPDATE mailbox_owners o
           SET session_epoch = greatest((extract(epoch FROM at_now) * 1000000)::bigint, j.old_epoch + 1),
               session_instance = j.instance, session_attempt = j.attempt, session_alive_at = at_now,
               takeovers = j.takeovers + j.lively::integer, takeovers_since = j.takeovers_since,
               online_until = at_now + lease_ms * interval '1 millisecond', contact_at = at_now
          FROM judged j WHERE o.device_id = j.id AND j.verdict = OPENED
        RETURNING o.device_id, o.session_epoch
    )
    SELECT array_agg(j.verdict ORDER BY j.n), array_agg(coalesce(w.session_epoch, j.old_epoch, 0) ORDER BY j.n),
           array_agg(CASE WHEN j.verdict = OPENED AND j.live THEN j.old_epoch ELSE 0 END ORDER BY j.n),
           array_agg(j.same ORDER BY j.n),
           array_agg(greatest(0, 60000 - (extract(epoch FROM at_now - j.takeovers_since) * 1000)::integer) ORDER BY j.n),
           array_agg(j.start ORDER BY j.n),
           array_agg(EXISTS (SELECT FROM envelopes e WHERE e.recipient_device_id = j.id AND e.acked_at IS NULL
                                AND e.position > greatest(j.start, j.floor) AND e.expires_at > at_now) ORDER BY j.n),
           array_agg(j.head ORDER BY j.n), array_agg(j.entries ORDER BY j.n), array_agg(j.bytes ORDER BY j.n),
           array_agg(j.prekeys ORDER BY j.n), array_agg(j.route_gone ORDER BY j.n)
      INTO h_verdict, h_epoch, h_replaced, h_same_process, h_retry_ms, h_from, h_pending, h_head, h_entries, h_bytes, h_prekeys, h_route_gone
      FROM judged j LEFT JOIN opened w ON w.device_id = j.id;
END
$$;

-- The end of many sessions. One that was replaced meanwhile is left alone. `unfinished`: something may lie there that the
-- device has neither acked nor deferred, so its wake intent does not wait for the end of the lease.
CREATE FUNCTION close_sessions_v1(c_device uuid[], c_epoch bigint[], c_unfinished boolean[], OUT due integer)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
AS $$
DECLARE
    at_now timestamptz;
    woken uuid[];
BEGIN
    PERFORM FROM unnest(c_device) WITH ORDINALITY AS d(id, n) JOIN mailbox_owners o ON o.device_id = d.id
      ORDER BY d.n FOR NO KEY UPDATE OF o;
    at_now := mailboxd_now();
    WITH closed AS (
        UPDATE mailbox_owners o SET online_until = at_now, session_alive_at = NULL
          FROM unnest(c_device, c_epoch, c_unfinished) AS c(id, epoch, unfinished)
         WHERE o.device_id = c.id AND o.session_epoch = c.epoch AND o.session_alive_at IS NOT NULL
        RETURNING o.device_id, c.unfinished
    )
    SELECT array_agg(c.device_id) INTO woken FROM closed c WHERE c.unfinished;
    PERFORM FROM outbox_events x WHERE x.aggregate_ref = ANY (woken) AND x.task_type = 'wake_device' AND x.state = 'pending'
      ORDER BY x.aggregate_ref FOR NO KEY UPDATE;
    UPDATE outbox_events x SET next_attempt_at = at_now
     WHERE x.aggregate_ref = ANY (woken) AND x.task_type = 'wake_device' AND x.state = 'pending'
       AND x.next_attempt_at > at_now;
    GET DIAGNOSTICS due = ROW_COUNT;
END
$$;

-- What the sweep compares for connected devices, and the renewal of the leases of those that showed life.
CREATE FUNCTION sweep_sessions_v1(
    s_device uuid[],           -- distinct, sorted: the lock order
    s_epoch bigint[],          -- of the session that the gateway holds
    s_life_ms integer[],       -- how long ago it showed life; null: leave its lease as it is
    s_contact boolean[],       -- the device asked for something since the last sweep
    lease_ms integer,
    OUT now_ms bigint, OUT s_current bigint[], OUT s_instance uuid[], OUT s_attempt bigint[],
    OUT s_state smallint[],    -- 0 no such device, 1 active, 2 revoked
    OUT s_head bigint[]
)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
AS $$
DECLARE
    at_now timestamptz;
BEGIN
    PERFORM FROM unnest(s_device, s_life_ms) WITH ORDINALITY AS d(id, life_ms, n) JOIN mailbox_owners o ON o.device_id = d.id
      WHERE d.life_ms IS NOT NULL ORDER BY d.n FOR NO KEY UPDATE OF o;
    at_now := mailboxd_now();
    now_ms := mailboxd_ms(at_now);
    UPDATE mailbox_owners o
       SET session_alive_at = at_now - d.life_ms * interval '1 millisecond',
           online_until = at_now + (lease_ms - d.life_ms) * interval '1 millisecond',
           contact_at = CASE WHEN d.contact THEN at_now ELSE o.contact_at END
      FROM unnest(s_device, s_epoch, s_life_ms, s_contact) AS d(id, epoch, life_ms, contact)
     WHERE o.device_id = d.id AND d.life_ms IS NOT NULL AND o.session_epoch = d.epoch
       -- A close that came first stands: a late renewal must not bring its session back.
       AND o.session_alive_at IS NOT NULL;
    SELECT array_agg(coalesce(o.session_epoch, 0) ORDER BY d.n), array_agg(o.session_instance ORDER BY d.n),
           array_agg(o.session_attempt ORDER BY d.n), array_agg(coalesce(b.state, 0::smallint) ORDER BY d.n),
           array_agg(coalesce(b.head_position, 0) ORDER BY d.n)
      INTO s_current, s_instance, s_attempt, s_state, s_head
      FROM unnest(s_device) WITH ORDINALITY AS d(id, n)
      LEFT JOIN mailboxes b ON b.device_id = d.id
      LEFT JOIN mailbox_owners o ON o.device_id = d.id;
END
$$;

-- Which of the given entries still wait: not acked, not expired, not gone.
CREATE FUNCTION still_pending_v1(p_device uuid[], p_mid uuid[], OUT p_pending boolean[])
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
AS $$
DECLARE
    at_now timestamptz := mailboxd_now();
BEGIN
    SELECT array_agg(coalesce(e.acked_at IS NULL AND e.expires_at > at_now, false) ORDER BY d.n) INTO p_pending
      FROM unnest(p_device, p_mid) WITH ORDINALITY AS d(id, mid, n)
      LEFT JOIN envelopes e ON e.recipient_device_id = d.id AND e.message_id = d.mid;
END
$$;

-- A pull or DEFER is contact too; at most one write a minute, unless it answers a wake push.
CREATE FUNCTION touch_contacts_v1(c_device uuid[], OUT touched integer)
LANGUAGE plpgsql VOLATILE
SET plan_cache_mode = force_generic_plan SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
AS $$
DECLARE
    at_now timestamptz := mailboxd_now();
BEGIN
    PERFORM FROM unnest(c_device) WITH ORDINALITY AS d(id, n) JOIN mailbox_owners o ON o.device_id = d.id
      WHERE o.contact_at IS NULL OR o.contact_at < at_now - interval '1 minute' OR o.pushed_at IS NOT NULL
      ORDER BY d.n FOR NO KEY UPDATE OF o;
    UPDATE mailbox_owners o SET contact_at = at_now FROM unnest(c_device) AS d(id)
     WHERE o.device_id = d.id
       AND (o.contact_at IS NULL OR o.contact_at < at_now - interval '1 minute' OR o.pushed_at IS NOT NULL);
    GET DIAGNOSTICS touched = ROW_COUNT;
END
$$;

-- migrate: rollback
DROP FUNCTION touch_contacts_v1, still_pending_v1, sweep_sessions_v1, close_sessions_v1, open_sessions_v1;
