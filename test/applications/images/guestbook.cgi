#!/bin/sh
# The guestbook: ?cmd=set&value=TEXT adds an entry at the leader, ?cmd=get lists those of a follower.
printf 'Content-Type: text/plain\r\n\r\n'
case $QUERY_STRING in
cmd=set*)
	redis-cli -h redis-leader rpush messages "$(httpd -d "${QUERY_STRING#*value=}")" >/dev/null && echo Updated
	;;
cmd=get*)
	redis-cli -h redis-follower lrange messages 0 -1
	;;
*)
	echo "Guestbook ${VERSION:-1} at $(hostname)"
	;;
esac 2>&1
