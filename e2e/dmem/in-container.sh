# The first program of a container of tests.sh. Its argument is a command, and what the command needs.
set -- $1

# Charges the first GPU by MiB until the kernel refuses, and prints how many it granted. All are given back at the end.
mib() {
  local charged=0
  while echo "0 1048576" >&3; do charged=$((charged + 1)); done 2>/dev/null
  echo "$charged"
}

# Starts a program by a copy of the loader that reads no list of libraries, with the driver's own libcuda: our library is
# not in it.
around() {
  sed 's#/etc/ld.so.preload#/etc/no.so.preload#' /lib64/ld-linux-x86-64.so.2 >/tmp/ld.so
  chmod 755 /tmp/ld.so
  LD_LIBRARY_PATH=/dev/vgpu/.driver /tmp/ld.so "$@"
}

until_there() {
  while [ ! -e "/shared/$1" ]; do sleep 0.1; done
}

exec 3>/dev/gpu-memory
case $1 in
  mib) mib ;;
  hold)
    mib
    : >/shared/holds
    until_there again
    mib
    : >/shared/held
    until_there end
    ;;
  list) cat /etc/ld.so.preload ;;
  check) vgpu-client check ;;
  alloc) vgpu-client alloc "$2" 2>&1 ;;
  around) around /usr/bin/vgpu-client alloc "$2" 2>&1 ;;
esac
