-- version: 0002
-- predecessor: 0001
-- summary: group commit of submits and ACKs
-- compatibility: New functions only. A later version of a function is installed beside these under its own number and
--   these stay until no running release calls them.

-- migrate: apply
-- Frees up to entries_max expired entries of each given mailbox and counts them as released.
-- The caller holds the mailboxes' rows; here the owners' rows are locked, in the order of their ids.
CREATE FUNCTION release_expired_v1(device_ids uuid[], at_now timestamptz, entries_max integer)
RETURNS TABLE (device_id uuid, entries bigint, bytes bigint, echoes bigint)
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM FROM mailbox_owners o WHERE o.device_id = ANY (device_ids) ORDER BY o.device_id FOR NO KEY UPDATE;
    RETURN QUERY
    WITH gone AS (
        DELETE FROM envelopes e USING (
            SELECT x.recipient_device_id, x.position FROM unnest(device_ids) AS d(id)
              CROSS JOIN LATERAL (SELECT y.recipient_device_id, y.position FROM envelopes y
                                   WHERE y.recipient_device_id = d.id AND y.expires_at <= at_now
                                   ORDER BY y.position LIMIT entries_max) AS x) AS old
         WHERE e.recipient_device_id = old.recipient_device_id AND e.position = old.position AND e.expires_at <= at_now
        RETURNING e.recipient_device_id, e.kind, e.envelope_size, e.acked_at
    ), released AS (
        SELECT g.recipient_device_id AS id, count(*) FILTER (WHERE g.kind = 0) AS entries,
               coalesce(sum(g.envelope_size) FILTER (WHERE g.kind = 0), 0)::bigint AS bytes,
               count(*) FILTER (WHERE g.kind = 1) AS echoes
          FROM gone g WHERE g.acked_at IS NULL GROUP BY 1
    )
    UPDATE mailbox_owners o
       SET released_entries = o.released_entries + r.entries, released_bytes = o.released_bytes + r.bytes,
           released_echoes = o.released_echoes + r.echoes
      FROM released r WHERE o.device_id = r.id
    RETURNING o.device_id, r.entries, r.bytes, r.echoes;
END
$$;

-- The same for one entry, which makes way for a new one with its message id.
CREATE FUNCTION release_one_expired_v1(device uuid, entry_position bigint, at_now timestamptz)
RETURNS TABLE (entries bigint, bytes bigint, echoes bigint)
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM FROM mailbox_owners o WHERE o.device_id = device FOR NO KEY UPDATE;
    RETURN QUERY
    WITH gone AS (
        DELETE FROM envelopes e
         WHERE e.recipient_device_id = device AND e.position = entry_position AND e.expires_at <= at_now
        RETURNING e.kind, e.envelope_size, e.acked_at
    )
    UPDATE mailbox_owners o
       SET released_entries = o.released_entries + (g.kind = 0)::integer,
           released_bytes = o.released_bytes + g.envelope_size,
           released_echoes = o.released_echoes + (g.kind = 1)::integer
      FROM gone g WHERE o.device_id = device AND g.acked_at IS NULL
    RETURNING (g.kind = 0)::integer::bigint, g.envelope_size::bigint, (g.kind = 1)::integer::bigint;
END
$$;

-- Opens the wake intents of the devices that got entries and have none open; says how many of them are due at once.
CREATE FUNCTION open_wakes_v1(device_ids uuid[], entries integer[], at_now timestamptz) RETURNS integer
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    due integer;
BEGIN
    WITH opened AS (
        INSERT INTO outbox_events AS x (event_id, aggregate_ref, task_type, next_attempt_at, created_at, updated_at)
        SELECT gen_random_uuid(), d.id, 'wake_device', greatest(at_now, o.online_until), at_now, at_now
          FROM unnest(device_ids, entries) AS d(id, entries)
          JOIN mailboxes b ON b.device_id = d.id
          LEFT JOIN mailbox_owners o ON o.device_id = d.id
         WHERE d.entries > 0 AND NOT b.wake_open
         ORDER BY d.id
        ON CONFLICT (aggregate_ref, task_type) WHERE state <> 'dead_letter' DO UPDATE
           SET state = 'pending', generation = x.generation + 1, attempts = 0, troubles = 0, pushes_accepted = 0,
               reason = NULL, next_attempt_at = excluded.next_attempt_at, updated_at = excluded.updated_at
         WHERE x.state = 'completed'
        RETURNING x.next_attempt_at
    )
    SELECT count(*) INTO due FROM opened o WHERE o.next_attempt_at <= at_now;
    RETURN due;
END
$$;

-- For submit_plain_v1: what is left of a batch when some of its mailboxes are held by other transactions. Their requests
-- are deferred, and with each all later ones of its session. `deferred` is null where a mailbox does not exist at all.
CREATE FUNCTION submit_without_held_v1(
    m_device uuid[], m_locked integer[], locked_head bigint[], locked_identity uuid[],
    r_first integer[], r_count integer[], r_session integer[], r_echo_mailbox integer[], n_requests integer,
    e_mailbox integer[], e_body bytea[],
    OUT m_head bigint[], OUT m_identity uuid[], OUT m_entries integer[], OUT m_bytes bigint[], OUT m_echoes integer[],
    OUT firsts integer[], OUT counts integer[], OUT echo_rank integer[], OUT e_rank integer[], OUT deferred boolean[]
)
LANGUAGE plpgsql STABLE
AS $$
DECLARE
    n_mailboxes CONSTANT integer := cardinality(m_device);
    m_held boolean[] := array_fill(true, ARRAY[n_mailboxes]);
    s_deferred boolean[] := array_fill(false, ARRAY[n_requests]);
    m integer;  s integer;  first integer;  last integer;  held boolean;
