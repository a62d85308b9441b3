# The facts of this machine, as one JSON object for POST <ServeURL>/hardware. Nothing here fails or changes anything: a
# fact that the machine does not have is left out.
#
# Strings of firmware and disks are of anybody's making. They come out as JSON strings of printable ASCII: other bytes
# become blanks, and TEXT_BYTES of them are enough.

PROC=${PROC:-/proc}
UDEV=${UDEV:-/run/udev/data}
TEXT_BYTES=512
MOST_DISKS=128
MOST_OTHERS=64 # of NICs, and of accelerators
DISKS_BYTES=${DISKS_BYTES:-200000} # metalman takes 256 KiB

# fact FILE: its first line in FACT, without blanks around it; empty where it cannot be read, as the speed of a NIC
# without a link cannot.
fact() {
    FACT=
    [ ! -f "$1" ] || [ ! -r "$1" ] || read -r FACT 2>/dev/null <"$1"
}

# quoted TEXT: as a JSON string in QUOTED.
quoted() {
    QUOTED=$1
    [ ${#1} -le $TEXT_BYTES ] || QUOTED=$(printf "%.${TEXT_BYTES}s" "$1")
    case $QUOTED in
        *[!A-Za-z0-9\ ._:,/@+=-]*) QUOTED=$(printf '%s' "$QUOTED" | LC_ALL=C tr -c ' -~' ' ' | sed 's/[\\"]/\\&/g') ;;
    esac
    QUOTED="\"$QUOTED\""
}

# object FUNCTION [ARGUMENT...]: the JSON object of the members that a function adds by text, number, truth, part and list.
object() (
    members=
    "$@"
    printf '{%s}' "${members#,}"
)

text() {
    [ -n "$2" ] || return 0
    quoted "$2"
    members="$members,\"$1\":$QUOTED"
}

number() {
    case $2 in '' | *[!0-9]* | 0?* | ???????????????????*) ;; *) members="$members,\"$1\":$2" ;; esac
}

truth() {
    case $2 in 0) members="$members,\"$1\":false" ;; 1) members="$members,\"$1\":true" ;; esac
}

# part KEY FUNCTION [ARGUMENT...]: an object, left out where it is empty.
part() {
    part_key=$1
    shift
    part_object=$(object "$@")
    [ "$part_object" = '{}' ] || members="$members,\"$part_key\":$part_object"
}

# list KEY MOST FUNCTION ITEM...: an object for each item.
list() {
    list_key=$1 list_most=$2 list_of=$3
    shift 3
    members="$members,\"$list_key\":[$(for list_item in "$@"; do object "$list_of" "$list_item" && echo; done |
        head -n "$list_most" | joined)]"
}

# joined: lines as elements of a JSON array.
joined() {
    sed '$!s/$/,/' | tr -d '\n'
}

# first KEY TEXT...: the first of the texts that is one.
first() {
    first_key=$1
    shift
    for first_text in "$@"; do
        [ -z "$first_text" ] || { text "$first_key" "$first_text" && return; }
    done
}

# distinct PATTERN: how many different lines the files have; nothing where there is none.
distinct() {
    set +f
    cat $1 2>/dev/null | sort -u | grep -c . | grep -vx 0
    set -f
}

# counted PATTERN: how many files there are; nothing where there is none.
counted() {
    set +f
    set -- $1
    set -f
    [ ! -e "$1" ] || echo $#
}

# driver_of DEVICE
driver_of() {
    driver_link=$(readlink "$1/driver") && printf '%s' "${driver_link##*/}"
}

# hardware UID: all of it. UID is that of the Machine, whose own disks are known by it.
hardware() {
    object hardware_facts "$1"
}

hardware_facts() {
    part system system_facts
    part firmware firmware_facts
    number cpus "$(counted "$SYS/devices/system/cpu/cpu[0-9]*/topology")" # which one that is offline has not
    part processor processor_facts
    number memoryBytes "$(awk '/^MemTotal:/ { printf "%.0f", $2 * 1024 }' "$PROC/meminfo" 2>/dev/null)"
    number numaNodes "$(counted "$SYS/devices/system/node/node[0-9]*")"
    list nics $MOST_OTHERS nic_facts $(nics)
    members="$members,\"disks\":[$(disk_lines "$1")]"
    part tpm tpm_facts
    list accelerators $MOST_OTHERS accelerator_facts $(accelerators)
}

system_facts() {
    for system_pair in manufacturer:sys_vendor product:product_name serialNumber:product_serial uuid:product_uuid; do
        fact "$SYS/class/dmi/id/${system_pair#*:}"
        text "${system_pair%:*}" "$FACT"
    done
}

firmware_facts() {
    for firmware_key in vendor version date; do
        fact "$SYS/class/dmi/id/bios_$firmware_key"
        text $firmware_key "$FACT"
    done
    if [ -d "$SYS/firmware/efi" ]; then
        text mode UEFI
        truth secureBoot "$(secure_boot)"
    else
        text mode BIOS
    fi
}

