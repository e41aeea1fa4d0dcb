-- version: 0004
-- predecessor: 0003
-- summary: claiming and settling wake intents, clean-up, repair of counters
-- compatibility: New functions, an index and one trigger. A worker needs them; a gateway does not.

-- migrate: apply
-- Whoever writes a contact that follows a push makes the device's intent be looked at again soon. Otherwise it would sleep
-- up to 20 minutes until its next repeat, and mail that comes after this contact with it, since a submit does not touch an
-- open intent. A trigger, so that no writer can forget it; the condition costs an ACK nothing (ADR 0061, 0081).
CREATE FUNCTION wake_contact_made() RETURNS trigger
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    -- An ACK of older mail alone is no answer: the device may have fetched that before, and this push may have been lost
    -- on its way. Only what can have shown it the newest entry that this push announced is: HELLO, pull, or that one's ACK.
    IF (NEW.released_entries, NEW.released_echoes) <> (OLD.released_entries, OLD.released_echoes)
       AND (SELECT n.acked_at IS NULL AND n.expires_at > mailboxd_now()
              FROM (SELECT e.acked_at, e.expires_at FROM envelopes e
                     WHERE e.recipient_device_id = NEW.device_id AND e.kind = 0 AND e.accepted_at <= OLD.pushed_at
                     ORDER BY e.position DESC LIMIT 1) AS n) THEN
        NEW.contact_at := OLD.contact_at;
        RETURN NEW;
    END IF;
    NEW.pushed_at := NULL;
    UPDATE outbox_events x
       SET next_attempt_at = greatest(NEW.contact_at + interval '30 seconds', NEW.online_until)
     WHERE x.aggregate_ref = NEW.device_id AND x.task_type = 'wake_device' AND x.state IN ('pending', 'retry_wait')
       AND x.next_attempt_at > greatest(NEW.contact_at + interval '30 seconds', NEW.online_until);
    RETURN NEW;
END
$$;
CREATE TRIGGER wake_contact_made BEFORE UPDATE ON mailbox_owners FOR EACH ROW
    WHEN (OLD.pushed_at IS NOT NULL AND NEW.contact_at > OLD.pushed_at) EXECUTE FUNCTION wake_contact_made();

-- How long after the n-th push that a provider took and no contact followed the next one begins.
CREATE FUNCTION wake_repeat_v1(pushes integer, repeat_first interval, repeat_longest interval) RETURNS interval
LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT least(repeat_first * 2 ^ least(greatest(pushes - 1, 0), 20), repeat_longest) $$;

-- What is to be done about a wake intent: the rule of worker/wake_decision.py, which a test holds against this one.
-- 'wake', 'online' and 'collapsed' leave it open; every other answer is the reason why it is done. The cheap questions come first.
-- One statement's snapshot, so the two counters belong together.
CREATE FUNCTION wake_verdict_v1(
    event outbox_events, at_now timestamptz, pushes_max integer, repeat_first interval, repeat_longest interval,
    OUT verdict text, OUT until timestamptz
)
LANGUAGE sql STABLE
AS $$
    SELECT j.verdict, CASE j.verdict WHEN 'online' THEN j.online_until WHEN 'collapsed' THEN j.repeat_at END
      FROM (SELECT w.online_until, r.repeat_at, CASE
        WHEN b.device_id IS NULL THEN 'no_mailbox'
        WHEN b.state <> 1 THEN 'revoked'
        WHEN b.stored_entries = w.released_entries THEN 'nothing_waits'
        WHEN NOT EXISTS (SELECT FROM push_routes r WHERE r.device_id = b.device_id AND r.status <> 'gone') THEN 'no_route'
        WHEN event.pushes_accepted > 0 AND event.push_position >= b.wake_position AND w.contact_at > event.push_began_at
            THEN 'contact'
        WHEN w.online_until > at_now THEN 'online'
        -- From the newest backwards: what is not acked is rarely old, and acked rows stay for a while.
        WHEN (SELECT e.position FROM envelopes e
               WHERE e.recipient_device_id = b.device_id AND e.position <= b.wake_position AND e.position > w.floor_position
                 AND e.acked_at IS NULL AND e.kind = 0 AND e.expires_at > at_now
               ORDER BY e.position DESC LIMIT 1) IS NULL THEN 'nothing_waits'
        WHEN r.repeat_at > at_now THEN 'collapsed'
        WHEN r.repeat_at IS NOT NULL AND event.pushes_accepted >= pushes_max AND event.push_position >= b.wake_position
            THEN 'gave_up'
        ELSE 'wake' END AS verdict
      FROM (SELECT event.aggregate_ref AS id) AS d
      LEFT JOIN mailboxes b ON b.device_id = d.id
      LEFT JOIN mailbox_owners w ON w.device_id = d.id
      -- When the newest push would be repeated; null once the device was in contact after it.
     CROSS JOIN LATERAL (SELECT CASE WHEN event.pushes_accepted > 0 AND NOT coalesce(w.contact_at > event.push_began_at, false)
                                     THEN event.push_began_at + wake_repeat_v1(event.pushes_accepted, repeat_first, repeat_longest)
                                END AS repeat_at) AS r) AS j
