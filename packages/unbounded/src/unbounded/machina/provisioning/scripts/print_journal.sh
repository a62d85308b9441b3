# Print the last $2 lines of the journal of the units of the agent, since $3 seconds after 1970. With "follow" as $4, also
# what comes.
command -v journalctl >/dev/null || { echo "journalctl is not installed on this host" >&2; exit 1; };
follow=;
[ "$4" = follow ] && follow=--follow;
exec journalctl --quiet --no-pager --output=short-iso --lines="$2" --since="@$3" --unit="unbounded-agent*" $follow;