# secure_boot: 0 or 1; nothing where the firmware does not say. The value follows four bytes of attributes.
secure_boot() {
    od -An -tu1 "$SYS/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c" 2>/dev/null |
        awk 'NR == 1 { print $5 }'
}

processor_facts() {
    processor_dir=$SYS/devices/system/cpu
    text architecture "$(uname -m)"
    text model "$(sed -n 's/^model name[[:space:]]*: *//p' "$PROC/cpuinfo" 2>/dev/null | head -n 1)"
    number sockets "$(distinct "$processor_dir/cpu[0-9]*/topology/physical_package_id")"
    number cores "$(distinct "$processor_dir/cpu[0-9]*/topology/thread_siblings_list")"
}

tpm_facts() {
    fact "$SYS/class/tpm/tpm0/tpm_version_major"
    case $FACT in
        1) text version 1.2 ;;
        2) text version 2.0 ;;
        *) return 0 ;;
    esac
    tpm_certificate=$(ek_certificate | sed 's/$/\\n/' | tr -d '\n')
    [ -z "$tpm_certificate" ] || members="$members,\"ekCertificate\":\"-----BEGIN CERTIFICATE-----\n$tpm_certificate-----END CERTIFICATE-----\n\""
}

# nics: the names of those that are devices: not of bridges, tunnels, or the loopback.
nics() {
    set +f
    for nics_dir in "$SYS"/class/net/*; do
        [ ! -e "$nics_dir/device" ] || printf '%s\n' "${nics_dir##*/}"
    done
    set -f
}

nic_facts() {
    nic_dir=$SYS/class/net/$1
    text name "$1"
    fact "$nic_dir/bonding_slave/perm_hwaddr" # a bond gives all of its cards one address
    [ -n "$FACT" ] || fact "$nic_dir/address"
    text mac "$FACT"
    text driver "$(driver_of "$nic_dir/device")"
    fact "$nic_dir/carrier"
    truth link "${FACT:-0}"
    fact "$nic_dir/speed"
    [ "$FACT" = 0 ] || number speedMbps "$FACT" # -1 or 0: unknown
    nic_device=$(readlink -f "$nic_dir/device" | grep -oE '^.*/[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]' || :)
    text pciAddress "${nic_device##*/}"
    fact "$nic_device/acpi_index" # ACPI's number counts before that of SMBIOS, as udev has it
    [ -n "$FACT" ] || fact "$nic_device/index"
    number onboardIndex "$FACT"
    part lldp lldp_facts "$1"
}

# accelerators: PCI addresses of display controllers (class 03) and processing accelerators (class 12).
accelerators() {
    set +f
    for accelerators_dir in "$SYS"/bus/pci/devices/*; do
        fact "$accelerators_dir/class"
        case $FACT in 0x03* | 0x12*) printf '%s\n' "${accelerators_dir##*/}" ;; esac
    done
    set -f
}

accelerator_facts() {
    accelerator_dir=$SYS/bus/pci/devices/$1
    text pciAddress "$1"
    fact "$accelerator_dir/vendor"
    text vendorID "${FACT#0x}"
    fact "$accelerator_dir/device"
    text deviceID "${FACT#0x}"
    fact "$accelerator_dir/class"
    accelerator_class=${FACT#0x}
    text class "${accelerator_class%??}"
    text driver "$(driver_of "$accelerator_dir")"
}

# disk_lines UID: the elements of the list of disks, and in $T/states "NAME BYTES SECTOR VERDICT", a line for each.
# Where a report cannot hold all, the blank ones are left out first: the only blank disk of a report has to be the only one.
disk_lines() {
    note_links
    : >"$T/states"
    for lines_disk in $(disks); do
        lines_verdict=$(judge "$lines_disk" "$1")
        printf '%s %s %s %s\n' "$lines_disk" "$(bytes_of "$lines_disk")" "$(sector_of "$lines_disk")" "$lines_verdict" >>"$T/states"
        object disk_facts "$lines_disk" "$lines_verdict"
        echo
    done >"$T/disk_lines"
    if [ "$(wc -l <"$T/disk_lines")" -gt $MOST_DISKS ] || [ "$(size_of "$T/disk_lines")" -gt "$DISKS_BYTES" ]; then
        for lines_state in Own Foreign Blank; do
            grep "\"state\":\"$lines_state\"" "$T/disk_lines"
        done | awk -v most=$MOST_DISKS -v bytes="$DISKS_BYTES" '{ all += length($0) + 1 } NR <= most && all <= bytes'
    else
        cat "$T/disk_lines"
    fi | joined
}

# disk_facts NAME VERDICT
disk_facts() {
    disk_sys=$SYS/block/$1
    disk_device=$(readlink -f "$disk_sys/device")
    text name "$1"
    fact "$disk_sys/size"
    number sizeBytes $((${FACT:-0} * 512))
    fact "$disk_sys/queue/logical_block_size"
    number sectorBytes "$FACT"
    fact "$disk_sys/queue/rotational"
    truth rotational "$FACT"
    disk_bus "$1" "$disk_device"
    text transport "$(disk_transport "$1" "$disk_device")"
    ! has_paths "$1" || truth multipath 1
    disk_identity "$disk_sys"
    case ${disk_device##*/} in [0-9]*:[0-9]*:[0-9]*:[0-9]*) text hctl "${disk_device##*/}" ;; esac
    disk_file=$(readlink -f "$(device "$1")")
    disk_links byID "by-id $disk_file"
    disk_links byPath "by-path $disk_file"
    text state "${2%% *}"
    case $2 in "Foreign "?*) text contents "${2#* }" ;; esac
}

# disk_bus NAME DEVICE: how the disk is attached; left out where that is none of the kinds that metalman knows.
disk_bus() {
    case $1:$2 in
        nvme*) text bus nvme ;;
        mmcblk*) text bus mmc ;;
        vd*) text bus virtio ;;
        *:*/usb[0-9]*) text bus usb ;;
        *:*/end_device-*) text bus sas ;;
        *:*/ata[0-9]*) text bus ata ;;
        *:*/[0-9]*:[0-9]*:[0-9]*:[0-9]*) text bus scsi ;;
    esac
}

