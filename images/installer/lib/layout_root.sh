# What a layout puts on its file systems: the archive of the image's root file system, the profile's files, cloud-init's seed
# and the agent, and last of all a loader on each EFI system partition.

LOADER=usr/lib/unbounded/loader # of the archive: esp/ is what goes on each of these partitions, grub.cfg is the menu

# root_name: the file of a signed system, below esp/, that names its root file system: such a system has no GRUB.
root_name() {
    printf '%s.extra.d/root.cred' "$(first_started)"
}

# is_signed: whether the archive's loader is such a system.
is_signed() {
    [ -f "$T/root/$LOADER/esp/$(root_name)" ]
}

# mount_filesystems: below $T/root; what the profile mounts them with is for the installed system.
mount_filesystems() {
    mkdir -p "$T/root"
    while read -r mount_device mount_path _ <&4; do
        mkdir -p "$T/root$mount_path" &&
            run mount -t "$(filesystem_of "$mount_device" type)" "$(made "$mount_device")" "$T/root$mount_path" || return 1
    done 4<<MOUNTS
$(of mount)
MOUNTS
}

# filesystem_of DEVICE type|uuid
filesystem_of() {
    of filesystem | while read -r of_type of_device of_uuid _; do
        [ "$of_device" != "$1" ] || case $2 in type) echo "$of_type" ;; uuid) echo "$of_uuid" ;; esac
    done
}

# mounted_at PATH: the UUID of the file system there; nothing where none is mounted.
mounted_at() {
    of mount | while read -r at_device at_path _; do
        [ "$at_path" != "$1" ] || filesystem_of "$at_device" uuid
    done
}

# unpack_root: the archive, as it comes. Nothing starts before its digest is right.
unpack_root() {
    rm -f "$T/sums"
    mkfifo "$T/sums"
    sha256sum <"$T/sums" >"$T/sum" &
    root_summing=$!
    stream "$SERVE_URL/$ROOTFS" 3>"$T/sums" | unpack | {
        tar -x -p --numeric-owner --xattrs --xattrs-include='*' -C "$T/root" 2>"$T/tar" ||
            trouble "$ROOTFS could not be unpacked: $(head -n 1 "$T/tar")"
        cat >/dev/null # what follows the archive's end is of its digest too
    }
    wait $root_summing
    [ ! -s "$T/trouble" ] || return 1
    read -r root_sum _ <"$T/sum"
    [ "$root_sum" = "$SHA256" ] || trouble "the SHA-256 of $ROOTFS is $root_sum and not $SHA256" || return 1
    root_settings=grub.cfg
    ! is_signed || root_settings=esp/$(root_name)
    for root_needed in "esp/$(first_started)" "$root_settings"; do
        [ -f "$T/root/$LOADER/$root_needed" ] || trouble "the image's $ROOTFS has no $LOADER/$root_needed" || return 1
    done
}

# write_files: the profile's, GRUB's menu, and nothing that lets / grow over what the profile leaves free.
write_files() {
    while read -r file_path file_mode file_content <&4; do
        [ -n "$file_path" ] || continue
        file_place=$T/root$file_path
        mkdir -p "${file_place%/*}" && rm -f "$file_place" &&
            printf '%s' "$file_content" | base64 -d >"$file_place" 2>/dev/null && chmod "$file_mode" "$file_place" ||
            trouble "$file_path could not be written" || return 1
    done 4<<FILES
$(of file)
FILES
    : >"$T/root/etc/growroot-disabled" && { is_signed || write_menu; } || trouble "GRUB's menu could not be written"
}

write_menu() {
    mkdir -p "$T/root/boot/grub" && for_this_layout "$T/root/$LOADER/grub.cfg" >"$T/root/boot/grub/grub.cfg"
}

