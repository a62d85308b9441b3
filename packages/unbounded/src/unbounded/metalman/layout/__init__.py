"""The compiler of disk layouts: a MachineProfile and the disks of a report become the text that an installer executes.

Pure. `compiler.compile_layout` is the entry point. `api/profile_check` resolves the references of a profile, `matching`
gives each device its disk, and `geometry` places partitions. `model.summary` describes a layout for people. The
installer (images/installer/lib/layout.sh) owns the form of the text.
"""
