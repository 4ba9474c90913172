#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Who is charged, by cgroups of version 2 wherever there is user-mode Linux
# (Debian: user-mode-linux): a kernel that is a program, and has this machine's
# files as they are, read-only. Once in the root group, once in one that has
# processes, as a session of systemd's lies in its slice.
# Arguments: client-charges, shardkeepd.
set -u
"$(dirname -- "$0")/../support/need" linux.uml timeout || exit
charges=$(realpath "$1")
agent=$(realpath "$2")
case "$charges:$agent" in
/tmp/* | *:/tmp/*)
	echo "what lies in /tmp is not seen in there: not tested"
	exit 77
	;;
esac
dir=$(mktemp -d /tmp/shardkeep-uml-XXXXXX)
trap 'rm -rf "$dir"' EXIT
cat >"$dir/init" <<END
#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc none /proc
mount -t sysfs none /sys
mount -t tmpfs none /tmp
mount -t cgroup2 none /sys/fs/cgroup
"$charges" "$agent"; echo "root group: status \$?"
cd /sys/fs/cgroup && mkdir slice slice/session
echo +memory >cgroup.subtree_control
echo +memory >slice/cgroup.subtree_control
echo \$\$ >slice/session/cgroup.procs
"$charges" "$agent"; echo "session: status \$?"
echo o >/proc/sysrq-trigger
sleep 60
END
chmod +x "$dir/init"
# Its files are of TMPDIR, and what ends it also ends what it began.
TMPDIR=$dir timeout -k 5 200 linux.uml root=/dev/root rootfstype=hostfs \
	rootflags=/ ro "init=$dir/init" mem=2G con=null con0=null,fd:1 \
	</dev/null >"$dir/log" 2>&1
grep -q "as init process" "$dir/log" || {
	tail -n 3 "$dir/log"
	echo "user-mode Linux does not start here: not tested"
	exit 77
}
for where in "root group" session; do
	grep -q "^$where: status 0" "$dir/log" || {
		tail -n 20 "$dir/log"
		exit 1
	}
done
sed -n '/^agent/p' "$dir/log"
