#!/bin/sh
# ?voter=NAME&vote=a votes: the vote waits in redis until the worker counts it.
printf 'Content-Type: text/plain\r\n\r\n'
voter=${QUERY_STRING#voter=}
case $QUERY_STRING in
voter=*\&vote=*)
	redis-cli -h redis rpush votes "${voter%%&*} ${QUERY_STRING##*vote=}" >/dev/null && echo "voted ${QUERY_STRING##*vote=}"
	;;
*)
	echo "${OPTION_A:-Cats} or ${OPTION_B:-Dogs}? Asked by $(hostname)"
	;;
esac 2>&1
