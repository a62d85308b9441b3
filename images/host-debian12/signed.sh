# The programs that db.key of a site signs, where build has --site-keys: what the network boots, and what the disk starts.
# Shim would refuse the first, and it starts any kernel of Debian with any command line, so neither has it. Read by build.

stub=/usr/lib/systemd/boot/efi/linux$efi.efi.stub

# signed_installer PARTS VERSION FOLDER: installer.efi, whose initrd has the public key of the site's statements and, with a
# disk image, the digests of what is in FOLDER for the disk; and the templates that it takes its boot from.
signed_installer() {
  local parts=$1 folder=$3 key=$1/build/key file
  mkdir -p "$key/etc/unbounded"
  install -m 0644 "$keys/statement.pub" "$key/etc/unbounded/"
  if [ -n "$disk" ]; then
    for file in "$folder"/*.sha256; do
      printf '%s  %s\n' "$(head -c 64 "$file")" "$(basename "$file" .sha256)"
    done >"$key/etc/unbounded/files.sha256"
  fi
  find "$key" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
  pack_cpio "$parts" "$key" | zstd -q >>"$parts/build/installer"
  signed_program "$parts" "/boot/vmlinuz-$2" /build/installer \
    "panic=30 printk.devkmsg=on console=tty0 console=$serial,115200n8" "$folder/installer.efi"
  cp -r "$here/netboot/cloud-init" "$here/signed/." "$folder/"
  case $arch in
    amd64) echo "dhcpBootImageName: installer.efi" ;;
    arm64) printf 'bootFiles:\n  arm64: installer.efi\n' ;;
  esac >>"$folder/metadata.yaml"
}

# signed_system PARTS ROOT FILE: the kernel and the initrd of a root file system below PARTS, with the command line of its
# GRUB.
signed_system() {
  local root=${2#"$1"}
  signed_program "$1" "$root/boot/$(basename "$(readlink "$2/boot/vmlinuz")")" "$root/boot/$(basename "$(readlink "$2/boot/initrd.img")")" \
    "root=UUID=$root_uuid ro console=tty0 console=$serial,115200n8" "$3"
}

# signed_program PARTS KERNEL INITRD CMDLINE FILE: KERNEL and INITRD are paths in PARTS.
signed_program() {
  local made=$1/build/signing
  mkdir -m 0700 "$made" "$made/bin"
  chroot "$1" /bin/busybox --install -s /build/signing/bin
  cp "$here/../common/uki" "$keys/db.key" "$keys/db.crt" "$made/"
  chroot "$1" /bin/busybox env PATH=/usr/bin:/build/signing/bin sh /build/signing/uki \
    "$stub" "$2" "$3" "$4" /build/signing/db.key /build/signing/db.crt /build/signing/out >"$made/said" 2>&1 ||
    { cat "$made/said" >&2 && give_up "${5##*/} could not be made"; }
  install -m 0644 "$made/out" "$5"
  rm -rf "$made"
}
