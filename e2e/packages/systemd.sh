#!/usr/bin/env bash
# Boots systemd in a copy of this system that is thrown away, and runs a script there with packages at hand:
# systemd.sh FOLDER-OF-PACKAGES FOLDER-OF-NEWER-ONES SCRIPT. Prints what the script prints.
set -e

# Whatever systemd makes of control groups stays in one of its own, which goes with it.
groups=()
for hierarchy in /sys/fs/cgroup/systemd /sys/fs/cgroup/unified /sys/fs/cgroup; do
  [ -e "$hierarchy/cgroup.procs" ] || continue
  mkdir "$hierarchy/evenkeel-$$" && echo $$ >"$hierarchy/evenkeel-$$/cgroup.procs" && groups+=("$hierarchy")
done
unshare --mount --net --uts --ipc --cgroup bash "$(dirname "$0")/boot.sh" "$@" || failed=$?
for hierarchy in "${groups[@]}"; do
  echo $$ >"$hierarchy/cgroup.procs"
  for i in $(seq 50); do
    find "$hierarchy/evenkeel-$$" -depth -type d -exec rmdir {} + 2>/dev/null && break
    sleep 0.1
  done
done
exit "${failed:-0}"
