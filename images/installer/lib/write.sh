# The image goes to the disk as it comes: in pieces of CHUNK_BYTES over HTTP, and in blocks of BLOCK_MIB to the disk.
# Memory does not grow with the image. The first MiB, with the partition table, is held back until the digest of all
# that came is right and cloud-init's files are in the image: neither half an image nor one without them starts, and the
# disk is known as this Machine's by its mark.

CHUNK_BYTES=${CHUNK_BYTES:-16777216}
BLOCK_MIB=${BLOCK_MIB:-16}

# fetch_chunk URL FROM: $T/body is the next piece. The first answer settles total size and ETag.
fetch_chunk() {
    HTTP_LIMIT_S=300 request GET "$1" "" "Range: bytes=$2-$(($2 + CHUNK_BYTES - 1))" || return 1
    case $STATUS in
        206) ;;
        2??)
            trouble "the server does not answer with ranges"
            STATUS=400
            return 0
            ;;
        *) return 0 ;;
    esac
    chunk_range=$(header Content-Range)
    case $chunk_range in "bytes $2-"*) ;; *) STATUS=000 && return 1 ;; esac
    chunk_tag=$(header ETag)
    if [ "$2" -eq 0 ]; then
        TOTAL=${chunk_range##*/}
        TAG=$chunk_tag
    elif [ "$TOTAL" != "${chunk_range##*/}" ] || [ "$TAG" != "$chunk_tag" ]; then
        STATUS=412
    fi
}

# stream URL: the whole file to standard output and to descriptor 3; progress on the way.
stream() {
    stream_at=0
    TOTAL= TAG=
    while [ -z "$TOTAL" ] || [ "$stream_at" -lt "$TOTAL" ]; do
        patiently fetch_chunk "$1" "$stream_at" || {
            case $STATUS in
                412) trouble "the image was replaced while it was read" ;;
                *) trouble "the image could not be read at byte $stream_at: $(what_came)" ;;
            esac
            return 1
        }
        [ ! -s "$T/trouble" ] || return 1
        stream_got=$(size_of "$T/body")
        [ "$stream_got" -gt 0 ] || trouble "the image is empty" || return 1
        # dd and not cat, which takes many times as long to fill a pipe
        dd if="$T/body" bs=1048576 2>/dev/null >&3
        dd if="$T/body" bs=1048576 2>/dev/null || return 1 # whoever reads has said why
        stream_at=$((stream_at + stream_got))
        report_percent Writing $((stream_at * 99 / TOTAL)) "$((stream_at / 1000000)) of $((TOTAL / 1000000)) MB"
    done
}

# unpack: gzip or zstd, told by their first bytes.
unpack() {
    unpack_first=$(dd bs=1 count=4 2>/dev/null | tee "$T/first" | od -An -tx1 | tr -d ' \n')
    case $unpack_first in
        1f8b*) { cat "$T/first" && exec cat; } | gzip -dc ;;
        28b52ffd) { cat "$T/first" && exec cat; } | zstd -dcq ;;
        *) trouble "the image is neither gzip nor zstd: it starts with $unpack_first" ;;
    esac 2>"$T/unpack" || trouble "the image could not be unpacked: $(head -n 1 "$T/unpack")"
}

# unpacked_bytes FILE: how large a zstd image is, as its first 18 bytes say (RFC 8878, section 3.1.1.1); nothing where they
# do not.
unpacked_bytes() {
    set -- $(od -An -v -tu1 "$1" | tr '\n' ' ')
    [ "${1:-} ${2:-} ${3:-} ${4:-}" = "40 181 47 253" ] || return 0
    unpacked_how=$5
    shift 5
    [ $((unpacked_how & 32)) -ne 0 ] || shift # a window, of frames that are not one segment
    case $((unpacked_how & 3)) in 0) ;; 3) shift 4 ;; *) shift $((unpacked_how & 3)) ;; esac
    case $((unpacked_how >> 6)) in
        0) [ $((unpacked_how & 32)) -eq 0 ] || echo "$1" ;;
        1) echo $(($1 + ($2 << 8) + 256)) ;;
        2) echo $(($1 + ($2 << 8) + ($3 << 16) + ($4 << 24))) ;;
        3) echo $(($1 + ($2 << 8) + ($3 << 16) + ($4 << 24) + ($5 << 32) + ($6 << 40))) ;;
    esac
}