# for_this_layout FILE: a file of the loader with the identities of the file systems that / and /boot are on.
for_this_layout() {
    grub_root=$(mounted_at /)
    grub_boot=$(mounted_at /boot)
    grub_path=
    [ -n "$grub_boot" ] || { grub_boot=$grub_root && grub_path=/boot; }
    sed "s/ROOT_UUID/$grub_root/; s/BOOT_UUID/$grub_boot/; s|BOOT_PATH|$grub_path|; s| PARAMETERS|${layout_words:+ $layout_words}|" "$1"
}

plant_system() {
    [ -d "$T/root/etc/cloud" ] || trouble "the image's $ROOTFS has no cloud-init (no /etc/cloud)" || return 1
    plant_in "$T/root" && plant_agent "$T/root" || trouble "cloud-init's files and the agent could not be written"
}

# run_script pre|post: the profile's own, if it has one: pre in the installer before anything, post in the installed system.
run_script() {
    script_text=$(of "script $1")
    [ -n "$script_text" ] || return 0
    report Writing "" "the profile's script ($1)"
    printf '%s' "$script_text" | base64 -d >"$T/script" 2>/dev/null
    if [ "$1" = pre ]; then
        run sh "$T/script"
        return
    fi
    mkdir -p "$T/root/run" && cp "$T/script" "$T/root/run/unbounded-script" || trouble "the profile's script could not be written" || return 1
    for script_dir in proc sys dev; do
        mkdir -p "$T/root/$script_dir" && run mount --bind "/$script_dir" "$T/root/$script_dir" || return 1
    done
    run chroot "$T/root" /bin/sh /run/unbounded-script
    script_code=$?
    rm -f "$T/root/run/unbounded-script"
    for script_dir in dev sys proc; do umount "$T/root/$script_dir"; done
    return $script_code
}

# first_started: the loader that firmware starts from an EFI system partition, by its path there.
first_started() (
    set +f
    for started_file in "$T/root/$LOADER/esp/EFI/BOOT"/BOOT*.EFI; do
        echo "EFI/BOOT/${started_file##*/}"
    done
)

# put_loaders: a disk starts by what firmware finds on its EFI system partition, and that is written last of all.
put_loaders() {
    sync
    for loader_esp in $(of esp); do
        mount_esp "$loader_esp" || return 1
        loader_from=$T/root/$LOADER/esp
        loader_file=$(first_started)
        loader_settings=EFI/debian/grub.cfg
        ! is_signed || loader_settings=$(root_name)
        cp -r "$loader_from/." "$loader_place/" && rm "$loader_place/$loader_file" &&
            for_this_layout "$loader_from/$loader_settings" >"$loader_place/$loader_settings" && sync &&
            cp "$loader_from/$loader_file" "$loader_place/$loader_file" && sync ||
            trouble "the loader could not be written to $loader_esp" || return 1
        leave_esp
    done
}

# mount_esp DEVICE: where it is mounted in loader_place.
mount_esp() {
    loader_place=$T/root$(of mount | while read -r esp_device esp_path _; do [ "$esp_device" != "$1" ] || echo "$esp_path"; done)
    [ "$loader_place" = "$T/root" ] || return 0
    loader_place=$T/esp
    mkdir -p "$T/esp" && run mount -t vfat "$(made "$1")" "$T/esp"
}

leave_esp() {
    ! grep -q " $T/esp " /proc/mounts || umount "$T/esp"
}

# take_loaders_away: after a failure, from all of these partitions that can be mounted.
take_loaders_away() {
    leave_esp
    for loader_esp in $(of esp); do
        mount_esp "$loader_esp" 2>/dev/null || continue
        rm -f "$loader_place/$(first_started)"
        leave_esp
    done
    sync
}

# leave_root: unmounts all of it, from the last mount on.
leave_root() {
    leave_esp
    for leave_try in 1 2 3; do
        for leave_path in $(awk -v root="$T/root" '$2 == root || index($2, root "/") == 1 { print $2 }' /proc/mounts | sed '1!G;h;$!d'); do
            umount "$leave_path" 2>/dev/null
        done
        grep -q " $T/root[ /]" /proc/mounts || return 0
        sleep "${PAUSE_S:-1}"
    done
    trouble "what was written cannot be unmounted"
}
