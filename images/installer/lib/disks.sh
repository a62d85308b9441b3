# Which disk is written: never a guess. The rule, in words for users, stands in images/README.md.

LEAST_BYTES=${LEAST_BYTES:-4000000000} # of a disk that nobody named; flash of boards and BMCs is smaller
IMAGE_BYTES=${IMAGE_BYTES:-0} # of the unpacked image; 0 where it does not say so
SECTOR_BYTES=512 # what the partition tables of images count in
EDGE_MIB=16 # of a blank disk there is nothing in so much of its start

# disks: the names of all disks that could be meant, a line each.
disks() {
    set +f
    for disk_dir in "$SYS"/block/*; do
        disk_name=${disk_dir##*/}
        case $disk_name in
            loop* | ram* | zram* | dm-* | md* | sr* | fd* | nbd* | mmcblk*boot* | mmcblk*rpmb | '*') continue ;;
        esac
        [ "$(value "$disk_dir/size" 0)" -gt 0 ] && [ "$(value "$disk_dir/removable" 0)" = 0 ] || continue
        [ "$(value "$disk_dir/ro" 0)" = 0 ] || continue
        [ "$(value "$disk_dir/hidden" 0)" = 0 ] || continue # a path of an NVMe disk that the kernel shows once, as one
        printf '%s\n' "$disk_name"
    done
    set -f
}

bytes_of() {
    echo $(($(value "$SYS/block/$1/size" 0) * 512))
}

# known_as NAME: the stable names of a disk, as udev made them.
known_as() {
    set +f
    for known_link in "$DEV"/disk/by-id/*; do
        [ "$(readlink -f "$known_link")" = "$(readlink -f "$DEV/$1")" ] && printf '%s ' "${known_link##*/}"
    done
    set -f
}

# stable_name NAME: the path of a disk that stays, whatever the order of disks and the version of udev's rules; nothing
# where it has none. What the disk itself says (WWN, EUI) comes before what rules make of its model and serial number.
stable_name() {
    for stable_kind in wwn- nvme-eui. nvme-uuid. scsi-3 scsi-S ata- nvme- ''; do
        for stable_link in $(known_as "$1"); do
            case $stable_link in "$stable_kind"*) printf '/dev/disk/by-id/%s' "$stable_link" && return ;; esac
        done
    done
}

# unfit NAME: why the image cannot be written to a disk, whatever is on it; fails where it can.
unfit() {
    unfit_sector=$(value "$SYS/block/$1/queue/logical_block_size" $SECTOR_BYTES)
    if [ "$unfit_sector" != $SECTOR_BYTES ]; then
        printf 'sectors of %s bytes, and images are made for %s' "$unfit_sector" $SECTOR_BYTES
    elif [ "$(bytes_of "$1")" -lt "$IMAGE_BYTES" ]; then
        printf 'too small for the image, which has %s MB' $((IMAGE_BYTES / 1000000))
    else
        return 1
    fi
}

# signatures DEVICE [OFFSET]: what blkid knows of it, in a line; fails where it knows nothing. More than one is foreign
# too.
signatures() {
    signature_found=$(blkid -p -o export ${2:+--offset "$2"} "$1" 2>/dev/null)
    signature_code=$?
    case $signature_code in
        0) printf '%s\n' "$signature_found" | grep -E '^(TYPE|PTTYPE|LABEL|PTUUID)=' | tr '\n' ' ' ;;
        2) return 1 ;;
        8) printf 'several signatures at once ' ;;
        *) printf 'unreadable (blkid: %s) ' "$signature_code" ;;
    esac
}

# erased: whether the input is nothing but bytes 00 or FF, as on a new or erased disk.
erased() {
    [ "$(LC_ALL=C tr -d '\000\377' | head -c 1 | wc -c)" -eq 0 ]
}

# contents NAME: what is on a disk, in words; fails where it is blank. Blank is: no partition, nobody who uses it,
# nothing that blkid knows, and nothing in the first EDGE_MIB and the last MiB. A partition whose table was wiped starts at
# 1 MiB as a rule.
contents() {
    contents_dev=$DEV/$1
    set +f
    for contents_part in "$SYS/block/$1/$1"*; do
        [ -d "$contents_part" ] || continue
        set -f
        printf 'partitions %s' "$(signatures "$contents_dev")"
        return 0
    done
    for contents_holder in "$SYS/block/$1/holders/"*; do
        [ -e "$contents_holder" ] && set -f && printf 'in use by %s' "${contents_holder##*/}" && return 0
    done
    set -f
    signatures "$contents_dev" && return 0
    contents_behind=$(signatures "$contents_dev" 1048576) &&
        printf '%sat 1 MiB, without a partition table' "$contents_behind" && return 0
    contents_mib=$(($(bytes_of "$1") / 1048576))
    dd if="$contents_dev" bs=1048576 count=$EDGE_MIB 2>/dev/null >"$T/edge" || { printf 'unreadable' && return 0; }
    erased <"$T/edge" || { printf 'data of an unknown kind at its start' && return 0; }
    dd if="$contents_dev" bs=1048576 skip=$((contents_mib - 1)) 2>/dev/null >"$T/edge" ||
        { printf 'unreadable at its end' && return 0; }
    erased <"$T/edge" || { printf 'data of an unknown kind at its end' && return 0; }
    return 1
}

