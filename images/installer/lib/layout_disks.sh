# What a layout makes on its disks: partitions, RAID, LVM, file systems. Every step can be repeated after any other was cut
# off: the disks are marked first, and what they held is gone from the places where something new begins or ends.

export DM_DISABLE_UDEV=1 MDADM_NO_UDEV=1 # names of devices come from LVM and mdadm themselves: their rules are not here
LVM_CONFIG='activation { udev_sync=0 udev_rules=0 monitoring=0 } devices { use_devicesfile=0 obtain_device_list_from_udev=0 } backup { backup=0 archive=0 }'

# run COMMAND...: with its last line of complaints as the reason if it fails; LVM's advice to read its help is none.
run() {
    "$@" </dev/null >"$T/ran" 2>&1 || trouble "$* failed: $(grep -v -e '^ *$' -e '^ *Run .*--help' "$T/ran" | tail -n 1)"
}

# made DEVICE: the path of what the layout makes.
made() {
    case $1 in
        raid:*) printf '%s\n' "$DEV/md/${1#raid:}" ;;
        volume:*) printf '%s\n' "$DEV/${1#volume:}" ;;
        *)
            made_disk=$(device "$(sed -n "s/^${1%/*} \([^ ]*\) .*/\1/p" "$T/taken")")
            case $made_disk in *[0-9]) printf '%s\n' "${made_disk}p${1#*/}" ;; *) printf '%s\n' "$made_disk${1#*/}" ;; esac
            ;;
    esac
}

# all_made DEVICE...: their paths.
all_made() {
    for made_one in "$@"; do made "$made_one"; done
}

# stop_holders SYS_DIR: takes apart what is assembled of a block device, from its top.
stop_holders() (
    set +f
    for holder in "$1"/holders/*; do
        [ -e "$holder" ] || continue
        stop_holders "$SYS/block/${holder##*/}"
        case ${holder##*/} in
            md*) mdadm --stop "$DEV/${holder##*/}" ;;
            dm-*) dmsetup remove --retry "$(value "$SYS/block/${holder##*/}/dm/name" '')" ;;
        esac
    done
)

# is_held SYS_DIR
is_held() (
    set +f
    for holder in "$1"/holders/*; do [ ! -e "$holder" ] || exit 0; done
    exit 1
)

# free_disks: nothing is assembled of the layout's disks afterwards; udev may look at a device that has just been made.
free_disks() {
    while read -r _ free_disk _ <&4; do
        free_try=0
        while :; do
            settled
            free_held=
            for free_part in "$free_disk" $(partition_names "$free_disk"); do
                free_dir=$SYS/block/$free_disk/$free_part
                [ "$free_part" != "$free_disk" ] || free_dir=$SYS/block/$free_disk
                stop_holders "$free_dir" </dev/null >"$T/ran" 2>&1
                ! is_held "$free_dir" || free_held=$free_part
            done
            [ -n "$free_held" ] || break
            free_try=$((free_try + 1))
            [ "$free_try" -lt 5 ] || trouble "$free_held is in use: $(tail -n 1 "$T/ran")" || return 1
            sleep "${PAUSE_S:-1}"
        done
    done 4<"$T/taken"
    for free_group in $(of group | cut -d ' ' -f 1); do
        rm -f "$DEV/$free_group"/* 2>/dev/null && rmdir "$DEV/$free_group" 2>/dev/null # links of LVM, which dmsetup does not know
    done
    return 0
}

partition_names() {
    set +f
    for names_part in "$SYS/block/$1/$1"*; do [ ! -d "$names_part" ] || printf '%s\n' "${names_part##*/}"; done
    set -f
}

# put_mark NAME UID MACHINE STATE TABLE
put_mark() {
    mark_text "$2" "$3" "$4" "$5" >"$T/mark" && truncate -s 4096 "$T/mark" &&
        run dd if="$T/mark" of="$(device "$1")" bs=4096 seek=$MARK_AT conv=notrunc,fsync
}

# start_disks UID MACHINE: from here on the disks have nothing but the marks. A table that is written later starts nothing
# old: the places of the new partitions are empty.
start_disks() {
    while read -r start_id start_disk start_table <&4; do
        forget_old "$(device "$start_disk")" "$(bytes_of "$start_disk")" "$1" "$2" "$start_table" || return 1
        start_sector=$(value "$SYS/block/$start_disk/queue/logical_block_size" 512)
        while read -r _ start_at start_sectors _ <&5; do
            wipe "$(device "$start_disk")" $((start_at * start_sector)) $((start_sectors * start_sector)) || return 1
        done 5<<START
$(of "partition $start_id")
START
    done 4<"$T/taken"
}

# wipe DEVICE FROM BYTES: zeros in the first and the last MiB of these bytes.
wipe() {
    wipe_last=$(($2 + ($3 > 1048576 ? $3 - 1048576 : 0)))
    run dd if=/dev/zero of="$1" bs=512 count=2048 seek=$(($2 / 512)) conv=notrunc,fsync &&
        run dd if=/dev/zero of="$1" bs=512 count=2048 seek=$((wipe_last / 512)) conv=notrunc,fsync
}

