# Which disk is written: never a guess. The rule, in words for users, stands in images/README.md.

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
        printf '%s\n' "$disk_name"
    done
    set -f
}

# value FILE DEFAULT: what a file of sysfs says.
value() {
    if [ -r "$1" ]; then cat "$1"; else printf '%s\n' "$2"; fi
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

# signatures DEVICE: what blkid knows of it, in a line; fails where it knows nothing. More than one is foreign too.
signatures() {
    signature_found=$(blkid -p -o export "$1" 2>/dev/null)
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
# nothing that blkid knows, and nothing in the first and the last MiB.
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
    contents_mib=$(($(bytes_of "$1") / 1048576))
    dd if="$contents_dev" bs=1048576 count=1 2>/dev/null >"$T/edge" || { printf 'unreadable' && return 0; }
    erased <"$T/edge" || { printf 'data of an unknown kind at its start' && return 0; }
    dd if="$contents_dev" bs=1048576 skip=$((contents_mib - 1)) 2>/dev/null >"$T/edge" ||
        { printf 'unreadable at its end' && return 0; }
    erased <"$T/edge" || { printf 'data of an unknown kind at its end' && return 0; }
    return 1
}

# judge NAME UID: one line: "blank", "own" (this Machine's earlier install), or "foreign" and what is there.
judge() {
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
    if judge_there=$(contents "$1"); then echo "foreign $judge_there"; else echo blank; fi
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
            foreign*) list_verdict=${list_verdict#foreign } ;;
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

# choose_disk UID TARGET: the name of the disk, or in $T/trouble why there is none.
choose_disk() {
    choose_survey=$(survey "$1")
    if [ -n "$2" ]; then
        choose_from=$(disk_at "$2") || {
            trouble "targetDisk $2 is no disk here: $(listing "$choose_survey")"
            return 1
        }
    else
        choose_from=$(printf '%s\n' "$choose_survey" | sed -n 's/ own$//p')
        [ -n "$choose_from" ] || choose_from=$(printf '%s\n' "$choose_survey" | sed -n 's/ blank$//p')
    fi
    case $(printf '%s' "$choose_from" | grep -c .) in
        0) trouble "no disk is blank; erase one, or name an erased one in spec.pxe.targetDisk: $(listing "$choose_survey")" ;;
        1)
            case $(printf '%s\n' "$choose_survey" | sed -n "s/^$choose_from //p") in
                foreign*) trouble "targetDisk $2 holds data of others; erase it first: $(listing "$choose_survey")" ;;
                *) printf '%s\n' "$choose_from" ;;
            esac
            ;;
        *) trouble "several disks could be meant; name one in spec.pxe.targetDisk: $(listing "$choose_survey")" ;;
    esac
}