# put DEVICE CAPACITY: standard input to the disk, from the second MiB on; the first stays in $T/head. The last block is
# kept in $T/tail and its place, in MiB, in $T/tail_at.
put() {
    rm -f "$T/tail"
    dd bs=1048576 count=1 iflag=fullblock of="$T/head" 2>/dev/null
    put_at=1
    while dd bs=1048576 count="$BLOCK_MIB" iflag=fullblock of="$T/block" 2>/dev/null && [ -s "$T/block" ]; do
        if [ $((put_at * 1048576 + $(size_of "$T/block"))) -gt "$2" ]; then
            trouble "the image is larger than the disk, which has $2 bytes"
            return 1
        fi
        # past the cache where that can be: what is read back at the end is then what the disk has
        put_flags=
        [ -b "$1" ] && [ "$(size_of "$T/block")" = $((BLOCK_MIB * 1048576)) ] && put_flags=oflag=direct
        dd if="$T/block" of="$1" bs=1048576 seek="$put_at" $put_flags conv=notrunc,fsync 2>"$T/dd" || {
            trouble "writing at MiB $put_at failed: $(head -n 1 "$T/dd")"
            return 1
        }
        mv "$T/block" "$T/tail"
        echo "$put_at" >"$T/tail_at"
        put_at=$((put_at + BLOCK_MIB))
    done
}

# sane_head SECTOR: the first MiB can be one of ours: a boot record, a partition table not made for other sectors, and nothing
# where the mark goes.
sane_head() {
    [ "$(size_of "$T/head")" = 1048576 ] && [ -s "$T/tail" ] || trouble "the image is no disk: it has no second MiB" || return 1
    sane_magic=$(dd if="$T/head" bs=2 skip=255 count=1 2>/dev/null | od -An -tx1 | tr -d ' \n')
    [ "$sane_magic" = 55aa ] || trouble "the image is no disk: it has no boot record" || return 1
    sane_other=$((4608 - $1)) # the second sector of a disk with the other size has its table there
    ! has_table "$T/head" $sane_other ||
        trouble "the image is made for disks with sectors of $sane_other bytes, and this one has $1" || return 1
    sane_used=$(dd if="$T/head" bs=4096 skip=$MARK_AT count=1 2>/dev/null | tr -d '\000' | wc -c)
    [ "$sane_used" -eq 0 ] || trouble "the image has data at byte 524288, where the mark of its owner goes"
}

# has_table FILE SECTOR: whether it begins with a GUID partition table in sectors of that size.
has_table() {
    [ "$(dd if="$1" bs="$2" skip=1 count=1 2>/dev/null | head -c 8)" = "EFI PART" ]
}

# forget_old DEVICE CAPACITY UID NAME [TABLE]: from here on the disk has nothing but the mark.
forget_old() {
    : >"$T/zero" && truncate -s 1048576 "$T/zero"
    mark_text "$3" "$4" writing "${5:-}" >"$T/mark" && truncate -s 4096 "$T/mark"
    cp "$T/zero" "$T/start"
    dd if="$T/mark" of="$T/start" bs=4096 seek=$MARK_AT conv=notrunc 2>/dev/null
    dd if="$T/start" of="$1" bs=1048576 conv=notrunc,fsync 2>/dev/null &&
        dd if="$T/zero" of="$1" bs=4096 seek=$(($2 / 4096 - 256)) conv=notrunc,fsync 2>/dev/null ||
        trouble "the disk cannot be written"
}

# read_back DEVICE: whether the last block is what was written, as the disk itself says.
read_back() {
    [ ! -b "$1" ] || blockdev --flushbufs "$1" 2>/dev/null
    dd if="$1" bs=1048576 skip="$(cat "$T/tail_at")" count="$BLOCK_MIB" 2>/dev/null |
        head -c "$(size_of "$T/tail")" | cmp -s - "$T/tail" || trouble "the disk did not keep the end of the image"
}

