#!/bin/sh
# In the place of ssh, which the virtual nodes have not: AGENT HOST COMMAND...
# Open MPI does not quote the folder that it is in, $MPI_PREFIX, whose name may hold a blank.
host=$1
shift
command=$(printf '%s' "$*" | sed "s|$MPI_PREFIX|'&'|g")
exec srun --nodelist="$host" --nodes=1 --ntasks=1 --cpus-per-task=2 sh -c "$command"
