-- The denominator of `cycle`: one 1 KB envelope per transaction, no echo, in the form of submit that the store calls.
-- Needs the table bench_devices(n, device_id). Run with: pgbench -n -M prepared -c 32 -j 2 -D devices=200 -f submit.sql
\set actor random(1, :devices)
\set recipient random(1, :devices)
SELECT r_code FROM submit_batch_v1(
    ARRAY[(SELECT device_id FROM bench_devices WHERE n = :recipient)],
    ARRAY[(SELECT device_id FROM bench_devices WHERE n = :actor)],
    -- the request: actor, operation, scope, key, fingerprint; nothing under an old secret; windows and its envelope
    ARRAY[1], ARRAY[1]::smallint[], ARRAY[gen_random_uuid()], ARRAY[gen_random_uuid()], ARRAY[gen_random_uuid()],
    '{}', '{}', '{}',
    ARRAY[7200], ARRAY[0], ARRAY[0], ARRAY[1], ARRAY[1], ARRAY[false], ARRAY[0],
    ARRAY[gen_random_uuid()], ARRAY[gen_random_uuid()],
    -- the envelope: request, mailbox, mid, version, lifetime, padding class, 1,024 bytes
    ARRAY[1], ARRAY[1], ARRAY[gen_random_uuid()], ARRAY[1], ARRAY[604800], ARRAY[NULL]::smallint[],
    ARRAY[convert_to(repeat(md5('envelope'), 32), 'UTF8')], ARRAY[0]::smallint[], ARRAY[0],
    1::smallint, 1000000, 4294967296, 4096, 172800, true);
