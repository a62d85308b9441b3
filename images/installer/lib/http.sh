# A small HTTP client over OpenBSD's nc: busybox wget can neither ask for a range that ends nor tell the status, and
# busybox nc reads 1 KiB at a time and tells the server that it is gone when its own input ends.
#
# Where the initrd has the public key of a site, an answer that the site has not signed for this request is none: each
# request has a number of its own, and the signature is of both (unbounded/metalman/http/response_signing.py).

STATEMENT_KEY=${STATEMENT_KEY:-/etc/unbounded/statement.pub}

# request METHOD URL [BODY [HEADER]]: the answer's status in STATUS (000: none came), its headers in $T/headers, its
# body in $T/body. Fails where the answer is not whole.
request() {
    request_rest=${2#http://}
    request_host=${request_rest%%/*}
    request_path=${request_rest#"$request_host"}
    case $request_host in
        *:*) request_port=${request_host##*:} ;;
        *) request_port=80 ;;
    esac
    rm -f "$T/answer" "$T/status" "$T/headers" "$T/body" "$T/unsigned"
    request_nonce=
    [ ! -e "$STATEMENT_KEY" ] || request_nonce=$(printf '%s' $(od -An -v -tx1 -N 32 /dev/urandom))
    {
        printf '%s %s HTTP/1.0\r\nHost: %s\r\n' "$1" "${request_path:-/}" "$request_host"
        [ -z "${4:-}" ] || printf '%s\r\n' "$4"
        [ -z "$request_nonce" ] || printf 'Unbounded-Nonce: %s\r\n' "$request_nonce"
        [ -z "${3:-}" ] || printf 'Content-Type: application/json\r\n'
        [ "$1" = GET ] || printf 'Content-Length: %s\r\n' "${#3}"
        printf '\r\n%s' "${3:-}"
    } >"$T/ask"
    timeout "${HTTP_LIMIT_S:-120}" nc.openbsd -w 60 "${request_host%:*}" "$request_port" \
        <"$T/ask" >"$T/answer" 2>/dev/null
    take_answer <"$T/answer" # a pipe between them would take twice the time
    rm -f "$T/answer"
    STATUS=000
    [ ! -s "$T/status" ] || read -r STATUS <"$T/status"
    [ "$STATUS" != 000 ] || return 1
    [ -e "$STATEMENT_KEY" ] || { whole_answer && return 0 || return 1; }
    # without a signature, which is of the whole answer, not even its status is believed
    is_stated "$1 ${request_path:-/}" "${3:-}" && is_requested "${4:-}" && return 0
    : >"$T/unsigned"
    rm -f "$T/headers" "$T/body"
    STATUS=000
    return 1
}

# is_stated REQUEST SENT: whether the site has signed the answer to this request.
is_stated() {
    stated_range=$(header Content-Range)
    stated_sent=$(printf '%s' "$2" | sha256sum)
    stated_body=$(sha256sum <"$T/body")
    printf '%s\n' "unbounded-statement 1" "$1" "$request_nonce" "${stated_sent%% *}" "$STATUS" \
        "${stated_range:--}" "${stated_body%% *}" >"$T/statement"
    header Unbounded-Statement | base64 -d >"$T/signature" 2>/dev/null
    [ "${#request_nonce}" = 64 ] && openssl pkeyutl -verify -pubin -inkey "$STATEMENT_KEY" -rawin -in "$T/statement" \
        -sigfile "$T/signature" >/dev/null 2>&1
}

# is_requested HEADER: whether a part is the one that the request named. A machine on the path may add or change a Range,
# as no signature covers the header fields of a request.
is_requested() {
    [ "$STATUS" = 206 ] || return 0
    asked_range=${1#Range: bytes=}
    part_total=${stated_range#*/}
    part_range=${stated_range#bytes }
    part_range=${part_range%/*}
    [ "$part_range" = "$asked_range" ] ||
        { [ "$part_range" = "${asked_range%-*}-$((part_total - 1))" ] && [ "$part_total" -le "${asked_range#*-}" ]; }
}

take_answer() {
    cr=$(printf '\r')
    IFS=' ' read -r _ take_status _ || return 0
    : >"$T/headers"
    while IFS= read -r take_line && [ -n "${take_line%"$cr"}" ]; do
        printf '%s\n' "${take_line%"$cr"}" >>"$T/headers"
    done
    cat >"$T/body"
    case $take_status in
        [1-5][0-9][0-9]) printf '%s\n' "$take_status" >"$T/status" ;;
    esac
}

# header NAME: its value in the last answer.
header() {
    header_line=$(grep -i -m 1 "^$1:" "$T/headers") || return 0
    header_line=${header_line#*:}
    printf '%s\n' "${header_line#"${header_line%%[! ]*}"}"
}

whole_answer() {
    whole_length=$(header Content-Length)
    [ -z "$whole_length" ] || [ "$whole_length" = "$(size_of "$T/body")" ]
}

size_of() {
    stat -c %s "$1"
}

# patiently COMMAND...: repeat a request until it is answered with 2xx; up to TRIES times, waiting 1, 2, 4 … 15 s.
# Refusals (4xx) are final: metalman says them when this boot is not wanted any more.
patiently() {
    patiently_try=1
    patiently_wait=1
    while :; do
        "$@" && case $STATUS in 2??) return 0 ;; esac
        case $STATUS in 408 | 429) ;; 4??) return 1 ;; esac
        [ "$patiently_try" -lt "${TRIES:-12}" ] || return 1
        sleep "${PAUSE_S:-$patiently_wait}"
        patiently_try=$((patiently_try + 1))
        patiently_wait=$((patiently_wait * 2))
        [ "$patiently_wait" -le 15 ] || patiently_wait=15
    done
}

# what_came: the last answer in words.
what_came() {
    [ ! -e "$T/unsigned" ] || { printf 'an answer that the site has not signed' && return; }
    case $STATUS in
        000) printf 'no answer' ;;
        2??) printf 'an answer that was cut off' ;;
        *) printf 'HTTP %s: %s' "$STATUS" "$(head -c 200 "$T/body" 2>/dev/null | head -n 1)" ;;
    esac
}

FILES_EXPECTED=${FILES_EXPECTED:-/etc/unbounded/files.sha256}

# is_expected FILE SHA256: whether a signed installer was built with this file of the image. Its list is signed with it, so
# that no other image of a registry is written. Without a list every file is.
is_expected() {
    [ ! -e "$FILES_EXPECTED" ] || grep -qxF "$2  $1" "$FILES_EXPECTED" ||
        trouble "$1 has the SHA-256 $2, and the signed installer was built with another one or none: name an image in spec.pxe.image that was built together with its installer"
}
