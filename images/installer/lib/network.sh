# The network of the installer: the Machine's own static leases, each on the card with the MAC that it names, or on a bond or
# a tagged VLAN of the kernel command line.

# interface LINK: the name of the card with that MAC, or LINK itself, a bond or VLAN; fails where there is none.
interface() {
    case $1 in *:*) ;; *) [ -e "$SYS/class/net/$1" ] && printf '%s\n' "$1" && return ;; esac
    set +f
    for net_dir in "$SYS"/class/net/*; do
        case $(echo "$net_dir"/lower_*) in *'*') ;; *) continue ;; esac # a bond or VLAN has the address of its card
        net_mac=$(value "$net_dir/bonding_slave/perm_hwaddr" "$(value "$net_dir/address" "")") # a bond gives all one address
        [ "$(printf '%s' "$net_mac" | tr A-F a-f)" = "$(printf '%s' "$1" | tr A-F a-f)" ] || continue
        set -f
        printf '%s\n' "${net_dir##*/}"
        return 0
    done
    set -f
    return 1
}

# make_links: the bonds and VLANs of the command line, as far as their cards are here.
make_links() {
    for links_word in $(args unbounded.bond); do make_bond $(printf '%s' "$links_word" | tr , ' '); done
    for links_word in $(args unbounded.vlan); do make_vlan $(printf '%s' "$links_word" | tr , ' '); done
}

# make_bond NAME MODE FAIL_OVER_MAC MAC...
make_bond() {
    bond_name=$1
    bond_dir=$SYS/class/net/$1
    if [ ! -e "$bond_dir" ]; then
        modprobe bonding max_bonds=0 # else it makes one by itself
        ip link add "$1" type bond && echo "$2" >"$bond_dir/bonding/mode" && echo "$3" >"$bond_dir/bonding/fail_over_mac" &&
            echo 100 >"$bond_dir/bonding/miimon" || { say "the bond $1 of mode $2 could not be made" && return 0; }
    fi
    shift 3
    for bond_mac in "$@"; do
        bond_card=$(interface "$bond_mac") && [ ! -e "$SYS/class/net/$bond_card/bonding_slave" ] || continue
        ifconfig "$bond_card" down # else the bond does not take it
        echo "+$bond_card" >"$bond_dir/bonding/slaves" && say "$bond_card is in $bond_name"
    done
    raise "$bond_name"
}

# make_vlan NAME LINK ID
make_vlan() {
    [ ! -e "$SYS/class/net/$1" ] && vlan_dev=$(interface "$2") || return 0
    modprobe 8021q
    ip link add link "$vlan_dev" name "$1" type vlan id "$3" ||
        { say "the VLAN $3 on $vlan_dev could not be made" && return 0; }
    raise "$1"
    say "$1 is the VLAN $3 on $vlan_dev"
}

# raise NAME: without an address, and without what IPv6 sends by itself.
raise() {
    raise_six=${PROC:-/proc}/sys/net/ipv6/conf/$1/disable_ipv6
    [ ! -w "$raise_six" ] || echo 1 >"$raise_six"
    ifconfig "$1" up 2>/dev/null
}

# bring_up LEASE: "LINK,ADDRESS,MASK,GATEWAY"; the gateway may be empty.
bring_up() {
    IFS=, read -r up_link up_address up_mask up_gateway <<EOF
$1
EOF
    up_dev=$(interface "$up_link") || return 1
    ifconfig "$up_dev" "$up_address" netmask "$up_mask" up || return 1
    [ -z "$up_gateway" ] || route add default gw "$up_gateway" dev "$up_dev" 2>/dev/null
    say "$up_dev has $up_address"
}

# has_carrier LEASE
has_carrier() {
    carrier_dev=$(interface "${1%%,*}") && [ "$(value "$SYS/class/net/$carrier_dev/carrier" 0 2>/dev/null)" = 1 ]
}

# raise_links: brings up all NICs, those without a lease too, so that the report has their links and speeds.
raise_links() {
    set +f
    for net_dir in "$SYS"/class/net/*; do
        [ ! -e "$net_dir/device" ] || raise "${net_dir##*/}"
    done
    set -f
}

# bring_up_network: true when one of the leases' interfaces has a link.
bring_up_network() {
    start_links
    listen_for_neighbours
    wait_for_link
}

start_links() {
    for net_dns in $(args unbounded.dns); do echo "nameserver $net_dns"; done >"${RESOLV:-/etc/resolv.conf}"
    make_links
    raise_links
}

