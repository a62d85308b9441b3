# Remove all runs of this host; if another run is in progress, only those of this Machine.
if [ -d "$top" ]; then
  one_by_one;
  find_other;
  read_boot;
  for each in "$top"/*/new-*; do is_coming "$each" && other=$each; done;
  if [ -n "$other" ]; then rm -rf "$here"; else rm -rf "$top"; fi;
  rmdir "${top%/*}" 2>/dev/null;
fi;
say cleared;
