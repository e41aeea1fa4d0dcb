-- version: 0001
-- predecessor: none
-- summary: all tables: identities, devices and keys, mailboxes, outbox, audit
-- compatibility: The first schema; there is no previous release. No foreign keys on the hot tables (mailboxes,
--   mailbox_owners, envelopes, idempotency_records, outbox_events), no index but the key on either row of a device.

-- migrate: apply
-- The one source of time for every rule of retention, expiry and windows. Tests replace it to move the clock.
CREATE FUNCTION mailboxd_now() RETURNS timestamptz
    LANGUAGE sql VOLATILE PARALLEL SAFE
    AS $$ SELECT clock_timestamp() $$;

-- Milliseconds since 1970-01-01 UTC, as the wire contract says instants.
CREATE FUNCTION mailboxd_ms(at timestamptz) RETURNS bigint
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    AS $$ SELECT (extract(epoch FROM at) * 1000)::bigint $$;

-- 001, 2.1. One row. Private keys are never here: they live in the key ring file.
CREATE TABLE instances (
    instance_id      uuid PRIMARY KEY,
    singleton        boolean NOT NULL DEFAULT true UNIQUE CHECK (singleton),
    policy           jsonb NOT NULL,
    policy_version   bigint NOT NULL DEFAULT 1 CHECK (policy_version > 0),
    restore_epoch    uuid NOT NULL,
    restored_done    text,
    system_identifier bigint,
    created_at       timestamptz NOT NULL DEFAULT mailboxd_now()
);

CREATE TABLE instance_signing_keys (
    kid         text PRIMARY KEY,
    purpose     text NOT NULL CHECK (purpose IN ('token')),
    public_key  bytea NOT NULL CHECK (octet_length(public_key) = 32),
    created_at  timestamptz NOT NULL DEFAULT mailboxd_now(),
    retired_at  timestamptz
);

-- 001, 2.2. Public material only.
CREATE TABLE identities (
    identity_id            uuid PRIMARY KEY,
    identity_public_bundle bytea NOT NULL CHECK (octet_length(identity_public_bundle) BETWEEN 1 AND 8192),
    status                 text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'disabled')),
    created_at             timestamptz NOT NULL DEFAULT mailboxd_now()
);

CREATE TABLE devices (
    device_id         uuid PRIMARY KEY,
    identity_id       uuid NOT NULL REFERENCES identities,
    device_public_key bytea NOT NULL UNIQUE CHECK (octet_length(device_public_key) = 32),
    status            text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'revoked')),
    created_at        timestamptz NOT NULL DEFAULT mailboxd_now(),
    revoked_at        timestamptz,
    CHECK ((status = 'revoked') = (revoked_at IS NOT NULL))
);
CREATE INDEX devices_by_identity ON devices (identity_id, device_id);
CREATE INDEX devices_revoked ON devices (revoked_at) WHERE status = 'revoked';

CREATE TABLE prekeys (
    device_id   uuid NOT NULL REFERENCES devices,
    key_id      bigint NOT NULL CHECK (key_id BETWEEN 0 AND 4294967295),
    public_key  bytea NOT NULL CHECK (octet_length(public_key) BETWEEN 32 AND 2048),
    state       text NOT NULL DEFAULT 'available' CHECK (state IN ('available', 'reserved', 'consumed', 'suspect')),
    created_at  timestamptz NOT NULL DEFAULT mailboxd_now(),
    reserved_at timestamptz,
    consumed_at timestamptz,
    PRIMARY KEY (device_id, key_id)
);
CREATE INDEX prekeys_available ON prekeys (device_id, key_id) WHERE state = 'available';

CREATE TABLE last_resort_prekeys (
    device_id   uuid PRIMARY KEY REFERENCES devices,
    key_id      bigint NOT NULL CHECK (key_id BETWEEN 0 AND 4294967295),
    public_key  bytea NOT NULL CHECK (octet_length(public_key) BETWEEN 32 AND 2048),
    signature   bytea NOT NULL CHECK (octet_length(signature) = 64),
    updated_at  timestamptz NOT NULL DEFAULT mailboxd_now()
);

-- 001, 2.3. The challenge itself is never stored, and a row exists for unknown devices too.
CREATE TABLE auth_challenges (
    challenge_hash bytea PRIMARY KEY CHECK (octet_length(challenge_hash) = 32),
    device_id      uuid NOT NULL,
    purpose        text NOT NULL CHECK (purpose IN ('token', 'device.add', 'device.revoke')),
    created_at     timestamptz NOT NULL DEFAULT mailboxd_now(),
    expires_at     timestamptz NOT NULL,
    consumed_at    timestamptz,
    CHECK (expires_at > created_at)
);
CREATE INDEX auth_challenges_by_end ON auth_challenges (expires_at);

