-- The denominator of `cycle`: one 1 KB envelope per transaction, no echo, in the form of submit that the store calls.
-- Needs the table bench_devices(n, device_id). Run with: pgbench -n -M prepared -c 32 -j 2 -D devices=200 -f submit.sql
\set actor random(1, :devices)
\set recipient random(1, :devices)
SELECT r_code FROM submit_batch_v1(
    ARRAY[(SELECT device_id FROM bench_devices WHERE n = :recipient)],
    ARRAY[(SELECT device_id FROM bench_devices WHERE n = :actor)],
    -- the request: actor, operation, scope, key, fingerprint; nothing under an old secret; repeats nothing; its envelope
    ARRAY[1], ARRAY[1]::smallint[], ARRAY[gen_random_uuid()], ARRAY[gen_random_uuid()], ARRAY[gen_random_uuid()],
    '{}', '{}', '{}', '{}', '{}', ARRAY[1], ARRAY[1], '{}', '{}', '{}', ARRAY[gen_random_uuid()],
    -- the envelope: request, mailbox, mid, version, lifetime, no padding class, 1,024 bytes, not refused, no repeat
    ARRAY[1], ARRAY[1], ARRAY[gen_random_uuid()], ARRAY[1], ARRAY[604800], '{}',
    ARRAY[convert_to(repeat(md5('envelope'), 32), 'UTF8')], '{}', '{}',
    1::smallint, 7200, 86400, 1000000, 4294967296, 4096, 172800, true, false);
