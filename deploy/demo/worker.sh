#!/bin/sh
# The worker of `deploy/dev run`: says who it is; in the first attempt, the last rank fails.
attempt=$TORCHELASTIC_RESTART_COUNT
echo "rank $RANK of $WORLD_SIZE on node $GROUP_RANK of $GROUP_WORLD_SIZE, attempt $attempt, rank 0 is at $MASTER_ADDR:$MASTER_PORT"
if [ "$attempt" -eq 0 ]; then
  if [ "$RANK" -eq $((WORLD_SIZE - 1)) ]; then
    sleep 1 # let the others speak first
    echo "rank $RANK fails now, with exit code 17" >&2
    exit 17
  fi
  exec sleep 60 # until the agent stops us
fi
echo "rank $RANK has finished its work"