CREATE TABLE invites (
    invite_hash bytea PRIMARY KEY CHECK (octet_length(invite_hash) = 32),
    invite_tag  text NOT NULL UNIQUE,
    created_at  timestamptz NOT NULL DEFAULT mailboxd_now(),
    expires_at  timestamptz NOT NULL,
    used_at     timestamptz,
    revoked_at  timestamptz
);

-- One CHECK a hot table: the server parses each of them anew in every statement that writes there.

-- The senders' side of a mailbox, locked by submit. Pending = stored here − released in mailbox_owners.
-- wake_position is the newest entry that wants a wake; wake_open says that an unfinished outbox row stands for it,
-- so that a submit to a device with an open intent writes no outbox row at all.
CREATE TABLE mailboxes (
    device_id         uuid PRIMARY KEY,
    identity_id       uuid NOT NULL,
    state             smallint NOT NULL DEFAULT 1,  -- 1 active, 2 revoked
    wake_open         boolean NOT NULL DEFAULT false,
    head_position     bigint NOT NULL DEFAULT 0,
    wake_position     bigint NOT NULL DEFAULT 0,
    stored_entries    bigint NOT NULL DEFAULT 0,
    stored_bytes      bigint NOT NULL DEFAULT 0,
    stored_echoes     bigint NOT NULL DEFAULT 0,
    expiry_checked_at timestamptz,
    CHECK (state IN (1, 2) AND least(stored_entries, stored_bytes, stored_echoes) >= 0)
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0.05);

-- The owner's side, locked by ACK, expiry, HELLO and lease, so that receiving never waits for sending.
CREATE TABLE mailbox_owners (
    device_id            uuid PRIMARY KEY,
    released_entries     bigint NOT NULL DEFAULT 0,
    released_bytes       bigint NOT NULL DEFAULT 0,
    released_echoes      bigint NOT NULL DEFAULT 0,
    floor_position       bigint NOT NULL DEFAULT 0,  -- everything at or below is gone or acked
    session_epoch        bigint NOT NULL DEFAULT 0,
    session_instance     uuid,            -- keyed hash of the client process that holds the session
    session_attempt      bigint,
    session_alive_at     timestamptz,
    takeovers            integer NOT NULL DEFAULT 0,
    takeovers_since      timestamptz,
    online_until         timestamptz,
    contact_at           timestamptz,
    pushed_at            timestamptz,     -- a wake push began and the device has not been in contact since
    CHECK (least(released_entries, released_bytes, released_echoes) >= 0)
) WITH (fillfactor = 40, autovacuum_vacuum_scale_factor = 0.05);

-- 001, 2.4. position stands for the seed's (accepted_at, envelope_pk); kind 0 is a message, 1 an echo.
-- ACK state is in no index and in no index predicate: an ACK is a HOT update.
CREATE TABLE envelopes (
    recipient_device_id uuid NOT NULL,
    message_id          uuid NOT NULL,
    position            bigint NOT NULL,
    accepted_at         timestamptz NOT NULL,
    expires_at          timestamptz NOT NULL,
    acked_at            timestamptz,
    envelope_size       integer NOT NULL,
    protocol_version    integer NOT NULL,
    kind                smallint NOT NULL DEFAULT 0,
    padding_class       smallint,
    client_message_id   uuid,
    envelope_bytes      bytea,
    PRIMARY KEY (recipient_device_id, position),
    UNIQUE (recipient_device_id, message_id),
    CHECK (position > 0 AND kind IN (0, 1) AND padding_class BETWEEN 0 AND 12 AND expires_at > accepted_at
           AND envelope_size = coalesce(octet_length(envelope_bytes), 0))
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.2);
ALTER TABLE envelopes ALTER COLUMN envelope_bytes SET STORAGE EXTERNAL;  -- ciphertext does not compress
CREATE INDEX envelopes_by_end ON envelopes (expires_at);

-- 001, 2.6: what one ACK transaction released, so that cleanup finds acked rows by key without an index on ACK state.
CREATE TABLE ack_batches (
    batch_id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    acked_at   timestamptz NOT NULL,
    device_ids uuid[] NOT NULL,
    positions  bigint[] NOT NULL,
    CHECK (cardinality(device_ids) = cardinality(positions))
) WITH (toast_tuple_target = 8160);
ALTER TABLE ack_batches ALTER COLUMN device_ids SET STORAGE EXTERNAL;
ALTER TABLE ack_batches ALTER COLUMN positions SET STORAGE EXTERNAL;

