# What host-debian12 is installed with. A disk: an EFI system partition and a root file system that grows to the disk's end
# at its first start. And the root file system alone, as an archive for layouts. Nothing is mounted: file systems are made
# from folders. Read by build.

root_uuid=6e1f0d2c-3b0a-4d52-9c11-5b1d6d0a0012
esp_id=0DEB0012

# build_disks PARTS WORK FOLDER: disk.img.zst, unless $large is empty disk.img.4k.zst, and rootfs.tar.zst; each with its .sha256.
# rootfs.tar.zst.loader has the bytes that a layout needs on each of its EFI system partitions.
build_disks() {
  local parts=$1 root=$1/build/root
  make_root "$parts" "$2" "$root"
  say "file systems"
  make_root_fs "$parts" "$root" "$parts/build/root.img"
  build_disk "$parts" 512 "$3/disk.img.zst"
  [ -z "$large" ] || build_disk "$parts" 4096 "$3/disk.img.4k.zst"
  rm "$parts/build/root.img"
  say "archive of the root file system"
  add_loader "$parts" "$root/usr/lib/unbounded/loader"
  pack_root "$root" "$3/rootfs.tar.zst"
  with_digest "$3/rootfs.tar.zst"
  find "$root/usr/lib/unbounded/loader/esp" -type f -printf '%s\n' | awk '{ all += $1 } END { print all }' >"$3/rootfs.tar.zst.loader"
  rm -rf "$root"
}

# build_disk PARTS SECTOR FILE
build_disk() {
  make_esp "$1" "$2" "$1/build/esp.img"
  "$here/../common/disk-image" --arch "$arch" --sector "$2" "$1/build/disk.img" "$1/build/esp.img" "$1/build/root.img"
  say "packing $(du -sm "$1/build/disk.img" | cut -f 1) MB for sectors of $2 bytes"
  zstd -q "-$level" -T0 -f "$1/build/disk.img" -o "$3"
  rm "$1/build/disk.img" "$1/build/esp.img"
  with_digest "$3"
}

# with_digest FILE
with_digest() {
  chmod 0644 "$1"
  (cd "${1%/*}" && sha256sum "${1##*/}" >"${1##*/}.sha256")
}

# add_loader PARTS FOLDER: what a layout's installer puts on each EFI system partition, and GRUB's menu, with places for the
# identities of the file systems that it makes. A signed system has one command line for all machines: root.cred names the
# root file system, and scripts/init-top/unbounded-root of its initrd reads it.
add_loader() {
  if [ -n "$keys" ]; then
    mkdir -p "$2/esp/EFI/BOOT/BOOT${efi^^}.EFI.extra.d"
    install -m 0644 "$1/build/system.efi" "$2/esp/EFI/BOOT/BOOT${efi^^}.EFI"
    echo "UUID=ROOT_UUID" >"$2/esp/EFI/BOOT/BOOT${efi^^}.EFI.extra.d/root.cred"
    return
  fi
  mkdir -p "$2/esp/EFI/BOOT" "$2/esp/EFI/debian"
  install -m 0644 "$1/usr/lib/shim/shim$efi.efi.signed" "$2/esp/EFI/BOOT/BOOT${efi^^}.EFI"
  install -m 0644 "$1/usr/lib/grub/$grub-signed/grub$efi.efi.signed" "$2/esp/EFI/BOOT/grub$efi.efi"
  install -m 0644 "$here/esp-grub.cfg" "$2/esp/EFI/debian/grub.cfg"
  install -m 0644 "$here/grub.cfg" "$2/grub.cfg"
  for_serial "$2/grub.cfg"
}

# pack_root ROOT FILE: equal files make an equal archive: names are sorted, and no file is newer than SOURCE_DATE_EPOCH.
pack_root() {
  tar -C "$1" --create --sort=name --mtime="@$SOURCE_DATE_EPOCH" --clamp-mtime --numeric-owner --xattrs --xattrs-include='*' \
    --format=posix --pax-option='exthdr.name=%d/PaxHeaders/%f,delete=atime,delete=ctime' . | zstd -q "-$level" -T0 >"$2"
}