$$;

-- The same for any task: what is not a wake that this release knows is for a worker to look at.
CREATE FUNCTION outbox_verdict_v1(
    event outbox_events, at_now timestamptz, pushes_max integer, repeat_first interval, repeat_longest interval,
    OUT verdict text, OUT until timestamptz
)
LANGUAGE plpgsql STABLE
AS $$
BEGIN
    IF event.task_type = 'wake_device' AND event.task_version = 1 THEN
        SELECT v.verdict, v.until INTO verdict, until
          FROM wake_verdict_v1(event, at_now, pushes_max, repeat_first, repeat_longest) AS v;
    ELSE
        verdict := 'wake';
    END IF;
END
$$;

-- The dispatcher's one transaction: of what is due, completes what is done, puts off what is online, and hands out the
-- rest as published. Waits for no lock; what somebody else holds stays due. Lock order: mailboxes (only of intents that
-- look done), outbox_events. The caller talks to Redis after this has committed, never before.
CREATE FUNCTION outbox_claim_v1(
    claim_max integer, published_for interval, pushes_max integer, repeat_first interval, repeat_longest interval,
    may_publish boolean,          -- false: the queue takes nothing, what is for it stays as it is
    OUT event_ids uuid[], OUT task_types text[], OUT task_versions smallint[], OUT generations bigint[],
    OUT claimed_at timestamptz,   -- published_at of all of them
    OUT completed jsonb,      -- how many, by reason
    OUT put_off integer,      -- until their session's lease ends or the push would be repeated
    OUT left_due integer      -- held by others, or more than claim_max
)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    at_now CONSTANT timestamptz := mailboxd_now();
    due uuid[];  their_devices uuid[];  held_devices uuid[];  held uuid[];  judged integer;
