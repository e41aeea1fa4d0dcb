-- name: read_server
SELECT current_setting('server_version_num')::integer,
       current_setting('server_version'),
       (extract(epoch FROM clock_timestamp()) * 1000)::bigint,
       current_setting('fsync')::boolean,
       current_setting('full_page_writes')::boolean,
       current_setting('synchronous_commit'),
       pg_is_in_recovery(),
       (SELECT rolsuper FROM pg_roles WHERE rolname = current_user),
       current_setting('max_connections')::integer;