# write_image URL SHA256 DISK UID NAME: all of it but the first MiB; the disk is this Machine's.
write_image() {
    write_dev=$(device "$3")
    write_size=$(bytes_of "$3")
    write_sector=$(sector_of "$3")
    rm -f "$T/trouble" "$T/sums"
    mkfifo "$T/sums"
    forget_old "$write_dev" "$write_size" "$4" "$5" || return 1
    sha256sum <"$T/sums" >"$T/sum" &
    write_summing=$!
    stream "$1" 3>"$T/sums" | unpack | put "$write_dev" "$write_size"
    wait $write_summing
    [ ! -s "$T/trouble" ] || return 1
    read -r write_sum _ <"$T/sum"
    [ "$write_sum" = "$2" ] || trouble "the image's SHA-256 is $write_sum and not $2" || return 1
    sane_head "$write_sector" && read_back "$write_dev"
}

# finish_image DISK UID NAME: the first MiB; afterwards the disk starts.
finish_image() {
    finish_table=$(head_table "$(bytes_of "$1")" "$(sector_of "$1")")
    mark_text "$2" "$3" installed "$finish_table" >"$T/mark" && truncate -s 4096 "$T/mark"
    dd if="$T/mark" of="$T/head" bs=4096 seek=$MARK_AT conv=notrunc 2>/dev/null
    dd if="$T/head" of="$(device "$1")" bs=1048576 conv=notrunc,fsync 2>/dev/null ||
        trouble "the partition table could not be written"
}

# add_partitions DISK: shows the kernel those of the table in $T/head, which is not on the disk yet.
add_partitions() {
    add_sector=$(sector_of "$1")
    head_partitions "$add_sector" | while read -r add_number add_start add_sectors; do
        addpart "$(device "$1")" "$add_number" $((add_start * (add_sector / 512))) $((add_sectors * (add_sector / 512))) 2>/dev/null
    done
}

# head_partitions SECTOR: "NUMBER START SECTORS" of each partition in $T/head, in sectors of that size (UEFI 2.10, 5.3); of a
# table of MS-DOS the primary ones.
head_partitions() {
    if ! has_table "$T/head" "$1"; then
        for head_number in 1 2 3 4; do
            set -- $(head_numbers $((454 + 16 * (head_number - 1))) 2)
            [ "$2" = 0 ] || echo "$head_number $1 $2"
        done
        return
    fi
    head_sector=$1
    set -- $(head_numbers $((head_sector + 72)) 4) # where the entries are, of 64 bits; how many; how large
    head_at=$(($1 * head_sector))
    head_count=$3
    head_size=$4
    head_number=0
    while [ $head_number -lt "$head_count" ]; do
        set -- $(head_numbers $((head_at + head_number * head_size)) 1) $(head_numbers $((head_at + head_number * head_size + 32)) 4)
        head_number=$((head_number + 1))
        [ "$1" = 0 ] || echo "$head_number $(($2 + ($3 << 32))) $(($4 + ($5 << 32) - $2 - ($3 << 32) + 1))"
    done
}

# head_numbers BYTE COUNT: so many numbers of 32 bits.
head_numbers() {
    od -An -v -tu4 -j "$1" -N $(($2 * 4)) "$T/head"
}

# head_table CAPACITY SECTOR: the UUID of the partition table in $T/head, as blkid will tell it of the disk. Of a file it knows
# tables in sectors of 512 bytes, and believes them only where the file is as large as the disk.
head_table() {
    if [ "$2" != 512 ] && has_table "$T/head" "$2"; then
        od -An -v -tx1 -j $(($2 + 56)) -N 16 "$T/head" | tr -d ' \n' |
            sed 's/\(..\)\(..\)\(..\)\(..\)\(..\)\(..\)\(..\)\(..\)\(....\)/\4\3\2\1-\6\5-\8\7-\9-/'
        return
    fi
    cp "$T/head" "$T/probe"
    truncate -s "$1" "$T/probe"
    blkid -p -o value -s PTUUID "$T/probe" 2>/dev/null
    rm -f "$T/probe"
}