BEGIN
    m_head := array_fill(0::bigint, ARRAY[n_mailboxes]);
    m_identity := array_fill('00000000-0000-0000-0000-000000000000'::uuid, ARRAY[n_mailboxes]);
    FOR i IN 1 .. coalesce(cardinality(m_locked), 0) LOOP
        m := m_locked[i];
        m_held[m] := false;
        m_head[m] := locked_head[i];
        m_identity[m] := locked_identity[i];
    END LOOP;
    PERFORM FROM unnest(m_device, m_held) AS d(id, held) LEFT JOIN mailboxes b ON b.device_id = d.id
      WHERE d.held AND b.device_id IS NULL;
    IF found THEN
        RETURN;
    END IF;

    m_entries := array_fill(0, ARRAY[n_mailboxes]);
    m_bytes := array_fill(0::bigint, ARRAY[n_mailboxes]);
    m_echoes := m_entries;
    firsts := array_fill(0, ARRAY[n_requests]);
    counts := firsts;
    echo_rank := CASE WHEN cardinality(r_echo_mailbox) > 0 THEN firsts ELSE r_echo_mailbox END;
    e_rank := array_fill(0, ARRAY[cardinality(e_mailbox)]);
    deferred := s_deferred;
    FOR r IN 1 .. n_requests LOOP
        s := coalesce(r_session[r], r);
        first := coalesce(r_first[r], r);
        last := first + coalesce(r_count[r], 1) - 1;
        held := s_deferred[s] OR coalesce(m_held[r_echo_mailbox[r]], false);  -- element 0 is null
        FOR i IN first .. last LOOP
            held := held OR m_held[e_mailbox[i]];
        END LOOP;
        IF held THEN
            s_deferred[s] := true;
            deferred[r] := true;
            CONTINUE;
        END IF;
        firsts[r] := first;
        counts[r] := last - first + 1;
        FOR i IN first .. last LOOP
            m := e_mailbox[i];
            m_entries[m] := m_entries[m] + 1;
            m_bytes[m] := m_bytes[m] + octet_length(e_body[i]);
            e_rank[i] := m_entries[m] + m_echoes[m];
        END LOOP;
        IF r_echo_mailbox[r] > 0 THEN
            m := r_echo_mailbox[r];
            m_echoes[m] := m_echoes[m] + 1;
            echo_rank[r] := m_entries[m] + m_echoes[m];
        END IF;
    END LOOP;
END
$$;

-- What a request's record remembers of its answer: when its envelopes were accepted, then when they expire, in ms.
CREATE FUNCTION submit_instants_v1(now_ms bigint, ttls_s integer[]) RETURNS bigint[]
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
    RETURN array_fill(now_ms, ARRAY[cardinality(ttls_s)])
        || ARRAY(SELECT now_ms + t.ttl_s * 1000::bigint FROM unnest(ttls_s) WITH ORDINALITY AS t(ttl_s, n) ORDER BY t.n);
END
$$;

