-- name: read_health
-- What an operator watches. An ordinary role may ask all of it; what it may not see (the lag of standbys without
-- pg_read_all_stats) is null and not shown as 0.
SELECT (SELECT count(*) FROM pg_locks l WHERE NOT l.granted AND (l.database IS NULL OR l.database = d.oid))::int8
           AS lock_waits,
       coalesce((SELECT max(extract(epoch FROM clock_timestamp() - l.waitstart)) FROM pg_locks l
                  WHERE NOT l.granted AND (l.database IS NULL OR l.database = d.oid)), 0)::float8
           AS lock_wait_oldest_s,
       coalesce((SELECT max(extract(epoch FROM clock_timestamp() - a.xact_start)) FROM pg_stat_activity a
                  WHERE a.datid = d.oid AND a.pid <> pg_backend_pid()), 0)::float8
           AS transaction_oldest_s,
       (SELECT count(*) FROM pg_stat_replication)::int8
           AS standbys,
       (SELECT max(coalesce(extract(epoch FROM r.replay_lag), 0)) FROM pg_stat_replication r WHERE r.state IS NOT NULL)::float8
           AS replication_lag_s,
       (SELECT max(pg_wal_lsn_diff(pg_current_wal_lsn(), r.replay_lsn)) FROM pg_stat_replication r)::float8
           AS replication_lag_bytes,
       pg_database_size(d.oid)::int8
           AS database_bytes
  FROM pg_database d WHERE d.datname = current_database();