-- 001, 2.5. Keyed hashes only; the answer is the minimum that a replay needs: the instants of a submit, or ids.
CREATE TABLE idempotency_records (
    actor_scope_hash     uuid NOT NULL,
    idempotency_key_hash uuid NOT NULL,
    operation            smallint NOT NULL,
    response_status      smallint NOT NULL,
    secret_key_id        smallint NOT NULL,
    created_at           timestamptz NOT NULL,
    expires_at           timestamptz NOT NULL,
    request_fingerprint  uuid NOT NULL,
    resource_reference   uuid,
    response_instants    bigint[],
    response_body_safe   bytea,
    PRIMARY KEY (actor_scope_hash, idempotency_key_hash, operation),
    CHECK (expires_at > created_at)
) WITH (autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX idempotency_records_by_end ON idempotency_records (expires_at);

-- 001, 2.7. Tokens and endpoints are sealed with a key from outside the database.
CREATE TABLE push_routes (
    device_id      uuid PRIMARY KEY,
    wake_route_id  uuid NOT NULL UNIQUE,
    provider       text NOT NULL CHECK (provider IN ('webpush', 'apns', 'fcm', 'gateway')),
    mode           text NOT NULL DEFAULT 'background' CHECK (mode IN ('background', 'alert')),
    sealed_address bytea NOT NULL,
    seal_key_id    smallint NOT NULL,
    status         text NOT NULL DEFAULT 'active' CHECK (status IN ('active', 'gone', 'misconfigured')),
    version        bigint NOT NULL DEFAULT 1,
    gone_told_at   timestamptz,
    created_at     timestamptz NOT NULL DEFAULT mailboxd_now(),
    updated_at     timestamptz NOT NULL DEFAULT mailboxd_now()
);

CREATE TABLE outbox_events (
    event_id         uuid PRIMARY KEY,
    aggregate_type   text NOT NULL DEFAULT 'device',
    aggregate_ref    uuid NOT NULL,
    task_type        text NOT NULL,
    task_version     smallint NOT NULL DEFAULT 1,
    state            text NOT NULL DEFAULT 'pending'
                     CHECK (state IN ('pending', 'published', 'completed', 'retry_wait', 'dead_letter')),
    generation       bigint NOT NULL DEFAULT 1,
    attempts         integer NOT NULL DEFAULT 0,   -- begun in a row and not brought to an end
    troubles         integer NOT NULL DEFAULT 0,   -- of the provider, in a row: the wait grows, no attempt is used up
    pushes_accepted  integer NOT NULL DEFAULT 0,   -- since the last contact; 12 without one end the intent
    push_began_at    timestamptz,                  -- the newest push that a provider took
    push_position    bigint,                       -- wake_position when that push began
    reason           text,
    next_attempt_at  timestamptz NOT NULL,
    published_at     timestamptz,
    created_at       timestamptz NOT NULL,
    updated_at       timestamptz NOT NULL
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);
CREATE UNIQUE INDEX outbox_one_intent ON outbox_events (aggregate_ref, task_type) WHERE state <> 'dead_letter';
CREATE INDEX outbox_due ON outbox_events (state, next_attempt_at, event_id)
    WHERE state IN ('pending', 'retry_wait', 'published');
CREATE INDEX outbox_completed ON outbox_events (updated_at) WHERE state IN ('completed', 'dead_letter');

-- 001, 2.9.
CREATE TABLE audit_events (
    audit_id       bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_type     text NOT NULL,
    request_id     text NOT NULL,
    actor_hash     text,
    outcome        text NOT NULL,
    policy_version bigint NOT NULL,
    detail         jsonb,   -- counts and setting names only, never ids or addresses
    created_at     timestamptz NOT NULL DEFAULT mailboxd_now()
);
CREATE INDEX audit_events_by_time ON audit_events (created_at);

-- migrate: rollback
DROP TABLE audit_events, outbox_events, push_routes, idempotency_records, ack_batches, envelopes, mailbox_owners, mailboxes,
    invites, auth_challenges, last_resort_prekeys, prekeys, devices, identities, instance_signing_keys, instances;
DROP FUNCTION mailboxd_ms(timestamptz);
DROP FUNCTION mailboxd_now();
