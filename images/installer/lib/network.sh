# The network of the installer: the Machine's own static leases, one for each MAC that is here.

# interface MAC: its name; fails where there is none.
interface() {
    set +f
    for net_dir in "$SYS"/class/net/*; do
        [ "$(value "$net_dir/address" "" | tr A-F a-f)" = "$(printf '%s' "$1" | tr A-F a-f)" ] || continue
        set -f
        printf '%s\n' "${net_dir##*/}"
        return 0
    done
    set -f
    return 1
}

# bring_up LEASE: "MAC,ADDRESS,MASK,GATEWAY"; the gateway may be empty.
bring_up() {
    IFS=, read -r up_mac up_address up_mask up_gateway <<EOF
$1
EOF
    up_dev=$(interface "$up_mac") || return 1
    ifconfig "$up_dev" "$up_address" netmask "$up_mask" up || return 1
    [ -z "$up_gateway" ] || route add default gw "$up_gateway" dev "$up_dev" 2>/dev/null
    say "$up_dev has $up_address"
}

# has_carrier LEASE
has_carrier() {
    carrier_dev=$(interface "${1%%,*}") && [ "$(value "$SYS/class/net/$carrier_dev/carrier" 0 2>/dev/null)" = 1 ]
}

# raise_links: brings up all NICs, those without a lease too, so that the report has their links and speeds. They get no
# address, and send nothing of IPv6 either.
raise_links() {
    set +f
    for net_dir in "$SYS"/class/net/*; do
        [ -e "$net_dir/device" ] || continue
        net_six=${PROC:-/proc}/sys/net/ipv6/conf/${net_dir##*/}/disable_ipv6
        [ ! -w "$net_six" ] || echo 1 >"$net_six"
        ifconfig "${net_dir##*/}" up 2>/dev/null
    done
    set -f
}

# bring_up_network: true when one of the leases' interfaces has a link.
bring_up_network() {
    for net_dns in $(args unbounded.dns); do echo "nameserver $net_dns"; done >"${RESOLV:-/etc/resolv.conf}"
    raise_links
    listen_for_neighbours
    net_try=0
    while [ "$net_try" -lt 60 ]; do
        for net_lease in $(args unbounded.lease); do
            case " ${net_done:-} " in *" $net_lease "*) ;; *) bring_up "$net_lease" && net_done="${net_done:-} $net_lease" ;; esac
            has_carrier "$net_lease" && return 0
        done
        net_try=$((net_try + 1))
        sleep 1
    done
    say "no interface of this Machine has a link: $(args unbounded.lease | tr '\n' ' ')"
    return 1
}