# for_this_disk FILE: a file of GRUB with the identities of this disk's file systems.
for_this_disk() {
  sed "s/ROOT_UUID/$root_uuid/; s/BOOT_UUID/$root_uuid/; s|BOOT_PATH|/boot|; s/ PARAMETERS//" "$1"
}

# make_root PARTS WORK ROOT: Debian with what stands in root/; the installer adds cloud-init's data and the agent.
make_root() {
  local packages=systemd-sysv,udev,dbus,kmod,initramfs-tools,$kernel,cloud-init,netplan.io,cloud-guest-utils,e2fsprogs,fdisk
  packages+=,mdadm,lvm2 # what a root file system on RAID or LVM needs
  packages+=,systemd-resolved,iproute2,nftables,systemd-container,ca-certificates,zstd # what the agent needs of its host
  [ -n "$small" ] || packages+=,openssh-server,sudo,curl,less,procps,iputils-ping,apparmor
  # Its initrd is made once, at the end.
  # What nobody reads on a host is left out; mmdebstrap's own way to do so takes longer than all else.
  INITRD=No run_mmdebstrap --variant=apt --arch="$arch" --include="$packages" \
    --essential-hook='printf "path-exclude=/usr/share/%s/*\n" man locale doc >"$1/etc/dpkg/dpkg.cfg.d/unread"' \
    --essential-hook='echo "link_in_boot = yes" >"$1/etc/kernel-img.conf"' \
    --customize-hook='rm -rf "$1"/etc/dpkg/dpkg.cfg.d/unread "$1"/usr/share/man/* "$1"/usr/share/locale/* "$1"/usr/share/doc/*' \
    "$suite" "$3" "$2/apt/sources.list"
  cp -r "$here/root/." "$3/"
  printf 'UUID=%s / ext4 errors=remount-ro 0 1\n' "$root_uuid" >"$3/etc/fstab"
  mkdir -p "$3/boot/grub"
  for_this_disk "$here/grub.cfg" >"$3/boot/grub/grub.cfg"
  for_serial "$3/boot/grub/grub.cfg"
  printf 'localhost\n' >"$3/etc/hostname"
  : >"$3/etc/machine-id"
  rm -rf "$3"/etc/ssh/ssh_host_* "$3"/var/lib/systemd/random-seed "$3"/var/log/*.log "$3"/var/lib/apt/lists/* "$3"/var/cache/apt/*
  rm -rf "$3/usr/share/python3/debpython/__pycache__" # of no package, and other bytes in each build
  ln -sf ../run/systemd/resolve/stub-resolv.conf "$3/etc/resolv.conf"
  chroot "$3" systemctl --quiet enable systemd-networkd systemd-resolved lvm-degraded.timer
  if [ -n "$small" ]; then
    sed -i 's/^MODULES=.*/MODULES=list/; s/^# COMPRESSLEVEL=.*/COMPRESSLEVEL=1/' "$3/etc/initramfs-tools/initramfs.conf"
    slim "$3"
    printf '%s\n' virtio_pci virtio_blk virtio_scsi sd_mod ahci nvme ext4 xfs >>"$3/etc/initramfs-tools/modules"
  fi
  chroot "$3" update-initramfs -c -k all >/dev/null || give_up "update-initramfs failed"
  (cd "$3/boot" && ln -sf initrd.img-* initrd.img) # the kernel came before its initrd, and so without this link
}