make_partitions() {
    while read -r make_id make_disk make_table <&4; do
        report Writing "" "partitions of $make_disk ($(known_as "$make_disk"))"
        table_script "$make_id" "$make_table" | sfdisk --wipe always --wipe-partitions always "$(device "$make_disk")" >"$T/ran" 2>&1 ||
            trouble "the partitions of $make_disk could not be made: $(grep -v '^$' "$T/ran" | tail -n 1)" || return 1
        make_try=0
        while ! partitions_are_there "$make_id" "$make_disk"; do
            make_try=$((make_try + 1))
            [ "$make_try" -lt 5 ] || trouble "the kernel does not show the partitions of $make_disk" || return 1
            sleep "${PAUSE_S:-1}"
        done
    done 4<"$T/taken"
}

# partitions_are_there ID NAME
partitions_are_there() {
    partitions "$2" >/dev/null
    for there_number in $(of "partition $1" | cut -d ' ' -f 1); do
        [ -b "$(made "$1/$there_number")" ] || return 1
    done
}

make_raids() {
    while read -r raid_name raid_level raid_metadata raid_uuid raid_devices <&4; do
        [ -n "$raid_name" ] || return 0
        report Writing "" "RAID $raid_level $raid_name of $raid_devices"
        set -- $raid_devices
        mkdir -p "$DEV/md"
        run mdadm --create "$DEV/md/$raid_name" --run --homehost=any --name="$raid_name" --level="$raid_level" \
            --metadata="$raid_metadata" --uuid="$raid_uuid" --raid-devices=$# $(all_made "$@") || return 1
        raid_device=$(readlink -f "$DEV/md/$raid_name")
        wipe "$raid_device" 0 "$(bytes_of "${raid_device##*/}")" || return 1
    done 4<<RAIDS
$(of raid)
RAIDS
}

# lvm_on "DEVICE..." COMMAND...: LVM that knows of these devices alone.
lvm_on() {
    lvm_devices=$(printf '%s\n' $1 | tr '\n' ,)
    lvm_command=$2
    shift 2
    run lvm "$lvm_command" --config "$LVM_CONFIG" --devices "${lvm_devices%,}" "$@"
}

make_groups() {
    while read -r group_name group_devices <&4; do
        [ -n "$group_name" ] || return 0
        report Writing "" "volume group $group_name of $group_devices"
        group_paths=$(all_made $group_devices)
        forget_volumes "$DEV/$group_name"
        lvm_on "$group_paths" pvcreate --yes -ff $group_paths && lvm_on "$group_paths" vgcreate --yes "$group_name" $group_paths ||
            return 1
    done 4<<GROUPS
$(of group)
GROUPS
}

# forget_volumes FOLDER: the names of volumes that free_disks took apart; LVM makes no group whose folder is there.
forget_volumes() (
    set +f
    for forgotten in "$1"/*; do
        [ -e "$forgotten" ] || rm -f "$forgotten"
    done
    rmdir "$1" 2>/dev/null || :
)

make_volumes() {
    while read -r volume_group volume_name volume_bytes volume_type <&4; do
        [ -n "$volume_group" ] || return 0
        volume_size="--size ${volume_bytes}b"
        [ "$volume_bytes" != rest ] || volume_size="--extents 100%FREE"
        [ "$volume_type" = linear ] || volume_size="$volume_size --mirrors 1"
        lvm_on "$(all_made $(of "group $volume_group"))" lvcreate --yes --wipesignatures y --zero y --type "$volume_type" \
            $volume_size --name "$volume_name" "$volume_group" || return 1
    done 4<<VOLUMES
$(of volume)
VOLUMES
}

make_filesystems() {
    while read -r made_type made_device made_uuid made_options <&4; do
        [ -n "$made_type" ] || return 0
        [ "$made_options" != - ] || made_options=
        made_options=$(printf '%s' "$made_options" | tr , ' ')
        made_path=$(made "$made_device")
        report Writing "" "$made_type on $made_device"
        case $made_type in
            ext4) run mke2fs -q -F -t ext4 -U "$made_uuid" $made_options "$made_path" ;;
            xfs) run mkfs.xfs -q -f -m "uuid=$made_uuid" $made_options "$made_path" ;;
            vfat) run mkfs.vfat -i "${made_uuid%-*}${made_uuid#*-}" $made_options "$made_path" ;;
            swap) run mkswap -f -U "$made_uuid" $made_options "$made_path" ;;
        esac || return 1
    done 4<<FILESYSTEMS
$(of filesystem)
FILESYSTEMS
}

# finish_disks UID MACHINE: the disks are installed.
finish_disks() {
    while read -r _ finish_disk finish_table <&4; do
        put_mark "$finish_disk" "$1" "$2" installed "$finish_table" || return 1
    done 4<"$T/taken"
}