BEGIN
    SELECT array_agg(c.event_id),
           array_agg(c.aggregate_ref) FILTER (WHERE c.verdict NOT IN ('wake', 'online', 'collapsed', 'no_mailbox'))
      INTO due, their_devices
      FROM (SELECT d.event_id, d.aggregate_ref, v.verdict
              FROM ((SELECT o.event_id, o.aggregate_ref, o.task_type, o.next_attempt_at FROM outbox_events o
                      WHERE o.state = 'pending' AND o.next_attempt_at <= at_now
                      ORDER BY o.next_attempt_at, o.event_id LIMIT claim_max)
                    UNION ALL
                    (SELECT o.event_id, o.aggregate_ref, o.task_type, o.next_attempt_at FROM outbox_events o
                      WHERE o.state = 'retry_wait' AND o.next_attempt_at <= at_now
                      ORDER BY o.next_attempt_at, o.event_id LIMIT claim_max)
                    ORDER BY 4, 1 LIMIT claim_max) AS d
              JOIN outbox_events x ON x.event_id = d.event_id
             CROSS JOIN LATERAL outbox_verdict_v1(x, at_now, pushes_max, repeat_first, repeat_longest) AS v) AS c;
    claimed_at := at_now;
    completed := '{}';
    put_off := 0;
    left_due := 0;
    IF due IS NULL THEN
        event_ids := '{}';  task_types := '{}';  task_versions := '{}';  generations := '{}';
        RETURN;
    END IF;

    SELECT coalesce(array_agg(s.device_id), '{}') INTO held_devices
      FROM (SELECT b.device_id FROM mailboxes b WHERE b.device_id = ANY (their_devices)
             ORDER BY b.device_id FOR NO KEY UPDATE SKIP LOCKED) AS s;
    SELECT coalesce(array_agg(s.event_id), '{}') INTO held
      FROM (SELECT o.event_id FROM outbox_events o
             WHERE o.event_id = ANY (due) AND o.state IN ('pending', 'retry_wait') AND o.next_attempt_at <= at_now
             ORDER BY o.event_id FOR UPDATE SKIP LOCKED) AS s;

    -- Judged again, now that nobody can add to a held mailbox or change a held row. What looks done without its mailbox
    -- held waits for the next round: only under that lock is it sure that nothing newer has come.
    WITH again AS (
        SELECT x.event_id, x.aggregate_ref, v.verdict, v.until
          FROM outbox_events x CROSS JOIN LATERAL outbox_verdict_v1(x, at_now, pushes_max, repeat_first, repeat_longest) AS v
         WHERE x.event_id = ANY (held)
    ), sure AS (
        SELECT a.* FROM again a
         WHERE CASE WHEN a.verdict = 'wake' THEN may_publish
                    ELSE a.verdict IN ('online', 'collapsed', 'no_mailbox') OR a.aggregate_ref = ANY (held_devices) END
    ), moved AS (
        UPDATE outbox_events o
           SET state = CASE WHEN s.verdict = 'wake' THEN 'published' WHEN s.until IS NOT NULL THEN 'pending' ELSE 'completed' END,
               next_attempt_at = CASE WHEN s.verdict = 'wake' THEN at_now + published_for
                                      ELSE coalesce(s.until, o.next_attempt_at) END,
               published_at = CASE WHEN s.verdict = 'wake' THEN at_now ELSE o.published_at END,
               reason = CASE WHEN s.verdict = 'wake' THEN o.reason ELSE s.verdict END,
               attempts = CASE WHEN s.verdict = 'wake' THEN o.attempts ELSE 0 END,
               troubles = CASE WHEN s.verdict = 'wake' THEN o.troubles ELSE 0 END,
               updated_at = at_now
          FROM sure s WHERE o.event_id = s.event_id
        RETURNING o.event_id, o.task_type, o.task_version, o.generation, o.state, s.verdict, o.aggregate_ref
    ), closed AS (
        UPDATE mailboxes b SET wake_open = false
          FROM moved m WHERE b.device_id = m.aggregate_ref AND m.state = 'completed' AND m.task_type = 'wake_device'
    )
    SELECT coalesce(array_agg(m.event_id) FILTER (WHERE m.verdict = 'wake'), '{}'),
           coalesce(array_agg(m.task_type) FILTER (WHERE m.verdict = 'wake'), '{}'),
           coalesce(array_agg(m.task_version) FILTER (WHERE m.verdict = 'wake'), '{}'),
           coalesce(array_agg(m.generation) FILTER (WHERE m.verdict = 'wake'), '{}'),
           coalesce((SELECT jsonb_object_agg(d.verdict, d.n) FROM (SELECT verdict, count(*) AS n FROM moved
                       WHERE state = 'completed' GROUP BY verdict) AS d), '{}'),
           count(*) FILTER (WHERE m.state = 'pending'), count(*)
      INTO event_ids, task_types, task_versions, generations, completed, put_off, judged
      FROM moved m;
    left_due := cardinality(due) - judged + CASE WHEN cardinality(due) = claim_max THEN 1 ELSE 0 END;
END
$$;

