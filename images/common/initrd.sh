# Packs the installer's initrd from unpacked Debian packages: busybox, udev, blkid, zstd, openssl, dropbear, tcpdump, tools of
# layouts, kernel modules. Programs of the packages run in a chroot of them, so that this system's own libraries do not matter.

installer=$(cd "$(dirname "${BASH_SOURCE[0]}")/../installer" && pwd)
udev_rules=(50-udev-default 50-firmware 60-block 60-persistent-storage 80-drivers)
programs=(bin/busybox bin/nc.openbsd bin/udevadm lib/udev/ata_id lib/udev/scsi_id sbin/blkid usr/bin/zstd
  sbin/hdparm usr/sbin/nvme usr/bin/tcpdump usr/bin/openssl usr/bin/dropbearkey usr/sbin/dropbear bin/tar usr/bin/addpart sbin/sfdisk sbin/mdadm sbin/lvm sbin/dmsetup sbin/mke2fs sbin/mkfs.xfs sbin/mkfs.vfat sbin/mkswap)
# No udev rule of mdadm or LVM: in the installer nothing is assembled that is not made there.
network_modules=(bonding 8021q)
checksum_modules=(crc32c_generic) # of ext4, which names it by a cipher and not as a module; the kernel of clouds has it built in
layout_modules=(raid0 raid1 raid10 dm-mod dm-raid dm-mirror ext4 xfs vfat nls_cp437 nls_ascii)

# pack_initrd PARTS KERNEL_VERSION FILE MODULE...: MODULE is the name of a module or a folder below kernel/.
pack_initrd() {
  local parts=$1 version=$2 file=$3 tree=$1/build/initrd
  shift 3
  rm -rf "$tree"
  mkdir -p "$tree"/{bin,sbin,usr/bin,usr/sbin,etc,proc,sys,dev,run,tmp,root,lib/unbounded,lib/udev/rules.d,lib/systemd,lib64}
  cp -r "$installer"/lib/. "$tree/lib/unbounded/"
  install -m 0755 "$installer/init" "$tree/init"
  copy_programs "$parts" "$tree"
  cp "$parts/etc/mke2fs.conf" "$tree/etc/" # without it mke2fs makes what this suite's GRUB does not read
  chroot "$parts" /bin/busybox --list-full | while read -r applet; do
    [ -e "$tree/$applet" ] || ln -s /bin/busybox "$tree/$applet"
  done
  ln -s /bin/udevadm "$tree/lib/systemd/systemd-udevd"
  for rule in "${udev_rules[@]}"; do
    cp "$parts/lib/udev/rules.d/$rule.rules" "$tree/lib/udev/rules.d/"
  done
  printf 'root:x:0:0:root:/:/bin/false\n' >"$tree/etc/passwd"
  local id=0
  for group in root tty dialout kmem input video audio render sgx lp disk cdrom tape kvm; do
    echo "$group:x:$id:" && id=$((id + 1))
  done >"$tree/etc/group"
  copy_modules "$parts" "$version" "$tree" "$@" "${network_modules[@]}" "${checksum_modules[@]}" "${layout_modules[@]}"
  find "$tree" -exec touch -h -d "@${SOURCE_DATE_EPOCH:-0}" {} +
  pack_cpio "$parts" "$tree" | zstd -q -15 -T0 >"$file"
}

# pack_cpio PARTS FOLDER: the files of a folder below PARTS, as an initrd wants them, without the numbers of their inodes and
# of their disk.
pack_cpio() {
  (cd "$2" && find . | LC_ALL=C sort) |
    chroot "$1" /bin/busybox sh -c 'cd "$0" && exec /bin/cpio -o -H newc --reproducible --quiet' "${2#"$1"}"
}

# copy_programs PARTS TREE: with the libraries that they load.
copy_programs() {
  local library loader
  for loader in lib64/ld-linux-x86-64.so.2 lib/ld-linux-aarch64.so.1; do
    [ ! -e "$1/$loader" ] || break
  done
  for program in "${programs[@]}"; do
    mkdir -p "$2/$(dirname "$program")"
    cp -L "$1/$program" "$2/$program"
    chroot "$1" "/$loader" --list "/$program" | grep -o '/[^ ]*\.so[^ ]*'
  done | sort -u | while read -r library; do
    mkdir -p "$2$(dirname "$library")"
    cp -L "$1$library" "$2$library"
  done
}

# copy_modules PARTS VERSION TREE MODULE...: with the modules that they depend on; what a kernel has built in is left out.
copy_modules() {
  local parts=$1 version=$2 tree=$3 folder=lib/modules/$2
  shift 3
  chroot "$parts" /sbin/depmod "$version"
  for wanted in "$@"; do
    if [ -d "$parts/$folder/kernel/$wanted" ]; then
      (cd "$parts/$folder" && find "kernel/$wanted" -name '*.ko*')
    else
      grep -oE "^[^:]*/$wanted\.ko[^:]*" "$parts/$folder/modules.dep" || true
    fi
  done | while read -r module; do
    grep -F "$module:" "$parts/$folder/modules.dep" | tr -d : | tr ' ' '\n'
  done | sort -u | while read -r module; do
    [ -n "$module" ] || continue
    mkdir -p "$tree/$folder/$(dirname "$module")"
    cp "$parts/$folder/$module" "$tree/$folder/$module"
  done
  cp "$parts/$folder"/modules.{order,builtin,builtin.modinfo} "$tree/$folder/"
  chroot "$parts" /sbin/depmod -b /build/initrd "$version"
}