# judge NAME UID: one line: "blank", "small" (blank, and taken only where somebody names it), "own" (this Machine's earlier
# install), "unfit" and why, or "foreign" and what is there.
judge() {
    judge_unfit=$(unfit "$1") && echo "unfit $judge_unfit" && return
    judge_mark=$(read_mark "$DEV/$1")
    if [ -n "$judge_mark" ]; then
        judge_owner=$(mark_says machine "$judge_mark")
        if [ "$judge_owner" != "$2" ]; then
            echo "foreign installed for Machine $(mark_says name "$judge_mark") with UID $judge_owner"
            return
        fi
        judge_table=$(blkid -p -o value -s PTUUID "$DEV/$1" 2>/dev/null)
        judge_type=$(blkid -p -o value -s TYPE "$DEV/$1" 2>/dev/null)
        case $(mark_says state "$judge_mark"):${judge_type:+used} in
            writing:) [ -z "$judge_table" ] && echo own && return ;;
            installed:) [ "$judge_table" = "$(mark_says table "$judge_mark")" ] && echo own && return ;;
        esac
        echo "foreign an earlier install of this Machine, changed since: $(signatures "$DEV/$1")"
        return
    fi
    if judge_there=$(contents "$1"); then
        echo "foreign $judge_there"
    elif [ "$(bytes_of "$1")" -lt "$LEAST_BYTES" ]; then
        echo small
    else
        echo blank
    fi
}

# survey UID: "NAME VERDICT", a line for each disk.
survey() {
    for survey_disk in $(disks); do
        echo "$survey_disk $(judge "$survey_disk" "$1")"
    done
}

# listing SURVEY: the same for people.
listing() {
    [ -n "$1" ] || { printf 'there is no disk' && return; }
    printf '%s\n' "$1" | while read -r list_name list_verdict; do
        case $list_verdict in
            own) list_verdict="this Machine's earlier install" ;;
            small) list_verdict="blank, but smaller than $((LEAST_BYTES / 1000000)) MB" ;;
            foreign* | unfit*) list_verdict=${list_verdict#* } ;;
        esac
        list_ids=$(known_as "$list_name")
        printf '%s (%s MB%s): %s; ' "$list_name" "$(($(bytes_of "$list_name") / 1000000))" "${list_ids:+, ${list_ids% }}" \
            "$list_verdict"
    done
}

# disk_at PATH: the disk that a path below /dev leads to.
disk_at() {
    at_device=$(readlink -f "$DEV/${1#/dev/}")
    for at_disk in $(disks); do
        [ "$(readlink -f "$DEV/$at_disk")" != "$at_device" ] || { printf '%s\n' "$at_disk" && return 0; }
    done
    return 1
}

# choose_disk UID TARGET RECORDED: the name of the disk, or in $T/trouble why there is none. TARGET is what a person named,
# RECORDED the disk of this Machine's last install; both may be empty.
choose_disk() {
    choose_survey=$(survey "$1")
    if [ -n "$2" ]; then
        choose_named "$2" "targetDisk $2" "erase it first" "is no disk here"
    elif [ -n "$3" ]; then
        choose_named "$3" "$3, the disk of this Machine's last install," \
            "erase it, or name another in spec.pxe.targetDisk" "is not here; name another in spec.pxe.targetDisk"
    else
        choose_only
    fi
}

# choose_named PATH WORDS REMEDY ABSENT
choose_named() {
    choose_from=$(disk_at "$1") || {
        trouble "$2 $4: $(listing "$choose_survey")"
        return 1
    }
    case $(printf '%s\n' "$choose_survey" | sed -n "s/^$choose_from //p") in
        foreign*) trouble "$2 holds data of others; $3: $(listing "$choose_survey")" ;;
        unfit*) trouble "$2 cannot be written: $(listing "$choose_survey")" ;;
        *) printf '%s\n' "$choose_from" ;;
    esac
}

choose_only() {
    choose_from=$(printf '%s\n' "$choose_survey" | sed -n 's/ own$//p')
    [ -n "$choose_from" ] || choose_from=$(printf '%s\n' "$choose_survey" | sed -n 's/ blank$//p')
    case $(printf '%s' "$choose_from" | grep -c .) in
        0) trouble "no disk is blank; erase one, or name an erased one in spec.pxe.targetDisk: $(listing "$choose_survey")" ;;
        1) printf '%s\n' "$choose_from" ;;
        *) trouble "several disks could be meant; name one in spec.pxe.targetDisk: $(listing "$choose_survey")" ;;
    esac
}
