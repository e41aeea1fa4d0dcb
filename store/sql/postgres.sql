-- name: read_epoch
-- The timeline tells a failover or a point-in-time restore, restore_epoch a restore that stays on its timeline.
-- A restored cluster whose drill set mailboxd.restored takes no writes before `mailboxd admin after-restore`, and a
-- cluster with a foreign system identifier never does.
SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) AS timeline, i.restore_epoch,
       coalesce(current_setting('mailboxd.restored', true), '') IN ('', i.restored_done)
           AND (i.system_identifier IS NULL
                OR i.system_identifier = (SELECT system_identifier FROM pg_control_system())) AS may_write
  FROM instances AS i