-- Completes an intent for the reason given, if it is still the one that was judged: same generation and nothing newer
-- than the position judged. Otherwise it goes back to pending. Lock order: mailboxes, outbox_events.
CREATE FUNCTION outbox_complete_v1(event uuid, judged_generation bigint, judged_position bigint, why text) RETURNS text
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    at_now timestamptz;  device uuid;  newest bigint;  new_state text;
BEGIN
    SELECT o.aggregate_ref INTO device FROM outbox_events o WHERE o.event_id = event;
    SELECT b.wake_position INTO newest FROM mailboxes b WHERE b.device_id = device FOR NO KEY UPDATE;
    at_now := mailboxd_now();
    UPDATE outbox_events o
       SET state = CASE WHEN o.generation = judged_generation AND coalesce(newest, 0) <= judged_position
                        THEN 'completed' ELSE 'pending' END,
           reason = why, attempts = 0, troubles = 0, updated_at = at_now,
           next_attempt_at = CASE WHEN o.generation = judged_generation AND coalesce(newest, 0) <= judged_position
                                  THEN o.next_attempt_at ELSE at_now END
     WHERE o.event_id = event AND o.state IN ('published', 'pending')
    RETURNING o.state INTO new_state;
    IF new_state = 'completed' THEN
        UPDATE mailboxes b SET wake_open = false WHERE b.device_id = device;
    END IF;
    RETURN coalesce(new_state, 'gone');
END
$$;

-- Puts an intent away as poison. The next submit opens a new one. Lock order: mailboxes, outbox_events.
CREATE FUNCTION outbox_bury_v1(event uuid, why text) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    device uuid;  task text;
BEGIN
    SELECT o.aggregate_ref INTO device FROM outbox_events o WHERE o.event_id = event;
    PERFORM FROM mailboxes b WHERE b.device_id = device FOR NO KEY UPDATE;
    UPDATE outbox_events o SET state = 'dead_letter', reason = why, updated_at = mailboxd_now()
     WHERE o.event_id = event AND o.state IN ('published', 'pending', 'retry_wait') RETURNING o.task_type INTO task;
    IF task = 'wake_device' THEN
        UPDATE mailboxes b SET wake_open = false WHERE b.device_id = device;
    END IF;
    RETURN task IS NOT NULL;
END
$$;

-- The database's clock was set back: instants of the old clock lie in the future, and intents would sleep until the new one
-- has caught up. What waits longer than anything may is due now, and its owner's lease and contacts end now at the latest: a
-- living session renews them within a sweep. Skips what others hold. Lock order: mailbox_owners, outbox_events.
CREATE FUNCTION outbox_clock_went_back_v1(longest_wait interval, rows_max integer) RETURNS integer
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    at_now timestamptz := mailboxd_now();  events uuid[];  owners uuid[];  mended integer;
BEGIN
    SELECT array_agg(f.event_id), array_agg(f.aggregate_ref) INTO events, owners
      FROM (SELECT o.event_id, o.aggregate_ref FROM outbox_events o
             WHERE o.state IN ('pending', 'retry_wait', 'published') AND o.next_attempt_at > at_now + longest_wait
             LIMIT rows_max) AS f;
    IF events IS NULL THEN
        RETURN 0;
    END IF;
    SELECT array_agg(h.device_id) INTO owners
      FROM (SELECT w.device_id FROM mailbox_owners w WHERE w.device_id = ANY (owners)
             ORDER BY w.device_id FOR NO KEY UPDATE SKIP LOCKED) AS h;
    at_now := mailboxd_now();
    UPDATE mailbox_owners w
       SET online_until = least(w.online_until, at_now), contact_at = least(w.contact_at, at_now), pushed_at = NULL
     WHERE w.device_id = ANY (owners) AND greatest(w.online_until, w.contact_at, w.pushed_at) > at_now;
    UPDATE outbox_events x
       SET state = CASE WHEN x.state = 'published' THEN 'pending' ELSE x.state END, next_attempt_at = at_now,
           push_began_at = least(x.push_began_at, at_now), updated_at = at_now
      FROM (SELECT o.event_id FROM outbox_events o
             WHERE o.event_id = ANY (events) AND o.aggregate_ref = ANY (owners)
               AND o.state IN ('pending', 'retry_wait', 'published') AND o.next_attempt_at > at_now + longest_wait
             ORDER BY o.event_id FOR UPDATE SKIP LOCKED) AS late
     WHERE x.event_id = late.event_id;
    GET DIAGNOSTICS mended = ROW_COUNT;
    RETURN mended;