# slim ROOT: what a virtual machine of a test does not miss.
slim() {
  (cd "$1"/lib/modules/*/kernel && rm -rf drivers/{net/ethernet,net/wireless,infiniband,media,comedi,gpu,target,nvme/target,usb,hid,iio} \
    sound fs/{btrfs,ocfs2,gfs2,ceph,nfs,nfsd,smb,cifs,f2fs,jfs,reiserfs,ubifs,udf,dlm,afs,coda,ntfs,ntfs3,orangefs})
  rm -rf "$1"/usr/lib/udev/hwdb.{d,bin} "$1"/lib/udev/hwdb.{d,bin} "$1"/usr/share/i18n/charmaps "$1"/usr/lib/*-linux-gnu/gconv
  chroot "$1" depmod "$(basename "$(readlink -f "$1/boot/vmlinuz")" | sed s/vmlinuz-//)"
}

# make_esp PARTS SECTOR IMAGE: shim and GRUB where firmware looks without being told (UEFI 2.10 section 3.5). FAT32 has at
# least 65,525 clusters, which have at least one sector each.
make_esp() {
  local parts=$1 esp=$3 inside=/build/${3##*/} put mib=36
  if [ -n "$keys" ]; then
    signed_system "$parts" "$parts/build/root" "$parts/build/system.efi"
    mib=$(($(du -sm "$parts/build/system.efi" | cut -f 1) + 36))
  fi
  [ "$2" = 512 ] || [ $mib -gt 264 ] || mib=264
  truncate -s "${mib}M" "$esp"
  for_this_disk "$here/esp-grub.cfg" >"$parts/build/esp-grub.cfg"
  chroot "$parts" /sbin/mkfs.vfat --invariant -F 32 -S "$2" -s 1 -i "$esp_id" -n ESP "$inside" >/dev/null
  put="MTOOLS_SKIP_CHECK=1 chroot $parts /usr/bin"
  env $put/mmd -i "$inside" ::/EFI ::/EFI/BOOT ::/EFI/debian
  if [ -n "$keys" ]; then
    env $put/mcopy -i "$inside" /build/system.efi ::/EFI/BOOT/BOOT${efi^^}.EFI
    return
  fi
  env $put/mcopy -i "$inside" /usr/lib/shim/shim$efi.efi.signed ::/EFI/BOOT/BOOT${efi^^}.EFI
  env $put/mcopy -i "$inside" /usr/lib/grub/$grub-signed/grub$efi.efi.signed ::/EFI/BOOT/grub$efi.efi
  env $put/mcopy -i "$inside" /build/esp-grub.cfg ::/EFI/debian/grub.cfg
}

# make_root_fs PARTS ROOT IMAGE: blocks that disks of both sectors can read, and features that the GRUB of this suite reads,
# whatever mke2fs would choose. No time in it is that of the build: mke2fs takes those of an inode's last change, and of the
# last read, from ROOT, where no command sets the first.
make_root_fs() {
  local size failed
  find "$2" -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
  size=$(($(du -sm "$2" | cut -f 1) * 106 / 100 + 64))
  truncate -s "${size}M" "$3"
  E2FSPROGS_FAKE_TIME=$SOURCE_DATE_EPOCH chroot "$1" /sbin/mke2fs -q -t ext4 -b 4096 -L root -U "$root_uuid" -m 1 \
    -O none,has_journal,ext_attr,dir_index,filetype,extent,64bit,flex_bg,sparse_super,large_file,huge_file,dir_nlink,extra_isize,metadata_csum,resize_inode \
    -E "hash_seed=$root_uuid,lazy_itable_init=0" -J size=16 -d "/build/${2##*/}" "/build/${3##*/}" 2>&1 | { grep -v "mtab file" || true; } || give_up "mke2fs failed"
  (cd "$2" && find . -printf "set_inode_field \"/%P\" atime @$SOURCE_DATE_EPOCH\nset_inode_field \"/%P\" ctime @$SOURCE_DATE_EPOCH\n") >"$1/build/times"
  failed=$(E2FSPROGS_FAKE_TIME=$SOURCE_DATE_EPOCH chroot "$1" /sbin/debugfs -w -f /build/times "/build/${3##*/}" 2>&1 >"$1/build/said" | sed 1d) && # its name
    [ -z "$failed" ] || give_up "debugfs failed: ${failed%%$'\n'*}"
  rm "$1/build/times" "$1/build/said"
}
