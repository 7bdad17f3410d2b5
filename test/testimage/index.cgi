#!/bin/sh
# Answers with this host's name and addresses. Everything here is built into
# the shell: it starts no other process.
read -r answer </proc/sys/kernel/hostname
while read -r mark word rest; do
	case "$mark $word $rest" in
	'|-- '*) address=$word ;;
	'/32 host LOCAL')
		# Addresses appear once in each of two tables.
		case " $answer 127.0.0.1 " in
		*" $address "*) ;;
		*) answer="$answer $address" ;;
		esac
		;;
	esac
done </proc/net/fib_trie
[ ! -e /proc/net/if_inet6 ] || while read -r hex index length scope flags name; do
	if [ "$scope" = 00 ]; then
		address=
		while [ -n "$hex" ]; do
			rest=${hex#????}
			address=$address:${hex%"$rest"}
			hex=$rest
		done
		answer="$answer ${address#:}"
	fi
done </proc/net/if_inet6
printf 'Content-Type: text/plain\r\n\r\n%s\n' "$answer"
