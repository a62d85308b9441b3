# What metalman is told: POST <ServeURL>/progress {"stage", "percent", "disk", "message", "failed"}.

REPORT_EVERY_S=${REPORT_EVERY_S:-2}
reported_at=-1000
reported_percent=
REPORT_DISK= # the disk that is written, by a name that stays; it is recorded for the next install

# plain TEXT: as it may stand in a JSON string.
plain() {
    printf '%s' "$1" | LC_ALL=C tr -c ' -~' ' ' | tr '"\\' "'/" | head -c 1000
}

report_body() {
    printf '{"stage":"%s",%s%s"message":"%s","failed":%s}' "$1" "${2:+\"percent\":$2,}" \
        "${REPORT_DISK:+\"disk\":\"$(plain "$REPORT_DISK")\",}" "$(plain "$3")" "$4"
}

# report STAGE PERCENT TEXT: once, and going on whether it was heard or not. PERCENT may be empty.
report() {
    say "$1: ${2:+$2 %, }$3"
    HTTP_LIMIT_S=10 request POST "$SERVE_URL/progress" "$(report_body "$1" "$2" "$3" false)"
    return 0
}

# report_percent STAGE PERCENT TEXT: not more often than every REPORT_EVERY_S, and only what is new.
report_percent() {
    report_now=$(seconds)
    [ "$2" != "$reported_percent" ] && [ $((report_now - reported_at)) -ge "$REPORT_EVERY_S" ] || return 0
    reported_at=$report_now
    reported_percent=$2
    report "$1" "$2" "$3"
}

# report_failure STAGE TEXT: repeated until it arrives, as no other report exists.
report_failure() {
    say "$1 failed: $2"
    HTTP_LIMIT_S=10 patiently request POST "$SERVE_URL/progress" "$(report_body "$1" "" "$2" true)" ||
        say "metalman could not be told: $(what_came)"
}

# report_patiently STAGE PERCENT TEXT: several times if need be, and going on all the same.
report_patiently() {
    say "$1: ${2:+$2 %, }$3"
    HTTP_LIMIT_S=10 patiently request POST "$SERVE_URL/progress" "$(report_body "$1" "$2" "$3" false)"
    return 0
}
