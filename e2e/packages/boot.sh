# In namespaces of its own: see systemd.sh.
set -e
old=$1 new=$2 story=$3 root=/mnt/root
# The layers are in memory.
mount -t tmpfs scratch /mnt
mkdir /mnt/upper /mnt/work $root
mount -t overlay scratch -o lowerdir=/,upperdir=/mnt/upper,workdir=/mnt/work $root
mkdir -p $root/story
cp "$old"/*.deb $root/story; mkdir $root/story/new; cp "$new"/*.deb $root/story/new
cp "$story" $root/story/story.sh
mount --rbind /dev $root/dev
mount -t tmpfs scratch $root/run
mkdir $root/run/lock
mount -t sysfs -o ro sysfs $root/sys
if [ "$(stat -f -c %T /sys/fs/cgroup)" = cgroup2fs ]; then
  mount -t cgroup2 none $root/sys/fs/cgroup
else
  mount -t tmpfs scratch $root/sys/fs/cgroup
  mkdir $root/sys/fs/cgroup/unified $root/sys/fs/cgroup/systemd
  mount -t cgroup2 none $root/sys/fs/cgroup/unified
  mount -t cgroup -o none,name=systemd cgroup $root/sys/fs/cgroup/systemd
fi
# This machine may be a container, whose image keeps the package manager from starting services. There they are
# to be started.
rm -f $root/usr/sbin/policy-rc.d
# Nor is there anything of an earlier installation.
chroot $root dpkg --purge evenkeel evenkeel-agent evenkeel-bin >/dev/null 2>&1 || true
rm -rf $root/etc/evenkeel $root/var/lib/evenkeel $root/var/log/evenkeel
# Nobody searches the manual pages; their index takes long.
rm -f $root/var/lib/man-db/auto-update
# What would change this machine is left out.
for unit in systemd-sysctl.service systemd-udevd.service systemd-udev-trigger.service systemd-modules-load.service \
  systemd-random-seed.service tmp.mount systemd-binfmt.service sys-kernel-debug.mount sys-kernel-tracing.mount \
  sys-fs-fuse-connections.mount proc-sys-fs-binfmt_misc.automount dev-hugepages.mount dev-mqueue.mount kmod-static-nodes.service; do
  ln -sf /dev/null $root/etc/systemd/system/$unit
done
cat > $root/etc/systemd/system/story.service <<END
[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
StandardOutput=file:/story/out
StandardError=file:/story/out
ExecStart=/bin/bash /story/story.sh
ExecStopPost=/bin/systemctl exit --force
TimeoutStartSec=600
END
ip link set lo up
timeout -s KILL 660 unshare --pid --fork --kill-child --mount-proc=$root/proc \
  chroot $root env -i container=story PATH=/usr/sbin:/usr/bin:/sbin:/bin /lib/systemd/systemd --system --unit=story.service </dev/null >/dev/null 2>&1 || true
cat $root/story/out
