# A layout of several disks, where the Machine has a profile: metalman compiles it from the profile and the report of the
# hardware, and this checks all of it before it writes anything. What a layout does to disks is in layout_disks.sh, what it
# puts on them in layout_root.sh.
#
# Lines of words, in the order of the work:
#
#   unbounded-layout 1
#   disk ID PATH STATE                    as reported: checked again before the first write
#   partition DISK NUMBER START SECTORS TYPE UUID NAME    in the disk's own sectors
#   raid NAME LEVEL METADATA UUID DEVICE...    a DEVICE is ID/NUMBER, raid:NAME, or volume:GROUP/NAME
#   group NAME DEVICE...
#   volume GROUP NAME BYTES|rest linear|raid1
#   filesystem ext4|xfs|vfat|swap DEVICE UUID OPTION,...|-
#   mount DEVICE PATH OPTIONS|-
#   esp DEVICE
#   file PATH MODE BASE64
#   cmdline BASE64
#   script pre|post BASE64
#   end

ROOTFS=rootfs.tar.zst
LAYOUT_TRIES=2 # of the whole layout, where what came was not what it should be

# of VERB: the lines of the layout with this verb, without it.
of() {
    sed -n "s/^$1 //p" "$T/layout"
}

# fetch_layout DIGEST: the layout that metalman has compiled for this boot, into $T/layout. It checks the text alone.
fetch_layout() {
    patiently request GET "$SERVE_URL/layout" || trouble "the layout could not be had: $(what_came)" || return 1
    fetch_found=$(sha256sum <"$T/body" | head -c 64)
    [ "$fetch_found" = "$1" ] ||
        trouble "the layout has the SHA-256 $fetch_found, and metalman announced $1" || return 1
    mv "$T/body" "$T/layout"
    layout_fault=$(awk -f "${INSTALLER:-/lib/unbounded}/layout.awk" "$T/layout") || trouble "the layout cannot be installed: $layout_fault" || return 1
    layout_words=$(of cmdline | base64 -d 2>/dev/null)
    case $layout_words in
        *[!A-Za-z0-9\ .,:=@_/%+-]*)
            trouble "the layout cannot be installed: GRUB reads a character of these kernel parameters as its own: $layout_words"
            return 1
            ;;
    esac
    [ ! -e "$STATEMENT_KEY" ] || [ -z "$layout_words" ] ||
        trouble "the layout cannot be installed: a signed image starts with the kernel parameters that were signed with it, and not with these of the profile: $layout_words"
}

# find_rootfs: the digest of the archive in SHA256.
find_rootfs() {
    patiently request GET "$SERVE_URL/$ROOTFS.sha256" ||
        trouble "the image has no $ROOTFS, which a MachineProfile is installed from: $(what_came)" || return 1
    SHA256=$(head -c 64 "$T/body")
    printf '%s\n' "$SHA256" | grep -qxE '[0-9a-f]{64}' || trouble "$ROOTFS.sha256 has no 64 digits" || return 1
    is_expected "$ROOTFS" "$SHA256"
}

# take_disks UID: the layout's disks, if they still are what was reported: "ID NAME TABLE" for each in $T/taken. TABLE is
# the identity of its partition table, by which an interrupted layout is known.
take_disks() {
    : >"$T/taken"
    while read -r take_id take_path take_state <&4; do
        CHOSEN=$take_path
        take_disk "$1" || return 1
        [ "$take_state" = "${take_found%% *}" ] ||
            trouble "the layout was made for $take_path as ${take_state}, and now it is: $take_found" || return 1
        ! grep -q " $DISK " "$T/taken" || trouble "the layout has the disk $DISK twice, as $take_path too" || return 1
        printf '%s %s %s\n' "$take_id" "$DISK" "$(table_identity "$1 $take_id")" >>"$T/taken"
    done 4<<TAKE
$(of disk)
TAKE
    layout_fits
}