-- Submit, where nothing in the batch repeats anything and everything in it fits: nearly every batch. What turns out
-- otherwise raises MB001 or 23505, nothing is written, and the caller goes to submit_batch_v1, which can judge.
-- A call costs little more than what it writes: few statements, few expressions, no loop, and no SET: whoever calls
-- this pins the plans for its connection (store/postgres.py, PINNED_PLANS). ADR 0070.
-- Lock order: mailboxes, idempotency_records, envelopes, outbox_events.
CREATE FUNCTION submit_plain_v1(
    -- Distinct mailboxes, sorted: the lock order; with all that this batch puts into each. The rest points into it by
    -- ordinal. An array in which every value would be the one in brackets may be empty.
    m_device uuid[], m_entries integer[], m_bytes bigint[], m_echoes integer[],  -- echoes [0]
    a_device uuid[], a_scope uuid[],  -- distinct acting devices and the scopes of their records
    -- Requests, in the order in which they take effect.
    r_actor integer[],            -- ordinal in a_device
    r_operation smallint[],       -- [1]
    r_key uuid[], r_fingerprint uuid[], r_cmid uuid[],
    r_first integer[], r_count integer[],      -- its slice of the envelopes [the nth request has the nth envelope]
    r_session integer[],          -- equal for requests of one session [all different]
    r_echo_mailbox integer[], r_echo_rank integer[], r_echo_mid uuid[],  -- the actor's own mailbox, or 0 [no echo]
    -- Envelopes, request by request. The rank counts what goes into the same mailbox, echoes included, from 1.
    e_request integer[],          -- [the nth]
    e_mailbox integer[], e_rank integer[], e_mid uuid[], e_pv integer[], e_ttl_s integer[],
    e_pad smallint[],             -- [none]
    e_body bytea[],
    secret_key_id smallint,
    send_ttl_s integer, key_ttl_s integer,  -- how long operation 1 (by cmid) and the others are remembered
    entries_max bigint, bytes_max bigint, echoes_max bigint, echo_ttl_s integer,
    wait boolean,                 -- false: a mailbox that another transaction holds defers its requests
    OUT now_us bigint,
    OUT m_head bigint[],          -- before this batch. Each entry has the position max(now_us, the one before + 1)
    OUT m_identity uuid[], OUT a_identity uuid[],
    OUT m_filling integer[],      -- mailboxes above 80 %, or null
    OUT r_deferred boolean[],     -- null when all requests are written
    OUT wakes_due integer         -- wake intents opened for devices that are away: worth a ring for the worker
)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    at_now timestamptz;  m_base bigint[];  m_locked integer[];  fits boolean;  opens boolean;  written integer;
BEGIN
    -- 1. Lock. From here to the commit nobody else moves these heads, so in one mailbox position order is commit
    --    order. What FOR UPDATE returns of a locked row is its newest version; what the owners released is read
    --    beside it without a lock: it only grows, so a stale value can only send the batch to submit_batch_v1.
    IF wait THEN
        PERFORM FROM unnest(m_device) WITH ORDINALITY AS d(id, n) JOIN mailboxes b ON b.device_id = d.id
          ORDER BY d.n FOR NO KEY UPDATE OF b;
    END IF;
    SELECT array_agg(s.n), array_agg(s.head_position), array_agg(s.identity_id), bool_and(s.fits), bool_or(s.opens),
           array_agg(s.n) FILTER (WHERE s.filling)
      INTO m_locked, m_head, m_identity, fits, opens, m_filling
      FROM (SELECT d.n::integer AS n, b.head_position, b.identity_id, d.entries > 0 AND NOT b.wake_open AS opens,
                   b.state = 1
                   AND b.stored_entries - coalesce(o.released_entries, 0) + d.entries <= entries_max
                   AND b.stored_bytes - coalesce(o.released_bytes, 0) + d.bytes <= bytes_max
                   AND b.stored_echoes - coalesce(o.released_echoes, 0) + coalesce(d.echoes, 0) <= echoes_max AS fits,
                   d.entries > 0
                   AND ((b.stored_entries - coalesce(o.released_entries, 0) + d.entries) * 5 > entries_max * 4
                        OR (b.stored_bytes - coalesce(o.released_bytes, 0) + d.bytes) * 5 > bytes_max * 4) AS filling
              FROM unnest(m_device, m_entries, m_bytes, m_echoes) WITH ORDINALITY AS d(id, entries, bytes, echoes, n)
              JOIN mailboxes b ON b.device_id = d.id
              LEFT JOIN mailbox_owners o ON o.device_id = d.id
             ORDER BY d.n FOR NO KEY UPDATE OF b SKIP LOCKED) AS s;
    IF cardinality(m_locked) IS DISTINCT FROM cardinality(m_device) THEN
        SELECT d.* INTO m_head, m_identity, m_entries, m_bytes, m_echoes, r_first, r_count, r_echo_rank, e_rank, r_deferred
          FROM submit_without_held_v1(m_device, m_locked, m_head, m_identity, r_first, r_count, r_session, r_echo_mailbox,
                                      cardinality(r_key), e_mailbox, e_body) AS d;
        IF r_deferred IS NULL THEN
            fits := false;  -- a mailbox that is not there
        ELSIF false <> ALL (r_deferred) THEN
            RETURN;  -- nothing to do now
        END IF;
    END IF;
    at_now := mailboxd_now();
    now_us := (extract(epoch FROM at_now) * 1000000)::bigint;
    at_now := date_trunc('milliseconds', at_now);

    -- 2. The acting devices, in a statement of its own: one that was revoked before the lock was ours is seen.
    SELECT array_agg(s.identity_id), fits AND bool_and(s.active)
      INTO a_identity, fits
      FROM (SELECT b.identity_id, coalesce(b.state = 1, false) AS active
              FROM unnest(a_device) WITH ORDINALITY AS d(id, n)
              LEFT JOIN mailboxes b ON b.device_id = d.id ORDER BY d.n) AS s;
    IF fits IS NOT TRUE THEN
        RAISE EXCEPTION 'this batch needs judging' USING ERRCODE = 'MB001';
    END IF;

    -- 3. The records, complete with their answer: no claim exists without its effect. A key that is there already is
    --    a repeat, or expired and in the way: both are for submit_batch_v1.
    INSERT INTO idempotency_records (actor_scope_hash, idempotency_key_hash, operation, response_status, secret_key_id,
           created_at, expires_at, request_fingerprint, response_instants)
    SELECT a_scope[k.actor], k.key, coalesce(k.operation, 1), 201, secret_key_id, at_now,
           at_now + CASE WHEN k.operation > 1 THEN key_ttl_s ELSE send_ttl_s END * interval '1 second', k.fingerprint,
           CASE WHEN k.count IS NULL THEN ARRAY[now_us / 1000, now_us / 1000 + e_ttl_s[k.n] * 1000::bigint]
                ELSE submit_instants_v1(now_us / 1000, e_ttl_s[k.first : k.first + k.count - 1]) END
      FROM unnest(r_actor, r_operation, r_key, r_fingerprint, r_first, r_count) WITH ORDINALITY
           AS k(actor, operation, key, fingerprint, first, count, n)
     WHERE k.count IS DISTINCT FROM 0
     ORDER BY k.key, a_scope[k.actor], k.operation;

    -- 4. The envelopes and echoes. A sender's own identity learns which of its sends an entry came from.
    INSERT INTO envelopes (recipient_device_id, message_id, position, accepted_at, expires_at, envelope_size,
           protocol_version, kind, padding_class, client_message_id, envelope_bytes)
    SELECT m_device[k.mailbox], k.mid, greatest(now_us, m_head[k.mailbox] + 1) + k.rank - 1, at_now,
           at_now + k.ttl_s * interval '1 second', octet_length(k.body), k.pv, 0, k.pad,
           CASE WHEN m_identity[k.mailbox] = a_identity[r_actor[coalesce(k.request, k.n)]]
                THEN r_cmid[coalesce(k.request, k.n)] END, k.body
      FROM unnest(e_request, e_mailbox, e_rank, e_mid, e_pv, e_ttl_s, e_pad, e_body) WITH ORDINALITY
           AS k(request, mailbox, rank, mid, pv, ttl_s, pad, body, n)
     WHERE k.rank > 0;
    IF cardinality(r_echo_rank) > 0 THEN
        INSERT INTO envelopes (recipient_device_id, message_id, position, accepted_at, expires_at, envelope_size,
               protocol_version, kind, client_message_id)
        SELECT m_device[k.mailbox], k.mid, greatest(now_us, m_head[k.mailbox] + 1) + k.rank - 1, at_now,
               at_now + echo_ttl_s * interval '1 second', 0, 0, 1, k.cmid
          FROM unnest(r_echo_rank, r_echo_mailbox, r_echo_mid, r_cmid) AS k(rank, mailbox, mid, cmid)
         WHERE k.rank > 0;
    END IF;

    -- 5. Wake intents, only where none is open: an online device costs nothing here.
    wakes_due := 0;
    IF opens THEN
        wakes_due := open_wakes_v1(m_device, m_entries, at_now);
    END IF;

    -- 6. The counters.
    UPDATE mailboxes b
       SET head_position = greatest(now_us, d.head + 1) + d.entries + coalesce(d.echoes, 0) - 1,
           wake_position = CASE WHEN d.entries > 0 THEN greatest(now_us, d.head + 1) + d.entries + coalesce(d.echoes, 0) - 1
                                ELSE b.wake_position END,
           wake_open = b.wake_open OR d.entries > 0,
           stored_entries = b.stored_entries + d.entries, stored_bytes = b.stored_bytes + d.bytes,
           stored_echoes = b.stored_echoes + coalesce(d.echoes, 0)
      FROM unnest(m_device, m_head, m_entries, m_bytes, m_echoes) AS d(id, head, entries, bytes, echoes)
     WHERE b.device_id = d.id AND (d.entries > 0 OR d.echoes > 0);
