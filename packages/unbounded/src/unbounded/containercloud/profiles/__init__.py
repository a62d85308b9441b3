"""BareMetalHostProfiles as MachineProfiles, which metalman compiles with the disks of a host. `plan` is pure."""