wait_for_link() {
    net_try=0
    while [ "$net_try" -lt 60 ]; do
        for net_lease in $(args unbounded.lease); do
            case " ${net_done:-} " in *" $net_lease "*) ;; *) bring_up "$net_lease" && net_done="${net_done:-} $net_lease" ;; esac
            has_carrier "$net_lease" && return 0
        done
        net_try=$((net_try + 1))
        sleep 1
        make_links # a card may come late
    done
    say "no interface of this Machine has a link: $(args unbounded.lease | tr '\n' ' ')"
    return 1
}

STATEMENT_TRIES=${STATEMENT_TRIES:-30}
MEDIA_WORDS=${MEDIA_WORDS:-/.extra/credentials/boot.cred} # of the image of virtual media, put there by systemd's stub

# take_statement: the words of a boot, which else are the kernel's command line, in CMDLINE: as the site has signed them for
# this request. DHCP and virtual media are believed as far as the way to metalman. The words name MACs of the Machine, and
# bring_up_network fails where none of them is here.
take_statement() {
    if [ -r "$MEDIA_WORDS" ]; then
        ask_by_media && return 0
    else
        ask_by_dhcp && return 0
    fi
    say "no statement of the site came: ${take_why:-no interface has a link}"
    return 1
}

# ask_by_media: with the addresses and by the URL of the image. Nothing of its network is left afterwards: a bond of other
# cards would pass for the Machine's.
ask_by_media() {
    CMDLINE=$(head -c 4096 "$MEDIA_WORDS" | tr '\n' ' ')
    take_why="virtual media has words that are none of a boot"
    case $CMDLINE in *[!A-Za-z0-9\ .,:=/_-]*) return 1 ;; esac
    case $(arg unbounded.serve_url) in http://?*/?*) ;; *) return 1 ;; esac
    take_why=
    start_links
    wait_for_link || return 1
    patiently request GET "$(arg unbounded.serve_url)/statement"
    take_code=$?
    take_why="$(arg unbounded.serve_url | cut -d / -f 3): $(what_came)"
    leave_network || return 1
    [ $take_code = 0 ] || return 1
    CMDLINE=$(cat "$T/body")
}

# leave_network: takes away the addresses and links of the command line.
leave_network() {
    for leave_lease in $(args unbounded.lease); do
        ! leave_dev=$(interface "${leave_lease%%,*}") || ifconfig "$leave_dev" 0.0.0.0
    done
    for leave_link in $(args unbounded.vlan) $(args unbounded.bond); do
        ip link del "${leave_link%%,*}" 2>/dev/null
        [ ! -e "$SYS/class/net/${leave_link%%,*}" ] || { take_why="${leave_link%%,*} cannot be removed" && return 1; }
    done
    net_done=
}

ask_by_dhcp() {
    raise_links
    take_try=0
    while [ "$take_try" -lt "$STATEMENT_TRIES" ]; do
        set +f
        for take_dir in "$SYS"/class/net/*; do
            [ -e "$take_dir/device" ] && [ "$(value "$take_dir/carrier" 0 2>/dev/null)" = 1 ] || continue
            set -f
            ! ask_statement "${take_dir##*/}" || return 0
        done
        set -f
        take_try=$((take_try + 1))
        sleep 1
    done
    return 1
}

# ask_statement INTERFACE
ask_statement() {
    rm -f "$T/boot_url"
    case $(uname -m) in aarch64) ask_machine=00019 ;; *) ask_machine=00016 ;; esac # IANA, processor architecture types
    T=$T udhcpc -i "$1" -f -n -q -t 5 -T 2 -s "$INSTALLER/leased" -V "HTTPClient:Arch:$ask_machine:UNDI:003001" >/dev/null 2>&1
    ask_url=$(cat "$T/boot_url" 2>/dev/null)
    ask_host=${ask_url#http://}
    ask_host=${ask_host%%/*}
    take_why="DHCP on $1 named no file to boot: ${ask_url:-nothing}"
    case $ask_url in http://?*/*) ;; *) return 1 ;; esac
    case $ask_host in "" | -* | *[!A-Za-z0-9.:-]*) return 1 ;; esac
    if TRIES=${TRIES:-3} patiently request GET "http://$ask_host/statement"; then
        CMDLINE=$(cat "$T/body")
        ifconfig "$1" 0.0.0.0 # the statement has its addresses
        return 0
    fi
    take_why="$ask_host: $(what_came)"
    ifconfig "$1" 0.0.0.0
    return 1
}