END
$$;

-- The one transaction of submit (seed 000, 3.1), for many requests at once. The rule is protocol/admission.py;
-- this function gives each request exactly the verdict that the rule gives it in the order of the arrays. It looks for
-- repeats and judges request by request; submit_plain_v1 takes the batches that need neither.
-- Lock order: mailboxes, mailbox_owners (only to release expired entries), idempotency_records, envelopes, outbox_events.
CREATE FUNCTION submit_batch_v1(
    m_device uuid[],             -- distinct mailboxes, sorted: the lock order; the rest points into it by ordinal
    a_device uuid[],             -- distinct acting devices
    -- Requests, in the order in which they take effect. An array in which every value would be 0, false or null may be
    -- empty: each element costs the caller and the server more than it looks.
    r_actor integer[],           -- ordinal in a_device
    r_operation smallint[], r_scope uuid[], r_key uuid[], r_fingerprint uuid[],
    r_old_scope uuid[], r_old_key uuid[], r_old_fingerprint uuid[],  -- under the old secret while it rotates, else empty
    r_previous_key integer[],    -- the nearest earlier request here with the same key, or 0
    r_previous_session integer[],-- the nearest earlier request here from the same session, or 0
    r_first integer[], r_count integer[],                            -- its slice of the envelopes
    r_rate_refused boolean[],
    r_echo_mailbox integer[],    -- ordinal in m_device of the actor's own mailbox, or 0 without echo
    r_echo_mid uuid[], r_cmid uuid[],
    -- Envelopes, request by request.
    e_request integer[], e_mailbox integer[], e_mid uuid[], e_pv integer[], e_ttl_s integer[], e_pad smallint[], e_body bytea[],
    e_refused smallint[],        -- the code of a refusal that needs no state, or 0
    e_previous_mid integer[],    -- the nearest earlier envelope here with the same mailbox and mid, or 0
    secret_key_id smallint,
    send_ttl_s integer, key_ttl_s integer,  -- how long operation 1 (by cmid) and the others are remembered
    entries_max bigint, bytes_max bigint, echoes_max bigint, echo_ttl_s integer,
    wait boolean,                -- false: a mailbox that another transaction holds defers its requests
    OUT now_ms bigint,
    OUT r_code smallint[], OUT r_duplicate boolean[], OUT r_echo_position bigint[], OUT r_echo_previous bigint[],
    OUT e_code smallint[], OUT e_position bigint[], OUT e_previous bigint[], OUT e_own boolean[],
    OUT e_accepted_ms bigint[], OUT e_expires_ms bigint[],
    OUT m_filling integer[],     -- mailboxes above 80 %
    OUT wakes_due integer        -- wake intents opened for devices that are away: worth a ring for the worker
)
LANGUAGE plpgsql VOLATILE
-- Each statement walks an index once per element. Left to itself the planner takes a hash join or a scan for a
-- large batch, which costs ten times that (DESIGN, "Speed").
SET plan_cache_mode = force_generic_plan SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
AS $$
DECLARE
    -- Verdicts; store/submit.py has the same table.
    ACCEPTED CONSTANT smallint := 0;  REPLAYED CONSTANT smallint := 1;  KEY_REUSED CONSTANT smallint := 2;
    DEFERRED CONSTANT smallint := 3;  ACTOR_REVOKED CONSTANT smallint := 4;  RATE_LIMITED CONSTANT smallint := 5;
    UNKNOWN_RECIPIENT CONSTANT smallint := 10;  CONFLICT CONSTANT smallint := 14;  PAIR_LIMITED CONSTANT smallint := 15;
    MAILBOX_FULL CONSTANT smallint := 16;  ECHO_FULL CONSTANT smallint := 17;
    JUDGED_NOT_YET CONSTANT smallint := -1;  NO_REFUSAL CONSTANT smallint := 99;
    ABSENT CONSTANT smallint := 0;  ACTIVE CONSTANT smallint := 1;  HELD CONSTANT smallint := -1;
    SAME CONSTANT smallint := 1;  OTHER CONSTANT smallint := 2;
    n_requests CONSTANT integer := cardinality(r_actor);
    n_envelopes CONSTANT integer := cardinality(e_mailbox);
    n_mailboxes CONSTANT integer := cardinality(m_device);
    at_now timestamptz;  now_us bigint;
    m_locked integer[];  m_state smallint[];  m_identity uuid[];  m_head bigint[];
    m_entries bigint[];  m_bytes bigint[];  m_echoes bigint[];  m_checked timestamptz[];
    m_room_entries bigint[];  m_room_bytes bigint[];  m_room_echoes bigint[];
    m_add_entries integer[];  m_add_bytes bigint[];  m_add_echoes integer[];
    a_active boolean[];  a_identity uuid[];
    e_stored smallint[] := array_fill(0::smallint, ARRAY[n_envelopes]);
    e_takes_room boolean[] := array_fill(false, ARRAY[n_envelopes]);
    r_echo_stored boolean[] := array_fill(false, ARRAY[n_requests]);
    r_new boolean[] := array_fill(false, ARRAY[n_requests]);
    full_devices uuid[];  found record;  freed record;
    r integer;  i integer;  j integer;  m integer;  first integer;  last integer;
    code smallint;  worst smallint;  size bigint;  fresh integer;  new_position bigint;  written integer;
