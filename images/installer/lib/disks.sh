# Disks: which there are, by what names, and what is on each. Metalman chooses one from the report of this (hardware.sh);
# the rule, in words for users, stands in images/README.md.

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

# device NAME: the file of a disk or partition. Where its name has a / (cciss/c0d0), the kernel has a ! in sysfs.
device() {
    case $1 in
        *!*) printf '%s/%s\n' "$DEV" "$(printf '%s' "$1" | tr ! /)" ;;
        *) printf '%s/%s\n' "$DEV" "$1" ;;
    esac
}

bytes_of() {
    echo $(($(value "$SYS/block/$1/size" 0) * 512))
}

# sector_of NAME: in bytes.
sector_of() {
    value "$SYS/block/$1/queue/logical_block_size" 512
}

# sector_at PATH: of the disk that a path leads to, as it was reported: another one in its place is metalman's to judge, by the
# next report. 512 where there is none, which take_disk tells.
sector_at() {
    sector_disk=$(disk_at "$1") && sed -n "s/^$sector_disk [0-9]* \([0-9]*\) .*/\1/p" "$T/states" | grep . || echo 512
}

# note_links: in $T/links the names that udev made: "by-id DEVICE NAME", a line for each.
note_links() {
    set +f
    for links_link in "$DEV"/disk/by-id/* "$DEV"/disk/by-path/*; do
        [ -L "$links_link" ] || continue
        links_kind=${links_link%/*}
        printf '%s %s %s\n' "${links_kind##*/}" "$(readlink -f "$links_link")" "${links_link##*/}"
    done >"$T/links"
    set -f
}

# known_as NAME: the names of a disk below /dev/disk/by-id.
known_as() {
    note_links
    known_device="by-id $(readlink -f "$(device "$1")") "
    while IFS= read -r known_line; do
        case $known_line in "$known_device"*) printf '%s ' "${known_line#"$known_device"}" ;; esac
    done <"$T/links"
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

# contents NAME: what is on a disk, in words; fails where it is blank. Blank means: no partition, no user,
# nothing that blkid knows, and nothing in the first EDGE_MIB and the last MiB. A partition whose table was wiped starts at
# 1 MiB as a rule.
contents() {
    contents_dev=$(device "$1")
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

# judge NAME UID: the state of a disk: "Blank", "Own" (this Machine's earlier install), or "Foreign" and what is there.
judge() {
    judge_dev=$(device "$1")
    judge_mark=$(read_mark "$judge_dev")
    if [ -n "$judge_mark" ]; then
        judge_owner=$(mark_says machine "$judge_mark")
        if [ "$judge_owner" != "$2" ]; then
            echo "Foreign installed for Machine $(mark_says name "$judge_mark") with UID $judge_owner"
            return
        fi
        judge_table=$(blkid -p -o value -s PTUUID "$judge_dev" 2>/dev/null)
        judge_type=$(blkid -p -o value -s TYPE "$judge_dev" 2>/dev/null)
        case $(mark_says state "$judge_mark"):${judge_type:+used} in
            writing:) [ -z "$judge_table" ] || [ "$judge_table" = "$(mark_says table "$judge_mark")" ] && echo Own && return ;;
            installed:) [ "$judge_table" = "$(mark_says table "$judge_mark")" ] && echo Own && return ;;
        esac
        echo "Foreign an earlier install of this Machine, changed since: $(signatures "$judge_dev")"
        return
    fi
    if judge_there=$(contents "$1"); then echo "Foreign $judge_there"; else echo Blank; fi
}

# disk_at PATH: the disk that a path below /dev leads to.
disk_at() {
    at_device=$(readlink -f "$DEV/${1#/dev/}")
    for at_disk in $(disks); do
        [ "$(readlink -f "$(device "$at_disk")")" != "$at_device" ] || { printf '%s\n' "$at_disk" && return 0; }
    done
    return 1
}
