# What a node image is beside its distribution: packages by name, and what makes a root file system one that Pods run in.
# The contract that an agent holds it against stands in images/README.md.

# Packages of Debian and Ubuntu. Kubernetes, containerd, runc and the CNI plugins are no part of an image: the agent adds them.
node_packages=(systemd-sysv dbus kmod iproute2 iptables nftables conntrack ethtool socat mount util-linux ca-certificates
  e2fsprogs procps)
# What a node has no use for: the host has the network, the time, the disks and the consoles.
node_masked=(apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service
  fstrim.timer getty@tty1.service console-getty.service getty-static.service systemd-remount-fs.service
  systemd-networkd.service systemd-resolved.service systemd-timesyncd.service)

# make_node ROOT SANDBOX: turns a root file system into a node's. SANDBOX is the archive of the sandbox image.
make_node() {
  local root=$1 unit
  install -D -m 0644 "$2" "$root/usr/share/unbounded/sandbox.tar"
  printf '127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nff02::1\tip6-allnodes\nff02::2\tip6-allrouters\n' \
    >"$root/etc/hosts"
  : >"$root/etc/machine-id"
  : >"$root/etc/fstab"
  rm -f "$root/etc/hostname" "$root/etc/resolv.conf" "$root/var/lib/dbus/machine-id"
  rm -rf "$root"/var/lib/systemd/random-seed "$root"/var/log/*.log "$root"/var/log/apt "$root"/var/lib/apt/lists/* \
    "$root"/var/cache/apt/* "$root"/var/cache/debconf/* "$root"/var/cache/ldconfig/* \
    "$root"/usr/share/man/* "$root"/usr/share/locale/* "$root"/usr/share/doc/*
  for unit in "${node_masked[@]}"; do
    ln -sf /dev/null "$root/etc/systemd/system/$unit"
  done
  ln -sf /lib/systemd/system/multi-user.target "$root/etc/systemd/system/default.target"
}
