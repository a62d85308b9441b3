# Which disk is written: metalman chooses it from the report of this machine's hardware (POST <ServeURL>/hardware), and this
# does what it answers. The shell decides nothing but that the chosen disk is still what was reported.

CHOICE_S=180 # how long a disk that metalman waits for may take to come, since disks are looked for
REPORT_AGAIN_S=5

# choose_disk UID: reports, until metalman has answered what is to be done: in ACTION Write, with the path of the disk in
# CHOSEN and in ERASE the serial number of a foreign disk that it permits to be erased, or Layout, with the digest of the
# layout in LAYOUT and in ERASE such numbers between commas, or Erase, with the names of the disks in ERASE_DISKS, or
# PowerOff, or Rescue. Fails with the reason in $T/trouble.
choose_disk() {
    choose_since=${DISKS_SINCE:-$(seconds)}
    choose_final=false
    choose_told=
    while :; do
        settled # a disk that has just come has its names then
        report_hardware "$1" $choose_final || return 1
        ACTION=$(answered action)
        CHOSEN=$(answered disk)
        ERASE=$(answered erase)
        LAYOUT=$(answered layout)
        case $ACTION:$choose_final in
            PowerOff:* | Rescue:*) return 0 ;;
            Erase:*)
                ERASE_DISKS=$(answered disks)
                is_names "$ERASE_DISKS" && return 0
                ;;
            Write:*) is_path "$CHOSEN" && return 0 ;;
            Layout:*) [ -n "$LAYOUT" ] && return 0 ;;
            Wait:false)
                choose_why=$(answered message)
                [ "$choose_why" = "$choose_told" ] || report ChoosingDisk "" "waits: $choose_why"
                choose_told=$choose_why
                sleep "${PAUSE_S:-$REPORT_AGAIN_S}"
                [ $(($(seconds) - choose_since)) -lt $CHOICE_S ] || choose_final=true
                continue
                ;;
        esac
        trouble "metalman gave no answer to the hardware report that this installer knows: $(head -c 200 "$T/body")"
        return 1
    done
}

# is_names TEXT: of disks, with blanks between them.
is_names() {
    case $1 in "" | *[!A-Za-z0-9#+.:=@_!\ -]*) return 1 ;; esac
}

is_path() {
    case $1 in
        *[!A-Za-z0-9#+.:=@_/-]*) return 1 ;;
        /dev/?*) ;;
        *) return 1 ;;
    esac
}

# report_hardware UID FINAL
report_hardware() {
    HTTP_LIMIT_S=60 patiently request POST "$SERVE_URL/hardware" \
        "{\"final\":$2,\"largeSectors\":true,\"imageBytes\":${IMAGE_BYTES:-0},\"hardware\":$(hardware "$1")}" && return 0
    case $STATUS in
        409) trouble "$(answered error)" ;;
        404 | 405)
            trouble "metalman takes no report of the hardware (HTTP $STATUS): it is older than this installer, or this boot is over"
            ;;
        *) trouble "metalman did not take the report of the hardware: $(what_came)" ;;
    esac
}

# answered KEY: a string of the last answer, which is one JSON object in a line. No text in it can look like a key, as the
# quotes of a text are escaped.
answered() {
    sed -n "s/.*[{,] *\"$1\": *\"\(\([^\"\\\\]\|\\\\.\)*\)\".*/\1/p" "$T/body" | sed 's/\\[nrt]/ /g; s/\\\(.\)/\1/g'
}

# take_disk UID: the name of the chosen disk in DISK, if it is still what was reported: judged again before it is written.
# A foreign one has to be the one whose erasure is permitted, with what was on it then.
take_disk() {
    DISK=$(disk_at "$CHOSEN") || trouble "metalman chose $CHOSEN, which is no disk here" || return 1
    take_reported=$(sed -n "s/^$DISK //p" "$T/states")
    take_bytes=${take_reported%% *}
    take_reported=${take_reported#* }
    take_sector=${take_reported%% *}
    take_reported=${take_reported#* }
    take_now=$(bytes_of "$DISK")
    [ "${take_bytes:-$take_now}" = "$take_now" ] ||
        trouble "metalman chose $CHOSEN, which was reported with $take_bytes bytes and now has $take_now" || return 1
    take_now=$(sector_of "$DISK")
    [ "${take_sector:-$take_now}" = "$take_now" ] ||
        trouble "metalman chose $CHOSEN, which was reported with sectors of $take_sector bytes and now has sectors of $take_now" || return 1
    take_found=$(judge "$DISK" "$1")
    case $take_found in
        Own | Blank) [ "$take_found" != "$take_reported" ] || return 0 ;;
        "Foreign "?*) [ "$take_found" != "$take_reported" ] || ! may_be_erased "$DISK" || return 0 ;;
    esac
    take_reported=${take_reported%% *}
    trouble "metalman chose $CHOSEN, which was reported as ${take_reported:-no disk} and now is: $take_found"
}

# may_be_erased NAME: whether metalman permits it for the serial number that this disk has now: all of ERASE, or one of it
# between commas.
may_be_erased() {
    erased_rest=$ERASE,
    ! has_serial "$1" "$ERASE" || return 0
    while [ -n "$erased_rest" ]; do
        ! has_serial "$1" "${erased_rest%%,*}" || return 0
        erased_rest=${erased_rest#*,}
    done
    return 1
}

# has_serial NAME SERIAL
has_serial() {
    [ -n "$2" ] || return 1
    quoted "$2"
    case $(object disk_identity "$SYS/block/$1") in
        *[{,]"\"serialNumber\":$QUOTED"[,}]*) return 0 ;;
    esac
    return 1
}