# disk_transport NAME DEVICE: what carries its commands, as metalman tells local disks from those of a SAN by it; nothing
# where that is not known. A RAID controller shows volumes of its own, behind none of the kernel's transports.
disk_transport() {
    case $1:$2 in
        nvme*) nvme_transports "$1" | sort -u | grep -vx pcie || nvme_transports "$1" ;;
        mmcblk*) echo mmc ;;
        vd*) echo virtio ;;
        */usb[0-9]*) echo usb ;;
        */rport-[0-9]*) echo fc ;;
        */session[0-9]*/target[0-9]*) echo iscsi ;;
        */end_device-*) echo sas ;;
        */ata[0-9]*) echo ata ;;
        */virtio[0-9]*/host[0-9]*) echo virtio ;;
        *) raid_volume "${2##*/}" ;;
    esac | head -n 1
}

# raid_volume HCTL
raid_volume() {
    case $1 in [0-9]*:[0-9]*:[0-9]*:[0-9]*) ;; *) return 0 ;; esac
    case $(value "$SYS/class/scsi_host/host${1%%:*}/proc_name" "") in
        megaraid_sas | mpi3mr | mpt2sas | mpt3sas | hpsa | smartpqi | aacraid | arcmsr | 3w-*) echo raid ;;
    esac
}

# nvme_transports NAME: of each controller that leads to the disk.
nvme_transports() {
    set +f
    for nvme_file in "$SYS/block/$1/device/transport" "$SYS/block/$1/device/"nvme*/transport; do
        [ ! -r "$nvme_file" ] || cat "$nvme_file"
    done
    set -f
}

# has_paths NAME: whether several ways lead to the disk, as multipathd or the NVMe driver has found.
has_paths() {
    [ "$(nvme_transports "$1" | wc -l)" -le 1 ] || return 0
    set +f
    for paths_holder in "$SYS/block/$1/holders/"dm-*; do
        case $(value "$SYS/block/${paths_holder##*/}/dm/uuid" "") in mpath-*) set -f && return 0 ;; esac
    done
    set -f
    return 1
}

# disk_identity SYS_DIR: by udev's database, else as the kernel knows it. What ATA disks say of themselves is longer than
# the model that SCSI shows of them.
disk_identity() {
    udev_model= udev_scsi= udev_serial= udev_wwn=
    fact "$1/dev"
    if [ -r "$UDEV/b$FACT" ]; then
        while IFS= read -r udev_line; do
            case $udev_line in
                E:ID_MODEL_ENC=*) udev_model=$(printf '%b' "${udev_line#*=}" | tr -s ' \n' ' ' | sed 's/^ //; s/ $//') ;;
                E:ID_SCSI_SERIAL=*) udev_scsi=${udev_line#*=} ;;
                E:ID_SERIAL_SHORT=*) udev_serial=${udev_line#*=} ;;
                E:ID_WWN=*) udev_wwn=${udev_line#*=} ;;
            esac
        done <"$UDEV/b$FACT"
    fi
    fact "$1/device/vendor"
    case $FACT in 0x*) ;; *) text vendor "$FACT" ;; esac # that is the number of virtio's or of a PCI device's maker
    fact "$1/device/model"
    first model "$udev_model" "$FACT"
    fact "$1/device/serial"
    disk_serial=$FACT
    fact "$1/serial" # virtio has it here
    first serialNumber "$udev_scsi" "$udev_serial" "$disk_serial" "$FACT"
    fact "$1/wwid"
    first wwn "$udev_wwn" "$FACT"
}

# disk_links KEY "KIND DEVICE": the names of a device below /dev/disk/KIND, as note_links found them.
disk_links() {
    links_json=
    while IFS= read -r links_line; do
        case $links_line in
            "$2 "*)
                quoted "${links_line#"$2 "}"
                links_json="$links_json,$QUOTED"
                ;;
        esac
    done <"$T/links"
    [ -z "$links_json" ] || members="$members,\"$1\":[${links_json#,}]"
}