END
$$;

-- Makes sure that an intent is open wherever something waits, and tells how many were opened. An open one stays as it is.
-- For a new push route, after a restore, and for the reconciler. Lock order: mailboxes, outbox_events.
CREATE FUNCTION wake_open_v1(devices uuid[]) RETURNS integer
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    at_now timestamptz;  opened uuid[];
BEGIN
    PERFORM FROM mailboxes b WHERE b.device_id = ANY (devices) ORDER BY b.device_id FOR NO KEY UPDATE;
    at_now := mailboxd_now();
    WITH waiting AS (
        SELECT b.device_id, w.online_until FROM mailboxes b JOIN mailbox_owners w ON w.device_id = b.device_id
         WHERE b.device_id = ANY (devices) AND b.state = 1
           AND (SELECT e.position FROM envelopes e
                 WHERE e.recipient_device_id = b.device_id AND e.position <= b.wake_position AND e.position > w.floor_position
                   AND e.acked_at IS NULL AND e.kind = 0 AND e.expires_at > at_now
                 ORDER BY e.position DESC LIMIT 1) IS NOT NULL
    ), written AS (
        INSERT INTO outbox_events AS x (event_id, aggregate_ref, task_type, next_attempt_at, created_at, updated_at)
        SELECT gen_random_uuid(), d.device_id, 'wake_device', greatest(at_now, d.online_until), at_now, at_now
          FROM waiting d ORDER BY d.device_id
        ON CONFLICT (aggregate_ref, task_type) WHERE state <> 'dead_letter' DO UPDATE
           SET state = 'pending', generation = x.generation + 1, attempts = 0, troubles = 0, pushes_accepted = 0,
               reason = NULL, next_attempt_at = excluded.next_attempt_at, updated_at = excluded.updated_at
         WHERE x.state = 'completed'
        RETURNING x.aggregate_ref
    ), marked AS (
        UPDATE mailboxes b SET wake_open = true FROM waiting d WHERE b.device_id = d.device_id AND NOT b.wake_open
    )
    SELECT array_agg(w.aggregate_ref) INTO opened FROM written w;
    RETURN coalesce(cardinality(opened), 0);
END
$$;

-- For whoever gives a device a new push route, in the same transaction and before the route's row is written (lock order).
-- What was pushed over the old route counts no more: the open intent starts anew and is due, or one is opened if
-- something waits. A worker that judged by the old route finds another generation and leaves the intent open.
CREATE FUNCTION wake_route_changed_v1(device uuid) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    at_now timestamptz;
BEGIN
    PERFORM wake_open_v1(ARRAY[device]);  -- also takes the mailbox's lock
    at_now := mailboxd_now();
    UPDATE outbox_events o
       SET generation = o.generation + 1, pushes_accepted = 0, troubles = 0, attempts = 0, reason = NULL, updated_at = at_now,
           state = CASE o.state WHEN 'retry_wait' THEN 'pending' ELSE o.state END,
           next_attempt_at = CASE o.state WHEN 'published' THEN o.next_attempt_at
                             ELSE greatest(at_now, (SELECT w.online_until FROM mailbox_owners w WHERE w.device_id = device)) END
     WHERE o.aggregate_ref = device AND o.task_type = 'wake_device' AND o.state IN ('pending', 'retry_wait', 'published');
END
$$;

