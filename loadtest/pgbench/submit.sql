-- The denominator of `cycle`: one 1 KB envelope per transaction, no echo, through the submit function that the store
-- calls for every batch in which nothing repeats. Needs the table bench_devices(n, device_id) and, as the store's own
-- connections have them, pinned plans. Ids come from pgbench's own random numbers: the server's would cost it a tenth.
-- Run with: pgbench -n -M prepared -c 32 -j 2 -D devices=200 -f submit.sql
\set actor random(1, :devices)
\set recipient random(1, :devices)
\set id random(1, 9000000000000000000)
SELECT now_us FROM submit_plain_v1(
    ARRAY[(SELECT device_id FROM bench_devices WHERE n = :recipient)], ARRAY[1], ARRAY[1024], '{}',
    ARRAY[(SELECT device_id FROM bench_devices WHERE n = :actor)],
    -- the request: its scope, actor, operation by cmid, key, fingerprint, cmid; one envelope, one session, no echo
    ARRAY[md5('scope' || :actor)::uuid], ARRAY[1], '{}', ARRAY[md5('key' || :id)::uuid],
    ARRAY[md5('fingerprint' || :id)::uuid], ARRAY[md5('cmid' || :id)::uuid], '{}', '{}', '{}', '{}', '{}', '{}',
    -- the envelope: its request, mailbox, rank there, mid, version, lifetime, no padding class, 1,024 bytes
    '{}', ARRAY[1], ARRAY[1], ARRAY[md5('mid' || :id)::uuid], ARRAY[1], ARRAY[604800], '{}',
    ARRAY[convert_to(repeat(md5('envelope'), 32), 'UTF8')],
    1::smallint, 7200, 86400, 1000000, 4294967296, 4096, 172800, true);