BEGIN
    r_code := array_fill(JUDGED_NOT_YET, ARRAY[n_requests]);
    r_duplicate := r_new;
    r_echo_position := array_fill(0::bigint, ARRAY[n_requests]);
    r_echo_previous := r_echo_position;
    e_code := e_stored;
    e_position := array_fill(0::bigint, ARRAY[n_envelopes]);
    e_previous := e_position;
    e_accepted_ms := e_position;
    e_expires_ms := e_position;
    e_own := array_fill(false, ARRAY[n_envelopes]);
    m_add_entries := array_fill(0, ARRAY[n_mailboxes]);
    m_add_bytes := array_fill(0::bigint, ARRAY[n_mailboxes]);
    m_add_echoes := m_add_entries;
    m_filling := '{}';
    wakes_due := 0;

    -- 1. Lock. From here to the commit nobody else moves these heads, so in one mailbox position order is commit
    --    order. What FOR UPDATE returns of a locked row is its newest version.
    IF wait THEN
        SELECT array_agg(s.n), array_agg(s.state), array_agg(s.identity_id), array_agg(s.head_position),
               array_agg(s.stored_entries), array_agg(s.stored_bytes), array_agg(s.stored_echoes),
               array_agg(s.expiry_checked_at)
          INTO m_locked, m_state, m_identity, m_head, m_entries, m_bytes, m_echoes, m_checked
          FROM (SELECT d.n::integer AS n, b.* FROM unnest(m_device) WITH ORDINALITY AS d(id, n)
                  JOIN mailboxes b ON b.device_id = d.id ORDER BY d.n FOR NO KEY UPDATE OF b) AS s;
    ELSE
        SELECT array_agg(s.n), array_agg(s.state), array_agg(s.identity_id), array_agg(s.head_position),
               array_agg(s.stored_entries), array_agg(s.stored_bytes), array_agg(s.stored_echoes),
               array_agg(s.expiry_checked_at)
          INTO m_locked, m_state, m_identity, m_head, m_entries, m_bytes, m_echoes, m_checked
          FROM (SELECT d.n::integer AS n, b.* FROM unnest(m_device) WITH ORDINALITY AS d(id, n)
                  JOIN mailboxes b ON b.device_id = d.id ORDER BY d.n FOR NO KEY UPDATE OF b SKIP LOCKED) AS s;
    END IF;
    IF coalesce(cardinality(m_locked), 0) <> n_mailboxes THEN  -- some are absent or held: spread over all ordinals
        SELECT array_agg(CASE WHEN d.at IS NOT NULL THEN m_state[d.at] WHEN b.device_id IS NULL THEN ABSENT ELSE HELD END
                         ORDER BY d.n),
               array_agg(m_identity[d.at] ORDER BY d.n), array_agg(coalesce(m_head[d.at], 0) ORDER BY d.n),
               array_agg(coalesce(m_entries[d.at], 0) ORDER BY d.n), array_agg(coalesce(m_bytes[d.at], 0) ORDER BY d.n),
               array_agg(coalesce(m_echoes[d.at], 0) ORDER BY d.n), array_agg(m_checked[d.at] ORDER BY d.n)
          INTO m_state, m_identity, m_head, m_entries, m_bytes, m_echoes, m_checked
          FROM (SELECT d.id, d.n, array_position(m_locked, d.n::integer) AS at
                  FROM unnest(m_device) WITH ORDINALITY AS d(id, n)) AS d
          LEFT JOIN mailboxes b ON d.at IS NULL AND b.device_id = d.id;
    END IF;
    at_now := mailboxd_now();
    now_us := (extract(epoch FROM at_now) * 1000000)::bigint;
    now_ms := now_us / 1000;
    at_now := date_trunc('milliseconds', at_now);

    -- 2. What the owners released, without their lock: it only grows, so a stale value can only refuse.
    SELECT array_agg(s.room_entries), array_agg(s.room_bytes), array_agg(s.room_echoes)
      INTO m_room_entries, m_room_bytes, m_room_echoes
      FROM (SELECT entries_max - d.entries + coalesce(o.released_entries, 0) AS room_entries,
                   bytes_max - d.bytes + coalesce(o.released_bytes, 0) AS room_bytes,
                   echoes_max - d.echoes + coalesce(o.released_echoes, 0) AS room_echoes
              FROM unnest(m_device, m_entries, m_bytes, m_echoes) WITH ORDINALITY AS d(id, entries, bytes, echoes, n)
              LEFT JOIN mailbox_owners o ON o.device_id = d.id ORDER BY d.n) AS s;

    -- 3. The acting devices.
    SELECT array_agg(s.active), array_agg(s.identity_id)
      INTO a_active, a_identity
      FROM (SELECT coalesce(b.state = ACTIVE, false) AS active, b.identity_id
              FROM unnest(a_device) WITH ORDINALITY AS d(id, n)
              LEFT JOIN mailboxes b ON b.device_id = d.id ORDER BY d.n) AS s;

    -- 4. Finished requests with the same key. An expired record counts as absent.
    FOR found IN
        SELECT k.n::integer AS r, i.request_fingerprint = k.fingerprint AS same, i.response_instants AS instants
          FROM unnest(r_scope, r_key, r_operation, r_fingerprint) WITH ORDINALITY AS k(scope, key, operation, fingerprint, n)
          JOIN idempotency_records i ON i.actor_scope_hash = k.scope AND i.idempotency_key_hash = k.key
                                    AND i.operation = k.operation
         WHERE i.expires_at > at_now
        UNION ALL
        SELECT k.n::integer, i.request_fingerprint = k.fingerprint, i.response_instants
          FROM unnest(r_old_scope, r_old_key, r_operation, r_old_fingerprint) WITH ORDINALITY
               AS k(scope, key, operation, fingerprint, n)
          JOIN idempotency_records i ON i.actor_scope_hash = k.scope AND i.idempotency_key_hash = k.key
                                    AND i.operation = k.operation
         WHERE i.expires_at > at_now
    LOOP
        IF found.same THEN
            r_code[found.r] := REPLAYED;
            first := r_first[found.r];
            FOR i IN 1 .. r_count[found.r] LOOP
                e_accepted_ms[first + i - 1] := found.instants[i];
                e_expires_ms[first + i - 1] := found.instants[r_count[found.r] + i];
            END LOOP;
        ELSE
            r_code[found.r] := KEY_REUSED;
        END IF;
    END LOOP;

    -- 5. Envelopes and echoes that are already stored. Expired ones count as absent and make way.
    FOR found IN
        SELECT k.n::integer AS i, k.mailbox AS m, e.expires_at <= at_now AS expired, e.recipient_device_id, e.position,
               e.kind = 0 AND e.envelope_bytes = k.body AND e.protocol_version = k.pv
                   AND e.padding_class IS NOT DISTINCT FROM k.pad AS same,
               mailboxd_ms(e.accepted_at) AS accepted_ms, mailboxd_ms(e.expires_at) AS expires_ms
          FROM unnest(e_mailbox, e_mid, e_pv, e_pad, e_body) WITH ORDINALITY AS k(mailbox, mid, pv, pad, body, n)
          JOIN envelopes e ON e.recipient_device_id = m_device[k.mailbox] AND e.message_id = k.mid
    LOOP
        CONTINUE WHEN r_code[e_request[found.i]] <> JUDGED_NOT_YET;  -- a replay keeps the instants of its record
        IF found.expired THEN
            CONTINUE WHEN m_state[found.m] <> ACTIVE;
            FOR freed IN SELECT * FROM release_one_expired_v1(found.recipient_device_id, found.position, at_now) LOOP
                m_room_entries[found.m] := m_room_entries[found.m] + freed.entries;
                m_room_bytes[found.m] := m_room_bytes[found.m] + freed.bytes;
                m_room_echoes[found.m] := m_room_echoes[found.m] + freed.echoes;
            END LOOP;
        ELSE
            e_stored[found.i] := CASE WHEN found.same THEN SAME ELSE OTHER END;
            e_accepted_ms[found.i] := found.accepted_ms;
            e_expires_ms[found.i] := found.expires_ms;
        END IF;
    END LOOP;
    FOR found IN
        SELECT k.n::integer AS r, k.mailbox AS m, e.expires_at <= at_now AS expired, e.recipient_device_id, e.position
          FROM unnest(r_echo_mailbox, r_echo_mid) WITH ORDINALITY AS k(mailbox, mid, n)
          JOIN envelopes e ON e.recipient_device_id = m_device[k.mailbox] AND e.message_id = k.mid
         WHERE k.mailbox > 0
    LOOP
        IF found.expired THEN
            CONTINUE WHEN m_state[found.m] <> ACTIVE;
            FOR freed IN SELECT * FROM release_one_expired_v1(found.recipient_device_id, found.position, at_now) LOOP
                m_room_entries[found.m] := m_room_entries[found.m] + freed.entries;
                m_room_bytes[found.m] := m_room_bytes[found.m] + freed.bytes;
                m_room_echoes[found.m] := m_room_echoes[found.m] + freed.echoes;
            END LOOP;
        ELSE
            r_echo_stored[found.r] := true;
        END IF;
    END LOOP;

    -- 6. A mailbox that looks too full for its whole demand may be full of expired entries: looked for once a second.
    SELECT array_agg(m_device[d.mailbox] ORDER BY d.mailbox)
      INTO full_devices
      FROM (SELECT k.mailbox, sum(k.entries) AS entries, sum(k.bytes) AS bytes, sum(k.echoes) AS echoes
              FROM (SELECT x.mailbox, 1 AS entries, octet_length(x.body) AS bytes, 0 AS echoes
                      FROM unnest(e_mailbox, e_body) AS x(mailbox, body)
                     UNION ALL SELECT x.mailbox, 0, 0, 1 FROM unnest(r_echo_mailbox) AS x(mailbox) WHERE x.mailbox > 0) AS k
             GROUP BY k.mailbox) AS d
     WHERE m_state[d.mailbox] = ACTIVE
       AND (d.entries > m_room_entries[d.mailbox] OR d.bytes > m_room_bytes[d.mailbox]
            OR d.echoes > m_room_echoes[d.mailbox])
       AND (m_checked[d.mailbox] IS NULL OR m_checked[d.mailbox] <= at_now - interval '1 second'
            OR m_checked[d.mailbox] > at_now);
    IF cardinality(full_devices) > 0 THEN
        FOR found IN SELECT array_position(m_device, x.device_id) AS m, x.* FROM release_expired_v1(full_devices, at_now, 1000) x
        LOOP
            m_room_entries[found.m] := m_room_entries[found.m] + found.entries;
            m_room_bytes[found.m] := m_room_bytes[found.m] + found.bytes;
            m_room_echoes[found.m] := m_room_echoes[found.m] + found.echoes;
        END LOOP;
        UPDATE mailboxes b SET expiry_checked_at = at_now WHERE b.device_id = ANY (full_devices);
    END IF;

    -- 7. Judge in order; every verdict sees the effect of all before it.
    FOR r IN 1 .. n_requests LOOP
        CONTINUE WHEN r_code[r] <> JUDGED_NOT_YET;
        first := r_first[r];
        last := first + r_count[r] - 1;

        -- The same key earlier in this batch decides like a finished record, once it stands.
        j := r_previous_key[r];
        WHILE j > 0 AND r_code[j] NOT IN (ACCEPTED, REPLAYED, DEFERRED) LOOP j := r_previous_key[j]; END LOOP;
        IF j > 0 AND r_code[j] <> DEFERRED THEN
            IF r_fingerprint[j] = r_fingerprint[r] THEN
                r_code[r] := REPLAYED;
                FOR i IN first .. last LOOP
                    e_accepted_ms[i] := e_accepted_ms[r_first[j] + i - first];
                    e_expires_ms[i] := e_expires_ms[r_first[j] + i - first];
                END LOOP;
            ELSE
                r_code[r] := KEY_REUSED;
            END IF;
            CONTINUE;
        END IF;

        -- A held mailbox defers the request, and with it all later ones of its session.
        code := ACCEPTED;
        IF j > 0 OR (r_previous_session[r] > 0 AND r_code[r_previous_session[r]] = DEFERRED)
           OR (r_echo_mailbox[r] > 0 AND m_state[r_echo_mailbox[r]] = HELD) THEN
            code := DEFERRED;
        ELSE
            FOR i IN first .. last LOOP
                IF m_state[e_mailbox[i]] = HELD THEN code := DEFERRED; EXIT; END IF;
            END LOOP;
        END IF;
        IF code = ACCEPTED THEN
            IF NOT a_active[r_actor[r]] THEN
                code := ACTOR_REVOKED;
            ELSIF r_rate_refused[r] THEN
                code := RATE_LIMITED;
            END IF;
        END IF;
        IF code <> ACCEPTED THEN
            r_code[r] := code;
            CONTINUE;
        END IF;

        worst := NO_REFUSAL;
        fresh := 0;
        FOR i IN first .. last LOOP
            m := e_mailbox[i];
            code := coalesce(e_refused[i], 0);
            IF m_state[m] <> ACTIVE THEN
                code := UNKNOWN_RECIPIENT;
            ELSIF code = 0 OR code > CONFLICT THEN
                j := e_previous_mid[i];
                WHILE j > 0 AND e_position[j] = 0 LOOP j := e_previous_mid[j]; END LOOP;
                IF j > 0 THEN  -- stored by an earlier request of this batch
                    e_stored[i] := CASE WHEN e_body[j] = e_body[i] AND e_pv[j] = e_pv[i]
                                         AND e_pad[j] IS NOT DISTINCT FROM e_pad[i] THEN SAME ELSE OTHER END;
                    e_accepted_ms[i] := e_accepted_ms[j];
                    e_expires_ms[i] := e_expires_ms[j];
                END IF;
                IF e_stored[i] = OTHER THEN
                    code := CONFLICT;
                ELSIF e_stored[i] = SAME THEN
                    code := 0;
                ELSIF code = 0 THEN
                    size := octet_length(e_body[i]);
                    e_takes_room[i] := true;  -- given back below when the request is refused
                    m_room_entries[m] := m_room_entries[m] - 1;
                    m_room_bytes[m] := m_room_bytes[m] - size;
                    fresh := fresh + 1;
                    IF m_room_entries[m] < 0 OR m_room_bytes[m] < 0 THEN
                        code := MAILBOX_FULL;
                    END IF;
                END IF;
            END IF;
            IF code > 0 THEN
                e_code[i] := code;
                worst := least(worst, code);
            END IF;
        END LOOP;
        m := r_echo_mailbox[r];
        IF worst = NO_REFUSAL AND m > 0 AND NOT r_echo_stored[r] AND m_room_echoes[m] < 1 THEN
            worst := ECHO_FULL;
        END IF;

        IF worst <> NO_REFUSAL THEN
            r_code[r] := worst;
            FOR i IN first .. last LOOP
                IF e_takes_room[i] THEN
                    m := e_mailbox[i];
                    m_room_entries[m] := m_room_entries[m] + 1;
                    m_room_bytes[m] := m_room_bytes[m] + octet_length(e_body[i]);
                END IF;
            END LOOP;
            CONTINUE;
        END IF;

        r_code[r] := ACCEPTED;
        r_new[r] := true;
        r_duplicate[r] := fresh = 0;
        IF fresh > 0 THEN
            FOR i IN first .. last LOOP
                IF e_takes_room[i] THEN
                    m := e_mailbox[i];
                    new_position := greatest(now_us, m_head[m] + 1);
                    e_position[i] := new_position;
                    e_previous[i] := m_head[m];
                    m_head[m] := new_position;
                    m_add_entries[m] := m_add_entries[m] + 1;
                    m_add_bytes[m] := m_add_bytes[m] + octet_length(e_body[i]);
                    e_own[i] := m_identity[m] = a_identity[r_actor[r]];
                    e_accepted_ms[i] := now_ms;
                    e_expires_ms[i] := now_ms + e_ttl_s[i] * 1000::bigint;
                    IF m_room_entries[m] * 5 < entries_max OR m_room_bytes[m] * 5 < bytes_max THEN
                        m_filling := m_filling || m;
                    END IF;
                END IF;
            END LOOP;
        END IF;
        m := r_echo_mailbox[r];
        IF m > 0 AND NOT r_echo_stored[r] THEN
            new_position := greatest(now_us, m_head[m] + 1);
            r_echo_position[r] := new_position;
            r_echo_previous[r] := m_head[m];
            m_head[m] := new_position;
            m_room_echoes[m] := m_room_echoes[m] - 1;
            m_add_echoes[m] := m_add_echoes[m] + 1;
        END IF;
    END LOOP;

    -- 8. The records, complete with their answer: no claim exists without its effect. A key that another
    --    transaction finished meanwhile ends this one; the caller repeats the batch and finds the record in step 4.
    IF true = ANY (r_new) THEN
        INSERT INTO idempotency_records AS x (actor_scope_hash, idempotency_key_hash, operation, response_status,
               secret_key_id, created_at, expires_at, request_fingerprint, response_instants)
        SELECT k.scope, k.key, k.operation, 201, secret_key_id, at_now,
               at_now + CASE k.operation WHEN 1 THEN send_ttl_s ELSE key_ttl_s END * interval '1 second', k.fingerprint,
               e_accepted_ms[k.first : k.first + k.count - 1] || e_expires_ms[k.first : k.first + k.count - 1]
          FROM unnest(r_new, r_scope, r_key, r_operation, r_fingerprint, r_first, r_count)
               AS k(new, scope, key, operation, fingerprint, first, count)
         WHERE k.new
         ORDER BY k.key, k.scope, k.operation
        ON CONFLICT (actor_scope_hash, idempotency_key_hash, operation) DO UPDATE
           SET response_status = excluded.response_status, secret_key_id = excluded.secret_key_id,
               created_at = excluded.created_at, expires_at = excluded.expires_at,
               request_fingerprint = excluded.request_fingerprint, response_instants = excluded.response_instants
         WHERE x.expires_at <= at_now;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written <> cardinality(array_positions(r_new, true)) THEN
            RAISE EXCEPTION 'a key of this batch is finished already'
                  USING ERRCODE = '40001';
        END IF;

        -- 9. The envelopes and echoes.
        INSERT INTO envelopes (recipient_device_id, message_id, position, accepted_at, expires_at, envelope_size,
               protocol_version, kind, padding_class, client_message_id, envelope_bytes)
        SELECT m_device[k.mailbox], k.mid, k.position, at_now, at_now + k.ttl_s * interval '1 second', octet_length(k.body),
               k.pv, 0, k.pad, CASE WHEN k.own THEN r_cmid[k.request] END, k.body
          FROM unnest(e_request, e_position, e_mailbox, e_mid, e_ttl_s, e_pv, e_pad, e_own, e_body)
               AS k(request, position, mailbox, mid, ttl_s, pv, pad, own, body)
         WHERE k.position > 0;
        INSERT INTO envelopes (recipient_device_id, message_id, position, accepted_at, expires_at, envelope_size,
               protocol_version, kind, client_message_id)
        SELECT m_device[k.mailbox], k.mid, k.position, at_now, at_now + echo_ttl_s * interval '1 second', 0, 0, 1, k.cmid
          FROM unnest(r_echo_position, r_echo_mailbox, r_echo_mid, r_cmid) AS k(position, mailbox, mid, cmid)
         WHERE k.position > 0;

        -- 10. Wake intents, only where none is open: an online device costs nothing here.
        wakes_due := open_wakes_v1(m_device, m_add_entries, at_now);

        -- 11. The counters.
        UPDATE mailboxes b
           SET head_position = d.head, wake_position = CASE WHEN d.entries > 0 THEN d.head ELSE b.wake_position END,
               wake_open = b.wake_open OR d.entries > 0,
               stored_entries = b.stored_entries + d.entries, stored_bytes = b.stored_bytes + d.bytes,
               stored_echoes = b.stored_echoes + d.echoes
          FROM unnest(m_device, m_head, m_add_entries, m_add_bytes, m_add_echoes) AS d(id, head, entries, bytes, echoes)
         WHERE b.device_id = d.id AND (d.entries > 0 OR d.echoes > 0);
    END IF;
