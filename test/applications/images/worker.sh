#!/bin/sh
# Moves votes from redis to the database, one per voter. A vote stays in redis until it is counted.
trap 'exit 0' TERM
export PGPASSWORD=postgres
sql() { psql -q -h db -U postgres -v ON_ERROR_STOP=1 "$@"; }
until sql -c 'CREATE TABLE IF NOT EXISTS votes (voter text PRIMARY KEY, vote text NOT NULL)'; do
	sleep 0.5
done
echo "counting"
while :; do
	vote=$(redis-cli -h redis lindex votes 0) || vote=
	case $vote in
	*' '*)
		echo "INSERT INTO votes VALUES (:'voter', :'vote') ON CONFLICT (voter) DO UPDATE SET vote = excluded.vote" |
			sql -v voter="${vote% *}" -v vote="${vote#* }" && redis-cli -h redis lrem votes 1 "$vote" >/dev/null
		;;
	*) sleep 0.3 ;;
	esac
done