# table_identity TEXT: a UUID of it, of version 8.
table_identity() {
    printf '%s %s' "$(digest <"$T/layout")" "$1" | digest |
        sed 's/^\(.\{8\}\)\(.\{4\}\).\(.\{3\}\).\(.\{3\}\)\(.\{12\}\).*/\1-\2-8\3-8\4-\5/'
}

# layout_fits: whether sfdisk can make the partitions on these disks; it writes nothing here.
layout_fits() {
    while read -r fits_id fits_name fits_table <&4; do
        fits_sector=$(value "$SYS/block/$fits_name/queue/logical_block_size" 512)
        fits_end=$(($(bytes_of "$fits_name") - 1048576))
        while read -r fits_number fits_start fits_sectors _ <&5; do
            [ $((fits_start * fits_sector)) -ge 1048576 ] && [ $(((fits_start + fits_sectors) * fits_sector)) -le $fits_end ] ||
                trouble "partition $fits_number of $fits_name is in its first MiB, or does not fit the disk" || return 1
        done 5<<FITS
$(of "partition $fits_id")
FITS
        table_script "$fits_id" "$fits_table" | sfdisk --no-act "$(device "$fits_name")" >"$T/sfdisk" 2>&1 ||
            trouble "the partitions do not fit $fits_name: $(grep -v '^$' "$T/sfdisk" | tail -n 1)" || return 1
    done 4<"$T/taken"
}

# table_script ID TABLE: a disk's partitions, as sfdisk reads them.
table_script() {
    printf 'label: gpt\nlabel-id: %s\nunit: sectors\n\n' "$2"
    of "partition $1" | while read -r script_number script_start script_sectors script_type script_uuid script_name; do
        printf '%s : start=%s, size=%s, type=%s, uuid=%s, name="%s"\n' "$script_number" "$script_start" "$script_sectors" \
            "$script_type" "$script_uuid" "$script_name"
    done
}

# prepare_layout DIGEST: everything that can be had and checked before a disk is touched.
prepare_layout() {
    fetch_layout "$1" && find_rootfs
}

# install_layout UID NAME: all of it, once more if what came of the archive was wrong. On failure nothing starts from these
# disks, and $T/trouble says what is left of them.
install_layout() {
    install_layout_try=1
    while :; do
        make_layout "$1" "$2" && return 0
        undo_layout
        install_layout_why=$(head -n 1 "$T/trouble" 2>/dev/null)
        case $install_layout_why in *SHA-256* | *"was replaced"* | *unpacked*) ;; *) install_layout_try=$LAYOUT_TRIES ;; esac
        [ "$install_layout_try" -lt "$LAYOUT_TRIES" ] || { end_layout && return 1; }
        report Writing 0 "once more from the start: $install_layout_why"
        rm -f "$T/trouble"
        install_layout_try=$((install_layout_try + 1))
    done
}

# unwritten COMMAND...: before the first write.
unwritten() {
    layout_left="nothing was written"
    "$@" || { end_layout && return 1; }
}

# end_layout: the reason of the failure, and what is left.
end_layout() {
    end_why=$(head -n 1 "$T/trouble" 2>/dev/null)
    printf '%s; %s\n' "${end_why:-the layout could not be installed}" "$layout_left" >"$T/trouble"
}

# make_layout UID NAME
make_layout() {
    free_disks || return 1
    layout_names=$(while read -r _ names_disk _; do printf '%s ' "$names_disk"; done <"$T/taken")
    layout_left="the old content of these disks is lost, and nothing starts from them: ${layout_names% }; they are this Machine's, and are written by the next installation"
    start_disks "$1" "$2" && make_partitions && make_raids && make_groups && make_volumes && make_filesystems &&
        mount_filesystems && unpack_root && write_files && plant_system && run_script post && put_loaders &&
        leave_root && free_disks && finish_disks "$1" "$2"
}

# undo_layout: after a failure: no loader stays, and nothing is mounted or assembled.
undo_layout() {
    take_loaders_away
    leave_root
    free_disks
}
