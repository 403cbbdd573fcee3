#!/bin/sh
# In the place of ssh, which the virtual nodes have not: AGENT HOST COMMAND...
host=$1
shift
exec srun --nodelist="$host" --nodes=1 --ntasks=1 --cpus-per-task=2 sh -c "$*"
