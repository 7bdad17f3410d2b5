#!/bin/sh
# Starts huskd for one CI job, runs the job's pods and tests them. Ends with the code of the command
# that failed, after printing what is wrong with the pods. Run it as root: pods.sh ARCHIVE MANIFEST
set -eu

root=${HUSK_ROOT:-/var/lib/husk}
mkdir -p -m 700 "$root"
if [ "$(stat -f -c %T "$root")" = overlayfs ]; then
	echo "pods.sh: $root is on an overlay, where containers can't have theirs: set HUSK_ROOT to a directory of a volume" >&2
	exit 1
fi

# The topmost cgroup of a container can't limit pods while it has processes of its own (cgroup v2).
# That of a machine can, and has no cgroup.type.
cgroup=/sys/fs/cgroup
if [ -e $cgroup/cgroup.type ]; then
	mkdir -p $cgroup/job
	for pid in $(cat $cgroup/cgroup.procs); do
		echo "$pid" 2>/dev/null >$cgroup/job/cgroup.procs || true # it may have ended
	done
fi

export HUSK_SOCKET=unix:///run/husk/husk.sock
huskd --root "$root" --cni-conf-dir= 2>huskd.log &
huskd=$!

finish() {
	code=$?
	trap - EXIT
	if [ $code -ne 0 ]; then
		tail -n 50 huskd.log
		husk ps -a || exit $code
		for pod in $(husk ps -aq); do
			husk describe "$pod"
			husk logs --all-containers -n 50 "$pod" || true
		done
	fi >&2
	husk rm -f "$2" >/dev/null || true
	husk shutdown >/dev/null && wait $huskd
	exit $code
}
trap 'finish "$@"' EXIT
trap 'exit 143' TERM INT

until husk version >/dev/null 2>&1; do
	kill -0 $huskd 2>/dev/null
	sleep 0.1
done
husk image load "$1"
husk run --wait --timeout 2m "$2"

# The test: replace it by yours.
address=$(husk inspect web -o 'jsonpath={.IPs[0]}')
curl -fsS --retry 5 --retry-connrefused "http://$address/"
husk run --rm --name client localhost/web:1 wget -q -O - "http://$address/"