-- Puts a dead letter back to work: as itself, or merged into the intent that a later submit opened. False when it is
-- not there (any more). Lock order: mailboxes, outbox_events.
CREATE FUNCTION outbox_requeue_v1(event uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
    at_now timestamptz;  device uuid;  task text;  merged uuid;
BEGIN
    SELECT o.aggregate_ref, o.task_type INTO device, task FROM outbox_events o WHERE o.event_id = event AND o.state = 'dead_letter';
    IF NOT FOUND THEN RETURN false; END IF;
    PERFORM FROM mailboxes b WHERE b.device_id = device FOR NO KEY UPDATE;
    at_now := mailboxd_now();
    PERFORM FROM outbox_events o WHERE o.event_id = event AND o.state = 'dead_letter' FOR UPDATE;
    IF NOT FOUND THEN RETURN false; END IF;
    UPDATE outbox_events o
       SET state = CASE o.state WHEN 'published' THEN o.state ELSE 'pending' END, attempts = 0, troubles = 0,
           generation = o.generation + 1, pushes_accepted = 0, updated_at = at_now,
           next_attempt_at = CASE o.state WHEN 'published' THEN o.next_attempt_at ELSE at_now END
     WHERE o.aggregate_ref = device AND o.task_type = task AND o.state <> 'dead_letter'
    RETURNING o.event_id INTO merged;
    IF merged IS NOT NULL THEN
        DELETE FROM outbox_events o WHERE o.event_id = event;
    ELSE
        UPDATE outbox_events o
           SET state = 'pending', attempts = 0, troubles = 0, generation = o.generation + 1, pushes_accepted = 0,
               reason = NULL, next_attempt_at = at_now, updated_at = at_now
         WHERE o.event_id = event;
    END IF;
    IF task = 'wake_device' THEN
        UPDATE mailboxes b SET wake_open = true WHERE b.device_id = device;
    END IF;
    RETURN true;
END
$$;

-- Raises the floors of mailboxes whose owners' rows the caller holds to just below their first row: reads start there.
-- One index probe each, since clean-up does this for every batch; past acked rows that are still there the walk raises it.
CREATE FUNCTION raise_floors_v1(devices uuid[]) RETURNS void
LANGUAGE sql VOLATILE
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
AS $$
    UPDATE mailbox_owners w SET floor_position = f.floor
      FROM (SELECT o.device_id,
                   coalesce((SELECT e.position - 1 FROM envelopes e
                              WHERE e.recipient_device_id = d.id AND e.position > o.floor_position
                              ORDER BY e.position LIMIT 1), b.head_position) AS floor
              FROM unnest(devices) AS d(id)
              JOIN mailbox_owners o ON o.device_id = d.id
              JOIN mailboxes b ON b.device_id = d.id) AS f
     WHERE w.device_id = f.device_id AND f.floor > w.floor_position
$$;

CREATE INDEX invites_by_end ON invites (expires_at);  -- for their clean-up

-- Seed 000, 3.4: removes expired entries, oldest first, and counts those as released that no ACK had released.
-- Candidates without locks; owners SKIP LOCKED, so that it never stands in the way of an ACK; then checked again.
CREATE FUNCTION cleanup_expired_v1(rows_max integer, OUT seen integer, OUT deleted integer)
LANGUAGE plpgsql VOLATILE
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
AS $$
DECLARE
    at_now CONSTANT timestamptz := mailboxd_now();
    devices uuid[];  positions bigint[];  held uuid[];
BEGIN
    SELECT coalesce(array_agg(c.device ORDER BY c.device, c.position), '{}'), array_agg(c.position ORDER BY c.device, c.position)
      INTO devices, positions
      FROM (SELECT e.recipient_device_id AS device, e.position FROM envelopes e
             WHERE e.expires_at <= at_now ORDER BY e.expires_at LIMIT rows_max) AS c;
    seen := cardinality(devices);
    deleted := 0;
    IF seen = 0 THEN RETURN; END IF;
    SELECT coalesce(array_agg(s.device_id), '{}') INTO held
      FROM (SELECT w.device_id FROM mailbox_owners w
             WHERE w.device_id IN (SELECT DISTINCT d FROM unnest(devices) AS d)
             ORDER BY w.device_id FOR NO KEY UPDATE SKIP LOCKED) AS s;
    WITH gone AS (
        DELETE FROM envelopes e USING unnest(devices, positions) AS c(device, position)
         WHERE c.device = ANY (held) AND e.recipient_device_id = c.device AND e.position = c.position AND e.expires_at <= at_now
        RETURNING e.recipient_device_id, e.kind, e.envelope_size, e.acked_at
    ), released AS (
        SELECT g.recipient_device_id AS id, count(*) FILTER (WHERE g.kind = 0) AS entries,
               coalesce(sum(g.envelope_size) FILTER (WHERE g.kind = 0), 0)::bigint AS bytes,
               count(*) FILTER (WHERE g.kind = 1) AS echoes
          FROM gone g WHERE g.acked_at IS NULL GROUP BY 1
    ), counted AS (
        UPDATE mailbox_owners w
           SET released_entries = w.released_entries + r.entries, released_bytes = w.released_bytes + r.bytes,
               released_echoes = w.released_echoes + r.echoes
          FROM released r WHERE w.device_id = r.id
    )
    SELECT count(*) INTO deleted FROM gone;
    IF deleted > 0 THEN PERFORM raise_floors_v1(held); END IF;
END
$$;

-- Seed 000, 2.2: removes what was acked longer ago than `age`, by the notes that each ACK left. Always takes one note whole.
CREATE FUNCTION cleanup_acked_v1(rows_max integer, notes_max integer, age interval, OUT seen integer, OUT deleted integer)
LANGUAGE plpgsql VOLATILE
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_seqscan = off
AS $$
DECLARE
    old CONSTANT timestamptz := mailboxd_now() - age;
    notes bigint[];  devices uuid[];  positions bigint[];  held uuid[];
BEGIN
    -- The limit before the age: notes come in the order of their ids, so a young one ends the search.
    SELECT coalesce(array_agg(n.batch_id), '{}') INTO notes
      FROM (SELECT b.batch_id, b.acked_at,
                   sum(b.size) OVER (ORDER BY b.batch_id) - b.size AS before
              FROM (SELECT a.batch_id, a.acked_at, cardinality(a.positions) AS size FROM ack_batches a
                     ORDER BY a.batch_id LIMIT notes_max FOR UPDATE SKIP LOCKED) AS b) AS n
     WHERE n.acked_at <= old AND n.before < rows_max;
    seen := cardinality(notes);
    deleted := 0;
    IF seen = 0 THEN RETURN; END IF;
    SELECT array_agg(c.device ORDER BY c.device, c.position), array_agg(c.position ORDER BY c.device, c.position)
      INTO devices, positions
      FROM ack_batches a CROSS JOIN LATERAL unnest(a.device_ids, a.positions) AS c(device, position)
     WHERE a.batch_id = ANY (notes);
    SELECT coalesce(array_agg(s.device_id), '{}') INTO held
      FROM (SELECT w.device_id FROM mailbox_owners w
             WHERE w.device_id IN (SELECT DISTINCT d FROM unnest(devices) AS d)
             ORDER BY w.device_id FOR NO KEY UPDATE SKIP LOCKED) AS s;
    WITH gone AS (
        DELETE FROM envelopes e USING unnest(devices, positions) AS c(device, position)
         WHERE e.recipient_device_id = c.device AND e.position = c.position AND e.acked_at IS NOT NULL
        RETURNING 1
    )
    SELECT count(*) INTO deleted FROM gone;
    DELETE FROM ack_batches a WHERE a.batch_id = ANY (notes);
    PERFORM raise_floors_v1(held);  -- whoever is busy has its floor raised another time
END
$$;

-- Compares the counters of up to page_max mailboxes with their rows, in one statement's snapshot: what a submit, an ACK or
-- an expiry changed is there as a whole or not at all. Returns those that differ, those whose floor lags a minute or more
-- behind `floor_may`, and the last one, so that the walk goes on from there.
CREATE FUNCTION counter_drift_v1(after uuid, page_max integer)
RETURNS TABLE (
    device_id uuid, entries_drift bigint, bytes_drift bigint, echoes_drift bigint, floor_drift bigint, floor_may bigint,
    floor_lags boolean, last_device uuid
)
LANGUAGE sql STABLE
AS $$
    WITH page AS (
        SELECT b.device_id, b.stored_entries - w.released_entries AS entries, b.stored_bytes - w.released_bytes AS bytes,
               b.stored_echoes - w.released_echoes AS echoes, w.floor_position, b.head_position
          FROM mailboxes b JOIN mailbox_owners w ON w.device_id = b.device_id
         WHERE b.device_id > after ORDER BY b.device_id LIMIT page_max
    ), compared AS (
        SELECT p.device_id, p.entries - coalesce(r.entries, 0) AS entries, p.bytes - coalesce(r.bytes, 0) AS bytes,
               p.echoes - coalesce(r.echoes, 0) AS echoes,
               CASE WHEN r.oldest <= p.floor_position THEN p.floor_position - r.oldest + 1 ELSE 0 END AS floor,
               -- Everything up to here was gone or acked in this snapshot, and that it stays.
               coalesce(r.oldest - 1, p.head_position) AS may, p.floor_position
          FROM page p CROSS JOIN LATERAL (
               SELECT count(*) FILTER (WHERE e.kind = 0) AS entries, sum(e.envelope_size)::bigint AS bytes,
                      count(*) FILTER (WHERE e.kind = 1) AS echoes, min(e.position) AS oldest
                 FROM envelopes e WHERE e.recipient_device_id = p.device_id AND e.acked_at IS NULL) AS r
    )
    SELECT c.device_id, c.entries, c.bytes, c.echoes, c.floor, c.may, c.may - c.floor_position > 60000000,
           (SELECT max(p.device_id::text)::uuid FROM page p)
      FROM compared c
     WHERE c.may - c.floor_position > 60000000 OR c.entries <> 0 OR c.bytes <> 0 OR c.echoes <> 0 OR c.floor > 0
        OR c.device_id = (SELECT max(p.device_id::text)::uuid FROM page p)
$$;

-- Sets one mailbox's counters and floor to what its rows say. Lock order: mailboxes, mailbox_owners, outbox_events.
CREATE FUNCTION repair_counters_v1(device uuid) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
    PERFORM FROM mailboxes b WHERE b.device_id = device FOR NO KEY UPDATE;
    PERFORM FROM mailbox_owners w WHERE w.device_id = device FOR NO KEY UPDATE;
    WITH actual AS (
        SELECT count(*) FILTER (WHERE e.kind = 0) AS entries, coalesce(sum(e.envelope_size), 0)::bigint AS bytes,
               count(*) FILTER (WHERE e.kind = 1) AS echoes, min(e.position) AS oldest
          FROM envelopes e WHERE e.recipient_device_id = device AND e.acked_at IS NULL
    ), released AS (
        UPDATE mailbox_owners w
           SET released_entries = greatest(b.stored_entries - a.entries, 0),
               released_bytes = greatest(b.stored_bytes - a.bytes, 0),
               released_echoes = greatest(b.stored_echoes - a.echoes, 0),
               floor_position = least(w.floor_position, a.oldest - 1)
          FROM actual a, mailboxes b WHERE w.device_id = device AND b.device_id = device
    )
    -- Rows that were never counted as stored: raise what was stored, since released cannot be below nothing.
    UPDATE mailboxes b
       SET stored_entries = greatest(b.stored_entries, a.entries), stored_bytes = greatest(b.stored_bytes, a.bytes),
           stored_echoes = greatest(b.stored_echoes, a.echoes)
      FROM actual a WHERE b.device_id = device;
    PERFORM wake_open_v1(ARRAY[device]);
END
$$;

-- migrate: rollback
DROP FUNCTION repair_counters_v1, counter_drift_v1, cleanup_acked_v1, cleanup_expired_v1, raise_floors_v1, outbox_requeue_v1, outbox_clock_went_back_v1,
    wake_route_changed_v1, wake_open_v1, outbox_bury_v1, outbox_complete_v1, outbox_claim_v1, outbox_verdict_v1,
    wake_verdict_v1, wake_repeat_v1;
DROP INDEX invites_by_end;
DROP TRIGGER wake_contact_made ON mailbox_owners;
DROP FUNCTION wake_contact_made;