END
$$;

-- The one transaction of ACK (seed 000, 3.3), for many devices at once. Each envelope is released exactly once: by the
-- statement that finds it not yet acked. Unknown, foreign, expired and repeated ids change nothing and fail nothing.
CREATE FUNCTION ack_batch_v1(
    o_device uuid[],                 -- distinct devices, sorted: the lock order
    i_device uuid[], i_mid uuid[],   -- what each of them has
    OUT released bigint
)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    at_now timestamptz;
BEGIN
    PERFORM FROM unnest(o_device) WITH ORDINALITY AS d(id, n) JOIN mailbox_owners o ON o.device_id = d.id
      ORDER BY d.n FOR NO KEY UPDATE OF o;
    at_now := date_trunc('milliseconds', mailboxd_now());
    WITH acked AS (
        UPDATE envelopes e SET acked_at = at_now
          FROM unnest(i_device, i_mid) AS i(device, mid)
         WHERE e.recipient_device_id = i.device AND e.message_id = i.mid AND e.acked_at IS NULL
        RETURNING e.recipient_device_id, e.position, e.kind, e.envelope_size
    ), counted AS (
        SELECT a.recipient_device_id AS id, count(*) FILTER (WHERE a.kind = 0) AS entries,
               coalesce(sum(a.envelope_size), 0)::bigint AS bytes, count(*) FILTER (WHERE a.kind = 1) AS echoes
          FROM acked a GROUP BY a.recipient_device_id
    ), owners AS (
        UPDATE mailbox_owners o
           SET released_entries = o.released_entries + c.entries, released_bytes = o.released_bytes + c.bytes,
               released_echoes = o.released_echoes + c.echoes, contact_at = at_now
          FROM counted c WHERE o.device_id = c.id
    ), batch AS (
        INSERT INTO ack_batches (acked_at, device_ids, positions)
        SELECT at_now, array_agg(a.recipient_device_id), array_agg(a.position) FROM acked a HAVING count(*) > 0
    )
    SELECT count(*) INTO released FROM acked;
END
$$;

-- migrate: rollback
DROP FUNCTION ack_batch_v1, submit_batch_v1, submit_plain_v1, submit_without_held_v1, open_wakes_v1, submit_instants_v1,
    release_one_expired_v1, release_expired_v1;
