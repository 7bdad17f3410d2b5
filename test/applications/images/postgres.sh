#!/bin/sh
# Creates the database in the first start, with the password POSTGRES_PASSWORD for POSTGRES_USER.
set -e
: "${POSTGRES_PASSWORD:?is not set}"
user=${POSTGRES_USER:-postgres}
data=$PGDATA/cluster
if [ ! -s "$data/ready" ]; then
	rm -rf "$data"
	echo "$POSTGRES_PASSWORD" >/tmp/password
	initdb -D "$data" -U "$user" --pwfile=/tmp/password --auth=scram-sha-256 --no-locale --encoding=UTF8 --no-sync
	rm /tmp/password
	echo 'host all all all scram-sha-256' >>"$data/pg_hba.conf"
	echo yes >"$data/ready"
fi
exec postgres -D "$data" -c listen_addresses='*' -c unix_socket_directories=/tmp "$@"
