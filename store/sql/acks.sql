-- name: ack_batch_v1
SELECT ack_batch_v1($1, $2, $3)
